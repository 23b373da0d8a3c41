"""Rows, frames and options that cannot be sent, and the rate limit of a sink."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from sqlq_spark.datasource.write import BatchWriter
from sqlq_spark.errors import BadFrame, BadMessage, BadOption
from sqlq_spark.options import SinkOptions
from sqlq_spark.send.chunk import CHUNK_DELAYS, CHUNK_ROW, CHUNK_TOPICS
from sqlq_spark.send.frame import COLUMNS, check_frame
from sqlq_spark.send.throttle import (
    DestinationNames,
    names_of_chunk,
    names_of_options,
    record_names,
    seconds_left,
)
from sqlq_spark.wire.headers import dumps
from sqlq_spark.wire.postgresql import PostgreSQLNames

from .frames import frame, headers, maps, moments, sender

TOO_LATE = 253_370_764_800_000_000  # the year 9999
NOT_UTF8 = pa.Array.from_buffers(  # as Spark casts bytes: unchecked
    pa.string(), 2, pa.array([b"{}", b'{"a":"\xff"}'], pa.binary()).buffers()
)
NO_QUEUE = "queue is null, topics too, and the sink has no option for either"
NOWHERE: dict[str, Any] = {"queue": None}  # a sink without the option queue


ONE_MS = timedelta(milliseconds=1)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"headers": pa.array(["{}", '{"a":1}'])}, "headers is no JSON object of texts"),
    ({"headers": NOT_UTF8}, "headers is not UTF-8"),
    ({"body": pa.array([b"x", None], pa.binary())}, "body is null: send zero bytes instead"),
    ({"timeToBeReceived": [0, 2**31]}, "timeToBeReceived is too long"),
    ({"timeToBeReceived": ["00:00:00", "soon"]}, "'soon' cannot be read: expected [d.]hh:mm:ss"),
    ({"delay": [0, -1]}, "delay is negative: expected at least 0 and"),
    ({"delay": [0, 31_536_000_000_001]}, "(365,000 days)"),
    ({"deliverAt": moments(0, TOO_LATE)}, "deliverAt is outside of the years 1900 to 9998"),
    ({"delay": [None, 1], "deliverAt": moments(0, 0)}, "it has both deliverAt and delay"),
    (
        {"deliverAt": moments(0, 0), "timeToBeReceived": [None, "00:01:00"]},
        "the transport cannot delay a message that expires",
    ),
    ({"topics": [None, ["Shop.Placed", None]]}, "topics holds a null"),
    ({"topics": [["fine"], ["fine", ""]]}, "topics holds a blank topic"),
    ({"topics": [["fine"], ["a;b"]]}, "topics holds a topic with ';': give each type as"),
]


PUBLISHED = NOWHERE | {"topics": "Shop.Placed"}
NOT_FITTING: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"queue": ["a", None]}, NOWHERE, "queue is null"),
    ({"topics": [["fine"], []]}, NOWHERE, NO_QUEUE),
    ({"delay": [None, 1]}, {"timeToBeReceived": "00:01:00"}, "option timeToBeReceived"),
    ({"topics": [["A"], ["A"]], "queue": [None, "orders"]}, NOWHERE, "both a queue"),
    ({"topics": [["A"], ["A"]], "delay": [None, ONE_MS]}, NOWHERE, "it has topics and a delay: "),
    ({"deliverAt": [None, ONE_MS]}, PUBLISHED, "topics and a deliverAt: the transport"),
]


def check_refused(batch: pa.RecordBatch, reason: str, **raw: Any) -> None:
    """Make sure that the second row is refused, by its number in the partition."""
    with pytest.raises(BadMessage) as caught:
        sender(**raw).messages(batch, 10)
    assert str(caught.value).startswith("row 11 of partition 3 cannot be sent: ")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("given", "raw", "reason"),
    [*((given, {}, reason) for given, reason in REFUSED), *NOT_FITTING],
)
def test_a_bad_row_is_refused_by_its_number(
    given: dict[str, Any], raw: dict[str, Any], reason: str
) -> None:
    """A row that does not fit the options is refused too. The number is right in a slice too."""
    batch = frame(2, **given)

    check_refused(batch, reason, **raw)
    check_refused(pa.concat_batches([batch.slice(0, 1), batch]).slice(1), reason, **raw)


@pytest.mark.parametrize("column", ["body", "headers"])
def test_a_message_that_cannot_be_sent_is_refused_before_anything_is_sent(
    column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its headers count too; the default ones have some 400 bytes."""
    monkeypatch.setattr(PostgreSQLNames, "largest_message", 2000)
    small, large = b"x" * 1000, b"x" * 2000
    given = {
        "body": {"body": pa.array([small, large])},
        "headers": {"headers": maps({"a": small.decode()}, {"a": large.decode()})},
    }

    check_refused(frame(2, **given[column]), "headers and body have more than 2000 bytes")


TYPE, CONTROL = "NServiceBus.EnclosedMessageTypes", "NServiceBus.ControlMessage"
TYPED: dict[str, Any] = {"messageType": "Shop.Placed"}


