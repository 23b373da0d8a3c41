"""
How PostgreSQL explains a statement: by EXPLAIN, without sequential scans.

What has no plan runs in a transaction that is undone. A plan is at fault if it reads a whole table.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlq_spark.database.explain import WHOLE
from sqlq_spark.database.postgresql.rows import PARAMETER, fill_names
from sqlq_spark.wire.postgresql import POSTGRESQL

if TYPE_CHECKING:
    from sqlq_spark.database import Tables

# shape → what gives it to a queue; one with BodyString in its name was created with that column
SHAPES = {
    "bigint seq, an index on Expires": (
        "ALTER TABLE {queue} ALTER COLUMN seq TYPE bigint; CREATE INDEX ON {queue} (expires)"
    ),
    "BodyString": "SELECT 1",
}
WITHOUT_SCANS = "SET enable_seqscan = off"
NO_PLAN = re.compile("LOCK|SET|DROP")  # what begins so EXPLAIN does not accept
# texts of parameters; of others "1", which each type can read
VALUES = {**dict.fromkeys(("chosen", "delays", "moments", "places"), "[]"), "zone": "UTC"}


def compile_text(text: str, state: str, tables: Tables) -> str:
    """Return what plans a statement, or runs one that has no plan; no value has a quote."""
    table = POSTGRESQL.quote_address(tables["queue"])
    values = {**VALUES, "source_table": table, "table_name": table}
    text = PARAMETER.sub(lambda found: f"'{values.get(found[1], '1')}'", text)
    text = fill_names(text, state, tables)
    return f"BEGIN; {text}; ROLLBACK" if NO_PLAN.match(text) else f"EXPLAIN {text}"


def judge(plan: str, name: str) -> list[str]:
    """Return what is wrong with a plan."""
    scanned = [] if name in WHOLE else re.findall(r"Seq Scan on (?!pg_)(\S+)", plan)
    return [f"it reads all of {each}" for each in scanned]
