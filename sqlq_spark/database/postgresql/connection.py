"""
PostgreSQL, by its ADBC driver: rows come and go as Arrow, without a Python object for each.

Measured, 2 connections, 1.2 kB rows: DELETE … RETURNING into Arrow 170k rows/s, psycopg's rows
113-180k/s before they are Arrow.
Transactions are begun by statement, so the driver stays in its autocommit mode throughout.

The driver prepares a statement and runs it by separate messages. A pooler that lends a session for
a transaction (PgBouncer) may hand the second of them to another session, which has not prepared it,
or has prepared another one. So every statement runs in a transaction, if need be in one of its own,
and what begins and ends a transaction is sent whole, in one message.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from adbc_driver_manager import Error
from adbc_driver_postgresql import dbapi

from sqlq_spark import errors
from sqlq_spark.database import Destination, Row, Statements, Value
from sqlq_spark.database.postgresql import url as postgresql_url
from sqlq_spark.wire.address import (
    QueueAddress,
    due_index,
    identifier,
    parse_postgresql,
    print_postgresql,
    quote_postgresql,
)
from sqlq_spark.wire.rows import readable

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger("sqlq_spark")

STATEMENTS = Statements.load("postgresql")
IDENTIFIER = re.compile(r"\{([a-z]+)\}")
PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")

OLDEST = 13  # gen_random_uuid; what is older is not tried
STORED = 500  # pages of a payload, 4 MB, that are on their way at a time

KINDS = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    type(None): pa.null(),
}

# of a url; a raw /, ?, @ or blank in its password would be taken for the end of that
HOST = r"(?:\[[^\[\]@/?\s]*\]|[^\[\]:,@/?\s]*)(?::[0-9]*)?"
URL = re.compile(
    rf"(?P<scheme>\w+)://(?:[^@/?\s]*@)?(?P<hosts>{HOST}(?:,{HOST})*)(?P<path>/[^@?\s]*)?"
    r"(?:\?[^=&\s]+=[^&\s]*(?:&[^=&\s]+=[^&\s]*)*)?"
)
UNCODED = re.compile(r"%(?:00|(?![0-9A-Fa-f]{2}))")

# of a server that is there, while one connects: crashed, stopping, starting
GONE = (
    r"terminat|closed the connection|reset by peer|is (?:starting|shutting|not yet)|recovery mode"
)

# of a client that trusts no such certificate, or a server that has none
UNVERIFIED = (
    r"certificate verify failed|[Ss]erver certificate for|root certificate|"
    r"does not support SSL, but SSL was required|could not get server's host name|"
    r"host name must be specified for a verified"
)

# of a pooler that takes no settings when a session starts: PgBouncer, RDS Proxy
NO_OPTIONS = r"unsupported startup parameter|command-line options"
WITHOUT_OPTIONS: set[str] = set()  # servers that said so to this process
SEARCH_PATH = "-c search_path=pg_catalog,pg_temp"

# of SQLSTATE: the message or the table is at fault, so that another attempt would fail as well
LASTING = ("0A", "22", "23", "42", "44", "P0")

# of the time that a statement may take: who ends sooner was cancelled; the SQLSTATE is the same
SURELY = 0.95

# statements after which a failure undoes what came since the savepoint, or the whole transaction,
# or nothing; each is sent in one message
OPEN = {"begin": 1, "savepoint": 2, "release": 1, "commit": 0, "rollback": 0}
UNDO = (
    ("ROLLBACK",),  # which tells at least whether the session is alive
    ("ROLLBACK",),
    ("ROLLBACK TO SAVEPOINT attempt", "RELEASE SAVEPOINT attempt"),
)

printed = print_postgresql


def connect(url: str, *, application: str, timeout: float, state: str) -> Connection:
    """
    Open a session.

    Args:
        url: a libpq URI.
        application: shown in pg_stat_activity between transactions.
        timeout: seconds to wait for the server.
        state: schema of the state tables.

    Raises:
        BadOption: the url cannot be read.
        NotReachable, LoginRefused, DatabaseNotFound: in the server's words.
        ConnectionLost: the server is there, and went away or is not ready yet.
        ServerNotVerified: it has no certificate for that host name that is trusted here.
        ServerTooOld: it lacks what the statements use.
    """
    server = redacted(url)
    raw = opened(url, server, application, timeout)
    major, minor = divmod(int(raw.adbc_get_info()["vendor_version"]), 10_000)  # of 180006
    if major < OLDEST:
        raw.close()
        raise errors.ServerTooOld(server, f"{major}.{minor}", OLDEST)
    return Connection(raw, server=server, state=state, timeout=timeout, application=application)


def opened(url: str, server: str, application: str, timeout: float) -> dbapi.Connection:
    """
    Open the driver's connection.

    The driver reads the catalogue before we can send anything, so the search path is a parameter of
    the start, too. A pooler may refuse that, which costs an attempt, once for each process.
    """
    target = postgresql_url.Target.parse(url, os.environ)
    weak = target.weakness()
    if weak is not None:
        warn_once(target.hosts, *weak)
    extra = {
        "application_name": application[:63],
        "client_encoding": "UTF8",
        "connect_timeout": str(max(2, int(timeout))),
        # a peer that vanished is noticed as soon as a statement that takes too long
        "tcp_user_timeout": str(int(timeout * 1000)),
        **target.verification(),
    }
    ways = [extra, extra | {"options": target.options(SEARCH_PATH)}]
    while True:
        way = ways[-1] if server not in WITHOUT_OPTIONS else ways[0]
        query = "&".join(f"{name}={quote(value)}" for name, value in way.items())
        try:
            return dbapi.connect(url + ("&" if "?" in url else "?") + query, autocommit=True)
        except Error as error:
            said = reason(error)
            if way is ways[0] or not re.search(NO_OPTIONS, said):
                raise refused(server, said) from None
            WITHOUT_OPTIONS.add(server)


@cache
def warn_once(hosts: str, mode: str, consequence: str) -> None:
    """Log how a connection is less protected than it would be by default."""
    log.warning(
        "sslmode=%s for %s: %s; sslmode=verify-full, the default, prevents this",
        mode,
        hosts,
        consequence,
    )


class Connection:
    """One session; see the protocol in `sqlq_spark.database`."""

    def __init__(
        self, raw: dbapi.Connection, *, server: str, state: str, timeout: float, application: str
    ) -> None:
        self._raw = raw
        self._limit = timeout  # seconds that a statement may take
        self._began = time.monotonic()
        self._open = 0  # 1 in a transaction, 2 behind its savepoint
        self._apart: dict[str, bool] = {}  # state tables → whether row security is on for us
        self.state = state
        self.server = server
        self.application = application

    def run(
        self, statement: str, *, tables: dict[str, QueueAddress] | None = None, **values: Value
    ) -> None:
        """Execute a statement for its effect."""
        self.rows(statement, tables=tables, **values)

    def rows(
        self, statement: str, *, tables: dict[str, QueueAddress] | None = None, **values: Value
    ) -> list[Row]:
        """Execute a statement and return its rows; none where it has no result."""
        text, names = numbered(statement)
        bound = tuple(values[name] for name in names)
        table = self._execute(statement, named(text, self.state, tables or {}), bound, tables or {})
        if statement == "timeouts":
            self._limit = int(str(values["milliseconds"])) / 1000
        return list(zip(*map(values_of, table.columns), strict=True))

    def arrow(
        self, statement: str, *, tables: dict[str, QueueAddress], **numbers: int | list[int]
    ) -> pa.Table:
        """
        Execute a statement and return its rows in columns; a uuid is 16 bytes.

        Whole numbers are written into the text: without parameters the driver streams by COPY.
        Measured: 2.4 us a message, 3.0 with parameters, and no second copy of the result.
        """
        text = PARAMETER.sub(lambda match: written(numbers[match[1]]), STATEMENTS[statement])
        table = self._execute(statement, named(text, self.state, tables), (), tables)
        plain = [
            column.cast(column.type.storage_type)
            if isinstance(column.type, pa.UuidType)
            else column
            for column in table.columns
        ]
        return pa.table(plain, names=table.column_names)

    def load(self, queue: QueueAddress, rows: pa.Table) -> None:
        """Insert rows in bulk, in the transaction that is open; columns go by name."""
        self._ingest("load", printed(queue), queue.schema or "public", queue.table, rows)

    def store(self, table: str, rows: pa.Table) -> None:
        """
        Insert the pages of one payload into a state table; nothing is done for no rows.

        A login whose rows are kept apart may not COPY. Measured, for 13 MB: 60 ms of the server's
        time by COPY, 72 ms by INSERT.
        """
        if not rows.num_rows:
            return
        # a batch is copied whole before it is sent: small ones, or it is in memory twice
        batches = rows.to_batches(max_chunksize=STORED)
        if self._kept_apart(table):
            for batch in batches:
                self._insert(table, batch)
        else:
            whole = pa.Table.from_batches(batches)
            self._ingest(f"store {table}", self.state, self.state, table, whole)

    def columns(self, queue: QueueAddress) -> dict[str, str]:
        """A queue's columns in lower case → type; empty where the table is absent."""
        return dict(self.rows("queue_columns", table_name=quote_postgresql(queue)))

    def destinations(
        self, queues: Sequence[QueueAddress], columns: Sequence[str], source: QueueAddress | None
    ) -> dict[QueueAddress, Destination]:
        """What is known of tables that messages are to go to; fails for none of them."""
        tables = [
            {
                "place": at,
                "schema_name": queue.schema or "public",
                "table_name": queue.table,
                "columns": list(columns),
            }
            for at, queue in enumerate(queues)
        ]
        read = (None, None) if source is None else (source.schema or "public", source.table)
        rows = self._destinations("destinations", tables, read)
        found = {queues[at]: Destination(*facts) for at, *facts in rows}
        odd = [each.identity for each in found.values() if not each.plain]
        if not odd:
            return found
        code = dict(self._destinations("destination_code", odd, read))
        return {at: replace(each, code=code.get(each.identity)) for at, each in found.items()}

    def _destinations(
        self, statement: str, places: list[Any], read: tuple[str | None, str | None]
    ) -> list[Any]:
        places_ = json.dumps(places)
        return self.rows(statement, places=places_, source_schema=read[0], source_table=read[1])

    def locks(self, found: Sequence[Destination]) -> dict[int, tuple[bool, str]]:
        """By identity: whether this transaction has locked it, and what else of the same name."""
        places = json.dumps([each.identity for each in found])
        return {
            at: (kept, text) for at, kept, text in self.rows("destination_locks", places=places)
        }

    def patience(self, seconds: float | None) -> None:
        """Wait so long for locks, in the transaction that is open; None: as long as it said."""
        limit = self._limit if seconds is None else seconds
        self.rows("patience", milliseconds=str(max(1, int(limit * 1000))))

    def printed(self, address: QueueAddress) -> str:
        """The canonical address, as it stands in messages."""
        return printed(address)

    def parsed(self, text: str) -> QueueAddress:
        """An address as it stands in messages, where anyone may have written it."""
        return parse_postgresql(text)

    def close(self) -> None:
        """End the session; what was not committed is undone."""
        self._raw.close()

    def _kept_apart(self, table: str) -> bool:
        """Whether row security is on for this login; asked once in a session."""
        if table not in self._apart:
            found = self.rows("row_security", state_name=self.state, table_name=table)
            self._apart[table] = bool(found and found[0][0])
        return self._apart[table]

    def _insert(self, table: str, pages: pa.RecordBatch) -> None:
        """Insert pages of one payload, which follow one another, by one value that is cut there."""
        payload = pages.column("payload")
        offsets = np.frombuffer(payload.buffers()[1], np.int32)[payload.offset :]
        whole = payload.buffers()[2].slice(offsets[0], offsets[len(payload)] - offsets[0])
        names = [name for name in pages.schema.names if name != "payload"]
        size = int(offsets[1] - offsets[0])
        shown = [f"${at} + at" if name == "page" else f"${at}" for at, name in enumerate(names, 1)]
        value = f"${len(names) + 1}::bytea"
        text = (
            f"INSERT INTO {identifier(self.state)}.{identifier(table)} "  # noqa: S608 - quoted
            f"({', '.join(map(identifier, names))}, payload) "
            f"SELECT {', '.join(shown)}, substring({value} FROM at * {size} + 1 FOR {size}) "
            f"FROM generate_series(0, (octet_length({value}) - 1) / {size}) AS at"
        )
        bounds = pa.py_buffer(np.array([0, whole.size], np.int32))
        values = [pages.column(name).slice(0, 1) for name in names]
        values.append(pa.BinaryArray.from_buffers(pa.binary(), 1, [None, bounds, whole]))
        self._execute(f"store {table}", text, values, {})

    def _ingest(self, statement: str, target: str, schema: str, table: str, rows: pa.Table) -> None:
        self._began = time.monotonic()
        try:
            with self._raw.cursor() as cursor:
                cursor.adbc_ingest(table, rows, mode="append", db_schema_name=schema)
        except Error as error:
            raise self._failure(statement, target, error) from None

    def _execute(
        self,
        statement: str,
        text: str,
        values: Sequence[Value | pa.Array],
        tables: dict[str, QueueAddress],
    ) -> pa.Table:
        self._began = time.monotonic()
        text = f"/* sqlqueue:{statement} */ {text}"
        try:
            with self._raw.cursor() as cursor:
                if statement in OPEN:
                    cursor.executemany(text, None)
                    self._open = OPEN[statement]
                    return pa.table({})
                if not self._open:
                    cursor.executemany(STATEMENTS["begin"], None)
                cursor.execute(text, bound(values))
                found = cursor.fetch_arrow_table() if cursor.description else pa.table({})
                if not self._open:
                    cursor.executemany(STATEMENTS["commit"], None)
        except Error as error:
            role, target = blamed(tables, reason(error)) if tables else ("", self.state)
            raise self._failure(statement, target, error, role) from None
        return found

    def _failure(
        self, statement: str, target: str, error: Error, role: str = ""
    ) -> errors.DatabaseFailure:
        """Our error for the driver's; a session that cannot even roll back is lost."""
        said, state = reason(error), sqlstate(error)
        took = time.monotonic() - self._began
        if "statement pooling" in said:
            return errors.StatementPooling(self.server, said)
        undo, self._open = UNDO[self._open], max(0, self._open - 1)
        try:
            with self._raw.cursor() as cursor:
                for text in undo:
                    cursor.executemany(text, None)
        except Error:
            return errors.ConnectionLost(statement, said)
        if state == "25006":
            return errors.ReadOnly(statement, said)
        if state == "57014" and took < SURELY * self._limit:
            return errors.Cancelled(statement, said)
        return self._told(statement, target, said, state, role)

    def _told(
        self, statement: str, target: str, said: str, state: str, role: str
    ) -> errors.DatabaseFailure:
        """Our error for a SQLSTATE."""
        kind = errors.StatementRefused if state.startswith(LASTING) else errors.StatementFailed
        found: errors.DatabaseFailure = kind(statement, state, said)
        match state:
            case "42P01" | "3F000" if target == self.state:
                found = errors.StateNotInstalled(self.state, self.server)
            case "42P01" | "3F000" if not statement.startswith("create") and spoken_of(
                target, said
            ):
                found = errors.QueueNotFound(target, self.server)
            case "3F000":
                found = errors.SchemaNotFound(target, self.server, said)
            case "42703" if target != self.state and "bodystring" in said:
                found = errors.BodyStringMissing(target, filled("add_body_string", queue=target))
            case "42703" if target != self.state:
                found = errors.NotAQueue(target, said)
            case "42501" if "row-level security" not in said:
                fix = grant(statement, target, said, role)
                found = errors.RightMissing(statement, said, fix)
            case "22023" if statement == "endpoint_zone":
                found = errors.TimeZoneNotFound(statement, said)
            case "40P01" | "40001":
                found = errors.Deadlock(statement, said)
            case "57014" | "55P03" | "25P03":
                found = errors.TimedOut(statement, self._limit, said)
        return found


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column; in a database of SQL_ASCII a text may be no UTF-8."""
    try:
        found: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        found = readable(column).to_pylist()
    return found


@cache
def numbered(statement: str) -> tuple[str, tuple[str, ...]]:
    """A statement with `$1 …` for `:name`, and the names in the order of their numbers."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return PARAMETER.sub(number, STATEMENTS[statement]), tuple(names)


