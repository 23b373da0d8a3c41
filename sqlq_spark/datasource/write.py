"""`df.write` and `df.writeStream`: send."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from sqlq_spark.database import read_clock
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.errors import BadOption, SqlQueueError
from sqlq_spark.log import log, name_batch, set_up, warn_once
from sqlq_spark.send.dispatch import NAMED_SINK, NAMELESS_SINK, Staged, discard, dispatch, stage
from sqlq_spark.send.frame import check_frame
from sqlq_spark.send.insert import check_tables, send_now
from sqlq_spark.send.sender import Sender, name_sender
from sqlq_spark.send.throttle import (
    DestinationNames,
    record_names,
    wait_before_chunks,
    wait_before_dispatch,
)
from sqlq_spark.spark_api import (
    DataSourceStreamArrowWriter,
    column_types,
    current_batch,
    padded_texts,
    spare_modules,
)
from sqlq_spark.wire.headers import begins_with_interface

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from sqlq_spark.options import SinkOptions


def choose_session(options: SinkOptions) -> type[Session]:
    """Return the kind of session that the delivery needs."""
    return StateSession if options.delivery == "exactlyOnce" else Session


def look_ahead(options: SinkOptions) -> None:
    """Check before a task runs that the tables which the options name exist. Else raise."""
    if options.names_tables:
        with choose_session(options)(options, "look ahead", keep_connection=True) as session:
            session.run_with_retries(partial(check_tables, options=options))


# A stream uses this function, so that it checks only once: Spark makes a new writer for each
# micro-batch.
look_ahead_once = cache(look_ahead)


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote. With delivery=atLeastOnce `staged` is None."""

    staged: Staged | None


class Writing:
    """What the writers of frames and of streams have in common."""

    def __init__(self, options: SinkOptions, schema: StructType, sender: str | None = None) -> None:
        """
        Check the frame before Spark computes it.

        `sender` is the header OriginatingEndpoint if the options do not set it.

        Raises:
            BadFrame.
        """
        check_frame(
            column_types(schema),
            queue=options.address is not None,
            topics=options.topics is not None,
            as_received=options.as_received,
        )
        if options.legacy_columns and not options.fills_legacy_columns:
            warn_once(
                "legacyColumns=true has no effect. Queues of %s have no columns "
                "CorrelationId and ReplyToAddress, because no endpoint of version 1 reads them. "
                "Both are in the headers",
                options.naming.database,
            )
        if options.message_type is not None and begins_with_interface(options.message_type):
            warn_once(
                "messageType=%s begins with what seems to be an interface. If a class that "
                "implements it follows, an endpoint handles each message twice: put the most "
                "derived type first",
                options.message_type,
            )
        self.options = options
        self.padded = padded_texts(schema)
        self.sent_by = name_sender(options.originating_endpoint or sender)

    def send(self, batches: Iterator[pa.RecordBatch], sink: str, sink_batch: int) -> Written:
        """Stage or send the rows of one task, and wait if the options ask for it."""
        options = self.options
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        name = f"{sink}/{sink_batch}/{partition}"
        is_exactly_once = options.delivery == "exactlyOnce"
        session = choose_session(options)(
            options,
            f"sink {name}",
            keep_connection=True,
            was_reached=sink_batch > 0,  # the batches before this one have reached the server
        )
        ask = session.run_with_retries
        set_up()
        spark_batch = current_batch()
        name_batch(spark_batch.name, spark_batch.number)
        names: DestinationNames = set()
        with session:
            chunks = Sender(
                options=options,
                partition=partition,
                # a task that Spark tries again sends the same ids
                seed=None if is_exactly_once else hashlib.sha256(name.encode()).digest()[:16],
                # decides which messages have expired since they were received, with asReceived only
                clock=partial(ask, read_clock),
                # The address contains the name of this database. Without it, an endpoint on SQL
                # Server would send its answer into its own default database.
                own_address=lambda address: ask(lambda opened: opened.canonical(address)),
                sent_by=self.sent_by,
                padded=self.padded,
            ).chunks(batches)
            if not is_exactly_once:
                paced = wait_before_chunks(session, chunks, options, spark_batch.query_id)
                send_now(session, paced, options)
                spare_modules()
                return Written(None)
            recorded = record_names(chunks, names)
            staged = stage(
                session, recorded, sink=sink, sink_batch=sink_batch, spark_batch=spark_batch
            )
        spare_modules()
        wait_before_dispatch(options, staged, partition, names)
        return Written(staged)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int = 0,  # noqa: ARG002
    ) -> None:
        """Send in one transaction what the tasks of a batch staged, unless it was sent before."""
        if staged := staged_in(messages):
            set_up()
            spark_batch = staged[0].spark_batch
            name_batch(spark_batch.name, spark_batch.number)
            name = f"dispatch {staged[0].sink}/{staged[0].sink_batch}"
            with StateSession(
                self.options, name, keep_connection=True, was_reached=True
            ) as session:
                session.run_with_retries(partial(dispatch, staged=staged, options=self.options))

    def discard(self, sink: str, sink_batch: int, *, final: bool) -> None:
        """
        Delete what was staged for a batch that was aborted.

        If `final`, the batch is never tried again. A failure to delete is only logged, because
        Spark reports why the write was aborted.
        """
        if self.options.delivery != "exactlyOnce":
            return
        work = partial(discard, sink=sink, sink_batch=sink_batch, final=final)
        try:
            with StateSession(self.options, f"abort {sink}/{sink_batch}") as session:
                session.run_with_retries(work)
        except SqlQueueError as error:
            log.warning("%s: batch %d: its chunks are left for now: %s", sink, sink_batch, error)


