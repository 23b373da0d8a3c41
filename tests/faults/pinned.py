"""
`python -m tests.faults.pinned`: does a long transaction elsewhere slow a stream down?

Another session sits idle in a transaction and holds a snapshot and a transaction id. As long as it
does, no row that is deleted may be vacuumed, nor marked as dead in an index: they pile up at the
head of the queue, where a consumer looks first. Half of the messages are sent before that
transaction begins, half after. The last tenth of the stream's batches should be as fast as the
first. Timing is uneven, so what the indexes gave is counted too: a statement that walks over the
dead reads the more, the more of them there are.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from conftest import placed
from spark.driver import session
from spark.stand import Queue

from sqlq_spark.demo import embedded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Place
    from pyspark.sql import SparkSession

AT_LEAST = 0.7
# 1.2 kB each
_FILL = """
INSERT INTO {queue} (id, headers, body)
SELECT gen_random_uuid(),
       '{{"NServiceBus.MessageId":"' || n || '","NServiceBus.MessageIntent":"Send",'
       || '"NServiceBus.ConversationId":"' || md5('c' || n) || '",'
       || '"NServiceBus.TimeSent":"2026-06-30 17:05:09:123456 Z"}}',
       convert_to('{{"OrderId":"' || md5('o' || n) || '","Note":"'
       || repeat(md5('n' || n), {notes}) || '"}}', 'UTF8')
  FROM generate_series({first}::int, {stop}::int - 1) AS n
"""
_DEAD = "SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables WHERE schemaname = %s"
_READ = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = %s AND indexrelname = %s"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A stream beside such a transaction."""

    messages: int
    batches: list[tuple[int, int]]  # messages, milliseconds
    left: int  # messages, at the end
    dead: int  # rows in the queue's table, at the end
    read: float  # entries that the index by seq gave for each message, dead ones among them

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
def pinned(place: Place) -> Iterator[None]:
    """Sit idle in a transaction that holds back what may be vacuumed."""
    with psycopg.connect(place.url) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("SELECT pg_current_xact_id() FROM pg_class")
        yield
        other.rollback()


def run(
    place: Place, spark: SparkSession, checkpoints: Path, *, messages: int, batch: int, notes: int
) -> Run:
    """
    Receive so many messages while another session pins.

    Args:
        place: has no queue yet.
        spark: local.
        checkpoints: an empty folder.
        messages: in all, half of them sent before the pin.
        batch: messages in a micro-batch.
        notes: weight of a message: 30 is 1.2 kB.
    """
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(messages // batch + 100))
    queue = Queue(place, "orders")
    queue.install()
    queue.create()
    fill(queue, 0, 3 * batch, notes)
    receive(queue, spark, checkpoints / "warm-up", batch)
    fill(queue, 0, messages // 2, notes)
    place.sql(f"VACUUM ANALYZE {queue.name}")
    index = (place.schema, "orders_seq_key")
    before = place.sql(_READ, *index)[0][0]
    with pinned(place):
        fill(queue, messages // 2, messages, notes)
        batches = receive(queue, spark, checkpoints / "run", batch)
        dead = int(place.sql(_DEAD, place.schema)[0][0])
    read = (place.sql(_READ, *index)[0][0] - before) / messages
    return Run(messages=messages, batches=batches, left=queue.count(), dead=dead, read=read)


def fill(queue: Queue, first: int, stop: int, notes: int) -> None:
    """Send messages with the ids `first` … `stop - 1`."""
    queue.place.sql(_FILL.format(queue=queue.name, first=first, stop=stop, notes=notes))


def receive(
    queue: Queue, spark: SparkSession, checkpoint: Path, batch: int
) -> list[tuple[int, int]]:
    """Stream what waits into nothing; returns messages and milliseconds of each batch."""
    frame = queue.stream(spark, maxMessagesPerTrigger=batch, headersFormat="json").load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    found: list[Any] = [each for each in query.recentProgress if each["numInputRows"]]
    return [(each["numInputRows"], each["durationMs"]["triggerExecution"]) for each in found]


def main() -> int:
    """Run at the full size; 1 where the stream became slow."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.pinned", description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    asked = parser.parse_args()
    with (
        embedded.server(tcp=True) as server,
        placed(server.url) as place,
        tempfile.TemporaryDirectory() as folder,
    ):
        sizes = {"messages": asked.messages, "batch": 50_000, "notes": 30}
        found = run(place, session({"sink": "noop"}), Path(folder), **sizes)
    for tenth in range(1, 11):
        sys.stdout.write(f"tenth {tenth}: {found.rate(tenth):,.0f} messages/s\n")
    ends = f"{found.dead:,} dead rows, {found.left:,} left, {found.read:.1f} entries a message\n"
    sys.stdout.write(f"last / first: {found.ratio:.2f}; {ends}")
    return 0 if found.whole and found.ratio >= AT_LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
