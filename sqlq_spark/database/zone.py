"""
The time zone of a peer's session, in which PostgreSQL reckons when a delayed message is due.

On PostgreSQL a due time is a timestamptz that the peers make of the server's UTC clock in their
sessions' time zone, and compare with the same. So it is right only in that zone, which we name in
every statement: it is the option endpointTimeZone, or what a plain session of the server gets.
On SQL Server it is a datetime in UTC, and no zone has a part in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark.errors import BadOption, MissingOption, TimeZoneNotFound

if TYPE_CHECKING:
    from sqlq_spark.database import Connection

ZONE = "the time zone in which the .NET endpoints' sessions work, as Europe/Berlin"


def endpoint_zone(connection: Connection, told: str | None) -> str:
    """
    The time zone in which the peers' sessions work.

    Args:
        connection: any.
        told: the option endpointTimeZone.

    Raises:
        BadOption: the server knows no such zone.
        MissingOption: this session's own zone hides the server's.
    """
    try:
        zone: str | None = connection.rows("endpoint_zone", zone=told)[0][0]
    except TimeZoneNotFound:
        if told is None:
            raise
        raise BadOption("endpointTimeZone", told, ZONE) from None
    if zone is None:
        raise MissingOption(
            "endpointTimeZone",
            f"{ZONE}; the server's cannot be seen from this session, which was given a zone of its "
            "own by PGTZ or by options of the url",
        )
    return zone
