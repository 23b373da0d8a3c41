"""Errors of a stream whose checkpoint does not match its row in the database."""

from __future__ import annotations

from sqlq_spark.errors.root import SqlQueueError


class CheckpointFailure(SqlQueueError):
    """The checkpoint and the stream's row in the database do not match."""


class CheckpointRolledBack(CheckpointFailure):
    """The checkpoint is at an earlier batch than the last one that was acknowledged."""

    template = (
        "the checkpoint of stream {0} is at batch {1}, but batch {2} was acknowledged. The "
        "checkpoint was rolled back or copied, and the messages between are gone from the queue. "
        "Restore the newer checkpoint, or start with a new one. failOnDataLoss=false continues "
        "with this one. Then as many batches receive nothing, and new messages come after them."
    )

    def __init__(self, stream: str, start: int, acked: int) -> None:
        super().__init__(stream, start, acked)


class DatabaseRolledBack(CheckpointFailure):
    """The stream's row is at an earlier batch than Spark's commit log."""

    template = (
        "the checkpoint of stream {0} is at batch {1}, but {3} has acknowledged only up to batch "
        "{2}. The database went back in time: a standby that lagged took over, or a backup was "
        "restored. Messages received since then are in the queue again. Messages sent since then "
        "may be lost. failOnDataLoss=false continues and delivers the messages in the queue a "
        "second time. Compare them with the sink's tables and transaction log."
    )

    def __init__(self, stream: str, start: int, acked: int, server: str) -> None:
        super().__init__(stream, start, acked, server)


class ReceiptsMissing(CheckpointFailure):
    """A batch that Spark has committed left fewer receipts than it had tasks."""

    template = (
        "batch {1} of stream {0} had {2} tasks and left {3} receipts. The database has lost "
        "commits: a standby that lagged took over, or a backup was restored. Messages of the batch "
        "are in the queue again. Compare them with the sink, and delete those that it has. Then "
        "start once with failOnDataLoss=false. If the sink does not read all of each batch, set "
        "failOnMissingReceipts=false."
    )

    def __init__(self, stream: str, batch: int, tasks: int, found: int) -> None:
        super().__init__(stream, batch, tasks, found)


class StreamNotFound(CheckpointFailure):
    """The checkpoint names a stream that the state tables do not have."""

    template = (
        "stream {0} of this checkpoint is not in schema {1} of {2}. Either this is another "
        "database, or the state tables were created again. Set url and stateSchema to where this "
        "checkpoint began. Or start with a new checkpoint."
    )

    def __init__(self, stream: str, schema: str, server: str) -> None:
        super().__init__(stream, schema, server)


class StreamOfOtherQueue(CheckpointFailure):
    """A stream on another queue created the checkpoint."""

    template = (
        "this checkpoint belongs to a stream of queue {0}, not of {1}. "
        "Set a checkpointLocation of its own for this stream."
    )

    def __init__(self, found: str, asked: str) -> None:
        super().__init__(found, asked)


class StreamTakenOver(CheckpointFailure):
    """A second driver runs on the same checkpoint, or on a copy of it."""

    template = (
        "stream {0} was taken over by another driver: two queries run on one checkpoint or on "
        "copies of it. Stop one of them, and set a checkpointLocation of its own for it."
    )

    def __init__(self, stream: str) -> None:
        super().__init__(stream)


class BadOffset(CheckpointFailure):
    """An offset of the checkpoint cannot be read. Nothing was received by it."""

    template = (
        "the offset of this checkpoint cannot be used: {0}. Run the query with the release of "
        "sqlq_spark that wrote the checkpoint, or restore the checkpoint, or start with a new one."
    )

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class BadPlan(CheckpointFailure):
    """A stored plan cannot be used. Nothing was received by it."""

    template = (
        "the plan of batch {1} of stream {0} cannot be used: {2}. Someone changed it in the table "
        "stream of the state schema, or in the checkpoint. Find out who may write there. "
        "Restore the plan, or start with a new checkpoint."
    )

    def __init__(self, stream: str | None, batch: int, reason: str) -> None:
        super().__init__(stream, batch, reason)


class StaleTask(CheckpointFailure):
    """A task belongs to a batch that was acknowledged or returned. It must not use the queue."""

    template = (
        "task {2} of batch {1} of stream {0} ran after the batch was acknowledged (up to {3}). "
        "It is an earlier attempt that was abandoned, or the checkpoint was rolled back or copied."
    )

    def __init__(self, stream: str, batch: int, task: int, acked: int) -> None:
        super().__init__(stream, batch, task, acked)


class CheckpointIncomplete(CheckpointFailure):
    """Spark uses the number of a batch again for other messages. Nothing was received for it."""

    template = (
        "Spark runs batch {1} of query {0} with other messages than before (task {3}). The query "
        "has received up to batch {2} already. The checkpoint has its file metadata, but it has "
        "lost files of batch {4} in its folders offsets and commits. An idempotent sink (Delta, "
        "files, this one) may hold batch {4}, and would drop new messages. Nothing was received. "
        "Restore the files. Or start with a new checkpoint, and return or drop what "
        "`sqlqueue receipts list` shows. failOnDataLoss=false continues with this checkpoint: it "
        "receives nothing up to batch {2}, and the messages wait in the queue for later batches."
    )

    def __init__(self, query: str, batch: int, high_water: int, task: str, files: str = "") -> None:
        last = max(batch, high_water)
        files = files or (f"{batch}" if batch == last else f"{batch} to {last}")
        super().__init__(query, batch, high_water, task, files)
