"""Rows of a frame → messages: headers byte for byte, defaults, lifetimes, ids."""

from __future__ import annotations

import itertools
import json
import uuid
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strict_headers import loads

from sqlq_spark.errors import BadMessage, BadOption
from sqlq_spark.options import SinkOptions
from sqlq_spark.send import sender as messages
from sqlq_spark.send.sender import CHUNK_ROW, Sender
from sqlq_spark.wire import headers as wire

from .frames import MAP, SEED, URL, frame, headers, maps, sender

TEXT = st.text(max_size=6) | st.sampled_from(["a/b", '"', "\\", "\x7f", "\0", "\u2028", "🚀", "é"])
NAMES = TEXT | st.sampled_from(
    [wire.MESSAGE_ID, wire.CORRELATION_ID, wire.REPLY_TO_ADDRESS, wire.MESSAGE_INTENT]
)
MAPS = st.lists(st.none() | st.dictionaries(NAMES, st.none() | TEXT, max_size=5), max_size=6)


def test_the_least_that_a_row_needs_becomes_a_whole_message() -> None:
    """One column and no option give all that an endpoint reads, word for word."""
    found = sender().messages(frame(), 0)

    assert found.schema.equals(CHUNK_ROW)
    (row,) = found.to_pylist()
    own = loads(row["headers"])
    message_id, conversation = own[wire.MESSAGE_ID], own[wire.CONVERSATION_ID]
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
    options = {
        "intent": (wire.MESSAGE_INTENT, "Publish"),
        "messageType": (wire.ENCLOSED_MESSAGE_TYPES, "Shop.Placed, Shop"),
        "contentType": (wire.CONTENT_TYPE, "application/json"),
        "originatingEndpoint": (wire.ORIGINATING_ENDPOINT, 'The "Shop"'),
        "replyToAddress": (wire.REPLY_TO_ADDRESS, '"public"."replies"'),
        "timeToBeReceived": (wire.TIME_TO_BE_RECEIVED, "00:30:00"),
    }
    raw = {name: text for name, (_, text) in options.items()}

    (found,) = headers(sender(**raw).messages(frame(), 0))

    ids = {wire.MESSAGE_ID, wire.CONVERSATION_ID, wire.CORRELATION_ID, wire.TIME_SENT}
    assert {name: found[name] for name in found.keys() - ids} == dict(options.values())


@given(MAPS, st.integers(0, 3))
def test_headers_are_byte_for_byte_those_of_the_writer(
    given_: list[dict[str, str | None] | None], offset: int
) -> None:
    """The defaults that a row lacks, then its own, as a map or as JSON; of a slice too."""
    batch = frame(len(given_), headers=maps(*given_)).slice(offset)
    json = pa.array([None if each is None else wire.dumps(each) for each in given_], pa.string())

    found = sender().messages(batch, 0)

    for text, each in zip(found["headers"].to_pylist(), given_[offset:], strict=True):
        own, written = each or {}, loads(text)
        defaults = {name: value for name, value in written.items() if name not in own}
        assert text == wire.dumps(defaults | own)
        assert set(defaults) == {
            wire.MESSAGE_ID,
            wire.MESSAGE_INTENT,
            wire.CONVERSATION_ID,
            wire.CORRELATION_ID,
            wire.TIME_SENT,
        } - set(own)
        assert {name: written[name] for name in own} == own
    assert found.equals(sender().messages(frame(len(given_), headers=json).slice(offset), 0))


# what a row needs so that its own headers are the whole text
WHOLE = {
    wire.MESSAGE_ID: "m",
    wire.MESSAGE_INTENT: "Send",
    wire.CONVERSATION_ID: "c",
    wire.CORRELATION_ID: "m",
    wire.TIME_SENT: "t",
}
ODD_NAMES = st.sampled_from(["a", "b", "__type", 'quoted"', ":", '":', *WHOLE])
PAIRS = st.lists(st.tuples(ODD_NAMES, st.none() | st.sampled_from(["", '":', '" :', "x", "é"])))


