"""
The topics of rows to send, in a column of lists: from the frame, or from the option `topics`.

A row with topics is published and has no queue of its own. The lists stay lists up to the fan-out.
Only the header EnclosedMessageTypes joins them to a text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.wire.headers import SEPARATOR, topic_problem

if TYPE_CHECKING:
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.message.frame import Frame

TOPICS = pa.list_(pa.string())
CHUNK_TOPICS = pa.field("topics", TOPICS)  # of a chunk with rows to publish
DELAYS = ("delay", "deliverAt")  # columns of a frame


def read_topics(frame: Frame, queues: pa.Array, options: SinkOptions) -> pa.Array | None:
    """
    Return the topics of each row; null, never an empty list, where a row is not published.

    Args:
        frame: the rows.
        queues: their own queues, untrusted; null where the option `queue` overrides them.
        options: the sink's; its topics are those of rows with neither topics nor a queue.

    Returns:
        None where neither the frame nor the sink has topics.

    Raises:
        BadMessage: a row has topics and a queue, topics and a delay, or an item that is no topic.
    """
    column = frame.column("topics")
    if column is None and options.topics is None:
        return None
    topics = (
        pa.nulls(frame.rows, TOPICS) if column is None else _check_lists(frame, column.cast(TOPICS))
    )
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


def _check_lists(frame: Frame, topics: pa.Array) -> pa.Array:
    """Refuse items that are no topics; return the lists, with null for an empty one."""
    rows, items = pc.list_parent_indices(topics), topics.flatten().dictionary_encode()
    wrong = {
        code: f"topics holds {reason}"
        for code, topic in enumerate(items.dictionary.to_pylist())
        if (reason := topic_problem(topic)) is not None
    }
    if items.null_count:
        _refuse(frame, rows, items.is_null(), "topics holds a null")
    for code, reason in wrong.items():
        _refuse(frame, rows, pc.equal(items.indices, code), reason)
    return pc.if_else(
        pc.greater(pc.list_value_length(topics), 0), topics, pa.nulls(len(topics), TOPICS)
    )


def _refuse(frame: Frame, rows: pa.Array, wrong: pa.Array, reason: str) -> None:
    """Raise BadMessage for the first row that has a wrong item."""
    bad = rows.filter(wrong)
    frame.refuse(pc.is_in(pa.array(range(frame.rows), bad.type), value_set=bad), reason)


def intents(topics: pa.Array | None, others: str) -> pa.Array | str:
    """Return MessageIntent of each row: Publish for those with topics, `others` for the rest."""
    return others if topics is None else pc.if_else(topics.is_valid(), "Publish", others)


def message_types(topics: pa.Array | None) -> pa.Array | None:
    """Return EnclosedMessageTypes of the rows that are published: their topics."""
    return None if topics is None else join_topics(topics)


def join_topics(topics: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return each row's list as its header writes it; null stays null."""
    return pc.binary_join(topics, SEPARATOR)


def topics_of(chunk: pa.Table) -> pa.ChunkedArray | None:
    """Return the topics of a chunk's rows; None where no row is published."""
    return chunk[CHUNK_TOPICS.name] if CHUNK_TOPICS.name in chunk.column_names else None
