"""SQL as it is sent: names quoted and put in, values numbered."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import chain, count
from typing import TYPE_CHECKING

from sqlq_spark.database.statements import Statements
from sqlq_spark.wire.address import POSTGRESQL, due_index

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlq_spark.wire.address import QueueAddress

STATEMENTS = Statements.load("postgresql")
WORD = re.compile(r"\{([a-z_]+)\}")
PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")


@cache
def number_parameters(statement: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement with `$1 …` for `:name`, and the names in the order of their numbers."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return PARAMETER.sub(number, STATEMENTS[statement]), tuple(names)


def write_values(statement: str, values: Mapping[str, int | list[int] | str]) -> str:
    """Return a statement with whole numbers and texts written into its text."""
    return PARAMETER.sub(lambda match: _literal(values[match[1]]), STATEMENTS[statement])


def _literal(value: int | list[int] | str) -> str:
    if isinstance(value, str):  # in hex, so that nothing in it ends it
        return f"convert_from(decode('{value.encode().hex()}', 'hex'), 'UTF8')"
    if isinstance(value, list):
        return "'{" + ",".join(str(int(each)) for each in value) + "}'"
    return f"({int(value)})"


def fill_names(text: str, state: str, tables: dict[str, QueueAddress], **words: str) -> str:
    """
    Put quoted names into the braces, last and in one pass: a name may be {state} or :n.

    `{name_escaped}` is for the inside of a literal. `words` are put in as they are.
    """
    quoted = {name: POSTGRESQL.quote_address(address) for name, address in tables.items()}
    quoted["state"] = POSTGRESQL.quote_name(state)
    if "{schema}" in text:
        quoted["schema"] = POSTGRESQL.quote_name(next(iter(tables.values())).schema or "public")
    if "{sequence}" in text:
        queue = tables["queue"]
        quoted["sequence"] = POSTGRESQL.quote_address(
            replace(queue, table=f"{queue.table}_seq_seq")
        )
    if "{index}" in text:
        index = due_index(tables["delayed"])
        quoted["index"] = POSTGRESQL.quote_name(index)
        quoted["index_place"] = POSTGRESQL.quote_address(replace(tables["delayed"], table=index))
    quoted |= {f"{name}_escaped": word.replace("'", "''") for name, word in quoted.items()}
    quoted |= {"state_name": "'" + state.replace("'", "''") + "'", **words}
    if "$do$" in text:  # the quotes of a block, which no name may end
        tags = chain(["$do$"], (f"$do{at}$" for at in count()))
        tag = next(tag for tag in tags if not any(tag in word for word in quoted.values()))
        text = text.replace("$do$", tag)
    return WORD.sub(lambda match: quoted[match[1]], text)
