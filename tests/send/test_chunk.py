"""Which rows of a chunk go where, without a database."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from sqlq_spark.errors import BadMessage
from sqlq_spark.send.chunk import (
    CHUNK_DELAYS,
    CHUNK_ID,
    CHUNK_ROW,
    CHUNK_TOPICS,
    add_ids,
    count_unmatched,
    find_named,
    find_published,
    has_lifetimes,
    names_of_queues,
    names_of_topics,
    read_fault,
    split_delayed,
    to_queue_rows,
    topics_of,
    write_fault,
)

NOON = datetime(2026, 6, 30, 12)  # noqa: DTZ001 - UTC without a zone, as the database gives it


def chunk_of(*rows: dict[str, Any], more: tuple[pa.Field, ...] = ()) -> pa.Table:
    """Make a chunk of rows; each has an empty body."""
    schema = pa.schema([*CHUNK_ROW, *more])
    return pa.Table.from_pylist([{"headers": "{}", "body": b""} | row for row in rows], schema)


def published(*lists: list[str] | None) -> pa.ChunkedArray:
    """Make the column of topics, in two pieces."""
    return pa.chunked_array([pa.array([topics], CHUNK_TOPICS.type) for topics in lists])


def test_delayed_messages_are_apart_from_the_others() -> None:
    """A message with a delay, or with a time, is delayed. Each part keeps its order."""
    rows: list[dict[str, Any]] = [
        {"queue": "a", "delay": 1},
        {"queue": "b"},
        {"queue": "c", "due": NOON},
    ]
    chunk = chunk_of(*rows, more=(*CHUNK_DELAYS.values(),))

    delayed, others = split_delayed(chunk)

    assert [part["queue"].to_pylist() for part in (delayed, others)] == [["a", "c"], ["b"]]


def test_a_chunk_without_a_delay_is_the_others() -> None:
    """This holds with and without columns for delays. The chunk is not copied."""
    for more in ((), (*CHUNK_DELAYS.values(),)):
        chunk = chunk_of({"queue": "a"}, more=more)

        delayed, others = split_delayed(chunk)

        assert delayed.num_rows == 0
        assert others is chunk


def test_a_published_message_names_no_queue() -> None:
    """Its queue is null, as that of a message for the sink's queue."""
    rows: list[dict[str, Any]] = [
        {"queue": "a"},
        {"topics": ["Shop.A"]},
        {"queue": None},
        {"queue": "a"},
    ]
    chunk = chunk_of(*rows, more=(CHUNK_TOPICS,))

    assert names_of_queues(chunk) == ["a", None]
    assert find_named(chunk, [None]).to_pylist() == [False, False, True, False]
    assert find_named(chunk, ["a", None]).to_pylist() == [True, False, True, True]


def test_a_message_is_copied_once_to_whoever_wants_any_of_its_topics() -> None:
    """The topics of a subscriber are one list; a message with several of them is chosen once."""
    topics = published(["A", "B"], None, ["B"], ["C"])

    masks = find_published(topics, {"both": ["A", "B"], "one": ["B"], "none": ["X"]})

    assert {name: mask.to_pylist() for name, mask in masks.items()} == {
        "both": [True, False, True, False],
        "one": [True, False, True, False],
        "none": [False, False, False, False],
    }
    assert sorted(names_of_topics(topics)) == ["A", "B", "C"]


def test_published_messages_that_nobody_wants_are_counted_by_their_topics() -> None:
    """A message that is not published is not counted."""
    topics = published(["A"], None, ["B", "C"], ["B", "C"], ["A"])

    masks = find_published(topics, {"subscriber": ["A"]})

    assert count_unmatched(topics, masks.values()) == Counter({"B;C": 2})
    assert count_unmatched(topics, []) == Counter({"A": 2, "B;C": 2})


def test_no_message_is_published_without_the_column() -> None:
    """The column is left out where neither the frame nor the sink has topics."""
    assert topics_of(chunk_of({"queue": "a"})) is None


def test_expires_is_the_given_time_plus_the_lifetime() -> None:
    """It is null for a message that never expires, and left out where no message expires."""
    chunk = chunk_of({"lifetime": 1500}, {"lifetime": None})

    rows = to_queue_rows(chunk, NOON)

    assert has_lifetimes(chunk)
    assert rows["expires"].to_pylist() == [NOON + timedelta(seconds=1.5), None]
    assert not has_lifetimes(chunk.slice(1))
    assert to_queue_rows(chunk.slice(1), None).column_names == ["headers", "body"]


def test_a_row_keeps_an_id_that_it_has() -> None:
    """Others get new ones, each of its own."""
    chunk = chunk_of({"id": b"x" * 16}, {"id": None}, {"id": None}, more=(CHUNK_ID,))

    ids = add_ids(to_queue_rows(chunk, None))["id"].to_pylist()

    assert ids[0] == b"x" * 16
    assert len({*ids}) == 3


def test_a_fault_is_read_as_it_was_written() -> None:
    """A fault is stored as text, because a chunk may be staged before its faults are read."""
    fault = read_fault(write_fault(3, 17, 'queue is not "UTF-8"'))

    assert isinstance(fault, BadMessage)
    assert (fault.partition, fault.row, fault.reason) == (3, 17, 'queue is not "UTF-8"')
