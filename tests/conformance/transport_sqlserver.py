"""
The SQL Server transport's own statements; see transport.py.

The sessions are not the package's, and each text is executed as it is here, so that a mistake of
ours is not made twice. `:name` is a value.
"""

from __future__ import annotations

import re
import secrets
import uuid
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from sqlq_spark.database.sqlserver import drivers
from sqlq_spark.database.sqlserver.url import Target

from .dba import DBA, Login
from .shapes import SQLSERVER, Shapes
from .transport import Busy, DotNet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pytest

    from sqlq_spark.wire.address import QueueAddress

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
# {there}: whether the table is there; {make} creates it. The check is repeated under the lock.
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
# columns of a send, and their values
_SENT = {
    "Id": "CAST(:row AS uniqueidentifier)",
    "CorrelationId": "NULL",
    "ReplyToAddress": "NULL",
    "Recoverable": "1",
    "Expires": "DATEADD(ms, CAST(:lives AS int), GETUTCDATE())",
    "Headers": "CAST(:headers AS nvarchar(max))",
    "Body": "CAST(:body AS varbinary(max))",
}


def _insert(columns: Iterable[str]) -> str:
    values = ", ".join(_SENT[name] for name in columns)
    return f"INSERT INTO {{queue}} ({', '.join(columns)}) VALUES ({values})"


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
        SELECT CASE i.is_primary_key WHEN 1 THEN '' ELSE i.name END AS index_name, i.type_desc,
               i.is_unique, i.filter_definition, c.name, k.is_included_column
          FROM sys.indexes AS i
          JOIN sys.index_columns AS k ON k.object_id = i.object_id AND k.index_id = i.index_id
          JOIN sys.columns AS c ON c.object_id = k.object_id AND c.column_id = k.column_id
         WHERE i.object_id = OBJECT_ID(N'{text}') ORDER BY index_name, k.index_column_id""",
    "send": _insert(_SENT),
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
    "clock": "SELECT GETUTCDATE()",
}
# what a DBA does
_NUMBERS = (
    "(SELECT TOP (:many) :before + ROW_NUMBER() OVER (ORDER BY (SELECT NULL)) AS n"
    " FROM sys.all_columns AS a CROSS JOIN sys.all_columns AS b) AS numbers ORDER BY n"
)
_DBA = {
    "count": "SELECT COUNT(*) FROM {queue} WITH (NOLOCK)",  # what others hold is counted too
    "closed": "SELECT TOP (1) 1 FROM {queue} WITH (TABLOCK, HOLDLOCK)",
    "fill": (
        "INSERT INTO {queue} (Id, Recoverable, Headers, Body) SELECT NEWID(), 1, CONCAT("
        """ N'{{"NServiceBus.MessageId":"m-', n, N'","NServiceBus.MessageIntent":"Send",', """
        """ N'"NServiceBus.ContentType":"application\\/json",', """
        """ N'"NServiceBus.EnclosedMessageTypes":"Shop.PlaceOrder",', """
        """ N'"NServiceBus.TimeSent":"2026-06-30 17:05:09:123456 Z"}}'), """
        """ CAST(CONCAT('{{"number":', n, '}}') AS varbinary(max)) """
        f"FROM {_NUMBERS}"
    ),
    "poison": (
        "INSERT INTO {queue} (Id, Recoverable, Expires, Headers, Body) SELECT NEWID(), 1,"
        " CASE WHEN n <= :expired THEN '2026-01-01' END, N'[\"poison\"]', 0x"
        f" FROM {_NUMBERS}"
    ),
    "set_expires": "UPDATE {queue} SET Expires = CAST(:moment AS datetime2(6)) WHERE Id = :row",
    "lifetimes": (
        "SELECT CAST(DATEDIFF_BIG(ms, GETUTCDATE(), Expires) AS float) / 1000"
        " FROM {queue} ORDER BY RowVersion"
    ),
    "truncate": "TRUNCATE TABLE {queue}",
    "delete": "DELETE FROM {queue} WHERE RowVersion IN (:seqs)",
    "rewrite": "UPDATE {queue} SET Headers = CAST(:headers AS nvarchar(max))",
    # An UPDATE cannot set an identity. After this INSERT the numbers go on as before.
    "put_at": (
        "DECLARE @next bigint = ISNULL((SELECT CAST(last_value AS bigint) FROM sys.identity_columns"
        " WHERE object_id = OBJECT_ID(N'{text}')), 0);"
        " SET IDENTITY_INSERT {queue} ON;"
        " INSERT INTO {queue} (Id, Recoverable, Headers, RowVersion)"
        " VALUES (NEWID(), 1, N'{{}}', CAST(:seq AS bigint));"
        " SET IDENTITY_INSERT {queue} OFF;"
        " DBCC CHECKIDENT (N'{text}', RESEED, @next) WITH NO_INFOMSGS;"
    ),
    # an identity goes on behind the number that was set
    "set_next": (
        "DECLARE @last bigint = CAST(:seq AS bigint) - 1;"
        " DBCC CHECKIDENT (N'{text}', RESEED, @last) WITH NO_INFOMSGS;"
    ),
    "make_due": "UPDATE {queue} SET Due = DATEADD(second, -:seconds, Due)",
    "unindex_expires": "DROP INDEX IF EXISTS Index_Expires ON {queue}",
    # not a trigger, which would undo the whole transaction; no constraint waits for the commit
    "refuse": "ALTER TABLE {queue} ADD CONSTRAINT [not today] CHECK (1 = 0)",
    "own": "SELECT 1",  # nothing to do: our sessions run as dbo
    "archive": (
        "CREATE TABLE {queue} (Id uniqueidentifier, Headers nvarchar(max), Body varbinary(max))"
    ),
    "view": "CREATE VIEW {queue} AS SELECT * FROM {to}",
}


@dataclass(frozen=True)
class Session:
    """A session whose transactions are begun and ended by whoever uses it."""

    raw: Any

    def run(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        """Execute a text, and return the rows of its first result that has any."""
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
        """End the session."""
        self.raw.close()


# views first, because they may select from the tables
_TABLES = """
SELECT o.name, CASE o.type WHEN 'V' THEN 'VIEW' ELSE 'TABLE' END
  FROM sys.objects AS o JOIN sys.schemas AS s ON s.schema_id = o.schema_id
 WHERE s.name = ? AND o.type IN ('U', 'V')
 ORDER BY o.type DESC
