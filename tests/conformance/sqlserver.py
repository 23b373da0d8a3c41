"""
The other side on SQL Server: the transport's own one-row statements.

The suite takes it where there is a server, see tests/servers.py.
"""

from __future__ import annotations

import secrets
import time
import uuid
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlq_spark.dialects import sqlserver_drivers
from sqlq_spark.dialects.sqlserver_url import Target

from . import sqlserver_dba
from .peers import Received, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from sqlq_spark.address import QueueAddress

    from .dba import DBA
    from .peers import Row

# Each queue as WIRE.md part 1 describes it; {text} is its quoted name as a text.
_CREATE = """
IF OBJECT_ID(N'{text}', N'U') IS NULL
BEGIN
    CREATE TABLE {queue} (
        Id uniqueidentifier NOT NULL, CorrelationId varchar(255), ReplyToAddress varchar(255),
        Recoverable bit NOT NULL, Expires datetime, Headers nvarchar(max) NOT NULL,
        Body varbinary(max), RowVersion bigint IDENTITY(1,1) NOT NULL);
    CREATE NONCLUSTERED INDEX Index_RowVersion ON {queue} (RowVersion);
    CREATE NONCLUSTERED INDEX Index_Expires ON {queue} (Expires)
        INCLUDE (Id, RowVersion) WHERE Expires IS NOT NULL;
END
"""
_SEND = """
INSERT INTO {queue} (Id, CorrelationId, ReplyToAddress, Recoverable, Expires, Headers, Body)
VALUES (CAST(? AS uniqueidentifier), NULL, NULL, 1, {expires}, CAST({headers} AS nvarchar(max)),
        CAST({body} AS varbinary(max)))
"""
_RECEIVE = """
WITH message AS (
    SELECT TOP(1) * FROM {queue} WITH (UPDLOCK, READPAST, ROWLOCK) ORDER BY RowVersion)
DELETE FROM message
OUTPUT CAST(deleted.Id AS char(36)),
       CASE WHEN deleted.Expires IS NULL OR deleted.Expires > GETUTCDATE() THEN 0 ELSE 1 END,
       deleted.Headers, deleted.Body
"""
_ROWS = """
SELECT CAST(Id AS char(36)), Expires, Headers, Body, RowVersion FROM {queue} ORDER BY RowVersion
"""
_CREATE_SUBSCRIPTIONS = """
IF OBJECT_ID(N'{text}', N'U') IS NULL
    CREATE TABLE {queue} (
        QueueAddress nvarchar(200) NOT NULL, Endpoint nvarchar(200) NOT NULL,
        Topic nvarchar(200) NOT NULL, PRIMARY KEY CLUSTERED (Endpoint, Topic))
"""
_SUBSCRIBE = """
MERGE {queue} WITH (HOLDLOCK, TABLOCK) AS target
USING (SELECT ? AS Endpoint, ? AS QueueAddress, ? AS Topic) AS source
   ON target.Endpoint = source.Endpoint AND target.Topic = source.Topic
 WHEN MATCHED AND target.QueueAddress <> source.QueueAddress THEN
      UPDATE SET QueueAddress = source.QueueAddress
 WHEN NOT MATCHED THEN
      INSERT (QueueAddress, Topic, Endpoint)
      VALUES (source.QueueAddress, source.Topic, source.Endpoint);
"""
_CATALOG = """
SELECT c.name, t.name, c.max_length, c.is_nullable, c.is_identity
  FROM sys.columns AS c
  JOIN sys.types AS t ON t.user_type_id = c.user_type_id
 WHERE c.object_id = OBJECT_ID(N'{text}')
 ORDER BY c.column_id
"""
# our sessions say who they are in context_info
_ACTIVE = """
SELECT s.session_id, r.wait_type
  FROM sys.dm_exec_sessions AS s
  LEFT JOIN sys.dm_exec_requests AS r ON r.session_id = s.session_id
 WHERE s.session_id <> @@SPID
   AND CHARINDEX(?, CAST(s.context_info AS varchar(128))) > 0
"""


def connect(url: str) -> Any:
    """Open a session by whichever driver is there."""
    return sqlserver_drivers.connect(Target.parse(url), "peer", 10)[1]


