"""
A session with PostgreSQL, by its ADBC driver: rows come and go as Arrow, without Python objects.

Measured, 2 connections, 1.2 kB rows: DELETE … RETURNING into Arrow 170k rows/s, psycopg's rows
113-180k/s before they are Arrow.
Transactions are begun by statement, so the driver stays in its autocommit mode throughout.

The driver prepares a statement and runs it in separate messages. A pooler that lends a session for
one transaction (PgBouncer) may hand the second message to another session, which has not prepared
the statement. So each statement runs in a transaction, its own if none is open. A statement that
begins or ends a transaction is sent in one message.
"""

from __future__ import annotations

import json
import logging
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from adbc_driver_manager import Error

from sqlq_spark import database, errors
from sqlq_spark.database import OPENS, Work, attempt
from sqlq_spark.database.explain import find_faults, to_explain
from sqlq_spark.database.postgresql import drivers, explain
from sqlq_spark.database.postgresql.errors import (
    LIMIT_REACHED,
    LOOKED_UP,
    MAKES,
    NO_SQLSTATE,
    TRANSACTION_TIMEOUT,
    Refusal,
    choose_refusal,
    read_error,
    schema_of,
    statement_error,
    tables_to_look_up,
)
from sqlq_spark.database.postgresql.rows import (
    LACKS,
    STATEMENTS,
    bind,
    cut_name,
    fill_names,
    number_parameters,
    plain_columns,
    read_result,
    with_whole_days,
    write_values,
)
from sqlq_spark.database.postgresql.url import redact
from sqlq_spark.options.names import with_login
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.postgresql import POSTGRESQL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from adbc_driver_postgresql import dbapi

    from sqlq_spark.database import Place, Tables, Value
    from sqlq_spark.database.postgresql.errors import Failure
    from sqlq_spark.database.results import Result
    from sqlq_spark.database.statements import StatementName

log = logging.getLogger("sqlq_spark")

# bytes of a batch of a COPY: the server reads one while the driver encodes the next
# Measured, 1.2 kB rows: 4.6 us of the connection a row; 5.9 with batches of 10,000 rows
COPIED = 256 << 10

LONGEST_LABEL = 46  # characters of a stream or a sink that each of its sessions' names has room for
FROZEN = "ended %s (pid %d): it kept others waiting, and its process did nothing for %g s"
END_SESSION = (
    "; session {0} of login {1} holds rows of the same stream or sink: if its process hangs, a DBA "
    "can end it with SELECT pg_terminate_backend({0})"
)

# `receive` first locks the rows that no other session holds, and then deletes them. Most queues
# that Spark reads have no other consumer. There `receive_range` deletes a range in one pass. If it
# has to wait for a row, it is undone after ROW_WAIT, and `receive` has the queue for PAUSE.
# Measured, 1.2 kB a message: 4.0 us of the server's time instead of 4.9, and the rows come by seq.
FEWEST = 1000  # messages; below, four more statements cost more than they save
# seconds to wait for each row that another session holds: beside 16 endpoints that held rows
# for 10 ms, a receive took 0.7 to 8.4 s with 20 ms, and 0.4 to 0.8 s with 1 ms
ROW_WAIT = 0.001
PAUSE = 60.0  # seconds until a queue with another consumer is tried again
# a step asks for as many messages as are likely to fit: so much more than its size is taken
SLACK = 1.25
# server and queue → when another session held one of its rows, by this process's clock
HELD: dict[tuple[str, QueueAddress], float] = {}

IN_ONE_MESSAGE = {*OPENS}  # statements without parameters and rows
UNDO = {
    Work.NONE: ("ROLLBACK",),  # which shows whether the session is alive
    Work.TRANSACTION: ("ROLLBACK",),
    Work.SAVEPOINT: ("ROLLBACK TO SAVEPOINT attempt", "RELEASE SAVEPOINT attempt"),
}


@dataclass(frozen=True, slots=True)
class FrozenSession:
    """A session that keeps others waiting."""

    pid: int
    login: str
    application: str
    ended: bool | None  # None: of another login, which only a DBA can end


