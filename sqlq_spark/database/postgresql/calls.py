"""SQL as it is sent: names quoted and put in, values numbered."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from sqlq_spark.database.statements import Statements
from sqlq_spark.wire.address import due_index, identifier, quote_postgresql

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlq_spark.wire.address import QueueAddress

STATEMENTS = Statements.load("postgresql")
IDENTIFIER = re.compile(r"\{([a-z]+)\}")
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


def fill_names(text: str, state: str, tables: dict[str, QueueAddress]) -> str:
    """Put quoted names into the braces, last and in one pass: a name may be {state} or :n."""
    quoted = {name: quote_postgresql(address) for name, address in tables.items()}
    quoted["state"] = identifier(state)
    if "delayed" in tables:
        quoted["index"] = identifier(due_index(tables["delayed"]))
    return IDENTIFIER.sub(lambda match: quoted[match[1]], text)
