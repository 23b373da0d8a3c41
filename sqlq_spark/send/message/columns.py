"""The columns that a frame to send may have, and their types."""

from __future__ import annotations

from sqlq_spark.errors import BadFrame

WRITTEN = (
    "body",
    "id",
    "headers",
    "correlationId",
    "replyToAddress",
    "timeToBeReceived",
    "queue",
    "topics",
    "deliverAt",
    "delay",
)
IGNORED = ("seq", "expires", "corruptHeaders")  # a read can be written back

SPAN = 'string "hh:mm:ss", interval day to second or bigint milliseconds'
# what an error names as expected; all other columns are strings
EXPECTED = {
    "body": "binary or string",
    "headers": "map<string,string> or string (JSON)",
    "topics": "array<string>",
    "timeToBeReceived": SPAN,
    "delay": SPAN,
    "deliverAt": "timestamp",
}
TYPES = {
    "body": {"binary", "string"},
    "headers": {"string", "map<string,string>"},
    "topics": {"array<string>"},
    "deliverAt": {"timestamp"},
}


def check_frame(
    types: dict[str, str], *, queue: bool, topics: bool = False, as_received: bool = False
) -> None:
    """
    Refuse a frame that cannot be sent, before any row is sent.

    Args:
        types: column → Spark's simple name of its type.
        queue: whether the sink has a queue for all rows.
        topics: whether the sink has topics for rows without a queue instead.
        as_received: whether the column `expires` is used.

    Raises:
        BadFrame.
    """
    if as_received and types.get("expires", "timestamp") != "timestamp":
        raise BadFrame(
            done="sent", reason=f"column expires is {types['expires']}: expected timestamp"
        )
    for name, kind in types.items():
        if name not in IGNORED:
            _check_type(name, kind)
    if "body" not in types:
        raise BadFrame(
            done="sent",
            reason=f"it has no column body (binary or string); it has {', '.join(types) or 'none'}",
        )
    _check_destination(types, queue=queue, topics=topics)


def _check_type(name: str, kind: str) -> None:
    if name not in WRITTEN:
        known = ", ".join(WRITTEN)
        raise BadFrame(
            done="sent",
            reason=f"column {name} is not known; known are {known} (ignored: {', '.join(IGNORED)})",
        )
    span = name in {"timeToBeReceived", "delay"}
    if not (is_span(kind) if span else kind in TYPES.get(name, {"string"})):
        raise BadFrame(
            done="sent", reason=f"column {name} is {kind}: expected {EXPECTED.get(name, 'string')}"
        )


def _check_destination(types: dict[str, str], *, queue: bool, topics: bool) -> None:
    if types.keys().isdisjoint({"queue", "topics"}) and not queue and not topics:
        raise BadFrame(
            done="sent",
            reason="no destination: give the option queue, or a column queue; to publish, the "
            "option topics, or a column topics",
        )
    if {"queue", "delay"} <= types.keys() and "seq" not in types and queue:
        raise BadFrame(
            done="sent",
            reason="its columns queue and delay, as retry_later makes them, say where each row "
            "comes back, and the option queue would override them: drop the option, and name the "
            "error queue by to",
        )
    if {"queue", "seq"} <= types.keys() and topics:
        raise BadFrame(
            done="sent",
            reason="its columns queue and seq, as a read gives them, say where each row came from, "
            "and would override the option topics: drop the column queue, or the option",
        )


def is_span(kind: str) -> bool:
    """Whether a type can hold time spans; not years and months, which vary in length."""
    days = kind.startswith("interval ") and {"year", "month"}.isdisjoint(kind.split())
    return days or kind in {"string", "bigint", "int"}
