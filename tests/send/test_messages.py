"""Rows of a frame → messages: headers byte for byte, defaults, lifetimes, ids, delays, topics."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strict_headers import loads

from sqlq_spark.options import SinkOptions
from sqlq_spark.send import sender as messages
from sqlq_spark.send.frame import TOPICS
from sqlq_spark.send.sender import Sender, name_sender
from sqlq_spark.wire import headers as wire

from .frames import MAP, SEED, frame, headers, maps, moments, sender

if TYPE_CHECKING:
    from collections.abc import Mapping

# what a row needs so that its own headers are the whole text
WHOLE = {
    wire.MESSAGE_ID: "m",
    wire.START_NEW_TRACE: "False",
    wire.MESSAGE_INTENT: "Send",
    wire.CONVERSATION_ID: "c",
    wire.CORRELATION_ID: "m",
    wire.TIME_SENT: "t",
}
TEXT = st.text(max_size=6) | st.sampled_from(["a/b", '"', "\\", "\x7f", "\0", "\u2028", "🚀", "é"])
NAMES = TEXT | st.sampled_from(
    [wire.MESSAGE_ID, wire.CORRELATION_ID, wire.REPLY_TO_ADDRESS, wire.MESSAGE_INTENT]
)
MAPS = st.lists(st.none() | st.dictionaries(NAMES, st.none() | TEXT, max_size=5), max_size=6)


@given(MAPS, st.integers(0, 3))
def test_headers_are_byte_for_byte_those_of_the_writer(
    given_: list[dict[str, str | None] | None], offset: int
) -> None:
    """Defaults that a row lacks come first, and then its own headers, as a map or as JSON."""
    batch = frame(len(given_), headers=maps(*given_)).slice(offset)
    json = pa.array([None if each is None else wire.dumps(each) for each in given_], pa.string())

    found = sender().messages(batch, 0)

    for text, each in zip(found["headers"].to_pylist(), given_[offset:], strict=True):
        own, written = each or {}, loads(text)
        defaults = {name: value for name, value in written.items() if name not in own}
        assert text == wire.dumps(defaults | own)
        assert set(defaults) == WHOLE.keys() - set(own)
        assert {name: written[name] for name in own} == own
    assert found.equals(sender().messages(frame(len(given_), headers=json).slice(offset), 0))


ODD_NAMES = st.sampled_from(["a", "b", "__type", 'quoted"', ":", '":', *WHOLE])
PAIRS = st.lists(st.tuples(ODD_NAMES, st.none() | st.sampled_from(["", '":', '" :', "x", "é"])))


@given(rows=st.lists(PAIRS, max_size=4), wide=st.booleans(), whole=st.integers(0, 1))
def test_a_name_is_written_once_and_type_is_never_first(
    *, rows: list[list[tuple[str, str | None]]], wide: bool, whole: int
) -> None:
    """Endpoints up to 9.0 fail on either. The last value of a repeated name is written."""
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


def test_the_option_queue_overrides_the_column() -> None:
    """Names in the column are then not even read. Without the option the column decides."""
    names = ["billing", None, '"', '"public"."orders"']
    batch = frame(4, queue=names, seq=pa.array([1, 2, 3, 4]))

    by_option = sender(queue="archive").messages(batch, 0)
    by_column = sender(queue=None).messages(batch.slice(0, 1), 0)
    by_line = replace(sender(queue="archive"), rows_choose=True).messages(batch.slice(0, 2), 0)

    assert by_option["queue"].to_pylist() == [None] * 4
    assert by_column["queue"].to_pylist() == ["billing"]
    assert by_line["queue"].to_pylist() == ["billing", None]


def test_a_column_wins_over_the_header_and_the_header_over_the_default() -> None:
    """Null in the column leaves it to the header. A header wins over the id of a row."""
    own = dict.fromkeys((wire.MESSAGE_ID, wire.CORRELATION_ID, wire.REPLY_TO_ADDRESS), "header")
    batch = frame(
        3,
        id=["1", None, "3"],
        correlationId=["column", None, None],
        replyToAddress=[None, "column", None],
        headers=maps(own, own, {"other": "x"}),
    )

    found = headers(sender(replyToAddress="option").messages(batch, 0))

    assert [each[wire.CORRELATION_ID] for each in found[:2]] == ["column", "header"]
    assert [each[wire.REPLY_TO_ADDRESS] for each in found] == [
        *("header", '"public"."column"', '"public"."option"'),
    ]
    assert [each[wire.MESSAGE_ID] for each in found] == ["header", "header", "3"]
    assert found[2][wire.CORRELATION_ID] == "3"


REPLIES = [  # as a user writes a reply address, and as an endpoint reads it
    ("Spark.In", '"public"."Spark.In"'),
    ('sales."Spark.In"', '"sales"."Spark.In"'),
    ('"sales"."a""b@c"', '"sales"."a""b@c"'),
]


@pytest.mark.parametrize(("text", "expected"), REPLIES)
def test_a_reply_address_is_written_as_endpoints_read_it(text: str, expected: str) -> None:
    """An endpoint would read a bare dot, of the option or the column, as a schema's end."""
    by_option = headers(sender(replyToAddress=text).messages(frame(), 0))
    by_column = headers(sender().messages(frame(3, replyToAddress=[text, None, text]), 0))

    assert by_option[0][wire.REPLY_TO_ADDRESS] == expected
    assert [each.get(wire.REPLY_TO_ADDRESS) for each in by_column] == [expected, None, expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("[Spark.In]@[sales]", "Spark.In@[sales]"), ('[a"b]@[sales]', 'a"b@[sales]')],
)
def test_a_reply_address_of_sql_server_may_have_brackets(text: str, expected: str) -> None:
    """A double quote in the name is a character like any other there."""
    raw = {"url": "sqlserver://host/shop", "queue": "q", "replyToAddress": text}
    found = headers(Sender(options=SinkOptions.parse(raw), partition=0).messages(frame(), 0))

    assert found[0][wire.REPLY_TO_ADDRESS] == expected


