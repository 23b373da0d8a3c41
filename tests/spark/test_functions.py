"""Column functions: they read headers as endpoints do, and write those of their messages."""

from __future__ import annotations

import hashlib
import inspect
import json
import random
import re
import socket
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from wire import golden

from spark.stand import numbered
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
    is_retried,
    message_type,
    message_types,
    publish,
    reply,
    retry_later,
    return_to_source,
    send,
    sent_at,
    wire_time,
)
from sqlq_spark.functions.expressions import STRICT, wire_text
from sqlq_spark.send.frame import check_frame
from sqlq_spark.wire.header_columns import parse_headers
from sqlq_spark.wire.headers import BadTimeSpan, BadWireTime, full_name, parse_wire_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark

Headers = dict[str, str | None]

PAGE = (Path(__file__).parents[2] / "docs" / "functions.md").read_text(encoding="utf-8")
ROW, QUEUE, NOW = "0b0b0b0b-0000-4000-8000-000000000001", '"public"."Shop.Server"', "now"
SHAPE = "id string, headers {}, body binary, seq bigint, queue string"
VERSION = "Version=1.4.0.0, Culture=neutral, PublicKeyToken=null"
GENERIC = f"Shop.Changed`2[[Shop.Order, Shop, {VERSION}],[System.Int32[,], mscorlib]]"
WHEN = "2026-06-30 17:05:09:123456 Z"
TRACE: Headers = {
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tracestate": "shop=1",
    "baggage": "tenant=blue",
}
REQUEST: Headers = {
    "NServiceBus.MessageId": "m-1",
    "NServiceBus.MessageIntent": "Send",
    "NServiceBus.ConversationId": "conversation",
    "NServiceBus.CorrelationId": "correlation",
    "NServiceBus.RelatedTo": "m-0",
    "NServiceBus.ReplyToAddress": '"public"."Shop.Web"',
    "NServiceBus.EnclosedMessageTypes": f"Shop.PlaceOrder, Shop, {VERSION}",
    "NServiceBus.ContentType": "text/xml",
    "NServiceBus.TimeSent": WHEN,
    "NServiceBus.OriginatingEndpoint": "Shop.Web",
    "none": None,
    "ключ / \"'": "a\nb\u2028🚀",
} | TRACE
CAUSED: Headers = TRACE | {
    "NServiceBus.CorrelationId": "correlation",
    "NServiceBus.ConversationId": "conversation",
    "NServiceBus.RelatedTo": "m-1",
}
INFO = "NServiceBus.ExceptionInfo."
OLD: Headers = {f"{INFO}{name}": "old" for name in ("StackTrace", "HelpLink", "Data.x", "Source")}
OLD |= {"NServiceBus.FailedQ": QUEUE, "NServiceBus.TimeOfFailure": WHEN, f"{INFO}Data.y": None}
MINE: Headers = {"NServiceBus.ExceptionInfos": "kept", "x.FailedQ": "kept"}
MACHINE: Headers = {
    "NServiceBus.ProcessingMachine": socket.gethostname(),
    "$.diagnostics.hostdisplayname": socket.gethostname(),
    "$.diagnostics.hostid": hashlib.md5(
        socket.gethostname().encode(), usedforsecurity=False
    ).hexdigest(),
}
GUID = "0FA1B2C3-0000-4000-8000-0000000000aF"
FAILED: Headers = MACHINE | {
    "NServiceBus.ProcessingEndpoint": "Shop.Server",
    "NServiceBus.FailedQ": QUEUE,
    "NServiceBus.TimeOfFailure": NOW,
    f"{INFO}ExceptionType": "Shop.Bad",
    f"{INFO}Message": "no",
}
RETRIED: Headers = {
    "NServiceBus.MessageId": "m-1",
    "ServiceControl.Retry.UniqueMessageId": GUID,
    "ServiceControl.Retry.AcknowledgementQueue": "ack",
}


def sessions(spark: SparkSession) -> Iterator[SparkSession]:
    """Give a session with Spark's own settings, and one in another time zone without ANSI mode."""
    for ansi, zone in (("true", "UTC"), ("false", "America/New_York")):
        session = spark.newSession()
        session.conf.set("spark.sql.ansi.enabled", ansi)
        session.conf.set("spark.sql.session.timeZone", zone)
        yield session


