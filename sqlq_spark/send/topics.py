"""
The topics of rows to send, in columns: what a frame and the option say, and who gets which row.

A row with topics is published; it has no queue of its own.
Rows share few lists of topics: each distinct list is looked at once, as the text that its header
has, and rows are chosen by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.wire.message_types import SEPARATOR, unfit

if TYPE_CHECKING:
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.frame import Frame

TOPICS = pa.list_(pa.string())
CHUNK_TOPICS = pa.field("topics", TOPICS)  # of a chunk some of whose rows may be published
DELAYS = ("delay", "deliverAt")  # columns


def of_rows(frame: Frame, queues: pa.Array, options: SinkOptions) -> pa.Array | None:
    """
    The topics of each row of a record batch, never an empty list; null where it is not published.

    Args:
        frame: the rows.
        queues: their own queues; untrusted.
        options: of the sink, whose topics stand for those of rows without a queue.

    Returns:
        None where neither the frame nor the sink has topics.

    Raises:
        BadMessage: a row has topics and a queue or a delay, or what can be no topic.
    """
    column = frame.column("topics")
    if column is None and options.topics is None:
        return None
    topics = pa.nulls(frame.rows, TOPICS) if column is None else _own(frame, column.cast(TOPICS))
    both = pc.and_(topics.is_valid(), queues.is_valid())
    frame.refuse(both, "it has both a queue and topics: a message is sent to one or published")
    if options.topics is not None:
        lacking = pc.and_(topics.is_null(), queues.is_null())
        topics = pc.if_else(lacking, pa.scalar(list(options.topics), TOPICS), topics)
    for name in DELAYS:
        if (delay := frame.column(name)) is not None:
            late = pc.and_(topics.is_valid(), delay.is_valid())
            frame.refuse(late, f"it has topics and a {name}: the transport cannot delay an event")
    return topics


def _own(frame: Frame, topics: pa.Array) -> pa.Array:
    """The lists of a column, checked; an empty one is none."""
    rows, items = pc.list_parent_indices(topics), topics.flatten().dictionary_encode()
    wrong = {
        code: f"topics holds {reason}"
        for code, topic in enumerate(items.dictionary.to_pylist())
        if (reason := unfit(topic)) is not None
    }
    if items.null_count:
        _refuse(frame, rows, items.is_null(), "topics holds a null")
    for code, reason in wrong.items():
        _refuse(frame, rows, pc.equal(items.indices, code), reason)
    return pc.if_else(
        pc.greater(pc.list_value_length(topics), 0), topics, pa.nulls(len(topics), TOPICS)
    )


def _refuse(frame: Frame, rows: pa.Array, wrong: pa.Array, reason: str) -> None:
    """Raise BadMessage for the first row of which an item is wrong."""
    bad = rows.filter(wrong)
    frame.refuse(pc.is_in(pa.array(range(frame.rows), bad.type), value_set=bad), reason)


def intents(topics: pa.Array | None, others: str) -> pa.Array | str:
    """MessageIntent of each row: of those that are published, and of the others."""
    return others if topics is None else pc.if_else(topics.is_valid(), "Publish", others)


def types(topics: pa.Array | None) -> pa.Array | None:
    """EnclosedMessageTypes of the rows that are published: their topics."""
    return None if topics is None else joined(topics)


def joined(topics: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Each row's list as its header writes it; null stays null."""
    return pc.binary_join(topics, SEPARATOR)
