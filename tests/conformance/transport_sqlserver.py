"""
The SQL Server transport's own statements; see transport.py.

Run by sessions that are not the package's: each text is executed as it stands here, so that a
mistake of ours is not made twice. `:name` stands for a value.
"""

from __future__ import annotations

import re
import uuid
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sqlq_spark.database.sqlserver import drivers
from sqlq_spark.database.sqlserver.url import Target

from .transport import Busy, Database

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .transport import Table

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
_ADDRESS = re.compile(r"({0}(?=@)|[^@]+)@({0})@({0})".format(r"\[(?:[^\]]|\]\])+\]"))
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
    "next_due": """
        SELECT TOP 1 CAST(DATEDIFF(ms, GETUTCDATE(), Due) AS float) / 1000
          FROM {queue} WITH (READPAST) ORDER BY Due""",
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


@dataclass(frozen=True)
class SQLServer(Database):
    """The SQL Server transport, run by whichever driver is there."""

    texts: ClassVar[Mapping[str, str]] = _SQLSERVER

    def connect(self, zone: str | None = None) -> Session:
        """As Database; sessions have no time zone here."""
        del zone
        made = Session(drivers.connect(Target.parse(self.url), "dotnet", 10)[1])
        made.run(f"SET LOCK_TIMEOUT {int(self.patience * 1000)}")
        return made

    def address(self, table: str) -> str:
        """As Database; an endpoint's always names the database."""
        name = table if "@" not in table else bracketed(table)
        return f"{name}@{bracketed(self.schema)}@{bracketed(Target.parse(self.url).database)}"

    def ask(
        self, session: Any, text: str, table: Table, *, to: Table | None = None, **values: Any
    ) -> list[tuple[Any, ...]]:
        """As Database."""
        marked, bound = parameters(text, values)
        queue = quoted(table)
        words = {"queue": queue, "text": queue.replace("'", "''"), "to": quoted(to or table)}
        try:
            found: list[tuple[Any, ...]] = session.run(
                f"{_BEFORE}{marked.format(**words)}{_AFTER}", *bound
            )
        except Exception as error:
            if "Invalid object name" in str(error):
                raise LookupError(str(table)) from error
            raise
        return found

    def count(
        self, session: Any, text: str, table: Table, *, to: Table | None = None, **values: Any
    ) -> int:
        """As Database."""
        return int(self.ask(session, f"{text}; SELECT @@ROWCOUNT", table, to=to, **values)[0][0])

    def install(self, session: Any, kind: str, table: Table) -> None:
        """As Database; whoever makes the same table at this moment waits for the lock."""
        queue = quoted(table)
        literal = queue.replace("'", "''")
        (database,) = session.run("SELECT QUOTENAME(DB_NAME())")[0]
        words = {
            "there": f"OBJECT_ID(N'{literal}', N'U') IS NOT NULL",
            "lock": f"{database.replace(chr(39), chr(39) * 2)}.{literal}_lock",
            "make": self.texts[kind].format(queue=queue),
        }
        with session.transaction():
            session.run(_INSTALL.format(**words))


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


def bracketed(name: str) -> str:
    """A name in brackets."""
    return "[" + name.replace("]", "]]") + "]"


def quoted(address: Table) -> str:
    """
    Schema and table of an address, as SQL names them, with the database if it is named.

    Raises:
        ValueError: a text that is no canonical address, `table@[schema]@[catalog]`.
    """
    if not isinstance(address, str):
        database = "" if address.catalog is None else f"{bracketed(address.catalog)}."
        return f"{database}{bracketed(address.schema or 'dbo')}.{bracketed(address.table)}"
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise ValueError(address)
    table, schema, database = found.groups()
    bare = table if "@" in table else bracketed(table)
    return f"{database}.{schema}.{bare}"