def test_a_seed_gives_a_retried_task_the_same_messages() -> None:
    """The ids are the same too. Another seed gives other ids, and no seed gives new ones."""
    batches = [frame(3), frame(2)]
    first = pa.concat_tables(sender().chunks(batches))

    assert pa.concat_tables(sender(SEED).chunks(batches)).equals(first)
    ids = {each[wire.MESSAGE_ID] for each in headers(first)}
    assert len(ids) == 5
    for seed in (b"\1" * 16, None):
        other = pa.concat_tables(sender(seed).chunks(batches))
        assert not {each[wire.MESSAGE_ID] for each in headers(other)} & ids


@given(st.lists(st.lists(st.integers(0, 400), max_size=8), max_size=6), st.integers(300, 5000))
@example([[0, 0, 0, 0, 0, 0, 0, 4000]], 5000)  # the last message has most of the bytes
def test_chunks_together_are_the_rows_and_none_is_empty(sizes: list[list[int]], most: int) -> None:
    """Rows keep their order. A chunk is above the size only if it is one row."""
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


BY = name_sender("Lake")
SENT_BY = (wire.ORIGINATING_MACHINE, wire.ORIGINATING_ENDPOINT, wire.HOST_ID)
MACHINE, HOST = BY[wire.ORIGINATING_MACHINE], BY[wire.HOST_ID]


@pytest.mark.parametrize(
    ("own", "raw", "expected"),
    [
        ({}, {}, (MACHINE, "Lake", HOST)),
        ({wire.ORIGINATING_ENDPOINT: "Mine"}, {}, (MACHINE, "Mine", HOST)),
        # another sender made it
        ({wire.TIME_SENT: "then"}, {}, (None, None, None)),
        ({wire.TIME_SENT: "then"}, {"originatingEndpoint": "Stated"}, (None, "Stated", None)),
    ],
)
def test_headers_of_the_row_win_and_of_two_senders_none_is_made(
    own: Mapping[str, str], raw: dict[str, str], expected: tuple[str | None, ...]
) -> None:
    """A message that is passed on keeps its headers. The option is only a default."""
    made = replace(sender(**raw), sent_by=name_sender(raw.get("originatingEndpoint", "Lake")))

    (each,) = headers(made.messages(frame(1, headers=maps(own)), 0))

    assert tuple(each.get(name) for name in SENT_BY) == expected


