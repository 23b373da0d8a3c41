"""
SQL Server for the bench: the same tables, the transport's loop, and the limit of such a server.

By whichever of our drivers is there, but in texts of its own. Spark's JDBC source needs Microsoft's
driver, which Spark fetches from Maven Central.
"""

from __future__ import annotations

import json
import pickle
import secrets
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa
from conformance.transport_sqlserver import SQLServer as Transport

from sqlq_spark.dialects import sqlserver_drivers
from sqlq_spark.dialects.sqlserver_url import Target

from .database import SECONDS, edges
from .messages import orders

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor

JAR = "com.microsoft.sqlserver:mssql-jdbc:12.10.1.jre11"
_PORTION = 2_000  # messages made and sent at a time
_STEP = 2_000  # rows of one DELETE: from 5,000 locks on the whole table may be locked

# Recoverable has a default, for JDBC does not name it
_QUEUE = """
CREATE TABLE {queue} (
    Id uniqueidentifier NOT NULL, CorrelationId varchar(255), ReplyToAddress varchar(255),
    Recoverable bit NOT NULL DEFAULT 1, Expires datetime, Headers nvarchar(max) NOT NULL,
    Body varbinary(max), RowVersion bigint IDENTITY(1,1) NOT NULL);
CREATE NONCLUSTERED INDEX Index_RowVersion ON {queue} (RowVersion);
CREATE NONCLUSTERED INDEX Index_Expires ON {queue} (Expires)
    INCLUDE (Id, RowVersion) WHERE Expires IS NOT NULL;
"""
_STORE = """
CREATE TABLE store (
    number int NOT NULL PRIMARY KEY, id uniqueidentifier NOT NULL,
    headers nvarchar(max) NOT NULL, body varbinary(max) NOT NULL)
"""
_KEEP = """
INSERT INTO store (number, id, headers, body)
SELECT number, id, headers, CONVERT(varbinary(max), body, 2)
  FROM OPENJSON(CAST(? AS nvarchar(max))) WITH (
       number int '$[0]', id uniqueidentifier '$[1]', headers nvarchar(max) '$[2]',
       body varchar(max) '$[3]') AS rows
"""
_FILL = """
INSERT INTO {queue} (Id, Recoverable, Headers, Body)
SELECT id, 1, headers, body FROM store WHERE number < {messages} ORDER BY number
"""
_SEND_ONE = """
INSERT INTO {queue} (Id, Recoverable, Headers, Body)
SELECT TOP (1) NEWID(), 1, headers, body FROM store
"""
_RECEIVE = f"SET NOCOUNT ON;{Transport.texts['receive'].format(queue='orders')}"
_RECEIPTS = """
IF OBJECT_ID(N'limit_receipt', N'U') IS NULL
    CREATE TABLE limit_receipt (
        batch bigint IDENTITY(1,1) NOT NULL PRIMARY KEY, payload varbinary(max) NOT NULL)
"""
_TAKE = """
SET NOCOUNT ON;
DELETE FROM orders WITH (ROWLOCK)
OUTPUT CAST(deleted.Id AS binary(16)),
       CASE WHEN deleted.Expires <= GETUTCDATE() THEN 1 ELSE 0 END,
       deleted.Headers, deleted.Body, deleted.RowVersion
 WHERE RowVersion >= {first} AND RowVersion < {stop}
"""
_SAVE = "INSERT INTO limit_receipt (payload) VALUES (CAST(? AS varbinary(max)))"
_SETTINGS = """
SELECT 'version', CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(100))
UNION ALL SELECT 'edition', CAST(SERVERPROPERTY('Edition') AS nvarchar(100))
UNION ALL SELECT name, CAST(value AS nvarchar(100)) FROM (
    SELECT 'read_committed_snapshot' AS name, CAST(is_read_committed_snapshot_on AS int) AS value
      FROM sys.databases WHERE database_id = DB_ID()
     UNION ALL
    SELECT 'delayed_durability', CAST(delayed_durability AS int)
      FROM sys.databases WHERE database_id = DB_ID()) AS own
"""


def connect(url: str) -> Any:
    """Open a session that commits each statement."""
    return sqlserver_drivers.connect(Target.parse(url), "sqlq bench", 30)[1]


def run(connection: Any, text: str, *values: object) -> list[tuple[Any, ...]]:
    """Execute a text; the rows of its first result that has any."""
    found: list[tuple[Any, ...]] = []
    with closing(connection.cursor()) as cursor:
        cursor.execute(text, values) if values else cursor.execute(text)
        more = True
        while more:
            if cursor.description and not found:
                found = [tuple(row) for row in cursor.fetchall()]
            more = cursor.nextset()
    return found


def at(server: str, database: str) -> str:
    """The url of another database of a server."""
    return urlsplit(server)._replace(path=f"/{database}").geturl()


