"""
A long transaction elsewhere: dead rows pile up, and the stream does not walk over them.

Another session sits idle in a transaction and holds a snapshot and a transaction id. As long as it
does, no row that is deleted may be vacuumed, nor marked as dead in an index: they pile up at the
head of the queue, where a consumer looks first. Half of the messages are sent before that
transaction begins, half after. What the index by seq gave is counted: a statement that walks over
the dead reads the more, the more of them there are.

SQLQ_PINNED_MESSAGES=2000000 runs the full size, and `-s` shows how fast each tenth was.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from spark.stand import Queue

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Place
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.faults]

MESSAGES = int(os.environ.get("SQLQ_PINNED_MESSAGES", "50000"))
BATCH = MESSAGES // 50
_DEAD = "SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables WHERE schemaname = %s"
_READ = """
SELECT idx_tup_read FROM pg_stat_user_indexes
 WHERE schemaname = %s AND indexrelname = 'orders_seq_key'
"""


@contextmanager
def pinned(place: Place) -> Iterator[None]:
    """Sit idle in a transaction that holds back what may be vacuumed."""
    with psycopg.connect(place.url) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("SELECT pg_current_xact_id() FROM pg_class")
        yield
        other.rollback()


def receive(queue: Queue, spark: SparkSession, checkpoint: Path) -> list[Any]:
    """Stream what waits into nothing; returns the progress of each batch."""
    given = queue.options | {"maxMessagesPerTrigger": str(BATCH), "headersFormat": "json"}
    frame = spark.readStream.format("sqlqueue").options(**given).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return [each for each in query.recentProgress if each["numInputRows"]]


def test_a_pinned_snapshot_does_not_slow_a_stream(
    place: Place, spark: SparkSession, tmp_path: Path
) -> None:
    """Each entry of the index is read a few times, however many rows died."""
    queue = Queue(place, "orders")
    queue.install()
    queue.create()
    queue.fill(0, MESSAGES // 2)
    place.sql(f"VACUUM ANALYZE {queue.name}")
    before = place.sql(_READ, place.schema)[0][0]
    with pinned(place):
        queue.fill(MESSAGES // 2, MESSAGES)

        batches = receive(queue, spark, tmp_path / "checkpoint")

        dead = int(place.sql(_DEAD, place.schema)[0][0])
    read = (place.sql(_READ, place.schema)[0][0] - before) / MESSAGES
    for tenth in (batches[at : at + 5] for at in range(0, len(batches), 5)):
        seconds = sum(each["durationMs"]["triggerExecution"] for each in tenth) / 1000
        rate = sum(each["numInputRows"] for each in tenth) / seconds
        sys.stdout.write(f"{rate:,.0f} messages/s\n")

    assert (queue.count(), sum(each["numInputRows"] for each in batches)) == (0, MESSAGES)
    # else nothing was pinned; the server's statistics may not know of the last batches yet
    assert dead >= 0.9 * MESSAGES
    # a peek, a receive, and a few from the very beginning; walking over the dead: 25 and more
    assert read < 6
