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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from waiting import until

from .counting import Tally, problems
from .driver_process import Driving
from .failures import HARMS, QUERY_TIMEOUT, Scene
from .server import Place
from .traffic import Competitor, Producer, User

if TYPE_CHECKING:
    from collections.abc import Callable

    from .server import Ground

SINKS = ("parquet", "delta", "queue", "atomic")
QUEUES = ("queue", "atomic")  # the sinks that are queues
_INSIST = 6.0  # seconds that a harm waits for its victim
_DRAINING = 300.0  # seconds until the drain counts as stuck
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


@dataclass
class Result:
    """The figures of a round."""

    plan: Plan
    messages: Counter[str] = field(default_factory=Counter)  # by what became of them
    harms: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)  # queries, by their error
    wrong: list[str] = field(default_factory=list)
    drivers: int = 0  # that were started
    seconds: float = 0.0


class Round:
    """One round, in a place and a folder of its own."""

    def __init__(self, ground: Ground, plan: Plan, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.place = Place(ground, f"round_{plan.number}")
        self.plan, self.folder, self.rng = plan, folder, Random(f"{plan.seed}/{plan.number}")
        self.result = Result(plan)
        self.driving = Driving(self._orders(), folder)
        kinds = ("task", "source", *(("sink", "dispatch") if plan.sink in QUEUES else ()))
        self.scene = Scene(ground, self.driving, self.rng, kinds)
        self.producer = Producer(self.place, Random(self.rng.random()))
        competitor = Competitor(self.place, Random(self.rng.random()))
        self.users: list[User] = [self.producer, competitor]

    def run(self) -> Result:
        """Do all of it; the evidence is in the folder."""
        began = time.monotonic()
        self.note("round", **asdict(self.plan))
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
        self.result.drivers = self.driving.starts
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
            self._keep_going()
            if self._strike():
                time.sleep(min(self.rng.expovariate(1.2), 3.0))

    def _strike(self) -> bool:
        """Do a harm that is drawn by lot; whether it hit."""
        names = [name for name in HARMS if name != "disk full" or self.place.ground.disk]
        name = self.rng.choices(names, [HARMS[each][1] for each in names])[0]
        end = time.monotonic() + _INSIST
        struck = HARMS[name][0](self.scene)
        while struck is None and time.monotonic() < end:
            struck = HARMS[name][0](self.scene)  # another would be drawn more often than meant
        if struck is not None:
            self.result.harms[name] += 1
            self.note(name, struck=struck)
        return struck is not None

    def _keep_going(self) -> None:
        """Thaw who is frozen, record failed queries, start a new driver, look after the users."""
        self.scene.thaw()
        for event in self.driving.news():
            if event["event"] == "failed":
                error = _NAMED.search(event["error"])
                line = event["error"].strip().partition("\n")[0].partition(" [id = ")[0]
                name = error[1] if error else line[:80]
                self.result.failed[name] += 1
                self.note("query failed", error=error[0] if error else event["error"][:300])
        if not self.driving.alive and not self._finished():
            self.note("driver starts")
            self.driving.start()
        for user in self.users:
            if user.failure is not None:
                raise user.failure

    def _calm(self) -> None:
        """End all harm; the queue's other users stop."""
        self.scene.thaw(everyone=True)
        self.place.ground.revive()
        for user in self.users:
            user.finish()
        self.note("calm", **{type(user).__name__: user.lost for user in self.users})

    def _drain(self) -> None:
        """Run AvailableNow until nothing waits and nothing is open."""
        self._keep_going()
        self.driving.order("drain")
        self._until(lambda: not self.place.numbers("orders") and self._idle())
        self.driving.order("finish")
        self._until(self._finished)

    def _until(self, true: Callable[[], bool]) -> None:
        def done() -> bool:
            if true():
                return True
            self._keep_going()
            return False

        until(done, seconds=_DRAINING)

    def _idle(self) -> bool:
        """Whether the last AvailableNow of each stream that ended had nothing to do."""
        ended = {each["stream"]: each for each in self.driving.events() if each["event"] == "ended"}
        return len([each for each in ended.values() if not each["rows"]]) == self.plan.streams

    def _finished(self) -> bool:
        return any(event["event"] == "finished" for event in self.driving.events()[-1:])

    def _count(self) -> None:
        """Compare all books."""
        tally = self._tally()
        found = problems(tally)
        self.result.wrong += [
            *(
                f"{len(each)} {name}: {', '.join(map(str, each[:10]))}"
                for name, each in found.items()
            ),
            *(f"{rows} rows left in {name}" for name, rows in self.place.leftovers().items()),
        ]
        places = {"sent": tally.sent, "streamed": tally.streamed, "competitor": tally.taken}
        places |= {
            "poison": tally.errors,
            **{name: found.get(name, []) for name in ("lost", "repeated")},
        }
        self.result.messages.update({name: len(each) for name, each in places.items()})
        self.result.messages["expired"] = tally.expired
        (self.folder / "tally.json").write_text(
            json.dumps(vars(tally) | {"confirmed": sorted(tally.confirmed)}), encoding="utf-8"
        )
        if not self.result.wrong:
            self.place.drop()

    def _tally(self) -> Tally:
        place = self.place
        streamed = json.loads(Path(self.driving.orders["numbers"]).read_text(encoding="utf-8"))
        expired, delivered, diverted = place.ground.ask(
            "SELECT coalesce(sum(expired), 0)::int, coalesce(sum(messages), 0)::int, "
            f"coalesce(sum(diverted), 0)::int FROM {place.state}.stream"
        )[0]
        return Tally(
            sent=dict(place.ground.ask(f"SELECT number, kind FROM {place.name}.sent")),
            confirmed=self.producer.confirmed,
            streamed=streamed + place.numbers("out"),
            taken=[row[0] for row in place.ground.ask(f"SELECT number FROM {place.name}.taken")],
            errors=place.numbers("error"),
            left=place.numbers("orders"),
            expired=expired,
            delivered=delivered,
            diverted=diverted,
        )

    def _orders(self) -> dict[str, Any]:
        """What the driver runs."""
        place, sink = self.place, self.plan.sink
        common = {"url": place.url, "stateSchema": place.state}
        common["queryTimeout"] = f"{QUERY_TIMEOUT:g}s"
        source = common | {"queue": place.address("orders"), "errorQueue": place.address("error")}
        source |= {"maxMessagesPerTrigger": "400", "maxConcurrency": "3", "peekDelay": "100ms"}
        out = common | {"queue": place.address("out")}
        if sink == "atomic":
            out["transactionMode"] = "sendsAtomicWithReceive"
        folders = [self.folder / f"stream-{at}" for at in range(self.plan.streams)]
        streams = [{name: str(each / name) for name in ("checkpoint", "table")} for each in folders]
        return {
            "sink": "sqlqueue" if sink in QUEUES else sink,
            "source": source,
            "out": out if sink in QUEUES else None,
            "streams": streams,
            "master": self.plan.master,
        }