def staged_in(messages: list[WriterCommitMessage | None]) -> list[Staged]:
    """Return what the tasks staged, from the messages that Spark brought to the driver."""
    written = (message for message in messages if isinstance(message, Written))
    return [message.staged for message in written if message.staged is not None]


class BatchWriter(Writing, DataSourceArrowWriter):
    """`df.write`: one batch. With txnAppId and txnVersion a repeated batch is sent once."""

    def __init__(self, options: SinkOptions, schema: StructType, sender: str | None = None) -> None:
        """Choose the sink. Spark pickles this object to the executors and back to the driver."""
        super().__init__(options, schema, sender)
        application = options.txn_app_id
        if options.max_rate is not None and application is None:
            raise BadOption(
                option="maxMessagesPerSecond",
                found=str(options.max_rate),
                expected="writeStream, or txnAppId and txnVersion: it paces batches, and df.write "
                "is one batch",
            )
        if application is None:
            self.sink = f"{NAMELESS_SINK}{uuid.uuid4()}"
        else:
            self.sink = f"{NAMED_SINK}{application}"
        self.sink_batch = options.txn_version or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage or send one task's rows."""
        return self.send(iterator, self.sink, self.sink_batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """
        Delete what the failed write has staged.

        Without txnAppId the write is never tried again, and tasks of it that still run can stage
        nothing more. With txnAppId they can stage more, which a later dispatch of the name deletes.
        """
        self.discard(self.sink, self.sink_batch, final=self.options.txn_app_id is None)


class StreamWriter(Writing, DataSourceStreamArrowWriter):
    """`df.writeStream`: the sink is the query's id, and its batches have Spark's numbers."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage or send one task's rows of a micro-batch."""
        spark_batch = current_batch()
        if spark_batch.query_id is None or spark_batch.number is None:
            # Without these, two queries would share a row of the dispatch log, and lose messages.
            raise SqlQueueError(
                reason="Spark did not give this task its query and batch, so a stream cannot send "
                "once. Use foreachBatch with txnAppId and txnVersion"
            )
        return self.send(iterator, f"query:{spark_batch.query_id}", spark_batch.number)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        """Delete what this process knows to be staged. The next batch deletes the rest."""
        aborted = {(staged.sink, staged.sink_batch) for staged in staged_in(messages)}
        for sink, sink_batch in aborted:
            self.discard(sink, sink_batch, final=False)
