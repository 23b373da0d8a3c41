"""`spark.readStream`: receive."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from sqlq_spark import spark_api
from sqlq_spark.database.sessions import Session
from sqlq_spark.log import warn_once
from sqlq_spark.receive.driver import StreamDriver
from sqlq_spark.receive.offset import INITIAL, Offset, by_partition
from sqlq_spark.receive.poison import warn_of_poison
from sqlq_spark.receive.task import Task, receive
from sqlq_spark.wire.header_columns import to_read_columns
from sqlq_spark.wire.rows import record_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from sqlq_spark.options import SourceOptions

# Spark asks an idle query for its latest offset every 10 ms. Measured: 45 ms of CPU a second, and
# 25 where each answer takes IDLE. A query that is busy with another source asks later than POLLED.
IDLE = 0.05  # seconds
POLLED = 0.03


@dataclass
class TaskPartition(InputPartition):
    """Receive tasks on their way to an executor, which runs them one after the other."""

    tasks: list[Task]


class StreamReader(DataSourceStreamReader, spark_api.SupportsTriggerAvailableNow):
    """`spark.readStream`: receives, by receive/driver.py on the driver and receive/task.py."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Start; Spark builds several of these, only one of them speaks to the database."""
        options.check_columns(spark_api.column_types(schema))
        self.options = options
        self.columns = schema
        self._driver: StreamDriver | None = None
        self._planned = INITIAL  # end of the last batch whose tasks Spark asked for
        self._answered = -1e9  # when latestOffset returned last

    @property
    def driver(self) -> StreamDriver:
        """The driver's side, made when it is first needed."""
        if self._driver is None:
            from sqlq_spark.admin import checks  # noqa: PLC0415 - a task needs none

            self._driver = StreamDriver(self.options, time.monotonic, checks.at_start)
        return self._driver

    def initialOffset(self) -> dict[str, Any]:
        """Give a constant, as Spark asks for it more than once."""
        return INITIAL.to_json()

    def getDefaultReadLimit(self) -> spark_api.ReadLimit:
        """Give what Spark hands back to latestOffset."""
        return spark_api.ReadMaxRows(self.options.max_messages)

    def latestOffset(
        self,
        start: dict[str, Any] | None = None,
        limit: spark_api.ReadLimit | None = None,  # noqa: ARG002
    ) -> dict[str, Any]:
        """
        Acknowledge `start`, and plan the batch after it.

        Spark 4.0 and 4.1 do not name it. They ask for the tasks of the last batch in the offset
        log at every start, and call this only if that batch is in the commit log.
        """
        if start is None:
            warn_once(
                "Spark %s runs one micro-batch for each Trigger.AvailableNow of this format: start "
                "the query again until it receives nothing, or use Spark 4.2",
                pyspark.__version__,
            )
        end = self._planned if start is None else Offset.parse(start)
        called, following = time.monotonic(), self.driver.latest(end)
        if following == end and called < self._answered + POLLED:
            time.sleep(min(IDLE, self.driver.rest()))
        self._answered = time.monotonic()
        return following.to_json()

    def reportLatestOffset(self) -> dict[str, Any]:
        """Report what the progress shows."""
        return self.driver.report()

    def prepareForTriggerAvailableNow(self) -> None:
        """Freeze the end of this run."""
        self.driver.freeze()

    def partitions(
        self,
        start: dict[str, Any],  # noqa: ARG002
        end: dict[str, Any],
    ) -> Sequence[TaskPartition]:
        """Make the tasks of a batch, from its offset alone: a replay has nothing else."""
        self._planned = Offset.parse(end)
        tasks = self.driver.tasks(self._planned)
        return [TaskPartition(each) for each in by_partition(self._planned, tasks)]

    def read(self, partition: TaskPartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Receive on an executor, or hand out again what an earlier attempt received."""
        schema = spark_api.to_arrow_schema(self.columns)
        for task in partition.tasks:
            work = partial(receive, task=task, spark_batch=spark_api.current_batch())
            with Session(
                self.options, task.name, keep_connection=True, was_reached=True
            ) as session:
                rows = session.run_with_retries(work)
                queue = session.open().canonical(task.queue)
            yield from (read_chunk(chunk, schema, queue) for chunk in record_batches(rows))
            del rows  # before the next task takes its own

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge `end`."""
        self.driver.acknowledge(Offset.parse(end))

    def stop(self) -> None:
        """End the driver's session; Spark does not always call this."""
        if self._driver is not None:
            self._driver.close()


def read_chunk(chunk: pa.RecordBatch, schema: pa.Schema, queue: str) -> pa.RecordBatch:
    """Give rows of a queue in the columns of a read; log poison that is among them."""
    batch = to_read_columns(chunk, schema, queue=queue)
    warn_of_poison(batch, queue)
    return batch
