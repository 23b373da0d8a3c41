"""`spark.readStream`: receive."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from sqlq_spark import spark_api
from sqlq_spark.database.sessions import Session
from sqlq_spark.log import name_batch, set_up, warn_once
from sqlq_spark.receive.batch import INITIAL, Offset, Task, group_by_partition
from sqlq_spark.receive.driver import StreamDriver
from sqlq_spark.receive.heartbeat import INTERVAL
from sqlq_spark.receive.poison import warn_of_poison
from sqlq_spark.receive.task import receive
from sqlq_spark.wire.header_columns import to_read_columns
from sqlq_spark.wire.rows import record_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from sqlq_spark.options import SourceOptions
    from sqlq_spark.wire.header_columns import Headers

# Spark asks an idle query for its latest offset every 10 ms. So an answer is delayed by IDLE
# seconds. Measured: asking takes 25 ms of CPU each second then, and 45 ms without the delay. There
# is no delay if Spark asks later than POLLED seconds after the last answer, because then the query
# is busy with another source.
IDLE = 0.05
POLLED = 0.03
# The pauses of a stream are up to this share of peekDelay longer. The share is drawn once.
MOST_JITTER = 0.1


@dataclass
class TaskPartition(InputPartition):
    """Receive tasks that an executor runs one after the other."""

    tasks: list[Task]


class StreamReader(DataSourceStreamReader, spark_api.SupportsTriggerAvailableNow):
    """`spark.readStream`: receive/driver.py runs on the driver, receive/task.py on executors."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Check the columns. Spark makes several readers, and only one speaks to the database."""
        options.check_columns(spark_api.column_types(schema))
        self.options = options
        self.columns = schema
        self._driver: StreamDriver | None = None
        self._last_end = INITIAL  # the end of the batch whose tasks Spark asked for last
        self._answered = -inf  # the time of the last answer of latestOffset

    @property
    def driver(self) -> StreamDriver:
        """The driver's side of the stream. It is created when it is first needed."""
        if self._driver is None:
            from sqlq_spark.admin import doctor  # noqa: PLC0415 - a task needs none

            set_up()
            self._driver = StreamDriver(
                self.options,
                time.monotonic,
                doctor.at_start,
                jitter=random.uniform(0.0, MOST_JITTER),  # noqa: S311 - no secret
                heartbeat=INTERVAL,
            )
        return self._driver

    def initialOffset(self) -> dict[str, Any]:
        """Return a constant, because Spark calls this more than once."""
        return INITIAL.to_json()

    def getDefaultReadLimit(self) -> spark_api.ReadLimit:
        """Return the limit that Spark then passes to latestOffset."""
        return spark_api.ReadMaxRows(self.options.max_messages)

    def latestOffset(
        self,
        start: dict[str, Any] | None = None,
        limit: spark_api.ReadLimit | None = None,  # noqa: ARG002
    ) -> dict[str, Any]:
        """
        Acknowledge `start`, and plan the batch after it.

        Spark 4.0 and 4.1 do not pass `start`. Then the end of the batch whose tasks Spark asked for
        last is used. This batch is in the commit log: when a query starts, Spark asks for the tasks
        of the last batch in the offset log, and calls this method only when that batch is
        committed.
        """
        if start is None:
            warn_once(
                "Spark %s runs one micro-batch for each Trigger.AvailableNow of this format: start "
                "the query again until it receives nothing, or use Spark 4.2",
                pyspark.__version__,
            )
        end = self._last_end if start is None else Offset.parse(start)
        called = time.monotonic()
        following = self.driver.latest(end)
        if following == end and called < self._answered + POLLED:
            time.sleep(min(IDLE, self.driver.rest()))
        self._answered = time.monotonic()
        return following.to_json()

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return what Spark's progress shows as `latestOffset`."""
        return self.driver.report()

    def prepareForTriggerAvailableNow(self) -> None:
        """Record the end of what this run of AvailableNow receives."""
        self.driver.freeze()

    def partitions(
        self,
        start: dict[str, Any],  # noqa: ARG002
        end: dict[str, Any],
    ) -> Sequence[TaskPartition]:
        """Make the tasks of a batch from its offset alone: a replay has nothing else."""
        self._last_end = Offset.parse(end)
        tasks = self.driver.tasks(self._last_end)
        return [TaskPartition(group) for group in group_by_partition(self._last_end, tasks)]

    def read(self, partition: TaskPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """On an executor, receive, or return again what an earlier attempt has received."""
        schema = spark_api.to_arrow_schema(self.columns)
        for task in partition.tasks:
            # its own generator, so that the memory is freed before the next task receives
            yield from self._read_task(task, schema)

    def _read_task(self, task: Task, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        set_up()
        spark_batch = spark_api.current_batch()
        name_batch(spark_batch.name, spark_batch.number)
        work = partial(receive, task=task, spark_batch=spark_batch)
        with Session(self.options, task.name, keep_connection=True, was_reached=True) as session:
            result = session.run_with_retries(work)
            queue = session.open().canonical(task.queue)
        spark_api.spare_modules()
        batches = [*record_batches(result.rows)]
        parsed: Sequence[Headers | None] = result.headers or [None] * len(batches)
        for rows, headers in zip(batches, parsed, strict=True):
            yield read_columns(rows, headers, schema, queue)

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge `end`."""
        self.driver.acknowledge(Offset.parse(end))

    def stop(self) -> None:
        """Close the driver's session. Spark does not always call this method."""
        if self._driver is not None:
            self._driver.close()


def read_columns(
    rows: pa.RecordBatch, headers: Headers | None, schema: pa.Schema, queue: str
) -> pa.RecordBatch:
    """Return rows of a queue with the columns of a read. Log how many of them are poison."""
    batch = to_read_columns(rows, schema, queue=queue, headers=headers)
    warn_of_poison(batch, queue)
    return batch
