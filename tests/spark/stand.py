"""A queue of a test: filled and counted by psycopg, read and written by Spark."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from sqlq_spark import dialects, install
from sqlq_spark.address import QueueAddress, print_postgresql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from conftest import Place
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

TIMEOUT = 30.0  # seconds, for every wait of these tests


@dataclass(frozen=True)
class Queue:
    """One queue table in a test's place."""

    place: Place
    table: str

    @property
    def address(self) -> QueueAddress:
        """The queue, as the package has it."""
        return QueueAddress(self.table, self.place.schema)

    @property
    def name(self) -> str:
        """The canonical address, which is what SQL needs too."""
        return print_postgresql(self.address)

    @property
    def options(self) -> dict[str, str]:
        """What a reader and a writer must be given."""
        return {"url": self.place.url, "stateSchema": self.place.state, "queue": self.name}

    # ------------------------------------------------------------ by psycopg

    def _connected(self, work: Callable[[dialects.Connection], None]) -> None:
        url, state = self.place.url, self.place.state
        connection = dialects.of(url).connect(url, application="test", timeout=TIMEOUT, state=state)
        with contextlib.closing(connection):
            work(connection)

    def install(self) -> None:
        """Make the state tables."""
        self._connected(lambda c: install.install(c, state=self.place.state, timeout=TIMEOUT))

    def create(self) -> None:
        """Make the queue's table."""
        self._connected(lambda c: install.create_queue(c, self.address, timeout=TIMEOUT))

    def fill(self, first: int, stop: int) -> None:
        """Send messages `m-<first>` … `m-<stop - 1>`, their numbers in the order of seq."""
        self.place.sql(
            f"""INSERT INTO {self.name} (id, headers, body)
                SELECT gen_random_uuid(),
                       '{{"NServiceBus.MessageId":"m-' || n || '",'
                       || '"NServiceBus.MessageIntent":"Send",'
                       || '"NServiceBus.ContentType":"application\\/json",'
                       || '"NServiceBus.EnclosedMessageTypes":"Shop.PlaceOrder",'
                       || '"NServiceBus.TimeSent":"2026-06-30 17:05:09:123456 Z"}}',
                       convert_to('{{"number":' || n || '}}', 'UTF8')
                  FROM generate_series(%s::int, %s::int - 1) AS n
                 ORDER BY n""",
            first,
            stop,
        )

    def put(self, headers: str, body: bytes | None = b"{}", expires: str | None = None) -> None:
        """Insert one row as it is given; `expires` is SQL."""
        self.place.sql(
            f"INSERT INTO {self.name} (id, headers, body, expires) "
            f"VALUES (gen_random_uuid(), %s, %s, {expires or 'NULL'})",
            headers,
            body,
        )

    def rows(self) -> list[tuple[dict[str, str | None], bytes]]:
        """Headers and body of what waits, by seq."""
        found = self.place.sql(f"SELECT headers, body FROM {self.name} ORDER BY seq")
        return [(json.loads(headers or "{}"), body) for headers, body in found]

    def ids(self) -> list[str]:
        """Message ids of what waits, by seq."""
        return [str(headers["NServiceBus.MessageId"]) for headers, _ in self.rows()]

    def count(self) -> int:
        """How many wait."""
        return int(self.place.sql(f"SELECT count(*) FROM {self.name}")[0][0])

    def state(self, table: str) -> int:
        """How many rows one of the state tables has."""
        return int(self.place.sql(f'SELECT count(*) FROM "{self.place.state}".{table}')[0][0])

    def received(self, batch: int) -> int:
        """How many messages lie in the receipts of a reader's batch; its first is 1."""
        text = f'SELECT sum(messages)::int FROM "{self.place.state}".receipt WHERE batch = %s'
        return int(self.place.sql(text, batch)[0][0] or 0)

    @contextlib.contextmanager
    def held(self, where: str) -> Iterator[None]:
        """Hold rows locked, as a slow consumer does."""
        with psycopg.connect(self.place.url) as other:
            text = f"SELECT FROM {self.name} WHERE {where} FOR UPDATE"
            other.execute(text.encode())
            yield
            other.rollback()

    # ------------------------------------------------------------ by Spark

    def reader(self, spark: SparkSession, **options: object) -> DataFrameReader:
        """Browse."""
        return spark.read.format("sqlqueue").options(**self.options | texts(options))

    def stream(self, spark: SparkSession, **options: object) -> DataStreamReader:
        """Receive."""
        return spark.readStream.format("sqlqueue").options(**self.options | texts(options))

    def send(self, frame: DataFrame, **options: object) -> None:
        """Write a frame."""
        whole = self.options | texts(options)
        frame.write.format("sqlqueue").mode("append").options(**whole).save()


def texts(options: dict[str, object]) -> dict[str, str]:
    """Option values as Spark takes them."""
    return {name: str(value) for name, value in options.items()}


def finish(writer: DataStreamWriter, checkpoint: Path) -> StreamingQuery:
    """Run a stream until what waits now is through; raises what it raised."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(int(TIMEOUT) * 4)
    finally:
        query.stop()
    return query


def until(true: Callable[[], object], seconds: float = TIMEOUT) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def message_ids(rows: Iterable[Any]) -> list[str]:
    """The message id of each row of a read."""
    return [row["headers"]["NServiceBus.MessageId"] for row in rows]


def numbered(first: int, stop: int) -> list[str]:
    """The message ids that `Queue.fill` gives."""
    return [f"m-{number}" for number in range(first, stop)]
