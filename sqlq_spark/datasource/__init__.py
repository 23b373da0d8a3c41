"""
The classes that Spark calls. They hand each call on to the readers and writers of this package.

Spark chooses the camelCase names and the names of parameters. Spark pickles readers, writers and
partitions, so they hold options and plans, and never a connection.

Spark starts one Python process to find the format, and another one to ask for its columns.
Importing pyarrow and pandas would make each of them start half a second later. So this module
imports only what these two processes need, and each method imports its own reader or writer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import (
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from sqlq_spark.errors import BadOption, OptionsOfTable, SqlQueueError
from sqlq_spark.options import SinkOptions, SourceOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import DataType

    from sqlq_spark.datasource.browse import BrowseReader
    from sqlq_spark.datasource.stream import StreamReader
    from sqlq_spark.datasource.write import BatchWriter, StreamWriter

APPEND = "append: sending adds to a queue"
# type names of SourceOptions.columns → Spark's types. DDL is not used, because a session can change
# what it means: with spark.sql.timestampType=TIMESTAMP_NTZ a `timestamp` has no time zone.
TYPES: dict[str, DataType] = {
    "string": StringType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
    "binary": BinaryType(),
    "bigint": LongType(),
}


class DefaultSource(DataSource):
    """The format `sqlqueue`."""

    cores: int | None = None  # cores of the cluster; None if `register` was not called
    application: str | None = None  # the application's name; None if it is not known

    @classmethod
    def name(cls) -> str:
        """Return the name for `.format(…)`."""
        return "sqlqueue"

    def schema(self) -> StructType:
        """Return the columns of a read."""
        refuse_table(self.options)
        columns = StructType()
        for name, kind in SourceOptions.parse(self.options).columns.items():
            columns.add(name, TYPES[kind])
        return columns

    def _source_options(self) -> SourceOptions:
        """Read the options of a read. What `register` knows is used where they say nothing."""
        options = SourceOptions.parse(self.options, application=self.application)
        return options if options.cores is not None else replace(options, cores=self.cores)

    def reader(self, schema: StructType) -> BrowseReader:
        """Return a reader that browses a queue and deletes nothing."""
        from sqlq_spark.datasource.browse import (  # noqa: PLC0415
            BrowseReader,
            FilteringBrowseReader,
        )
        from sqlq_spark.spark_api import pushes_filters  # noqa: PLC0415

        kind = FilteringBrowseReader if pushes_filters() else BrowseReader
        return kind(self._source_options(), schema)

    def streamReader(self, schema: StructType) -> StreamReader | RefusedStreamReader:
        """Return a reader that receives messages, or one that raises why it cannot."""
        from sqlq_spark.datasource.stream import StreamReader  # noqa: PLC0415

        try:
            return StreamReader(self._source_options(), schema)
        except SqlQueueError as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001
        """Return a writer that sends the rows of one frame."""
        from sqlq_spark.datasource.write import BatchWriter, look_ahead  # noqa: PLC0415

        options = SinkOptions.parse(self.options)
        if overwrite:
            raise BadOption(option="mode", found="overwrite", expected=APPEND)
        writer = BatchWriter(options, schema, self.sender())
        look_ahead(options)
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001
        """Return a writer that sends the micro-batches of a stream."""
        from sqlq_spark.datasource.write import StreamWriter, look_ahead_once  # noqa: PLC0415

        options = SinkOptions.parse(self.options)
        if overwrite:
            raise BadOption(option="outputMode", found="complete", expected=APPEND)
        writer = StreamWriter(options, schema, self.sender())
        look_ahead_once(options)
        return writer

    def sender(self) -> str | None:
        """Return the query's name, or the application's name, or None if neither is known."""
        return self.options.get("queryName") or self.application


class RefusedStreamReader(DataSourceStreamReader):
    """
    Stands for a reader that could not be made. It raises the error at Spark's first call.

    It is needed because Spark's runner (4.0 to 4.3) hides an error that `streamReader` raises. The
    runner then tries to stop the reader that it never got, and reports the UnboundLocalError of
    that attempt.
    """

    def __init__(self, error: SqlQueueError) -> None:
        self.error = error

    def initialOffset(self) -> dict[str, Any]:
        """Raise the error."""
        raise self.error

    def latestOffset(self, *_: object) -> dict[str, Any]:
        """Raise the error."""
        raise self.error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:  # noqa: ARG002
        """Raise the error."""
        raise self.error

    def read(self, partition: InputPartition) -> Iterator[tuple[Any]]:  # noqa: ARG002
        """Raise the error."""
        raise self.error


def refuse_table(options: Mapping[str, str]) -> None:
    """
    Refuse CREATE TABLE with OPTIONS or TBLPROPERTIES.

    When such a table is read or written later, Spark passes neither the options nor the properties
    to this class (Spark 4.0 to 4.3). The statement is recognised here because Spark asks for the
    columns of the new table, and passes the properties `provider`, `owner` and others beside the
    options.

    Raises:
        OptionsOfTable.
    """
    if {"provider", "owner"} <= options.keys():
        given = {key for key in options if not key.startswith("option.")}
        raise OptionsOfTable(options=", ".join(sorted(given - {"provider", "owner"})) or "none")


def sized(cores: int | None, application: str | None = None) -> type[DefaultSource]:
    """
    Return a class of the format that knows the cluster's cores and the application's name.

    Spark must pickle the class by value, so that these two values reach its processes. So the class
    is made here, and is no attribute of a module.
    """
    known = {"cores": cores, "application": application}
    return type(DefaultSource.__name__, (DefaultSource,), known)
