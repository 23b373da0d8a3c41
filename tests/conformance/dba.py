"""
The DBA beside an endpoint: what someone with all rights does to queues, state tables and logins.

One verb for each thing that a test needs done, so that a test reads the same for every database.
What only one database has lies in shapes.py as text of that database. The same verbs for SQL
Server are in sqlserver_dba.py.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote, urlsplit

import psycopg
from psycopg import sql

from .shapes import POSTGRESQL, Shapes

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from sqlq_spark.wire.address import QueueAddress

    from .sqlserver_dba import SQLServer

    DBA: TypeAlias = "PostgreSQL | SQLServer"

Row = tuple[Any, ...]

# as an endpoint writes them
_FILL = """
INSERT INTO {queue} (id, headers, body)
SELECT gen_random_uuid(),
       '{"NServiceBus.MessageId":"m-' || n || '","NServiceBus.MessageIntent":"Send",'
       || '"NServiceBus.ContentType":"application\\/json",'
       || '"NServiceBus.EnclosedMessageTypes":"Shop.PlaceOrder",'
       || '"NServiceBus.TimeSent":"2026-06-30 17:05:09:123456 Z"}',
       convert_to('{"number":' || n || '}', 'UTF8')
  FROM generate_series(%s::int, %s::int - 1) AS n
 ORDER BY n
"""
_POISON = """
INSERT INTO {queue} (id, expires, headers, body)
SELECT gen_random_uuid(), CASE WHEN n <= %s THEN timestamp '2026-01-01' END, '["poison"]', ''
  FROM generate_series(1, %s) AS n
 ORDER BY n
"""

# columns, indexes and constraints of a schema
SHAPE = """
SELECT concat_ws(' ', c.relname, c.reloptions::text, a.attname, a.atttypid::regtype, a.attnotnull,
                 a.attstorage, pg_get_expr(d.adbin, d.adrelid))
  FROM pg_class AS c
  JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
  LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
 WHERE c.relnamespace = '"{0}"'::regnamespace
UNION ALL SELECT concat_ws(' ', conrelid::regclass, pg_get_constraintdef(oid)) FROM pg_constraint
 WHERE connamespace = '"{0}"'::regnamespace
ORDER BY 1
"""


@dataclass(frozen=True)
class CommonDBA(ABC):
    """What someone with all rights does alike on each database."""

    url: str
    state: str  # schema of the state tables

    @abstractmethod
    def quoted(self, queue: QueueAddress) -> str:
        """A table as SQL names it."""

    @abstractmethod
    def _on(self, queue: QueueAddress, text: str, *values: object) -> list[Row]:
        """Run a statement on a table, `{queue}`."""

    @abstractmethod
    def _state(self, text: str, table: str, values: dict[str, object]) -> None:
        """Run a statement on a state table: `{table}`, and `{sets}`, `{where}` … of the values."""

    # ------------------------------------------------------------ queues

    def count(self, table: QueueAddress) -> int:
        return int(self._on(table, "SELECT count(*) FROM {queue}")[0][0])

    def empty(self, queue: QueueAddress) -> None:
        self._on(queue, "DELETE FROM {queue}")

    def drop(self, queue: QueueAddress) -> None:
        self._on(queue, "DROP TABLE {queue}")

    def make_another(self, table: QueueAddress) -> None:
        """Make a table of this name that has nothing of a queue."""
        self._on(table, "CREATE TABLE {queue} (number int)")

    # ------------------------------------------------------------ state tables

    def change(self, table: str, **values: object) -> None:
        """Set columns in all rows of a state table."""
        self._state("UPDATE {table} SET {sets}", table, values)

    def forget(self, table: str, **where: object) -> None:
        """Delete rows of a state table, those that have these values."""
        self._state("DELETE FROM {table} WHERE {where}", table, where)

    def insert(self, table: str, **values: object) -> None:
        """Insert a row into a state table."""
        self._state("INSERT INTO {table} ({columns}) VALUES ({marks})", table, values)


@dataclass(frozen=True, kw_only=True)
class Login:
    """A user of the database, and how it connects."""

    name: str
    password: str
    url: str


def as_login(url: str, name: str, password: str) -> Login:
    """The same place, entered by another."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    user = f"{name}:{quote(password, safe='')}"
    there = parts._replace(netloc=f"{user}@{place}").geturl()
    return Login(name=name, password=password, url=there)


def quoted(queue: QueueAddress) -> str:
    """A table as SQL names it."""
    names = (queue.schema or "public", queue.table)
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