def named(text: str, state: str, tables: dict[str, QueueAddress]) -> str:
    """Put quoted names into the braces, last and in one go: a queue may be called {state} or :n."""
    quoted = {name: quote_postgresql(address) for name, address in tables.items()}
    quoted["state"] = identifier(state)
    if "delayed" in tables:
        quoted["index"] = identifier(due_index(tables["delayed"]))
    return IDENTIFIER.sub(lambda match: quoted[match[1]], text)


def written(value: int | list[int]) -> str:
    """Whole numbers as they stand in a text."""
    if isinstance(value, list):
        return "'{" + ",".join(str(int(each)) for each in value) + "}'"
    return f"({int(value)})"


def filled(statement: str, **quoted: str) -> str:
    """A statement in one line for people, with names that are quoted already."""
    line = " ".join(STATEMENTS[statement].split())
    return IDENTIFIER.sub(lambda match: quoted[match[1]], line)


def blamed(tables: dict[str, QueueAddress], said: str) -> tuple[str, str]:
    """The table that the server speaks of, and its role; the first, where that is not clear."""
    first, *others = tables.items()
    ends = " {}", '.{}" does not exist'
    spoken = (at for at in others if said.endswith(tuple(end.format(at[1].table) for end in ends)))
    role, address = next(spoken, first)
    return role, printed(address)