def connect(
    url: str, *, application: str, timeout: float, state: str, credential: str | None = None
) -> Connection:
    url = with_login(url, None, credential)  # a token is a password too
    server = redact(url)
    raw = drivers.open_session(url, server, application, timeout)
    made = Connection(raw, server=server, state=state, timeout=timeout, application=application)
    try:
        # read now: a session that this limit has ended cannot say it
        made.transaction_limit = made.value("transaction_limit") or 0.0
    except BaseException:
        made.close()
        raise
    return made


@contextmanager
def named_refusal() -> Iterator[None]:
    """Raise RightMissing where the server refuses a script; other errors are the driver's."""
    try:
        yield
    except Error as error:
        if error.sqlstate != "42501":
            raise
        fix = "a login that has the right which the server names"
        reason = read_error(error).text
        raise errors.RightMissing(reason=reason, statement="script", fix=fix) from None


def read_up_to(cursor: dbapi.Cursor, most: int) -> pa.Table:
    """Read a result, up to the batch (16 MiB) in which it has more than so many bytes."""
    batches, left = [], most
    with cursor.fetch_record_batch() as reader:
        for batch in reader:
            batches.append(batch)
            left -= batch.nbytes
            if left < 0:
                cursor.adbc_cancel()
                break
        return pa.Table.from_batches(batches, reader.schema)


