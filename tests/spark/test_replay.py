"""
Replays: if Spark asks for a batch again, it gets the same rows in the same order.

The file sink and Delta skip a batch that they already have without reading it. So the sinks here
are foreachBatch functions that record their rows.
"""

from __future__ import annotations

import json
import shutil
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from waiting import until

from spark.stand import finish, forget, message_ids, numbered
from sqlq_spark import open_batch
from sqlq_spark.errors import BadOption

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark


@dataclass
class Run:
    """
    One query that runs again and again on a checkpoint.

    Its sink records the ids of every call.
    """

    queue: SparkQueue
    checkpoint: Path
    calls: list[tuple[int, list[str]]] = field(default_factory=list)  # batch, ids by seq
    fails: bool = False  # whether the next call fails, after it got its rows

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Take a batch."""
        self.calls.append((batch, message_ids(frame)))
        if self.fails:
            self.fails = False
            raise RuntimeError(f"sink failed on batch {batch}")

    def go(self, sink: Callable[[DataFrame, int], None] | None = None, **options: object) -> None:
        """Run the query until it has received what waits."""
        defaults: dict[str, object] = {"maxMessagesPerTrigger": 100, "peekDelay": "100ms"}
        stream = self.queue.stream(**defaults | options).load()
        finish(stream.writeStream.foreachBatch(sink or self), self.checkpoint)

    def fail(self, **options: Any) -> None:
        """Leave a batch that was received and handed out, but is not in the commit log."""
        self.fails = True
        with pytest.raises(StreamingQueryException, match="sink failed"):
            self.go(**options)

    def refused(self) -> str:
        """The error of a run that must fail before it receives."""
        before = len(self.calls), self.queue.ids()
        with pytest.raises(StreamingQueryException) as error:
            self.go()
        assert (len(self.calls), self.queue.ids()) == before
        return str(error.value)

    @property
    def ids(self) -> list[str]:
        """The message ids of all calls."""
        return [name for _, ids in self.calls for name in ids]


@pytest.fixture
def run(queue: SparkQueue) -> Run:
    """Give a query."""
    return Run(queue, queue.checkpoint)


def test_a_failed_batch_comes_again_word_for_word(run: Run) -> None:
    """The sink fails three times, and gets the same rows in the same order each time."""
    run.queue.fill(0, 250)

    for _ in range(3):
        run.fail()
        run.queue.fill(1000, 1001)  # new messages do not change the batch
    assert not (run.checkpoint / "commits" / "0").exists()
    run.go()

    assert run.calls[:4] == [(0, numbered(0, 100))] * 4
    assert run.ids[400:] == [*numbered(100, 250), *["m-1000"] * 3]
    assert [run.queue.count(), run.queue.state("receipt")] == [0, 0]


def test_lost_offset_gets_the_stored_plan(run: Run) -> None:
    """If offsets/N and commits/N are lost, the plan in the stream's row is used again."""
    run.queue.fill(0, 150)
    run.go()
    run.queue.fill(150, 4150)
    run.fail(maxMessagesPerTrigger=4000, maxConcurrency=4)
    offset = run.checkpoint / "offsets" / "2"
    lost = offset.read_text().splitlines()[2]
    forget(run.checkpoint, "offsets", 2)

    run.go(maxMessagesPerTrigger=1000, maxConcurrency=1)  # a new plan would have other tasks

    assert json.loads(offset.read_text().splitlines()[2]) == json.loads(lost)
    assert run.calls[2:] == [(2, numbered(150, 4150))] * 2
    assert run.queue.state("receipt") == 0


def test_a_lost_first_entry_is_refused_while_the_query_has_its_name(run: Run) -> None:
    """A sink may hold the batch numbers, so new messages wait. The receipt stays."""
    run.queue.fill(0, 10)
    run.fail()
    forget(run.checkpoint, "offsets", 0)
    run.queue.fill(10, 20)

    assert "lost files of batch 0 in its folders offsets and commits" in run.refused()
    for _ in range(2):
        run.go(failOnDataLoss="false")

    assert run.calls == [(0, numbered(0, 10)), (0, []), (1, numbered(10, 20))]
    assert run.queue.dotnet.state_rows("receipt", "messages") == [(10,)]