def messages(
    spark: SparkSession, headers: Sequence[Headers | None], *, as_json: bool = False
) -> DataFrame:
    """Rows as a read gives them. `None` is poison, and `{}` has no body."""
    rows = []
    for each in headers:
        text = "{" if each is None else json.dumps(each)
        body = None if each == {} else b"{}"
        rows.append((ROW, text if as_json else each, body, 7, QUEUE))
    shape = SHAPE.format("string" if as_json else "map<string,string>")
    return spark.createDataFrame(rows, shape).coalesce(1)


def plain(row: Row) -> dict[str, Any]:
    """The values of a row: headers parsed, moments in UTC, and NOW for the time of this run."""
    found = row.asDict()
    if "headers" in found:
        found["headers"] = {
            name: NOW if is_now(text) else text for name, text in json.loads(row.headers).items()
        }
    return {
        name: each.astimezone(UTC) if isinstance(each, datetime) else each
        for name, each in found.items()
    }


def is_now(text: str | None) -> bool:
    """Whether a header has a time of the last minutes."""
    with suppress(BadWireTime):
        return abs(datetime.now(UTC) - parse_wire_time(text or "")) < timedelta(minutes=10)
    return False


def made(
    spark: SparkSession,
    headers: Sequence[Headers | None],
    columns: Callable[..., Sequence[Column]],
) -> list[dict[str, Any]]:
    """What a function makes. It is the same from a map and from text, in all sessions."""
    of_map, of_text = (
        [*map(plain, messages(each, headers, as_json=text).select(*columns(json=text)).collect())]
        for each, text in zip(sessions(spark), (False, True), strict=True)
    )
    assert of_map == of_text
    return of_map


# ---------------------------------------------------------------- reading


def test_a_header_of_any_name_is_found(spark: SparkSession) -> None:
    """No name is read as a path, a pattern or a column."""
    names = [*"$*_Aa ", "", "a.b", "a'b", 'a"b', "a`b", "a?b", "a\\b", "a[0]", "$.a", "é🚀", "a\nb"]
    names += ["_corrupt_record", "x\0y", "n" * 2000]
    whole: Headers = {name: f"v:{name}" for name in names}

    def found(*, json: bool) -> list[Column]:
        listed = [*names, "absent"]
        return [header("headers", each, json=json).alias(str(n)) for n, each in enumerate(listed)]

    first, poison = made(spark, [whole, None], found)

    assert [*first.values()] == [*whole.values(), None]
    assert set(poison.values()) == {None}


def test_spark_reads_the_headers_that_are_no_poison(spark: SparkSession) -> None:
    """
    Spark reads headers as long and as deep as the package does. Of equal names the last one counts.

    Otherwise a failed message could not be sent on. Spark never reads a part of the headers.
    """
    texts = {
        ' {"b":null,"a":"\\u00fc\\ud83d\\ude80\\/"} ': "ü🚀/",
        '{"a":"1","a":"2"}': "2",
        '{"a":"1","a":null}': None,
        '{"A":"1"}': None,
        **{f'{{"{each * 50_000}":"","a":"1"}}': "1" for each in ("n", "漢", r"\n", r"\u0041")},
        '{"%s":"","a":"1"}' % ("🚀" * 25_000): "1",
        '{"x":"%s","a":"1"}' % ("v" * 20_000_001): "1",
        f'{{"x":{"[" * 999}{"]" * 999},"x":"","a":"1"}}': "1",
        '{"x":0.%s,"x":"","a":"1"}' % ("1" * 1001): "1",
    }
    poison = ["null", "[]", '[{"a":"1"}]', '"a"', '{"a":"1"', '{"a":"1",}', "{'a':'1'}"]
    poison += ['{"b":NaN,"a":"1"}', '{"a":"1","b":nul}', '\ufeff{"a":"1"}', '{"a":"\x01"}']
    poison += [f'{{"{"n" * 50_001}":"","a":"1"}}', '{"%s":"","a":"1"}' % ("🚀" * 25_001)]
    poison += [f'{{"x":{"[" * 1000}{"]" * 1000},"x":"","a":"1"}}']
    frame = spark.createDataFrame([(text,) for text in [*texts, *poison]], "headers string")

    whole = F.from_json("headers", "map<string,string>", STRICT)
    found = frame.select(whole.isNotNull(), header("headers", "a", json=True)).collect()

    assert [is_read for is_read, _ in found] == [
        parse_headers(text) is not None for text in [*texts, *poison]
    ]
    assert [value for _, value in found] == [*texts.values(), *[None] * len(poison)]


