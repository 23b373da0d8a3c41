"""
`python -m tests.faults --minutes 5`: harm streams, count their messages, print figures.

Whatever is lost or repeated makes it fail, with a folder of evidence: the logs of driver and
server, all harms with their times, everyone's books, and the seed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from .chaos.checkpoint_failures import WHEN_DEAD
from .chaos.failures import AT_WORK
from .chaos.rounds import HARMING, SINKS, Plan, Result, Round
from .chaos.server import ground

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LEAST = 20.0  # seconds of harm that are worth a round
_ENOUGH = 3  # rounds that went wrong
_AROUND = 25.0  # seconds that a round takes before and after its harm


def main(words: Sequence[str] | None = None) -> int:
    """Run rounds until the time is over; 1 where anything was wrong."""
    asked = _arguments(words)
    seed = asked.seed if asked.seed is not None else int(time.time())
    console = Console(width=None if sys.stdout.isatty() else 140)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    folder = Path(tempfile.mkdtemp(prefix="sqlq-chaos-evidence-"))
    results: list[Result] = []
    with ground() as place:
        if place.disk is None:
            console.print("no tmpfs can be mounted here: the harm `disk full` is left out")
        for plan in _plans(asked, seed):
            result = Round(place, plan, folder / f"round-{plan.number}").run()
            results.append(result)
            _tell(console, result)
            if not result.wrong and not asked.keep:
                shutil.rmtree(folder / f"round-{plan.number}")
            if sum(bool(each.wrong) for each in results) == _ENOUGH:
                break
        disk = place.disk is not None
    figures = _figures(results, seed) | {"disk_could_be_filled": disk}
    console.print(_table(figures))
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    if figures["wrong"]:
        console.print(f"the evidence is in {folder}", style="bold red")
        return 1
    if asked.keep:
        console.print(f"all is kept in {folder}")
    else:
        folder.rmdir()
    return 0


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="about so long")
    parser.add_argument("--harm", type=float, default=HARMING, help="seconds of it in a round")
    parser.add_argument("--seed", type=int, help="of the choice of harms; not of their effect")
    parser.add_argument(
        "--sinks", type=lambda text: text.split(","), default=list(SINKS), help=",".join(SINKS)
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument(
        "--only",
        type=lambda text: tuple(text.split(",")),
        default=(),
        metavar="HARMS",
        help=f"beginnings of {', '.join([*AT_WORK, *WHEN_DEAD])}",
    )
    parser.add_argument("--keep", action="store_true", help="what is evidence of no failure too")
    parser.add_argument(
        "--weaken",
        choices=["none", "forget"],
        help="to see that losses are noticed: none = transactionMode none, forget = a sink that "
        "forgets batches and writes others twice",
    )
    asked = parser.parse_args(words)
    if unknown := set(asked.sinks) - set(SINKS):
        parser.error(f"unknown sinks {', '.join(sorted(unknown))}: choose from {', '.join(SINKS)}")
    return asked


def _plans(asked: argparse.Namespace, seed: int) -> Iterator[Plan]:
    """Rounds as long as there is time: the sinks in turn, from one drawn by lot."""
    end = time.monotonic() + asked.minutes * 60
    rng = Random(seed)
    first, number = rng.randrange(len(asked.sinks)), 0
    while number == 0 or time.monotonic() + _LEAST + _AROUND < end:
        left = end - time.monotonic() - _AROUND
        yield Plan(
            number=number,
            seed=seed,
            sink=asked.sinks[(first + number) % len(asked.sinks)],
            streams=rng.choice([1, 1, 2]),
            master=rng.choice(["local[2]", "local[2,4]"]),
            seconds=max(_LEAST, min(asked.harm, left)),
            weaken=asked.weaken,
            only=asked.only,
        )
        number += 1


def _tell(console: Console, result: Result) -> None:
    """Say how a round went, in a line, and what was wrong, in more."""
    plan = result.plan
    console.print(
        f"round {plan.number}: {plan.sink}, {plan.streams} on {plan.master}: {result.sent} sent, "
        f"{result.streamed} streamed, {result.taken} taken by the competitor, "
        f"{result.verdict.expired} expired, {result.poison} poison; {result.harms.total()} harms, "
        f"{result.seconds:.0f} s, {result.drain:.0f} s of them to drain",
        markup=False,
    )
    for sentence in result.wrong:
        console.print(f"  {sentence}", style="bold red", markup=False)


def _figures(results: Sequence[Result], seed: int) -> dict[str, Any]:
    """Add up the rounds."""
    harms: Counter[str] = sum((each.harms for each in results), Counter())
    failed: Counter[str] = sum((each.failed for each in results), Counter())
    return {
        "seed": seed,
        "rounds": len(results),
        "seconds": round(sum(each.seconds for each in results), 1),
        "sent": sum(each.sent for each in results),
        "streamed": sum(each.streamed for each in results),
        "competitor": sum(each.taken for each in results),
        "expired": sum(each.verdict.expired for each in results),
        "poison": sum(each.poison for each in results),
        "lost": sum(len(each.verdict.lost) for each in results),
        "repeated": sum(len(each.verdict.repeated) for each in results),
        "harms": {name: harms[name] for name in [*AT_WORK, *WHEN_DEAD] if harms[name]},
        "harms_in_all": harms.total(),
        "refused": sum(each.refused for each in results),
        "drivers": sum(each.starts for each in results),
        "failed": dict(failed.most_common()),
        "wrong": [f"round {each.plan.number}: {text}" for each in results for text in each.wrong],
        "by_round": [
            {"plan": asdict(each.plan), "harms": each.harms, "wrong": each.wrong}
            for each in results
        ],
    }


def _table(figures: dict[str, Any]) -> Table:
    table = Table(title=f"chaos, seed {figures['seed']}")
    table.add_column("what")
    table.add_column("how many", justify="right")
    for name in ("rounds", "seconds", "sent", "streamed", "competitor", "expired", "poison"):
        table.add_row(name, f"{figures[name]:,}")
    for name in ("lost", "repeated"):
        style = "bold red" if figures[name] else "bold green"
        table.add_row(name, f"{figures[name]:,}", style=style)
    table.add_section()
    for name, times in figures["harms"].items():
        table.add_row(name, f"{times:,}")
    table.add_row("harms in all", f"{figures['harms_in_all']:,}")
    table.add_section()
    table.add_row("damaged checkpoints refused", f"{figures['refused']:,}")
    table.add_row("drivers started", f"{figures['drivers']:,}")
    for name, times in figures["failed"].items():
        table.add_row(f"queries failed: {name}", f"{times:,}")
    return table


if __name__ == "__main__":
    sys.exit(main())