@contextmanager
def place(url: str) -> Iterator[SQLServer]:
    """Give a peer in schemas of its own; they are dropped after."""
    schema, state = (f"{kind}_{secrets.token_hex(6)}" for kind in ("test", "state"))
    with closing(connect(url)) as connection:
        peer = SQLServer(url, schema, state, connection)
        peer.run(f"EXEC (N'CREATE SCHEMA {schema}')")
        try:
            yield peer
        finally:
            for each in (schema, state):
                peer.dba.drop_schema(each)


@dataclass(frozen=True)
class SQLServer:
    """A peer of the SQL Server transport; its sessions commit each statement by itself."""

    url: str
    schema: str
    state: str
    connection: Any
    dialect: str = "sqlserver"

    @property
    def dba(self) -> DBA:
        """Who has all rights."""
        return sqlserver_dba.DBA(self.url, self.state, self.run, self._executing)

    @contextmanager
    def _executing(self) -> Iterator[Callable[..., list[Row]]]:
        """Run statements in a transaction that is undone."""
        with self.transaction() as other:
            yield other.run

    def run(self, text: str, *values: Any) -> list[Row]:
        """Execute a statement and return the rows of its first result, if it has one."""
        with closing(self.connection.cursor()) as cursor:
            cursor.execute(text, values) if values else cursor.execute(text)
            found = [tuple(row) for row in cursor.fetchall()] if cursor.description else []
            while cursor.nextset():
                pass
            return found

    def on(self, queue: QueueAddress, text: str, *values: Any, **words: str) -> list[Row]:
        """Execute a statement on a table."""
        return self.run(self._on(queue, text, **words), *values)

    def _on(self, queue: QueueAddress, text: str, **words: str) -> str:
        names = (name.replace("]", "]]") for name in (queue.schema or "dbo", queue.table))
        quoted = ".".join(f"[{name}]" for name in names)
        return text.format(queue=quoted, text=quoted.replace("'", "''"), **words)

    def create(self, queue: QueueAddress) -> None:
        """Create a queue's table as the transport's installer does."""
        self.run(self._on(queue, _CREATE))

    def send(
        self,
        queue: QueueAddress,
        headers: str | None = "{}",
        body: bytes | None = b"{}",
        *,
        lives: int | None = None,
        row: uuid.UUID | None = None,
    ) -> uuid.UUID:
        """Insert one message; no null is bound, whose type a driver would have to guess."""
        row = row or uuid.uuid4()
        expires = "NULL" if lives is None else f"DATEADD(ms, {lives}, GETUTCDATE())"
        marks = {name: "NULL" if value is None else "?" for name, value in
                 (("headers", headers), ("body", body))}  # fmt: skip
        values = [value for value in (headers, body) if value is not None]
        self.run(self._on(queue, _SEND, expires=expires, **marks), str(row), *values)
        return row

    def send_many(
        self, queue: QueueAddress, bodies: Sequence[bytes], *, lives: int | None = None
    ) -> None:
        """Insert messages of equal headers."""
        with self.transaction() as other:
            for body in bodies:
                other.send(queue, body=body, lives=lives)
            other.run("COMMIT")

    def receive(self, queue: QueueAddress) -> Received | None:
        """Delete the lowest message that no one holds, in a transaction of its own."""
        found = self.run(self._on(queue, _RECEIVE))
        if not found:
            return None
        row, expired, headers, body = found[0]
        return Received(uuid.UUID(row), bool(expired), headers, body)

    def create_subscriptions(self, table: QueueAddress) -> None:
        """Create the table of subscriptions as the transport's installer does."""
        self.run(self._on(table, _CREATE_SUBSCRIPTIONS))

    @contextmanager
    def creating_subscriptions(self, table: QueueAddress) -> Iterator[None]:
        """Create the table of subscriptions, and commit only at the end of the block."""
        with self.transaction() as other:
            other.create_subscriptions(table)
            yield
            other.run("COMMIT")

    def catalog(self, table: QueueAddress) -> list[Row]:
        """What the database says of a table's columns."""
        return self.run(self._on(table, _CATALOG))

    def subscribe(self, table: QueueAddress, endpoint: str, topic: str, address: str) -> None:
        """Subscribe an endpoint as its start does."""
        self.run(self._on(table, _SUBSCRIBE), endpoint, address, topic)

    def unsubscribe(self, table: QueueAddress, endpoint: str, topic: str) -> None:
        """Take a subscription back."""
        text = "DELETE FROM {queue} WHERE Endpoint = ? AND Topic = ?"
        self.run(self._on(table, text), endpoint, topic)

    def subscribers(self, table: QueueAddress, *topics: str) -> list[str]:
        """The addresses that a peer would publish to, in their order."""
        marks = ", ".join("?" * len(topics))
        text = f"SELECT DISTINCT QueueAddress FROM {{queue}} WHERE Topic IN ({marks}) ORDER BY 1"
        return [row[0] for row in self.run(self._on(table, text), *topics)]

    def consumer(self) -> SQLServer:
        """Another session of the same endpoint, for a thread."""
        return SQLServer(self.url, self.schema, self.state, connect(self.url))

    def rows(self, queue: QueueAddress) -> list[Stored]:
        """All rows that are committed, by seq."""
        return [Stored(uuid.UUID(row), *rest) for row, *rest in self.run(self._on(queue, _ROWS))]

    @contextmanager
    def transaction(self) -> Iterator[SQLServer]:
        """Give another session with a transaction open; undone where the block does not commit."""
        other = self.consumer()
        try:
            other.run("SET NOCOUNT ON; BEGIN TRANSACTION")
            yield other
            other.run("IF @@TRANCOUNT > 0 ROLLBACK")
        finally:
            other.connection.close()

    @contextmanager
    def hold(self, queue: QueueAddress, seqs: Sequence[int]) -> Iterator[None]:
        """
        Delete rows in a transaction as long as the block lasts, as a receive; rolled back after.

        A lock by XLOCK alone would be on one index only, and be passed by readers that find the
        page unchanged.
        """
        numbers = ", ".join(str(int(seq)) for seq in seqs) or "NULL"
        text = f"DELETE FROM {{queue}} WHERE RowVersion IN ({numbers})"
        with self.transaction() as other:
            other.on(queue, text)
            yield

    @contextmanager
    def holding(self, queue: QueueAddress, messages: int) -> Iterator[None]:
        """Insert messages and commit them only at the end of the block."""
        with self.transaction() as other:
            for _ in range(messages):
                other.send(queue, body=b"late")
            yield
            other.run("COMMIT")

    @contextmanager
    def locked(self, queue: QueueAddress) -> Iterator[None]:
        """Lock the whole table against everyone, as long as the block lasts."""
        with self.transaction() as other:
            other.on(queue, "SELECT TOP (1) 1 FROM {queue} WITH (TABLOCKX, HOLDLOCK)")
            yield

    def state_rows(self, table: str, columns: str) -> list[Row]:
        """Columns of a state table, in their order."""
        names = ", ".join(f"[{name.strip()}]" for name in columns.split(","))
        return self.run(f"SELECT {names} FROM [{self.state}].[{table}] ORDER BY {names}")

    def clock(self) -> datetime:
        """The database's UTC clock."""
        moment: datetime = self.run("SELECT GETUTCDATE()")[0][0]
        return moment

    def kill(self, application: str) -> int:
        """End the sessions whose name holds `application`, and wait until they are gone."""
        found = {session for session, _ in self.run(_ACTIVE, application)}
        for session in found:
            self.run(f"KILL {int(session)}")
        while self.run(_ACTIVE, application):
            time.sleep(0.001)
        return len(found)

    def sessions(self, application: str) -> int:
        """How many sessions have `application` in their name."""
        return len({session for session, _ in self.run(_ACTIVE, application)})

    def waiting(self, application: str) -> bool:
        """Whether a session whose name holds `application` waits for a lock."""
        return self.waiting_sessions(application) > 0

    def waiting_sessions(self, application: str) -> int:
        """How many sessions whose name holds `application` wait for a lock."""
        found = self.run(_ACTIVE, application)
        return len({session for session, wait in found if str(wait or "").startswith("LCK")})
