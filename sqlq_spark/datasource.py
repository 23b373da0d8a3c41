"""
The classes that Spark calls.

camelCase names and parameter names are Spark's.
What Spark pickles between its processes (a reader, a writer, a partition) holds options and plans,
never a connection.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from sqlq_spark.admin import checks
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import BadOption, SqlQueueError
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.receive import browse
from sqlq_spark.receive.columns import HEAVY, check_columns, columns
from sqlq_spark.receive.driver.loop import PeekLoop
from sqlq_spark.receive.offset import INITIAL, Offset
from sqlq_spark.receive.poison import warn_of_poison
from sqlq_spark.receive.task import Task, receive
from sqlq_spark.send.message.columns import check_frame
from sqlq_spark.send.message.sent_by import SentBy
from sqlq_spark.send.staging import nameless_sink
from sqlq_spark.send.write import (
    WriteTask,
    discard_staged,
    dispatch_staged,
    look_ahead,
    write,
)
from sqlq_spark.spark_api import (
    DataSourceStreamArrowWriter,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    to_arrow_schema,
)
from sqlq_spark.wire.header_columns import to_read_columns
from sqlq_spark.wire.message_types import begins_with_interface
from sqlq_spark.wire.rows import Origin, record_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from sqlq_spark.send.staging import Staged
    from sqlq_spark.wire.address import QueueAddress

log = logging.getLogger("sqlq_spark")


class DefaultSource(DataSource):
    """The format `sqlqueue`."""

    cores: int | None = None  # of the cluster, where `register` saw it
    application: str | None = None  # its name, where `register` saw it

    @classmethod
    def name(cls) -> str:
        """The name for `.format(…)`."""
        return "sqlqueue"

    def schema(self) -> str:
        """The columns of a read."""
        options = SourceOptions.parse(self.options)
        return ", ".join(f"{name} {kind}" for name, kind in columns(options).items())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Browse: deletes nothing."""
        options = SourceOptions.parse(self.options, cores=self.cores)
        return BrowseReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Receive."""
        options = SourceOptions.parse(self.options, cores=self.cores)
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001
        """Send a frame."""
        options = SinkOptions.parse(self.options)
        made = BatchWriter(options, schema, overwrite=overwrite, sender=self.sender())
        look_ahead(made.options)
        return made

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001
        """Send the micro-batches of a stream."""
        options = SinkOptions.parse(self.options)
        made = StreamWriter(options, schema, overwrite=overwrite, sender=self.sender())
        look_ahead_once(made.options)
        return made

    def sender(self) -> str | None:
        """Return the name of the query, or else of the application, as far as it is known."""
        return self.options.get("queryName") or self.application


def register(spark: SparkSession) -> None:
    """Register the format, with the number of the cluster's cores where the session says it."""
    found = getattr(spark, "_sc", None)  # no property: that of Spark Connect raises
    known = None if found is None else max(1, found.defaultParallelism)
    try:
        spark.dataSource.register(sized(known, application_name(spark)))
    except PySparkException as error:
        # Spark 4.0.0 finds the format and then takes no other; what it found is this package
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
        log.info("the format sqlqueue is registered already")


def application_name(spark: SparkSession) -> str | None:
    """Return the application's name; None where the session does not say it."""
    try:
        return spark.conf.get("spark.app.name", None)
    except PySparkException:
        return None


def sized(cores: int | None, application: str | None = None) -> type[DefaultSource]:
    """
    Give the format, knowing the cluster's cores and the application's name.

    Spark pickles a class that no module holds by value, and with it these values.
    """
    known = {"cores": cores, "application": application}
    return type(DefaultSource.__name__, (DefaultSource,), known)


def column_types(schema: StructType) -> dict[str, str]:
    """Column → type, in Spark's words."""
    return {field.name: field.dataType.simpleString() for field in schema}


# ---------------------------------------------------------------- read


@dataclass
class TaskPartition(InputPartition):
    """A receive task on its way to an executor."""

    task: Task


@dataclass
class RangePartition(InputPartition):
    """A range of seqs of a queue to browse."""

    queue: QueueAddress
    first: int
    stop: int


