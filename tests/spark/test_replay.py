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
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from waiting import until

from spark.stand import finish, message_ids, numbered

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark


@dataclass
class Record:
    """A sink that keeps the rows of every call, by batch, and can fail."""

    calls: list[tuple[int, list[tuple[int, str]]]] = field(default_factory=list)
    failures: int = 0  # that many calls fail, after they got their rows

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Take a batch."""
        rows = frame.collect()
        self.calls.append(
            (batch, [(row.seq, row.headers["NServiceBus.MessageId"]) for row in rows])
        )
        if self.failures:
            self.failures -= 1
            raise RuntimeError(f"sink failed on batch {batch}")

    def of(self, batch: int) -> list[list[tuple[int, str]]]:
        """The rows of each call for a batch."""
        return [rows for each, rows in self.calls if each == batch]

    @property
    def ids(self) -> list[str]:
        """The message ids of all calls."""
        return [name for _, rows in self.calls for _, name in rows]


@dataclass
class Run:
    """One query on one queue, run again and again on one checkpoint."""

    queue: SparkQueue
    checkpoint: Path
    sink: Callable[[DataFrame, int], None]

    def go(self, **options: object) -> StreamingQuery:
        """Run it until it received what waits."""
        defaults: dict[str, object] = {"maxMessagesPerTrigger": 100, "peekDelay": "100ms"}
        stream = self.queue.stream(**defaults | options).load()
        return finish(stream.writeStream.foreachBatch(self.sink), self.checkpoint)

    def remove(self, folder: str, batch: int) -> None:
        """Remove an entry of the checkpoint."""
        remove(self.checkpoint, folder, batch)


@pytest.fixture
def run(queue: SparkQueue) -> Run:
    """Give a query whose sink is a Record."""
    return Run(queue, queue.folder / "checkpoint", Record())


@pytest.fixture
def record(run: Run) -> Record:
    """Give the sink of `run`."""
    assert isinstance(run.sink, Record)
    return run.sink


def fail_after_receiving(run: Run, record: Record) -> None:
    """Leave a batch received, handed out, and not in the commit log."""
    record.failures = 1
    with pytest.raises(StreamingQueryException, match="sink failed"):
        run.go()


def remove(checkpoint: Path, folder: str, batch: int) -> None:
    """Remove an entry of a checkpoint, with the checksum beside it."""
    (checkpoint / folder / str(batch)).unlink()
    (checkpoint / folder / f".{batch}.crc").unlink(missing_ok=True)


def new_identity(checkpoint: Path) -> None:
    """Give a checkpoint a new query id; of two queries with one id Spark stops the first."""
    (checkpoint / ".metadata.crc").unlink(missing_ok=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))


def test_a_failed_batch_comes_again_word_for_word(run: Run, record: Record) -> None:
    """The sink failed three times: each time the same rows in the same order, then the rest."""
    run.queue.fill(0, 250)

    for _ in range(3):
        fail_after_receiving(run, record)
        run.queue.fill(1000, 1001)  # new messages do not change the batch
    assert not (run.checkpoint / "commits" / "0").exists()
    run.go()

    attempts = record.of(0)
    assert len(attempts) == 4
    assert all(each == attempts[0] for each in attempts)
    assert [name for _, name in attempts[0]] == numbered(0, 100)
    assert record.ids[3 * 100 :] == [*numbered(0, 250), *["m-1000"] * 3]
    assert [run.queue.count(), run.queue.state("receipt")] == [0, 0]


def test_lost_offset_gets_the_stored_plan(run: Run, record: Record) -> None:
    """Without offsets/N and commits/N the plan of the stream's row is handed out again."""
    run.queue.fill(0, 150)
    run.go()
    run.queue.fill(150, 4150)
    record.calls.clear()
    record.failures = 1
    with pytest.raises(StreamingQueryException, match="sink failed"):
        run.go(maxMessagesPerTrigger=4000, maxConcurrency=4)
    lost = json.loads((run.checkpoint / "offsets" / "2").read_text().splitlines()[2])
    run.remove("offsets", 2)

    run.go(maxMessagesPerTrigger=1000, maxConcurrency=1)  # a new plan would have other tasks

    first, again = record.of(2)
    planned = json.loads((run.checkpoint / "offsets" / "2").read_text().splitlines()[2])
    assert planned == lost
    assert again == first
    assert [name for _, name in again] == numbered(150, 4150)
    assert run.queue.state("receipt") == 0


