"""Rows to and from PostgreSQL: parameters and pages as Arrow, results as Python values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from sqlq_spark.wire.address import identifier
from sqlq_spark.wire.texts import replace_undecodable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.database import Value

KINDS = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    type(None): pa.null(),
}


# ---------------------------------------------------------------- to the server


def bind(values: Sequence[Value | pa.Array]) -> pa.RecordBatch | None:
    """
    Return the parameters of a statement, in columns of their own types.

    Left to the driver, pyarrow guesses each type: measured, 0.25 ms a value, 0.03 ms this way.
    """
    if not values:
        return None
    columns = [
        value if isinstance(value, pa.Array) else pa.array([value], KINDS[type(value)])
        for value in values
    ]
    return pa.record_batch(columns, names=[str(at) for at in range(len(columns))])


def insert_pages(state: str, table: str, pages: pa.RecordBatch) -> tuple[str, list[pa.Array]]:
    """
    Return an INSERT of the pages of one payload, and its values.

    The pages follow one another in memory. They are sent as one value, which the server cuts.

    Args:
        state: the schema of the state tables.
        table: a state table.
        pages: of one payload, all of the same size but the last.
    """
    payload = pages.column("payload")
    offsets = np.frombuffer(payload.buffers()[1], np.int32)[payload.offset :]
    whole = payload.buffers()[2].slice(offsets[0], offsets[len(payload)] - offsets[0])
    names = [name for name in pages.schema.names if name != "payload"]
    size = int(offsets[1] - offsets[0])
    selected = [f"${at} + at" if name == "page" else f"${at}" for at, name in enumerate(names, 1)]
    value = f"${len(names) + 1}::bytea"
    text = (
        f"INSERT INTO {identifier(state)}.{identifier(table)} "  # noqa: S608 - quoted
        f"({', '.join(map(identifier, names))}, payload) "
        f"SELECT {', '.join(selected)}, substring({value} FROM at * {size} + 1 FOR {size}) "
        f"FROM generate_series(0, (octet_length({value}) - 1) / {size}) AS at"
    )
    bounds = pa.py_buffer(np.array([0, whole.size], np.int32))
    values = [pages.column(name).slice(0, 1) for name in names]
    values.append(pa.BinaryArray.from_buffers(pa.binary(), 1, [None, bounds, whole]))
    return text, values


# ---------------------------------------------------------------- from the server


def read_rows(found: pa.Table) -> list[tuple[Any, ...]]:
    """Return a result's rows as Python values."""
    return list(zip(*map(_values, found.columns), strict=True))


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