@pytest.mark.parametrize(
    ("own", "raw", "refused"),
    [
        ({TYPE: "Shop.Placed", CONTROL: "False"}, {}, True),
        ({"tenant": "blue"}, TYPED, True),
        ({}, PUBLISHED, True),
        ({}, {}, False),
        ({CONTROL: "true"}, TYPED, False),
        ({TYPE: "Shop.Placed", "NServiceBus.TimeSent": "another sender's"}, {}, False),
        ({TYPE: "Shop.Placed"}, {"asReceived": "true"}, False),
    ],
)
def test_a_typed_message_without_a_body_is_refused(
    own: dict[str, str], raw: dict[str, Any], *, refused: bool
) -> None:
    """No endpoint would run a handler for it. The first row has a body, and the second none."""
    for column in (maps(own, own), pa.array([dumps(own)] * 2)):
        batch = frame(2, body=pa.array([b"x", b""], pa.binary()), headers=column)
        if refused:
            check_refused(batch, f"the header {CONTROL} with the value True", **raw)
        else:
            assert sender(**raw).messages(batch, 10)["body"].to_pylist() == [b"x", b""]


def unchecked(*texts: bytes | None) -> pa.Array:
    """Make a column of texts as Spark hands over bytes that it cast to a string."""
    octets = pa.array(texts, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(texts), octets.buffers(), octets.null_count)


def unchecked_map(name: bytes, value: bytes | None) -> pa.Array:
    """Make a map for each of two rows. Only the second has a name or value like these."""
    names = unchecked(b"tenant", b"region", name)
    return pa.MapArray.from_arrays([0, 1, 3], names, unchecked(b"blue", None, value))


# texts that Spark casts from bytes: no UTF-8, half of a surrogate pair, a longer form of NUL
NOT_TEXTS = {"bytes": b"A\xffB", "surrogate": b"A\xed\xa0\x80", "overlong": b"\xc0\x80"}
TEXT_COLUMNS: dict[str, Any] = {
    **dict.fromkeys(
        ["id", "correlationId", "replyToAddress", "timeToBeReceived", "delay", "queue"],
        lambda text: unchecked(None, text),
    ),
    "headers (name)": lambda text: unchecked_map(text, b"blue"),
    "headers (null)": lambda text: unchecked_map(text, None),
    "headers (value)": lambda text: unchecked_map(b"zone", text),
    "topics": lambda text: pa.ListArray.from_arrays([0, 1, 3], unchecked(b"A", b"B", text)),
}
FAULTS = {
    "headers (name)": "a name in headers is not UTF-8",
    "headers (null)": "a name in headers is not UTF-8",
    "headers (value)": "a value in headers is not UTF-8",
    "topics": "topics holds a text that is not UTF-8",
}


@pytest.mark.parametrize("text", NOT_TEXTS.values(), ids=NOT_TEXTS)
@pytest.mark.parametrize("column", TEXT_COLUMNS)
def test_a_text_that_is_not_utf_8_is_refused_by_its_row_and_column(
    column: str, text: bytes
) -> None:
    """Every column of texts is tried, also in a slice of a larger batch."""
    name = column.split(maxsplit=1)[0]
    batch = frame(2, **{name: TEXT_COLUMNS[column](text)})
    reason = FAULTS.get(column, f"{column} is not UTF-8")
    option = {"queue": None if name in {"queue", "topics"} else "orders"}

    check_refused(batch, reason, **option)
    check_refused(pa.concat_batches([batch.slice(0, 1), batch]).slice(1), reason, **option)


def test_every_column_of_texts_is_tried() -> None:
    """A body holds bytes, and headers as one text are read as JSON."""
    texts = {name for name, (_, kinds) in COLUMNS.items() if "string" in str(kinds)}

    assert texts - {"body"} == {column.split()[0] for column in TEXT_COLUMNS}


@pytest.mark.parametrize("text", NOT_TEXTS.values(), ids=NOT_TEXTS)
@pytest.mark.parametrize("column", TEXT_COLUMNS)
def test_with_undeliverable_a_text_that_is_not_utf_8_costs_its_row(
    column: str, text: bytes
) -> None:
    """The chunk says why. The row keeps its body and the headers that can be read."""
    name = column.split(maxsplit=1)[0]
    batch = frame(2, **{name: TEXT_COLUMNS[column](text)})
    queue = None if name in {"queue", "topics"} else "orders"

    for part in (batch, pa.concat_batches([batch.slice(0, 1), batch]).slice(1)):
        chunk = sender(queue=queue, undeliverable="error").messages(part, 10)

        first, second = chunk["fault"].to_pylist()
        assert first is None
        reason = FAULTS.get(column, f"{column} is not UTF-8")
        assert json.loads(second) == {"partition": 3, "row": 11, "reason": reason}
        assert chunk["body"].to_pylist() == [b"x", b"x"]
        chunk.validate(full=True)
        if name == "headers":
            before, own = headers(chunk)
            assert [before["tenant"], own["region"], "\ufffd" in str(own)] == ["blue", None, True]