@pytest.mark.parametrize("committed", [False, True])
def test_a_lost_first_entry_is_refused_while_the_query_has_its_name(
    run: Run, record: Record, *, committed: bool
) -> None:
    """New messages wait behind the batch numbers that a sink may hold; the receipt stays."""
    run.queue.fill(0, 10)
    if committed:
        run.go()
        run.remove("commits", 0)
    else:
        fail_after_receiving(run, record)
    run.remove("offsets", 0)
    run.queue.fill(10, 20)

    with pytest.raises(StreamingQueryException) as refused:
        run.go()
    untouched = run.queue.ids()
    run.go(failOnDataLoss="false")
    run.go(failOnDataLoss="false")

    assert "it has lost files of batch 0 in its folders offsets and commits" in str(refused.value)
    assert untouched == numbered(10, 20)
    assert [len(rows) for rows in record.of(0)] == [10, 0]
    assert [name for _, name in record.of(1)[0]] == numbered(10, 20)
    held = run.queue.dotnet.state_rows("receipt", "messages")
    assert held == ([] if committed else [(10,)])


@pytest.mark.parametrize("mode", ["receiveOnly", "sendsAtomicWithReceive"])
def test_a_lost_last_entry_of_two_sources_is_refused(queue: SparkQueue, mode: str) -> None:
    """One source replays its plan, the other has a new one, and the sink has sent the batch."""
    other, out = queue.another("invoices"), queue.another("out")
    checkpoint = queue.folder / "checkpoint"
    sink = out.options | ({} if mode == "receiveOnly" else {"transactionMode": mode})

    def writer(**options: object) -> DataStreamWriter:
        first, second = (
            queue.stream(queue=each.name, peekDelay="100ms", **options).load()
            for each in (queue, other)
        )
        return first.union(second).drop("queue").writeStream.format("sqlqueue").options(**sink)

    queue.fill(0, 10)
    other.fill(100, 110)
    finish(writer(), checkpoint)
    other.fill(110, 120)
    started = writer().option("checkpointLocation", str(checkpoint))
    query = started.trigger(processingTime="1 hour").start()
    until((checkpoint / "commits" / "1").exists)
    query.stop()
    for folder in ("offsets", "commits"):
        remove(checkpoint, folder, 1)
    queue.fill(20, 30)

    with pytest.raises(StreamingQueryException, match="lost files of batch 1 in its folders"):
        finish(writer(), checkpoint)
    untouched, sent = queue.ids(), out.count()
    for _ in range(2):
        finish(writer(failOnDataLoss="false"), checkpoint)

    assert (untouched, sent) == (numbered(20, 30), 30)
    assert sorted(out.ids()) == sorted([*numbered(0, 10), *numbered(20, 30), *numbered(100, 120)])
    assert [queue.count(), other.count(), queue.state("receipt")] == [0, 0, 0]


def test_reading_twice_receives_once(run: Run) -> None:
    """By two actions in foreachBatch, a limit that stops early, and a union with itself."""
    run.queue.fill(0, 3000)
    seen: list[list[str]] = []

    def twice(frame: DataFrame, _batch: int) -> None:
        frames = (frame.limit(5), frame, frame, frame.union(frame))
        seen.extend(message_ids(each) for each in frames)

    run.sink = twice
    run.go(maxMessagesPerTrigger=3000)

    limited, first, second, union = seen
    assert len(limited) == 5
    assert set(limited) <= set(first)
    assert first == second == numbered(0, 3000)
    assert union == first * 2
    assert [run.queue.count(), run.queue.state("receipt")] == [0, 0]


def test_a_limit_takes_no_more_than_the_tasks_it_ran(run: Run) -> None:
    """A sink that takes five rows receives a whole task; the rows that it leaves are lost."""
    run.queue.fill(0, 3000)
    seen: list[str] = []
    run.sink = lambda frame, _: seen.extend(message_ids(frame.limit(5)))

    run.go(maxMessagesPerTrigger=3000)

    # Spark did not run the second task: its range was left for the next batch
    assert seen == [*numbered(0, 5), *numbered(1500, 1505)]
    assert [run.queue.count(), run.queue.state("receipt")] == [0, 0]


def test_self_union_of_a_stream_gives_each_row_twice(run: Run) -> None:
    """No row is lost or received for one side only."""
    run.queue.fill(0, 40)
    got: list[str] = []
    stream = run.queue.stream().load()
    union = stream.union(stream).writeStream

    run.queue.finish(union.foreachBatch(lambda frame, _: got.extend(message_ids(frame))))

    assert sorted(got) == sorted(numbered(0, 40) * 2)


