"""
Chunks: messages that are staged and inserted together. Here are their columns and masks.

A chunk is an Arrow table with the columns CHUNK_ROW, and after them some of CHUNK_OPTIONAL.
sender.py makes chunks of rows, dispatch.py stages them, and insert.py inserts them. A mask is an
array of booleans, one for each row of a chunk. It chooses rows, for example those that are delayed.
Nothing here asks the database.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.errors import BadMessage
from sqlq_spark.send.frame import TOPICS
from sqlq_spark.wire.header_columns import HEADER_COLUMNS
from sqlq_spark.wire.headers import SEPARATOR
from sqlq_spark.wire.rows import rising_ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

K = TypeVar("K")

CHUNK_ROW = pa.schema(
    {
        "queue": pa.string(),  # the queue that the row names, untrusted; null: the sink's queue
        "headers": pa.string(),
        "body": pa.binary(),
        "lifetime": pa.int64(),  # milliseconds until the message expires; null: never
    }
)
# The columns below follow CHUNK_ROW in this order, if the frame or an option needs them.
CHUNK_DELAYS = {  # a row has a value in one of these columns or in neither
    "delay": pa.field("delay", pa.int64()),  # milliseconds
    "due": pa.field("due", pa.timestamp("us")),  # UTC
}
CHUNK_TOPICS = pa.field("topics", TOPICS)  # null: the row is not published
CHUNK_LEGACY = [pa.field(name.lower(), pa.string()) for name in HEADER_COLUMNS]
# why a row goes to the error queue of the option `undeliverable`: see `write_fault`
CHUNK_FAULT = pa.field("fault", pa.string())
CHUNK_OPTIONAL = (*CHUNK_DELAYS.values(), CHUNK_TOPICS, *CHUNK_LEGACY, CHUNK_FAULT)

# The ids of the rows, from `frame.ROW_ID`. Only a chunk that is never staged has this column.
CHUNK_ID = pa.field("id", pa.binary(16))


# ---------------------------------------------------------------- which rows wait


def find_waiting(chunk: pa.Table) -> pa.ChunkedArray | None:
    """Return which rows are delayed. Returns None if no row is."""
    masks = [chunk[name].is_valid() for name in CHUNK_DELAYS if name in chunk.column_names]
    if not masks:
        return None
    mask = masks[0] if len(masks) == 1 else pc.or_(*masks)
    return mask if pc.any(mask).as_py() else None


def split_delayed(chunk: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the messages that are delayed, and the messages that are not."""
    waiting = find_waiting(chunk)
    if waiting is None:
        return chunk.slice(0, 0), chunk
    return chunk.filter(waiting), chunk.filter(pc.invert(waiting))


# ---------------------------------------------------------------- which rows name which queue


def names_of_queues(chunk: pa.Table) -> list[str | None]:
    """Return the distinct queues of rows that are not published. None means the sink's queue."""
    queues = chunk["queue"]
    topics = topics_of(chunk)
    if topics is not None:
        queues = queues.filter(pc.is_null(topics))
    names: list[str | None] = pc.unique(queues).to_pylist()
    return names


def find_named(chunk: pa.Table, names: Iterable[str | None]) -> pa.ChunkedArray:
    """Return which rows are not published and have one of `names` as their queue."""
    mask = pc.is_in(chunk["queue"], value_set=pa.array([*names], pa.string()))
    topics = topics_of(chunk)
    return mask if topics is None else pc.and_(mask, pc.is_null(topics))


# ---------------------------------------------------------------- which rows have which topics


def topics_of(chunk: pa.Table) -> pa.ChunkedArray | None:
    """Return the topics of each row. Returns None if no row is published."""
    return chunk[CHUNK_TOPICS.name] if CHUNK_TOPICS.name in chunk.column_names else None


def names_of_topics(topics: pa.ChunkedArray) -> list[str]:
    """Return the distinct topics of all rows."""
    names: list[str] = pc.unique(pc.list_flatten(topics)).to_pylist()
    return names


def find_published(
    topics: pa.ChunkedArray, wanted: Mapping[K, Sequence[str]]
) -> dict[K, pa.ChunkedArray]:
    """For each key of `wanted`, return which rows have at least one of the key's topics."""
    names = pc.list_flatten(topics)
    counts = pc.fill_null(pc.list_value_length(topics), 0)
    rows = np.repeat(np.arange(len(topics)), counts)  # the row of each topic's name
    masks: dict[K, pa.ChunkedArray] = {}
    for key, some in wanted.items():
        is_wanted = pc.is_in(names, value_set=pa.array(some, pa.string())).to_numpy()
        mask = np.zeros(len(topics), bool)
        mask[rows[is_wanted]] = True
        masks[key] = pa.chunked_array([mask])
    return masks


def count_unmatched(topics: pa.ChunkedArray, masks: Iterable[pa.ChunkedArray]) -> Counter[str]:
    """
    Count the published rows that are in none of the masks.

    The key is their topics, joined by SEPARATOR.
    """
    unmatched = topics.is_valid()
    for mask in masks:
        unmatched = pc.and_not(unmatched, mask)
    texts = pc.binary_join(topics.filter(unmatched), SEPARATOR)
    return Counter({row["values"]: row["counts"] for row in pc.value_counts(texts).to_pylist()})


# ---------------------------------------------------------------- which rows cannot be sent


def write_fault(partition: int, row: int, reason: str) -> str:
    """Return the text of the column CHUNK_FAULT, which says why a row cannot be sent."""
    return json.dumps({"partition": partition, "row": row, "reason": reason})


def read_fault(text: str) -> BadMessage:
    """Read a text of the column CHUNK_FAULT."""
    return BadMessage.from_facts(json.loads(text))


# ---------------------------------------------------------------- columns of a queue


def has_lifetimes(chunk: pa.Table) -> bool:
    """Whether any message of a chunk expires."""
    lifetime = chunk["lifetime"]
    return bool(lifetime.null_count < len(lifetime))


def to_queue_rows(chunk: pa.Table, now: datetime | None) -> pa.Table:
    """
    Return the chunk's rows with the columns of a queue. `add_ids` fills in missing ids.

    The column Expires is `now` plus the lifetime of the row. `now` is the database's time, in UTC
    without a zone. If `now` is None, no message expires, and the column is left out.
    """
    optional = [CHUNK_ID, *CHUNK_LEGACY]
    names = [field.name for field in optional if field.name in chunk.column_names]
    rows = chunk.select(["headers", "body", *names])
    if now is None:
        return rows
    lifetime = pc.multiply(chunk["lifetime"], 1000).cast(pa.duration("us"))
    return rows.append_column("expires", pc.add(pa.scalar(now, pa.timestamp("us")), lifetime))


def add_ids(rows: pa.Table) -> pa.Table:
    """
    Return rows of a queue in which each row has an id. New ids ascend.

    A message that is copied into several queues becomes several rows, and each row needs its own
    id.
    """
    ids = rising_ids(rows.num_rows)
    if CHUNK_ID.name in rows.column_names:
        kept = rows[CHUNK_ID.name]
        ids = pc.if_else(kept.is_valid(), kept, pa.chunked_array([ids]))
        rows = rows.drop_columns(CHUNK_ID.name)
    return rows.append_column(CHUNK_ID.name, ids)
