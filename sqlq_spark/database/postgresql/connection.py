"""
A session with PostgreSQL through the ADBC driver, which reads and writes Arrow.

The values of rows never become Python objects. Measured with 2 connections and rows of 1.2 kB:
DELETE … RETURNING returns 170,000 rows per second as Arrow. With psycopg it returns 113,000 to
180,000 rows per second, which must then be converted to Arrow.

Each statement runs inside a transaction, even if it runs alone. The reason is a pooler that lends a
session for one transaction only (PgBouncer). The driver prepares a statement in one message and
runs it in another. Without a transaction the pooler may send the second message to another session,
which has not prepared the statement. A statement that begins or ends a transaction is sent in a
single message. Transactions are begun by such statements, so the driver itself stays in autocommit
mode.
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
    ONLY_OWNERS,
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

# Bytes of one batch of a COPY. While the driver encodes a batch, the server reads the one before.
# Measured with rows of 1.2 kB: a row takes 4.6 us. With batches of 10,000 rows it takes 5.9 us.
COPIED = 256 << 10

# How many characters of a stream's or a sink's name fit into the application_name of any session.
LONGEST_LABEL = 46
FROZEN = "ended %s (pid %d): it kept others waiting, and its process did nothing for %g s"
END_SESSION = (
    "; session {0} of login {1} holds rows of the same stream or sink: if its process hangs, a DBA "
    "can end it with SELECT pg_terminate_backend({0})"
)

# Two statements receive. `receive` first locks the rows that no other session holds, and then
# deletes them. `receive_range` deletes a range of seqs in one pass. It suits queues without another
# consumer, which most queues that Spark reads are. If it has to wait for a row, it is undone after
# ROW_WAIT seconds. Then only `receive` is used for that queue, for PAUSE seconds. Measured with
# messages of 1.2 kB: `receive_range` takes 4.0 us of the server's time for each message, and
# `receive` takes 4.9 us. `receive_range` also returns the rows in the order of their seqs.
FEWEST = 1000  # for fewer messages the four additional statements cost more than they save
# Seconds to wait for each row that another session holds. Measured beside 16 endpoints that held
# rows for 10 ms: if this was 20 ms, a receive took 0.7 to 8.4 s. With 1 ms it took 0.4 to 0.8 s.
ROW_WAIT = 0.001
PAUSE = 60.0  # seconds until `receive_range` is tried again
# A range may hold SLACK times the bytes of the step, because the size was only estimated.
SLACK = 1.25
# (server, queue) → when another session held one of its rows, by this process's clock
HELD: dict[tuple[str, QueueAddress], float] = {}

IN_ONE_MESSAGE = {*OPENS}  # these statements have no parameters and return no rows
UNDO = {
    Work.NONE: ("ROLLBACK",),  # undoes nothing, but shows whether the session is alive
    Work.TRANSACTION: ("ROLLBACK",),
    Work.SAVEPOINT: ("ROLLBACK TO SAVEPOINT attempt", "RELEASE SAVEPOINT attempt"),
}


@dataclass(frozen=True, slots=True)
class FrozenSession:
    """A row of `end_frozen`: a session that keeps others waiting."""

    pid: int
    login: str
    application: str
    ended: bool | None  # None if the session has another login, so that only a DBA can end it


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Time limits that the login has in this session, in seconds. 0 means no limit."""

    transaction: float | None  # None if the server is older than version 17
    statement: float


NO_LIMITS = TimeLimits(transaction=None, statement=0.0)


def connect(
    url: str, *, application: str, timeout: float, state: str, credential: str | None = None
) -> Connection:
    url = with_login(url, None, credential)  # a token is a password too
    server = redact(url)
    raw = drivers.open_session(url, server, application, timeout)
    connection = Connection(
        raw, server=server, state=state, timeout=timeout, application=application
    )
    try:
        # `connect` reads the limits before anything else. When a limit has passed, the server may
        # have ended the session, and an error can name the limit only if it is known.
        connection.read_limits()
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def named_refusal() -> Iterator[None]:
    """Raise RightMissing if the server refuses a script. Leave other errors of the driver alone."""
    try:
        yield
    except Error as error:
        if error.sqlstate != "42501":
            raise
        fix = "a login that has the right which the server names"
        reason = read_error(error).text
        raise errors.RightMissing(reason=reason, statement="script", fix=fix) from None


def read_up_to(cursor: dbapi.Cursor, most: int) -> pa.Table:
    """Read a result in batches of 16 MiB, until the batches have more than `most` bytes in all."""
    batches = []
    left = most
    with cursor.fetch_record_batch() as reader:
        for batch in reader:
            batches.append(batch)
            left -= batch.nbytes
            if left < 0:
                cursor.adbc_cancel()
                break
        return pa.Table.from_batches(batches, reader.schema)


