"""Failures in columns: which are alike, and their groups."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark.jobs import error_triage as triage
from sqlq_spark.wire.headers import (
    ENCLOSED_MESSAGE_TYPES,
    EXCEPTION_INFO,
    FAILED_Q,
    MESSAGE_ID,
    TIME_OF_FAILURE,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TRACE = """System.InvalidOperationException: Order "{order}" is unknown
 ---> System.TimeoutException: after {order}
   at Shop.Db.Get(Guid id) in {place}/Db.cs:line {line}
   --- End of inner exception stack trace ---
   {at} Shop.Sales.Handler.<Handle>d__{number}.MoveNext() in {place}/Handler.cs:line {line}
   {at} Shop.Sales.<>c__DisplayClass{number}_0.<Run>b__{number}(Func`2 next)
"""
SAME = {"order": "a1", "place": "/src", "line": "42", "number": "5", "at": "at"}


def failed(**headers: str | None) -> str:
    """Headers of a failed message."""
    names = {"ExceptionType", "Message", "StackTrace"}
    whole = {(EXCEPTION_INFO if name in names else "") + name: headers[name] for name in headers}
    return json.dumps(whole)


def trace(kind: str = "Bad", **parts: str) -> str:
    """Headers with a stack."""
    text = TRACE.format(**SAME | parts)
    return failed(ExceptionType=kind, Message=f"Order {parts} is unknown", StackTrace=text)


def without_stack(message: str, kind: str = "Bad") -> str:
    """Headers without a stack."""
    return failed(ExceptionType=kind, Message=message)


def received(spark: SparkSession, *headers: str) -> DataFrame:
    """The failures of messages with these headers, their ids `1`, `2` and so on."""
    rows = [(str(at), text, b"", 7, '"public"."error"') for at, text in enumerate(headers, 1)]
    kinds = "id string, headers string, body binary, seq bigint, queue string"
    return triage.failures(spark.createDataFrame(rows, kinds))


def digests(spark: SparkSession, texts: list[str | None]) -> list[str]:
    """The digest of each."""
    frame = spark.createDataFrame([(text,) for text in texts], "headers string")
    return [row[0] for row in frame.select(triage.digest()).collect()]


GUID = "0f6f8e9b-5f0a-4b55-8a54-b2a100c1d0f4"
ALIKE: list[list[str | None]] = [
    [
        trace(),
        trace(order=GUID),
        trace(line="7"),
        trace(place="C:\\\\build\\\\17"),
        trace(number="12"),
        trace(at="bei"),
    ],
    [trace("Worse")],
    [failed(ExceptionType="Bad", StackTrace="   at Shop.Other() in x.cs:line 1\n")],
    [failed(ExceptionType="Bad", StackTrace="   at Shop.Other(Int32 n)\n")],
    [
        without_stack('Order "a" took 17 ms'),
        without_stack('Order "b" took 3 ms'),
        without_stack("Order 'c' took 3 ms"),
    ],
    [without_stack(f"at 0x7fff {GUID}"), without_stack(f"at 0xdeadBEEF {GUID.upper()}")],
    [without_stack("no\nstack", "Worse"), without_stack("no\nstack", "Worse")],
    [failed(), "{}", "", "[]", "poison", None],
]


def test_failures_of_one_kind_have_one_digest_and_others_another(spark: SparkSession) -> None:
    """Line, build, order, machine and language do not count; stack and exception do."""
    texts = [text for group in ALIKE for text in group]

    found = iter(digests(spark, texts))

    groups = [{next(found) for _ in group} for group in ALIKE]
    assert [len(group) for group in groups] == [1] * len(ALIKE)
    assert len(set.union(*groups)) == len(ALIKE)
    assert all(len(each) == 16 for group in groups for each in group)


def test_a_digest_of_hostile_text_is_quick(spark: SparkSession) -> None:
    """No text makes the patterns backtrack."""
    size = 300_000
    texts = [" " * size, " a" * size, f"   at {'x' * size}", f"   at {'x(' * size}", "\n" * size]
    hostile = [failed(ExceptionType="x", StackTrace=text, Message="'" * size) for text in texts]

    assert (
        len(digests(spark, [*hostile, without_stack("0x" * size), without_stack("0" * size)])) == 7
    )


def test_a_group_has_what_its_failures_have_in_common(spark: SparkSession) -> None:
    """Their number, times, last message, queues and types; poison is a group, too."""
    rows = [
        ("m", "09", "a", "Shop.B, Shop;Shop.IA, Shop"),
        (None, "11", "b", None),
        ("n", "10", "a", "Shop.A"),
    ]
    named = {MESSAGE_ID: 0, ENCLOSED_MESSAGE_TYPES: 3}
    texts = [
        failed(
            **{TIME_OF_FAILURE: f"2026-06-30 {row[1]}:00:00:000001 Z", FAILED_Q: row[2]},
            **{name: row[at] for name, at in named.items() if row[at]},
            ExceptionType="Bad",
            Message=f"'{number}'",
        )
        for number, row in enumerate(rows, 1)
    ]
    table = received(spark, *texts, "[]")

    grouped = table.groupBy("digest").agg(*map(F.expr, triage.GROUPS))
    found = {row["failures"]: row for row in grouped.collect()}

    assert [row[0] for row in table.select("messageId").collect()] == ["m", "2", "n", "4"]
    group = found[3].asDict()
    assert str(group.pop("firstSeen")) == "2026-06-30 09:00:00.000001"
    assert str(group.pop("lastSeen")) == "2026-06-30 11:00:00.000001"
    assert group.pop("digest") == table.first()["digest"]  # type: ignore[index]
    assert group == {
        "failures": 3,
        "returned": 0,
        "exceptionType": "Bad",
        "sampleMessage": "'2'",
        "failedQueues": ["a", "b"],
        "messageTypes": ["Shop.A", "Shop.B", "Shop.IA"],
    }
    assert found[1]["exceptionType"] is None
    assert found[1]["messageTypes"] == []


def test_a_message_that_no_endpoint_can_read_has_no_failed_queue(spark: SparkSession) -> None:
    """Spark could parse it, and would return another message."""
    sound = f'{{"{FAILED_Q}":"orders","n":null}}'
    poison = [f'{{"{FAILED_Q}":"orders","n":7}}', sound + " more", sound.replace("null", "{}")]

    table = received(spark, sound, *poison).collect()

    assert {row["headers"]: row["failedQueue"] for row in table} == {
        sound: "orders",
        **dict.fromkeys(poison),
    }
