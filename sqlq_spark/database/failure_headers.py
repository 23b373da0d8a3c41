"""
Messages that cannot go where they belong: the headers that say why, and the rows to store.

`receive/forward.py` uses this for delayed messages, `send/insert.py` for the rows of a sink.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.database.trust import without_server
from sqlq_spark.wire.address import LONGEST_ADDRESS
from sqlq_spark.wire.headers import EXCEPTION_INFO, FAILED_Q, TIME_OF_FAILURE, wire_time
from sqlq_spark.wire.rows import rising_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.errors import SqlQueueError

MOST_NAMED = 5  # destinations in a warning
LONGEST_REASON = 16_384  # as the transport cuts ExceptionInfo.Message


def failure_headers(
    connection: Connection, destination: str | None, reason: SqlQueueError
) -> dict[str, str]:
    """
    Return the headers that a failure adds; `retry` returns the message to where it was to go.

    Args:
        connection: whose url is left out of the reason.
        destination: an address, which is untrusted; None: there is none, and no header FailedQ.
        reason: why the message cannot go there.
    """
    headers = {
        f"{EXCEPTION_INFO}ExceptionType": f"sqlq_spark.errors.{type(reason).__name__}",
        f"{EXCEPTION_INFO}Message": without_server(reason, connection)[:LONGEST_REASON],
        TIME_OF_FAILURE: wire_time(datetime.now(UTC)),
    }
    if destination is not None:
        headers[FAILED_Q] = destination[:LONGEST_ADDRESS]
    return headers


def rows_to_store(texts: Sequence[str], bodies: pa.ChunkedArray) -> pa.Table:
    """Return rows of a queue, under new ids and without expiry; a null body becomes empty."""
    return pa.table(
        {
            "id": rising_ids(len(texts)),
            "headers": pa.array(texts, pa.string()),
            "body": pc.fill_null(bodies, b""),
        }
    )


def list_reasons(reasons: Sequence[SqlQueueError]) -> str:
    """Give the first few of many reasons, which quote untrusted text, for a line of a log."""
    first = "; ".join(ascii(str(each)[:300]) for each in reasons[:MOST_NAMED])
    more = len(reasons) - MOST_NAMED
    return first + (f"; and {more} more destinations" if more > 0 else "")
