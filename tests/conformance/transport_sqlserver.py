"""
The SQL Server transport's own statements, one row in one transaction; see transport.py.

Run by a session of their own that is not the package's: each text is executed as it stands, so that
a mistake of ours is not made twice.
"""

from __future__ import annotations

import re
import uuid
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from . import sqlserver
from .transport import MOVED, PURGED, Busy, Row

if TYPE_CHECKING:
    from collections.abc import Iterator

# NOCOUNT is saved before a statement, and put back after it
_BEFORE = """
DECLARE @NOCOUNT VARCHAR(3) = 'OFF';
IF ((512 & @@OPTIONS) = 512) SET @NOCOUNT = 'ON';
SET NOCOUNT ON;
"""
_AFTER = """;
IF (@NOCOUNT = 'ON') SET NOCOUNT ON;
IF (@NOCOUNT = 'OFF') SET NOCOUNT OFF;
"""
# {there}: whether the table is there; {make} makes it. Looked again under the lock.
_INSTALL = """
IF NOT {there}
BEGIN
    EXEC sp_getapplock @Resource = N'{lock}', @LockMode = 'Exclusive', @LockOwner = 'Transaction';
    IF {there}
        EXEC sp_releaseapplock @Resource = N'{lock}', @LockOwner = 'Transaction'
    ELSE
    BEGIN
        BEGIN TRY
            {make}
        END TRY
        BEGIN CATCH
            EXEC sp_releaseapplock @Resource = N'{lock}', @LockOwner = 'Transaction';
            THROW;
        END CATCH;
        EXEC sp_releaseapplock @Resource = N'{lock}', @LockOwner = 'Transaction'
    END
END
"""
_QUEUE = """
CREATE TABLE {queue} (
    Id uniqueidentifier NOT NULL, CorrelationId varchar(255), ReplyToAddress varchar(255),
    Recoverable bit NOT NULL, Expires datetime, Headers nvarchar(max) NOT NULL,
    Body varbinary(max), RowVersion bigint IDENTITY(1,1) NOT NULL);
CREATE NONCLUSTERED INDEX Index_RowVersion ON {queue} (RowVersion ASC);
CREATE NONCLUSTERED INDEX Index_Expires ON {queue} (Expires)
    INCLUDE (Id, RowVersion) WHERE Expires IS NOT NULL;
"""
_DELAYED = """
CREATE TABLE {queue} (
    Headers nvarchar(max) NOT NULL, Body varbinary(max), Due datetime NOT NULL,
    RowVersion bigint IDENTITY(1,1) NOT NULL);
CREATE NONCLUSTERED INDEX Index_Due ON {queue} (Due);
"""
_SUBSCRIPTIONS = """
CREATE TABLE {queue} (
    QueueAddress nvarchar(200) NOT NULL, Endpoint nvarchar(200) NOT NULL,
    Topic nvarchar(200) NOT NULL, PRIMARY KEY CLUSTERED (Endpoint, Topic));
"""
_SEND = """
INSERT INTO {queue} (Id, CorrelationId, ReplyToAddress, Recoverable, Expires, Headers, Body)
VALUES (CAST(? AS uniqueidentifier), NULL, NULL, 1, {expires}, {headers}, {body})
"""
_RECEIVE = """
WITH message AS (
    SELECT TOP(1) * FROM {queue} WITH (UPDLOCK, READPAST, ROWLOCK) ORDER BY RowVersion)
DELETE FROM message
OUTPUT CAST(deleted.Id AS char(36)),
       CASE WHEN deleted.Expires IS NULL THEN 0
            ELSE CASE WHEN deleted.Expires > GETUTCDATE() THEN 0 ELSE 1 END END,
       deleted.Headers, deleted.Body
"""
_PEEK = """
SELECT COUNT(*) FROM (SELECT TOP {most} * FROM {queue} WITH (READPAST)) AS count_table
"""
_PURGE_EXPIRED = """
DELETE FROM {queue}
 WHERE RowVersion IN (SELECT TOP ({most}) RowVersion FROM {queue} WITH (READPAST)
                       WHERE Expires < GETUTCDATE())
"""
_STORE = """
DECLARE @DueAfter DATETIME = GETUTCDATE();
SET @DueAfter = DATEADD(ms, {delay}, @DueAfter);
INSERT INTO {queue} (Headers, Body, Due)
VALUES (CAST(? AS nvarchar(max)), CAST(? AS varbinary(max)), @DueAfter)
"""
_MOVE = """
WITH message AS (
    SELECT TOP({most}) * FROM {queue} WITH (UPDLOCK, READPAST, ROWLOCK)
     WHERE Due < GETUTCDATE())
DELETE FROM message
OUTPUT NEWID(), NULL, NULL, 1, NULL, deleted.Headers, deleted.Body
  INTO {to} (Id, CorrelationId, ReplyToAddress, Recoverable, Expires, Headers, Body)
"""
_NEXT_DUE = """
SELECT TOP 1 CAST(DATEDIFF(ms, GETUTCDATE(), Due) AS float) / 1000 FROM {queue} ORDER BY Due
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
_SHAPE = """
SELECT c.name, t.name, c.max_length, c.is_nullable, c.is_identity, c.is_computed
  FROM sys.columns AS c JOIN sys.types AS t ON t.user_type_id = c.user_type_id
 WHERE c.object_id = OBJECT_ID(N'{text}') ORDER BY c.column_id
