"""Statements as they are sent: names put in, values numbered and bound; and rows as they come."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import chain, count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database.results import Result
from sqlq_spark.database.statements import Statements, repeat
from sqlq_spark.wire.postgresql import POSTGRESQL
from sqlq_spark.wire.rows import replace_undecodable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlq_spark.database import Tables, Value
    from sqlq_spark.database.statements import StatementName
    from sqlq_spark.wire.address import QueueAddress

# `receive` weighs the rows that it locks. The client ends a browse where a page gets too large. The
# server keeps no costs by statement. The work since a savepoint can always be undone alone.
LACKS: frozenset[StatementName] = frozenset(
    {"weigh", "weigh_page", "due_index", "selftest_costs", "undo"}
)
STATEMENTS = Statements.load(POSTGRESQL.dialect, LACKS)
WORD = re.compile(r"\{([a-z][a-z_0-9]*)\}")
PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
ARROW_TYPES = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    type(None): pa.null(),
}


# ---------------------------------------------------------------- to the server


@cache
def number_parameters(statement: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement with `$1 …` for `:name`, and the names in the order of their numbers."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return PARAMETER.sub(number, STATEMENTS[statement]), tuple(names)


def write_values(statement: str, values: Mapping[str, Any]) -> str:
    """Return a statement with whole numbers and texts written into its text."""
    return PARAMETER.sub(lambda match: _literal(values[match[1]]), STATEMENTS[statement])


def _literal(value: int | str) -> str:
    if isinstance(value, str):  # in hex, so that nothing in it ends it
        return f"convert_from(decode('{value.encode().hex()}', 'hex'), 'UTF8')"
    return f"({int(value)})"


def fill_names(text: str, state: str, tables: Tables, **words: str) -> str:
    """
    Put quoted names into the braces, last and in one pass: a name may be {state} or :n.

    `{name_escaped}` is for the inside of a literal. `words` are put in as they are.
    """
    text = repeat(text, tables)
    quoted = {name: POSTGRESQL.quote_address(address) for name, address in tables.items()}
    quoted["state"] = POSTGRESQL.quote_name(state)
    if "{schema}" in text:
        quoted["schema"] = POSTGRESQL.quote_name(
            next(iter(tables.values())).schema or POSTGRESQL.default_schema
        )
    if "{sequence}" in text:
        queue = tables["queue"]
        quoted["sequence"] = POSTGRESQL.quote_address(
            replace(queue, table=f"{queue.table}_seq_seq")
        )
    if "{index}" in text:
        index = _due_index(tables["delayed"])
        quoted["index"] = POSTGRESQL.quote_name(index)
        quoted["index_place"] = POSTGRESQL.quote_address(replace(tables["delayed"], table=index))
    quoted |= {f"{name}_escaped": word.replace("'", "''") for name, word in quoted.items()}
    quoted |= {"state_name": "'" + state.replace("'", "''") + "'", **words}
    if "$do$" in text:  # the quotes of a block, which no name may end
        tags = chain(["$do$"], (f"$do{at}$" for at in count()))
        tag = next(tag for tag in tags if not any(tag in word for word in quoted.values()))
        text = text.replace("$do$", tag)
    return WORD.sub(lambda match: quoted[match[1]], text)


def join_script(parts: Iterable[str]) -> str:
    return "\n\n".join(f"{text};" for text in parts) + "\n"


def _due_index(delayed: QueueAddress) -> str:
    """Return the name of a delayed table's index, cut so that it differs from the table's name."""
    suffix = "_Due"
    return cut_name(delayed.table, POSTGRESQL.longest - len(suffix)) + suffix


def cut_name(name: str, longest: int = POSTGRESQL.longest) -> str:
    """Cut a name at so many bytes, between two characters: the server would print a NOTICE."""
    return name.encode()[:longest].decode(errors="ignore")


def bind(values: Sequence[Value]) -> pa.RecordBatch | None:
    """
    Return the parameters of a statement, in columns of their own types.

    Left to the driver, pyarrow guesses each type: measured, 0.25 ms a value, 0.03 ms this way.
    """
    if not values:
        return None
    columns = [pa.array([value], ARROW_TYPES[type(value)]) for value in values]
    return pa.record_batch(columns, names=[str(at) for at in range(len(columns))])


def with_whole_days(rows: pa.Table) -> pa.Table:
    """Return rows for a column `expires` of days: a message lives until the end of its last one."""
    place = rows.schema.get_field_index("expires")
    days = pc.ceil_temporal(rows["expires"], unit="day").cast(pa.date32())
    return rows.set_column(place, "expires", days)


# ---------------------------------------------------------------- from the server


def read_result(found: pa.Table) -> Result:
    return Result(tuple(found.column_names), [_values(column) for column in found.columns])


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return a column's values; in a database of SQL_ASCII a text may not be UTF-8."""
    try:
        found: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        found = replace_undecodable(column).to_pylist()
    return found


def plain_columns(found: pa.Table) -> pa.Table:
    """Return a result in columns; a uuid is 16 bytes."""
    columns = [
        column.cast(column.type.storage_type) if isinstance(column.type, pa.UuidType) else column
        for column in found.columns
    ]
    return pa.table(columns, names=found.column_names)
