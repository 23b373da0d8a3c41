"""Column functions: they read headers as endpoints do, and write those of their messages."""

from __future__ import annotations

import inspect
import json
import random
import re
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from wire import golden

from spark.stand import finish
from sqlq_spark import functions
from sqlq_spark.errors import BadFrame
from sqlq_spark.functions import (
    acknowledge_retries,
    audit,
    deliver_at,
    fail,
    failure,
    forward,
    header,
    message_type,
    message_types,
    publish,
    reply,
    retry_later,
    return_to_source,
    send,
    time_sent,
    wire_time,
)
from sqlq_spark.functions.expressions import STRICT
from sqlq_spark.send.frame import check_frame
from sqlq_spark.wire.header_columns import parse_headers
from sqlq_spark.wire.headers import BadWireTime, full_name, parse_wire_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).parents[2] / "docs" / "functions.md").read_text(encoding="utf-8")
SETTINGS = [(ansi, zone) for ansi in ("true", "false") for zone in ("UTC", "America/New_York")]
FORMATS = pytest.mark.parametrize("as_json", [False, True], ids=["map", "json"])

ROW = "0b0b0b0b-0000-4000-8000-000000000001"
VERSION = "Version=1.4.0.0, Culture=neutral, PublicKeyToken=null"
GENERIC = f"Shop.Changed`2[[Shop.Order, Shop, {VERSION}],[System.Int32[,], mscorlib]]"
TRACE: dict[str, str | None] = {
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tracestate": "shop=1",
    "baggage": "tenant=blue",
}
REQUEST: dict[str, str | None] = {
    "NServiceBus.MessageId": "m-1",
    "NServiceBus.MessageIntent": "Send",
    "NServiceBus.ConversationId": "conversation",
    "NServiceBus.CorrelationId": "correlation",
    "NServiceBus.RelatedTo": "m-0",
    "NServiceBus.ReplyToAddress": '"public"."Shop.Web"',
    "NServiceBus.EnclosedMessageTypes": f"Shop.PlaceOrder, Shop, {VERSION}",
    "NServiceBus.ContentType": "text/xml",
    "NServiceBus.TimeSent": "2026-06-30 17:05:09:123456 Z",
    "NServiceBus.OriginatingEndpoint": "Shop.Web",
    "none": None,
    "ключ / \"'": "a\nb\u2028🚀",
} | TRACE
CAUSED = TRACE | {
    "NServiceBus.CorrelationId": "correlation",
    "NServiceBus.ConversationId": "conversation",
    "NServiceBus.RelatedTo": "m-1",
}


@contextmanager
def settings(spark: SparkSession, ansi: str, zone: str) -> Iterator[None]:
    """Run a block under other settings of the session."""
    mine = {"spark.sql.ansi.enabled": ansi, "spark.sql.session.timeZone": zone}
    before = {name: str(spark.conf.get(name)) for name in mine}
    try:
        for name, value in mine.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def messages(
    spark: SparkSession, headers: Sequence[dict[str, str | None] | None], *, as_json: bool
) -> DataFrame:
    """Rows as a read gives them; `None` is poison."""
    kind = "string" if as_json else "map<string,string>"
    rows = [
        (ROW, ("{" if each is None else json.dumps(each)) if as_json else each, b"{}", 7, "from")
        for each in headers
    ]
    shape = f"id string, headers {kind}, body binary, seq bigint, queue string"
    return spark.createDataFrame(rows, shape).coalesce(1)


def sent(frame: DataFrame, columns: list[Column]) -> list[tuple[dict[str, Any], Row]]:
    """The headers and all columns of what would be sent."""
    return [(json.loads(row["headers"]), row) for row in frame.select(*columns).collect()]


# ---------------------------------------------------------------- reading


