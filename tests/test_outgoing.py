"""Rows of a frame → messages: headers byte for byte, defaults, lifetimes, ids; what is refused."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strict_headers import loads

from sqlq_spark.errors import BadFrame, BadMessage
from sqlq_spark.options import SinkOptions
from sqlq_spark.send import columns, messages
from sqlq_spark.send.messages import CHUNK_ROW, Sender
from sqlq_spark.wire import headers as wire

if TYPE_CHECKING:
    from collections.abc import Mapping

URL = "postgresql://host/shop"
SENT = datetime(2026, 6, 30, 17, 5, 9, 123456, UTC)
SEED = bytes(range(16))
MAP = pa.map_(pa.string(), pa.string())

TEXT = st.text(max_size=6) | st.sampled_from(["a/b", '"', "\\", "\x7f", "\0", "\u2028", "🚀", "é"])
NAMES = TEXT | st.sampled_from(
    [wire.MESSAGE_ID, wire.CORRELATION_ID, wire.REPLY_TO_ADDRESS, wire.MESSAGE_INTENT]
)
MAPS = st.lists(st.none() | st.dictionaries(NAMES, st.none() | TEXT, max_size=5), max_size=6)


def sender(seed: bytes | None = SEED, /, **raw: str) -> Sender:
    """Give a sender whose clock stands still."""
    given_ = {"url": URL, "queue": "orders", **raw}
    return Sender(options=SinkOptions.parse(given_), partition=3, seed=seed, sent=SENT)


def frame(rows: int = 1, **columns: Any) -> pa.RecordBatch:
    """Make a frame of bodies `x` and the columns given."""
    made = {"body": pa.array([b"x"] * rows, pa.binary())}
    return pa.RecordBatch.from_pydict(made | columns)


def maps(*headers: Mapping[str, str | None] | None) -> pa.Array:
    """Make a map column."""
    return pa.array([None if each is None else list(each.items()) for each in headers], MAP)


def sent(batch: pa.RecordBatch, **raw: str) -> list[dict[str, str | None]]:
    """Return the headers of each message of a frame, in their order."""
    return [loads(text) for text in sender(**raw).messages(batch, 0)["headers"].to_pylist()]


def test_the_least_that_a_row_needs_becomes_a_whole_message() -> None:
    """One column, no option: what an endpoint wants to know is there, word for word."""
    found = sender().messages(frame(), 0)

    assert found.schema.equals(CHUNK_ROW)
    (row,) = found.to_pylist()
    headers = loads(row["headers"])
    message_id, conversation = headers[wire.MESSAGE_ID], headers[wire.CONVERSATION_ID]
    assert row["headers"] == (
        f'{{"NServiceBus.MessageId":"{message_id}","NServiceBus.MessageIntent":"Send",'
        f'"NServiceBus.ConversationId":"{conversation}",'
        f'"NServiceBus.CorrelationId":"{message_id}",'
        '"NServiceBus.TimeSent":"2026-06-30 17:05:09:123456 Z"}'
    )
    assert str(uuid.UUID(message_id)) == message_id != conversation
    assert (row["queue"], row["body"], row["lifetime"]) == (None, b"x", None)


def test_options_are_defaults_of_headers() -> None:
    """Each under its name, written as the 9.1 writer does."""
    (headers,) = sent(
        frame(),
        intent="Publish",
        messageType="Shop.Placed, Shop",
        contentType="application/json",
        originatingEndpoint='The "Shop"',
        replyToAddress='"public"."replies"',
        timeToBeReceived="00:30:00",
    )

    assert headers | {wire.MESSAGE_ID: "", wire.CONVERSATION_ID: "", wire.CORRELATION_ID: ""} == {
        wire.MESSAGE_ID: "",
        wire.MESSAGE_INTENT: "Publish",
        wire.CONVERSATION_ID: "",
        wire.CORRELATION_ID: "",
        wire.REPLY_TO_ADDRESS: '"public"."replies"',
        wire.ORIGINATING_ENDPOINT: 'The "Shop"',
        wire.ENCLOSED_MESSAGE_TYPES: "Shop.Placed, Shop",
        wire.CONTENT_TYPE: "application/json",
        wire.TIME_SENT: "2026-06-30 17:05:09:123456 Z",
        wire.TIME_TO_BE_RECEIVED: "00:30:00",
    }


@given(MAPS, st.integers(0, 3))
def test_headers_are_byte_for_byte_those_of_the_writer(
    given_: list[dict[str, str | None] | None], offset: int
) -> None:
    """The defaults that a row lacks, then its own, whatever they hold; of a slice as of a whole."""
    batch = frame(len(given_), headers=maps(*given_)).slice(offset)

    texts = sender().messages(batch, 0)["headers"].to_pylist()

    for text, each in zip(texts, given_[offset:], strict=True):
        own = each or {}
        found = loads(text)
        defaults = {name: value for name, value in found.items() if name not in own}
        assert text == wire.dumps(defaults | own)
        assert set(defaults) == {
            wire.MESSAGE_ID,
            wire.MESSAGE_INTENT,
            wire.CONVERSATION_ID,
            wire.CORRELATION_ID,
            wire.TIME_SENT,
        } - set(own)
        assert {name: found[name] for name in own} == own


@given(st.lists(st.dictionaries(TEXT, st.none() | TEXT, max_size=5), min_size=1, max_size=6))
def test_headers_as_json_are_the_same_as_a_map(given_: list[dict[str, str | None]]) -> None:
    """Text by any writer is read and written anew."""
    texts = pa.array([wire.dumps(each) for each in given_])

    by_text = sender().messages(frame(len(given_), headers=texts), 0)

    assert by_text.equals(sender().messages(frame(len(given_), headers=maps(*given_)), 0))


@pytest.mark.parametrize("text", [None, "", "{}"])
def test_no_headers_as_json_are_the_defaults(text: str | None) -> None:
    """As a stream takes them."""
    with_text = sender().messages(frame(headers=pa.array([text], pa.string())), 0)

    assert with_text.equals(sender().messages(frame(), 0))


def test_of_a_header_named_twice_the_last_counts() -> None:
    """In JSON and in a map alike; the endpoints read it so."""
    twice = pa.array([[("a", "1"), ("b", "2"), ("a", "3")]], MAP)
    text = pa.array(['{"a":"1","b":"2","a":"3"}'])

    for column in (twice, text):
        (found,) = sender().messages(frame(headers=column), 0)["headers"].to_pylist()
        assert loads(found)["a"] == "3"


@pytest.mark.parametrize(
    "text", ["[]", "null", "{", '{"a":1}', '{"a":{}}', '"x"', '{"a":"\\ud800"}', "not JSON"]
)
def test_headers_that_are_no_object_of_texts_are_refused(text: str) -> None:
    """What would be poison to an endpoint is never sent; the error names the row."""
    rows = pa.array(["{}", text])

    with pytest.raises(BadMessage) as caught:
        sender().messages(frame(2, headers=rows), 10)

    assert str(caught.value) == (
        "row 11 of partition 3 cannot be sent: headers is no JSON object of texts"
    )


# ----- columns of their own --------------------------------------------------------------------


def test_a_column_wins_over_the_header_and_the_header_over_the_default() -> None:
    """Null in the column leaves it to the header."""
    own = {wire.CORRELATION_ID: "header", wire.REPLY_TO_ADDRESS: "header"}
    batch = frame(
        3,
        correlationId=["column", None, None],
        replyToAddress=[None, "column", None],
        headers=maps(own, own, {"other": "x"}),
    )

    found = sent(batch, replyToAddress="option")

    assert [each[wire.CORRELATION_ID] for each in found[:2]] == ["column", "header"]
    assert [each[wire.REPLY_TO_ADDRESS] for each in found] == ["header", "column", "option"]
    assert found[2][wire.CORRELATION_ID] == found[2][wire.MESSAGE_ID]


def test_the_id_column_is_the_message_id_of_rows_without_that_header() -> None:
    """A read that is written back keeps its message ids, which stand in the headers."""
    batch = frame(
        4,
        id=["mine/1", "mine/2", None, None],
        headers=maps({}, {wire.MESSAGE_ID: "original"}, {wire.MESSAGE_ID: "original"}, None),
    )

    found = sent(batch)

    assert [each[wire.MESSAGE_ID] for each in found[:3]] == ["mine/1", "original", "original"]
    assert [each[wire.CORRELATION_ID] for each in found[:3]] == ["mine/1", "original", "original"]
    assert str(uuid.UUID(found[3][wire.MESSAGE_ID])) == found[3][wire.MESSAGE_ID]


def test_bodies_may_be_text_and_empty() -> None:
    """UTF-8; zero bytes are not null."""
    batch = pa.RecordBatch.from_pydict({"body": ["", "ü🚀"]})

    assert sender().messages(batch, 0)["body"].to_pylist() == [b"", "ü🚀".encode()]


def test_a_null_body_is_refused_with_the_way_out() -> None:
    """An endpoint's head row would fail for ever."""
    batch = pa.RecordBatch.from_pydict({"body": [b"x", None]})

    with pytest.raises(BadMessage) as caught:
        sender().messages(batch, 5)

    assert str(caught.value) == (
        "row 6 of partition 3 cannot be sent: body is null: send zero bytes instead, "
        "coalesce(body, '')"
    )


