"""A test's queue: an endpoint fills and counts it, and Spark reads and writes it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from sqlq_spark import database
from sqlq_spark.database import schema
from sqlq_spark.options.names import names_of
from sqlq_spark.wire.address import QueueAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime
    from pathlib import Path

    from conformance.dba import DBA
    from conformance.transport import DotNet
    from conftest import Place
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

TIMEOUT = 60.0  # seconds, for every statement of these tests


@dataclass(frozen=True)
class Queue:
    """One queue table in a test's place."""

    place: Place  # or an endpoint there, which has no `sql`
    table: str

    @property
    def address(self) -> QueueAddress:
        """The address as a value of the package."""
        return QueueAddress(self.table, self.place.schema)

    @property
    def name(self) -> str:
        """The address in options. On PostgreSQL it is the name in SQL too."""
        return names_of(self.place.url).print_address(self.address)

    @property
    def whole_name(self) -> str:
        """The address in reads, messages and errors. On SQL Server it has the database."""
        found: list[str] = []
        self.connected(lambda connection: found.append(connection.canonical(self.address)))
        return found[0]

    @property
    def dotnet(self) -> DotNet:
        """An endpoint that uses the queue."""
        here: Any = self.place
        found: DotNet = getattr(here, "dotnet", here)
        return found

    @property
    def dba(self) -> DBA:
        """A login with all rights."""
        return self.dotnet.dba

    def beside(self, table: str) -> Self:
        """Name a queue of the same place, without creating it."""
        return replace(self, table=table)

    def another(self, table: str) -> Self:
        """Create another queue in the same place."""
        made = self.beside(table)
        made.create()
        return made

    @property
    def database_options(self) -> dict[str, str]:
        """Options of a read or a write that name no queue."""
        return {"url": self.place.url, "stateSchema": self.place.state}

    @property
    def options(self) -> dict[str, str]:
        """Options that a read and a write of this queue need."""
        return self.database_options | {"queue": self.name}

    def connected(self, work: Callable[[database.Connection], object]) -> None:
        """Call a function with a connection of the package."""
        url, state = self.place.url, self.place.state
        dialect = database.dialect_of(url)
        connection = dialect.connect(url, application="test", timeout=TIMEOUT, state=state)
        with contextlib.closing(connection):
            work(connection)

    def install(self) -> None:
        """Create the state tables."""
        self.connected(schema.install)

    def create(self) -> None:
        """Create the queue's table."""
        self.connected(lambda c: schema.create_queue(c, self.address))

    def prepared(self) -> Self:
        """Create the state tables and the queue; return the queue."""
        self.install()
        self.create()
        return self

    def fill(self, first: int, stop: int) -> None:
        """Send messages `m-<first>` … `m-<stop - 1>`, their numbers in the order of seq."""
        self.dba.fill(self.address, first, stop)

    def put(
        self, headers: str, body: bytes | None = b"{}", expires: datetime | None = None
    ) -> None:
        """Insert one row as it is given. `expires` is in UTC."""
        row = self.dotnet.send(self.address, headers, body)
        if expires is not None:
            self.dba.set_expires(self.address, row, expires)

    def rows(self) -> list[tuple[dict[str, str | None], bytes]]:
        """Headers and body of what waits, by seq."""
        stored = self.dotnet.rows(self.address)
        return [(json.loads(row.headers or "{}"), row.body or b"") for row in stored]

    def ids(self) -> list[str]:
        """Message ids of what waits, by seq."""
        return [str(headers["NServiceBus.MessageId"]) for headers, _ in self.rows()]

    def count(self) -> int:
        """How many wait."""
        return self.dba.count(self.address)

    def state(self, table: str) -> int:
        """How many rows one of the state tables has."""
        return self.dba.count(QueueAddress(table, self.place.state))


@dataclass(frozen=True)
class SparkQueue(Queue):
    """A queue that a Spark session reads and writes. `folder` is the test's own."""

    spark: SparkSession
    folder: Path

    def reader(self, **options: object) -> DataFrameReader:
        """Give a reader of a browse."""
        return self.spark.read.format("sqlqueue").options(**self.options | texts(options))

    def stream(self, **options: object) -> DataStreamReader:
        """Give a reader of a stream."""
        return self.spark.readStream.format("sqlqueue").options(**self.options | texts(options))

    def send(self, frame: DataFrame, **options: object) -> None:
        """Write a frame into the queue."""
        self.send_by_column(frame, queue=self.name, **options)

    def send_by_column(self, frame: DataFrame, **options: object) -> None:
        """Write a frame whose column `queue` decides."""
        whole = self.database_options | texts(options)
        frame.write.format("sqlqueue").mode("append").options(**whole).save()

    @property
    def checkpoint(self) -> Path:
        """The checkpoint of the streams of `finish`."""
        return self.folder / "checkpoint"

    def finish(self, writer: DataStreamWriter) -> StreamingQuery:
        """Run a stream until it has received what waits now."""
        return finish(writer, self.checkpoint)

    def batches(self) -> list[int]:
        """The numbers of the micro-batches that have begun, in the checkpoint of `finish`."""
        return sorted(int(file.name) for file in (self.checkpoint / "offsets").glob("[0-9]*"))

    def into_table(self, frame: DataFrame) -> StreamingQuery:
        """Run a stream into the table of the folder."""
        return self.finish(
            frame.writeStream.format("parquet").option("path", f"{self.folder}/table")
        )

    def landed(self) -> DataFrame:
        """The rows of that table, by seq."""
        return self.spark.read.parquet(f"{self.folder}/table").orderBy("seq")


def texts(options: dict[str, object]) -> dict[str, str]:
    """Option values as Spark takes them."""
    return {name: str(value) for name, value in options.items()}


def finish(writer: DataStreamWriter, checkpoint: Path) -> StreamingQuery:
    """Run a stream until it has received what waits now. Raise what it raised."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(int(TIMEOUT) * 4)
    finally:
        query.stop()
    return query


def forget(checkpoint: Path, folder: str, batch: int) -> None:
    """Remove an entry of a checkpoint, with the checksum beside it."""
    (checkpoint / folder / str(batch)).unlink()
    (checkpoint / folder / f".{batch}.crc").unlink(missing_ok=True)


def message_ids(rows: DataFrame | Iterable[Any]) -> list[str]:
    """The message id of each row of a read."""
    found = rows.collect() if hasattr(rows, "collect") else rows
    return [row["headers"]["NServiceBus.MessageId"] for row in found]


def numbered(first: int, stop: int) -> list[str]:
    """The message ids that `Queue.fill` gives."""
    return [f"m-{number}" for number in range(first, stop)]
