"""Failures in columns: which are alike, and what is known of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sqlq_spark.jobs.triage import failures as triage
from sqlq_spark.wire.headers import (
    ENCLOSED_MESSAGE_TYPES,
    EXCEPTION_INFO,
    FAILED_Q,
    MESSAGE_ID,
    TIME_OF_FAILURE,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def said(message: str, kind: str = "Bad") -> str:
    """Headers without a stack."""
    return failed(ExceptionType=kind, Message=message)


def digests(spark: SparkSession, texts: list[str | None]) -> list[str]:
    """The digest of each."""
    frame = spark.createDataFrame([(text,) for text in texts], "headers string")
    return [row[0] for row in frame.select(triage.digest("headers", json=True)).collect()]


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
    [said('Order "a" took 17 ms'), said('Order "b" took 3 ms'), said("Order 'c' took 3 ms")],
    [said(f"at 0x7fff {GUID}"), said(f"at 0xdeadBEEF {GUID.upper()}")],
    [said("no\nstack", "Worse"), said("no\nstack", "Worse")],
    [failed(), "{}", "", "[]", "poison", None],
]


def test_failures_of_one_kind_have_one_digest_and_others_another(spark: SparkSession) -> None:
    """Whatever line, build, order, machine or language; but not whatever stack or exception."""
    texts = [text for group in ALIKE for text in group]

    found = iter(digests(spark, texts))

    groups = [{next(found) for _ in group} for group in ALIKE]
    assert [len(group) for group in groups] == [1] * len(ALIKE)
    assert len(set.union(*groups)) == len(ALIKE)
    assert all(len(each) == 16 for group in groups for each in group)


def test_a_digest_of_hostile_text_is_quick(spark: SparkSession) -> None:
    """No text makes the patterns walk over it again and again."""
    size = 300_000
    texts = [" " * size, " a" * size, f"   at {'x' * size}", f"   at {'x(' * size}", "\n" * size]
    hostile = [failed(ExceptionType="x", StackTrace=text, Message="'" * size) for text in texts]

    assert len(digests(spark, [*hostile, said("0x" * size), said("0" * size)])) == 7


def test_groups_tell_what_their_failures_have_in_common(spark: SparkSession) -> None:
    """How many, since when, until when, the last message, all queues and types; also of poison."""
    rows = [
        ("1", "m", "09", "a", "Shop.B, Shop;Shop.IA, Shop"),
        ("2", None, "11", "b", None),
        ("3", "n", "10", "a", "Shop.A"),
    ]
    received = [
        (
            row,
            failed(
                **{
                    TIME_OF_FAILURE: f"2026-06-30 {hour}:00:00:000001 Z",
                    FAILED_Q: queue,
                    **({MESSAGE_ID: message} if message else {}),
                    **({ENCLOSED_MESSAGE_TYPES: types} if types else {}),
                },
                ExceptionType="Bad",
                Message=f"'{row}'",
            ),
            b"",
            7,
            '"public"."error"',
        )
        for row, message, hour, queue, types in rows
    ]
    received.append(("4", "[]", b"poison", 8, '"public"."error"'))
    kinds = "id string, headers string, body binary, seq bigint, queue string"
    table = triage.failures(spark.createDataFrame(received, kinds))

    found = {row["failures"]: row for row in triage.groups(table).collect()}

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


def test_what_no_endpoint_could_read_has_nowhere_to_go(spark: SparkSession) -> None:
    """Spark reads it; it would go back as another message."""
    sound = f'{{"{FAILED_Q}":"orders","n":null}}'
    poison = [f'{{"{FAILED_Q}":"orders","n":7}}', sound + " more", sound.replace("null", "{}")]
    rows = [(text, text, b"", 1, "e") for text in [sound, *poison]]
    kinds = "id string, headers string, body binary, seq bigint, queue string"

    table = triage.failures(spark.createDataFrame(rows, kinds)).collect()

    assert {row["headers"]: row["failedQueue"] for row in table} == {
        sound: "orders",
        **dict.fromkeys(poison),
    }
