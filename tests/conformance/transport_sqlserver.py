"""
The SQL Server transport's own statements; see transport.py.

Run by sessions that are not the package's: each text is executed as it stands here, so that a
mistake of ours is not made twice. `:name` stands for a value.
"""

from __future__ import annotations

import re
import secrets
import time
import uuid
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from sqlq_spark.database.sqlserver import drivers
from sqlq_spark.database.sqlserver.url import Target

from . import sqlserver_dba
from .sqlserver_dba import quoted
from .transport import Busy, DotNet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    from sqlq_spark.wire.address import QueueAddress

    from .dba import DBA
    from .transport import Row

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
_SQLSERVER = {
    "create": """
        CREATE TABLE {queue} (
            Id uniqueidentifier NOT NULL, CorrelationId varchar(255), ReplyToAddress varchar(255),
            Recoverable bit NOT NULL, Expires datetime, Headers nvarchar(max) NOT NULL,
            Body varbinary(max), RowVersion bigint IDENTITY(1,1) NOT NULL);
        CREATE NONCLUSTERED INDEX Index_RowVersion ON {queue} (RowVersion ASC);
        CREATE NONCLUSTERED INDEX Index_Expires ON {queue} (Expires)
            INCLUDE (Id, RowVersion) WHERE Expires IS NOT NULL;""",
    "create_delayed": """
        CREATE TABLE {queue} (
            Headers nvarchar(max) NOT NULL, Body varbinary(max), Due datetime NOT NULL,
            RowVersion bigint IDENTITY(1,1) NOT NULL);
        CREATE NONCLUSTERED INDEX Index_Due ON {queue} (Due);""",
    "create_subscriptions": """
        CREATE TABLE {queue} (
            QueueAddress nvarchar(200) NOT NULL, Endpoint nvarchar(200) NOT NULL,
            Topic nvarchar(200) NOT NULL, PRIMARY KEY CLUSTERED (Endpoint, Topic));""",
    "columns": """
        SELECT c.name, t.name, c.max_length, c.is_nullable, c.is_identity, c.is_computed
          FROM sys.columns AS c JOIN sys.types AS t ON t.user_type_id = c.user_type_id
         WHERE c.object_id = OBJECT_ID(N'{text}') ORDER BY c.column_id""",
    "indexes": """
        SELECT CASE i.is_primary_key WHEN 1 THEN '' ELSE i.name END AS name, i.type_desc,
               i.is_unique, i.filter_definition, c.name, k.is_included_column
          FROM sys.indexes AS i
          JOIN sys.index_columns AS k ON k.object_id = i.object_id AND k.index_id = i.index_id
          JOIN sys.columns AS c ON c.object_id = k.object_id AND c.column_id = k.column_id
         WHERE i.object_id = OBJECT_ID(N'{text}') ORDER BY name, k.index_column_id""",
    "send": """
        INSERT INTO {queue}
            (Id, CorrelationId, ReplyToAddress, Recoverable, Expires, Headers, Body)
        VALUES (CAST(:row AS uniqueidentifier), NULL, NULL, 1,
                DATEADD(ms, CAST(:lives AS int), GETUTCDATE()),
                CAST(:headers AS nvarchar(max)), CAST(:body AS varbinary(max)))""",
    "receive": """
        WITH message AS (
            SELECT TOP(1) * FROM {queue} WITH (UPDLOCK, READPAST, ROWLOCK) ORDER BY RowVersion)
        DELETE FROM message
        OUTPUT CAST(deleted.Id AS char(36)),
               CASE WHEN deleted.Expires IS NULL THEN 0
                    ELSE CASE WHEN deleted.Expires > GETUTCDATE() THEN 0 ELSE 1 END END,
               deleted.Headers, deleted.Body""",
    "rows": """
        SELECT CAST(Id AS char(36)), Expires, Headers, Body, RowVersion
          FROM {queue} ORDER BY RowVersion""",
    "peek": """
        SELECT ISNULL(CAST(MAX(RowVersion) - MIN(RowVersion) + 1 AS int), 0)
          FROM {queue} WITH (READPAST, READCOMMITTEDLOCK)""",
    "purge_expired": """
        DELETE FROM {queue}
         WHERE RowVersion IN (SELECT TOP (:most) RowVersion FROM {queue} WITH (READPAST)
                               WHERE Expires < GETUTCDATE())""",
    "store": """
        DECLARE @DueAfter DATETIME = GETUTCDATE();
        SET @DueAfter = DATEADD(ms, :delay, @DueAfter);
        INSERT INTO {queue} (Headers, Body, Due)
        VALUES (CAST(:headers AS nvarchar(max)), CAST(:body AS varbinary(max)), @DueAfter)""",
    "move": """
        WITH message AS (
            SELECT TOP(:most) * FROM {queue} WITH (UPDLOCK, READPAST, ROWLOCK)
             WHERE Due < GETUTCDATE())
        DELETE FROM message
        OUTPUT NEWID(), NULL, NULL, 1, NULL, deleted.Headers, deleted.Body
          INTO {to} (Id, CorrelationId, ReplyToAddress, Recoverable, Expires, Headers, Body)""",
    "delayed_rows": "SELECT NULL, Headers, Body, Due FROM {queue} ORDER BY Due",
    "subscribe": """
        MERGE {queue} WITH (HOLDLOCK, TABLOCK) AS target
        USING (SELECT :endpoint AS Endpoint, :address AS QueueAddress, :topic AS Topic) AS source
           ON target.Endpoint = source.Endpoint AND target.Topic = source.Topic
         WHEN MATCHED AND target.QueueAddress <> source.QueueAddress THEN
              UPDATE SET QueueAddress = source.QueueAddress
         WHEN NOT MATCHED THEN
              INSERT (QueueAddress, Topic, Endpoint)
              VALUES (source.QueueAddress, source.Topic, source.Endpoint);""",
    "unsubscribe": "DELETE FROM {queue} WHERE Endpoint = :endpoint AND Topic = :topic",
    "subscribers": "SELECT DISTINCT QueueAddress FROM {queue} WHERE Topic IN (:topics)",
    # XLOCK alone would lock one index only, and streams that find the page unchanged pass it
    "hold": "DELETE FROM {queue} WHERE RowVersion IN (:seqs)",
    "hold_delayed": "DELETE FROM {queue} WHERE Body IN (:bodies)",
    "lock": "SELECT TOP (1) 1 FROM {queue} WITH (TABLOCKX, HOLDLOCK)",
}


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


