"""The option asReceived: what was read is passed on as it is."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType, TimestampType
from spark.stand import Queue
from wire import cases

from sqlq_spark.datasource.write import BatchWriter
from sqlq_spark.errors import BadFrame, BadMessage, BadOption
from sqlq_spark.options import SinkOptions
from sqlq_spark.send import frame
from sqlq_spark.send import sender as messages
from sqlq_spark.wire.headers import MESSAGE_ID

if TYPE_CHECKING:
    from conftest import Place

NOW = datetime(2026, 6, 30, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
EXPIRES = pa.timestamp("us", "UTC")


def sent(columns: dict[str, Any], **raw: str) -> list[dict[str, Any]]:
    """The rows of the chunks that a frame becomes. The sender's clock stands at NOW."""
    given = {"url": "postgresql:///", "queue": "q", "asReceived": "true", **raw}
    options = SinkOptions.parse(given)
    batch = pa.record_batch({"body": [b""] * len(next(iter(columns.values()))), **columns})
    sender = messages.Sender(options=options, partition=0, clock=lambda: NOW)
    return [row for chunk in sender.chunks([batch]) for row in chunk.to_pylist()]


def test_headers_stay_byte_for_byte() -> None:
    """Headers of every writer keep their white space, escapes and order."""
    texts = [
        case.headers
        for case in cases()
        if case.headers and MESSAGE_ID in case.headers and not case.poison
    ]
    texts.append(f' {{ "{MESSAGE_ID}" : "m" }}\n')
    assert [row["headers"] for row in sent({"headers": texts})] == texts


def test_a_replaced_value_that_is_nested_deeply_is_left_out() -> None:
    """The parser that finds a repeated name stops at a depth that the headers may have."""
    nested = "[" * 999 + "]" * 999

    (row,) = sent({"headers": [f'{{"a":{nested},"a":"x","{MESSAGE_ID}":"m"}}']})

    assert row["headers"] == f'{{"a":"x","{MESSAGE_ID}":"m"}}'


def test_a_message_without_an_id_gets_its_rows() -> None:
    """The row's id is written before the other headers, and nothing else is added."""
    texts = ["{}", '{"a":"b\\/c"}', "", None, f'{{"{MESSAGE_ID}":null}}']
    columns = {"headers": texts, "id": [*"01234"], "correlationId": ["c"] * 5}
    pairs = pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string()))

    found = [row["headers"] for row in sent(columns) + sent({"headers": pairs, "id": ["5"]})]

    start = f'{{"{MESSAGE_ID}":'
    assert found == [
        *(f'{start}"0"}}', f'{start}"1","a":"b\\/c"}}', f'{start}"2"}}', f'{start}"3"}}'),
        *(texts[4], f'{start}"5","a":"b"}}'),
    ]
    (row,) = sent({"seq": [1]})
    assert [*json.loads(row["headers"])] == [MESSAGE_ID]


def test_what_expires_lives_as_long_as_it_had_left() -> None:
    """The rest is exact to the millisecond. What has expired stays expired."""
    left = [timedelta(minutes=1, microseconds=1999), timedelta(0), timedelta(-1), timedelta(1000)]
    left.append(datetime(9999, 12, 30, tzinfo=UTC) - NOW)
    expires = pa.array([*(NOW + each for each in left), None], EXPIRES)

    rows = sent({"expires": expires, "timeToBeReceived": ["00:00:07"] * 6})

    years = frame.LONGEST_LEFT
    assert [row["lifetime"] for row in rows] == [60_001, 0, 0, 86_400_000_000, years, 7000]
    assert sent({"expires": expires}, asReceived="false")[0]["lifetime"] is None
    assert sent({"seq": [1]})[0]["lifetime"] is None


def test_a_life_is_by_the_databases_clock(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an executor's wrong clock messages would live longer, or be dropped."""
    queue = Queue(place, "orders")
    queue.create()
    options = {**queue.options, "asReceived": "true", "delivery": "atLeastOnce"}
    schema = StructType().add("body", BinaryType()).add("expires", TimestampType())
    writer = BatchWriter(SinkOptions.parse(options), schema)
    hour = datetime.now(UTC) + HOUR
    clock = type("Late", (datetime,), {"now": classmethod(lambda _, _tz: hour - 3 * HOUR)})
    monkeypatch.setattr(messages, "datetime", clock)  # two hours behind the database

    columns = {"body": [b"{}"], "expires": pa.array([hour], EXPIRES)}
    writer.write(iter([pa.record_batch(columns)]))

    left = f"SELECT extract(epoch FROM expires - now() AT TIME ZONE 'UTC')::int FROM {queue.name}"
    assert 3500 < place.sql(left)[0][0] <= 3600


def test_what_could_not_be_passed_on_is_refused() -> None:
    """Poison, an `expires` that is no time, and options without an effect are refused."""
    with pytest.raises(BadMessage, match="headers is no JSON object"):
        sent({"headers": ["{}", "[]"]})
    types = {"body": "binary", "expires": "string"}
    with pytest.raises(BadFrame, match="column expires is string: expected timestamp"):
        frame.check_frame(types, queue=True, as_received=True)
    for option in ("messageType", "contentType", "originatingEndpoint", "replyToAddress"):
        with pytest.raises(BadOption, match=r"asReceived is 'true'.*said.* here"):
            sent({"seq": [1]}, **{option: "said"})