def test_full_names_of_types(spark: SparkSession) -> None:
    """They may be assembly-qualified or bare, generic or nested. Other text gives no name."""
    cases: dict[str | None, list[str]] = {
        f"Shop.Placed, Shop, {VERSION};Shop.IEvent, Shop": ["Shop.Placed", "Shop.IEvent"],
        "  Shop.Placed , Shop ; Shop.IEvent;": ["Shop.Placed", "Shop.IEvent"],
        f"{GENERIC}, Shop, {VERSION};{GENERIC}": [GENERIC, GENERIC],
        **{text: [text] for text in ("Shop.Outer+Inner", "Shop.Grüße[]")},
        **{text: [] for text in ("; ;", "", ",", "]], Shop", "[[Order, Shop", "Placed]], Shop")},
        **{text: [] for text in ("Placed[[Order, Shop", "Shop\nPlaced", "Shop\0Placed")},
    }
    hostile = [each * 10**6 for each in (*"[], \\\n", "[]", "a[", "a]", "a,", "a ", "a\\")]
    texts = [*cases, *hostile, "[;Shop.IEvent", None]
    rows = [{"NServiceBus.EnclosedMessageTypes": text} for text in texts]

    found = made(
        spark,
        [*rows, None],
        lambda json: [
            message_types("headers", json=json).alias("all"),
            message_type("headers", json=json).alias("first"),
        ],
    )

    for row, names in zip(found, cases.values(), strict=False):
        assert row == {"all": names, "first": names[0] if names else None}
    assert all(full_name(name) == name for row in found for name in row["all"] or [])
    assert [row["first"] for row in found[-3:]] == [None] * 3
    assert [row["all"] for row in found[-3:]] == [["Shop.IEvent"], None, None]


def test_times_of_the_wire(spark: SparkSession) -> None:
    """
    Spark reads a time as Python does, or gives null, in every time zone.

    A time that is written is read back the same.
    """
    chance = random.Random(7)
    good = [WHEN, "2026-03-08 02:30:00:000001 Z", "2024-02-29 00:00:00:999999 Z"]
    good += ["0001-01-01 00:00:00:000000 Z", "9999-12-31 23:59:59:999999 Z"]
    good += ["1883-11-18 12:03:58:000001 Z"]
    odd = ["", "Z", ".Z", "now", "2026-06-30", "2026-06-30T17:05:09Z", f"{WHEN}\n", "9" * 10**6]
    odd += ["0000-01-01 00:00:00:000000 Z", "2023-02-29 00:00:00:000000 Z"]
    odd += ["2026-06-30 24:00:00:000000 Z", "٢٠٢٦-06-30 17:05:09:123456 Z"]
    for _ in range(300):
        letters = list(chance.choice(good))
        letters[chance.randrange(len(letters))] = chance.choice("0123456789 -:.+ZT")
        odd.append("".join(letters))
    expected: dict[str, int | None] = dict.fromkeys([*good, *odd])
    for text in expected:
        with suppress(BadWireTime):
            since = parse_wire_time(text) - datetime(1970, 1, 1, tzinfo=UTC)
            expected[text] = since // since.resolution
    time = wire_time("text")
    written = F.when(time.isNotNull(), wire_text(time))

    again = [text if micros is not None else None for text, micros in expected.items()]

    for each in sessions(spark):
        frame = each.createDataFrame([(text,) for text in expected], "text string")
        found = frame.select(F.unix_micros(time), written).collect()

        assert [micros for micros, _ in found] == [*expected.values()]
        assert [text for _, text in found] == again
    assert 20 < sum(each is None for each in expected.values()) < len(expected) - 20


