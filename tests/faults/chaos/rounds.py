"""
Rounds of chaos: a stream, its producer and its competitor are harmed for a while, then counted.

A round: start, harm about once a second, stop, drain with AvailableNow, and find every committed
message in exactly one of the sink, the competitor's table, the error queue, or the streams' count
of expired ones. Nothing may be left in the queue, in receipts or in the staging.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from .checkpoint_failures import WHEN_DEAD
from .counting import Tally, Verdict, reckon
from .driver_process import Driving
from .failures import AT_WORK, QUERY_TIMEOUT, Harm, Scene
from .server import Place
from .traffic import Competitor, Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from .server import Ground

SINKS = ("parquet", "delta", "queue", "atomic")
HARMING = 45.0  # seconds of a round
_INSIST = 6.0  # seconds that a harm waits for its victim
DRAINING = 300.0  # seconds until the drain counts as stuck

# What a checkpoint that is damaged must be answered with: never with a guess.
_REFUSED = re.compile(
    r"ran after the batch was acknowledged|was rolled back or copied"
    r"|STREAMING_CHECKPOINT_MISSING_METADATA_FILE"
)
_NAMED = re.compile(r"sqlq_spark\.errors\.(\w+): ([^\n]{0,100})")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a round is to be."""

    number: int
    seed: int
    sink: str
    streams: int  # on one queue, each with a checkpoint of its own
    master: str
    seconds: float  # of harm
    weaken: str | None = None  # none or forget: must be noticed
    only: tuple[str, ...] = ()  # beginnings of the names of harms; all where empty

    @property
    def rng(self) -> Random:
        """Chance of this round."""
        return Random(f"{self.seed}/{self.number}")


@dataclass
class Result:
    """What a round came to."""

    plan: Plan
    harms: Counter[str] = field(default_factory=Counter)
    refused: int = 0  # starts on a damaged checkpoint, until that was put back
    starts: int = 0  # of drivers
    failed: Counter[str] = field(default_factory=Counter)  # queries, by their error
    sent: int = 0
    streamed: int = 0
    taken: int = 0
    poison: int = 0
    verdict: Verdict = field(default_factory=lambda: Verdict(lost=[], repeated=[], expired=0))
    wrong: list[str] = field(default_factory=list)  # all of it, in words
    seconds: float = 0.0
    drain: float = 0.0  # seconds of it


