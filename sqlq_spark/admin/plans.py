"""
The plan of every statement, in each shape that a queue's table may have; for `sqlqueue selftest`.

A statement is compiled and not run: by EXPLAIN without sequential scans on PostgreSQL, by
SHOWPLAN_XML on SQL Server. What PostgreSQL has no plan for runs in a transaction that is undone.
A plan is at fault if it reads a whole table; on SQL Server also if it sorts or spools bodies, or
converts RowVersion, which costs the index.
"""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast
from xml.etree import ElementTree as ET

from sqlq_spark.database import dialect_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlq_spark.database import Connection, Tables, sqlserver

# shape → the statements that give it to a queue that was just created
SHAPES = {
    "postgresql": {
        "as created": "",
        "bigint seq, an index on Expires": (
            "ALTER TABLE {queue} ALTER COLUMN seq TYPE bigint; CREATE INDEX ON {queue} (expires)"
        ),
        "BodyString": (
            "ALTER TABLE {queue} ADD COLUMN BodyString text"
            " GENERATED ALWAYS AS (encode(Body, 'escape')) STORED"
        ),
    },
    "sqlserver": {
        "as created": "",
        "clustered, no index on Expires, no Recoverable": (
            "DROP INDEX Index_Expires ON {queue}; DROP INDEX Index_RowVersion ON {queue};"
            " CREATE CLUSTERED INDEX Index_RowVersion ON {queue} (RowVersion);"
            " ALTER TABLE {queue} DROP COLUMN Recoverable"
        ),
        "Headers varchar, BodyString": (
            "ALTER TABLE {queue} ALTER COLUMN Headers varchar(max) NOT NULL;"
            " ALTER TABLE {queue} ADD BodyString AS CAST(Body AS nvarchar(max))"
        ),
    },
}
# what `install`, `create`, `script`, `selftest` and each transaction have run by then
RUN = re.compile(
    r"script_|selftest_|install_|create_|add_body_string|begin$|timeouts|set_lock_timeout|commit"
    r"|rollback|savepoint|release"
)
NO_PLAN = {"lock_destination", "check_deferred", "lock_queue", "drop_queue"}  # for PostgreSQL
# what reads a whole table by design: it counts, lists, deletes or locks all of it, or looks for what
# has expired, for which PostgreSQL's transport makes no index
WHOLE = {
    *("lock_queue", "purge", "purge_expired", "stats", "stats_delayed", "streams", "subscribers"),
}
SORTS = {"load", "divert_large"}  # what keeps bodies in the order in which they were sent
NUMBERS = {
    *("batch", "bytes", "chunk", "diverted", "entries", "expired", "first", "forwarded", "grain"),
    *("largest", "last", "messages", "query_batch", "stop", "task", "unpacked"),
}
VALUES: dict[str, Any] = {
    **dict.fromkeys(NUMBERS, 1),
    **dict.fromkeys(("delays", "moments", "places", "rows", "seqs"), "[]"),
    **dict.fromkeys(("expiring", "renamed"), True),
    "payload": b"x",
    "seconds": 1.0,
    "zone": "UTC",
}
SHOWPLAN = "{http://schemas.microsoft.com/sqlserver/2004/07/showplan}"
SCANS = {"Table Scan", "Clustered Index Scan", "Index Scan"}
KEEPS = {"Sort", "Table Spool", "Index Spool"}
CONVERTED = re.compile(r"CONVERT_IMPLICIT\([^()]*\[RowVersion\]")


def run(connection: Connection, text: str) -> list[tuple[Any, ...]]:
    """Run a text of several statements as psql and sqlcmd do; return the rows that it gives."""
    rows: list[tuple[Any, ...]] = []
    is_postgresql = connection.names.dialect == "postgresql"
    with closing(connection._raw.cursor()) as cursor:  # noqa: SLF001 - it is no statement of ours
        if is_postgresql:
            if not text.startswith("EXPLAIN"):
                cursor.executemany(text, None)
                return rows
            cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
        for batch in filter(str.strip, re.split(r"^GO$", text, flags=re.MULTILINE)):
            cursor.execute(batch)
            more = True
            while more:
                rows += map(tuple, cursor.fetchall() if cursor.description else [])
                more = not is_postgresql and cursor.nextset()
    return rows


def reshape(connection: Connection, tables: Tables, shape: str) -> None:
    """Give a new queue a shape."""
    dialect = connection.names.dialect
    text = dialect_named(dialect).fill_names(SHAPES[dialect][shape], connection.state, tables)
    for statement in filter(str.strip, text.split(";")):
        run(connection, statement)


def find_faults(connection: Connection, tables: Tables) -> tuple[int, list[str]]:
    """Compile each statement; return how many, and what is wrong with which."""
    is_postgresql = connection.names.dialect == "postgresql"
    texts = dict((postgresql_texts if is_postgresql else sqlserver_texts)(connection, tables))
    if is_postgresql:
        run(connection, "SET enable_seqscan = off")
    faults = []
    for name, text in texts.items():
        try:
            found = (explain if is_postgresql else show_plan)(connection, name, text, tables)
        except Exception as error:  # noqa: BLE001 - drivers have trees of their own
            found = [" ".join(str(error).split())]
        faults += [f"{name}: {each}" for each in found]
    return len(texts), faults