def test_a_header_of_any_name_is_found(spark: SparkSession) -> None:
    """No name is read as a path, a pattern or a column."""
    names = ["a.b", "a'b", 'a"b', "a`b", "a?b", "a\\b", "a[0]", "$", "$.a", "*", "", " ", "é🚀"]
    names += ["_", "_corrupt_record", "x\0y", "a\nb", "A", "a", "n" * 2000]
    whole: dict[str, str | None] = {name: f"v:{name}" for name in names}
    shape = "m map<string,string>, j string"
    frame = spark.createDataFrame([(whole, json.dumps(whole)), (None, "{bad")], shape)

    for column, as_json in (("m", False), ("j", True)):
        found = [header(column, name, json=as_json).alias(str(n)) for n, name in enumerate(names)]
        first, poison = frame.select(*found, header(column, "absent", json=as_json)).collect()

        assert list(first) == [*whole.values(), None]
        assert set(poison) == {None}


def test_text_without_headers_is_null(spark: SparkSession) -> None:
    """Never an error, and never a part; of equal names the last counts."""
    deep = '{"x":' + "[" * 3000 + "]" * 3000 + ',"a":"1"}'
    texts = {
        '{"a":"1"}': "1",
        ' {"b":null,"a":"\\u00fc\\ud83d\\ude80\\/"} ': "ü🚀/",
        '{"a":"1","a":"2"}': "2",
        '{"a":"1","a":null}': None,
        '{"A":"1"}': None,
        "": None,
        "null": None,
        "[]": None,
        '[{"a":"1"}]': None,
        '"a"': None,
        '{"a":"1"': None,
        '{"a":"1",}': None,
        "{'a':'1'}": None,
        '{"b":NaN,"a":"1"}': None,
        '{"a":"1","b":nul}': None,
        '\ufeff{"a":"1"}': None,
        '{"a":"\x01"}': None,
        deep: None,
        '{"' + "n" * 60_000 + '":"","a":"1"}': None,
    }
    frame = spark.createDataFrame([(text,) for text in [*texts, None]], "headers string")

    for ansi, zone in SETTINGS[::3]:
        with settings(spark, ansi, zone):
            found = frame.select(header("headers", "a", json=True)).collect()

        assert [value for (value,) in found] == [*texts.values(), None]


def test_spark_reads_the_headers_that_are_no_poison(spark: SparkSession) -> None:
    """As long and as deep as they may be: else a message that fails could not be sent on."""
    texts = [f'{{"{letter * 50_000}":"1","a":"b"}}' for letter in ("n", "漢", r"\n", r"\u0041")]
    texts += ['{"%s":"1","a":"b"}' % ("🚀" * 25_000), '{"x":"%s","a":"b"}' % ("v" * 20_000_001)]
    texts += [f'{{"x":{"[" * 999}{"]" * 999},"x":"1","a":"b"}}']
    texts += ['{"x":0.%s,"x":"1","a":"b"}' % ("1" * 1001)]
    poison = ['{"%s":"1","a":"b"}' % ("n" * 50_001), '{"%s":"1","a":"b"}' % ("🚀" * 25_001)]
    poison += [f'{{"x":{"[" * 1000}{"]" * 1000},"x":"1","a":"b"}}']
    frame = spark.createDataFrame([(text,) for text in [*texts, *poison]], "headers string")

    whole = F.from_json("headers", "map<string,string>", STRICT)
    found = frame.select(whole.isNotNull(), header("headers", "a", json=True)).collect()

    assert [parse_headers(text) is not None for text in [*texts, *poison]] == [
        is_read for is_read, _ in found
    ]
    assert [tuple(row) for row in found] == [(True, "b")] * len(texts) + [(False, None)] * 3


