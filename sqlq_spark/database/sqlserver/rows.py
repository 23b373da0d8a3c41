"""
Rows to and from SQL Server: JSON for a bulk insert, results in the form that the package uses.

Statements return headers as UTF-16 bytes and ids as the server stores them, so that both drivers
return the same.
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

# columns of a message, as they come; an id leaves with 16 bytes, and headers as text
RECEIVED = {
    "id": pa.binary(),
    "expires": pa.timestamp("us"),
    "expired": pa.bool_(),
    "headers": pa.binary(),
    "body": pa.binary(),
    "seq": pa.int64(),
}
# all columns of `arrow`; `large` is of a browse
COLUMNS = {**RECEIVED, "large": pa.int64()}
# a uniqueidentifier holds the first three parts of a uuid from the low byte up
NETWORK_ORDER = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15]


# ---------------------------------------------------------------- to the server


def json_rows(rows: pa.Table) -> str:
    """
    Return rows as JSON: an array each, its place first; a uuid as text.

    Bytes are in base64, which OPENJSON reads into varbinary.
    """
    columns: list[Any] = [range(rows.num_rows)]
    for name in rows.column_names:
        column, values = rows[name], rows[name].to_pylist()
        if name == "id":
            values = id_texts(column.combine_chunks().cast(pa.binary(16))).to_pylist()
        elif pa.types.is_timestamp(column.type):
            values = [None if each is None else to_time_text(each) for each in values]
        elif pa.types.is_binary(column.type):
            values = [None if each is None else b64encode(each).decode("ascii") for each in values]
        columns.append(values)
    return orjson.dumps(list(zip(*columns, strict=True))).decode("utf-8")


def to_time_text(value: datetime) -> str:
    """Return a time as T-SQL reads it in any language, in UTC."""
    naive = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
    return naive.isoformat(timespec="microseconds")


# ---------------------------------------------------------------- from the server


def fetch_table(cursor: Any) -> pa.Table:  # noqa: ANN401 - of one of two drivers
    if hasattr(cursor, "arrow"):
        return cursor.arrow()
    names = [column[0] for column in cursor.description]
    columns = list(zip(*cursor.fetchall(), strict=True)) or [()] * len(names)
    found = zip(names, columns, strict=True)
    return pa.table({name: pa.array(values, COLUMNS[name]) for name, values in found})


def plain_columns(found: pa.Table) -> pa.Table:
    """Return columns in the types that the package uses, whichever driver fetched them."""
    columns = {name: found[name].cast(COLUMNS[name], safe=False) for name in found.column_names}
    if "id" in columns:
        columns["id"] = network_order(columns["id"])
    if "headers" in columns:
        columns["headers"] = pa.array(map(utf16, columns["headers"].to_pylist()), pa.string())
    return pa.table(columns)


def no_rows() -> pa.Table:
    """Return the table that `receive` gives where there is nothing to receive."""
    return plain_columns(pa.schema(RECEIVED).empty_table())


def is_weighed(page: pa.Table, largest: int) -> bool:
    """Whether a browse left out only the bodies of messages of more than so many bytes."""
    return not pc.any(pc.less_equal(page["large"], largest)).as_py()


def network_order(ids: pa.ChunkedArray) -> pa.Array:
    """Return the 16 bytes of uniqueidentifiers as those of uuids."""
    joined = np.frombuffer(b"".join(ids.to_pylist()), np.uint8).reshape(-1, 16)
    turned = pa.py_buffer(np.ascontiguousarray(joined[:, NETWORK_ORDER]))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(ids), [None, turned])


def utf16(text: bytes | None) -> str | None:
    """Return a text; half of a surrogate pair becomes U+FFFD."""
    return None if text is None else text.decode("utf-16-le", "replace")
