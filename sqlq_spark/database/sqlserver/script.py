"""The script for a DBA in T-SQL, for sqlcmd."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark.database.names import SQLSERVER
from sqlq_spark.database.schema import LOCK_WAIT, VERSION
from sqlq_spark.database.script import fill, join_lines
from sqlq_spark.database.sqlserver import calls
from sqlq_spark.database.sqlserver.calls import STATEMENTS
from sqlq_spark.errors import BadAddress
from sqlq_spark.wire.address import bracketed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlq_spark.database.script import Step


HEAD = f"""\
-- Run this as a member of db_owner.
-- It waits {LOCK_WAIT:g} s for a lock, because streams wait behind it. Error 1222 says that it
-- gave up. The batches before the error are done. Run it again.
"""


def write_script(steps: Sequence[Step], *, state: str, owner: str) -> str:
    """
    Write each step as a batch with its own transaction; declared names end with their batch.

    Args:
        steps: in their order.
        state: schema of the state tables.
        owner: role that owns the state tables.

    Raises:
        BadAddress: a name has a line break, which may end a batch, or `$(`, which sqlcmd reads
            as a variable.
    """
    names = [state, owner, *(name for step in steps for name in (step.role, *_parts(step)))]
    for name in names:
        if "$(" in name or len(name.splitlines()) > 1:
            raise BadAddress(name, "sqlcmd would misread a line break or $( in a name")
    # sqlcmd has QUOTED_IDENTIFIER off, and an index with a filter wants it on
    settings = ("NOCOUNT", "XACT_ABORT", "ANSI_NULLS", "QUOTED_IDENTIFIER")
    parts = [HEAD + "".join(f"SET {each} ON;\n" for each in settings) + "GO"]
    values = {"state_name": calls.literal(state), "owner": calls.literal(owner)}
    text = calls.fill_names(STATEMENTS["state_faults"], state, {})
    faults = fill(text, values).rstrip(";")
    for step in steps:
        role = bracketed(step.role)
        if step.comment:
            grant = f"ALTER ROLE {join_lines(role)} ADD MEMBER"
            parts.append("-- " + step.comment.format(grant=grant))
            continue
        words = calls.quoted_words(state, step.tables) | {"faults": faults}
        words |= {
            "role": role,
            "role_name": calls.literal(step.role),
            "version": str(VERSION),
            "milliseconds": str(int(LOCK_WAIT * 1000)),
        }
        if "queue" in step.tables:
            words["schema"] = bracketed(step.tables["queue"].schema or SQLSERVER.default_schema)
        text = fill(STATEMENTS[step.statement], words)
        parts.append(f"BEGIN TRANSACTION;\n{text}\nCOMMIT TRANSACTION;\nGO")
    return "\n\n".join(parts) + "\n"


def _parts(step: Step) -> Iterator[str]:
    """Yield the parts of all addresses of a step."""
    for table in step.tables.values():
        yield from filter(None, (table.table, table.schema, table.catalog))