def test_full_names_of_types(spark: SparkSession) -> None:
    """Assembly-qualified or bare, generic or nested; other text has none, of any length."""
    cases: dict[str | None, list[str] | None] = {
        "Shop.Placed": ["Shop.Placed"],
        f"Shop.Placed, Shop, {VERSION};Shop.IEvent, Shop": ["Shop.Placed", "Shop.IEvent"],
        "  Shop.Placed , Shop ; Shop.IEvent;": ["Shop.Placed", "Shop.IEvent"],
        "Shop.Outer+Inner": ["Shop.Outer+Inner"],
        f"{GENERIC}, Shop, {VERSION};{GENERIC}": [GENERIC, GENERIC],
        "Shop.Grüße[]": ["Shop.Grüße[]"],
        "; ;": [],
        "": [],
        ",": [],
        "]], Shop": [],
        "[[Order, Shop": [],
        "Placed]], Shop": [],
        "Placed[[Order, Shop": [],
        "Shop\nPlaced": [],
        "Shop\0Placed": [],
        None: None,
    }
    marks = ["[", "]", "[]", "a[", "a]", ",", "a,", " ", "a ", "\\", "a\\", "\n"]
    hostile = [each * (10**6 // len(each)) for each in marks]
    rows = [{"NServiceBus.EnclosedMessageTypes": text} for text in [*cases, *hostile]]
    blurred: dict[str, str | None] = {"NServiceBus.EnclosedMessageTypes": "[;Shop.IEvent"}
    for as_json in (False, True):
        frame = messages(spark, [*rows, blurred, {}, None], as_json=as_json).select(
            message_types("headers", json=as_json).alias("all"),
            message_type("headers", json=as_json).alias("first"),
        )

        read = frame.collect()

        assert [row["all"] for row in read[: len(cases)]] == list(cases.values())
        first = [names[0] if names else None for names in cases.values()]
        assert [row["first"] for row in read[: len(cases)]] == first
        assert all(full_name(name) == name for row in read for name in row["all"] or [])
        assert [tuple(row) for row in read[-3:]] == [(["Shop.IEvent"], None)] + [(None, None)] * 2


def odd_times() -> list[str]:
    """Times of the wire, and text that is similar."""
    chance = random.Random(7)
    good = ["2026-06-30 17:05:09:123456 Z", "2026-03-08 02:30:00:000001 Z"]
    good += ["0001-01-01 00:00:00:000000 Z", "9999-12-31 23:59:59:999999 Z"]
    good += ["1883-11-18 12:03:58:000001 Z", "2024-02-29 00:00:00:999999 Z"]
    odd = ["", "Z", ".Z", "now", "epoch", "2026", "2026-06-30", "2026-06-30T17:05:09Z"]
    odd += ["0000-01-01 00:00:00:000000 Z", "2023-02-29 00:00:00:000000 Z"]
    odd += ["2026-06-30 24:00:00:000000 Z", "2026-06-30 17:05:60:000000 Z"]
    odd += ["2026-06-30 17:05:09:123456 Z\n", "2026-06-30 17:05:09:123456 +02:00"]
    odd += ["٢٠٢٦-06-30 17:05:09:123456 Z", "2026-06-30 17:05:09.123456 Z", "9" * 10**6]
    for _ in range(300):
        text = list(chance.choice(good))
        for _ in range(chance.randint(1, 2)):
            text[chance.randrange(len(text))] = chance.choice("0123456789 -:.+ZT")
        odd.append("".join(text))
    return good + odd


def test_times_of_the_wire(spark: SparkSession) -> None:
    """As Python reads them: the same moment to the microsecond in every time zone, or null."""
    expected: dict[str, datetime | None] = {}
    for text in odd_times():
        try:
            expected[text] = parse_wire_time(text)
        except BadWireTime:
            expected[text] = None
    frame = spark.createDataFrame([(text,) for text in [*expected, None]], "text string")
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    micros = [
        None if each is None else (each - epoch) // (epoch.resolution)
        for each in [*expected.values(), None]
    ]

    for ansi, zone in SETTINGS:
        with settings(spark, ansi, zone):
            found = frame.select(F.unix_micros(wire_time("text"))).collect()

        assert [value for (value,) in found] == micros
    assert 20 < sum(each is None for each in micros) < len(micros) - 20


@FORMATS
def test_the_columns_of_audited_and_failed_messages(spark: SparkSession, *, as_json: bool) -> None:
    """Seconds from start to end, and from the time it was sent or, if delayed, due."""
    audited = REQUEST | {
        "NServiceBus.ProcessingStarted": "2026-06-30 17:05:10:000001 Z",
        "NServiceBus.ProcessingEnded": "2026-06-30 17:05:10:250002 Z",
        "NServiceBus.ProcessingEndpoint": "Shop.Sales",
    }
    due = audited | {"NServiceBus.DeliverAt": "2026-06-30 17:05:10:000000 Z"}
    failed = REQUEST | {
        "NServiceBus.FailedQ": '"public"."Shop.Sales"',
        "NServiceBus.ExceptionInfo.ExceptionType": "System.Exception",
        "NServiceBus.ExceptionInfo.Message": 'Order "5" is\r\nunknown',
        "NServiceBus.TimeOfFailure": "2026-06-30 17:05:39:000001 Z",
    }
    bad = audited | {"NServiceBus.ProcessingEnded": "yesterday", "NServiceBus.TimeSent": ""}
    frame = messages(spark, [audited, due, failed, bad, None], as_json=as_json)
    columns = [*audit(json=as_json), *failure(json=as_json)]
    columns += [time_sent("headers", json=as_json).alias("sent")]
    columns += [deliver_at("headers", json=as_json).alias("due")]

    for ansi, zone in SETTINGS[::3]:
        with settings(spark, ansi, zone):
            rows = [row.asDict() for row in frame.select(*columns).collect()]

        assert [row["processingTime"] for row in rows] == [0.250001, 0.250001, None, None, None]
        assert [row["criticalTime"] for row in rows] == [1.126546, 0.250002, None, None, None]
        assert [row["processingEndpoint"] for row in rows[:2]] == ["Shop.Sales"] * 2
        assert [rows[0]["conversationId"], rows[0]["relatedTo"]] == ["conversation", "m-0"]
        assert [rows[1]["due"] is None, rows[0]["due"] is None] == [False, True]
        assert rows[2]["failedQueue"] == '"public"."Shop.Sales"'
        assert rows[2]["exceptionType"] == "System.Exception"
        assert rows[2]["exceptionMessage"] == 'Order "5" is\r\nunknown'
        assert rows[2]["timeOfFailure"] - rows[2]["sent"] == (
            datetime(2026, 6, 30, 17, 5, 39, 1) - datetime(2026, 6, 30, 17, 5, 9, 123456)  # noqa: DTZ001
        )
        assert set(rows[4].values()) == {None}


@FORMATS
def test_rows_of_real_endpoints_are_read(spark: SparkSession, *, as_json: bool) -> None:
    """Types, times, failures and audits of tests/golden, as Python's own parser finds them."""
    kind = "string" if as_json else "map<string,string>"
    rows = [(case.headers, case.read) for case in golden()]
    frame = spark.createDataFrame([(row[not as_json],) for row in rows], f"headers {kind}")
    columns = [message_types("headers", json=as_json).alias("types")]
    columns += [message_type("headers", json=as_json).alias("type")]
    columns += [F.unix_micros(time_sent("headers", json=as_json)).alias("sent")]
    columns += [header("headers", "tenant", json=as_json)]
    columns += [*audit(json=as_json), *failure(json=as_json)]

    found = [row.asDict() for row in frame.select(*columns).collect()]

    for row, (_, read) in zip(found, rows, strict=True):
        assert read is not None
        names = (read["NServiceBus.EnclosedMessageTypes"] or "").split(";")
        assert row["types"] == [full_name(name) for name in names]
        assert row["type"] == row["types"][0]
        sent_at = parse_wire_time(read["NServiceBus.TimeSent"] or "")
        assert row["sent"] == round(sent_at.timestamp() * 1e6)
        assert row["conversationId"] == read["NServiceBus.ConversationId"]
        assert row["failedQueue"] == read.get("NServiceBus.FailedQ")
        assert row["exceptionMessage"] == read.get("NServiceBus.ExceptionInfo.Message")
        assert row["processingEndpoint"] == read.get("NServiceBus.ProcessingEndpoint")
    audited = [row["processingTime"] for row in found if row["processingTime"] is not None]
    assert audited == [0.045384]
    assert sum(row["timeOfFailure"] is not None for row in found) == 5


def test_headers_of_the_other_format_are_refused_at_once(spark: SparkSession) -> None:
    """By Spark, before anything runs: a missing `json=True` is no column of nulls."""
    with pytest.raises(AnalysisException, match="MAP"):
        messages(spark, [], as_json=True).select(message_type("headers"))
    with pytest.raises(AnalysisException, match="from_json"):
        messages(spark, [], as_json=False).select(*reply("body", json=True))


# ---------------------------------------------------------------- sending


@FORMATS
def test_an_outgoing_message_is_of_the_same_conversation(
    spark: SparkSession, *, as_json: bool
) -> None:
    """It has the headers of the wire's rules, and no other header of the received message."""
    frame = messages(spark, [REQUEST], as_json=as_json)
    said: dict[str, Any] = {
        "message_type": f"Shop.Placed, Shop, {VERSION};Shop.IEvent",
        "content_type": "application/json",
        "headers": {"tenant": F.lit("blue"), "a.b": "c", "nothing": F.lit(None).cast("string")},
        "json": as_json,
    }
    own = CAUSED | {
        "NServiceBus.EnclosedMessageTypes": said["message_type"],
        "NServiceBus.ContentType": "application/json",
        "tenant": "blue",
        "a.b": "c",
    }
    body = F.lit("<done/>")

    [(answer, answered)] = sent(frame, reply(body, **said))
    [(command, ordered)] = sent(frame, send(body, 'a"b', **said))
    [(event, published)] = sent(frame, publish(body, **said))

    assert answer == own | {"NServiceBus.MessageIntent": "Reply"}
    assert command == own | {"NServiceBus.MessageIntent": "Send"}
    assert event == own | {"NServiceBus.MessageIntent": "Publish"}
    assert answered.asDict() == {
        "body": "<done/>",
        "headers": answered["headers"],
        "queue": '"public"."Shop.Web"',
    }
    assert [*ordered.asDict(), ordered["queue"]] == ["body", "headers", "queue", 'a"b']
    assert [*published.asDict()] == ["body", "headers", "topics"]
    assert published["topics"] == ["Shop.Placed", "Shop.IEvent"]
    assert [*sent(frame, send("body", json=as_json))[0][1].asDict()] == ["body", "headers"]
    assert [*sent(frame, publish("body", json=as_json))[0][1].asDict()] == ["body", "headers"]


@FORMATS
def test_a_message_of_few_headers_can_be_answered(spark: SparkSession, *, as_json: bool) -> None:
    """Absent or empty: the message id is the row's id, the correlation the message id."""
    asked: list[dict[str, str | None] | None] = [
        {"NServiceBus.MessageId": "m", "NServiceBus.CorrelationId": ""},
        {"NServiceBus.MessageId": "", "NServiceBus.CorrelationId": None},
        None,
        {"NServiceBus.OriginatingSagaId": "7", "NServiceBus.OriginatingSagaType": "Shop.Saga"},
    ]

    found = sent(messages(spark, asked, as_json=as_json), reply("body", json=as_json))

    def effect(cause: str) -> dict[str, str]:
        ids = dict.fromkeys(["NServiceBus.CorrelationId", "NServiceBus.RelatedTo"], cause)
        return ids | {"NServiceBus.MessageIntent": "Reply"}

    saga = {"NServiceBus.SagaId": "7", "NServiceBus.SagaType": "Shop.Saga"}
    assert [headers for headers, _ in found] == [
        effect("m"),
        effect(ROW),
        effect(ROW),
        effect(ROW) | saga,
    ]
    assert [row["queue"] for _, row in found] == [None] * 4


def test_the_type_of_an_event_may_stand_in_each_row(spark: SparkSession) -> None:
    """In a column; a constant that is no type's name is refused."""
    frame = messages(spark, [REQUEST], as_json=False)
    kind = F.col("headers")["NServiceBus.EnclosedMessageTypes"]

    [(headers, row)] = sent(frame, publish("body", message_type=kind))

    assert headers["NServiceBus.EnclosedMessageTypes"] == f"Shop.PlaceOrder, Shop, {VERSION}"
    assert row["topics"] == ["Shop.PlaceOrder"]
    for build in (publish, send, reply):
        with pytest.raises(
            BadFrame, match=r"is ', Shop', with a blank name: expected a \.NET type"
        ):
            build("body", message_type=", Shop")


@FORMATS
def test_the_received_message_may_be_an_alias_or_a_struct(
    spark: SparkSession, *, as_json: bool
) -> None:
    """After a join both sides have an id."""
    frame = messages(spark, [REQUEST], as_json=as_json)
    joined = frame.alias("m").join(spark.createDataFrame([("x", 1)], "id string, n int"))
    packed = frame.select(F.struct("*").alias("m"), F.lit("x").alias("id"))

    for each in (joined, packed):
        [(headers, _)] = sent(each, reply(F.lit(""), received="m", json=as_json))
        [(same, row)] = sent(each, forward(received="m", json=as_json))

        assert headers == CAUSED | {"NServiceBus.MessageIntent": "Reply"}
        assert same == REQUEST
        assert row["id"] == ROW


@FORMATS
def test_a_forwarded_message_keeps_its_headers(spark: SparkSession, *, as_json: bool) -> None:
    """Except those to leave out, and on a return to source those that a failure added."""
    added: dict[str, str | None] = {
        "NServiceBus.FailedQ": '"public"."Shop.Sales"',
        "NServiceBus.ExceptionInfo.Message": "no",
        "NServiceBus.ExceptionInfo.Data.x": None,
        "NServiceBus.TimeOfFailure": "2026-06-30 17:05:39:000001 Z",
        "NServiceBus.Retries": "2",
        "NServiceBus.Retries.Timestamp": "2026-06-30 17:05:39:000001 Z",
    }
    mine: dict[str, str | None] = {"NServiceBus.ExceptionInfos": "kept", "x.FailedQ": "kept"}
    frame = messages(spark, [REQUEST | added | mine, {}], as_json=as_json)
    frame = frame.withColumn("body", F.lit(None).cast("binary"))

    whole, bare = sent(frame, forward("audit", json=as_json))
    [(less, _), _] = sent(frame, forward(without=["none", *TRACE], json=as_json))
    [(back, returned), (_, lost)] = sent(frame, return_to_source(json=as_json))

    assert whole[0] == REQUEST | added | mine
    assert bare[0] == {}
    assert whole[1].asDict() == {
        "body": b"",
        "headers": whole[1]["headers"],
        "id": ROW,
        "queue": "audit",
    }
    assert less == {
        name: text for name, text in whole[0].items() if name != "none" and name not in TRACE
    }
    assert back == REQUEST | mine
    assert [returned["queue"], lost["queue"]] == ['"public"."Shop.Sales"', None]


def test_corrupt_headers_are_not_forwarded(spark: SparkSession) -> None:
    """They would arrive as no headers; the error names the message."""
    for as_json in (False, True):
        frame = messages(spark, [REQUEST, None], as_json=as_json)
        for columns in (forward(without="x", json=as_json), return_to_source(json=as_json)):
            with pytest.raises(PySparkException) as refused:
                frame.select(*columns).collect()

            assert f"message {ROW} cannot be sent on: its headers are corrupt" in str(refused.value)


def test_outgoing_columns_do_not_name_the_source_queue(spark: SparkSession) -> None:
    """The sink refuses its option topics beside the columns queue and seq of a read."""
    frame = messages(spark, [REQUEST], as_json=False)
    failed = fail("T", "m"), retry_later(1, "T", "m"), acknowledge_retries()
    others = reply("body"), send("body"), forward(), forward("a"), return_to_source()
    for columns in (*others, *failed):
        types = dict(frame.select(*columns).dtypes)

        check_frame(types, queue=False, topics=True)
        assert "seq" not in types
    with pytest.raises(BadFrame, match="drop the column queue, or the option"):
        check_frame(dict(frame.drop("headers").dtypes), queue=False, topics=True)


def test_the_page_of_functions_lists_each_with_its_arguments(spark: SparkSession) -> None:
    """All of them, no others, and the columns of each."""
    rows = re.findall(r"^\| `(\w+)\((.*?)\)` \| (.*?) \|", PAGE, flags=re.MULTILINE)
    listed = {name: arguments.split(", ") for name, arguments, _ in rows}
    given = {name: getattr(functions, name) for name in functions.__all__}
    frame = messages(spark, [], as_json=False)
    lists = {"audit": audit(), "failure": failure(), "return_to_source": return_to_source()}
    lists |= {"reply": reply("body"), "send": send("body", "a"), "forward": forward("a")}
    lists |= {"publish": publish("body", message_type="Shop.Placed")}
    lists |= {"fail": fail("T", "m", "error"), "retry_later": retry_later(1, "T", "m")}
    lists |= {"acknowledge_retries": acknowledge_retries()}

    assert listed == {name: [*inspect.signature(each).parameters] for name, each in given.items()}
    for name, _, cell in rows:
        if name in lists:
            assert re.findall(r"`(\w+)`", cell) == frame.select(*lists[name]).columns


# ---------------------------------------------------------------- there and back


def test_answers_reach_the_endpoints_and_keep_the_conversation(queue: SparkQueue) -> None:
    """Two hops, by the real source and sink; the endpoint sees the headers of the wire only."""
    web, again, events = (queue.another(name) for name in ("Shop.Web", "again", "events"))
    routing = queue.beside("Routing")
    queue.dotnet.create_subscriptions(routing.address)
    queue.dotnet.subscribe(routing.address, events.table, "Shop.IEvent", events.name)
    request = REQUEST | {"NServiceBus.ReplyToAddress": web.name}
    queue.put(json.dumps(request).replace("/", "\\/"))
    given = {"messageType": "Shop.OrderAccepted", "replyToAddress": again.name}
    given |= queue.database_options | {"subscriptionTable": routing.name}

    stream = queue.stream(headersFormat="json").load()
    answers = stream.select(*reply(F.lit("<ok/>"), content_type="text/xml", json=True))
    finish(answers.writeStream.format("sqlqueue").options(**given), queue.folder / "answers")

    [(whole, body)] = web.rows()
    answer = str(whole["NServiceBus.MessageId"])
    sent_at = parse_wire_time(str(whole["NServiceBus.TimeSent"]))
    sender = ("OriginatingEndpoint", "OriginatingMachine")
    own = {f"NServiceBus.{name}" for name in ("MessageId", "TimeSent", *sender)}
    own.add("$.diagnostics.originating.hostid")
    assert [body, queue.count()] == [b"<ok/>", 0]
    assert own <= whole.keys()
    assert {name: text for name, text in whole.items() if name not in own} == CAUSED | {
        "NServiceBus.MessageIntent": "Reply",
        "NServiceBus.ReplyToAddress": again.name,
        "NServiceBus.EnclosedMessageTypes": "Shop.OrderAccepted",
        "NServiceBus.ContentType": "text/xml",
    }
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", answer)
    assert abs(datetime.now(UTC) - sent_at).total_seconds() < 600

    read = web.reader().load()
    frame = read.select(*reply("body"))
    for columns in (forward(again.name), publish("body", message_type="Shop.Done;Shop.IEvent")):
        frame = frame.unionByName(read.select(*columns), allowMissingColumns=True)
    frame.write.format("sqlqueue").options(**given).mode("append").save()

    hops = {str(headers["NServiceBus.MessageId"]): headers for headers, _ in again.rows()}
    [(event, _)] = events.rows()
    assert hops.pop(answer) == whole
    [second] = hops.values()
    for each, intent in ((second, "Reply"), (event, "Publish")):
        related = {"NServiceBus.RelatedTo": answer, "NServiceBus.MessageIntent": intent}
        assert (CAUSED | related).items() <= each.items()
    assert event["NServiceBus.EnclosedMessageTypes"] == "Shop.Done;Shop.IEvent"


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        (None, "row 1 of partition 0 cannot be sent: queue is null"),
        ('"a', "row 1 of partition 0 cannot be sent: option queue is"),
    ],
)
def test_a_reply_without_a_destination_fails_the_batch(
    queue: SparkQueue, address: str | None, reason: str
) -> None:
    """No reply is sent; with the option queue, it is the destination of all rows."""
    requests: list[dict[str, str | None] | None] = [
        {"NServiceBus.ReplyToAddress": queue.name},
        {"NServiceBus.ReplyToAddress": address},
    ]
    answers = messages(queue.spark, requests, as_json=False).select(*reply("body"))
    writer = answers.write.format("sqlqueue").options(**queue.database_options).mode("append")

    with pytest.raises(PySparkException) as refused:
        writer.save()
    before = queue.count()
    if address is None:
        queue.send(answers)

    assert reason in str(refused.value)
    assert [before, queue.count()] == [0, 0 if address else 2]
