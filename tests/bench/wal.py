"""
`python -m tests.bench.wal`: the WAL that a message costs, by its body and the server's state.

The package's own classes receive and send on one connection, as in limits.py. A message has about
1.2 kB. The first change of a page after a checkpoint writes the whole page, so each figure is taken
twice: with the last checkpoint before the queue is filled, and with it before the measurement.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import TYPE_CHECKING

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from sqlq_spark.testing import embedded

from . import limits, postgresql
from .database import install_state
from .messages import orders

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Measure = Callable[[limits.Bench], Mapping[str, float]]

BODIES = ("orders", "random")
COMPRESSIONS = ("off", "pglz")  # of wal_compression
MEASURES: dict[str, Measure] = {
    "receive": limits.receive_batches,
    "send, atLeastOnce": limits.send_now,
    "send, exactlyOnce": limits.stage_and_dispatch,
}
_WAL = "WAL bytes/message"
_FILLS = 4  # batches that `receive` takes


@dataclass(frozen=True)
class WalBench(limits.Bench):
    """A bench with a choice of bodies, and of the moment of the last checkpoint."""

    body: str
    checkpoint: bool  # just before the measurement

    def begin(self) -> tuple[float, float]:
        """As Bench."""
        if self.checkpoint:
            self.database.ask("CHECKPOINT")
        return super().begin()

    def messages(self) -> pa.Table:
        """As Bench."""
        return messages(self.body, self.batch)


def messages(body: str, count: int) -> pa.Table:
    """Give order messages; `random` replaces each body with bytes that no compressor shortens."""
    table = orders(0, count)
    if body == "orders":
        return table
    chance = random.Random(1)
    blobs = [chance.randbytes(len(each)) for each in table["body"].to_pylist()]
    return table.set_column(2, table.schema.field(2), pa.array(blobs, pa.binary()))


def measure(url: str, body: str, compression: str, batch: int, rounds: int) -> list[list[float]]:
    """
    Measure on a new database.

    Returns:
        For each of MEASURES the bytes of WAL for a message: between two checkpoints, and right
        after one.
    """
    with postgresql.opened(url) as database:
        [[name]] = database.ask("SELECT current_database()")
        database.ask(f"ALTER DATABASE {name} SET wal_compression = {compression}")
        install_state(database.url)
        database.prepare(("orders", "sent"), 1)
        database.ask("TRUNCATE store")
        rows = messages(body, batch * _FILLS).to_pydict().values()
        database.keep(enumerate(zip(*rows, strict=True)))
        benches = [WalBench(database, batch, body, each) for each in (False, True)]
        return [
            [median(run(bench)[_WAL] for _ in range(rounds)) for bench in benches]
            for run in MEASURES.values()
        ]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.wal", description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000, help="in one batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--url", help="a PostgreSQL server to make databases on")
    asked = parser.parse_args()
    table = Table("operation", "body", "wal_compression", title=f"{_WAL}, by the last checkpoint")
    table.add_column("before the fill", justify="right")
    table.add_column("just before", justify="right")
    if asked.url:
        fill(table, asked.url, asked)
    else:
        with embedded.server(tcp=True) as server:
            fill(table, server.url, asked)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def fill(table: Table, url: str, asked: argparse.Namespace) -> None:
    """Measure each row of the table."""
    for body, compression in product(BODIES, COMPRESSIONS):
        found = measure(url, body, compression, asked.messages, asked.rounds)
        for name, costs in zip(MEASURES, found, strict=True):
            table.add_row(name, body, compression, *(f"{each:,.0f}" for each in costs))


if __name__ == "__main__":
    main()
