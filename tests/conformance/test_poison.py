"""
Poison in the error queue, as ServiceControl reads it there.

ServiceControl tries a row whose headers it cannot read for ever, and the failures of all endpoints
wait behind it. It knows a failure by MessageId and ProcessingEndpoint. It needs FailedQ, and groups
by the type of the exception. A retry removes the headers of the failure and sends the row back to
FailedQ, under a new row id.
"""

from __future__ import annotations

import json
import logging
import uuid

import pyarrow as pa
import pytest
from servers import only
from strict_headers import loads

from sqlq_spark.admin import doctor
from sqlq_spark.admin.messages import list_messages
from sqlq_spark.wire.headers import FAULT_PREFIXES, parse_wire_time

from .conftest import Bench, bodies
from .test_wire import MAPS, expected, put, read

FAILURE = {
    "NServiceBus.MessageId",
    "NServiceBus.EnclosedMessageTypes",
    "NServiceBus.FailedQ",
    "NServiceBus.ExceptionInfo.ExceptionType",
    "NServiceBus.ExceptionInfo.Message",
    "NServiceBus.TimeOfFailure",
    "NServiceBus.ProcessingEndpoint",
    "NServiceBus.ProcessingMachine",
    "$.diagnostics.hostid",
    "$.diagnostics.hostdisplayname",
}
CORRUPT = "SqlQueue.CorruptHeaders"


def divert(bench: Bench) -> None:
    """Receive all that waits, with an error queue; nothing of it is delivered."""
    rows = bench.receive(bench.task(bench.new_stream(), error_address=bench.error_queue))
    assert bodies(rows) == []
    assert bench.waiting_seqs() == []


def service_control_retries(bench: Bench) -> None:
    """Send back what the error queue holds, as ServiceControl does."""
    for row in bench.dotnet.rows(bench.error_queue):
        headers = {
            name: value
            for name, value in json.loads(row.headers or "").items()
            if not name.startswith(FAULT_PREFIXES)
        }
        headers["ServiceControl.Retry.UniqueMessageId"] = str(uuid.uuid4())
        headers["ServiceControl.Retry.AcknowledgementQueue"] = "error"
        bench.dotnet.send(bench.queue, json.dumps(headers), row.body)
    bench.dotnet.dba.empty(bench.error_queue)


def test_poison_gets_headers_that_can_be_read(bench: Bench) -> None:
    """They are a failure's headers, and one with the old text, which the reason does not quote."""
    text = 'not json "\\/\x01\u2028\ufeffé🚀'
    row = bench.dotnet.send(bench.queue, text, b"\x00body", lives=60_000)

    divert(bench)

    (moved,) = bench.dotnet.rows(bench.error_queue)
    assert (moved.id, moved.expires, moved.body) == (row, None, b"\x00body")
    headers = loads(moved.headers)
    assert headers is not None
    assert headers.keys() == {*FAILURE, CORRUPT}
    assert headers["NServiceBus.MessageId"] == str(row)
    assert headers["NServiceBus.EnclosedMessageTypes"] == "SqlQueue.Poison"
    assert headers["NServiceBus.FailedQ"] == bench.connection.canonical(bench.queue)
    assert headers["NServiceBus.ProcessingEndpoint"] == "orders"
    assert headers["NServiceBus.ExceptionInfo.ExceptionType"] == "SqlQueue.Poison"
    assert "not json" not in str(headers["NServiceBus.ExceptionInfo.Message"])
    parse_wire_time(str(headers["NServiceBus.TimeOfFailure"]))
    assert headers[CORRUPT] == text
    assert bench.dotnet.state_rows("receipt", "messages, diverted") == [(0, 1)]


def test_poison_goes_to_the_error_queue_and_nothing_else_does(bench: Bench) -> None:
    """
    A row keeps its id and body, and its text becomes a header.

    It gets no expiry, and is counted.
    """
    rows = [case for case in put(bench, None, elsewhere=False) if not case.expired]
    poison = [case for case in rows if case.poison]

    tables = [bench.receive(bench.task(bench.new_stream(), error_address=bench.error_queue))]

    assert read(tables, MAPS) == expected(case for case in rows if not case.poison)
    moved = bench.dotnet.rows(bench.error_queue)
    assert [
        (row.id, row.expires, (loads(row.headers) or {})[CORRUPT], row.body) for row in moved
    ] == [(case.id, None, case.headers, case.body) for case in poison]
    counted = [(len(rows) - len(poison), len(poison))]
    assert bench.dotnet.state_rows("receipt", "messages, diverted") == counted


def test_for_a_reader_of_the_error_queue_it_is_an_ordinary_row(bench: Bench) -> None:
    """A browse shows the new headers. A stream without an error queue delivers the row."""
    bench.dotnet.send(bench.queue, "[]", b"poison")
    divert(bench)

    (shown,) = list_messages(bench.connection, bench.error_queue, limit=9)
    task = bench.task(bench.new_stream(), queue=bench.error_queue)
    delivered = bench.receive(task)

    assert shown.corrupt_headers is None
    assert shown.headers is not None
    assert shown.headers[CORRUPT] == "[]"
    assert json.loads(delivered["headers"][0].as_py()) == shown.headers