def spoken_of(target: str, said: str) -> bool:
    """Whether the server misses the queue itself, or its schema, not what a trigger of it names."""
    return any(name.strip('"').replace('""', '"') in said for name in target.split('"."'))


def bound(values: Sequence[Value | pa.Array]) -> pa.RecordBatch | None:
    """
    The parameters of a statement, in columns of their own types.

    Left to the driver, pyarrow guesses each type: measured, 0.25 ms a value, 0.03 ms this way.
    """
    if not values:
        return None
    columns = [
        value if isinstance(value, pa.Array) else pa.array([value], KINDS[type(value)])
        for value in values
    ]
    return pa.record_batch(columns, names=[str(at) for at in range(len(columns))])


def redacted(url: str) -> str:
    """
    Where a url leads to, without user information's secrets and without parameters.

    Raises:
        BadOption: libpq would read it as something else, and quote what may be of the password.
    """
    found = URL.fullmatch(url)
    if found is None or UNCODED.search(url):
        expected = "postgresql://user@host:5432/database, its parts percent-encoded"
        raise errors.BadOption("url", f"{url.partition('://')[0]}://…", expected)
    return f"{found['scheme']}://{found['hosts'] or 'local socket'}{found['path'] or ''}"


def refused(server: str, said: str) -> errors.DatabaseFailure:
    """Why there is no connection; libpq tells it in words only."""
    if re.search(GONE, said):
        return errors.ConnectionLost("connect", said)
    if re.search(UNVERIFIED, said):
        return errors.ServerNotVerified(server, said)
    if "does not exist" in said and "database" in said:
        return errors.DatabaseNotFound(server, said)
    if re.search(r"authentication|password|role .* does not exist|pg_hba", said):
        return errors.LoginRefused(server, said)
    return errors.NotReachable(server, said)


