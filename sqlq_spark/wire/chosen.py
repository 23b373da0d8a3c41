"""Rows of a queue or a receipt, chosen by the ids of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from sqlq_spark.wire.header_columns import parse_headers
from sqlq_spark.wire.headers import MESSAGE_ID
from sqlq_spark.wire.ids import uuid_text

if TYPE_CHECKING:
    from collections.abc import Iterable


def has_id(rows: pa.Table, ids: Iterable[str]) -> pa.Array:
    """
    Say which rows are messages of some ids.

    Args:
        rows: of QUEUE_ROW.
        ids: each is the id of a row, or the header NServiceBus.MessageId; case does not matter.

    Returns:
        A boolean for each row.
    """
    wanted = {each.lower() for each in ids}
    pairs = zip(rows["id"].to_pylist(), rows["headers"].to_pylist(), strict=True)
    return pa.array(
        [uuid_text(row) in wanted or message_id(headers) in wanted for row, headers in pairs],
        pa.bool_(),
    )


def message_id(headers: str | None) -> str | None:
    """Return the header NServiceBus.MessageId in lower case; None if there is none."""
    found = (parse_headers(headers) or {}).get(MESSAGE_ID)
    return None if found is None else found.lower()