def test_a_row_without_a_queue_needs_the_option() -> None:
    """Without it the row is named, and nothing is sent."""
    batch = frame(2, queue=["a", None])

    assert sender().messages(batch, 0)["queue"].to_pylist() == ["a", None]
    options = SinkOptions.parse({"url": URL})
    with pytest.raises(BadMessage, match=r"row 1 of partition 3 .* queue is null"):
        Sender(options=options, partition=3).messages(batch, 0)


# ----- lifetimes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["00:30:00", None, "1.12:00:00", "00:00:01.5", "00:00:00"]),
        pa.array([1_800_000, None, 129_600_000, 1500, 0], pa.int64()),
        pa.array([1_800_000, None, 129_600_000, 1500, 0], pa.int32()),
        pa.array(
            [timedelta(milliseconds=ms) for ms in (1_800_000,)]
            + [None]
            + [timedelta(milliseconds=ms) for ms in (129_600_000, 1500, 0)],
            pa.duration("us"),
        ),
    ],
    ids=["text", "bigint", "int", "interval"],
)
def test_lifetimes_are_milliseconds_and_a_header(column: pa.Array) -> None:
    """Null takes the option's, if there is one."""
    batch = frame(5, timeToBeReceived=column)

    plain, defaulted = sender().messages(batch, 0), sender(timeToBeReceived="00:00:07")

    assert plain["lifetime"].to_pylist() == [1_800_000, None, 129_600_000, 1500, 0]
    spans = [loads(text).get(wire.TIME_TO_BE_RECEIVED) for text in plain["headers"].to_pylist()]
    assert spans == ["00:30:00", None, "1.12:00:00", "00:00:01.5000000", "00:00:00"]
    assert defaulted.messages(batch, 0)["lifetime"].to_pylist()[1] == 7000


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (pa.array([0, -1], pa.int64()), "timeToBeReceived is negative"),
        (pa.array([0, 2**31], pa.int64()), "timeToBeReceived is too long"),
        (pa.array(["00:00:00", "-00:00:01"]), "is negative"),
        (pa.array(["00:00:00", "25.00:00:00"]), "is longer than 24.20:31:23.6470000"),
        (pa.array(["00:00:00", "soon"]), "'soon' cannot be read: expected [d.]hh:mm:ss"),
        (pa.array([timedelta(0), timedelta(milliseconds=-1)], pa.duration("us")), "is negative"),
        (pa.array([timedelta(0), timedelta(days=25)], pa.duration("us")), "is too long"),
    ],
)
def test_a_lifetime_that_no_endpoint_could_pass_on_is_refused(column: pa.Array, told: str) -> None:
    """By row; the second is wrong here."""
    with pytest.raises(BadMessage) as caught:
        sender().messages(frame(2, timeToBeReceived=column), 0)

    assert str(caught.value).startswith("row 1 of partition 3 cannot be sent: ")
    assert told in str(caught.value)