class BrowseReader(DataSourceReader):
    """`spark.read`: what waits now, in parallel, by seq within a partition."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Begin; `schema` is what the user asked for, all columns by default."""
        check_columns(column_types(schema), options)
        self.options = options
        self.columns = schema

    def partitions(self) -> Sequence[RangePartition]:
        """Even ranges of the seqs there are now; what comes later is not read."""
        with Session(self.options, "browse", state=False, worker=True) as session:
            parts = session.do(
                lambda connection: browse.parts(
                    connection,
                    self.options.addresses,
                    parts=self.options.concurrency,
                    timeout=self.options.query_timeout,
                )
            )
        # Spark makes of no partition at all one that is not ours.
        return [RangePartition(*part) for part in parts or [(self.options.address, 0, 0)]]

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Page through a range; stops as soon as Spark does."""
        schema = to_arrow_schema(self.columns)
        options, queue = self.options, partition.queue
        name = f"browse {queue.table}"
        with Session(options, name, state=False, worker=True) as session:
            pages = browse.pages(
                session.open(),
                queue,
                partition.first,
                partition.stop,
                narrow=not HEAVY & set(schema.names),
                body_string="bodyString" in schema.names,
                largest=options.max_message_bytes,
                timeout=options.query_timeout,
            )
            for page in pages:
                for chunk in record_batches(page):
                    yield to_read_columns(chunk, schema, queue=session.open().canonical(queue))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`: receives, by receive/driver on the driver and receive/task.py."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Start; Spark builds several of these, only one of them speaks to the database."""
        check_columns(column_types(schema), options)
        self.options = options
        self.columns = schema
        self._loop: PeekLoop | None = None
        self._planned = INITIAL  # end of the last batch whose tasks Spark asked for

    @property
    def loop(self) -> PeekLoop:
        """The peek loop, made when the driver first needs it."""
        if self._loop is None:
            self._loop = PeekLoop(self.options, time.monotonic, checks.at_start)
        return self._loop

    def initialOffset(self) -> dict[str, Any]:
        """Give a constant, as Spark asks for it more than once."""
        return INITIAL.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Give what Spark hands back to latestOffset."""
        return ReadMaxRows(self.options.max_messages)

    def latestOffset(
        self,
        start: dict[str, Any] | None = None,
        limit: ReadLimit | None = None,  # noqa: ARG002
    ) -> dict[str, Any]:
        """
        Acknowledge `start`, and plan the batch after it.

        Spark 4.0 and 4.1 do not name it. They ask for the tasks of the last batch in the offset
        log at every start, and call this only if that batch is in the commit log.
        """
        if start is None:
            warn_of_single_batches()
        end = self._planned if start is None else Offset.parse(start)
        return self.loop.latest(end).to_json()

    def reportLatestOffset(self) -> dict[str, Any]:
        """Report what the progress shows."""
        return self.loop.report()

    def prepareForTriggerAvailableNow(self) -> None:
        """Freeze the end of this run."""
        self.loop.freeze()

    def partitions(
        self,
        start: dict[str, Any],  # noqa: ARG002
        end: dict[str, Any],
    ) -> Sequence[TaskPartition]:
        """Make the tasks of a batch, from its offset alone: a replay has nothing else."""
        self._planned = Offset.parse(end)
        return [TaskPartition(task) for task in self.loop.tasks(self._planned)]

    def read(self, partition: TaskPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Receive on an executor, or hand out again what an earlier attempt received."""
        task, options = partition.task, self.options
        with Session(options, task.name, state=False, worker=True, reached=True) as session:
            rows = session.do(
                lambda connection: receive(
                    connection, task, timeout=options.query_timeout, origin=origin()
                )
            )
            queue = session.open().canonical(task.queue)
        schema = to_arrow_schema(self.columns)
        for chunk in record_batches(rows):
            batch = to_read_columns(chunk, schema, queue=queue)
            warn_of_poison(batch, queue)
            yield batch

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge `end`."""
        self.loop.acknowledge(Offset.parse(end))

    def stop(self) -> None:
        """End the driver's session; Spark does not always call this."""
        if self._loop is not None:
            self._loop.close()


@cache
def warn_of_single_batches() -> None:
    """Say, once in a process, what Trigger.AvailableNow does on Spark 4.0 and 4.1."""
    log.warning(
        "Spark %s runs one micro-batch for each Trigger.AvailableNow of this format: start the "
        "query again until it receives nothing, or use Spark 4.2",
        pyspark.__version__,
    )


def origin() -> Origin:
    """What Spark calls the micro-batch of this task."""
    context = TaskContext.get()
    if context is None:
        return Origin()
    batch = context.getLocalProperty("streaming.sql.batchId")
    return Origin(
        query_id=context.getLocalProperty("sql.streaming.queryId"),
        query_batch=None if batch is None else int(batch),
    )


# ---------------------------------------------------------------- write


