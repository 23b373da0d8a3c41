"""
What a look shows of one queue beside its figures: its kind, and what is wrong with it.

Reads the catalogue and the headers of the lowest messages. Rights are left out, because who looks
at a queue need not receive from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark.admin.checks.queue import of_table
from sqlq_spark.admin.finding import Finding
from sqlq_spark.admin.formats import part
from sqlq_spark.wire.headers import FAILED_Q, PROCESSING_ENDED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.admin.inspect import Depth
    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress

LOWEST = 50  # messages whose headers are read
CUT = 65_536  # characters of headers that the statement reads


def of_look(connection: Connection, queue: QueueAddress, depth: Depth) -> tuple[str, list[Finding]]:
    """The kind of a queue, and its problems, in the open transaction."""
    found = of_table(connection, queue, last=depth.last)
    found = [each for each in found if each.is_problem and not each.name.endswith("_right")]
    headers, seqs = lowest_headers(connection, queue, depth.first, depth.last)
    return kind_of(queue, headers), [*found, *poison(depth.queue, headers, seqs)]


def lowest_headers(
    connection: Connection, queue: QueueAddress, first: int | None, last: int | None
) -> tuple[list[str | None], list[int]]:
    """The beginning of the headers of the lowest messages, and their seqs; None: not UTF-8."""
    from sqlq_spark.wire.rows import with_readable_texts  # noqa: PLC0415 - see cli

    if first is None or last is None:
        return [], []
    page = connection.arrow(
        "browse_headers",
        tables={"queue": queue},
        first=first,
        stop=last + 1,
        messages=LOWEST,
    )
    texts = with_readable_texts(page)
    return texts["headers"].to_pylist(), page["seq"].to_pylist()


def of_head(connection: Connection, queue: QueueAddress) -> list[Finding]:
    """Find messages at the head of a queue that cannot be read, in the open transaction."""
    first, last = connection.rows("top", tables={"queue": queue})[0]
    headers, seqs = lowest_headers(connection, queue, first, last)
    return poison(connection.printed(queue), headers, seqs)


def poison(where: str, headers: Sequence[str | None], seqs: Sequence[int]) -> list[Finding]:
    """Warn of messages whose headers cannot be read."""
    from sqlq_spark.wire.header_columns import parse_headers  # noqa: PLC0415 - see cli

    bad = [
        seq
        for text, seq in zip(headers, seqs, strict=True)
        if text is None or (len(text) < CUT and parse_headers(text) is None)
    ]
    if not bad:
        return []
    return [
        Finding(
            where=where,
            name="poison",
            severity="warning",
            found=f"{part(len(bad), len(headers), 'message')} at its head cannot be read (poison), "
            f"the first has seq {bad[0]}",
            fix="set errorQueue on the stream, which moves them aside; .NET endpoints do it alone",
        )
    ]


def kind_of(queue: QueueAddress, headers: Sequence[str | None]) -> str:
    """`error queue` or `audit queue` by the lowest message, or else by the name; or `queue`."""
    from sqlq_spark.wire.header_columns import parse_headers  # noqa: PLC0415 - see cli

    first = parse_headers(headers[0]) if headers and len(headers[0] or "") < CUT else None
    if first is not None and FAILED_Q in first:
        return "error queue"
    if first is not None and PROCESSING_ENDED in first:
        return "audit queue"
    name = queue.table.lower().rpartition(".")[2]
    return {"error": "error queue", "audit": "audit queue"}.get(name, "queue")
