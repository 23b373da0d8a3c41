"""The script for a DBA in PostgreSQL's SQL."""

from __future__ import annotations

from itertools import chain, count, groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from sqlq_spark.database.names import POSTGRESQL
from sqlq_spark.database.postgresql.calls import STATEMENTS
from sqlq_spark.database.schema import LOCK_WAIT, VERSION
from sqlq_spark.database.script import fill, join_lines
from sqlq_spark.errors import BadOption
from sqlq_spark.wire.address import QueueAddress, due_index, identifier, quote_postgresql

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sqlq_spark.database.script import Step


HEAD = f"""\
-- Run this as a superuser. Or run it as the owner of the database, if that login has CREATEROLE,
-- and owns the schemas and queues that exist already, or is a member of the roles that do.
-- It waits {LOCK_WAIT:g} s for a lock, because streams wait behind it. After the error
-- "canceling statement due to lock timeout" nothing has changed. Then run it again.
"""


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
    parts: list[tuple[str, str]] = []  # each with its condition
    values = {"state_name": _literal(state), "owner": _literal(owner)}
    faults, done = (
        fill(STATEMENTS[name], values).rstrip(";") for name in ("state_faults", "install_done")
    )
    for step in steps:
        role = identifier(step.role)
        if step.comment:
            parts.append(("", "-- " + step.comment.format(grant=f"GRANT {join_lines(role)} TO")))
            continue
        words = {"state": identifier(state), "version": str(VERSION), "faults": faults}
        words |= {"role": role, "literal": _literal(step.role), "done": done}
        words |= {"state_name": values["state_name"], "milliseconds": str(int(LOCK_WAIT * 1000))}
        if step.state_table:
            words["table"] = f"{identifier(state)}.{identifier(step.state_table)}"
        for name, table in step.tables.items():
            words |= _name_table(name, table)
        parts.append((_condition(step, words), fill(STATEMENTS[step.statement], words)))
    body = "\n\n".join(_join_conditions(parts))
    return f"{HEAD}{STATEMENTS['begin']};\n\n{body}\n\nCOMMIT;\n"


def _condition(step: Step, words: Mapping[str, str]) -> str:
    """Return when a statement is needed that would lock a table although it changes nothing."""
    if step.part:
        return (
            "NOT EXISTS (SELECT FROM pg_temp.sqlqueue_done"
            f" WHERE part = {_literal(step.part)}"
            f" AND of_table = {_literal(step.state_table)} AND role = {words['literal']})"
        )
    if step.statement == "create_delayed_index":
        index = QueueAddress(due_index(step.tables["delayed"]), step.tables["delayed"].schema)
        return f"to_regclass({_literal(quote_postgresql(index))}) IS NULL"
    if step.statement == "add_body_string":
        table = _literal(words["queue"])
        return (
            "NOT EXISTS (SELECT FROM pg_catalog.pg_attribute"
            f" WHERE attrelid = to_regclass({table})"
            " AND attname = 'bodystring' AND NOT attisdropped)"
        )
    return ""


def _join_conditions(parts: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Write statements with conditions that follow one another into one block."""
    for conditional, group in groupby(parts, key=lambda part: bool(part[0])):
        if not conditional:
            yield from (text for _, text in group)
            continue
        ifs = "\n".join(
            f"    IF {condition} THEN\n{_indent(text for _, text in same)}\n    END IF;"
            for condition, same in groupby(group, key=itemgetter(0))
        )
        tags = chain(["$do$"], (f"$do{at}$" for at in count()))
        tag = next(tag for tag in tags if tag not in ifs)
        yield f"DO {tag}\nBEGIN\n{ifs}\nEND\n{tag};"


def _indent(texts: Iterable[str]) -> str:
    return "\n".join(f"        {line}" for text in texts for line in text.splitlines())


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
