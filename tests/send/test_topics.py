"""Rows with topics → chunks: which rows are published, and under which headers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sqlq_spark.errors import BadOption, UnknownOption
from sqlq_spark.send.frame import TOPICS
from sqlq_spark.send.sender import CHUNK_ROW, CHUNK_TOPICS, Sender
from sqlq_spark.wire import headers as wire

from .frames import frame as plain
from .frames import headers, maps
from .frames import sender as to_queue


def frame(topics: list[Any], **columns: Any) -> pa.RecordBatch:
    """Make a frame with a row for each list of topics."""
    return plain(len(topics), topics=pa.array(topics, TOPICS), **columns)


def sender(**raw: Any) -> Sender:
    """Give a sender without a destination of its own."""
    return to_queue(**({"queue": None} | raw))


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
    bodies = sender(topics="Shop.Placed").messages(plain(), 0)  # the option needs no column
    assert bodies["topics"].to_pylist() == [["Shop.Placed"]]
    mixed = sender(queue="orders").messages(frame([None, ["Shop.Placed"], []]), 0)
    assert [each[wire.MESSAGE_INTENT] for each in headers(mixed)] == ["Send", "Publish", "Send"]
    assert to_queue().messages(plain(), 0).schema.equals(CHUNK_ROW)


def test_headers_that_a_row_or_the_option_gives_win_over_its_topics() -> None:
    """Published all the same."""
    own = {wire.MESSAGE_INTENT: "Send", wire.ENCLOSED_MESSAGE_TYPES: "Own, Shop"}
    batch = frame([["Shop.Placed"], ["Shop.Placed"]], headers=maps(own, None))

    first, second = headers(sender(messageType="Shop.Base").messages(batch, 0))

    assert {name: first[name] for name in own} == own
    assert second[wire.MESSAGE_INTENT] == "Publish"
    assert second[wire.ENCLOSED_MESSAGE_TYPES] == "Shop.Base"


def test_the_options_queue_and_topics_exclude_each_other() -> None:
    """Rows without their own could go either way."""
    with pytest.raises(BadOption) as caught:
        sender(queue="orders", topics="Shop.Placed")

    assert str(caught.value) == (
        "option topics is 'Shop.Placed': expected no queue beside it, "
        '"public"."orders" here: rows without a destination of their own are sent to that queue '
        "or published, not both"
    )


@pytest.mark.parametrize("text", [" ", "Shop.Placed,", "Shop.Placed;Shop.IEvent"])
def test_an_option_that_lists_no_topics_is_refused(text: str) -> None:
    """Commas separate, also those of a generic type's arguments do not."""
    with pytest.raises(BadOption, match="expected types' full names, as Shop"):
        sender(topics=text)

    assert sender(topics="A`1[[B, C]] , D").options.topics == ("A`1[[B, C]]", "D")
    with pytest.raises(UnknownOption, match="did you mean topics"):
        sender(topcs="Shop.Placed")
    with pytest.raises(BadOption, match="option subscriptionTable is '\"a'"):
        sender(subscriptionTable='"a')