def test_a_column_that_has_no_effect_is_not_read() -> None:
    """The option `queue` overrides the column."""
    batch = frame(1, queue=unchecked(b"\xff"))

    chunk = sender(undeliverable="error").messages(batch, 0)

    assert [chunk["queue"].to_pylist(), chunk.column_names] == [[None], CHUNK_ROW.names]


@pytest.mark.parametrize(
    ("types", "reason"),
    [
        ({}, "it has no column body (binary or string); it has none"),
        ({"body": "int"}, "column body is int: expected binary or string"),
        ({"body": "string", "headers": "map<string,int>"}, "column headers is map<string,int>: "),
        ({"body": "binary", "topics": "string"}, "column topics is string: expected array<string>"),
        (
            {"body": "binary", "delay": "interval year to month"},
            'column delay is interval year to month: expected string "hh:mm:ss", interval day to',
        ),
        ({"body": "binary", "deliverAt": "date"}, "column deliverAt is date: expected time"),
    ],
)
def test_a_frame_is_refused_with_what_fits(types: dict[str, str], reason: str) -> None:
    """A month has no length, and a time without its zone could be any moment."""
    with pytest.raises(BadFrame) as caught:
        check_frame(types, queue=True)

    assert str(caught.value).startswith(f"the DataFrame cannot be sent: {reason}")


def test_a_frame_without_one_destination_is_refused() -> None:
    """There is neither option nor column, a read would be published, or retries have the option."""
    check_frame({"body": "binary"}, queue=False, topics=True)
    with pytest.raises(BadFrame, match="give the option queue, or a column queue"):
        check_frame({"body": "binary"}, queue=False)
    read = {"body": "binary", "queue": "string", "seq": "bigint"}
    with pytest.raises(BadFrame, match=r"would override the option topics: drop the column queue"):
        check_frame(read, queue=False, topics=True)
    check_frame(read, queue=True)
    # retries would go to the error queue's delayed table, where nobody moves them
    retries = {"body": "binary", "queue": "string", "delay": "int"}
    with pytest.raises(BadFrame, match="drop the option, and name the error queue by to"):
        check_frame(retries, queue=True)
    check_frame(retries, queue=False)
    check_frame({**retries, "seq": "bigint"}, queue=True)  # a read that is delayed


BODY = StructType().add("body", "binary")
NAMED: tuple[str, None] = ("queue", None)  # by the options


@pytest.mark.parametrize(("seconds", "left"), [(0, 100), (30, 70), (101, 0), (-86400, 100)])
def test_a_batch_pays_for_the_one_before_it(seconds: float, left: float) -> None:
    """The wait follows the rate, less the time passed. A clock may be set back."""
    assert seconds_left(1000, seconds, 10) == left


def sink(**raw: str) -> SinkOptions:
    """Options of a sink."""
    return SinkOptions.parse({"url": "postgresql://", **raw})


def test_what_the_rows_of_a_chunk_name() -> None:
    """Sent rows name queues, and published rows name topics. Delayed rows name nothing."""
    rows: list[dict[str, object]] = [
        {"queue": None},
        {"queue": "a"},
        {"topics": ["T", "I"]},
        {"queue": "late", "delay": 1000},
    ]
    whole = [{"headers": "{}", "body": b""} | each for each in rows]
    fields = [*CHUNK_ROW, CHUNK_TOPICS, pa.field("delay", CHUNK_DELAYS["delay"].type)]
    chunk = pa.Table.from_pylist(whole, schema=pa.schema(fields))

    topics = {("topic", "T"), ("topic", "I")}
    assert names_of_chunk(chunk) == {NAMED, ("queue", "a"), *topics}
    assert names_of_chunk(chunk.slice(1, 1).select(CHUNK_ROW.names)) == {("queue", "a")}
    recorded: DestinationNames = set()
    assert list(record_names([chunk.slice(0, 1), chunk.slice(2)], recorded)) != []
    assert recorded == {NAMED, *topics}
    assert names_of_options(sink(queue="q")) == {NAMED}
    assert names_of_options(sink(topics="T,I")) == topics
    assert names_of_options(sink()) == set()


def test_a_rate_where_nothing_could_wait_is_refused() -> None:
    """Tasks that insert directly share no count, and a nameless write is one transaction."""
    with pytest.raises(BadOption, match="exactlyOnce with maxMessagesPerSecond, or pauseAbove"):
        sink(delivery="atLeastOnce", maxMessagesPerSecond="5")
    BatchWriter(sink(queue="q", txnAppId="a", txnVersion="1", maxMessagesPerSecond="5"), BODY)
    with pytest.raises(BadOption, match="maxMessagesPerSecond is '5': expected writeStream, or"):
        BatchWriter(sink(queue="q", maxMessagesPerSecond="5"), BODY)