class Connection(database.Connection):
    """One session through the ADBC driver."""

    names = POSTGRESQL
    lacks = LACKS
    shapes = explain.SHAPES
    most_moved = 64 << 20
    _raw: dbapi.Connection
    login_limits = NO_LIMITS
    _began = 0.0  # when the last statement was sent, by this process's clock
    _opened = 0.0  # when the open transaction began, by this process's clock

    def _read(
        self, statement: StatementName, tables: Tables, values: Mapping[str, Value]
    ) -> Result:
        text, names = number_parameters(statement)
        if statement == "begin":
            name = cut_name(str(values["application"]))
            text = write_values(statement, {**values, "application": name})
            names = ()
        bound = tuple(values[name] for name in names)
        try:
            table = self._execute(statement, fill_names(text, self.state, tables), bound, tables)
        except errors.TimedOut as error:
            raise self._end_frozen(error, values) from None
        return read_result(table)

    def arrow(self, statement: StatementName, *, tables: Tables, **values: int | str) -> pa.Table:
        """
        Execute a statement and return its rows as an Arrow table. A uuid is 16 bytes.

        For a `receive` the faster `receive_range` is tried first.

        The values are written into the text of the statement. Without parameters the driver streams
        the result by COPY, which is faster and avoids a second copy of the result. Measured: 2.4 us
        for each message, and 3.0 us with parameters.
        """
        if statement == "receive":
            received = self._receive_range(tables["queue"], cast("dict[str, int]", values))
            if received is not None:
                return received
        text = fill_names(write_values(statement, values), self.state, tables)
        most = 2 * cast("int", values["bytes"]) if statement == "browse" else None
        return plain_columns(self._execute(statement, text, (), tables, most))

    def load(self, queue: QueueAddress, rows: pa.Table) -> None:
        has_expiry = "expires" in rows.column_names and rows["expires"].null_count < rows.num_rows
        if has_expiry and self.columns(queue).get("expires") == "date":
            rows = with_whole_days(rows)
        self._ingest("load", {"queue": queue}, queue, rows)

    def store(self, table: str, rows: pa.Table) -> None:
        # measured for 13 MB: COPY takes 60 ms of the server's time, INSERT takes 72 ms
        if rows.num_rows:
            self._ingest(f"store {table}", {}, QueueAddress(table, self.state), rows)

    def stored_bytes(self, texts: pa.Array) -> pa.Array:
        return pc.binary_length(texts)

    def columns(self, queue: QueueAddress) -> dict[str, str]:
        name = POSTGRESQL.quote_address(queue)
        columns = self.rows("queue_columns", database.Column, table_name=name)
        return {column.name: column.type for column in columns}

    def read_limits(self) -> None:
        """Read the time limits of this login. It is the session's first statement."""
        limits = self.row("time_limits", TimeLimits) or NO_LIMITS
        if not isinstance(limits.statement, float):  # the driver found no type, and returned bytes
            raise errors.NamesQuoted(server=self.server)
        self.login_limits = limits

    def run_script(self, text: str) -> list[Any]:
        with named_refusal(), self._raw.cursor() as cursor:
            cursor.executemany(text, None)
        return []

    def script_databases(self, prefix: str) -> dict[str, tuple[str, str]]:  # noqa: ARG002
        return {}

    def explain(self, tables: Tables) -> list[str]:
        compiled = {
            name: explain.compile_text(text, self.state, its_tables)
            for name, text, its_tables in to_explain(STATEMENTS, tables)
        }
        self.run_script(explain.WITHOUT_SCANS)
        return find_faults(compiled, self._plan_of, explain.judge)

    def close(self) -> None:
        self._raw.close()

    # ------------------------------------------------------------ inside

    def _plan_of(self, text: str) -> str:
        """
        Return the plan that an EXPLAIN prints.

        A text without EXPLAIN is run, and has an empty plan.
        """
        if not text.startswith("EXPLAIN"):
            self.run_script(text)
            return ""
        with named_refusal(), self._raw.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
            cursor.execute(text)
            return "\n".join(line for (line,) in cursor.fetchall())

    def _receive_range(self, queue: QueueAddress, limits: Mapping[str, int]) -> pa.Table | None:
        """
        Receive the messages of a range of seqs.

        The range begins at `first`, has at most `messages` seqs, and ends before `stop`.

        Returns:
            The messages, or None if `receive` must be used: there are few messages, the range is
            empty or too large, or another session holds some of its rows.
        """
        first = limits["first"]
        messages = limits["messages"]
        key = self.server, queue
        if messages < FEWEST or time.monotonic() < HELD.get(key, -PAUSE) + PAUSE:
            return None
        try:
            with database.attempt(self):
                self.set_lock_timeout(ROW_WAIT)
                received = self.arrow(
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
        return received if received.num_rows else None

    def _end_frozen(self, error: errors.TimedOut, values: Mapping[str, Value]) -> errors.TimedOut:
        """
        End sessions of the same stream or sink that hold its rows while their client hangs.

        This is called when a statement has waited too long for a lock.

        Returns:
            The error to raise for the wait. If a session was ended, it is LockTimedOut, so that the
            transaction runs again.
        """
        stream = values.get("stream")
        sink = values.get("sink")
        if stream is None and sink is None:
            return error
        name = f" {stream!s} " if sink is None else f" {sink!s}/"
        kind = type(error)
        seconds = error.seconds
        reason = error.reason
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
        # The driver copies each batch before it sends it. With one large batch all rows would be in
        # memory twice.
        batch_rows = max(1, COPIED * rows.num_rows // max(1, rows.nbytes))
        batches = pa.Table.from_batches(rows.to_batches(max_chunksize=batch_rows), rows.schema)
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
                if most is not None:
                    result = read_up_to(cursor, most)
                elif cursor.description:
                    result = cursor.fetch_arrow_table()
                else:
                    result = pa.table({})
                if is_alone:
                    cursor.executemany(STATEMENTS["commit"], None)
        except Error as error:
            raise self._failure(statement, tables, error) from None
        return result

    def _note_start(self) -> None:
        self._began = time.monotonic()
        if self.work is Work.NONE:
            self._opened = self._began

    def _failure(self, statement: str, tables: Tables, error: Error) -> errors.DatabaseFailure:
        """Undo the open work, and return the package's error for the driver's error."""
        failure = read_error(error)
        now = time.monotonic()
        took = now - self._began
        open_for = now - self._opened
        if "statement pooling" in failure.text:  # PgBouncer always writes English
            return errors.StatementPooling(server=self.server, reason=failure.text)
        if not self.undo():
            return self._lost(statement, failure, open_for)
        refusals = self._look_up(statement, tables, failure)
        refusal = choose_refusal(failure.state, refusals)
        role = refusal.role if refusal else next(iter(tables), "")
        place = self._place(statement, tables.get(role), role)
        team = self._team(failure.state, place, refusal)
        return statement_error(
            failure,
            place,
            took=took,
            login_limit=self.login_limits.statement,
            refusal=refusal,
            team=team,
        )

    def _lost(self, statement: str, failure: Failure, open_for: float) -> errors.DatabaseFailure:
        """
        Return the error of a session that has ended.

        If the server has ended the session between two statements, the driver reports no SQLSTATE.
        If the transaction was open for as long as transaction_timeout, then that limit is named as
        the reason.
        """
        limit = self.login_limits.transaction or 0.0
        is_late = limit > 0 and open_for >= LIMIT_REACHED * limit and failure.state == NO_SQLSTATE
        if failure.state == TRANSACTION_TIMEOUT or is_late:
            value = f"{limit:g} s" if limit > 0 else "a time that was set after it connected"
            return errors.TransactionLimited(
                statement=statement, setting="transaction_timeout", found=value
            )
        return errors.ConnectionLost(statement=statement, reason=failure.text)

    def _look_up(self, statement: str, tables: Tables, failure: Failure) -> list[Refusal]:
        """
        Ask the catalogue what a failed statement lacked.

        Returns:
            What the catalogue says of each table. Empty if this question fails too.
        """
        if failure.state not in LOOKED_UP or statement in {"why_refused", "state_schemas"}:
            return []
        # If a savepoint was undone, the transaction is still open. A failure of this question must
        # not end it, so the question gets a savepoint of its own.
        is_open = self.work is Work.TRANSACTION
        try:
            with attempt(self) if is_open else nullcontext():
                return self.rows(
                    "why_refused",
                    Refusal,
                    asked=json.dumps(tables_to_look_up(self._place(statement, None), tables)),
                    creates=statement.startswith(MAKES),
                    changes=statement.startswith((*MAKES, *ONLY_OWNERS)),
                    constraint_name=failure.constraint,
                )
        except errors.DatabaseFailure:
            return []

    def _team(self, state: str, place: Place, refusal: Refusal | None) -> tuple[str, str] | None:
        """
        Return the refused state schema and the roles of its team.

        Return None if the statement failed for another reason.
        """
        is_other = refusal is not None and refusal.lacks in {"database", "owner", "policy"}
        if state != "42501" or is_other or place.statement == "state_schemas":
            return None
        schema = self.state if place.queue is None else schema_of(place.queue)
        state_schema = self.row("state_schemas", database.StateSchema, schema_name=schema)
        if state_schema is not None:
            return schema, state_schema.roles
        return (schema, "") if schema == self.state else None

    def _undo(self, work: Work) -> Work | None:
        try:
            with self._raw.cursor() as cursor:
                for text in UNDO[work]:
                    cursor.executemany(text, None)
        except Error:
            return None
        return Work.TRANSACTION if work is Work.SAVEPOINT else Work.NONE
