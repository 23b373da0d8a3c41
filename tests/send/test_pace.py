"""Protection of endpoints: the law of the rate, what a wait logs, and what rows name."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from sqlq_spark.datasource.write import BatchWriter
from sqlq_spark.errors import BadOption
from sqlq_spark.options import SinkOptions
from sqlq_spark.send.sender import CHUNK_DELAYS, CHUNK_ROW, CHUNK_TOPICS
from sqlq_spark.send.throttle import (
    REMINDER,
    Names,
    Reason,
    names_of_chunk,
    names_of_options,
    record_names,
    seconds_left,
    wait_while,
)

BODY = StructType().add("body", "binary")
NOWHERE = ("queue", None)  # named by the options
BATCHES = st.lists(
    st.tuples(st.integers(0, 10**6), st.floats(0, 1e4)),  # messages, seconds until it is ready
    min_size=1,
    max_size=20,
)


@given(BATCHES, st.integers(1, 10**6))
def test_never_more_than_the_rate_and_one_batch(
    batches: list[tuple[int, float]], rate: int
) -> None:
    """In any span of time; and no batch waits longer than the one before it pays for."""
    assert seconds_left(1000, -86400.0, 10) == 100.0  # a clock that was set back
    assert seconds_left(1000, 86400.0, 10) == 0.0
    now, last = 0.0, (0, 0.0)
    sent: list[tuple[float, int]] = []
    for messages, ready in batches:
        now += ready
        left = seconds_left(last[0], now - last[1], rate)
        assert 0 <= left <= last[0] / rate
        now += left
        last = (messages, now)
        sent.append((now, messages))

    for first, (began, _) in enumerate(sent):
        for stop in range(first, len(sent)):
            total = sum(messages for _, messages in sent[first : stop + 1])
            allowed = rate * (sent[stop][0] - began) + sent[stop][1]
            assert total <= allowed * (1 + 1e-9) + 1e-3


def sink(**raw: str) -> SinkOptions:
    """Options of a sink."""
    return SinkOptions.parse({"url": "postgresql://", **raw})


def wait_long(end: float) -> None:
    """Wait for a queue that is above its limit for so many seconds."""
    slept = [0.0]

    def look() -> Reason | None:
        return Reason(f"at {sum(slept):.0f}", 1.0) if sum(slept) < end else None

    wait_while(look, "sink x", clock=lambda: sum(slept), sleep=slept.append)


def test_a_wait_logs_its_begin_its_end_and_a_line_every_ten_minutes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not each look; without a wait there is no line."""
    caplog.set_level(logging.INFO, logger="sqlq_spark")
    for end in (0, 2 * REMINDER + 30):
        wait_long(end)

    assert [record.getMessage() for record in caplog.records] == [
        "sink x waits: at 0",
        "sink x still waits, 600 s: at 600",
        "sink x still waits, 1200 s: at 1200",
        "sink x waited 1230.0 s and goes on",
    ]


def test_what_the_rows_of_a_chunk_name() -> None:
    """Queues of rows that are sent, topics of rows that are published; no row that is delayed."""
    rows: list[dict[str, object]] = [
        {"queue": None, "topics": None, "delay": None},
        {"queue": "a", "topics": None, "delay": None},
        {"queue": "a", "topics": None, "delay": None},
        {"queue": None, "topics": ["T", "I"], "delay": None},
        {"queue": "late", "topics": None, "delay": 1000},
    ]
    whole = [{"headers": "{}", "body": b"", "lifetime": None} | each for each in rows]
    fields = [*CHUNK_ROW, CHUNK_TOPICS, pa.field("delay", CHUNK_DELAYS["delay"].type)]
    chunk = pa.Table.from_pylist(whole, schema=pa.schema(fields))

    assert names_of_chunk(chunk) == {NOWHERE, ("queue", "a"), ("topic", "T"), ("topic", "I")}
    assert names_of_chunk(chunk.slice(1, 2).select(CHUNK_ROW.names)) == {("queue", "a")}
    recorded: Names = set()
    assert list(record_names([chunk.slice(0, 1), chunk.slice(3)], recorded)) != []
    assert recorded == {NOWHERE, ("topic", "T"), ("topic", "I")}
    assert names_of_options(sink(queue="q")) == {NOWHERE}
    assert names_of_options(sink(topics="T,I")) == {("topic", "T"), ("topic", "I")}
    assert names_of_options(sink()) == set()


def test_a_rate_where_nothing_could_wait_is_refused() -> None:
    """Tasks that insert directly share no count; a nameless write is one transaction."""
    with pytest.raises(BadOption, match="exactlyOnce with maxMessagesPerSecond, or pauseAbove"):
        sink(delivery="atLeastOnce", maxMessagesPerSecond="5")
    named = sink(queue="q", txnAppId="a", txnVersion="1", maxMessagesPerSecond="5")
    BatchWriter(named, BODY)
    assert sink(pauseAboveBacklog="0").pause_above == 0  # waits until the queue is empty
    for wrong in ({"maxMessagesPerSecond": "0"}, {"pauseAboveBacklog": "-1"}):
        with pytest.raises(BadOption, match="expected a whole number"):
            sink(**wrong)
    with pytest.raises(BadOption, match="maxMessagesPerSecond is '5': expected a stream, or a wr"):
        BatchWriter(sink(queue="q", maxMessagesPerSecond="5"), BODY)
