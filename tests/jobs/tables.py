"""A Delta table written without Spark: Parquet files, and a log that lists them."""

from __future__ import annotations

import json
import time
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

KINDS = {pa.int64(): "long", pa.string(): "string"}


def append(table: Path, rows: pa.Table) -> None:
    """Add rows, as one file and one commit; the first makes the table, with a change feed."""
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    version = len(list(log.glob("*.json")))
    path = table / f"part-{version}.parquet"
    pq.write_table(rows, path)
    now = int(time.time() * 1000)
    add = {
        "path": path.name,
        "partitionValues": {},
        "size": path.stat().st_size,
        "modificationTime": now,
        "dataChange": True,
    }
    actions: list[dict[str, Any]] = [] if version else created(rows.schema, now)
    actions += [{"commitInfo": {"timestamp": now, "operation": "WRITE"}}, {"add": add}]
    lines = "".join(json.dumps(action) + "\n" for action in actions)
    (log / f"{version:020}.json").write_text(lines, encoding="utf-8")


def created(schema: pa.Schema, now: int) -> list[dict[str, Any]]:
    """What the first commit says of a table."""
    fields = [
        {"name": each.name, "type": KINDS[each.type], "nullable": True, "metadata": {}}
        for each in schema
    ]
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": {"delta.enableChangeDataFeed": "true"},
        "createdTime": now,
    }
    return [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}}, {"metaData": metadata}]