# our sessions say who they are in context_info
_ACTIVE = """
SELECT s.session_id, r.wait_type
  FROM sys.dm_exec_sessions AS s
  LEFT JOIN sys.dm_exec_requests AS r ON r.session_id = s.session_id
 WHERE s.session_id <> @@SPID
   AND CHARINDEX(?, CAST(s.context_info AS varchar(128))) > 0
"""


@contextmanager
def place(url: str) -> Iterator[SQLServer]:
    """Give an endpoint in schemas of its own; they are dropped after."""
    schema, state = (f"{kind}_{secrets.token_hex(6)}" for kind in ("test", "state"))
    unconnected = SQLServer(url, schema, state, None)  # type: ignore[arg-type]
    with closing(unconnected.connect(None, 60.0)) as connection:
        dotnet = replace(unconnected, connection=connection)
        dotnet.execute(f"EXEC (N'CREATE SCHEMA {schema}')")
        try:
            yield dotnet
        finally:
            for each in (schema, state):
                dotnet.dba.drop_schema(each)


@dataclass(frozen=True)
class SQLServer(DotNet):
    """An endpoint of the SQL Server transport, run by whichever driver is there."""

    connection: Session
    dialect: ClassVar[str] = "sqlserver"
    texts: ClassVar[Mapping[str, str]] = _SQLSERVER

    @property
    def dba(self) -> DBA:
        return sqlserver_dba.SQLServer(self.url, self.state, self.execute, self._executing)

    @contextmanager
    def _executing(self) -> Iterator[Callable[..., list[Row]]]:
        """Run statements in a transaction that is undone."""
        with self.apart() as other:
            yield other.execute

    def connect(self, zone: str | None, patience: float) -> Session:
        """As DotNet; sessions have no time zone here."""
        del zone
        made = Session(drivers.connect(Target.parse(self.url), "dotnet", 10)[1])
        made.run(f"SET LOCK_TIMEOUT {int(patience * 1000)}")
        return made

    def execute(self, text: str, *values: object) -> list[Row]:
        return self.connection.run(text, *values)

    def ask(
        self, text: str, table: QueueAddress, *, to: QueueAddress | None = None, **values: Any
    ) -> list[Row]:
        marked, bound = parameters(text, values)
        queue = quoted(table)
        words = {"queue": queue, "text": queue.replace("'", "''"), "to": quoted(to or table)}
        try:
            return self.execute(f"{_BEFORE}{marked.format(**words)}{_AFTER}", *bound)
        except Exception as error:
            if "Invalid object name" in str(error):
                raise LookupError(str(table)) from error
            raise

    def count(
        self, text: str, table: QueueAddress, *, to: QueueAddress | None = None, **values: Any
    ) -> int:
        return int(self.ask(f"{text}; SELECT @@ROWCOUNT", table, to=to, **values)[0][0])

    def install(self, kind: str, table: QueueAddress) -> None:
        """As DotNet; whoever makes the same table at this moment waits for the lock."""
        queue = quoted(table)
        literal = queue.replace("'", "''")
        (database,) = self.execute("SELECT QUOTENAME(DB_NAME())")[0]
        words = {
            "there": f"OBJECT_ID(N'{literal}', N'U') IS NOT NULL",
            "lock": f"{database.replace(chr(39), chr(39) * 2)}.{literal}_lock",
            "make": self.texts[kind].format(queue=queue),
        }
        with self.connection.transaction():
            self.execute(_INSTALL.format(**words))

    def state_rows(self, table: str, columns: str) -> list[Row]:
        names = ", ".join(f"[{name.strip()}]" for name in columns.split(","))
        return self.execute(f"SELECT {names} FROM [{self.state}].[{table}] ORDER BY {names}")

    def clock(self) -> datetime:
        moment: datetime = self.execute("SELECT GETUTCDATE()")[0][0]
        return moment

    def kill(self, application: str) -> int:
        found = {session for session, _ in self.execute(_ACTIVE, application)}
        for session in found:
            self.execute(f"KILL {int(session)}")
        while self.execute(_ACTIVE, application):
            time.sleep(0.001)
        return len(found)

    def sessions(self, application: str) -> int:
        return len({session for session, _ in self.execute(_ACTIVE, application)})

    def waiting(self, application: str) -> bool:
        found = self.execute(_ACTIVE, application)
        return any(str(wait or "").startswith("LCK") for _, wait in found)


def parameters(text: str, values: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """A text with `?` for each `:name`, and their values; numbers and NULL are written out."""
    bound: list[Any] = []

    def mark(value: Any) -> str:
        if isinstance(value, list):
            return ", ".join(map(mark, value)) or "NULL"
        if value is None or isinstance(value, int):  # no driver has to guess the type of a NULL
            return "NULL" if value is None else str(value)
        bound.append(str(value) if isinstance(value, uuid.UUID) else value)
        return "?"

    return re.sub(r"(?<!\w):(\w+)", lambda found: mark(values[found[1]]), text), bound