@given(rows=st.lists(PAIRS, max_size=4), wide=st.booleans(), whole=st.integers(0, 1))
def test_a_name_is_written_once_and_type_is_never_first(
    *, rows: list[list[tuple[str, str | None]]], wide: bool, whole: int
) -> None:
    """With its last value; endpoints up to 9.0 fail on either. As a map, as JSON, as received."""
    rows = [[*pairs, *(whole * [*WHOLE.items()])] for pairs in rows]
    separators = (" , ", " \n: ") if wide else (",", ":")
    texts = [
        separators[0]
        .join(
            f'"{wire.escape(name)}"{separators[1]}{json.dumps(value, ensure_ascii=False)}'
            for name, value in pairs
        )
        .join("{}")
        for pairs in rows
    ]
    columns = {"maps": pa.array(rows, MAP), "texts": pa.array(texts, pa.string())}
    options = [{}, {"asReceived": "true"}]

    for column, raw in itertools.product(columns.values(), options):
        found = sender(**raw).messages(frame(len(rows), headers=column), 0)["headers"].to_pylist()

        for text, pairs in zip(found, rows, strict=True):
            members = json.loads(text, object_pairs_hook=list)
            written = dict(members)
            assert len(members) == len(written)
            assert members[0][0] != "__type"
            assert {name: written[name] for name, _ in pairs} == dict(pairs)


def test_a_text_that_every_endpoint_reads_stays_as_it_is() -> None:
    """White space, escapes, and a colon behind a quote in a value are no reason to write again."""
    start = "".join(f'"{name}" : "{value}",' for name, value in WHOLE.items())
    texts = [
        f'{{{start}"a":"\\":"}}',
        f'{{{start} "b" :\t"\\u00e9/" }}',
        f'{{{start}"__type":"x"}}',
    ]

    found = sender().messages(frame(3, headers=texts), 0)

    assert found["headers"].to_pylist() == texts


def test_the_option_queue_overrides_the_column() -> None:
    """Also a column that a read gives, or with names of no queue; without it the column decides."""
    names = ["billing", None, '"', '"public"."orders"']
    batch = frame(4, queue=names, seq=pa.array([1, 2, 3, 4]))

    by_option = sender(queue="archive").messages(batch, 0)
    by_column = sender(queue=None).messages(batch.slice(0, 1), 0)
    by_line = replace(sender(queue="archive"), rows_choose=True).messages(batch.slice(0, 2), 0)

    assert by_option["queue"].to_pylist() == [None] * 4
    assert by_column["queue"].to_pylist() == ["billing"]
    assert by_line["queue"].to_pylist() == ["billing", None]


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

    found = headers(sender(replyToAddress="option").messages(batch, 0))

    assert [each[wire.CORRELATION_ID] for each in found[:2]] == ["column", "header"]
    assert [each[wire.REPLY_TO_ADDRESS] for each in found] == [
        *("header", '"public"."column"', '"public"."option"'),
    ]
    assert found[2][wire.CORRELATION_ID] == found[2][wire.MESSAGE_ID]


SALES = '"sales"."Spark.In"'
REPLIES = [  # as a user writes a reply address, and as an endpoint reads it
    ("Spark.In", '"public"."Spark.In"'),
    ('"Spark.In"', '"public"."Spark.In"'),
    (SALES, SALES),
    ('sales."Spark.In"', SALES),
    ('"sales"."a""b@c"', '"sales"."a""b@c"'),
]


@pytest.mark.parametrize(("text", "expected"), REPLIES)
def test_a_reply_address_is_written_as_endpoints_read_it(text: str, expected: str) -> None:
    """From the option and from the column; an endpoint would read a bare dot as a schema's end."""
    by_option = headers(sender(replyToAddress=text).messages(frame(), 0))
    by_column = headers(sender().messages(frame(3, replyToAddress=[text, None, text]), 0))
    raw = {"url": "sqlserver://host/shop", "queue": "q", "replyToAddress": "[Spark.In]@[sales]"}
    other = headers(Sender(options=SinkOptions.parse(raw), partition=0).messages(frame(), 0))

    assert other[0][wire.REPLY_TO_ADDRESS] == "Spark.In@[sales]"
    assert by_option[0][wire.REPLY_TO_ADDRESS] == expected
    assert [each.get(wire.REPLY_TO_ADDRESS) for each in by_column] == [expected, None, expected]