def test_doctor_calls_it_poison(bench: Bench) -> None:
    """`doctor` counts it together with messages whose headers cannot be read."""
    bench.dotnet.send(bench.queue, "[]", b"poison")
    divert(bench)
    bench.dotnet.send(bench.error_queue, "[]", b"of an endpoint")

    found = doctor.run_all_checks(bench.connection, [bench.error_queue])

    (poison,) = [each for each in found if each.name == "poison"]
    assert poison.found.startswith("2 of 2 messages at its head cannot be read (poison)")


def test_poison_that_comes_back_goes_there_again(bench: Bench) -> None:
    """It keeps its MessageId and its old text, however often ServiceControl retries it."""
    row = bench.dotnet.send(bench.queue, "[]", b"poison")
    divert(bench)
    for _ in range(2):
        before = bench.error_queue_headers()[b"poison"]
        service_control_retries(bench)
        returned = bench.dotnet.rows(bench.queue)[0]

        divert(bench)

        after = bench.error_queue_headers()[b"poison"]
        assert returned.id != row
        added = {
            "ServiceControl.Retry.UniqueMessageId",
            "ServiceControl.Retry.AcknowledgementQueue",
        }
        assert after.keys() == {*FAILURE, CORRUPT, *added}
        assert after[CORRUPT] == "[]"
        assert after["NServiceBus.MessageId"] == str(row)
        same = FAILURE - {"NServiceBus.TimeOfFailure"}
        assert {name: after[name] for name in same} == {name: before[name] for name in same}


def test_poison_in_an_error_queue_that_is_read_stays_as_it_is(bench: Bench) -> None:
    """A stream may read `error` and divert to operators. FailedQ is where the row failed first."""
    row = bench.dotnet.send(bench.queue, "[]", b"poison")
    divert(bench)
    before = bench.dotnet.rows(bench.error_queue)
    operators = bench.create_queue("operators")

    task = bench.task(bench.new_stream(), queue=bench.error_queue, error_address=operators)
    assert bench.receive(task).num_rows == 0

    (after,) = bench.dotnet.rows(operators)
    assert (after.id, after.headers, after.body) == (row, before[0].headers, b"poison")


def test_a_row_that_says_it_is_poison_goes_there_too(bench: Bench) -> None:
    """Anyone may write such a row. Without a MessageId it gets the id of its row."""
    text = (
        '{"NServiceBus.EnclosedMessageTypes":"SqlQueue.Poison","NServiceBus.Retries":"2","a":"b"}'
    )
    row = bench.dotnet.send(bench.queue, text, b"forged")

    divert(bench)

    headers = bench.error_queue_headers()[b"forged"]
    assert headers.keys() == {*FAILURE, "a"}
    assert headers["NServiceBus.MessageId"] == str(row)


@pytest.mark.parametrize(
    ("letter", "many", "more"), [("\x01", 170_000, 5000), ("x", 1_046_000, 2500)]
)
def test_headers_that_become_too_large_stay_as_they_are(
    bench: Bench, caplog: pytest.LogCaptureFixture, letter: str, many: int, more: int
) -> None:
    """Escapes make a text six times as long. The log says that ServiceControl cannot read it."""
    (width,) = bench.connection.stored_bytes(pa.array(["x"])).to_pylist()
    text = letter * (many // width)
    longer = text + letter * (more // width)
    bench.dotnet.send(bench.queue, text, b"fits")
    bench.dotnet.send(bench.queue, longer, b"large")

    with caplog.at_level(logging.WARNING):
        divert(bench)

    found = {row.body: row.headers for row in bench.dotnet.rows(bench.error_queue)}
    assert json.loads(found[b"fits"] or "")[CORRUPT] == text
    assert found[b"large"] == longer
    assert "1 poison messages keep their headers" in caplog.text


@only("sqlserver", "a text with half of a surrogate pair")
def test_a_lone_surrogate_becomes_a_replacement_character(bench: Bench) -> None:
    """SQL Server stores any UTF-16 as text."""
    bench.dotnet.dba.on(
        bench.queue,
        "INSERT INTO {queue} (Id, Recoverable, Headers, Body) "
        "VALUES (NEWID(), 1, N'[' + NCHAR(0xD83D), 0x01)",
    )

    divert(bench)

    assert bench.error_queue_headers()[b"\x01"][CORRUPT] == "[\ufffd"


@only("postgresql", "an id that must be unique")
def test_poison_whose_id_is_in_the_error_queue_gets_a_new_one(bench: Bench) -> None:
    """The row that is there already stays. The MessageId is the id that the moved row had."""
    row = bench.dotnet.send(bench.queue, "[]", b"second")
    bench.dotnet.send(bench.error_queue, "{}", b"first", row=row)

    bench.receive(bench.task(bench.new_stream(), error_address=bench.error_queue))

    first, second = bench.dotnet.rows(bench.error_queue)
    assert (first.id, first.body) == (row, b"first")
    assert second.body == b"second"
    assert second.id != row
    assert json.loads(second.headers or "")["NServiceBus.MessageId"] == str(row)
