"""
Find statements that would read a whole table on PostgreSQL, by EXPLAIN.

Sequential scans are disabled. A plan is wrong if it still reads a whole table. Statements that
EXPLAIN does not accept are run in a transaction that is undone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlq_spark.database.explain import WHOLE
from sqlq_spark.database.postgresql.rows import PARAMETER, fill_names
from sqlq_spark.wire.postgresql import POSTGRESQL

if TYPE_CHECKING:
    from sqlq_spark.database import Tables

# Shape of a queue's table → the SQL that gives a new queue this shape. If the shape's name contains
# BodyString, the selftest has created the queue with that column.
SHAPES = {
    "bigint seq, an index on Expires": (
        "ALTER TABLE {queue} ALTER COLUMN seq TYPE bigint; CREATE INDEX ON {queue} (expires)"
    ),
    "BodyString": "SELECT 1",
}
WITHOUT_SCANS = "SET enable_seqscan = off"
NO_PLAN = re.compile("LOCK|SET|DROP")  # EXPLAIN does not accept statements that begin with these
# parameter → its value; all other parameters get "1", which every type accepts
VALUES = {**dict.fromkeys(("chosen", "delays", "moments", "places"), "[]"), "zone": "UTC"}


def compile_text(text: str, state: str, tables: Tables) -> str:
    """Return the text that explains a statement, or that runs it if EXPLAIN does not accept it."""
    table = POSTGRESQL.quote_address(tables["queue"])
    values = {**VALUES, "source_table": table, "table_name": table}
    # no value contains a single quote
    text = PARAMETER.sub(lambda parameter: f"'{values.get(parameter[1], '1')}'", text)
    text = fill_names(text, state, tables)
    return f"BEGIN; {text}; ROLLBACK" if NO_PLAN.match(text) else f"EXPLAIN {text}"


def judge(plan: str, name: str) -> list[str]:
    """Return what is wrong with a plan."""
    scanned = [] if name in WHOLE else re.findall(r"Seq Scan on (?!pg_)(\S+)", plan)
    return [f"it reads all of {table}" for table in scanned]