@dataclass(frozen=True)
class PostgreSQL(CommonDBA):
    """A superuser of PostgreSQL."""

    connection: psycopg.Connection[Row]

    @property
    def shapes(self) -> Shapes:
        """Tables that another release, or a DBA, made otherwise, in this database's words."""
        return POSTGRESQL

    def run(self, text: str) -> None:
        """Execute statements, one or more to a line, as an error or a finding has them."""
        for statement in text.split(";\n"):
            self.connection.execute(statement.encode())

    def on(self, queue: QueueAddress, text: str) -> None:
        """Execute statements of `shapes`, which end with `;`; `{queue}` is the table."""
        for statement in filter(str.strip, text.split(";")):
            named = statement.replace("{queue}", self.quoted(queue))
            words = {"table": queue.table, "sequence": f'"{queue.schema}".{queue.table}_seq_seq'}
            for word, name in words.items():
                named = named.replace(f"{{{word}}}", name)
            self.connection.execute(named.encode())

    def quoted(self, queue: QueueAddress) -> str:
        return quoted(queue)

    def _on(self, queue: QueueAddress, text: str, *values: object) -> list[Row]:
        # psycopg reads % in a name as a placeholder: double it, and always pass parameters
        named = text.replace("{queue}", self.quoted(queue).replace("%", "%%"))
        cursor = self.connection.execute(named.encode(), values)
        return cursor.fetchall() if cursor.description else []

    # ------------------------------------------------------------ queues

    def fill(self, queue: QueueAddress, first: int, stop: int) -> None:
        """Send messages `m-<first>` … `m-<stop - 1>` at once, their numbers in the order of seq."""
        self._on(queue, _FILL, first, stop)

    def retype(self, queue: QueueAddress, types: Sequence[str]) -> None:
        """Give what `fill` sent other message types, in turn by seq."""
        text = "UPDATE {queue} SET headers = replace(headers, 'Shop.PlaceOrder', %s)"
        for at, name in enumerate(types):
            self._on(queue, f"{text} WHERE seq %% %s = %s", name, len(types), at)

    def poison(self, queue: QueueAddress, messages: int, *, expired: int) -> None:
        """Send messages that no one can read at once; the first ones have expired."""
        self._on(queue, _POISON, expired, messages)

    def set_expires(self, queue: QueueAddress, row: uuid.UUID, moment: datetime) -> None:
        """Let a message expire at a moment in UTC."""
        self._on(queue, "UPDATE {queue} SET Expires = %s::timestamp WHERE Id = %s", moment, row)

    def lifetimes(self, queue: QueueAddress) -> list[float | None]:
        """For how many seconds messages live from now, by seq."""
        seconds = "extract(epoch FROM Expires - (now() AT TIME ZONE 'UTC'))::float8"
        return [row[0] for row in self._on(queue, f"SELECT {seconds} FROM {{queue}} ORDER BY Seq")]

    def truncate(self, queue: QueueAddress) -> None:
        """Delete all messages, waiting for every transaction that works on the table."""
        self._on(queue, "TRUNCATE {queue}")

    def delete(self, queue: QueueAddress, seqs: Sequence[int]) -> None:
        self._on(queue, "DELETE FROM {queue} WHERE Seq = ANY (%s)", list(seqs))

    def rewrite(self, queue: QueueAddress, headers: str) -> None:
        self._on(queue, "UPDATE {queue} SET Headers = %s", headers)

    def put_at(self, queue: QueueAddress, seq: int) -> None:
        """Insert a message at a seq; those that come after get the seqs that they would get."""
        if seq >= 2**31:
            self._on(queue, "ALTER TABLE {queue} ALTER Seq TYPE bigint")
        insert = "INSERT INTO {queue} (Id, Headers, Body, Seq)"
        self._on(queue, f"{insert} VALUES (gen_random_uuid(), '{{}}', 'x', %s)", seq)

    def make_due(self, table: QueueAddress, seconds: float) -> None:
        """Let delayed messages be due so much earlier."""
        self._on(table, "UPDATE {queue} SET due = due - make_interval(secs => %s)", seconds)

    def expires_index(self, queue: QueueAddress, *, there: bool) -> None:
        """Make an index on Expires, or take it away. The transport makes none here."""
        if there:
            where = "WHERE expires > '-infinity'"
            self._on(queue, f"CREATE INDEX ON {{queue}} (expires) {where}")

    def swell(self, queue: QueueAddress) -> None:
        """Send so much that it is no small table any more; where that makes a difference."""
        self._on(queue, "ALTER TABLE {queue} SET (fillfactor = 10)")
        insert = "INSERT INTO {queue} (id, headers, body) SELECT gen_random_uuid(), '{}', "
        self._on(queue, f"{insert} repeat('x', 900)::bytea FROM generate_series(1, 8192)")
        self._on(queue, "VACUUM {queue}")

    def indexes(self, table: QueueAddress) -> list[tuple[str, str]]:
        """The indexes of a table but that of its key: name, first column in lower case."""
        text = """
        SELECT c.relname, a.attname
          FROM pg_index AS i
          JOIN pg_class AS c ON c.oid = i.indexrelid
          JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
         WHERE i.indrelid = %s::regclass AND NOT indisprimary
        """
        found = self.connection.execute(text.encode(), [self.quoted(table)])
        return [(name, column) for name, column in found]

    def rename(self, queue: QueueAddress, column: str, to: str) -> None:
        self._on(queue, f"ALTER TABLE {{queue}} RENAME COLUMN {column} TO {to}")

    def refuse(self, queue: QueueAddress) -> None:
        """Let the table refuse every message, saying `not today`."""
        does = "LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'not today'; END$$"
        refuse = f'"{queue.schema}".refuse()'
        self._on(queue, f"CREATE FUNCTION {refuse} RETURNS trigger {does}")
        self._on(queue, f"CREATE TRIGGER t BEFORE INSERT ON {{queue}} EXECUTE FUNCTION {refuse}")

    def refuse_late(self, queue: QueueAddress) -> None:
        """Let the table refuse every message when it is committed; where that can be."""
        self.refuse(queue)
        self._on(queue, "DROP TRIGGER t ON {queue}")
        late = "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION"
        refuse = f'"{queue.schema}".refuse()'
        self._on(queue, f"CREATE CONSTRAINT TRIGGER t AFTER INSERT ON {{queue}} {late} {refuse}")

    def no_queues(self, archive: QueueAddress, view: QueueAddress, queue: QueueAddress) -> None:
        """Make a table that is no queue, and a view of a queue."""
        self._on(archive, "CREATE TABLE {queue} (id uuid, headers text, body bytea)")
        self._on(queue, f"CREATE VIEW {self.quoted(view)} AS SELECT * FROM {{queue}}")

    # ------------------------------------------------------------ state tables

    def _state(self, text: str, table: str, values: dict[str, object]) -> None:
        columns = [sql.Identifier(name) for name in values]
        pairs = [sql.SQL("{} = {}").format(each, sql.Placeholder()) for each in columns]
        composed = sql.SQL(text).format(
            table=sql.Identifier(self.state, table),
            sets=sql.SQL(", ").join(pairs),
            where=sql.SQL(" AND ").join([sql.SQL("true"), *pairs]),
            columns=sql.SQL(", ").join(columns),
            marks=sql.SQL(", ").join(sql.Placeholder() * len(columns)),
        )
        self.connection.execute(composed, list(values.values()))

    @contextmanager
    def closed(self, queue: QueueAddress) -> Iterator[None]:
        """Lock a queue against whoever would send to it, as long as the block lasts."""
        with psycopg.connect(self.url) as other:
            other.execute(f"LOCK TABLE {self.quoted(queue)} IN SHARE MODE".encode())
            yield
            other.rollback()

    def age(self, table: str, column: str, *, hours: int) -> None:
        """Let what a state table records have been so much earlier."""
        earlier = f"{column} - interval '{hours} hours'"
        self._state(f"UPDATE {{table}} SET {column} = {earlier}", table, {})

    def drop_schema(self, name: str) -> None:
        """Drop a schema with its tables, if it is there."""
        text = sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name))
        self.connection.execute(text)

    # ------------------------------------------------------------ logins

    def login(self, **more: str) -> Login:
        """Make a login that may do nothing; `more`: its `password`; `all`, to let it do all."""
        name, password = f"role_{secrets.token_hex(4)}", more.get("password", "secret")
        kind = sql.SQL("SUPERUSER LOGIN" if "all" in more else "LOGIN")
        text = sql.SQL("CREATE ROLE {} {} PASSWORD {}")
        self.connection.execute(text.format(sql.Identifier(name), kind, sql.Literal(password)))
        return as_login(self.url, name, password)

    def admit(self, login: Login, schema: str) -> None:
        """Let a login see what a schema holds, where that is a right of its own."""
        self.connection.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO {login.name}'.encode())

    def enlist(self, login: Login) -> None:
        """Give a login what the team of the state schema may do there."""
        rights = f'SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{self.state}"'
        self.connection.execute(f"GRANT {rights} TO {login.name}".encode())

    def grant(self, login: Login, right: str, queue: QueueAddress) -> None:
        """Give a right on a queue, with what this database asks for beside it."""
        given = [f"{right} ON {{queue}}", f'USAGE ON SCHEMA "{queue.schema}"']
        if right == "INSERT":
            given.append(f'USAGE ON SEQUENCE "{queue.schema}"."{queue.table}_seq_seq"')
        for each in given:
            self._on(queue, f"GRANT {each} TO {login.name}")

    def drop_login(self, login: Login) -> None:
        """Take the login away with its rights."""
        self.connection.execute(f"DROP OWNED BY {login.name}".encode())
        self.connection.execute(f"DROP ROLE {login.name}".encode())
