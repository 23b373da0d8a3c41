"""What PostgreSQL knows of the tables that messages are to go to."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlq_spark.database import Destination

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress


def find_destinations(
    connection: Connection,
    queues: Sequence[QueueAddress],
    columns: Sequence[str],
    source: QueueAddress | None,
) -> dict[QueueAddress, Destination]:
    """Return what is known of some tables; those that are not there are left out."""
    tables = [
        {
            "place": at,
            "schema_name": queue.schema or "public",
            "table_name": queue.table,
            "columns": list(columns),
        }
        for at, queue in enumerate(queues)
    ]
    read: dict[str, Any] = {
        "source_schema": None if source is None else source.schema or "public",
        "source_table": None if source is None else source.table,
    }
    rows = connection.rows("destinations", places=json.dumps(tables), **read)
    found = {queues[at]: Destination(*facts) for at, *facts in rows}
    odd = [each.identity for each in found.values() if not each.plain]
    if not odd:
        return found
    code: dict[int, str] = dict(connection.rows("destination_code", places=json.dumps(odd), **read))
    return {at: replace(each, code=code.get(each.identity)) for at, each in found.items()}