@cache
def warn_of_legacy_columns() -> None:
    """Log, once in a process, that the option has no effect here."""
    log.warning(
        "legacyColumns=true has no effect. Queues of PostgreSQL have no columns CorrelationId and "
        "ReplyToAddress, because no endpoint of version 1 reads them. Both are in the headers"
    )


@cache
def warn_of_order(types: str) -> None:
    """Log, once in a process, that an endpoint may handle each message twice."""
    log.warning(
        "messageType=%s begins with what seems to be an interface. If a class that implements it "
        "follows, an endpoint handles each message twice: put the most derived type first",
        types,
    )


@cache
def look_ahead_once(options: SinkOptions) -> None:
    """Look ahead for a stream, once: Spark makes a new writer for each micro-batch."""
    look_ahead(options)


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote; `staged` is None with delivery=atLeastOnce."""

    staged: Staged | None
    messages: int


class Writing:
    """The common part of the writers of frames and streams."""

    def __init__(
        self,
        options: SinkOptions,
        schema: StructType,
        *,
        overwrite: bool,
        sender: str | None = None,
    ) -> None:
        """
        Check the frame before anything is computed.

        Args:
            options: of the write.
            schema: of the frame.
            overwrite: whether Spark was asked to replace what is there.
            sender: OriginatingEndpoint, where the options do not have it.

        Raises:
            BadFrame, BadOption.
        """
        if overwrite:
            complete = isinstance(self, StreamWriter)
            mode = ("outputMode", "complete") if complete else ("mode", "overwrite")
            raise BadOption(*mode, "append: sending adds to a queue")
        check_frame(
            column_types(schema),
            queue=options.address is not None,
            topics=options.topics is not None,
            as_received=options.as_received,
        )
        if options.legacy_columns and not options.fills_legacy_columns:
            warn_of_legacy_columns()
        if options.message_type is not None and begins_with_interface(options.message_type):
            warn_of_order(options.message_type)
        self.options = options
        self.sent_by = SentBy.here(options.originating_endpoint or sender)

    def send(self, batches: Iterator[pa.RecordBatch], sink: str, batch: int) -> Written:
        """Stage or send the rows of one task."""
        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        task = WriteTask(
            sink=sink, batch=batch, partition=partition, origin=origin(), sent_by=self.sent_by
        )
        return Written(*write(self.options, batches, task))


def staged_in(messages: list[WriterCommitMessage | None]) -> list[Staged]:
    """What the tasks staged, of what Spark carried to the driver."""
    return [
        each.staged for each in messages if isinstance(each, Written) and each.staged is not None
    ]


RATED = (
    "a stream, or a write with txnAppId and txnVersion: one write is one transaction, so there is "
    "nothing between its messages to wait"
)


class BatchWriter(Writing, DataSourceArrowWriter):
    """`df.write`: one batch. With txnAppId and txnVersion a repeated batch is sent once."""

    def __init__(
        self,
        options: SinkOptions,
        schema: StructType,
        *,
        overwrite: bool,
        sender: str | None = None,
    ) -> None:
        """Begin. Spark pickles this object to the executors and back to the driver."""
        super().__init__(options, schema, overwrite=overwrite, sender=sender)
        named = options.txn_app_id is not None
        if options.max_rate is not None and not named:
            raise BadOption("maxMessagesPerSecond", str(options.max_rate), RATED)
        self.sink = f"app:{options.txn_app_id}" if named else nameless_sink()
        self.batch = options.txn_version or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage or send one task's rows."""
        return self.send(iterator, self.sink, self.batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Send what was staged."""
        dispatch_staged(self.options, staged_in(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Drop what was staged. Some tasks may still run."""
        discard_staged(self.options, self.sink, self.batch, final=self.options.txn_app_id is None)


class StreamWriter(Writing, DataSourceStreamArrowWriter):
    """`df.writeStream`: the sink is the query's id, the batch is Spark's batch number."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage or send one task's rows of a micro-batch."""
        batch = origin()
        if batch.query_id is None or batch.query_batch is None:
            # without them two queries would share a row of the dispatch log and lose messages
            raise SqlQueueError(
                "Spark did not give this task its query and batch, so a stream cannot send once. "
                "Use foreachBatch with txnAppId and txnVersion"
            )
        return self.send(iterator, f"query:{batch.query_id}", batch.query_batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        """Send what was staged, unless the dispatch log has the batch."""
        dispatch_staged(self.options, staged_in(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        """Drop what was staged. The next batch drops what this process does not know of."""
        for sink, batch in {(each.sink, each.batch) for each in staged_in(messages)}:
            discard_staged(self.options, sink, batch, final=False)
