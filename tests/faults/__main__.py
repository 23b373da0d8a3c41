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
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from .chaos.rounds import SINKS, Plan, Result, Round
from .chaos.server import ground

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LEAST, _MOST = 20.0, 45.0  # seconds of harm in a round
_ENOUGH = 3  # rounds that went wrong
_AROUND = 25.0  # seconds that a round takes before and after its harm


def main() -> int:
    """Run rounds until the time is over; 1 where anything was wrong."""
    asked = _arguments()
    console = Console(width=None if sys.stdout.isatty() else 140)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    folder = Path(tempfile.mkdtemp(prefix="sqlq-chaos-evidence-"))
    results: list[Result] = []
    with ground() as place:
        if place.disk is None:
            console.print("no tmpfs can be mounted here: the harm `disk full` is left out")
        for plan in _plans(asked.minutes, asked.seed):
            result = Round(place, plan, folder / f"round-{plan.number}").run()
            results.append(result)
            console.print_json(data=vars(result) | {"plan": vars(plan)})
            if not result.wrong:
                shutil.rmtree(folder / f"round-{plan.number}")
            if sum(bool(each.wrong) for each in results) == _ENOUGH:
                break
    figures = _figures(results)
    console.print(_table(figures, asked.seed))
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    if figures["wrong"]:
        console.print(f"the evidence is in {folder}", style="bold red")
        return 1
    folder.rmdir()
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long, about")
    parser.add_argument(
        "--seed",
        type=int,
        default=int(time.time()),
        help="of the choice of harms, not their effect",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser.parse_args()


def _plans(minutes: float, seed: int) -> Iterator[Plan]:
    """Rounds as long as there is time: the sinks in turn, from one drawn by lot."""
    end = time.monotonic() + minutes * 60
    rng = Random(seed)
    first, number = rng.randrange(len(SINKS)), 0
    while number == 0 or time.monotonic() + _LEAST + _AROUND < end:
        left = end - time.monotonic() - _AROUND
        yield Plan(
            number=number,
            seed=seed,
            sink=SINKS[(first + number) % len(SINKS)],
            streams=rng.choice([1, 1, 2]),
            master=rng.choice(["local[2]", "local[2,4]"]),
            seconds=max(_LEAST, min(_MOST, left)),
        )
        number += 1


def _figures(results: Sequence[Result]) -> dict[str, Any]:
    """Add up the rounds."""
    messages: Counter[str] = sum((each.messages for each in results), Counter())
    harms: Counter[str] = sum((each.harms for each in results), Counter())
    failed: Counter[str] = sum((each.failed for each in results), Counter())
    return {
        "rounds": len(results),
        "seconds": round(sum(each.seconds for each in results), 1),
        "drivers": sum(each.drivers for each in results),
        **{
            name: messages[name] for name in ("sent", "streamed", "competitor", "expired", "poison")
        },
        **{name: messages[name] for name in ("lost", "repeated")},
        "harms": dict(harms.most_common()),
        "harms_in_all": harms.total(),
        "failed": dict(failed.most_common()),
        "wrong": [f"round {each.plan.number}: {text}" for each in results for text in each.wrong],
    }


def _table(figures: dict[str, Any], seed: int) -> Table:
    table = Table("what", "how many", title=f"chaos, seed {seed}")
    for name, value in figures.items():
        if isinstance(value, dict):
            for kind, times in value.items():
                table.add_row(f"{name}: {kind}", f"{times:,}")
        else:
            table.add_row(name, str(value))
    return table


if __name__ == "__main__":
    sys.exit(main())
