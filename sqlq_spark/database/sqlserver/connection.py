"""
A session with SQL Server, through mssql-python or pyodbc.

A statement and its values are sent as parameters of `sp_executesql`. Otherwise ODBC could take a
part of a queue's name for a placeholder or an escape. Every value has a type. A null is never
bound, because the driver would have to ask the server for its type.

The package begins transactions by statements, so the driver always stays in its autocommit mode.
Inside a transaction each statement first checks that the transaction is still open.
"""

from __future__ import annotations

import time
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pyarrow.compute as pc

from sqlq_spark import database, errors
from sqlq_spark.database import OPENS, Work
from sqlq_spark.database.explain import find_faults, to_explain
from sqlq_spark.database.results import Result
from sqlq_spark.database.sqlserver import drivers, explain
from sqlq_spark.database.sqlserver.calls import (
    LACKS,
    MOST_MOVED,
    STATEMENTS,
    Size,
    Weight,
    build_call,
    build_insert,
    check_fit,
    cut_page,
    cut_step,
    fill_names,
    find_table,
    headers_fit,
    split_script,
)
from sqlq_spark.database.sqlserver.errors import (
    MAYBE_OLD,
    connection_error,
    read_error,
    statement_error,
)
from sqlq_spark.database.sqlserver.rows import (
    fetch_table,
    is_weighed,
    json_rows,
    no_rows,
    plain_columns,
)
from sqlq_spark.database.sqlserver.url import Target
from sqlq_spark.database.trust import READ, look_at_tables
from sqlq_spark.wire.sqlserver import SQLSERVER

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from sqlq_spark.database import Tables, Value
    from sqlq_spark.database.statements import StatementName
    from sqlq_spark.wire.address import QueueAddress

# Settings of each session. The language is English, because mssql-python reports an error only by
# the server's sentence. In a deadlock the server ends the transaction with the lower priority. Ours
# has LOW, because it tries again.
SETTINGS = "SET NOCOUNT ON; SET XACT_ABORT ON; SET LANGUAGE us_english; SET DEADLOCK_PRIORITY LOW"
CATALOG = "SELECT DB_NAME() AS catalog"
ENDS = {"commit", "rollback"}
# Statements that set something for the session, or begin or end a transaction. They are sent
# without sp_executesql, because at its end it undoes each SET in its text.
DIRECT = {"begin", "set_lock_timeout", "savepoint", "release", *ENDS}
LEVEL = """/* sqlqueue:level */
SELECT compatibility_level FROM sys.databases WHERE name = DB_NAME()"""
TRIGGERS = """/* sqlqueue:triggers */
SELECT QUOTENAME(t.name) AS name
  FROM {queue_catalog}sys.triggers AS t
 WHERE t.parent_id = OBJECT_ID({queue_text}) AND t.is_disabled = 0
 ORDER BY t.object_id"""
IDLE = "the transaction was idle for {:g} s (queryTimeout), so this process ended the session"
COLLATIONS = "SELECT name FROM sys.fn_helpcollations()"
NEW_DATABASE = """CREATE DATABASE {name} COLLATE {collation}
GO
ALTER DATABASE {name} SET READ_COMMITTED_SNAPSHOT {switch}"""
CONTEXT = 128  # how many bytes context_info can hold

# limits of one INSERT, because the server may lock the whole table after more than 5,000 locks
MOST_ROWS = 2000
MOST_BYTES = 8 << 20


def connect(
    url: str, *, application: str, timeout: float, state: str, credential: str | None = None
) -> Connection:
    target = Target.parse(url).with_credential(credential)
    driver, raw = open_driver(target, application, max(1, int(timeout)))
    connection = Connection(
        raw, driver, target, state=state, timeout=timeout, application=application
    )
    try:
        connection.prepare()
    except errors.SqlQueueError:
        connection.close()
        raise
    return connection


def open_driver(target: Target, application: str, seconds: int) -> tuple[drivers.Driver, Any]:
    """Return the driver that has connected, and its connection. Raises the package's errors."""
    try:
        return drivers.open_session(target, application, seconds)
    except errors.SqlQueueError:
        raise
    except Exception as error:  # noqa: BLE001 - each driver has a tree of its own
        failure = read_error(error, target.secret)
        raise connection_error(
            target.server,
            failure,
            by_token=target.by_token,
            has_password=not target.lacks_password,
        ) from None


def context_info(application: str) -> str:
    """Return the name that the DBA sees, as hexadecimal digits of at least one byte."""
    return "0x" + (application.encode("utf-8", "replace")[:CONTEXT] or b"-").hex()