"""
_SHAPE_OF_INDEXES = """
SELECT i.name, i.type_desc, i.is_unique, i.filter_definition, c.name, k.is_included_column
  FROM sys.indexes AS i
  JOIN sys.index_columns AS k ON k.object_id = i.object_id AND k.index_id = i.index_id
  JOIN sys.columns AS c ON c.object_id = k.object_id AND c.column_id = k.column_id
 WHERE i.object_id = OBJECT_ID(N'{text}') ORDER BY i.name, k.index_column_id
"""


@dataclass(frozen=True)
class Session:
    """A session whose transactions are begun and ended by whoever uses it."""

    raw: Any

    def run(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        """Execute a text; the rows of its first result that has any."""
        found: list[tuple[Any, ...]] = []
        try:
            with closing(self.raw.cursor()) as cursor:
                cursor.execute(text, values) if values else cursor.execute(text)
                more = True
                while more:
                    if cursor.description and not found:
                        found = [tuple(row) for row in cursor.fetchall()]
                    more = cursor.nextset()
        except Exception as error:
            if "Lock request time out" in str(error):
                raise Busy from error
            raise
        return found

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what the block did, or undo it."""
        self.run("BEGIN TRANSACTION")
        try:
            yield
        except BaseException:
            self.run("IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION")
            raise
        self.run("COMMIT TRANSACTION")

    def close(self) -> None:
        """End it."""
        self.raw.close()


