"""
The plan of every statement, in each shape that a queue's table may have; for `sqlqueue selftest`.

A statement is compiled and not run: by EXPLAIN without sequential scans on PostgreSQL, by
SHOWPLAN_XML on SQL Server. What PostgreSQL has no plan for runs in a transaction that is undone.
A plan is at fault if it reads a whole table; on SQL Server also if it sorts or spools bodies, or
converts RowVersion, which costs the index.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from sqlq_spark.database import dialect_named
from sqlq_spark.database.statements import Statements

if TYPE_CHECKING:
    from sqlq_spark.database import Tables

# shape → what gives it to a queue; one with BodyString in its name was created with that column
SHAPES = {
    "postgresql": {
        "bigint seq, an index on Expires": (
            "ALTER TABLE {queue} ALTER COLUMN seq TYPE bigint; CREATE INDEX ON {queue} (expires)"
        ),
        "BodyString": "SELECT 1",
    },
    "sqlserver": {
        "clustered, no index on Expires, no Recoverable": (
            "DROP INDEX Index_Expires ON {queue}; DROP INDEX Index_RowVersion ON {queue};"
            " CREATE CLUSTERED INDEX Index_RowVersion ON {queue} (RowVersion);"
            " ALTER TABLE {queue} DROP COLUMN Recoverable"
        ),
        "varchar, BodyString": "ALTER TABLE {queue} ALTER COLUMN Headers varchar(max) NOT NULL",
    },
}
# what `install`, `create`, `script`, `selftest` and each transaction have run by then
RUN = re.compile(
    r"script_|selftest_|install_|create_|add_body_string|begin$|timeouts|set_lock_timeout|commit"
    r"|rollback|savepoint|release"
)
NO_PLAN = re.compile("LOCK|SET|DROP")  # what begins so EXPLAIN does not accept
# what reads a whole table by design: it counts, lists, deletes or locks all of it, or looks for
# what has expired, for which PostgreSQL's transport makes no index, or for a prefix in a small
# state table, which PostgreSQL's indexes know in the collation C only
WHOLE = {
    *("lock_queue", "purge", "purge_expired", "stats", "stats_delayed", "streams", "subscribers"),
    *("discard_abandoned", "delete_old_sinks"),
}
SORTS = {"load", "divert_large"}  # what keeps bodies in the order in which they were sent
PARAMETER = re.compile(r"(?<![:@\w])[:@]([a-z_]+)\b")
# texts of PostgreSQL's parameters; of others "1", which each type can read
VALUES = {**dict.fromkeys(("chosen", "delays", "moments", "places"), "[]"), "zone": "UTC"}
# PostgreSQL casts each parameter to its type, which SQL Server's variable then has too
CAST = re.compile(r":(\w+)::(\w+)\b(?!\[)")
TYPES = {"bigint": "bigint", "boolean": "bit", "bytea": "varbinary(8000)", "float8": "float"}
CONVERTED = re.compile(r"CONVERT_IMPLICIT\(\w+(?:\([^()]*\))?,[^()]*\[RowVersion\]")


def run(connection: Any, text: str) -> list[str]:  # noqa: ANN401 - of either database
    """Run statements as psql and sqlcmd do; return the first column of their rows, if any."""
    if connection.names.dialect == "sqlserver":
        batches = filter(str.strip, re.split(r"^GO$", text, flags=re.MULTILINE))
        return [row[0] for each in batches for row in connection._do("selftest", each, {})]  # noqa: SLF001 - it is no statement of ours
    with connection._raw.cursor() as cursor:  # noqa: SLF001 - as above
        if not text.startswith("EXPLAIN"):
            cursor.executemany(text, None)
            return ["not planned"]
        cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
        cursor.execute(text)
        return [line for (line,) in cursor.fetchall()]


def find_faults(connection: Any, tables: Tables) -> list[str]:  # noqa: ANN401 - as above
    """Compile each statement, in a session for this alone; return what is wrong with which."""
    texts, faults = Statements.load(connection.names.dialect), []
    first, write = "SET enable_seqscan = off", explain
    if connection.names.dialect == "sqlserver":
        from sqlq_spark.database.sqlserver import calls  # noqa: PLC0415 - of one database

        first, write = "SET SHOWPLAN_XML ON", declare
        columns = connection.columns(tables["queue"])
        texts["load"] = calls.build_insert(["headers", "body", "expires", "id"], columns)
    delayed = {**tables, "queue": tables["delayed"]}
    compiled = {
        name: write(connection, text, delayed if name == "stats_delayed" else tables)
        for name, text in texts.items()
        if not RUN.match(name)
    }
    run(connection, first)
    for name, text in compiled.items():
        try:
            found = judge("\n".join(run(connection, text)), name, tables)
        except Exception as error:
            if "permission" in str(error):
                raise
            found = [" ".join(str(error).split())]
        faults += [f"{name}: {each}" for each in found]
    return faults


def explain(connection: Any, text: str, tables: Tables) -> str:  # noqa: ANN401 - as above
    """Return what plans a statement, or runs one that has no plan; no value has a quote."""
    table = connection.names.quote_address(tables["queue"])
    values = {**VALUES, "source_table": table, "table_name": table}
    text = PARAMETER.sub(lambda found: f"'{values.get(found[1], '1')}'", text)
    text = dialect_named("postgresql").fill_names(text, connection.state, tables)
    return f"BEGIN; {text}; ROLLBACK" if NO_PLAN.match(text) else f"EXPLAIN {text}"


def declare(connection: Any, text: str, tables: Tables) -> str:  # noqa: ANN401 - as above
    """Declare the parameters that a text does not: in sp_executesql it would not be compiled."""
    casts = dict(CAST.findall(" ".join(Statements.load("postgresql").values())))
    declared = ", ".join(
        f"@{name} {TYPES.get(casts.get(name, ''), 'nvarchar(4000)')}"
        for name in dict.fromkeys(PARAMETER.findall(text))
        if not re.search(rf"@{name} (?:TABLE|(?:big)?int|bit|datetime2?|nvarchar)\b", text)
    )
    text = f"DECLARE {declared}; {text}" if declared else text
    return str(connection.fill_names(text, tables))


def judge(plan: str, name: str, tables: Tables) -> list[str]:
    """Return what is wrong with a plan. In XML, SQL Server's, state tables may be scanned."""
    if plan and not plan.startswith("<"):
        scanned = [] if name in WHOLE else re.findall(r"Seq Scan on (?!pg_)(\S+)", plan)
        return [f"it reads all of {each}" for each in scanned]
    tree = ET.fromstring(plan)  # noqa: S314 - of the server
    is_limited = 'PhysicalOp="Top"' in plan  # a scan in the order of its index soon ends
    queues = {f"[{each.table}]" for each in tables.values()}
    faults = ["RowVersion is converted"] if CONVERTED.search(plan) else []
    for node in tree.iterfind(".//{*}RelOp"):
        kind = str(node.get("PhysicalOp"))
        if kind.endswith("Scan") and name not in WHOLE:
            faults += [
                f"{kind} of {table.get('Table')}"
                for scan in node
                for table in scan.iterfind("{*}Object")
                if table.get("Table") in queues
                and not (is_limited and scan.get("Ordered") in {"1", "true"})
            ]
        bodies = node.find("{*}OutputList/{*}ColumnReference[@Column='Body']")
        if re.search("Sort|Spool", kind) and name not in SORTS and bodies is not None:
            faults.append(f"{kind} of bodies")
    return faults
