"""
`python -m tests.bench.wal`: WAL and time of the server that a message costs, by lines of the bench.

The first change of a page after a checkpoint writes the whole page, so each figure is taken twice:
with the last checkpoint before the queue is filled, and with one just before the line runs. Time on
the server's processors is that of its backends, by the system's scheduler.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from .lines import LINES
from .stand import BATCHES, stand

if TYPE_CHECKING:
    from .lines import Line
    from .stand import Stand

# line → batches that it moves
MOVED = {"receive-json": BATCHES, "receive-json-hard": BATCHES}
MOVED |= {"write-at-least-once": 1, "write-exactly-once": 1}
_BACKENDS = """
SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


def spent(bench: Stand) -> tuple[float, float]:
    """Bytes of WAL, and microseconds of all other backends that are connected, so far."""
    microseconds = 0.0
    for (pid,) in bench.database.ask(_BACKENDS):
        with suppress(FileNotFoundError):  # it has ended since
            microseconds += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1000
    wal = bench.database.ask("SELECT pg_current_wal_insert_lsn() - '0/0'")
    return float(wal[0][0]), microseconds


def cost(bench: Stand, line: Line, *, checkpoint: bool) -> list[float]:
    """What a message of a line costs."""
    line.ready(bench)
    if checkpoint:
        bench.database.ask("CHECKPOINT")
    before = spent(bench)
    line.run(bench)
    messages = bench.messages * MOVED[line.name]
    return [(now - then) / messages for now, then in zip(spent(bench), before, strict=True)]


def main() -> None:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.wal", description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000, help="in one batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--url", help="a PostgreSQL server to make databases on")
    asked = parser.parse_args()
    for compression in ("off", "pglz"):
        with stand(asked.url, asked.messages) as bench:
            [[name]] = bench.database.ask("SELECT current_database()")
            bench.database.ask(f"ALTER DATABASE {name} SET wal_compression = {compression}")
            for line in (each for each in LINES if each.name in MOVED):
                cost(bench, line, checkpoint=False)  # warms up
                for checkpoint in (False, True):
                    costs = [cost(bench, line, checkpoint=checkpoint) for _ in range(asked.rounds)]
                    wal, time = map(median, zip(*costs, strict=True))
                    text = (
                        f"{line.name:20} {compression:5} {'' if checkpoint else 'not '}just before"
                    )
                    sys.stdout.write(f"{text}: {wal:,.0f} bytes, {time:.1f} us\n")


if __name__ == "__main__":
    main()