AT = datetime(2026, 7, 1, 9, 8, 7, 654321, UTC)


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["00:30:00", None, "1.12:00:00", "00:00:01.5"]),
        pa.array([1_800_000, None, 129_600_000, 1500], pa.int64()),
        pa.array([1_800_000_000, None, 129_600_000_000, 1_500_000], pa.duration("us")),
    ],
    ids=["text", "bigint", "interval"],
)
def test_a_delay_is_milliseconds_and_a_header(column: pa.Array) -> None:
    """DeliverAt is the time sent and the delay. A row without a delay has neither."""
    found = sender().messages(frame(4, delay=column), 0)

    assert found["delay"].to_pylist() == [1_800_000, None, 129_600_000, 1500]
    assert [each.get(wire.DELIVER_AT) for each in headers(found)] == [
        "2026-06-30 17:35:09:123456 Z",
        None,
        "2026-07-02 05:05:09:123456 Z",
        "2026-06-30 17:05:10:623456 Z",
    ]


def test_a_moment_is_utc_and_overrides_what_headers_say_of_delays() -> None:
    """A moment in the past counts too. A row that is not delayed keeps its own DeliverAt."""
    own = {wire.DELIVER_AT: "then", wire.FORWARD_DESTINATION: "there", "a": "b"}
    past = datetime(1900, 1, 1, tzinfo=UTC)
    for column in (maps(own, own, {}), pa.array([wire.dumps(each) for each in (own, own, {})])):
        batch = frame(3, headers=column, deliverAt=moments(AT, None, past))

        found = sender().messages(batch, 0)

        due = found["due"].to_pylist()
        assert due == [AT.replace(tzinfo=None), None, past.replace(tzinfo=None)]
        delayed, plain, before = headers(found)
        assert delayed[wire.DELIVER_AT] == "2026-07-01 09:08:07:654321 Z"
        assert delayed["a"] == "b"
        assert delayed[wire.FORWARD_DESTINATION] == '"public"."orders"'
        assert {name: plain[name] for name in own} == own
        assert before[wire.DELIVER_AT] == "1900-01-01 00:00:00:000000 Z"


def test_only_events_and_traced_delayed_messages_begin_a_trace() -> None:
    """A message that was sent before keeps what it has, unless it is delayed and has a trace."""
    again, traced = {wire.TIME_SENT: "then"}, {wire.TRACE_PARENT: "00-1-2-01"}
    received = {**again, wire.START_NEW_TRACE: "False"}
    rows = [{}, traced, again, received, {**received, **traced}, {**again, **traced}]
    for column in (maps(*rows), pa.array([wire.dumps(row) for row in rows])):
        delayed = frame(6, headers=column, delay=pa.array([5] * 6, pa.int64()))

        sent = headers(sender().messages(frame(6, headers=column), 0))
        later = headers(sender().messages(delayed, 0))

        assert [each.get(wire.START_NEW_TRACE) for each in sent] == [
            *("False", "False", None, "False", "False", None)
        ]
        assert [each.get(wire.START_NEW_TRACE) for each in later] == [
            *("False", "True", None, "False", "True", "True")
        ]
    mixed = headers(published([None, ["Shop.Placed"]], {"queue": "orders"}))
    assert [each[wire.START_NEW_TRACE] for each in mixed] == ["False", "True"]