class Connection(database.Connection):
    """One session by ADBC."""

    names = POSTGRESQL
    lacks = LACKS
    shapes = explain.SHAPES
    most_moved = 64 << 20
    _raw: dbapi.Connection
    transaction_limit = 0.0  # seconds that the login's transactions may take; 0: any time
    _began = 0.0  # when the last statement was sent, by this process's clock
    _opened = 0.0  # when its transaction began, by this process's clock

    def _read(
        self, statement: StatementName, tables: Tables, values: Mapping[str, Value]
    ) -> Result:
        text, names = number_parameters(statement)
        if statement == "begin":
            name = cut_name(str(values["application"]))
            text, names = write_values(statement, {**values, "application": name}), ()
        bound = tuple(values[name] for name in names)
        try:
            table = self._execute(statement, fill_names(text, self.state, tables), bound, tables)
        except errors.TimedOut as error:
            raise self._end_frozen(error, values) from None
        return read_result(table)

    def arrow(self, statement: StatementName, *, tables: Tables, **values: int | str) -> pa.Table:
        """
        Before a `receive` the faster `receive_range` is tried.

        Values are written into the text: without parameters the driver streams by COPY.
        Measured: 2.4 us a message, 3.0 with parameters, and no second copy of the result.
        """
        if statement == "receive":
            found = self._receive_range(tables["queue"], cast("dict[str, int]", values))
            if found is not None:
                return found
        text = fill_names(write_values(statement, values), self.state, tables)
        most = 2 * cast("int", values["bytes"]) if statement == "browse" else None
        return plain_columns(self._execute(statement, text, (), tables, most))

    def load(self, queue: QueueAddress, rows: pa.Table) -> None:
        has_expiry = "expires" in rows.column_names and rows["expires"].null_count < rows.num_rows
        if has_expiry and self.columns(queue).get("expires") == "date":
            rows = with_whole_days(rows)
        self._ingest("load", {"queue": queue}, queue, rows)

    def store(self, table: str, rows: pa.Table) -> None:
        # measured, for 13 MB: 60 ms of the server's time, 72 ms by INSERT
        if rows.num_rows:
            self._ingest(f"store {table}", {}, QueueAddress(table, self.state), rows)

    def stored_bytes(self, texts: pa.Array) -> pa.Array:
        return pc.binary_length(texts)

    def columns(self, queue: QueueAddress) -> dict[str, str]:
        name = POSTGRESQL.quote_address(queue)
        columns = self.rows("queue_columns", database.Column, table_name=name)
        return {column.name: column.type for column in columns}

    def run_script(self, text: str) -> list[Any]:
        with named_refusal(), self._raw.cursor() as cursor:
            cursor.executemany(text, None)
        return []

    def script_databases(self, prefix: str) -> dict[str, tuple[str, str]]:  # noqa: ARG002
        return {}

    def explain(self, tables: Tables) -> list[str]:
        compiled = {
            name: explain.compile_text(text, self.state, its)
            for name, text, its in to_explain(STATEMENTS, tables)
        }
        self.run_script(explain.WITHOUT_SCANS)
        return find_faults(compiled, self._plan_of, explain.judge)

    def close(self) -> None:
        self._raw.close()

    # ------------------------------------------------------------ inside

    def _plan_of(self, text: str) -> str:
        """Return the lines of an EXPLAIN; run another text, which has no plan."""
        if not text.startswith("EXPLAIN"):
            self.run_script(text)
            return ""
        with named_refusal(), self._raw.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
            cursor.execute(text)
            return "\n".join(line for (line,) in cursor.fetchall())

    def _receive_range(self, queue: QueueAddress, limits: Mapping[str, int]) -> pa.Table | None:
        """
        Receive the messages from `first` on, as many numbers as there may be messages.

        None: `receive` has to look, because the range is empty, too large, or not free.
        """
        first, messages = limits["first"], limits["messages"]
        key = self.server, queue
        if messages < FEWEST or time.monotonic() < HELD.get(key, -PAUSE) + PAUSE:
            return None
        try:
            with database.attempt(self):
                self.set_lock_timeout(ROW_WAIT)
                found = self.arrow(
                    "receive_range",
                    tables={"queue": queue},
                    first=first,
                    stop=min(limits["stop"], first + messages),
                    messages=messages,
                    bytes=min(int(limits["bytes"] * SLACK), limits["ceiling"]),
                    largest=limits["largest"],
                    largest_headers=limits["largest_headers"],
                )
        except (errors.TimedOut, errors.Deadlock):
            log.info("%s has another consumer", self.printed(queue))
            HELD[key] = time.monotonic()
            return None
        self.set_lock_timeout(None)
        return found if found.num_rows else None

    def _end_frozen(self, error: errors.TimedOut, values: Mapping[str, Value]) -> errors.TimedOut:
        """
        End sessions of the same stream or sink whose client hangs while they hold its rows.

        Returns the error of the wait: one that is tried again if a session was ended.
        """
        stream, sink = values.get("stream"), values.get("sink")
        if stream is None and sink is None:
            return error
        name = f" {stream!s} " if sink is None else f" {sink!s}/"
        kind, seconds, reason = type(error), error.seconds, error.reason
        sessions = self.rows(
            "end_frozen",
            FrozenSession,
            name=name[:LONGEST_LABEL],
            state_name=self.state,
            seconds=seconds,
        )
        for session in sessions:
            if session.ended is None:
                reason += END_SESSION.format(session.pid, session.login)
                continue
            log.warning(FROZEN, session.application, session.pid, seconds)
            kind = errors.LockTimedOut
            reason = f"{reason}; session {session.pid} hung and was ended"
        return kind(statement=error.statement, seconds=seconds, reason=reason)

    def _ingest(self, statement: str, tables: Tables, into: QueueAddress, rows: pa.Table) -> None:
        # the driver copies a batch before it sends it: small ones, or all is in memory twice
        step = max(1, COPIED * rows.num_rows // max(1, rows.nbytes))
        batches = pa.Table.from_batches(rows.to_batches(max_chunksize=step), rows.schema)
        self._note_start()
        try:
            with self._raw.cursor() as cursor:
                schema = into.schema or POSTGRESQL.default_schema
                cursor.adbc_ingest(into.table, batches, mode="append", db_schema_name=schema)
        except Error as error:
            raise self._failure(statement, tables, error) from None

    def _execute(
        self,
        statement: str,
        text: str,
        values: Sequence[Value],
        tables: Tables,
        most: int | None = None,
    ) -> pa.Table:
        self._note_start()
        text = f"/* sqlqueue:{statement} */ {text}"
        try:
            with self._raw.cursor() as cursor:
                if statement in IN_ONE_MESSAGE:
                    cursor.executemany(text, None)
                    self.work = OPENS.get(statement, self.work)
                    return pa.table({})
                is_alone = self.work is Work.NONE
                if is_alone:
                    cursor.executemany(STATEMENTS["begin_alone"], None)
                cursor.execute(text, bind(values))
                if most is None:
                    found = cursor.fetch_arrow_table() if cursor.description else pa.table({})
                else:
                    found = read_up_to(cursor, most)
                if is_alone:
                    cursor.executemany(STATEMENTS["commit"], None)
        except Error as error:
            raise self._failure(statement, tables, error) from None
        return found

    def _note_start(self) -> None:
        self._began = time.monotonic()
        if self.work is Work.NONE:
            self._opened = self._began

    def _failure(self, statement: str, tables: Tables, error: Error) -> errors.DatabaseFailure:
        """Undo, and return the package's error."""
        failure = read_error(error)
        now = time.monotonic()
        took, open_for = now - self._began, now - self._opened
        if "statement pooling" in failure.text:  # PgBouncer's words, which are English everywhere
            return errors.StatementPooling(server=self.server, reason=failure.text)
        if not self.undo():
            return self._lost(statement, failure, open_for)
        refusals = self._look_up(statement, tables, failure)
        found = choose_refusal(failure.state, refusals)
        role = found.role if found else next(iter(tables), "")
        place = self._place(statement, tables.get(role), role)
        team = self._team(failure.state, place, found)
        return statement_error(failure, place, took=took, found=found, team=team)

    def _lost(self, statement: str, failure: Failure, open_for: float) -> errors.DatabaseFailure:
        """
        Return the error of a session that has ended.

        A session that is ended between two statements has no SQLSTATE: then the time decides.
        """
        limit = self.transaction_limit
        is_late = limit > 0 and open_for >= LIMIT_REACHED * limit and failure.state == NO_SQLSTATE
        if failure.state == TRANSACTION_TIMEOUT or is_late:
            found = f"{limit:g} s" if limit > 0 else "a time that was set after it connected"
            return errors.TransactionLimited(
                statement=statement, setting="transaction_timeout", found=found
            )
        return errors.ConnectionLost(statement=statement, reason=failure.text)

    def _look_up(self, statement: str, tables: Tables, failure: Failure) -> list[Refusal]:
        """Ask the catalogue what a statement that failed lacks; nothing if that fails too."""
        if failure.state not in LOOKED_UP or statement in {"why_refused", "state_schemas"}:
            return []
        # what was done before the savepoint of the statement that failed is kept
        is_open = self.work is Work.TRANSACTION
        try:
            with attempt(self) if is_open else nullcontext():
                return self.rows(
                    "why_refused",
                    Refusal,
                    asked=json.dumps(tables_to_look_up(self._place(statement, None), tables)),
                    creates=statement.startswith(MAKES),
                    changes=statement.startswith((*MAKES, "add", "drop")),
                    constraint_name=failure.constraint,
                )
        except errors.DatabaseFailure:
            return []

    def _team(self, state: str, place: Place, found: Refusal | None) -> tuple[str, str] | None:
        """Return a refused schema with the roles that may use it, if it has state tables."""
        is_other = found is not None and found.lacks in {"database", "owner", "policy"}
        if state != "42501" or is_other or place.statement == "state_schemas":
            return None
        schema = self.state if place.queue is None else schema_of(place.queue)
        its = self.row("state_schemas", database.StateSchema, schema_name=schema)
        if its is not None:
            return schema, its.roles
        return (schema, "") if schema == self.state else None

    def _undo(self, work: Work) -> Work | None:
        try:
            with self._raw.cursor() as cursor:
                for text in UNDO[work]:
                    cursor.executemany(text, None)
        except Error:
            return None
        return Work.TRANSACTION if work is Work.SAVEPOINT else Work.NONE