def reason(error: Error) -> str:
    """The server's sentence, or libpq's, without the statement's text and our values."""
    text = re.split(r"\n+Query was:|\. SQLSTATE:", str(error))[0]
    found = re.search(
        r"(?:ERROR|FATAL|PANIC):\s+(.*?)(?=\nLINE |\nCONTEXT:|$)", text, flags=re.DOTALL
    )
    text = found[1] if found else text.rpartition("[libpq]")[2]
    return " ".join(text.split())


def sqlstate(error: Error) -> str:
    """The SQLSTATE; a bulk insert into an absent table, or column, comes without one."""
    known: Any = getattr(error, "sqlstate", None)
    if known:
        return str(known)
    if reason(error).startswith('Column "'):  # the driver's own words
        return "42703"
    return "42P01" if "does not exist" in str(error) else "?????"


def grant(statement: str, target: str, said: str, role: str = "") -> str:
    """The GRANT that is missing (WIRE.md 7); `target` is a queue, in some role, or our schema."""
    kind, _, name = said.removeprefix("permission denied for ").partition(" ")
    queue = parse_postgresql(target) if target.startswith('"') else None
    if kind in {"schema", "database"}:
        right = "CREATE" if statement.startswith(("create", "install")) else "USAGE"
        return f"GRANT {right} ON {kind.upper()} {identifier(name)} TO the_user"
    if (
        kind == "sequence" and queue is not None
    ):  # the server leaves its schema out; it is the queue's
        sequence = quote_postgresql(QueueAddress(name, queue.schema))
        return f"GRANT USAGE ON SEQUENCE {sequence} TO the_user"
    if queue is None:
        rights = "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES"
        return f"GRANT {rights} IN SCHEMA {identifier(target)} TO the_user"
    rights = RIGHTS.get(f"{statement} {role}") or RIGHTS.get(statement, "SELECT")
    return f"GRANT {rights} ON {target} TO the_user"


RIGHTS = {
    "receive": "SELECT, DELETE, UPDATE (seq)",
    "take": "SELECT, DELETE, UPDATE (seq)",
    "purge": "SELECT, DELETE",
    "find_large": "SELECT, DELETE, UPDATE (seq)",
    "divert_large": "SELECT, DELETE, UPDATE (seq)",
    "divert_large errors": "INSERT",
    "subscribe": "SELECT, INSERT, UPDATE",
    "unsubscribe": "SELECT, DELETE",
    "load": "INSERT",
    "lock_destination": "INSERT",
    "move_due": "SELECT, DELETE, UPDATE (due)",
    "move_due queue": "INSERT, SELECT (id)",
}
