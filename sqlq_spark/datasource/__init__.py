"""
The classes that Spark calls.

camelCase names and parameter names are Spark's.
What Spark pickles between its processes (a reader, a writer, a partition) holds options and plans,
never a connection.

Spark starts a new Python process to find the format, and another to ask it for its columns. So this
module imports only what they need, and a method what its reader or writer needs: pyarrow and pandas
with it would take each process half a second more.
"""

from __future__ import annotations

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
# the words of SourceOptions.columns → types, because a session may change what they mean in a DDL
# text: with spark.sql.timestampType=TIMESTAMP_NTZ a `timestamp` has no time zone
TYPES: dict[str, DataType] = {
    "string": StringType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
    "binary": BinaryType(),
    "bigint": LongType(),
}


class DefaultSource(DataSource):
    """The format `sqlqueue`."""

    cores: int | None = None  # of the cluster, where `register` saw it
    application: str | None = None  # its name, where `register` saw it

    @classmethod
    def name(cls) -> str:
        """The name for `.format(…)`."""
        return "sqlqueue"

    def schema(self) -> StructType:
        """The columns of a read."""
        refuse_table(self.options)
        columns = StructType()
        for name, kind in SourceOptions.parse(self.options).columns.items():
            columns.add(name, TYPES[kind])
        return columns

    def reader(self, schema: StructType) -> BrowseReader:
        """Browse: deletes nothing."""
        from sqlq_spark.datasource.browse import (  # noqa: PLC0415
            BrowseReader,
            FilteringBrowseReader,
        )
        from sqlq_spark.spark_api import pushes_filters  # noqa: PLC0415

        kind = FilteringBrowseReader if pushes_filters() else BrowseReader
        return kind(SourceOptions.parse(self.options, cores=self.cores), schema)

    def streamReader(self, schema: StructType) -> StreamReader | RefusedStreamReader:
        """Receive."""
        from sqlq_spark.datasource.stream import StreamReader  # noqa: PLC0415

        try:
            return StreamReader(SourceOptions.parse(self.options, cores=self.cores), schema)
        except SqlQueueError as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001
        """Send a frame."""
        from sqlq_spark.datasource.write import BatchWriter, look_ahead  # noqa: PLC0415

        options = SinkOptions.parse(self.options)
        if overwrite:
            raise BadOption(option="mode", found="overwrite", expected=APPEND)
        made = BatchWriter(options, schema, self.sender())
        look_ahead(options)
        return made

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001
        """Send the micro-batches of a stream."""
        from sqlq_spark.datasource.write import StreamWriter, look_ahead_once  # noqa: PLC0415

        options = SinkOptions.parse(self.options)
        if overwrite:
            raise BadOption(option="outputMode", found="complete", expected=APPEND)
        made = StreamWriter(options, schema, self.sender())
        look_ahead_once(options)
        return made

    def sender(self) -> str | None:
        """Return the name of the query, or else of the application, as far as it is known."""
        return self.options.get("queryName") or self.application


class RefusedStreamReader(DataSourceStreamReader):
    """
    Stands for a reader that cannot be made, and raises why at Spark's first call.

    Spark's runner hides an error of `streamReader`: it stops the reader that it did not get, and
    reports the UnboundLocalError of that (4.0 to 4.3).
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
    Refuse CREATE TABLE with OPTIONS or TBLPROPERTIES, for which Spark asks for the columns.

    Spark adds the table's properties to the options then, `provider` and `owner` among them. It
    hands neither to what reads or writes the table later (Spark 4.0 to 4.3).

    Raises:
        OptionsOfTable.
    """
    if {"provider", "owner"} <= options.keys():
        given = {key for key in options if not key.startswith("option.")}
        raise OptionsOfTable(options=", ".join(sorted(given - {"provider", "owner"})) or "none")


def sized(cores: int | None, application: str | None = None) -> type[DefaultSource]:
    """
    Give the format, knowing the cluster's cores and the application's name.

    Spark pickles a class that no module holds by value, and with it these values.
    """
    known = {"cores": cores, "application": application}
    return type(DefaultSource.__name__, (DefaultSource,), known)
