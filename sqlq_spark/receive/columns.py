"""The columns of a read, by the options, and the check of a user's schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark.errors import BadFrame

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlq_spark.options import SourceOptions

COLUMNS = {
    "id": "string",
    "correlationId": "string",
    "replyToAddress": "string",
    "expires": "timestamp",
    "headers": "map<string,string>",
    "corruptHeaders": "string",
    "body": "binary",
    "seq": "bigint",
    "queue": "string",
}

# a browse without any of these reads no headers and bodies
HEAVY = {"headers", "body", "correlationId", "replyToAddress", "corruptHeaders"}


def columns(options: SourceOptions) -> dict[str, str]:
    """Column → type, as a read with these options gives them."""
    if options.headers_format == "map":
        return COLUMNS
    kept = {name: kind for name, kind in COLUMNS.items() if name != "corruptHeaders"}
    return kept | {"headers": "string"}


def check_columns(wanted: Mapping[str, str], options: SourceOptions) -> None:
    """
    Refuse a schema with columns that a read does not give; fewer are allowed.

    Args:
        wanted: column → type.
        options: of the read.

    Raises:
        BadFrame.
    """
    known = columns(options)
    for name, kind in wanted.items():
        if known.get(name) != kind:
            expected = ", ".join(f"{name} {kind}" for name, kind in known.items())
            raise BadFrame(
                reason=f"a read has no column {name} {kind}; choose from {expected}", done="read"
            )
