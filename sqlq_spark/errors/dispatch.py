"""Errors of sending: staged chunks, receipts to settle, the dispatch log."""

from __future__ import annotations

from sqlq_spark.errors.root import SqlQueueError


class ChunksMissing(SqlQueueError):
    """Staged chunks disappeared before they were sent. Nothing was sent."""

    template = (
        "batch {1} of sink {0} staged {2} chunks, but {3} were found. Nothing of it was sent. "
        "Check whether chunks were dropped, or whether the driver uses another database or "
        "stateSchema than the tasks."
    )

    def __init__(self, sink: str, batch: int, staged: int, found: int) -> None:
        super().__init__(sink, batch, staged, found)


class NothingToSettle(SqlQueueError):
    """A batch has no receipts to commit its sends with. Nothing was sent."""

    template = (
        "query {0} has no stream and no receipt in schema {2} of {3}, so nothing of its "
        "micro-batch {1} was sent. transactionMode=sendsAtomicWithReceive needs a sqlqueue source "
        "in the same database: give the read and the write the same url and stateSchema. If the "
        "queue was still empty at the first batch, start the query once without transactionMode."
    )

    def __init__(self, query: str | None, batch: int | None, schema: str, server: str) -> None:
        super().__init__(query, batch, schema, server)


class BatchClosed(NothingToSettle):
    """Receipts of a batch were returned or dropped before its sends. Nothing was sent."""

    template = (
        "micro-batch {1} of query {0} is closed in schema {2} of {3}, so nothing of it was sent: "
        "receipts of it were returned or dropped, and its messages may be in their queue again. "
        "Start the query with a new checkpoint."
    )


class DispatchLogAhead(SqlQueueError):
    """The dispatch log has a batch that the sink cannot have reached. Nothing was sent."""

    template = (
        "sink {0} is at batch {1}, but the dispatch log in schema {3} of {4} says that batch {2} "
        "was sent. Nothing was sent, because a new batch would be skipped as one already sent. "
        "Either the checkpoint was rolled back by several batches, or txnVersion is not the next "
        "number, or the log was changed. Restore the newer checkpoint, or give the stream a new "
        "one. If batch {1} was not sent yet, ask a DBA to set the column batch of the sink's row "
        "in the table dispatch_log to the last batch that was sent."
    )

    def __init__(self, sink: str, batch: int, found: int, schema: str, server: str) -> None:
        super().__init__(sink, batch, found, schema, server)
