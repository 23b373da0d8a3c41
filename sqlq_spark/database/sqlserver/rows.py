"""
Rows to and from SQL Server: JSON for a bulk insert, and Arrow tables from results.

Statements return headers as UTF-16 bytes, and ids as 16 bytes in the server's order, because the
two drivers would return other types differently.
"""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.wire.rows import id_texts

# columns of a received message, as the driver returns them
RECEIVED = {
    "id": pa.binary(),
    "expires": pa.timestamp("us"),
    "expired": pa.bool_(),
    "headers": pa.binary(),
    "body": pa.binary(),
    "seq": pa.int64(),
}
# all columns that a statement of `arrow` may return; only a browse returns `large`
COLUMNS = {**RECEIVED, "large": pa.int64()}
# a uniqueidentifier stores the first three parts of a uuid with the lowest byte first
NETWORK_ORDER = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15]


# ---------------------------------------------------------------- to the server


def json_rows(rows: pa.Table) -> str:
    """
    Return rows as JSON. Each row is an array: the number of the row, then its values.

    A uuid is a text. Bytes are base64, which OPENJSON reads into varbinary.
    """
    columns: list[Any] = [range(rows.num_rows)]
    for name in rows.column_names:
        column = rows[name]
        values = column.to_pylist()
        if name == "id":
            values = id_texts(column.combine_chunks().cast(pa.binary(16))).to_pylist()
        elif pa.types.is_timestamp(column.type):
            values = [None if time is None else to_time_text(time) for time in values]
        elif pa.types.is_binary(column.type):
            values = [None if data is None else b64encode(data).decode("ascii") for data in values]
        columns.append(values)
    return orjson.dumps(list(zip(*columns, strict=True))).decode("utf-8")


def to_time_text(value: datetime) -> str:
    """Return a time in UTC as a text that T-SQL reads in a session of any language."""
    naive = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
    return naive.isoformat(timespec="microseconds")


# ---------------------------------------------------------------- from the server


def fetch_table(cursor: Any) -> pa.Table:  # noqa: ANN401 - a cursor of one of two drivers
    if hasattr(cursor, "arrow"):
        return cursor.arrow()
    names = [column[0] for column in cursor.description]
    columns = list(zip(*cursor.fetchall(), strict=True)) or [()] * len(names)
    by_name = zip(names, columns, strict=True)
    return pa.table({name: pa.array(values, COLUMNS[name]) for name, values in by_name})


def plain_columns(table: pa.Table) -> pa.Table:
    """Return a result with the types that the package uses, whichever driver fetched it."""
    columns = {name: table[name].cast(COLUMNS[name], safe=False) for name in table.column_names}
    if "id" in columns:
        columns["id"] = network_order(columns["id"])
    if "headers" in columns:
        columns["headers"] = pa.array(map(utf16, columns["headers"].to_pylist()), pa.string())
    return pa.table(columns)


def no_rows() -> pa.Table:
    """Return the result of a `receive` that has received nothing."""
    return plain_columns(pa.schema(RECEIVED).empty_table())


def is_weighed(page: pa.Table, largest: int) -> bool:
    """Whether the page is complete: only messages larger than `largest` have no body."""
    return not pc.any(pc.less_equal(page["large"], largest)).as_py()


def network_order(ids: pa.ChunkedArray) -> pa.Array:
    """Return the ids with their bytes in the order of uuids."""
    stored = np.frombuffer(b"".join(ids.to_pylist()), np.uint8).reshape(-1, 16)
    ordered = pa.py_buffer(np.ascontiguousarray(stored[:, NETWORK_ORDER]))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(ids), [None, ordered])


def utf16(text: bytes | None) -> str | None:
    """Decode UTF-16. Half of a surrogate pair becomes U+FFFD."""
    return None if text is None else text.decode("utf-16-le", "replace")
