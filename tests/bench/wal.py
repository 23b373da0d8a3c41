"""
`python -m tests.bench.wal` prints how much WAL and server time a message costs in some lines.

The first change of a page after a checkpoint writes the whole page to the WAL. So each figure is
measured twice: with the last checkpoint before the queue is filled, and with a checkpoint just
before the line runs. The server time is the CPU time of its backends, as the system's scheduler
counts it.
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
        with suppress(FileNotFoundError):  # the backend may have ended
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
                cost(bench, line, checkpoint=False)  # warm up
                for checkpoint in (False, True):
                    costs = [cost(bench, line, checkpoint=checkpoint) for _ in range(asked.rounds)]
                    wal, time = map(median, zip(*costs, strict=True))
                    text = (
                        f"{line.name:20} {compression:5} {'' if checkpoint else 'not '}just before"
                    )
                    sys.stdout.write(f"{text}: {wal:,.0f} bytes, {time:.1f} us\n")


if __name__ == "__main__":
    main()
