"""Frames of a sink, and the messages that a sender makes of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from strict_headers import loads

from sqlq_spark.options import SinkOptions
from sqlq_spark.send.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Mapping

URL = "postgresql://host/shop"
SENT = datetime(2026, 6, 30, 17, 5, 9, 123456, UTC)
SEED = bytes(range(16))
MAP = pa.map_(pa.string(), pa.string())


def sender(seed: bytes | None = SEED, /, *, queue: str | None = "orders", **raw: str) -> Sender:
    """Give a sender whose clock stands still."""
    given = {"url": URL, **({"queue": queue} if queue else {}), **raw}
    return Sender(options=SinkOptions.parse(given), partition=3, seed=seed, sent=SENT)


def frame(rows: int = 1, **columns: Any) -> pa.RecordBatch:
    """Make a frame of bodies `x` and the columns given."""
    made = {"body": pa.array([b"x"] * rows, pa.binary())}
    return pa.RecordBatch.from_pydict(made | columns)


def maps(*headers: Mapping[str, str | None] | None) -> pa.Array:
    """Make a map column."""
    return pa.array([None if each is None else list(each.items()) for each in headers], MAP)


def moments(*found: datetime | int | None) -> pa.Array:
    """Make a timestamp column as Spark hands it over; numbers are microseconds since 1970."""
    return pa.array(found, pa.timestamp("us", "UTC"))


def headers(chunk: pa.Table) -> list[dict[str, str | None]]:
    """The headers of each message."""
    return [loads(text) for text in chunk["headers"].to_pylist()]
