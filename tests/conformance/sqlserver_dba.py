"""The DBA of SQL Server; see dba.py. Its sessions commit each statement alone."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .dba import CommonDBA, Login, as_login
from .shapes import SQLSERVER, Shapes

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime

    from sqlq_spark.wire.address import QueueAddress

    from .dba import Row

# A row is copied to another seq, which an UPDATE cannot give; then the numbers go on as before.
_PUT_AT = """
DECLARE @next bigint = ISNULL((SELECT MAX(RowVersion) FROM {queue}), 0);
SET IDENTITY_INSERT {queue} ON;
INSERT INTO {queue} (Id, {recoverable}Headers, Body, RowVersion)
VALUES (NEWID(), {one}N'{{}}', 0x78, CAST(? AS bigint));
SET IDENTITY_INSERT {queue} OFF;
DBCC CHECKIDENT (N'{text}', RESEED, @next) WITH NO_INFOMSGS;
"""
# {numbers}: a table of numbers n
_FILL = """
INSERT INTO {queue} (Id, Recoverable, Headers, Body)
SELECT NEWID(), 1,
       CONCAT(N'{{"NServiceBus.MessageId":"m-', n, N'","NServiceBus.MessageIntent":"Send",',
              N'"NServiceBus.ContentType":"application\\/json",',
              N'"NServiceBus.EnclosedMessageTypes":"Shop.PlaceOrder",',
              N'"NServiceBus.TimeSent":"2026-06-30 17:05:09:123456 Z"}}'),
       CAST(CONCAT('{{"number":', n, '}}') AS varbinary(max))
  FROM {numbers} AS numbers
 ORDER BY n
"""
_POISON = """
INSERT INTO {queue} (Id, Recoverable, Expires, Headers, Body)
SELECT NEWID(), 1, CASE WHEN n <= {expired} THEN '2026-01-01' END, N'["poison"]', 0x
  FROM {numbers} AS numbers
 ORDER BY n
"""
_NUMBERS = """(
SELECT TOP ({}) {} + ROW_NUMBER() OVER (ORDER BY (SELECT NULL)) AS n
  FROM sys.all_columns AS a CROSS JOIN sys.all_columns AS b)"""
_INDEXES = """
SELECT i.name, LOWER(c.name)
  FROM sys.indexes AS i
  JOIN sys.index_columns AS k
    ON k.object_id = i.object_id AND k.index_id = i.index_id AND k.key_ordinal = 1
  JOIN sys.columns AS c ON c.object_id = k.object_id AND c.column_id = k.column_id
 WHERE i.object_id = OBJECT_ID(N'{text}', N'U') AND i.is_primary_key = 0
"""
_UNINDEX = "DROP INDEX IF EXISTS Index_Expires ON {queue}"
_INDEX = """
IF NOT EXISTS (SELECT 1 FROM sys.indexes
                WHERE object_id = OBJECT_ID(N'{text}', N'U') AND name = N'Index_Expires')
    CREATE NONCLUSTERED INDEX Index_Expires ON {queue} (Expires)
           INCLUDE (Id, RowVersion) WHERE Expires IS NOT NULL
"""
_RENAME = "EXEC sys.sp_rename N'{text}.{column}', N'{to}', 'COLUMN'"
# views first, which may be of the tables
_TABLES = """
SELECT o.name, CASE o.type WHEN 'V' THEN 'VIEW' ELSE 'TABLE' END
  FROM sys.objects AS o JOIN sys.schemas AS s ON s.schema_id = o.schema_id
 WHERE s.name = ? AND o.type IN ('U', 'V')
 ORDER BY o.type DESC
