"""What SQL Server knows of the tables that messages are to go to."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlq_spark.database import Destination
from sqlq_spark.wire.address import SQLSERVER

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress


def find_destinations(
    connection: Connection,
    queues: Sequence[QueueAddress],
    columns: Sequence[str],
    source: QueueAddress | None,
) -> dict[QueueAddress, Destination]:
    """Return what is known of some tables; those that are not there are left out."""
    tables = places_of(queues, ["RowVersion" if each == "seq" else each for each in columns])
    read = None if source is None else SQLSERVER.quote_address(source)
    rows = connection.rows("destinations", places=json.dumps(tables), source_table=read)
    found = {at: Destination(*facts) for at, *facts in rows}
    odd = [tables[at] for at, each in found.items() if not each.plain]
    code: dict[int, str] = {}
    if odd:
        code = dict(connection.rows("destination_code", places=json.dumps(odd)))
    return {
        queues[at]: each if each.plain else replace(each, code=code.get(each.identity))
        for at, each in found.items()
    }


def find_identities(
    connection: Connection, queues: Sequence[QueueAddress]
) -> dict[QueueAddress, Hashable]:
    """Return the database and the object of some tables; those that are not there are left out."""
    tables = json.dumps(places_of(queues, []))
    rows = connection.rows("destinations", places=tables, source_table=None)
    return {queues[at]: (catalog, identity) for at, identity, catalog, *_ in rows}


def places_of(queues: Sequence[QueueAddress], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return tables as the statements `destinations` and `destination_code` take them."""
    return [
        {
            "place": at,
            "name": SQLSERVER.quote_address(queue),
            "catalog": queue.catalog,
            "columns": list(columns),
        }
        for at, queue in enumerate(queues)
    ]
