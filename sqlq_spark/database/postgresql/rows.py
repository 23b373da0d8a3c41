"""
Turn a statement into text and parameters for the driver, and read the driver's results.

Quoted names are put into the braces of the statement. Values are bound as numbered parameters.
"""

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

# Why PostgreSQL does not need these statements:
# - weigh: `receive` reads the sizes of the rows that it locks.
# - weigh_page: the client ends a browse when the page gets too large.
# - due_index: the PostgreSQL text of `move_due` names no index.
# - selftest_costs: the server keeps no costs by statement.
# - undo: undoing the work since a savepoint always succeeds.
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
    """Replace each `:name` by `$1`, `$2` …. Return the text, and the names in that order."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return PARAMETER.sub(number, STATEMENTS[statement]), tuple(names)


def write_values(statement: str, values: Mapping[str, Any]) -> str:
    """
    Write the values into the text of a statement: each `:name` becomes a number or a text.

    The result has no parameters left, so it can be sent in one message.
    """
    return PARAMETER.sub(lambda match: _literal(values[match[1]]), STATEMENTS[statement])


def _literal(value: int | str) -> str:
    if isinstance(value, str):  # hexadecimal digits: no character can end the literal
        return f"convert_from(decode('{value.encode().hex()}', 'hex'), 'UTF8')"
    return f"({int(value)})"


def fill_names(text: str, state: str, tables: Tables, **words: str) -> str:
    """
    Put quoted names into the braces of a statement.

    This is the last change of the text, and it makes only one pass: a queue may be called `{state}`
    or `:n`, and such a name must not be replaced again. `{name_escaped}` is a name for the inside
    of a literal. `words` are put in unchanged.
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
    if "$do$" in text:  # choose quotes for the DO block that occur in none of the names
        tags = chain(["$do$"], (f"$do{number}$" for number in count()))
        tag = next(tag for tag in tags if not any(tag in word for word in quoted.values()))
        text = text.replace("$do$", tag)
    return WORD.sub(lambda match: quoted[match[1]], text)


def join_script(parts: Iterable[str]) -> str:
    return "\n\n".join(f"{text};" for text in parts) + "\n"


def _due_index(delayed: QueueAddress) -> str:
    """Return the name of a delayed table's index. A long table name is cut before the suffix."""
    suffix = "_Due"
    return cut_name(delayed.table, POSTGRESQL.longest - len(suffix)) + suffix


def cut_name(name: str, longest: int = POSTGRESQL.longest) -> str:
    """
    Cut a name between two characters, to at most `longest` bytes.

    The server would cut the name too, but it would also send a NOTICE.
    """
    return name.encode()[:longest].decode(errors="ignore")


def bind(values: Sequence[Value]) -> pa.RecordBatch | None:
    """
    Return the parameters of a statement as columns, each with the type of its value.

    Without this function the driver lets pyarrow guess each type. Measured: that takes 0.25 ms for
    each value, and this function takes 0.03 ms.
    """
    if not values:
        return None
    columns = [pa.array([value], ARROW_TYPES[type(value)]) for value in values]
    return pa.record_batch(columns, names=[str(number) for number in range(len(columns))])


def with_whole_days(rows: pa.Table) -> pa.Table:
    """
    Return rows for a table whose column `expires` is a date.

    The time is rounded up to a day, so that no message expires too early.
    """
    place = rows.schema.get_field_index("expires")
    days = pc.ceil_temporal(rows["expires"], unit="day").cast(pa.date32())
    return rows.set_column(place, "expires", days)


# ---------------------------------------------------------------- from the server


def read_result(table: pa.Table) -> Result:
    return Result(tuple(table.column_names), [_values(column) for column in table.columns])


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return a column's values. A text of a SQL_ASCII database may be no UTF-8."""
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        values = replace_undecodable(column).to_pylist()
    return values


def plain_columns(table: pa.Table) -> pa.Table:
    """Return a result whose uuids are columns of 16 bytes, without Arrow's extension type."""
    columns = [
        column.cast(column.type.storage_type) if isinstance(column.type, pa.UuidType) else column
        for column in table.columns
    ]
    return pa.table(columns, names=table.column_names)