def test_the_longest_lifetime_is_accepted() -> None:
    """An int32 of milliseconds."""
    batch = frame(timeToBeReceived=pa.array([2**31 - 1], pa.int64()))

    assert sender().messages(batch, 0)["lifetime"].to_pylist() == [2**31 - 1]


# ----- chunks ---------------------------------------------------------------------------------


def test_a_seed_gives_a_retried_task_the_same_messages() -> None:
    """Ids included; another task's are others, and without a seed they are fresh."""
    batches = [frame(3), frame(2)]
    first = pa.concat_tables(sender().chunks(batches))

    assert pa.concat_tables(sender().chunks(batches)).equals(first)
    ids = [loads(text)[wire.MESSAGE_ID] for text in first["headers"].to_pylist()]
    assert len(set(ids)) == 5
    for seed in (b"\1" * 16, None):
        other = pa.concat_tables(sender(seed).chunks(batches))
        texts = other["headers"].to_pylist()
        assert not {loads(text)[wire.MESSAGE_ID] for text in texts} & set(ids)


@given(st.lists(st.lists(st.integers(0, 400), max_size=8), max_size=6), st.integers(300, 5000))
def test_chunks_together_are_the_rows_and_none_is_empty(sizes: list[list[int]], most: int) -> None:
    """In order, and above the size only where one row is."""
    batches = [
        pa.RecordBatch.from_pydict({"body": pa.array([b"x" * each for each in part], pa.binary())})
        for part in sizes
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "CHUNK_BYTES", most)

        chunks = list(sender().chunks(batches))

    bodies = [body for chunk in chunks for body in chunk["body"].to_pylist()]
    assert bodies == [b"x" * each for part in sizes for each in part]
    assert all(chunk.num_rows for chunk in chunks)
    heaviest = 400 + 600
    assert all(chunk.num_rows == 1 or chunk.nbytes <= most + heaviest * 8 for chunk in chunks)