def test_the_columns_of_audited_and_failed_messages(spark: SparkSession) -> None:
    """
    Processing time is from start to end.

    Critical time begins when the message was sent or, if it was delayed, due.
    """
    audited = REQUEST | {
        "NServiceBus.ProcessingStarted": "2026-06-30 17:05:10:000001 Z",
        "NServiceBus.ProcessingEnded": "2026-06-30 17:05:10:250002 Z",
        "NServiceBus.ProcessingEndpoint": "Shop.Sales",
    }
    late: Headers = {"NServiceBus.DeliverAt": "2026-06-30 17:05:10:000000 Z"}
    bad: Headers = {"NServiceBus.ProcessingEnded": "yesterday", "NServiceBus.TimeSent": ""}

    plain_, delayed, unread, failed, poison = made(
        spark,
        [audited, audited | late, audited | bad, OLD, None],
        lambda json: [
            *audit(json=json),
            *failure(json=json),
            sent_at("headers", json=json).alias("sent"),
            deliver_at("headers", json=json).alias("due"),
        ],
    )

    names = ("processingTime", "criticalTime", "sent", "due")
    sent, due = (
        datetime(2026, 6, 30, 17, 5, 9, 123456, UTC),
        datetime(2026, 6, 30, 17, 5, 10, 0, UTC),
    )
    assert [plain_[name] for name in names] == [0.250001, 1.126546, sent, None]
    assert [delayed[name] for name in names] == [0.250001, 0.250002, sent, due]
    assert [unread[name] for name in names] == [None] * 4
    texts = [plain_[name] for name in ("processingEndpoint", "conversationId", "relatedTo")]
    assert texts == ["Shop.Sales", "conversation", "m-0"]
    assert [failed["failedQueue"], failed["timeOfFailure"]] == [QUEUE, sent]
    assert set(poison.values()) == {None}


# ---------------------------------------------------------------- sending


def typed(make: Callable[..., list[Column]], *to: str) -> Callable[..., list[Column]]:
    """A function with all arguments of a message."""
    return lambda *, json: make(
        F.lit("<done/>"),
        *to,
        message_type=f"Shop.Placed, Shop, {VERSION};Shop.IEvent",
        content_type="application/json",
        headers={"tenant": F.lit("blue"), "a.b": "c", "x": F.lit(None).cast("string")},
        json=json,
    )


def effect(intent: str, cause: str | None = None, **more: str) -> Headers:
    """Headers of a message that was sent for another one; for REQUEST, if no cause is named."""
    ids: Headers = dict.fromkeys(["NServiceBus.CorrelationId", "NServiceBus.RelatedTo"], cause)
    said: Headers = {f"NServiceBus.{name}": text for name, text in more.items()}
    said["NServiceBus.MessageIntent"] = intent
    return (ids if cause else CAUSED) | said


OWN: Headers = {
    "NServiceBus.EnclosedMessageTypes": f"Shop.Placed, Shop, {VERSION};Shop.IEvent",
    "NServiceBus.ContentType": "application/json",
    "tenant": "blue",
    "a.b": "c",
}
TOPICS = ["Shop.Placed", "Shop.IEvent"]
DONE, HERE, NOWHERE = {"body": "<done/>"}, {"id": ROW}, {"queue": None}
REPLY = partial(reply, "body")
WITHOUT = partial(forward, without=["none", "absent", *TRACE])
FAIL = partial(fail, "Shop.Bad", "ä" * 20_000, "error", endpoint="Lake")
LATER = partial(retry_later, "00:00:10", "Shop.Bad", "no", "error", most=3)
CUT: Headers = {f"{INFO}Message": "ä" * 16_384, "NServiceBus.ProcessingEndpoint": "Lake"}
SAGA: Headers = {"NServiceBus.OriginatingSagaId": "7", "NServiceBus.OriginatingSagaType": "Saga"}
LAST: Headers = {"NServiceBus.Retries.Timestamp": WHEN}
AGAIN = {"id": ROW, "queue": QUEUE, "delay": "00:00:10"}
ENDED = {"id": ROW, "queue": "error", "delay": None}
SUCCESS: Headers = {
    "ServiceControl.Retry.Successful": NOW,
    "ServiceControl.Retry.UniqueMessageId": GUID,
    "NServiceBus.ControlMessage": "True",
}


