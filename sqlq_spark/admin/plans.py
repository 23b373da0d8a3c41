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
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias
from xml.etree import ElementTree as ET

from sqlq_spark.database import dialect_named
from sqlq_spark.database.statements import Statements

if TYPE_CHECKING:
    from sqlq_spark.database import Connection, Tables

Values: TypeAlias = "dict[str, Any]"  # of parameters, by their names

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
# what reads a whole table by design: it counts, lists, deletes or locks all of it, or looks for
# what has expired, for which PostgreSQL's transport makes no index, or for a prefix in a small
# state table, which PostgreSQL's indexes know in the collation C only
WHOLE = {
    *("lock_queue", "purge", "purge_expired", "stats", "stats_delayed", "streams", "subscribers"),
    *("discard_abandoned", "delete_old_sinks"),
}
SORTS = {"load", "divert_large"}  # what keeps bodies in the order in which they were sent
# a value of each type, as PostgreSQL's statements cast their parameters; of others a text
KINDS = {"bigint": 1, "integer": 1, "boolean": True, "bytea": b"", "float8": 1.0}
VALUES = {**dict.fromkeys(("delays", "moments", "places", "rows", "seqs"), "[]"), "zone": "UTC"}
OWN = "TABLE|bigint|bit|datetime|datetime2|int|nvarchar"  # types of a statement's own variables
SHOWPLAN = "{http://schemas.microsoft.com/sqlserver/2004/07/showplan}"
SCANS = {"Table Scan", "Clustered Index Scan", "Index Scan"}
KEEPS = {"Sort", "Table Spool", "Index Spool"}
CONVERTED = re.compile(r"CONVERT_IMPLICIT\(\w+(?:\([^()]*\))?,[^()]*\[RowVersion\]")


def run(
    connection: Connection, text: str, tables: Tables | None = None, **words: str
) -> list[tuple[Any, ...]]:
    """
    Run a text of several statements as psql and sqlcmd do; return the rows that it gives.

    With `tables` it has names in braces, as a statement of the package.
    """
    if tables is not None:
        fill = dialect_named(connection.names.dialect).fill_names
        text = fill(text, connection.state, tables, **words)
    rows: list[tuple[Any, ...]] = []
    is_postgresql = connection.names.dialect == "postgresql"
    if not text:
        return rows
    with closing(connection._raw.cursor()) as cursor:  # noqa: SLF001 - it is no statement of ours
        if is_postgresql and not text.startswith("EXPLAIN"):
            cursor.executemany(text, None)
            return rows
        if is_postgresql:
            cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
        for batch in filter(str.strip, re.split(r"^GO$", text, flags=re.MULTILINE)):
            cursor.execute(batch)
            more = True
            while more:
                rows += map(tuple, cursor.fetchall() if cursor.description else [])
                more = not is_postgresql and cursor.nextset()
    return rows


def find_faults(connection: Connection, tables: Tables) -> list[str]:
    """Compile each statement; return what is wrong with which."""
    is_postgresql = connection.names.dialect == "postgresql"
    place = "postgresql.rows" if is_postgresql else "sqlserver.calls"
    sent = import_module(f"sqlq_spark.database.{place}")  # how statements are sent
    texts = {name: text for name, text in sent.STATEMENTS.items() if not RUN.match(name)}
    if is_postgresql:
        run(connection, "SET enable_seqscan = off")
    else:
        columns = connection.columns(tables["queue"])
        texts["load"] = sent.build_insert(["headers", "body", "expires", "id"], columns)
    faults = []
    for name, text in texts.items():
        its = tables | ({"queue": tables["delayed"]} if name == "stats_delayed" else {})
        values = values_for(text, sent.PARAMETER, connection.names.quote_address(its["queue"]))
        try:
            found = (explain if is_postgresql else show_plan)(connection, name, text, its, values)
        except Exception as error:  # noqa: BLE001 - drivers have trees of their own
            found = [" ".join(str(error).split())]
        faults += [f"{name}: {each}" for each in found]
    return faults


@cache
def kinds() -> dict[str, Any]:
    """Return a value for each parameter that PostgreSQL's statements cast, by its name."""
    texts = " ".join(Statements.load("postgresql").values())
    return {name: KINDS.get(kind, "x") for name, kind in re.findall(r":(\w+)::(\w+)", texts)}


def values_for(text: str, parameter: re.Pattern[str], table: str) -> Values:
    """Return a value for each parameter of a statement; a text that must name a table names one."""
    known = {**kinds(), **VALUES, "source_table": table, "table_name": table}
    return {name: known.get(name, "x") for name in parameter.findall(text)}


def explain(
    connection: Connection, name: str, text: str, tables: Tables, values: Values
) -> list[str]:
    from sqlq_spark.database.postgresql import rows  # noqa: PLC0415 - imports the driver

    values["payload"] = ""
    # no value has a quote; the list of `take` is an array
    text = rows.PARAMETER.sub(lambda found: f"'{values[found[1]]}'", text)
    text = rows.fill_names(text, connection.state, tables).replace(
        "'[]'::bigint[]", "'{}'::bigint[]"
    )
    if name in NO_PLAN:
        run(connection, f"BEGIN; {text}; ROLLBACK")
        return []
    plan = "\n".join(row[0] for row in run(connection, f"EXPLAIN {text}"))
    return [] if name in WHOLE else judge_explain(plan)


def judge_explain(plan: str) -> list[str]:
    return [f"it reads all of {each}" for each in re.findall(r"Seq Scan on (?!pg_)(\S+)", plan)]


def show_plan(connection: Any, name: str, text: str, tables: Tables, values: Values) -> list[str]:  # noqa: ANN401 - of SQL Server
    batch = connection.fill_names(as_batch(text, values), tables)
    run(connection, "SET SHOWPLAN_XML ON")  # alone in its batch
    try:
        plans = run(connection, batch)
    finally:
        run(connection, "SET SHOWPLAN_XML OFF")
    schema = f"[{tables['queue'].schema}]"
    return [fault for (plan,) in plans for fault in judge_showplan(plan, name, schema)]


def as_batch(text: str, values: Values) -> str:
    """Return a statement whose parameters are variables: in sp_executesql it is not compiled."""
    from sqlq_spark.database.sqlserver import calls  # noqa: PLC0415 - of one database

    declared = ", ".join(
        f"@{name} {calls.type_of(name, value)}"
        for name, value in values.items()
        if not re.search(rf"@{name} (?:{OWN})\b", text)
    )
    return f"DECLARE {declared}; {text}" if declared else text


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
        columns = node.iterfind(f"{SHOWPLAN}OutputList/{SHOWPLAN}ColumnReference")
        if (
            kind in KEEPS
            and name not in SORTS
            and "Body" in {each.get("Column") for each in columns}
        ):
            faults.append(f"{kind} of bodies")
        if any(CONVERTED.search(text) for text in node.attrib.values()):
            faults.append("RowVersion is converted")
        for child in node:
            walk(child, limited=limited or kind == "Top")

    walk(ET.fromstring(plan), limited=False)  # noqa: S314 - of the server
    return [*dict.fromkeys(faults)]