def test_a_lost_last_entry_of_two_sources_is_refused(queue: SparkQueue) -> None:
    """One source replays its plan, the other has a new one, and the sink has sent the batch."""
    other, out = queue.another("invoices"), queue.another("out")

    def writer(**options: object) -> DataStreamWriter:
        first, second = (
            queue.stream(queue=each.name, peekDelay="100ms", **options).load()
            for each in (queue, other)
        )
        rows = first.union(second).drop("queue")
        return rows.writeStream.format("sqlqueue").options(**out.options)

    queue.fill(0, 10)
    other.fill(100, 110)
    queue.finish(writer())
    other.fill(110, 120)
    started = writer().option("checkpointLocation", str(queue.checkpoint))
    query = started.trigger(processingTime="1 hour").start()
    until((queue.checkpoint / "commits" / "1").exists)
    query.stop()
    for folder in ("offsets", "commits"):
        forget(queue.checkpoint, folder, 1)
    queue.fill(20, 30)

    with pytest.raises(StreamingQueryException, match="lost files of batch 1 in its folders"):
        queue.finish(writer())
    untouched, sent = queue.ids(), out.count()
    for _ in range(2):
        queue.finish(writer(failOnDataLoss="false"))

    assert (untouched, sent) == (numbered(20, 30), 30)
    assert sorted(out.ids()) == sorted([*numbered(0, 10), *numbered(20, 30), *numbered(100, 120)])
    assert [queue.count(), other.count(), queue.state("receipt")] == [0, 0, 0]


def test_reading_twice_receives_once(run: Run) -> None:
    """A foreachBatch reads its frame with a limit, in two actions, and in a union with itself."""
    run.queue.fill(0, 3000)
    seen: list[list[str]] = []

    def twice(frame: DataFrame, _batch: int) -> None:
        frames = (frame.limit(5), frame, frame, frame.union(frame))
        seen.extend(message_ids(each) for each in frames)
        assert frame.rdd.getNumPartitions() == 3

    run.go(twice, maxMessagesPerTrigger=3000, maxConcurrency=3)

    limited, first, second, union = seen
    assert len(limited) == 5
    assert set(limited) <= set(first)
    assert first == second == numbered(0, 3000)
    assert union == first * 2
    assert [run.queue.count(), run.queue.state("receipt")] == [0, 0]


def test_rolled_back_checkpoint_is_refused(run: Run) -> None:
    """The batches between were acknowledged. With failOnDataLoss=false the stream goes on."""
    run.queue.fill(0, 100)
    run.go()
    old = run.queue.folder / "old"
    shutil.copytree(run.checkpoint, old)
    run.queue.fill(100, 400)
    run.go()
    run.queue.fill(900, 910)
    run.checkpoint = old
    run.calls.clear()

    refused = run.refused()
    run.go(failOnDataLoss="false")

    stream = run.queue.dotnet.state_rows("stream", "stream")[0][0]
    assert f"the checkpoint of stream {stream} is at batch 1, but batch 4 was" in refused
    assert run.ids == numbered(900, 910)


def test_commit_removed_after_its_ack_is_refused(run: Run) -> None:
    """AvailableNow acknowledges its last batch. Without commits/N Spark would replay it."""
    run.queue.fill(0, 100)
    run.go()
    forget(run.checkpoint, "commits", 0)
    run.queue.fill(100, 110)

    assert "after the batch was acknowledged" in run.refused()


def test_checkpoint_copied_to_a_second_query(run: Run) -> None:
    """
    Two drivers use one stream. The first raises that it was taken over, and nothing is lost.

    Both get the batch that was open, because the second looks like a restart.
    """
    run.queue.fill(0, 100)
    run.go()
    other = Run(run.queue, run.queue.folder / "copy")
    shutil.copytree(run.checkpoint, other.checkpoint)
    # a new query id: of two queries with one id Spark stops the first
    (other.checkpoint / ".metadata.crc").unlink(missing_ok=True)
    (other.checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    got: list[str] = []

    def overtaken(frame: DataFrame, _batch: int) -> None:
        got.extend(message_ids(frame))
        other.go()
        run.queue.fill(400, 500)

    run.queue.fill(100, 400)
    with pytest.raises(StreamingQueryException, match="was taken over by another driver"):
        run.go(overtaken)

    assert got == numbered(100, 200)
    assert run.ids + other.ids == numbered(0, 400)
    assert run.queue.ids() == numbered(400, 500)


# ---------------------------------------------------------------- which batch is open


def test_a_batch_is_open_if_it_was_planned_and_not_committed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Batches compare by number, on every path of Hadoop. An absent path is an error."""
    java = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - no other way to set it
    java.set("fs.viewfs.impl", "org.apache.hadoop.fs.viewfs.ViewFileSystem")
    java.set(f"fs.viewfs.mounttable.{tmp_path.name}.link./lake", tmp_path.as_uri())
    for name, offsets, commits, expected in (
        ("open", (8, 9, 10), (8, 9), 10),
        ("closed", (8, 9, 10), (9, 10), None),
        ("first", (0,), (), 0),
        ("idle", (), (), None),
    ):
        for log, batches in (("offsets", offsets), ("commits", commits)):
            (tmp_path / name / log).mkdir(parents=True)
            for file in (*map(str, batches), *(f".{batch}.crc" for batch in batches)):
                (tmp_path / name / log / file).write_text("v1")

        for place in (str(tmp_path), f"viewfs://{tmp_path.name}/lake"):
            assert open_batch(spark, f"{place}/{name}/") == expected
    with pytest.raises(BadOption, match="expected the checkpointLocation of a query"):
        open_batch(spark, f"{tmp_path}/absent")
