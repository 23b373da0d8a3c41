"""`spark.read`: browse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from sqlq_spark.database.sessions import Session
from sqlq_spark.receive import browse
from sqlq_spark.spark_api import column_types, to_arrow_schema
from sqlq_spark.wire.header_columns import to_read_columns
from sqlq_spark.wire.rows import record_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from sqlq_spark.options import SourceOptions
    from sqlq_spark.wire.address import QueueAddress


# a browse without any of these reads no headers and bodies
HEAVY = {"headers", "body", "correlationId", "replyToAddress", "corruptHeaders"}


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
        options.check_columns(column_types(schema))
        self.options = options
        self.columns = schema
        self.wanted = browse.ALL

    def partitions(self) -> Sequence[RangePartition]:
        """Even ranges of the seqs there are now; what comes later is not read."""
        with Session(self.options, "browse", keep_connection=True) as session:
            parts = session.run_with_retries(
                lambda connection: browse.parts(
                    connection,
                    self.options.addresses,
                    parts=self.options.concurrency,
                    wanted=self.wanted,
                )
            )
        # If we return no partition, Spark adds one of its own class, which read() cannot handle.
        return [RangePartition(*part) for part in parts or [(self.options.address, 0, 0)]]

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Page through a range; stops as soon as Spark does."""
        schema = to_arrow_schema(self.columns)
        options, queue = self.options, partition.queue
        with Session(options, f"browse {queue.table}", keep_connection=True) as session:
            pages = browse.pages(
                session.open(),
                queue,
                partition.first,
                partition.stop,
                narrow=not HEAVY & set(schema.names),
                largest=options.max_message_bytes,
            )
            for page in pages:
                for chunk in record_batches(page):
                    yield to_read_columns(chunk, schema, queue=session.open().canonical(queue))


class FilteringBrowseReader(BrowseReader):
    """A browse in a process where Spark pushes filters; anywhere else Spark refuses this class."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Take over the filters that narrow what is read, and give back those left to Spark."""
        for each in filters:
            self.wanted, done = self.wanted.narrow(each)
            if not done:
                yield each
