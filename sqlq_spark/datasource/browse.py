"""`spark.read`: browse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from sqlq_spark.database.sessions import Session
from sqlq_spark.receive import browse
from sqlq_spark.spark_api import column_types, spare_modules, to_arrow_schema
from sqlq_spark.wire.header_columns import to_read_columns
from sqlq_spark.wire.rows import record_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from sqlq_spark.options import SourceOptions
    from sqlq_spark.wire.address import QueueAddress


# If a read asks for none of these columns, headers and bodies are not read from the database.
HEAVY_COLUMNS = {"headers", "body", "correlationId", "replyToAddress", "corruptHeaders"}


@dataclass
class RangePartition(InputPartition):
    """A range of seqs of a queue to browse."""

    queue: QueueAddress
    first: int
    stop: int


class BrowseReader(DataSourceReader):
    """`spark.read`: read what waits now, in parallel. The rows of a partition are sorted by seq."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Check the columns. `schema` has those that the user asked for: by default, all."""
        options.check_columns(column_types(schema))
        self.options = options
        self.columns = schema
        self.wanted = browse.ALL

    def partitions(self) -> Sequence[RangePartition]:
        """Split what waits now into even ranges of seqs. Messages that come later are not read."""
        with Session(self.options, "browse", keep_connection=True) as session:
            ranges = session.run_with_retries(
                lambda connection: browse.split_queues(
                    connection,
                    self.options.addresses,
                    count=self.options.concurrency,
                    wanted=self.wanted,
                )
            )
        # Without a partition here, Spark would add one of its own class, which `read` cannot
        # handle.
        nothing = [(self.options.address, 0, 0)]
        return [RangePartition(*queue_range) for queue_range in ranges or nothing]

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Page through a range. This stops as soon as Spark stops reading."""
        schema = to_arrow_schema(self.columns)
        options = self.options
        queue = partition.queue
        with Session(options, f"browse {queue.table}", keep_connection=True) as session:
            pages = browse.read_pages(
                session.open(),
                queue,
                partition.first,
                partition.stop,
                narrow=not HEAVY_COLUMNS & set(schema.names),
                largest=options.max_message_bytes,
            )
            for page in pages:
                spare_modules()
                for chunk in record_batches(page):
                    yield to_read_columns(chunk, schema, queue=session.open().canonical(queue))


class FilteringBrowseReader(BrowseReader):
    """
    The BrowseReader for a Spark that pushes filters down: see `pushes_filters`.

    Other Sparks refuse a reader with `pushFilters`.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Narrow what is read by the filters. Yield the filters that Spark must still apply."""
        for condition in filters:
            self.wanted, is_done = self.wanted.narrow(condition)
            if not is_done:
                yield condition