@pytest.mark.parametrize(
    ("url", "text", "reason"),
    [
        (URL, "Spark.In@[dbo]@[shop]", 'of this database, for example "public"."Spark.In"'),
        (URL, '"public"."Spark', "the quote that opens at character 10 is not closed"),
        ("sqlserver://host/shop", '"public"."Spark.In"', "for example Spark.In@[dbo]"),
    ],
)
def test_what_cannot_be_a_reply_address_is_refused(url: str, text: str, reason: str) -> None:
    """By the option's name before anything runs; by the column's name and row."""
    raw = {"url": url, "queue": "orders"}
    with pytest.raises(BadOption, match="option replyToAddress is ") as option:
        SinkOptions.parse(raw | {"replyToAddress": text})
    batch = frame(3, replyToAddress=[None, "fine", text])
    with pytest.raises(BadMessage, match="column replyToAddress is ") as column:
        Sender(options=SinkOptions.parse(raw), partition=3).messages(batch, 0)

    assert reason in str(option.value)
    assert str(column.value).startswith("row 2 of partition 3 cannot be sent: ")
    assert reason in str(column.value)


@pytest.mark.parametrize("text", ["Shop.Web@OLDHOST", 'odd"', "", *(text for text, _ in REPLIES)])
@pytest.mark.parametrize("kind", ["map", "json"])
def test_a_message_that_is_sent_on_keeps_its_reply_address(kind: str, text: str) -> None:
    """A read has it in the headers and in the column: it stays as another endpoint wrote it."""
    own = {**WHOLE, wire.REPLY_TO_ADDRESS: text}
    column = maps(own) if kind == "map" else [wire.dumps(own)]

    for batch in (frame(headers=column, replyToAddress=[text]), frame(headers=column)):
        found = sender(replyToAddress="option").messages(batch, 0)

        assert found["headers"].to_pylist() == [wire.dumps(own)]


def test_the_id_column_is_the_message_id_of_rows_without_that_header() -> None:
    """A read that is written back keeps its message ids, which are in the headers."""
    original = {wire.MESSAGE_ID: "original"}
    batch = frame(
        4, id=["mine/1", "mine/2", None, None], headers=maps({}, original, original, None)
    )

    found = headers(sender().messages(batch, 0))

    assert [each[wire.MESSAGE_ID] for each in found[:3]] == ["mine/1", "original", "original"]
    assert [each[wire.CORRELATION_ID] for each in found[:3]] == ["mine/1", "original", "original"]
    assert str(uuid.UUID(found[3][wire.MESSAGE_ID])) == found[3][wire.MESSAGE_ID]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["00:30:00", None, "1.12:00:00", "00:00:01.5", "00:00:00", "24.20:31:23.647"]),
        pa.array([1_800_000, None, 129_600_000, 1500, 0, 2**31 - 1], pa.int64()),
        pa.array([1_800_000, None, 129_600_000, 1500, 0, 2**31 - 1], pa.int32()),
        pa.array(
            [1_800_000_000, None, 129_600_000_000, 1_500_000, 0, (2**31 - 1) * 1000],
            pa.duration("us"),
        ),
    ],
    ids=["text", "bigint", "int", "interval"],
)
def test_lifetimes_are_milliseconds_and_a_header(column: pa.Array) -> None:
    """Null takes the option's, if there is one; a body may be text, of zero bytes too."""
    columns = {"body": ["", *["ü🚀"] * 5], "timeToBeReceived": column}
    batch = pa.RecordBatch.from_pydict(columns)

    plain, defaulted = sender().messages(batch, 0), sender(timeToBeReceived="00:00:07")

    assert plain["body"].to_pylist()[:2] == [b"", "ü🚀".encode()]
    assert plain["lifetime"].to_pylist() == [1_800_000, None, 129_600_000, 1500, 0, 2**31 - 1]
    spans = [each.get(wire.TIME_TO_BE_RECEIVED) for each in headers(plain)[:5]]
    assert spans == ["00:30:00", None, "1.12:00:00", "00:00:01.5000000", "00:00:00"]
    assert defaulted.messages(batch, 0)["lifetime"].to_pylist()[1] == 7000


# ----- chunks ----------------------------------------------------------------------------------


def test_a_seed_gives_a_retried_task_the_same_messages() -> None:
    """Ids included; another task's are others, and without a seed they are new."""
    batches = [frame(3), frame(2)]
    first = pa.concat_tables(sender().chunks(batches))

    assert pa.concat_tables(sender(SEED).chunks(batches)).equals(first)
    ids = {each[wire.MESSAGE_ID] for each in headers(first)}
    assert len(ids) == 5
    for seed in (b"\1" * 16, None):
        other = pa.concat_tables(sender(seed).chunks(batches))
        assert not {each[wire.MESSAGE_ID] for each in headers(other)} & ids


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
    assert all(chunk.num_rows == 1 or chunk.nbytes <= most for chunk in chunks)
