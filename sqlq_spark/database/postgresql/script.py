"""The script for a DBA in PostgreSQL's SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark.database.names import POSTGRESQL
from sqlq_spark.database.postgresql.calls import STATEMENTS
from sqlq_spark.database.schema import VERSION
from sqlq_spark.database.script import fill, join_lines
from sqlq_spark.errors import BadOption
from sqlq_spark.wire.address import QueueAddress, due_index, identifier, quote_postgresql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.database.script import Step


def write_script(steps: Sequence[Step], *, state: str, owner: str) -> str:
    """
    Write the steps as one transaction.

    Args:
        steps: in their order.
        state: schema of the state tables.
        owner: role that owns the state tables.

    Raises:
        BadOption: the schema's name would end the quotes of the script's blocks.
    """
    if "$" in state:
        raise BadOption("--state-schema", state, "a schema's name without $")
    parts = []
    values = {"state_name": _literal(state), "owner": _literal(owner)}
    faults = fill(STATEMENTS["state_faults"], values).rstrip(";")
    for step in steps:
        role = identifier(step.role)
        if step.comment:
            parts.append("-- " + step.comment.format(grant=f"GRANT {join_lines(role)} TO"))
            continue
        words = {"state": identifier(state), "version": str(VERSION), "faults": faults}
        words |= {"role": role, "literal": _literal(step.role)}
        if step.state_table:
            words["table"] = f"{identifier(state)}.{identifier(step.state_table)}"
        for name, table in step.tables.items():
            words |= _name_table(name, table)
        parts.append(fill(STATEMENTS[step.statement], words))
    body = "\n\n".join(parts)
    return f"{STATEMENTS['begin']};\n\n{body}\n\nCOMMIT;\n"


def _name_table(name: str, table: QueueAddress) -> dict[str, str]:
    """Quote the names that belong to a table; `serial` names the sequence."""
    words = {name: quote_postgresql(table)}
    if name == "delayed":
        return words | {"index": identifier(due_index(table))}
    sequence = QueueAddress(f"{table.table}_seq_seq", table.schema)
    words["schema"] = identifier(table.schema or POSTGRESQL.default_schema)
    return words | {"sequence": quote_postgresql(sequence)}


def _literal(text: str) -> str:
    """Write a text as a literal."""
    return "'" + text.replace("'", "''") + "'"
