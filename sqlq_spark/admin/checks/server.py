"""
Checks of the server, the state tables and the streams.

The rules for the server are in each dialect's checks.sql: each row of `check_server` is a finding.
"""

from __future__ import annotations

from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING

from sqlq_spark.admin import inspect
from sqlq_spark.admin.finding import Finding, finding, of_error
from sqlq_spark.admin.formats import quantity
from sqlq_spark.database import transaction
from sqlq_spark.database.schema import check_state, state_parts
from sqlq_spark.errors import RightMissing, StateNotInstalled, StateTooNew, StateTooOld

if TYPE_CHECKING:
    from sqlq_spark.database import Connection

OLD_TRANSACTION = 600.0  # seconds
UNSEEN = 86_400.0  # seconds without a sign of a stream that holds receipts


def of_server(connection: Connection, *, older: float | None = OLD_TRANSACTION) -> list[Finding]:
    """Check the server and its transactions of more than `older` seconds; None: of no age."""
    rows = connection.rows("check_server", seconds=older)
    return [finding(connection.server, row) for row in rows]


def of_any_server(connection: Connection, *, timeout: float) -> list[Finding]:
    """
    Check the server, in a transaction of its own; no transaction is open.

    A login that may not see the sessions gets a note: in Azure's small tiers a right of the
    database is not enough for that.
    """
    try:
        with transaction(connection, timeout=timeout):
            return of_server(connection)
    except RightMissing as error:
        note = of_error(connection.server, "sessions_right", error, error.fix)
    with transaction(connection, timeout=timeout):
        found = of_server(connection, older=None)
    return [*found, replace(note, severity="note")]


def of_state(connection: Connection) -> list[Finding]:
    """Check the state tables' version, and that all are there; no transaction may be open."""
    missing = [each for each in missing_parts(connection) if each.severity == "error"]
    try:
        check_state(connection)
    except StateNotInstalled as error:
        fix = f"sqlqueue install --state-schema {quote(connection.state)}"
        if ("version",) in connection.rows("state_parts"):
            fix = state_parts(connection)["version"].splitlines()[-1]
        return missing or [of_error(connection.server, "state", error, fix)]
    except StateTooOld as error:
        fix = "stop the queries, see that receipt and staging are empty, and drop the schema"
        return [of_error(connection.server, "state", error, fix)]
    except StateTooNew as error:
        # the name of the package on the public index may be another's
        fix = "in the folder of the clone: git pull && pip install '.[spark]'"
        return [of_error(connection.server, "state", error, fix)]
    except RightMissing as error:
        return [of_error(connection.server, "state_right", error, error.fix)]
    return missing


def of_state_tables(connection: Connection) -> list[Finding]:
    """Check indexes and settings of the state tables in the catalogue, which anyone may read."""
    rows = connection.rows("check_state", state_name=connection.state)
    missing = [each for each in missing_parts(connection) if each.severity != "error"]
    return [*missing, *(finding(connection.server, row) for row in rows)]


def missing_parts(connection: Connection) -> list[Finding]:
    """Find state tables and indexes that are missing beside others. No install creates these."""
    there = {name for (name,) in connection.rows("state_parts")}
    parts = state_parts(connection) if there else {}
    tables = {name: text for name, text in parts.items() if text.startswith("CREATE TABLE")}
    lost = {name: text for name, text in tables.items() if name not in there}
    found = [
        Finding(
            where=connection.server,
            name="state_table",
            severity="error",
            found=f"state table {connection.state}.{name} is missing, though others are there",
            fix=f"{text}\n-- then run the script of `sqlqueue script` again, for the rights",
        )
        for name, text in lost.items()
    ]
    return found + [
        Finding(
            where=connection.server,
            name="state_index",
            severity="warning",
            found=f"index {name} of the state tables is missing: a query reads whole tables",
            fix=text,
        )
        for name, text in parts.items()
        if name not in {*tables, *there} and not any(text in table for table in lost.values())
    ]


def of_streams(connection: Connection) -> list[Finding]:
    """Find streams that hold receipts and gave no sign for UNSEEN seconds."""
    return [
        Finding(
            where=each.queue,
            name="unseen_stream",
            severity="warning",
            found=f"stream {each.stream} was last seen {each.seen:%Y-%m-%d %H:%M} and holds "
            f"{quantity(each.held, 'message')} in {quantity(each.receipts, 'receipt')}",
            fix=fix_unseen(each.stream, connection.state),
        )
        for each in inspect.unseen_streams(connection, UNSEEN)
    ]


def fix_unseen(stream: str, state: str) -> str:
    """
    Say what to do with the receipts of a stream that was not seen for long.

    A query that runs once a week looks like one whose checkpoint is lost. Its sink may hold the
    messages already: only the query itself can find that out.
    """
    words = f"--stream {quote(stream)} --state-schema {quote(state)}"
    return (
        "start the query once with its checkpoint: it finishes the batch\n"
        "only if the checkpoint is lost, find out whether the sink has these messages\n"
        f"if it has none of them: sqlqueue receipts return {words}\n"
        f"if it has all of them: sqlqueue receipts drop {words}"
    )


def of_any_streams(connection: Connection, *, timeout: float) -> list[Finding]:
    """Check streams, which only logins that receive may see; no transaction is open."""
    try:
        with transaction(connection, timeout=timeout):
            return of_streams(connection)
    except RightMissing as error:
        found = of_error(connection.server, "streams_right", error, error.fix)
        return [replace(found, severity="note")]