# ----- frames ----------------------------------------------------------------------------------


def test_a_frame_that_a_read_gives_can_be_written_back() -> None:
    """Columns of a read that a write cannot use are ignored."""
    read = {
        "id": "string",
        "correlationId": "string",
        "replyToAddress": "string",
        "expires": "timestamp",
        "headers": "map<string,string>",
        "corruptHeaders": "string",
        "body": "binary",
        "seq": "bigint",
        "queue": "string",
        "bodyString": "string",
    }

    columns.check_frame(read, queue=False)


@pytest.mark.parametrize(
    ("types", "told"),
    [
        ({}, "it has no column body (binary or string); it has none"),
        ({"Body": "binary"}, "column Body is not known; known are body, id, headers, "),
        ({"body": "binary", "prio": "int"}, "column prio is not known; known are body, id, "),
        ({"body": "int"}, "column body is int: expected binary or string"),
        ({"body": "string", "headers": "map<string,int>"}, "column headers is map<string,int>: "),
        ({"body": "string", "id": "bigint"}, "column id is bigint: expected string"),
        ({"body": "string", "timeToBeReceived": "double"}, "column timeToBeReceived is double: "),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_with_what_would(
    types: dict[str, str], told: str
) -> None:
    """Before anything is computed."""
    with pytest.raises(BadFrame) as caught:
        columns.check_frame(types, queue=True)

    assert str(caught.value).startswith(f"the DataFrame cannot be sent: {told}")


def test_a_frame_without_any_destination_is_refused() -> None:
    """Neither the option nor a column."""
    with pytest.raises(BadFrame, match="give the option queue, or a column queue"):
        columns.check_frame({"body": "binary"}, queue=False)

    columns.check_frame({"body": "binary", "queue": "string"}, queue=False)