def test_a_stored_message_has_one_destination() -> None:
    """A former destination is replaced, however its name is escaped. All else stays."""
    own = '"NServiceBus.MessageId":"m"'
    texts = [
        f"{{{own}}}",
        f'{{{own} , "b":"x\\/"}}',
        f'{{{own},"{wire.FORWARD_DESTINATION}":"old"}}',
        f'{{"a":"1","{wire.FORWARD_DESTINATION}":"old",{own},"b":"\\u00e9"}}',
        f'{{"NServiceBus.SqlServer.Forward\\u0044estination":null,{own}}}',
        f'{{{own},"{wire.FORWARD_DESTINATION}":"\\"public\\".\\"orders\\""}}',
        f"\t{{{own} }} \n",
    ]
    batch = frame(7, headers=pa.array(texts), delay=pa.array([5] * 7, pa.int64()))
    entry = f'"{wire.FORWARD_DESTINATION}":"\\"public\\".\\"orders\\""'

    found = sender(asReceived="true").messages(batch, 0)

    assert found["headers"].to_pylist() == [
        f"{{{own},{entry}}}",
        f'{{{own} , "b":"x\\/",{entry}}}',
        f"{{{own},{entry}}}",
        f'{{"a":"1",{own},"b":"é",{entry}}}',
        f"{{{own},{entry}}}",
        texts[5],
        f"{{{own} ,{entry}}}",
    ]
    for text in sender().messages(batch, 0)["headers"].to_pylist():
        assert loads(text)[wire.FORWARD_DESTINATION] == '"public"."orders"'


def published(topics: list[Any], raw: dict[str, Any], **columns: Any) -> pa.Table:
    """The messages of rows with lists of topics."""
    batch = frame(len(topics), topics=pa.array(topics, TOPICS), **columns)
    return sender(**({"queue": None} | raw)).messages(batch, 0)


def test_a_row_with_topics_says_publish_and_lists_them() -> None:
    """Names are full or assembly-qualified. Headers of the row and messageType win."""
    topics = ["Shop.Placed, Shop", "Shop.IEvent"]
    own = {wire.MESSAGE_INTENT: "Send", wire.ENCLOSED_MESSAGE_TYPES: "Own, Shop"}

    first, second = headers(published([topics, topics], {}, headers=maps({}, own)))
    (typed,) = headers(published([topics], {"messageType": "Shop.Base"}))

    assert first[wire.MESSAGE_INTENT] == "Publish"
    assert first[wire.ENCLOSED_MESSAGE_TYPES] == ";".join(topics)
    assert typed[wire.ENCLOSED_MESSAGE_TYPES] == "Shop.Base"
    assert {name: second[name] for name in own} == own


def test_the_option_stands_for_rows_that_have_neither_topics_nor_a_queue() -> None:
    """A row's own topics or queue win. An empty list of topics counts as none."""
    raw = {"topics": "Shop.Placed,A`1[[B, C]]"}
    queue = pa.array([None, None, None, "orders"])

    chunk = published([None, [], ["Own"], None], raw, queue=queue)
    mixed = published([None, ["Shop.Placed"], []], {"queue": "orders"})

    option = ["Shop.Placed", "A`1[[B, C]]"]
    assert chunk["topics"].to_pylist() == [option, option, ["Own"], None]
    assert [each[wire.MESSAGE_INTENT] for each in headers(chunk)] == [*["Publish"] * 3, "Send"]
    assert [each[wire.MESSAGE_INTENT] for each in headers(mixed)] == ["Send", "Publish", "Send"]


@pytest.mark.parametrize(
    ("url", "given", "columns"),
    [
        ("sqlserver://host/shop", "true", {"correlationid", "replytoaddress"}),
        ("sqlserver://host/shop", "false", set()),
        ("postgresql://host/shop", "true", set()),
    ],
)
def test_legacy_columns_are_filled_where_queues_have_them(
    url: str, given: str, columns: set[str]
) -> None:
    """They get what a varchar of any code page holds. Others would become question marks."""
    rows = frame(3, correlationId=pa.array(["a", "Łódź", None]), id=pa.array(["1", "2", "ü"]))

    found = sender(url=url, legacyColumns=given).messages(rows, 0)

    assert {"correlationid", "replytoaddress"} & {*found.column_names} == columns
    assert [each[wire.CORRELATION_ID] for each in headers(found)] == ["a", "Łódź", "ü"]
    if columns:
        assert found["correlationid"].to_pylist() == ["a", None, None]
