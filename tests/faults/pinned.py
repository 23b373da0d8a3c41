"""
`python -m tests.faults.pinned`: does a long transaction elsewhere slow a stream down?

Another session sits idle in a transaction and holds a snapshot, or only a transaction id. As long
as it does, no row that is deleted may be vacuumed, nor marked as dead in an index: they pile up at
the head of the queue, where a consumer looks first. Half of the messages are sent before that
transaction begins, half after. The law: the last tenth of the stream's batches is no slower than
0.7 of the first. Timing is uneven, so what the indexes gave is counted too: a statement that walks
over the dead reads the more, the more of them there are.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from rich.console import Console
from rich.table import Table

from . import measuring

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from .measuring import Ground

QUEUE = "orders"
PINS = {
    "none": None,
    "snapshot": "SELECT count(*) FROM pg_class",
    "xid": "SELECT pg_current_xact_id()",
}
AT_LEAST = 0.7


@dataclass(frozen=True, kw_only=True)
class Run:
    """A stream under a pin."""

    pin: str
    messages: int
    batches: list[tuple[int, int]]  # messages, milliseconds
    left: int  # messages, at the end
    dead: int  # rows in the queue's table, at the end
    read: dict[str, float]  # index → entries given for each message, or of state tables each batch

    def rate(self, tenth: int) -> float:
        """Messages a second in a tenth of the batches, 1 to 10."""
        first, stop = (len(self.batches) * at // 10 for at in (tenth - 1, tenth))
        part = self.batches[first : max(stop, first + 1)]
        return sum(rows for rows, _ in part) / sum(ms for _, ms in part) * 1000

    @property
    def ratio(self) -> float:
        """The rate of the last tenth over that of the first."""
        return self.rate(10) / self.rate(1)

    @property
    def whole(self) -> bool:
        """Whether each message came, once."""
        return self.left == 0 and sum(rows for rows, _ in self.batches) == self.messages


@contextmanager
def pinned(ground: Ground, pin: str) -> Iterator[None]:
    """Sit idle in a transaction that holds back what may be vacuumed."""
    text = PINS[pin]
    with psycopg.connect(ground.url, autocommit=text is None) as other:
        if text is not None:
            if pin == "snapshot":
                other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            other.execute(text.encode())
        yield
        other.rollback()


def run(
    ground: Ground,
    spark: SparkSession,
    checkpoints: Path,
    *,
    pin: str,
    messages: int,
    batch: int,
    notes: int = 30,
) -> Run:
    """
    Receive so many messages while another session pins.

    Args:
        ground: has no queue yet, or an empty one.
        spark: local.
        checkpoints: an empty folder.
        pin: of PINS.
        messages: in all, half of them sent before the pin.
        batch: messages in a micro-batch.
        notes: weight of the messages, see measuring.py.
    """
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(messages // batch + 100))
    ground.create(QUEUE)
    ground.fill(QUEUE, 0, 3 * batch, notes=notes)
    receive(ground, spark, checkpoints / "warm-up", batch)
    ground.fill(QUEUE, 0, messages // 2, notes=notes)
    ground.sql(f"VACUUM ANALYZE {ground.name(QUEUE)}")
    before = entries(ground)
    with pinned(ground, pin):
        ground.fill(QUEUE, messages // 2, messages, notes=notes)
        batches = receive(ground, spark, checkpoints / "run", batch)
        dead = int(ground.sql(_DEAD, ground.schema)[0][0])
    read = {
        index: round((now - before.get(index, 0)) / (len(batches) if state else messages), 2)
        for index, (state, now) in _entries(ground).items()
    }
    left = ground.count(ground.name(QUEUE))
    return Run(pin=pin, messages=messages, batches=batches, left=left, dead=dead, read=read)


def receive(
    ground: Ground, spark: SparkSession, checkpoint: Path, batch: int
) -> list[tuple[int, int]]:
    """Stream what waits into nothing; returns messages and milliseconds of each batch."""
    options = ground.options(QUEUE, maxMessagesPerTrigger=batch, headersFormat="json")
    frame = spark.readStream.format("sqlqueue").options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    found: list[Any] = [each for each in query.recentProgress if each["numInputRows"]]
    return [(each["numInputRows"], each["durationMs"]["triggerExecution"]) for each in found]


_DEAD = "SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables WHERE schemaname = %s"
_READ = """
SELECT indexrelname, schemaname = %s, idx_tup_read
  FROM pg_stat_user_indexes
 WHERE schemaname IN (%s, %s)
"""


def _entries(ground: Ground) -> dict[str, tuple[bool, int]]:
    """Index → whether it is of a state table, and how many entries it has given."""
    rows = ground.sql(_READ, ground.state, ground.state, ground.schema)
    return {name: (state, read) for name, state, read in rows}


def entries(ground: Ground) -> dict[str, int]:
    """Index → how many entries it has given to scans since it was made, dead ones among them."""
    return {name: read for name, (_, read) in _entries(ground).items()}


def main() -> int:
    """Run what the command line asks for; 1 where a stream became slow."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.pinned", description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=50_000, help="messages in a micro-batch")
    parser.add_argument("--pins", nargs="+", choices=PINS, default=["snapshot", "xid"])
    parser.add_argument("--notes", type=int, default=30, help="weight of a message: 30 is 1.2 kB")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all batches there")
    parser.add_argument("--url", help="a PostgreSQL, instead of a private one")
    asked = parser.parse_args()
    runs = []
    with measuring.session() as spark, measuring.folder() as folder:
        for pin in asked.pins:
            with measuring.ground(asked.url) as ground:
                sizes = {"messages": asked.messages, "batch": asked.batch, "notes": asked.notes}
                runs.append(run(ground, spark, folder / pin, pin=pin, **sizes))
    Console(width=None if sys.stdout.isatty() else 150).print(printed(runs))
    if asked.json:
        figures = [asdict(each) | {"ratio": each.ratio} for each in runs]
        asked.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if all(each.whole and each.ratio >= AT_LEAST for each in runs) else 1


def printed(runs: list[Run]) -> Table:
    """All runs as a table of figures."""
    table = Table("pin", *(str(at) for at in range(1, 11)), "last / first", "dead", "left", "read")
    for each in runs:
        rates = (f"{each.rate(tenth):,.0f}" for tenth in range(1, 11))
        read = ", ".join(f"{name} {count:g}" for name, count in each.read.items() if count)
        ends = (f"{each.ratio:.2f}", f"{each.dead:,}", f"{each.left:,}", read)
        table.add_row(each.pin, *rates, *ends)
    return table


if __name__ == "__main__":
    sys.exit(main())
