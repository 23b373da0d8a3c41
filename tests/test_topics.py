"""Rows with topics → chunks: who is published, under which headers; what is refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from payloads import reread
from strict_headers import loads

from sqlq_spark.errors import BadFrame, BadMessage, BadOption, UnknownOption
from sqlq_spark.options import SinkOptions
from sqlq_spark.send import columns
from sqlq_spark.send.messages import CHUNK_ROW, Sender
from sqlq_spark.send.topics import CHUNK_TOPICS, TOPICS
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.payload import pack

URL = "postgresql://host/shop"
LISTS = st.lists(
    st.none() | st.lists(st.text("ab.", min_size=1, max_size=3), max_size=3), min_size=1, max_size=8
)


def sender(**raw: str) -> Sender:
    """Give a sender without a destination of its own."""
    return Sender(options=SinkOptions.parse({"url": URL, **raw}), partition=3)


def frame(topics: list[Any] | None, **columns: Any) -> pa.RecordBatch:
    """Make a frame of bodies `x`, a row for each list of topics."""
    made = {"body": pa.array([b"x"] * len(topics or ["one"]), pa.binary())}
    if topics is not None:
        made["topics"] = pa.array(topics, TOPICS)
    return pa.RecordBatch.from_pydict(made | columns)


def headers(chunk: pa.Table) -> list[dict[str, str | None]]:
    """Return the headers of each message."""
    return [loads(text) for text in chunk["headers"].to_pylist()]


def refused(batch: pa.RecordBatch, **raw: str) -> str:
    """Return why a frame is not sent; its first row is number 10 of its partition."""
    with pytest.raises(BadMessage) as caught:
        sender(**raw).messages(batch, 10)
    return str(caught.value)


# ----- what a chunk holds ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "topics", [["Shop.Placed", "Shop.IEvent"], ["Shop.Placed, Shop", "Shop.IEvent, Shop"]]
)
def test_a_row_with_topics_says_publish_and_lists_them(topics: list[str]) -> None:
    """The list, full names or assembly-qualified, is the header EnclosedMessageTypes."""
    chunk = sender().messages(frame([topics]), 0)

    (found,) = headers(chunk)
    assert found[wire.MESSAGE_INTENT] == "Publish"
    assert found[wire.ENCLOSED_MESSAGE_TYPES] == ";".join(topics)
    assert chunk.schema.equals(CHUNK_ROW.append(CHUNK_TOPICS))
    assert chunk["topics"].to_pylist() == [topics]
    assert chunk["queue"].to_pylist() == [None]


def test_the_option_stands_for_rows_that_have_neither_topics_nor_a_queue() -> None:
    """Their own topics win, their own queue too; an empty list is none."""
    batch = frame([None, [], ["Own"], None], queue=pa.array([None, None, None, "orders"]))

    chunk = sender(topics="Shop.Placed,Shop.IEvent").messages(batch, 0)

    given_ = ["Shop.Placed", "Shop.IEvent"]
    assert chunk["topics"].to_pylist() == [given_, given_, ["Own"], None]
    assert [each[wire.MESSAGE_INTENT] for each in headers(chunk)] == [*["Publish"] * 3, "Send"]
    assert [each.get(wire.ENCLOSED_MESSAGE_TYPES) for each in headers(chunk)] == [
        *["Shop.Placed;Shop.IEvent"] * 2,
        "Own",
        None,
    ]


def test_the_option_needs_no_column() -> None:
    """A frame of bodies is published."""
    chunk = sender(topics="Shop.Placed").messages(frame(None), 0)

    assert chunk["topics"].to_pylist() == [["Shop.Placed"]]


def test_rows_without_topics_go_to_the_sinks_queue() -> None:
    """Beside others that are published."""
    chunk = sender(queue="orders").messages(frame([None, ["Shop.Placed"], []]), 0)

    assert chunk["topics"].to_pylist() == [None, ["Shop.Placed"], None]
    assert [each[wire.MESSAGE_INTENT] for each in headers(chunk)] == ["Send", "Publish", "Send"]


def test_headers_that_a_row_or_the_option_gives_win_over_its_topics() -> None:
    """Published all the same."""
    own = {wire.MESSAGE_INTENT: "Send", wire.ENCLOSED_MESSAGE_TYPES: "Own, Shop"}
    maps = pa.array([list(own.items()), None], pa.map_(pa.string(), pa.string()))
    batch = frame([["Shop.Placed"], ["Shop.Placed"]], headers=maps)

    first, second = headers(sender(messageType="Shop.Base").messages(batch, 0))

    assert {name: first[name] for name in own} == own
    assert second[wire.MESSAGE_INTENT] == "Publish"
    assert second[wire.ENCLOSED_MESSAGE_TYPES] == "Shop.Base"


def test_without_topics_a_chunk_is_as_it_was() -> None:
    """No column more, and no header."""
    chunk = sender(queue="orders").messages(frame(None), 0)

    assert chunk.schema.equals(CHUNK_ROW)


@given(LISTS, st.integers(0, 3))
def test_topics_come_through_a_chunk_whatever_slice_they_are_of(
    lists: list[list[str] | None], offset: int
) -> None:
    """Staged and read again: row by row the same; an empty list is none."""
    chunk = sender(queue="orders").messages(frame(lists).slice(offset), 0)

    back = reread(pack(chunk), CHUNK_ROW, CHUNK_TOPICS)

    assert back["topics"].to_pylist() == [each or None for each in lists[offset:]]


# ----- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topics", "told"),
    [
        ([None, ["Shop.Placed", None]], "topics holds a null"),
        ([["fine"], ["fine", ""]], "topics holds a blank topic"),
        ([["fine"], ["a;b"]], "topics holds a topic with ';': give each type as an item"),
        ([[], ["fine", "a\0"]], "topics holds a topic with a NUL character"),
        ([["fine"], None], "queue is null, topics too, and the sink has no option for either"),
        ([["fine"], []], "queue is null, topics too, and the sink has no option for either"),
    ],
)
def test_topics_that_cannot_be_are_refused_by_row(topics: list[Any], told: str) -> None:
    """The second row is wrong here, also where the batch is a slice of a larger one."""
    batch = frame([["earlier"], *topics]).slice(1)

    assert refused(batch).startswith(f"row 11 of partition 3 cannot be sent: {told}")


@pytest.mark.parametrize("raw", [{}, {"queue": "orders"}, {"topics": "Shop.Placed"}])
def test_a_row_with_a_queue_and_topics_is_refused(raw: dict[str, str]) -> None:
    """Which of the two was meant cannot be known."""
    batch = frame([["Shop.Placed"]] * 2, queue=pa.array([None, "orders"]))

    assert refused(batch, **raw) == (
        "row 11 of partition 3 cannot be sent: it has both a queue and topics: a message is sent "
        "to one or published"
    )


@pytest.mark.parametrize("name", ["delay", "deliverAt"])
@pytest.mark.parametrize("raw", [{}, {"topics": "Shop.Placed"}])
def test_an_event_cannot_be_delayed(name: str, raw: dict[str, str]) -> None:
    """The transport has no way to."""
    topics = None if raw else [["Shop.Placed"], ["Shop.Placed"]]
    columns = {"body": [b"x"] * 2, name: pa.array([None, 1000], pa.duration("us"))}
    batch = frame(topics, **columns)

    assert refused(batch, **raw) == (
        f"row 11 of partition 3 cannot be sent: it has topics and a {name}: the transport cannot "
        "delay an event"
    )


def test_the_options_queue_and_topics_exclude_each_other() -> None:
    """Rows without their own could go either way."""
    with pytest.raises(BadOption) as caught:
        sender(queue="orders", topics="Shop.Placed")

    assert str(caught.value) == (
        "option topics is 'Shop.Placed': expected no queue beside it, "
        '"public"."orders" here: rows without a destination of their own are sent to that queue '
        "or published, not both"
    )


@pytest.mark.parametrize("text", ["", " ", ",", "Shop.Placed,", "Shop.Placed;Shop.IEvent"])
def test_an_option_that_lists_no_topics_is_refused(text: str) -> None:
    """Commas separate, also those of a generic type's arguments do not."""
    with pytest.raises(BadOption, match="expected types' full names, as Shop"):
        sender(topics=text)

    assert sender(topics="A`1[[B, C]] , D").options.topics == ("A`1[[B, C]]", "D")


def test_near_misses_and_unreadable_tables_are_refused() -> None:
    """As for every option."""
    with pytest.raises(UnknownOption, match="did you mean topics"):
        sender(topic="Shop.Placed")
    with pytest.raises(BadOption, match="option subscriptionTable is '\"a'"):
        sender(subscriptionTable='"a')


def test_a_frame_may_have_topics_in_the_place_of_a_queue() -> None:
    """A column or the option; a column of another type is refused."""
    columns.check_frame({"body": "binary", "topics": "array<string>"}, queue=False)
    columns.check_frame({"body": "binary"}, queue=False, topics=True)
    with pytest.raises(BadFrame, match=r"topics is string: expected array<string>"):
        columns.check_frame({"body": "binary", "topics": "string"}, queue=True)


def test_a_read_is_not_published_back_to_where_it_came_from() -> None:
    """Its column queue would win over the option."""
    read = {"body": "binary", "queue": "string", "seq": "bigint"}

    with pytest.raises(BadFrame, match=r"option topics says where to: drop the column queue"):
        columns.check_frame(read, queue=False, topics=True)