def retries(count: str | None, time: str = WHEN) -> Headers:
    """Headers of a message that was retried."""
    return {"NServiceBus.Retries": count, "NServiceBus.Retries.Timestamp": time}


@pytest.mark.parametrize(
    ("columns", "received", "headers", "more"),
    [
        (typed(reply), REQUEST, OWN | effect("Reply"), DONE | {"queue": '"public"."Shop.Web"'}),
        (typed(send, 'a"b'), REQUEST, OWN | effect("Send"), DONE | {"queue": 'a"b'}),
        (typed(publish), REQUEST, OWN | effect("Publish"), DONE | {"topics": TOPICS}),
        (REPLY, {"NServiceBus.MessageId": "m"}, effect("Reply", "m"), NOWHERE),
        (REPLY, {"NServiceBus.MessageId": ""}, effect("Reply", ROW), NOWHERE),
        (REPLY, None, effect("Reply", ROW), NOWHERE),
        (REPLY, SAGA, effect("Reply", ROW, SagaId="7", SagaType="Saga"), NOWHERE),
        (partial(forward, "audit"), REQUEST | OLD, REQUEST | OLD, HERE | {"queue": "audit"}),
        (forward, {}, {}, HERE | {"body": b""}),
        (WITHOUT, TRACE | MINE | {"none": None}, MINE, HERE),
        (return_to_source, REQUEST | OLD | retries("2"), REQUEST, HERE | {"queue": QUEUE}),
        (return_to_source, MINE, MINE, HERE | NOWHERE),
        (FAIL, MINE | OLD, MINE | FAILED | CUT, HERE | {"queue": "error"}),
        *((LATER, MINE | retries(n), MINE | retries("1", NOW), AGAIN) for n in (None, "", "0")),
        (LATER, retries("2"), retries("3", NOW), AGAIN),
        *((LATER, retries(n), FAILED | LAST, ENDED) for n in ("3", "9" * 11, "x", "-1")),
        (acknowledge_retries, RETRIED, SUCCESS, {"body": b"", "queue": "ack"}),
    ],
)
def test_a_function_makes_the_message_that_an_endpoint_would(
    spark: SparkSession, columns: Any, received: Headers | None, headers: Headers, more: Any
) -> None:
    """Headers follow the wire's rules. An unreadable count of retries fails the message."""
    assert made(spark, [received], columns) == [{"body": b"{}", "headers": headers} | more]


def test_a_failed_message_has_the_headers_of_a_real_one(spark: SparkSession) -> None:
    """Only the time, the machine and Data of .NET differ. `failure` reads the headers back."""
    whole: Headers = next(
        case.read for case in golden() if case.read and "NServiceBus.FailedQ" in case.read
    )
    added = ("NServiceBus.FailedQ", INFO, "NServiceBus.TimeOfFailure", "NServiceBus.Processing")
    mine = {n: t for n, t in whole.items() if not n.startswith((*added, "$.diagnostics.host"))}
    counts: Headers = {"NServiceBus.Retries": "3", "NServiceBus.FLRetries": "2"}
    names = ("ExceptionType", "Message", "Source", "StackTrace")
    kind, reason, source, trace = (str(whole[f"{INFO}{name}"]) for name in names)

    columns = partial(fail, kind, reason, source=source, stack_trace=trace)
    [row] = made(spark, [mine | counts], columns)
    [read] = made(spark, [whole], failure)

    of_net = {name: text for name, text in whole.items() if f"{INFO}Data." not in name}
    assert row["headers"] == of_net | MACHINE | {"NServiceBus.TimeOfFailure": NOW}
    assert len(str(MACHINE["$.diagnostics.hostid"])) == len(str(whole["$.diagnostics.hostid"]))
    assert [*read.values()][:3] == [whole["NServiceBus.FailedQ"], kind, reason]