"""
_SESSIONS_OF = "SELECT session_id FROM sys.dm_exec_sessions WHERE login_name = ?"
_SESSION = "SELECT 1 FROM sys.dm_exec_sessions WHERE session_id = {}"


def bracketed(name: str) -> str:
    """A name as SQL Server quotes it."""
    return "[" + name.replace("]", "]]") + "]"


def quoted(queue: QueueAddress) -> str:
    """Schema and table as SQL names them, with the database if it is named."""
    database = "" if queue.catalog is None else f"{bracketed(queue.catalog)}."
    return f"{database}{bracketed(queue.schema or 'dbo')}.{bracketed(queue.table)}"


def _numbers(first: int, stop: int) -> str:
    return _NUMBERS.format(max(0, stop - first), first - 1)


@dataclass(frozen=True)
class SQLServer(CommonDBA):
    """A sysadmin of SQL Server."""

    execute: Callable[..., list[Row]]  # a statement and its values → rows
    transaction: Callable[[], AbstractContextManager[Callable[..., list[Row]]]]

    @property
    def shapes(self) -> Shapes:
        return SQLSERVER

    def run(self, text: str) -> None:
        for statement in text.split(";\n"):
            self.execute(statement)

    def on(self, queue: QueueAddress, text: str) -> None:
        """As DBA; no name in it holds a semicolon."""
        for statement in filter(str.strip, text.split(";")):
            named = statement.replace("{queue}", self.quoted(queue))
            self.execute(named.replace("{text}", self.quoted(queue).replace("'", "''")))

    def quoted(self, queue: QueueAddress) -> str:
        return quoted(queue)

    def _on(self, queue: QueueAddress, text: str, *values: object, **words: str) -> list[Row]:
        quoted = self.quoted(queue)
        named = text.format(queue=quoted, text=quoted.replace("'", "''"), **words)
        return self.execute(named, *values)

    # ------------------------------------------------------------ queues

    def count(self, table: QueueAddress) -> int:
        """As DBA; what others hold is counted too."""
        return int(self._on(table, "SELECT COUNT(*) FROM {queue} WITH (NOLOCK)")[0][0])

    def fill(self, queue: QueueAddress, first: int, stop: int) -> None:
        self._on(queue, _FILL.replace("{numbers}", _numbers(first, stop)))

    def retype(self, queue: QueueAddress, types: Sequence[str]) -> None:
        text = "REPLACE(Headers, N'Shop.PlaceOrder', CAST(? AS nvarchar(1000)))"
        for at, name in enumerate(types):
            where = f"RowVersion % {len(types)} = {at}"
            self._on(queue, f"UPDATE {{queue}} SET Headers = {text} WHERE {where}", name)

    def poison(self, queue: QueueAddress, messages: int, *, expired: int) -> None:
        text = _POISON.replace("{numbers}", _numbers(1, messages + 1))
        self._on(queue, text.replace("{expired}", str(expired)))

    def set_expires(self, queue: QueueAddress, row: uuid.UUID, moment: datetime) -> None:
        text = "UPDATE {queue} SET Expires = CAST(? AS datetime2(6)) WHERE Id = ?"
        self._on(queue, text, moment.isoformat(sep=" "), str(row))

    def lifetimes(self, queue: QueueAddress) -> list[float | None]:
        seconds = "CAST(DATEDIFF_BIG(ms, GETUTCDATE(), Expires) AS float) / 1000"
        found = self._on(queue, f"SELECT {seconds} FROM {{queue}} ORDER BY RowVersion")
        return [row[0] for row in found]

    def truncate(self, queue: QueueAddress) -> None:
        self._on(queue, "TRUNCATE TABLE {queue}")

    def delete(self, queue: QueueAddress, seqs: Sequence[int]) -> None:
        numbers = ", ".join(str(int(seq)) for seq in seqs) or "NULL"
        self._on(queue, f"DELETE FROM {{queue}} WHERE RowVersion IN ({numbers})")

    def rewrite(self, queue: QueueAddress, headers: str) -> None:
        self._on(queue, "UPDATE {queue} SET Headers = CAST(? AS nvarchar(max))", headers)

    def put_at(self, queue: QueueAddress, seq: int) -> None:
        there = self.execute(f"SELECT COL_LENGTH(N'{self.quoted(queue)}', N'Recoverable')")[0][0]
        words = {"recoverable": "Recoverable, ", "one": "1, "} if there else {}
        self._on(queue, _PUT_AT, seq, **({"recoverable": "", "one": ""} | words))

    def make_due(self, table: QueueAddress, seconds: float) -> None:
        milliseconds = int(seconds * 1000)
        self._on(table, f"UPDATE {{queue}} SET Due = DATEADD(ms, {-milliseconds}, Due)")

    def expires_index(self, queue: QueueAddress, *, there: bool) -> None:
        self._on(queue, _INDEX if there else _UNINDEX)

    def swell(self, queue: QueueAddress) -> None:
        """As DBA; any table without the index is found."""

    def indexes(self, table: QueueAddress) -> list[tuple[str, str]]:
        return [(name, column) for name, column in self._on(table, _INDEXES)]

    def rename(self, queue: QueueAddress, column: str, to: str) -> None:
        """As DBA; the filter of an index may not speak of the column."""
        self._on(queue, _UNINDEX)
        self._on(queue, _RENAME, column=column, to=to)

    def refuse(self, queue: QueueAddress) -> None:
        """As DBA; a trigger would undo the whole transaction."""
        self._on(queue, "ALTER TABLE {queue} ADD CONSTRAINT [not today] CHECK (1 = 0)")

    def refuse_late(self, queue: QueueAddress) -> None:
        """As DBA; no constraint waits for the commit here."""
        self.refuse(queue)

    def no_queues(self, archive: QueueAddress, view: QueueAddress, queue: QueueAddress) -> None:
        columns = "Id uniqueidentifier, Headers nvarchar(max), Body varbinary(max)"
        self._on(archive, f"CREATE TABLE {{queue}} ({columns})")
        self._on(queue, "CREATE VIEW {view} AS SELECT * FROM {queue}", view=self.quoted(view))

    # ------------------------------------------------------------ state tables

    def _state(self, text: str, table: str, values: dict[str, object]) -> None:
        pairs = [f"{bracketed(name)} = ?" for name in values]
        named = text.format(
            table=f"{bracketed(self.state)}.{bracketed(table)}",
            sets=", ".join(pairs),
            where=" AND ".join(["1 = 1", *pairs]),
            columns=", ".join(map(bracketed, values)),
            marks=", ".join("?" * len(values)),
        )
        self.execute(named, *values.values())

    @contextmanager
    def closed(self, queue: QueueAddress) -> Iterator[None]:
        with self.transaction() as execute:
            execute(f"SELECT TOP (1) 1 FROM {self.quoted(queue)} WITH (TABLOCK, HOLDLOCK)")
            yield

    def age(self, table: str, column: str, *, hours: int) -> None:
        earlier = f"DATEADD(hour, {-hours}, {column})"
        self._state(f"UPDATE {{table}} SET {column} = {earlier}", table, {})

    def drop_schema(self, name: str) -> None:
        for table, kind in self.execute(_TABLES, name):
            self.execute(f"DROP {kind} {bracketed(name)}.{bracketed(table)}")
        if self.execute("SELECT 1 FROM sys.schemas WHERE name = ?", name):
            self.execute(f"DROP SCHEMA {bracketed(name)}")

    # ------------------------------------------------------------ logins

    def login(self, **more: str) -> Login:
        name, password = f"role_{secrets.token_hex(4)}", more.get("password", "secret-A1")
        literal = "N'" + password.replace("'", "''") + "'"
        self.execute(f"CREATE LOGIN {name} WITH PASSWORD = {literal}, CHECK_POLICY = OFF")
        self.execute(f"CREATE USER {name} FOR LOGIN {name}")
        if "all" in more:
            self.execute(f"ALTER ROLE db_owner ADD MEMBER {name}")
        return as_login(self.url, name, password)

    def admit(self, login: Login, schema: str) -> None:
        """As DBA; there is no such right."""

    def enlist(self, login: Login) -> None:
        rights = f"SELECT, INSERT, UPDATE, DELETE ON SCHEMA::{bracketed(self.state)}"
        self.run(f"GRANT {rights} TO {login.name}")

    def grant(self, login: Login, right: str, queue: QueueAddress) -> None:
        self._on(queue, f"GRANT {right} ON {{queue}} TO {login.name}")

    def drop_login(self, login: Login) -> None:
        """As DBA; a login with a session cannot be dropped, and one may still be ending."""
        while found := self.execute(_SESSIONS_OF, login.name):
            for (session,) in found:
                self.execute(f"IF EXISTS ({_SESSION.format(session)}) KILL {int(session)}")
        self.execute(f"DROP USER {login.name}")
        self.execute(f"DROP LOGIN {login.name}")