@contextmanager
def opened(server: str) -> Iterator[SQLServer]:
    """Make a database on the server with this url, open it, and drop it afterwards."""
    name = f"sqlq_bench_{secrets.token_hex(4)}"
    with closing(connect(at(server, "master"))) as desk:
        run(desk, f"CREATE DATABASE {name}")
        try:
            with closing(connect(at(server, name))) as connection:
                yield SQLServer(at(server, name), connection)
        finally:
            run(desk, f"ALTER DATABASE {name} SET SINGLE_USER WITH ROLLBACK IMMEDIATE")
            run(desk, f"DROP DATABASE {name}")


@dataclass(frozen=True)
class SQLServer:
    """See Database."""

    url: str
    connection: Any
    jar: str = JAR
    seq: str = "RowVersion"
    rewriting: str = ";useBulkCopyForBatchInsert=true"

    def jdbc(self) -> dict[str, str]:
        """As Database."""
        target = Target.parse(self.url)
        words = {
            "databaseName": target.database,
            "encrypt": {"yes": "true", "no": "false"}.get(target.encrypt, target.encrypt),
            "trustServerCertificate": str(target.trust_server_certificate == "yes").lower(),
        }
        settings = "".join(f";{name}={{{value}}}" for name, value in words.items())
        return {
            "url": f"jdbc:sqlserver://{target.host}:{target.port}{settings}",
            "user": target.user,
            "password": target.password,
            "driver": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
        }

    def prepare(self, queues: Sequence[str], messages: int) -> None:
        """As Database."""
        for queue in queues:
            run(self.connection, _QUEUE.format(queue=queue))
        run(self.connection, _STORE)
        for first in range(0, messages, _PORTION):
            columns = orders(first, min(first + _PORTION, messages)).to_pydict().values()
            rows = [
                (number, str(row), headers, bytes(body).hex())
                for number, (row, headers, body) in enumerate(zip(*columns, strict=True), first)
            ]
            run(self.connection, _KEEP, json.dumps(rows))

    def fill(self, queue: str, messages: int) -> None:
        """As Database; the checkpoint comes before the sends, as for PostgreSQL."""
        run(self.connection, f"TRUNCATE TABLE {queue}")
        run(self.connection, "CHECKPOINT")
        run(self.connection, _FILL.format(queue=queue, messages=messages))
        self.settle(queue)

    def settle(self, queue: str) -> None:
        """As Database."""
        run(self.connection, f"UPDATE STATISTICS {queue}")

    def send_one(self, queue: str) -> None:
        """As Database."""
        run(self.connection, _SEND_ONE.format(queue=queue))

    def count(self, queue: str) -> int:
        """As Database."""
        return int(run(self.connection, f"SELECT COUNT_BIG(*) FROM {queue}")[0][0])

    def bounds(self, queue: str) -> tuple[int, int]:
        """As Database."""
        text = f"SELECT MIN(RowVersion), MAX(RowVersion) + 1 FROM {queue}"
        first, stop = run(self.connection, text)[0]
        return int(first), int(stop)

    def settings(self) -> dict[str, str]:
        """As Database."""
        return {str(name): str(value) for name, value in run(self.connection, _SETTINGS)}

    def loop(self) -> float:
        """As Database; each statement commits itself, which spares it BEGIN and COMMIT."""
        with closing(connect(self.url)) as connection:
            taken, start = 0, time.perf_counter()
            while run(connection, _RECEIVE):
                taken += 1
                if time.perf_counter() - start > SECONDS:
                    break
            return taken / (time.perf_counter() - start)

    def limit(self, pool: Executor, cores: int) -> float:
        """As Database."""
        run(self.connection, _RECEIPTS)
        bounds = self.bounds("orders")
        ends = edges(bounds, cores)
        start = time.perf_counter()
        taken = sum(pool.map(_take, [self.url] * cores, ends, ends[1:]))
        elapsed = time.perf_counter() - start
        run(self.connection, "TRUNCATE TABLE limit_receipt")
        if taken != bounds[1] - bounds[0]:
            message = f"the limit line took {taken} messages of {bounds[1] - bounds[0]}"
            raise RuntimeError(message)
        return taken / elapsed


@cache  # so that it stays open from round to round
def _connect(url: str) -> Any:
    return connect(url)


def _take(url: str, first: int, stop: int) -> int:
    """Run in a process of the pool: one transaction with its receipt."""
    connection = _connect(url)
    rows: list[tuple[Any, ...]] = []
    run(connection, "BEGIN TRANSACTION")
    for low in range(first, stop, _STEP):
        rows += run(connection, _TAKE.format(first=low, stop=min(low + _STEP, stop)))
    payload = pa.compress(pickle.dumps(rows), codec="zstd", asbytes=True)
    run(connection, _SAVE, payload)
    run(connection, "COMMIT TRANSACTION")
    return len(rows)
