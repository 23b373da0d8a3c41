"""
Nothing grows from batch to batch, and a transaction elsewhere does not slow a stream.

SQLQ_LEAK_BATCHES and SQLQ_PINNED_MESSAGES set how long: more is more even.
"""

from __future__ import annotations

import os
from contextlib import closing, suppress
from statistics import median
from typing import TYPE_CHECKING

import processes
import psycopg
import pytest
from spark.stand import finish

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Place
    from pyspark.sql import SparkSession
    from spark.stand import Queue

pytestmark = [pytest.mark.spark, pytest.mark.faults]

BATCHES = int(os.environ.get("SQLQ_LEAK_BATCHES", "30"))
MESSAGES = 5  # messages of a batch
WIDE = 3 if BATCHES < 1000 else 1  # how much a bound is widened: a short run is less even
# Bounds for a state table: what gathers in it during a minute, the pause of autovacuum.
SIZE, DEAD = 4 << 20, 5000  # bytes, rows
PINNED = int(os.environ.get("SQLQ_PINNED_MESSAGES", "20000"))
OURS = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name LIKE 'sqlqueue %'
"""
TABLES = """
SELECT relname, pg_total_relation_size(relid), n_dead_tup
  FROM pg_stat_user_tables WHERE schemaname = %s
"""


def sample(place: Place, spark: SparkSession) -> dict[str, float]:
    """Count sessions, processes, and the open files and MiB of each kind of Python."""
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr] # noqa: SLF001
    below = processes.below(jvm)
    found: dict[str, float] = {"sessions": place.sql(OURS)[0][0], "processes": len(below)}
    for name in ("pytest", "streaming_source_runner", "pyspark.daemon"):
        kind = [pid for pid in below if name in processes.command(pid)]
        for pid in [os.getpid()] if name == "pytest" else kind:
            with suppress(*processes.GONE):
                for what, value in {
                    f"files of {name}": len(processes.files(pid)),
                    f"MiB of {name}": processes.memory(pid),
                }.items():
                    found[what] = max(value, found.get(what, 0))
    return found


def grown(samples: list[dict[str, float]]) -> dict[str, list[float]]:
    """Return what is more than 5 % higher in the last quarter than in the second one."""
    found = {}
    for name in samples[-1]:
        values = [each[name] for each in samples if name in each]
        quarter = len(values) // 4
        before, after = median(values[quarter : 2 * quarter]), median(values[-quarter:])
        if after > before + WIDE * max(0.05 * before, 3):
            found[name] = values
    return found


def test_nothing_grows_from_batch_to_batch(
    queue: Queue, spark: SparkSession, tmp_path: Path
) -> None:
    """Sessions, files and memory are flat, state tables are bounded, and in the end empty."""
    out, place, samples = queue.another("out"), queue.place, []
    queue.fill(0, BATCHES * MESSAGES)
    given = queue.options | {"maxMessagesPerTrigger": str(MESSAGES), "peekDelay": "100ms"}
    stream = spark.readStream.format("sqlqueue").options(**given).load()
    writer = stream.writeStream.format("sqlqueue").options(**out.options)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))

    query = writer.trigger(availableNow=True).start()
    while not query.awaitTermination(1):
        if query.lastProgress is not None:
            samples.append(sample(place, spark))
            for table, size, dead in place.sql(TABLES, place.state):
                assert (size < SIZE, dead < DEAD) == (True, True), table

    assert grown(samples) == {}
    assert sum("MiB of streaming_source_runner" in each for each in samples) >= 6
    emptied = ("receipt", "receipt_page", "staging", "staging_page")
    assert [queue.state(table) for table in emptied] == [0, 0, 0, 0]
    assert (queue.count(), out.count()) == (0, BATCHES * MESSAGES)


def test_a_pinned_snapshot_does_not_slow_a_stream(
    queue: Queue, spark: SparkSession, tmp_path: Path
) -> None:
    """
    Each entry of the index by seq is read a few times, however many rows died.

    Another session sits idle in a transaction that holds back what may be vacuumed. So rows that
    are deleted pile up at the head of the queue, where a consumer looks first. Half of the messages
    are sent before that transaction begins.
    """
    place = queue.place
    read = """SELECT idx_tup_read FROM pg_stat_user_indexes
               WHERE schemaname = %s AND indexrelname = 'orders_seq_key'"""
    queue.fill(0, PINNED // 2)
    place.sql(f"VACUUM ANALYZE {queue.name}")
    before = place.sql(read, place.schema)[0][0]
    given = queue.options | {"maxMessagesPerTrigger": str(PINNED // 50), "headersFormat": "json"}
    frame = spark.readStream.format("sqlqueue").options(**given).load()
    with closing(psycopg.connect(place.url)) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("SELECT pg_current_xact_id() FROM pg_class")
        queue.fill(PINNED // 2, PINNED)

        finish(frame.writeStream.format("noop"), tmp_path / "checkpoint")

        dead = sum(row[2] for row in place.sql(TABLES, place.schema))
    assert queue.count() == 0
    # Otherwise nothing was pinned. The server's statistics may not count the last batches yet.
    assert dead >= 0.9 * PINNED
    # A peek and a receive read each entry, and so do a few looks from the very beginning. If each
    # look walked over the dead rows, there would be 25 reads and more.
    assert (place.sql(read, place.schema)[0][0] - before) / PINNED < 6
