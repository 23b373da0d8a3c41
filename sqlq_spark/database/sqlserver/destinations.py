"""What SQL Server knows of the tables that messages are to go to."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlq_spark.database import Destination
from sqlq_spark.wire.address import quote_sqlserver

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
    names = ["RowVersion" if each == "seq" else each for each in columns]
    tables = [
        {
            "place": at,
            "name": quote_sqlserver(queue),
            "catalog": queue.catalog,
            "columns": names,
        }
        for at, queue in enumerate(queues)
    ]
    read = None if source is None else quote_sqlserver(source)
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


def find_locks(found: Sequence[Destination]) -> dict[int, tuple[bool, str]]:
    """
    Return for each table, by its identity, whether this transaction has locked it.

    SQL Server has no lock that keeps a table as it is. All count as locked, and the transaction
    looks at them once more before its commit.
    """
    return {each.identity: (True, "") for each in found}
