"""Payloads for tests: forged ones with any list and buffers, and a reader of a receipt's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from sqlq_spark.wire.payload import ZSTD, Expected, unpack
from sqlq_spark.wire.rows import QUEUE_ROW

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa


def of_receipt(payload: bytes) -> pa.Table:
    """Read the payload of a receipt, whatever its size."""
    expected = Expected(where="a test", schema=QUEUE_ROW, most=1 << 30)
    return unpack(payload, (), expected)


def forged(
    batches: Sequence[tuple[int, Sequence[bytes | None]]],
    *,
    columns: Sequence[object] = tuple(QUEUE_ROW.names),
    claims: dict[int, Any] | None = None,
) -> bytes:
    """A payload of rows and the plain buffers of columns. `claims` states other sizes for some."""
    parts: list[bytes] = []
    listed: list[dict[str, Any]] = []
    for rows, buffers in batches:
        pairs: list[Any] = []
        for at, buffer in enumerate(buffers):
            small = b"" if buffer is None else ZSTD.compress(buffer, asbytes=True)
            parts.append(small)
            pair = None if buffer is None else [len(buffer), len(small)]
            pairs.append((claims or {}).get(at, pair))
        listed.append({"rows": rows, "buffers": pairs})
    return sealed(b"".join(parts), {"columns": [*columns], "batches": listed})


def sealed(buffers: bytes, listed: object) -> bytes:
    """Packed buffers with any list after them."""
    text = listed if isinstance(listed, bytes) else orjson.dumps(listed)
    return buffers + text + len(text).to_bytes(4, "little")