@dataclass(frozen=True)
class SQLServer:
    """The SQL Server transport's statements, each on a session whose transaction is open."""

    url: str
    schema: str
    patience: float = 60.0  # seconds to wait for a lock; a transport waits for none

    def connect(self) -> Session:
        """Open a session."""
        made = Session(sqlserver.connect(self.url))
        made.run(f"SET LOCK_TIMEOUT {int(self.patience * 1000)}")
        return made

    def impatient(self, seconds: float) -> SQLServer:
        """The same, with sessions that wait for no lock so long."""
        return replace(self, patience=seconds)

    def address(self, table: str) -> str:
        """The canonical address of one of our tables."""
        plain = "@" not in table and not table.startswith("[")
        return f"{table if plain else bracketed(table)}@{bracketed(self.schema)}"

    def _on(
        self, connection: Session, address: str, text: str, *values: object, **words: str
    ) -> list[tuple[Any, ...]]:
        queue = quoted(address)
        named = text.format(queue=queue, text=queue.replace("'", "''"), **words)
        return connection.run(f"{_BEFORE}{named}{_AFTER}", *values)

    def _install(self, connection: Session, address: str, make: str) -> None:
        queue = quoted(address)
        literal = queue.replace("'", "''")
        (database,) = connection.run("SELECT QUOTENAME(DB_NAME())")[0]
        words = {
            "there": f"OBJECT_ID(N'{literal}', N'U') IS NOT NULL",
            "lock": f"{database.replace(chr(39), chr(39) * 2)}.{literal}_lock",
            "make": make.format(queue=queue),
        }
        with connection.transaction():
            connection.run(_INSTALL.format(**words))

    def create(self, connection: Session, address: str) -> None:
        """Make a queue, unless it is there or is being made."""
        self._install(connection, address, _QUEUE)

    def create_delayed(self, connection: Session, address: str) -> None:
        """Make the table of delayed messages."""
        self._install(connection, address, _DELAYED)

    def create_subscriptions(self, connection: Session, address: str) -> None:
        """Make the subscription table."""
        self._install(connection, address, _SUBSCRIPTIONS)

    def shape(self, connection: Session, address: str) -> list[tuple[Any, ...]]:
        """What a DBA sees of a table: its columns, then its indexes."""
        columns = self._on(connection, address, _SHAPE)
        return columns + self._on(connection, address, _SHAPE_OF_INDEXES)

    def send(
        self,
        connection: Session,
        address: str,
        headers: str | None,
        body: bytes | None,
        *,
        row: uuid.UUID | None = None,
        lives: int | None = None,
    ) -> None:
        """
        Insert a message, by default under a fresh id; `lives` in ms, by the database's clock.

        Raises:
            LookupError: there is no such queue.
        """
        words = {
            "expires": "NULL" if lives is None else f"DATEADD(ms, {lives}, GETUTCDATE())",
            "headers": "NULL" if headers is None else "CAST(? AS nvarchar(max))",
            "body": "NULL" if body is None else "CAST(? AS varbinary(max))",
        }
        values = [str(row or uuid.uuid4()), *(each for each in (headers, body) if each is not None)]
        try:
            self._on(connection, address, _SEND, *values, **words)
        except Exception as error:
            if "Invalid object name" in str(error):
                raise LookupError(address) from error
            raise

    def receive(self, connection: Session, address: str) -> Row | None:
        """Delete the lowest message that no one else holds."""
        found = self._on(connection, address, _RECEIVE)
        if not found:
            return None
        row, expired, headers, body = found[0]
        return Row(uuid.UUID(row), bool(expired), headers, body)

    def peek(self, connection: Session, address: str) -> int:
        """How many messages there are, up to a number."""
        return int(self._on(connection, address, _PEEK, most="100")[0][0])

    def purge(self, connection: Session, address: str) -> int:
        """Delete everything; waits for whoever holds a message."""
        return self._counted(connection, address, "DELETE FROM {queue}")

    def purge_expired(self, connection: Session, address: str) -> int:
        """Delete a batch of expired messages that no one holds."""
        return self._counted(connection, address, _PURGE_EXPIRED, most=str(PURGED))

    def _counted(self, connection: Session, address: str, text: str, **words: str) -> int:
        counted = f"{text}; SELECT @@ROWCOUNT"
        return int(self._on(connection, address, counted, **words)[0][0])

    def store(
        self, connection: Session, address: str, headers: str, body: bytes, delay: int
    ) -> None:
        """Keep a message for `delay` ms."""
        self._on(connection, address, _STORE, headers, body, delay=str(delay))

    def move(self, connection: Session, address: str, queue: str) -> float | None:
        """Move a batch of due messages into a queue; the seconds until the next is due."""
        self._on(connection, address, _MOVE, most=str(MOVED), to=quoted(queue))
        found = self._on(connection, address, _NEXT_DUE)
        return max(0.0, found[0][0]) if found else None

    def subscribe(
        self, connection: Session, address: str, endpoint: str, topic: str, queue: str
    ) -> None:
        """Enter a subscription, or correct its queue."""
        self._on(connection, address, _SUBSCRIBE, endpoint, queue, topic)

    def unsubscribe(self, connection: Session, address: str, endpoint: str, topic: str) -> None:
        """Drop a subscription."""
        text = "DELETE FROM {queue} WHERE Endpoint = ? AND Topic = ?"
        self._on(connection, address, text, endpoint, topic)

    def subscribers(self, connection: Session, address: str, topics: list[str]) -> list[str]:
        """The queues subscribed to any of these topics, each once."""
        marks = ", ".join("?" * len(topics))
        text = f"SELECT DISTINCT QueueAddress FROM {{queue}} WHERE Topic IN ({marks})"
        return [queue for (queue,) in self._on(connection, address, text, *topics)]


def bracketed(name: str) -> str:
    """A name in brackets."""
    return "[" + name.replace("]", "]]") + "]"


def quoted(address: str) -> str:
    """
    Schema and table of a canonical address, `table@[schema]`, as SQL names them.

    Raises:
        ValueError: another form.
    """
    found = re.fullmatch(r"(\[(?:[^\]]|\]\])+\]|[^@\[][^@]*)@(\[(?:[^\]]|\]\])+\])", address)
    if found is None:
        raise ValueError(address)
    table, schema = found.groups()
    return f"{schema}.{table if table.startswith('[') else bracketed(table)}"