class Round:
    """One round, in a place and a folder of its own."""

    def __init__(self, ground: Ground, plan: Plan, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.place = Place(ground, f"round_{plan.number}")
        self.plan, self.folder, self.rng = plan, folder, plan.rng
        self.result = Result(plan)
        self.driving = Driving(self._orders(), folder)
        self.scene = Scene(ground, self.driving, self.rng, self._kinds())
        self._mended = 0.0  # when a checkpoint was put back last, in seconds of the epoch
        self.users = [Producer(self.place, Random(self.rng.random())), self._competitor()]

    def run(self) -> Result:
        """Do all of it; the evidence is in the folder."""
        began = time.monotonic()
        self.note("round", **{name: str(value) for name, value in vars(self.plan).items()})
        try:
            self.place.make()
            for user in self.users:
                user.start()
            self._harm()
            self._calm()
            self._drain()
            self._count()
        except Exception as error:  # noqa: BLE001 - a failure of this round, with its evidence
            self.result.wrong.append(f"{type(error).__name__}: {error}")
        finally:
            self.driving.end()
        self.result.starts = self.driving.starts
        self.result.seconds = time.monotonic() - began
        self.note("end", wrong=self.result.wrong)
        shutil.copy(self.place.ground.log, self.folder / "server.log")
        return self.result

    def note(self, what: str, **more: Any) -> None:
        """Write down what happened, and when."""
        line = json.dumps({"time": time.time(), "what": what, **more})
        with (self.folder / "harms.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    # ------------------------------------------------------------ the parts of a round

    def _harm(self) -> None:
        self.driving.start()
        end = time.monotonic() + self.plan.seconds
        while time.monotonic() < end:
            self._tend()
            strike = self._draw(AT_WORK)
            if not self.driving.alive and self.rng.random() < 0.7:
                strike = self._draw(WHEN_DEAD) or strike
            pause = min(self.rng.expovariate(1.2), 3.0)
            time.sleep(pause if strike else 0.0)

    def _draw(self, harms: Mapping[str, Harm]) -> bool:
        """Strike with one of them; whether it hit."""
        names = [name for name in harms if self._wanted(name)]
        if not names:
            return False
        name = self.rng.choices(names, [harms[each].weight for each in names])[0]
        end = time.monotonic() + _INSIST
        struck = harms[name].strike(self.scene)
        while struck is None and harms is AT_WORK and time.monotonic() < end:
            struck = harms[name].strike(self.scene)  # another would be drawn more often than meant
        if struck is not None:
            self.result.harms[name] += 1
            self.note(name, struck=struck)
        return struck is not None

    def _wanted(self, name: str) -> bool:
        """Whether a harm can be done here, and is asked for."""
        possible = name != "disk full" or self.place.ground.disk is not None
        return possible and (not self.plan.only or name.startswith(self.plan.only))

    def _tend(self) -> None:
        """Keep all going: thaw, heed what the driver says, put back, start again."""
        self.scene.thaw()
        for event in self.driving.news():
            if event["event"] == "failed":
                self._heed(event["error"], event["begun"])
        if not self.driving.alive:
            self.note("driver starts")
            self.driving.start()
            self.note("driver runs")
        for user in self.users:
            if user.failure is not None:
                raise user.failure

    def _heed(self, error: str, begun: float) -> None:
        """Sort the error of a query begun then; where a damaged checkpoint was refused, fix it."""
        refused = _REFUSED.search(error)
        if refused and self.scene.removed:
            self.result.refused += 1
            self.note("refused, put back", error=refused[0], files=self.scene.put_back())
            self._mended = time.time()
            return
        if refused and begun < self._mended:  # it may have read what was there before
            return
        if refused:
            self.result.wrong.append(f"a checkpoint that was whole was refused: {refused[0]}")
        named = _NAMED.search(error)
        name = named[1] if named else _first(error)
        self.result.failed[name] += 1
        self.note("query failed", error=named[0] if named else error[:300])

    def _calm(self) -> None:
        """End all harm; the queue's other users go home."""
        self.scene.thaw(everyone=True)
        self.place.ground.revive()
        for user in self.users:
            user.finish()
        self.note("calm", **{type(user).__name__: user.lost for user in self.users})

    def _drain(self) -> None:
        """Run AvailableNow until nothing waits and nothing is open."""
        began = time.monotonic()
        self._tend()
        self.driving.order("drain")
        self._until(lambda: self._waiting() == 0 and self._idle(), "the drain is stuck")
        self.driving.order("finish")
        self._until(self._finished, "the driver does not finish")
        self.result.drain = time.monotonic() - began

    def _until(self, true: Callable[[], bool], stuck: str) -> None:
        end = time.monotonic() + DRAINING
        while not true():
            if time.monotonic() > end:
                raise TimeoutError(f"{stuck}: {self._waiting()} wait, {self._open()} are open")
            if not self._finished():
                self._tend()
            time.sleep(0.2)

    def _waiting(self) -> int:
        return self.place.count(self.place.address("orders"))

    def _open(self) -> int:
        return sum(self.place.leftovers().values())

    def _idle(self) -> bool:
        """Whether the last AvailableNow of each stream that ended had nothing to do."""
        ended = {each["stream"]: each for each in self.driving.events() if each["event"] == "ended"}
        return len([each for each in ended.values() if not each["rows"]]) == self.plan.streams

    def _finished(self) -> bool:
        return any(event["event"] == "finished" for event in self.driving.events()[-1:])

    def _count(self) -> None:
        """Compare all books."""
        result, place = self.result, self.place
        tally = self._tally()
        result.sent, result.taken = len(tally.sent), len(tally.taken)
        result.streamed, result.poison = len(tally.streamed), len(tally.errors)
        result.verdict = reckon(tally)
        result.wrong += result.verdict.sentences
        result.wrong += [f"{rows} rows left in {name}" for name, rows in place.leftovers().items()]
        (self.folder / "tally.json").write_text(
            json.dumps(vars(tally) | {"confirmed": sorted(tally.confirmed)}), encoding="utf-8"
        )
        if not result.wrong:
            place.drop()

    def _tally(self) -> Tally:
        place, producer = self.place, self.users[0]
        assert isinstance(producer, Producer)
        with open(self.driving.orders["numbers"], encoding="utf-8") as file:  # noqa: PTH123
            streamed = json.load(file)
        counters = place.ground.ask(
            "SELECT coalesce(sum(expired), 0)::int, coalesce(sum(messages), 0)::int, "
            f"coalesce(sum(diverted), 0)::int FROM {place.state}.stream"
        )[0]
        return Tally(
            sent=dict(place.ground.ask(f"SELECT number, kind FROM {place.name}.sent")),
            confirmed=producer.confirmed,
            streamed=streamed + place.numbers("out"),
            taken=[row[0] for row in place.ground.ask(f"SELECT number FROM {place.name}.taken")],
            errors=place.numbers("error"),
            left=place.numbers("orders"),
            expired=counters[0],
            delivered=counters[1],
            diverted=counters[2],
        )

    # ------------------------------------------------------------ what runs

    def _kinds(self) -> tuple[str, ...]:
        own = ("task", "source")
        return (*own, "sink", "dispatch") if self.plan.sink in {"queue", "atomic"} else own

    def _competitor(self) -> Competitor:
        return Competitor(self.place, Random(self.rng.random()))

    def _orders(self) -> dict[str, Any]:
        place, plan = self.place, self.plan
        common = {
            "url": place.url,
            "stateSchema": place.state,
            "queryTimeout": f"{QUERY_TIMEOUT:g}s",
        }
        source = common | {
            "queue": place.address("orders"),
            "errorQueue": place.address("error"),
            "maxMessagesPerTrigger": "400",
            "maxConcurrency": "3",
            "peekDelay": "100ms",
        }
        out = common | {"queue": place.address("out")}
        if plan.sink == "atomic":
            out["transactionMode"] = "sendsAtomicWithReceive"
        if plan.weaken == "none":
            source["transactionMode"] = "none"
        folders = [self.folder / f"stream-{at}" for at in range(plan.streams)]
        return {
            "sink": "sqlqueue" if plan.sink in {"queue", "atomic"} else plan.sink,
            "source": source,
            "out": out if plan.sink in {"queue", "atomic"} else None,
            "streams": [
                {"checkpoint": str(each / "checkpoint"), "table": str(each / "table")}
                for each in folders
            ],
            "master": plan.master,
            "forgetful": plan.weaken == "forget",
        }


def _first(error: str) -> str:
    """The part of an error by which others of its kind are known."""
    for known in ("Python worker exited", "crashed", "EOFException", "SocketException"):
        if known in error:
            return known
    known = re.sub(r"\[id = [^]]*\] ?", "", error.strip()).partition("\n")[0]
    return known[:80] or "no text"
