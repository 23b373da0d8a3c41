"""
Find wrong plans of statements on SQL Server, by SHOWPLAN_XML.

A plan is wrong if it reads a whole queue, if it sorts or spools bodies, or if it converts
RowVersion. (With a conversion the server cannot use the index.) A scan of a state table is allowed.
A scan of a queue is allowed only if it ends soon: below a TOP that reads in the order of its index,
or below a semi join that needs only one row.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from sqlq_spark.database.explain import WHOLE
from sqlq_spark.database.sqlserver.calls import PARAMETER
from sqlq_spark.database.statements import Statements
from sqlq_spark.wire.dialects import DEFAULT_DIALECT

if TYPE_CHECKING:
    from sqlq_spark.database import Tables

# Shape of a queue's table → the SQL that gives a new queue this shape. If the shape's name contains
# BodyString, the selftest has created the queue with that column.
SHAPES = {
    "clustered, no index on Expires, no Recoverable": (
        "DROP INDEX Index_Expires ON {queue}; DROP INDEX Index_RowVersion ON {queue};"
        " CREATE CLUSTERED INDEX Index_RowVersion ON {queue} (RowVersion);"
        " ALTER TABLE {queue} DROP COLUMN Recoverable"
    ),
    "varchar, BodyString": "ALTER TABLE {queue} ALTER COLUMN Headers varchar(max) NOT NULL",
}
ONLY_PLANS = "SET SHOWPLAN_XML ON"
EXPLAINED_COLUMNS = ["headers", "body", "expires", "id"]  # columns of a bulk insert
SORTS = {"load", "divert_large"}  # statements that sort bodies, to keep the order of the rows
# Each parameter of this dialect has the type to which the other dialect's text casts it. See
# `declare`.
CAST = re.compile(r":(\w+)::(\w+)\b(?!\[)")
TYPES = {"bigint": "bigint", "boolean": "bit", "bytea": "varbinary(8000)", "float8": "float"}
CONVERTED = re.compile(r"CONVERT_IMPLICIT\(\w+(?:\([^()]*\))?,[^()]*\[RowVersion\]")


def declare(text: str) -> str:
    """
    Declare the parameters of a text as variables, so that the server compiles it.

    Usually a text is sent inside sp_executesql, but then the server does not compile it for
    SHOWPLAN.
    """
    casts = dict(CAST.findall(" ".join(Statements.read(DEFAULT_DIALECT).values())))
    declared = ", ".join(
        f"@{name} {TYPES.get(casts.get(name, ''), 'nvarchar(4000)')}"
        for name in dict.fromkeys(PARAMETER.findall(text))
        if not re.search(rf"@{name} (?:TABLE|(?:big)?int|bit|datetime2?|nvarchar)\b", text)
    )
    return f"DECLARE {declared}; {text}" if declared else text


def judge(plan: str, name: str, tables: Tables) -> list[str]:
    """Return what is wrong with a plan."""
    tree = ET.fromstring(plan)  # noqa: S314 - of the server
    is_limited = 'PhysicalOp="Top"' in plan
    ends_at_first = _stopped_by_semi_joins(tree)
    queues = {f"[{address.table}]" for address in tables.values()}
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
                and not (node in ends_at_first and scan.find("{*}Predicate") is None)
            ]
        bodies = node.find("{*}OutputList/{*}ColumnReference[@Column='Body']")
        if re.search("Sort|Spool", kind) and name not in SORTS and bodies is not None:
            faults.append(f"{kind} of bodies")
    return faults


def _stopped_by_semi_joins(tree: ET.Element) -> set[ET.Element]:
    """
    Return the operators from which a semi join needs only one row.

    They are the second input of the join, and all operators below that input.
    """
    stopped: set[ET.Element] = set()
    for join in tree.iterfind(".//{*}RelOp[@PhysicalOp='Nested Loops']"):
        if str(join.get("LogicalOp")).endswith("Semi Join"):
            *_, inner = join.iterfind("{*}NestedLoops/{*}RelOp")
            stopped.update((inner, *inner.iterfind(".//{*}RelOp")))
    return stopped