"""
_OWNED = """
SELECT QUOTENAME(SCHEMA_NAME(schema_id)) + N'.' + QUOTENAME(name)
  FROM sys.objects
 WHERE principal_id = DATABASE_PRINCIPAL_ID(?) AND type = 'U'
"""
_SESSIONS_OF = "SELECT session_id FROM sys.dm_exec_sessions WHERE login_name = ?"
_SESSION = "SELECT 1 FROM sys.dm_exec_sessions WHERE session_id = {}"


@dataclass(frozen=True)
class SQLServerDBA(DBA):
    """A sysadmin of SQL Server."""

    def drop_login(self, login: Login) -> None:
        """
        Drop a login when its sessions have ended, because SQL Server refuses it before.

        Its tables get the owner of their schema, because SQL Server drops no owner of tables.
        """
        for (table,) in self.dotnet.execute(_OWNED, login.name):
            self.dotnet.execute(f"ALTER AUTHORIZATION ON OBJECT::{table} TO SCHEMA OWNER")
        while found := self.dotnet.execute(_SESSIONS_OF, login.name):
            for (session,) in found:
                self.dotnet.execute(f"IF EXISTS ({_SESSION.format(session)}) KILL {int(session)}")
        super().drop_login(login)


@dataclass(frozen=True)
class SQLServer(DotNet):
    """An endpoint of the SQL Server transport, run by whichever driver is there."""

    connection: Session
    dialect: ClassVar[str] = "sqlserver"
    shapes: ClassVar[Shapes] = SQLSERVER
    texts: ClassVar[Mapping[str, str]] = _SQLSERVER | _DBA
    home: ClassVar[str] = "dbo"
    mark: ClassVar[str] = ":{}"
    counts: ClassVar[str] = "; SELECT @@ROWCOUNT"
    earlier: ClassVar[str] = "DATEADD(hour, -{1}, {0})"
    # our sessions say who they are in context_info
    active: ClassVar[str] = """
        SELECT s.session_id, CASE WHEN r.wait_type LIKE 'LCK%' THEN 1 ELSE 0 END
          FROM sys.dm_exec_sessions AS s
          LEFT JOIN sys.dm_exec_requests AS r ON r.session_id = s.session_id
         WHERE s.session_id <> @@SPID
           AND CHARINDEX(?, CAST(s.context_info AS varchar(128))) > 0"""
    ends: ClassVar[str] = "KILL {}"
    makes_expires_index: ClassVar[bool] = True
    keeps_ids: ClassVar[bool] = False
    numbers_once: ClassVar[bool] = False
    stored: ClassVar[str] = "utf-16-le"
    has_body_string: ClassVar[bool] = False

    @classmethod
    @contextmanager
    def placed(cls, request: pytest.FixtureRequest) -> Iterator[Self]:
        """Give an endpoint in new schemas, which are dropped after the test."""
        schema, state = (f"{kind}_{secrets.token_hex(6)}" for kind in ("test", "state"))
        url = request.getfixturevalue("sqlserver_server")
        unconnected = cls(url, schema, state, None)  # type: ignore[arg-type]
        with closing(unconnected.connect(None, 60.0)) as connection:
            dotnet = replace(unconnected, connection=connection)
            dotnet.execute(f"EXEC (N'CREATE SCHEMA {schema}')")
            try:
                yield dotnet
            finally:
                for each in (schema, state):
                    dotnet.drop_schema(each)

    def spellings(self, table: str) -> list[str]:
        # brackets around the table would be part of its name
        return [f"{table}@{self.schema}", f"{table}@[{self.schema}]"]

    def in_list(self, table: str) -> str:
        return f"{self.quote(table)}@{self.quote(self.schema)}"

    @property
    def dba(self) -> DBA:
        return SQLServerDBA(self)

    def connect(self, zone: str | None, patience: float) -> Session:
        """Open a session. Sessions of SQL Server have no time zone."""
        del zone
        made = Session(drivers.open_session(Target.parse(self.url), "dotnet", 10)[1])
        made.run(f"SET LOCK_TIMEOUT {int(patience * 1000)}")
        return made

    def execute(self, text: str, *values: object) -> list[Row]:
        return self.connection.run(text, *values)

    def ask(
        self, text: str, table: QueueAddress, *, to: QueueAddress | None = None, **values: Any
    ) -> list[Row]:
        marked, bound = parameters(text, values)
        words = self.words(table, to)
        try:
            return self.execute(f"{_BEFORE}{marked.format(**words)}{_AFTER}", *bound)
        except Exception as error:
            if "Invalid object name" in str(error):
                raise LookupError(str(table)) from error
            raise

    def send(
        self,
        queue: QueueAddress,
        headers: str | None = "{}",
        body: bytes | None = b"{}",
        *,
        lives: int | None = None,
        row: uuid.UUID | None = None,
    ) -> uuid.UUID:
        """
        Insert one message.

        Endpoints of an older release leave out the columns that its table lacks.
        """
        row = row or uuid.uuid4()
        values: dict[str, Any] = {"row": row, "lives": lives, "headers": headers, "body": body}
        try:
            self.ask(self.texts["send"], queue, **values)
        except Exception as error:
            if "Invalid column name" not in str(error):
                raise
            there = {str(column[0]) for column in self.ask(self.texts["columns"], queue)}
            self.ask(_insert([name for name in _SENT if name in there]), queue, **values)
        return row

    def quote(self, name: str) -> str:
        return "[" + name.replace("]", "]]") + "]"

    def drop_schema(self, name: str) -> None:
        for table, kind in self.execute(_TABLES, name):
            self.execute(f"DROP {kind} {self.quote(name)}.{self.quote(table)}")
        if self.execute("SELECT 1 FROM sys.schemas WHERE name = ?", name):
            self.execute(f"DROP SCHEMA {self.quote(name)}")

    def install(self, kind: str, table: QueueAddress) -> None:
        """Make a table, and wait for the lock if another session makes the same one."""
        words = self.words(table)
        queue, literal = words["queue"], words["text"]
        (database,) = self.execute("SELECT QUOTENAME(DB_NAME())")[0]
        whole = {
            "there": f"OBJECT_ID(N'{literal}', N'U') IS NOT NULL",
            "lock": f"{database.replace(chr(39), chr(39) * 2)}.{literal}_lock",
            "make": self.texts[kind].format(queue=queue),
        }
        with self.connection.transaction():
            self.execute(_INSTALL.format(**whole))


def parameters(text: str, values: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """
    A text with `?` for each `:name`, and the values.

    Numbers and NULL are written into the text.
    """
    bound: list[Any] = []

    def mark(value: Any) -> str:
        if isinstance(value, list):
            return ", ".join(map(mark, value)) or "NULL"
        if value is None or isinstance(value, int):  # no driver has to guess the type of a NULL
            return "NULL" if value is None else str(int(value))
        bound.append(str(value) if isinstance(value, uuid.UUID) else value)
        return "?"

    return re.sub(r"(?<!\w):(\w+)", lambda found: mark(values[found[1]]), text), bound