def test_the_endpoint_of_a_failure_is_named_as_its_queue(spark: SparkSession) -> None:
    """It is the table of the canonical address of either database. FailedQ is the address."""
    names = {
        QUEUE: "Shop.Server",
        '"a"".""b"."say ""hi"""': 'say "hi"',
        "Shop.Orders@[dbo]@[shop]": "Shop.Orders",
        "[Orders]@[d@[bo]@[shop]": "[Orders]",
    }
    frame = spark.createDataFrame(
        [(ROW, {}, b"", 1, each) for each in names], messages(spark, [{}]).schema
    )

    found = [plain(row)["headers"] for row in frame.select(*fail("Shop.Bad", "no")).collect()]

    assert [each["NServiceBus.ProcessingEndpoint"] for each in found] == [*names.values()]
    assert [each["NServiceBus.FailedQ"] for each in found] == [*names]


def test_a_name_that_is_there_twice_fails_one_message_only(spark: SparkSession) -> None:
    """Any sender can write a name twice, and Spark's functions could fail on it."""
    texts = ['{"a":"1","a":"2","NServiceBus.FailedQ":"x","NServiceBus.FailedQ":"y"}', " {} ", ""]
    rows = [(ROW, text, b"", 7, QUEUE) for text in texts]
    frame = spark.createDataFrame(rows, SHAPE.format("string")).coalesce(1)

    for columns in (fail("T", "m", json=True), retry_later(1000, "T", "m", json=True)):
        found = [row.headers for row in frame.select(*columns).collect()]

        assert all(map(json.loads, found))
        assert json.loads(found[0])["a"] == "2"
        assert found[0].count("FailedQ") < 2


def test_a_failure_begins_a_trace_only_if_the_message_has_one(spark: SparkSession) -> None:
    """StartNewTrace is True for a message with a traceparent. Other messages keep theirs."""
    trace, own = "00-1-2-01", "NServiceBus.OpenTelemetry.StartNewTrace"
    received = messages(spark, [{}, {own: "False"}, {own: "False", "traceparent": trace}])

    for columns in (fail("T", "m"), retry_later(1000, "T", "m")):
        found = [plain(row)["headers"] for row in received.select(*columns).collect()]

        assert [each.get(own) for each in found] == [None, "False", "True"]


def test_messages_that_cannot_be_sent_on_raise_an_error(spark: SparkSession) -> None:
    """Headers are corrupt, or a message that ServiceControl did not return is acknowledged.

    `is_retried` selects the messages that can be acknowledged. ServiceControl fails a whole batch
    of answers if one of them has an id that is no GUID.
    """
    others = [{n: t for n, t in RETRIED.items() if n != left} for left in [*RETRIED][1:]]
    blank = RETRIED | {"ServiceControl.Retry.AcknowledgementQueue": ""}
    ids = ["order-7", "", GUID[:-1], f"{GUID}0", f"{GUID}\n", f" {GUID}", GUID.replace("-", "")]
    ids += [f"{{{GUID}}}", GUID.replace("a", "g"), GUID.replace("0", "\u0660")]
    forged = [RETRIED | {"ServiceControl.Retry.UniqueMessageId": each} for each in ids]
    corrupt = f"message {ROW} cannot be sent on: its headers are corrupt"
    for as_json in (False, True):
        poison = messages(spark, [REQUEST, None], as_json=as_json)
        asked = messages(spark, [RETRIED, *others, blank, *forged, None], as_json=as_json)
        author = messages(spark, [RETRIED, forged[0]], as_json=as_json)
        for frame, columns, reason in (
            (poison, forward(without="x", json=as_json), corrupt),
            (poison, return_to_source(json=as_json), corrupt),
            (poison, fail("T", "m", json=as_json), corrupt),
            (poison, retry_later(1, "T", "m", json=as_json), corrupt),
            (asked, acknowledge_retries(json=as_json), r"select messages by where\(is_retried"),
            (author, acknowledge_retries(json=as_json), r"select messages by where\(is_retried"),
        ):
            with pytest.raises(PySparkException, match=reason):
                frame.select(*columns).collect()

        assert asked.where(is_retried(json=as_json)).count() == 1


