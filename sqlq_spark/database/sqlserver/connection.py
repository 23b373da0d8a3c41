"""
SQL Server, by whichever of its drivers is there.

A statement and its values go to `sp_executesql` as parameters: nothing in a queue's name can pass
for a placeholder or an escape of ODBC, every value has a type of its own, and no null is bound,
whose type a driver would have to ask the server for.
Transactions are begun by statement, so the driver stays in its autocommit mode throughout; inside
one, every statement first makes sure that it is still there.
"""

from __future__ import annotations

import json
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlq_spark import errors
from sqlq_spark.database import Destination, Row, Value
from sqlq_spark.database.sqlserver import drivers
from sqlq_spark.database.sqlserver import errors as sqlserver_errors
from sqlq_spark.database.sqlserver.calls import blamed, call, fits, insertion, named
from sqlq_spark.database.sqlserver.errors import Place
from sqlq_spark.database.sqlserver.rows import json_rows, plain, shown, table_of
from sqlq_spark.database.sqlserver.url import Target
from sqlq_spark.database.statements import Statements
from sqlq_spark.wire.address import (
    QueueAddress,
    bracketed,
    parse_sqlserver,
    print_sqlserver,
    quote_sqlserver,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from sqlq_spark.database.sqlserver.drivers import Driver

STATEMENTS = Statements.load("sqlserver")

# A session's own settings. English, for one driver tells an error by its sentence alone.
SETTINGS = "SET NOCOUNT ON; SET XACT_ABORT ON; SET LANGUAGE us_english"
# sent as they are: what is set inside sp_executesql ends with it, and so must a transaction
# → whether a transaction is open after it
DIRECT = {
    "begin": True,
    "timeouts": True,
    "patience": True,
    "savepoint": True,
    "release": True,
    "commit": False,
    "rollback": False,
}
UNDO = """IF XACT_STATE() = 1
BEGIN
    ROLLBACK TRANSACTION attempt;
    SET XACT_ABORT ON;
END
ELSE
BEGIN;
    THROW 51900, N'the transaction is gone', 1;
END"""
LEVEL = """/* sqlqueue:level */
SELECT compatibility_level FROM sys.databases WHERE database_id = DB_ID()"""
CONTEXT = 128  # bytes of context_info

# what one INSERT takes: more locks than 5,000 may become one on the table
MOST_ROWS, MOST_BYTES = 2000, 8 << 20

printed = print_sqlserver


def connect(url: str, *, application: str, timeout: float, state: str) -> Connection:
    """
    Open a session.

    Args:
        url: see `sqlserver_url`.
        application: the program's name in sys.dm_exec_sessions, where the driver takes one.
        timeout: seconds to wait for the server.
        state: schema of the state tables.

    Raises:
        NotReachable, LoginRefused, DatabaseNotFound: in the server's words.
        ConnectionLost: the server is there, and went away or takes no session now.
        MissingDriver: no driver can be used on this machine.
    """
    target = Target.parse(url)
    secrets = (target.password,)
    try:
        driver, raw = drivers.connect(target, application, max(1, int(timeout)))
    except errors.SqlQueueError:
        raise
    except Exception as error:  # noqa: BLE001 - each driver has a tree of its own
        said = sqlserver_errors.read(error, secrets)
        raise sqlserver_errors.refused(target.server, said) from None
    made = Connection(
        raw, driver, server=target.server, state=state, timeout=timeout, application=application
    )
    made.secrets = secrets
    try:
        made.settle()
    except errors.SqlQueueError:
        made.close()
        raise
    return made


def whole(seconds: float) -> int:
    """Whole seconds for the driver, and more: a wait for a lock should be told as what it is."""
    return int(seconds) + 1


def context(application: str) -> str:
    """The session's name for the DBA, in hexadecimal digits; at least one byte."""
    return "0x" + (application.encode("utf-8", "replace")[:CONTEXT] or b"-").hex()


class Connection:
    """One session; see the protocol in `sqlq_spark.database`."""

    def __init__(
        self,
        raw: Any,  # noqa: ANN401 - of one of two drivers
        driver: Driver,
        *,
        server: str,
        state: str,
        timeout: float,
        application: str,
    ) -> None:
        self._raw = raw
        self._driver = driver
        self._timeout = timeout
        self._open = False  # a transaction
        self._savepoint = False  # whether a failure undoes only what came since
        self._columns: dict[QueueAddress, dict[str, str]] = {}
        self.secrets: tuple[str, ...] = ()
        self.server = server
        self.state = state
        self.application = application

    def settle(self) -> None:
        """Make the session's own settings."""
        self._raw.timeout = whole(self._timeout)
        self._do("connect", f"{SETTINGS}; SET CONTEXT_INFO {context(self.application)}", (), {})

    def run(
        self, statement: str, *, tables: dict[str, QueueAddress] | None = None, **values: Value
    ) -> None:
        """Execute a statement for its effect."""
        self.rows(statement, tables=tables, **values)

    def rows(
        self, statement: str, *, tables: dict[str, QueueAddress] | None = None, **values: Value
    ) -> list[Row]:
        """Execute a statement and return its rows, of all its results; none where it has none."""
        tables = tables or {}
        text = self._named(STATEMENTS[statement], tables)
        if statement in DIRECT:
            return self._direct(statement, text, values)
        sql, bound = call(statement, text, values, guarded=self._open)
        return self._do(statement, sql, bound, tables)

    def arrow(
        self, statement: str, *, tables: dict[str, QueueAddress], **numbers: int | list[int]
    ) -> pa.Table:
        """Execute a statement and return its rows in columns; a uuid is 16 bytes."""
        text = self._named(STATEMENTS[statement], tables)
        values: dict[str, Value] = {
            name: json.dumps(value) if isinstance(value, list) else int(value)
            for name, value in numbers.items()
        }
        sql, bound = call(statement, text, values, guarded=self._open)
        try:
            with closing(self._raw.cursor()) as cursor:
                self._driver.typed(cursor, bound)
                cursor.execute(sql, bound)
                while not cursor.description and cursor.nextset():
                    pass  # what came before the rows has no result
                found = table_of(cursor)
                while cursor.nextset():
                    pass  # an error behind the rows comes only so
        except self._driver.errors as error:
            raise self._failure(statement, tables, error) from None
        return plain(found)

    def load(self, queue: QueueAddress, rows: pa.Table) -> None:
        """
        Insert rows in bulk, in the transaction that is open; columns go by name.

        They are sent as JSON, in one parameter, and read by the server: a bulk copy would be a
        session of its own, and rows with large values go one by one in both drivers.
        """
        tables = {"queue": queue}
        text = self._named(insertion(rows.column_names, self._shape(queue)), tables)
        each = max(1, rows.nbytes // max(1, rows.num_rows))
        size = max(1, min(MOST_ROWS, MOST_BYTES // each))
        for first in range(0, rows.num_rows, size):
            values = {"rows": json_rows(rows.slice(first, size))}
            sql, bound = call("load", text, values, guarded=self._open)
            self._do("load", sql, bound, tables)

    def store(self, table: str, rows: pa.Table) -> None:
        """
        Insert rows in bulk into a state table, as `load`; nothing is done for no rows.

        They are the pages of one payload, and become one row: a large value is in pages already.
        """
        if not rows.num_rows:
            return
        values = rows.slice(0, 1).to_pylist()[0]
        values["payload"] = b"".join(rows["payload"].to_pylist())
        names = ", ".join(map(bracketed, values))
        parameters = ", ".join(f"@{name}" for name in values)
        target = f"{bracketed(self.state)}.{bracketed(table)}"
        text = f"INSERT INTO {target} ({names}) VALUES ({parameters})"  # noqa: S608 - quoted
        sql, bound = call(f"store {table}", text, values, guarded=self._open)
        self._do(f"store {table}", sql, bound, {})

    def columns(self, queue: QueueAddress) -> dict[str, str]:
        """A queue's columns in lower case → type; empty where the table is absent."""
        found = self.rows("queue_columns", tables={"queue": queue})
        return {name.lower(): kind for name, kind in found}

    def destinations(
        self, queues: Sequence[QueueAddress], columns: Sequence[str], source: QueueAddress | None
    ) -> dict[QueueAddress, Destination]:
        """What is known of tables that messages are to go to; fails for none of them."""
        names = ["RowVersion" if each == "seq" else each for each in columns]
        tables = [
            {
                "place": at,
                "name": quote_sqlserver(queue),
                "catalog": queue.catalog,
                "columns": names,
            }
            for at, queue in enumerate(queues)
        ]
        read = None if source is None else quote_sqlserver(source)
        rows = self.rows("destinations", places=json.dumps(tables), source_table=read)
        found = {at: Destination(*facts) for at, *facts in rows}
        odd = [tables[at] for at, each in found.items() if not each.plain]
        told = self.rows("destination_code", places=json.dumps(odd)) if odd else []
        code: dict[int, str] = dict(told)
        return {
            queues[at]: each if each.plain else replace(each, code=code.get(each.identity))
            for at, each in found.items()
        }

    def locks(self, found: Sequence[Destination]) -> dict[int, tuple[bool, str]]:
        """As if all were locked: they are looked at once more before the commit."""
        return {each.identity: (True, "") for each in found}

    def patience(self, seconds: float | None) -> None:
        """Wait so long for locks, in the transaction that is open; None: as long as it said."""
        limit = self._timeout if seconds is None else seconds
        self.rows("patience", milliseconds=str(max(1, int(limit * 1000))))

    def printed(self, address: QueueAddress) -> str:
        """The canonical address, as it stands in messages."""
        return printed(address)

    def parsed(self, text: str) -> QueueAddress:
        """An address as it stands in messages, where anyone may have written it."""
        return parse_sqlserver(text)

    def close(self) -> None:
        """End the session; what was not committed is undone."""
        with suppress(*self._driver.errors):  # a broken session is undone by the server
            if self._open:
                self._plain(STATEMENTS["rollback"])
        self._open = False
        with suppress(*self._driver.errors):
            self._raw.close()

    # ------------------------------------------------------------ inside

    def _named(self, text: str, tables: dict[str, QueueAddress]) -> str:
        """A statement with its names; what it inserts is what the table can hold."""
        if "{recoverable}" not in text:
            return named(text, self.state, tables)
        shape = self._shape(tables["errors"]) if "errors" in tables else self._moved_into(tables)
        there = "recoverable" in shape
        return named(text, self.state, tables, recoverable=there, fits=fits(shape))

    def _moved_into(self, tables: dict[str, QueueAddress]) -> dict[str, str]:
        """The columns of the queue; of two tables that are amiss the delayed one is told."""
        try:
            return self._shape(tables["queue"])
        except errors.QueueNotFound:
            if "due" not in self._shape(tables["delayed"]):
                name = printed(tables["delayed"])
                raise errors.NotAQueue(name, "it has no column Due") from None
            raise

    def _shape(self, queue: QueueAddress) -> dict[str, str]:
        """A queue's columns, looked at once in a transaction."""
        if queue not in self._columns:
            found = self.columns(queue)
            if not found:
                raise errors.QueueNotFound(printed(queue), self.server)
            self._columns[queue] = found
        return self._columns[queue]

    def _direct(self, statement: str, text: str, values: dict[str, Value]) -> list[Row]:
        if statement == "timeouts":
            milliseconds = int(str(values["milliseconds"]))
            text = text.replace("{milliseconds}", str(milliseconds))
            text = text.replace("{application}", context(str(values["application"])))
            self._timeout = milliseconds / 1000
            self._raw.timeout = whole(self._timeout)
        if statement == "patience":
            text = text.replace("{milliseconds}", str(int(str(values["milliseconds"]))))
        if statement == "begin":
            self._columns.clear()  # tables may have been made anew
        found = self._do(statement, f"/* sqlqueue:{statement} */ {text}", (), {})
        self._open = DIRECT[statement]
        self._savepoint = statement == "savepoint"
        return found

    def _do(
        self, statement: str, sql: str, bound: tuple[Value, ...], tables: dict[str, QueueAddress]
    ) -> list[Row]:
        found: list[Row] = []
        try:
            with closing(self._raw.cursor()) as cursor:
                self._driver.typed(cursor, bound)
                cursor.execute(sql, bound) if bound else cursor.execute(sql)
                more = True
                while more:
                    if cursor.description:
                        names = [column[0] for column in cursor.description]
                        found += [shown(names, row) for row in cursor.fetchall()]
                    more = cursor.nextset()
        except self._driver.errors as error:
            raise self._failure(statement, tables, error) from None
        return found

    def _plain(self, text: str) -> None:
        with closing(self._raw.cursor()) as cursor:
            cursor.execute(text)

    def _failure(
        self, statement: str, tables: dict[str, QueueAddress], error: Exception
    ) -> errors.DatabaseFailure:
        """Our error for the driver's; a session that cannot even roll back is lost."""
        said = sqlserver_errors.read(error, self.secrets)
        undo = UNDO if self._savepoint else STATEMENTS["rollback"]
        self._open = self._savepoint
        self._savepoint = False
        self._columns.clear()
        try:
            self._plain(undo)
        except self._driver.errors:
            return errors.ConnectionLost(statement, said.text)
        queue = blamed(tables, said.text)
        level = self._level() if said.number in sqlserver_errors.MAYBE_OLD else 0
        place = Place(
            statement=statement,
            target=self.state if queue is None else printed(queue),
            table=bracketed(self.state) if queue is None else quote_sqlserver(queue),
            is_state=queue is None,
            server=self.server,
            seconds=self._timeout,
            level=level,
        )
        return sqlserver_errors.failed(said, place)

    def _level(self) -> int:
        """The database's compatibility level; 0 where it is not told."""
        try:
            with closing(self._raw.cursor()) as cursor:
                cursor.execute(LEVEL)
                found = cursor.fetchall() if cursor.description else []
        except self._driver.errors:
            return 0
        return int(found[0][0]) if found else 0
