"""
The time zone of the .NET endpoints' sessions, in which PostgreSQL computes due times.

On PostgreSQL a due time is a timestamptz. The transport makes it of the server's UTC clock, as a
local time of its session's zone, and compares it in the same way. So it is right only in that zone.
The zone is the option endpointTimeZone, or that of a session without settings of its own.
On SQL Server a due time is a datetime in UTC, whatever the zone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark.errors import BadOption, MissingOption, TimeZoneNotFound

if TYPE_CHECKING:
    from sqlq_spark.database import Connection

ZONE = "the time zone in which the .NET endpoints' sessions work, as Europe/Berlin"


def endpoint_zone(connection: Connection, option: str | None) -> str:
    """
    Return the time zone of the .NET endpoints' sessions.

    Args:
        connection: any.
        option: endpointTimeZone.

    Raises:
        BadOption: the server knows no such zone.
        MissingOption: this session's own zone hides the server's.
    """
    if "endpoint_zone" in connection.lacks:
        return "UTC"
    try:
        zone: str | None = connection.rows("endpoint_zone", zone=option)[0][0]
    except TimeZoneNotFound:
        if option is None:
            raise
        raise BadOption(option="endpointTimeZone", found=option, expected=ZONE) from None
    if zone is None:
        raise MissingOption(
            option="endpointTimeZone",
            example=f"{ZONE}; this session cannot read the server's own zone, because PGTZ or the "
            "options of the url set another one",
        )
    return zone