def test_what_cannot_be_meant_is_refused_at_once(spark: SparkSession) -> None:
    """An error is raised for a missing `json=True`, an unreadable delay, and a bad type."""
    with pytest.raises(AnalysisException, match="MAP"):
        messages(spark, [], as_json=True).select(message_type("headers"))
    with pytest.raises(AnalysisException, match="from_json"):
        messages(spark, []).select(*reply("body", json=True))
    with pytest.raises(BadTimeSpan, match="delay 'soon' cannot be read"):
        retry_later("soon", "T", "m")
    with pytest.raises(BadFrame, match="most is -1"):
        retry_later(1, "T", "m", most=-1)
    for build in (publish, send, reply):
        with pytest.raises(BadFrame, match=r"', Shop', with a blank name: expected a \.NET type"):
            build("body", message_type=", Shop")


def test_values_may_stand_in_each_row(spark: SparkSession) -> None:
    """They are an event's type and a delay. The received message may be an alias of a join."""
    frame = messages(spark, [REQUEST])
    joined = frame.alias("m").join(spark.createDataFrame([("x", "y")], "id string, body string"))
    kind = F.col("headers")["NServiceBus.EnclosedMessageTypes"]
    [event] = frame.select(*publish("body", message_type=kind)).collect()
    [later] = frame.select(*retry_later(F.expr("INTERVAL 10 SECONDS"), "T", "m")).collect()
    [same] = joined.select(*forward(received="m")).collect()

    assert [event.topics, later.delay] == [["Shop.PlaceOrder"], timedelta(seconds=10)]
    assert [plain(same)["headers"], same.id, same.body] == [REQUEST, ROW, b"{}"]


def test_the_page_lists_each_function_with_arguments_and_columns(spark: SparkSession) -> None:
    """None has the source's column `queue`, beside which the sink refuses the option topics."""
    rows = re.findall(r"^\| `(\w+)(?:\((.*?)\))?` \| (.*?) \|", PAGE, flags=re.MULTILINE)
    frame = messages(spark, [])
    lists = {"return_to_source": return_to_source(), "acknowledge_retries": acknowledge_retries()}
    lists |= {"reply": reply("body"), "send": send("body", "a"), "forward": forward("a")}
    lists |= {"publish": publish("body", message_type="Shop.Placed")}
    lists |= {"fail": fail("T", "m", "error"), "retry_later": retry_later(1, "T", "m")}
    for columns in lists.values():
        check_frame(dict(frame.select(*columns).dtypes), queue=False, topics=True)

    assert {name for name, *_ in rows} == {*functions.__all__}
    for name, arguments, cell in rows:
        columns = re.findall(r"`(\w+)`", cell)
        if name in lists:
            given = [*filter(None, arguments.split(", ")), "received", "json"]
            assert given == [*inspect.signature(getattr(functions, name)).parameters]
            assert ["body", "headers", *columns] == frame.select(*lists[name]).columns
        elif name in {"audit", "failure"}:
            assert columns == frame.select(*getattr(functions, name)()).columns


def test_a_replayed_batch_fails_the_same_messages_with_the_same_headers(queue: SparkQueue) -> None:
    """The time of failure is that of the batch. Each message is in the error queue once."""
    errors = queue.another("error")
    queue.fill(0, 20)
    calls: list[list[str]] = []

    def send(frame: DataFrame, batch: int) -> None:
        calls.append([row["headers"] for row in frame.collect()])
        queue.send_by_column(frame, txnAppId="split", txnVersion=batch)
        if len(calls) == 1:
            raise RuntimeError("killed after the write")

    failed = queue.stream().load().select(*fail("Shop.Bad", "no", errors.name))
    with pytest.raises(StreamingQueryException, match="killed after the write"):
        queue.finish(failed.writeStream.foreachBatch(send))
    queue.finish(failed.writeStream.foreachBatch(send))

    first, again = calls
    assert first == again
    assert sorted(errors.ids()) == sorted(numbered(0, 20))