def values_for(text: str, pattern: re.Pattern[str], queue: str) -> dict[str, Any]:
    """Return a value for each parameter of a statement; the name of a table is of one that exists."""
    values = VALUES | dict.fromkeys(("source_table", "table_name"), queue)
    return {name: values.get(name, "x") for name in pattern.findall(text)}


# ---------------------------------------------------------------- PostgreSQL


def postgresql_texts(connection: Connection, tables: Tables) -> Iterator[tuple[str, str]]:
    from sqlq_spark.database.postgresql import rows  # noqa: PLC0415 - imports the driver

    for name, text in rows.STATEMENTS.items():
        if RUN.match(name):
            continue
        its = tables | ({"queue": tables["delayed"]} if name == "stats_delayed" else {})
        values = values_for(text, rows.PARAMETER, connection.names.quote_address(its["queue"]))
        if name == "take":
            values["seqs"] = "{1}"
        elif "payload" in values:
            values["payload"] = ""
        for each, value in values.items():
            quoted = str(value).replace("'", "''")
            text = re.sub(rf"(?<![:\w]):{each}\b", lambda _: f"'{quoted}'", text)  # noqa: B023, PLW2901
        yield name, rows.fill_names(text, connection.state, its)


def explain(connection: Connection, name: str, text: str, _: Tables) -> list[str]:
    if name in NO_PLAN:
        run(connection, f"BEGIN; {text}; ROLLBACK")
        return []
    plan = "\n".join(row[0] for row in run(connection, f"EXPLAIN {text}"))
    return [] if name in WHOLE else judge_explain(plan)


def judge_explain(plan: str) -> list[str]:
    """Return what is wrong with a plan that was made without sequential scans where possible."""
    return [f"it reads all of {each}" for each in re.findall(r"Seq Scan on (?!pg_)(\S+)", plan)]


# ---------------------------------------------------------------- SQL Server


def sqlserver_texts(connection: Connection, tables: Tables) -> Iterator[tuple[str, str]]:
    """
    Yield each statement as a batch of its own.

    Inside sp_executesql it would not be compiled, so its parameters become variables.
    """
    from sqlq_spark.database.sqlserver import calls  # noqa: PLC0415 - of the other database

    session = cast("sqlserver.Connection", connection)
    sent = ["headers", "body", "expires", "id"]
    load = calls.build_insert(sent, connection.columns(tables["queue"]))
    for name, text in {**calls.STATEMENTS, "load": load}.items():
        if RUN.match(name):
            continue
        its = tables | ({"queue": tables["delayed"]} if name == "stats_delayed" else {})
        queue = connection.names.quote_address(its["queue"])
        given = ", ".join(
            f"@{each} {calls.type_of(each, value)}"
            for each, value in values_for(text, calls.PARAMETER, queue).items()
            if not re.search(rf"DECLARE\b[^;]*@{each} ", text)
        )
        filled = session.fill_names(text, its)
        yield name, f"DECLARE {given}; {filled}" if given else filled


def show_plan(connection: Connection, name: str, text: str, tables: Tables) -> list[str]:
    run(connection, "SET SHOWPLAN_XML ON")  # alone in its batch
    try:
        plans = [plan for (plan,) in run(connection, text)]
    finally:
        run(connection, "SET SHOWPLAN_XML OFF")
    return [fault for plan in plans for fault in judge_showplan(plan, name, f"[{tables['queue'].schema}]")]


def judge_showplan(plan: str, name: str, schema: str) -> list[str]:
    """
    Return what is wrong with a statement's plan, in XML.

    Only tables of the queues' schema, in brackets, may not be scanned: variables, the catalogue and
    small state tables are. A scan below a TOP, in the order of its index, ends after a few rows.
    """
    faults = []

    def walk(node: ET.Element, *, limited: bool) -> None:
        kind = node.get("PhysicalOp", "")
        if kind in SCANS and name not in WHOLE:
            for scan in node.iterfind("*"):
                table = scan.find(f"{SHOWPLAN}Object")
                is_ordered = limited and scan.get("Ordered") in {"1", "true"}
                if table is not None and table.get("Schema") == schema and not is_ordered:
                    faults.append(f"{kind} of {table.get('Table')}")
        if kind in KEEPS and name not in SORTS:
            columns = node.iterfind(f"{SHOWPLAN}OutputList/{SHOWPLAN}ColumnReference")
            if "Body" in {each.get("Column") for each in columns}:
                faults.append(f"{kind} of bodies")
        if any(CONVERTED.search(text) for text in node.attrib.values()):
            faults.append("RowVersion is converted")
        for child in node:
            walk(child, limited=limited or kind == "Top")

    walk(ET.fromstring(plan), limited=False)  # noqa: S314 - of the server
    return [*dict.fromkeys(faults)]