class Connection(database.Connection):
    """One session through one of the two drivers."""

    names = SQLSERVER
    lacks = LACKS
    shapes = explain.SHAPES
    most_moved = MOST_MOVED

    def __init__(
        self,
        raw: Any,  # noqa: ANN401 - a connection of one of two drivers
        driver: drivers.Driver,
        target: Target,
        *,
        state: str,
        timeout: float,
        application: str,
    ) -> None:
        super().__init__(
            raw, server=target.server, state=state, timeout=timeout, application=application
        )
        self._driver = driver
        self._watchdog = drivers.Watchdog(self._end)
        self._cursor: Any = None  # the cursor of the last statement, used again: see `_executed`
        self._columns: dict[QueueAddress, dict[str, str]] = {}  # read once in each transaction
        self._secret = target.secret
        self._began = 0.0  # when the last statement was sent, by this process's clock
        self.catalog: str | None = None  # the database's name; known after `prepare`

    def prepare(self) -> None:
        """Apply the settings of the session, and read the name of its database."""
        self._limit_statements()
        context = f"SET CONTEXT_INFO {context_info(self.application)}"
        result = self._do("connect", f"{SETTINGS}; {context}; {CATALOG}", {})
        self.catalog = next(iter(result.values("connect")), None)

    def _read(
        self, statement: StatementName, tables: Tables, values: Mapping[str, Value]
    ) -> Result:
        text = self.fill_names(STATEMENTS[statement], tables)
        if statement in DIRECT:
            return self._direct(statement, text, values)
        return self._do(statement, text, tables, values)

    def arrow(self, statement: StatementName, *, tables: Tables, **values: int | str) -> pa.Table:
        """
        Execute a statement and return its rows as an Arrow table. A uuid is 16 bytes.

        Before a `receive` or a `browse` the sizes of the rows are read: see `cut_step` and
        `cut_page`.
        """
        if statement == "receive":
            return self._receive(tables, cast("dict[str, int]", values))
        if statement == "browse":
            return self._browse(tables, cast("dict[str, int]", values))
        return self._fetch(statement, tables, values)

    def _receive(self, tables: Tables, limits: dict[str, int]) -> pa.Table:
        """
        Receive the messages of one step.

        If all messages of the step are too large, or other sessions have taken them, go on with the
        next step.
        """
        messages = limits["messages"]
        largest = limits["largest"]
        while True:
            rows = self.rows("weigh", Weight, tables={"queue": tables["queue"]}, **limits)
            step = cut_step(rows, messages=messages, most=limits["bytes"], largest=largest)
            if not step:
                return no_rows()
            if step["messages"]:
                received = self._fetch("receive", tables, {**limits, **step})
                if received.num_rows:
                    return received
            limits = {**limits, "first": step["stop"], "messages": MOST_ROWS}

    def _browse(self, tables: Tables, limits: dict[str, int]) -> pa.Table:
        """Read a page. Weigh it again if a heavier message was committed after the weighing."""
        while True:
            rows = self.rows("weigh_page", Size, tables=tables, **limits)
            page = cut_page(rows, most=limits["bytes"], largest=limits["largest"])
            if not page:
                return no_rows()
            browsed = self._fetch("browse", tables, {**limits, **page})
            if is_weighed(browsed, limits["largest"]):
                return browsed

    def _fetch(
        self, statement: StatementName, tables: Tables, values: Mapping[str, int | str]
    ) -> pa.Table:
        text = self.fill_names(STATEMENTS[statement], tables)
        with self._executed(statement, text, tables, values) as cursor:
            while not cursor.description and cursor.nextset():
                pass  # skip the statements before the one that returns rows
            table = fetch_table(cursor)
            drivers.check_complete(cursor)
            while cursor.nextset():
                pass  # only this call raises an error that comes after the rows
        return plain_columns(table)

    def load(self, queue: QueueAddress, rows: pa.Table) -> None:
        # The rows are sent as JSON in one parameter. A bulk copy would need another session, and
        # executemany of both drivers sends rows with large values one by one.
        tables = {"queue": queue}
        null_bodies = "body" in rows.column_names and rows["body"].null_count > 0
        insert = build_insert(rows.column_names, self._columns_of(queue), null_bodies=null_bodies)
        text = self.fill_names(insert, tables)
        row_bytes = max(1, rows.nbytes // max(1, rows.num_rows))
        size = max(1, min(MOST_ROWS, MOST_BYTES // row_bytes))
        for first in range(0, rows.num_rows, size):
            part = rows.slice(first, size)
            values: dict[str, Value] = {"rows": json_rows(part), "messages": part.num_rows}
            self._do("load", text, tables, values)

    def store(self, table: str, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        # all pages go into one row, because the server itself stores a large value in pages
        values = rows.slice(0, 1).to_pylist()[0]
        values["payload"] = b"".join(rows["payload"].to_pylist())
        names = ", ".join(map(SQLSERVER.quote_name, values))
        parameters = ", ".join(f"@{name}" for name in values)
        target = f"{SQLSERVER.quote_name(self.state)}.{SQLSERVER.quote_name(table)}"
        text = f"INSERT INTO {target} ({names}) VALUES ({parameters})"  # noqa: S608 - quoted
        self._do(f"store {table}", text, {}, values)

    def stored_bytes(self, texts: pa.Array) -> pa.Array:
        # UTF-16 has two bytes for a character of the first plane, and four for any other
        pairs = pc.count_substring_regex(texts, "[\U00010000-\U0010ffff]")
        return pc.multiply(pc.add(pc.utf8_length(texts), pairs), 2)

    def columns(self, queue: QueueAddress) -> dict[str, str]:
        columns = self.rows("queue_columns", database.Column, tables={"queue": queue})
        return {column.name.lower(): column.type for column in columns}

    def whole(self, address: QueueAddress) -> QueueAddress:
        return replace(self.names.qualify(address), catalog=address.catalog or self.catalog)

    def identities(self, addresses: Sequence[QueueAddress]) -> list[Hashable]:
        # Only the server knows whether case matters, so it gives each table an identity. If the
        # server does not show a table to this login, the address is the identity.
        whole = [self.whole(address) for address in addresses]
        distinct = list(dict.fromkeys(whole))
        identities: dict[QueueAddress, Hashable] = {}
        if len(distinct) > 1:
            tables, _ = look_at_tables(self, distinct, READ)
            identities = {queue: (table.catalog, table.identity) for queue, table in tables.items()}
        return [identities.get(address, address) for address in whole]

    def run_script(self, text: str) -> list[Any]:
        return [row for batch in split_script(text) for row in self.run_batch(batch)]

    def run_batch(self, text: str) -> list[Any]:
        result = self._do("selftest", text, {})
        return [*result.columns[0]] if result.columns else []

    def script_databases(self, prefix: str) -> dict[str, tuple[str, str]]:
        known = self.run_script(COLLATIONS)
        scripts = {}
        for number, collation in enumerate(self.names.collations):
            name = f"{prefix}_{number}"
            row_versions = "ON" if number % 2 else "OFF"
            if collation in known:
                text = NEW_DATABASE.format(name=name, collation=collation, switch=row_versions)
                scripts[collation] = (name, text)
        return scripts

    def explain(self, tables: Tables) -> list[str]:
        load = build_insert(explain.EXPLAINED_COLUMNS, self.columns(tables["queue"]))
        compiled = {
            name: self.fill_names(explain.declare(text), its_tables)
            for name, text, its_tables in to_explain({**STATEMENTS, "load": load}, tables)
        }
        self.run_script(explain.ONLY_PLANS)
        return find_faults(compiled, self._plan_of, partial(explain.judge, tables=tables))

    def close(self) -> None:
        self._watchdog.watch(None)
        with self._watchdog.statement():
            with suppress(*self._driver.errors):  # if the session is broken, the server undoes it
                if self.work is not Work.NONE:
                    self._plain(STATEMENTS["rollback"])
            self.work = Work.NONE
            self._end()

    # ------------------------------------------------------------ the columns of a queue

    def _columns_of(self, queue: QueueAddress) -> dict[str, str]:
        """Return a queue's columns, which each transaction reads once. Raises QueueNotFound."""
        if queue not in self._columns:
            columns = self.columns(queue)
            if not columns:
                raise errors.QueueNotFound(queue=self.printed(queue), server=self.server)
            self._columns[queue] = columns
        return self._columns[queue]

    def fill_names(self, text: str, tables: Tables) -> str:
        """Put names into a statement, and the words that depend on the columns of its table."""
        if "{recoverable}" not in text:
            return fill_names(text, self.state, tables)
        columns = self._columns_of(tables.get("errors") or tables["queue"])
        words = {"fits": check_fit(columns), "headers_fit": headers_fit(columns)}
        if "recoverable" not in columns:
            words |= {"recoverable": "", "one": ""}
        if "{seek}" in text and not self.values("due_index", tables=tables):
            words["seek"] = ""
        return fill_names(text, self.state, tables, **words)

    # ------------------------------------------------------------ inside

    def _plan_of(self, text: str) -> str:
        return "\n".join(self.run_script(text))

    def _end(self) -> None:
        with suppress(*self._driver.errors):
            self._raw.close()

    def _limit_statements(self) -> None:
        # the driver's limit is a second longer, so that the server's lock timeout ends a wait first
        limit = int(self.timeout) + 1
        if self._raw.timeout != limit:
            self._raw.timeout = limit  # holds only for cursors that are opened later
            self._close_cursor()

    def _direct(self, statement: str, text: str, values: Mapping[str, Value]) -> Result:
        text = text.replace("{milliseconds}", str(values.get("milliseconds")))
        if statement == "begin":
            text = text.replace("{application}", context_info(self.application))
            self._limit_statements()
            self._columns.clear()  # others may have changed tables since the last transaction
        result = self._do(statement, text, {})
        self.work = OPENS.get(statement, self.work)
        self._watchdog.watch(None if self.work is Work.NONE else self.timeout)
        return result

    def _do(
        self, statement: str, text: str, tables: Tables, values: Mapping[str, Value] | None = None
    ) -> Result:
        names: tuple[str, ...] = ()
        rows: list[tuple[Any, ...]] = []
        with self._executed(statement, text, tables, values) as cursor:
            more = True
            while more:
                if cursor.description:
                    names = tuple(column[0] for column in cursor.description)
                    rows += map(tuple, cursor.fetchall())
                    drivers.check_complete(cursor)
                more = cursor.nextset()
        return Result(names, [*zip(*rows, strict=True)] if rows else [()] * len(names))

    @contextmanager
    def _executed(
        self, statement: str, text: str, tables: Tables, values: Mapping[str, Value] | None
    ) -> Iterator[Any]:
        """
        Execute a text. The `with` block reads the rows from the cursor.

        With `values` the text is sent by sp_executesql, and both drivers prepare it. All statements
        use the same cursor, because it releases the last prepared text together with the next
        request. A new cursor for each statement would need a request more.
        """
        sql = f"/* sqlqueue:{statement} */ {text}"
        bound: tuple[Value, ...] = ()
        if values is not None:
            sql, bound = build_call(statement, text, values, guarded=self.work is not Work.NONE)
        self._began = time.monotonic()
        try:
            with self._watchdog.statement():
                cursor = self._cursor = self._cursor or self._raw.cursor()
                self._driver.set_types(cursor, bound)
                cursor.execute(sql, bound) if bound else cursor.execute(sql)
                yield cursor
        except BaseException as error:
            self._close_cursor()  # otherwise rows that were not read would block the session
            if isinstance(error, self._driver.errors):
                raise self._failure(statement, tables, error) from None
            raise

    def _close_cursor(self) -> None:
        with self._watchdog.statement(), suppress(*self._driver.errors):
            if self._cursor:
                self._cursor.close()
        self._cursor = None

    def _plain(self, text: str) -> list[Any]:
        with closing(self._raw.cursor()) as cursor:
            cursor.execute(text)
            while not cursor.description and cursor.nextset():
                pass  # skip the statements before the one that returns rows
            return cursor.fetchall() if cursor.description else []

    def _failure(self, statement: str, tables: Tables, error: Exception) -> errors.DatabaseFailure:
        """Undo the open work, and return the package's error for the driver's error."""
        failure = read_error(error, self._secret)
        took = time.monotonic() - self._began
        if not self.undo():
            limit = self._watchdog.ended
            reason = failure.text if limit is None else IDLE.format(limit)
            return errors.ConnectionLost(statement=statement, reason=reason)
        queue = find_table(tables, failure.text)
        place = self._place(statement, queue)
        level = self._level() if failure.number in MAYBE_OLD else 0
        triggers = self._triggers(queue) if queue and failure.in_trigger else []
        return statement_error(failure, place, took=took, level=level, triggers=triggers)

    def _undo(self, work: Work) -> Work | None:
        self._columns.clear()
        if self._watchdog.ended is not None:
            return None
        left = Work.NONE
        try:
            with self._watchdog.statement():
                if work is not Work.SAVEPOINT:
                    self._plain(STATEMENTS["rollback"])
                elif self._plain(STATEMENTS["undo"])[0][0]:
                    left = Work.TRANSACTION
        except self._driver.errors:
            return None
        finally:
            if left is Work.NONE:
                self._watchdog.watch(None)
        return left

    def _triggers(self, queue: QueueAddress) -> list[str]:
        """Return the quoted names of a table's enabled triggers, as far as this login sees them."""
        with suppress(*self._driver.errors):
            return [name for (name,) in self._plain(self.fill_names(TRIGGERS, {"queue": queue}))]
        return []

    def _level(self) -> int:
        with suppress(*self._driver.errors):
            for (level,) in self._plain(LEVEL):
                return int(level)
        return 0