def test_rolled_back_checkpoint_is_refused(run: Run, record: Record) -> None:
    """The batches between were acknowledged; failOnDataLoss=false goes on without them."""
    run.queue.fill(0, 100)
    run.go()
    old = run.queue.folder / "old"
    shutil.copytree(run.checkpoint, old)
    run.queue.fill(100, 400)
    run.go()
    run.queue.fill(900, 910)
    run.checkpoint = old
    record.calls.clear()

    with pytest.raises(StreamingQueryException) as refused:
        run.go()
    untouched = run.queue.ids()
    run.go(failOnDataLoss="false")

    stream = run.queue.dotnet.state_rows("stream", "stream")[0][0]
    assert (
        f"the checkpoint of stream {stream} is at batch 1, but batch 4 was "
        "acknowledged. The checkpoint was rolled back or copied, and the messages between are gone "
        "from the queue. Restore the newer checkpoint, or start with a new one."
    ) in str(refused.value)
    assert untouched == numbered(900, 910)
    assert record.ids == numbered(900, 910)


def test_commit_removed_after_its_ack_is_refused(run: Run, record: Record) -> None:
    """AvailableNow acknowledges its last batch: without commits/N, Spark replays what is gone."""
    run.queue.fill(0, 100)
    run.go()
    run.remove("commits", 0)
    run.queue.fill(100, 110)

    with pytest.raises(StreamingQueryException, match="after the batch was acknowledged"):
        run.go()

    assert len(record.calls) == 1
    assert run.queue.ids() == numbered(100, 110)


def test_checkpoint_copied_to_a_second_query(run: Run, record: Record) -> None:
    """
    Two drivers on one stream: the first raises that it was taken over, and nothing is lost.

    Both get the batch that was open, because the second looks like a restart.
    """
    run.queue.fill(0, 100)
    run.go()
    copy = run.queue.folder / "copy"
    shutil.copytree(run.checkpoint, copy)
    new_identity(copy)
    got: list[str] = []

    def overtaken(frame: DataFrame, _batch: int) -> None:
        got.extend(message_ids(frame))
        Run(run.queue, copy, record).go()
        run.queue.fill(400, 500)

    run.queue.fill(100, 400)
    run.sink = overtaken
    with pytest.raises(StreamingQueryException) as refused:
        run.go()

    assert "was taken over by another driver" in str(refused.value)
    assert got == numbered(100, 200)
    assert record.ids == numbered(0, 400)
    assert run.queue.ids() == numbered(400, 500)


# ---------------------------------------------------------------- a file sink

# It compares batch numbers only, and skips those that it has without reading them.


def files_after(queue: SparkQueue, checkpoint: str, **options: object) -> list[str]:
    """Receive what waits, in batches of 100, into the folder `lake`; gives all ids there."""
    lake = str(queue.folder / "lake")
    stream = queue.stream(maxMessagesPerTrigger=100, peekDelay="100ms", **options).load()
    writer = stream.writeStream.format("parquet").option("path", lake)
    finish(writer, queue.folder / checkpoint)
    found = message_ids(queue.spark.read.parquet(lake))
    return sorted(found, key=lambda each: int(each[2:]))


def test_a_file_sink_skips_batches_of_a_new_checkpoint_in_an_old_folder(queue: SparkQueue) -> None:
    """The messages wait until the numbers pass the old ones."""
    queue.fill(0, 250)
    files_after(queue, "first")
    queue.fill(250, 260)

    found = files_after(queue, "second")

    batches = {path.name for path in (queue.folder / "lake" / "_spark_metadata").glob("[0-9]*")}
    assert batches == {"0", "1", "2", "3"}
    assert found == numbered(0, 260)


def test_a_rolled_back_checkpoint_postpones_what_a_file_sink_skips(queue: SparkQueue) -> None:
    """With failOnDataLoss=false the skipped batches are not read, so nothing is lost."""
    queue.fill(0, 100)
    files_after(queue, "checkpoint")
    shutil.copytree(queue.folder / "checkpoint", queue.folder / "old")
    queue.fill(100, 300)
    files_after(queue, "checkpoint")
    queue.fill(300, 310)

    assert files_after(queue, "old", failOnDataLoss="false") == numbered(0, 310)
