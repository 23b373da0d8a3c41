"""
SQL Server for the bench: the same tables, the transport's loop, and the limit of such a server.

By whichever of our drivers is there, but in texts of its own. Spark's JDBC source needs Microsoft's
driver, which Spark fetches from Maven Central.
"""

from __future__ import annotations

import json
import pickle
import secrets
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

import pyarrow as pa
from conformance.transport_sqlserver import Session
from conformance.transport_sqlserver import SQLServer as Transport

from sqlq_spark.database.sqlserver import drivers
from sqlq_spark.database.sqlserver.url import Target

from .database import Database
from .messages import orders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
# bodies that hardly compress: 1 kB of random hexadecimal digits
_HARD = """
SELECT number, id, headers,
       CONVERT(varbinary(max), CONVERT(varchar(1000), CRYPT_GEN_RANDOM(500), 2)) AS body
  INTO hard
  FROM store
"""
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


def connect(url: str) -> Session:
    """Open a session that commits each statement."""
    return Session(drivers.connect(Target.parse(url), "sqlq bench", 30)[1])


def at(server: str, database: str) -> str:
    """The url of another database of a server."""
    return urlsplit(server)._replace(path=f"/{database}").geturl()


@contextmanager
def opened(server: str) -> Iterator[SQLServer]:
    """Make a database on the server with this url, open it, and drop it afterwards."""
    name = f"sqlq_bench_{secrets.token_hex(4)}"
    with closing(connect(at(server, "master"))) as desk:
        desk.run(f"CREATE DATABASE {name}")
        try:
            with closing(connect(at(server, name))) as connection:
                yield SQLServer(at(server, name), connection)
        finally:
            desk.run(f"ALTER DATABASE {name} SET SINGLE_USER WITH ROLLBACK IMMEDIATE")
            desk.run(f"DROP DATABASE {name}")


@cache  # so that it stays open from round to round
def _connect(url: str) -> Session:
    return connect(url)


def take(url: str, first: int, stop: int) -> int:
    """Run in a process of the pool: one transaction with its receipt."""
    connection = _connect(url)
    rows: list[tuple[Any, ...]] = []
    connection.run("BEGIN TRANSACTION")
    for low in range(first, stop, _STEP):
        rows += connection.run(_TAKE.format(first=low, stop=min(low + _STEP, stop)))
    payload = pa.compress(pickle.dumps(rows), codec="zstd", asbytes=True)
    connection.run(_SAVE, payload)
    connection.run("COMMIT TRANSACTION")
    return len(rows)


@dataclass(frozen=True)
class SQLServer(Database):
    """See Database."""

    connection: Session

    jar = "com.microsoft.sqlserver:mssql-jdbc:12.10.1.jre11"
    seq = "RowVersion"
    rewriting = ";useBulkCopyForBatchInsert=true"
    analyze = "UPDATE STATISTICS"
    new_id = "NEWID()"
    texts: ClassVar[dict[str, str]] = {
        "settings": _SETTINGS,
        "receipts": _RECEIPTS,
        "hard": _HARD,
    }
    take = take

    def ask(self, text: str) -> list[tuple[Any, ...]]:
        """As Database."""
        return self.connection.run(text)

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
            self.ask(_QUEUE.format(queue=queue))
        self.ask(_STORE)
        for first in range(0, messages, _PORTION):
            columns = orders(first, min(first + _PORTION, messages)).to_pydict().values()
            rows = [
                (number, row, headers, body.hex())
                for number, (row, headers, body) in enumerate(zip(*columns, strict=True), first)
            ]
            self.connection.run(_KEEP, json.dumps(rows))

    @contextmanager
    def receiving(self) -> Iterator[Callable[[], object]]:
        """As Database."""
        with closing(connect(self.url)) as connection:
            yield lambda: connection.run(_RECEIVE)
