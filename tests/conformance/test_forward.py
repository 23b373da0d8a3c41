"""Forwarding: what was delayed for another queue leaves with the receive, once, or is not lost."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from servers import only

from sqlq_spark.wire.headers import (
    EXCEPTION_INFO,
    FAILED_Q,
    FORWARD_DESTINATION,
    TIME_OF_FAILURE,
    dumps,
    parse_wire_time,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from .conftest import Bench


def send(bench: Bench, table: str, body: bytes | None = b"x", *, lives: int | None = None) -> None:
    """Let a message for another table be moved into our queue."""
    send_to(bench, bench.address(table), body, lives=lives)


def send_to(
    bench: Bench, destination: str | None, body: bytes | None, *, lives: int | None = None
) -> None:
    """Let a message for an address be moved into our queue."""
    text = dumps({"a": "b", FORWARD_DESTINATION: destination})
    bench.dotnet.send(bench.queue, text, body, lives=lives)


def receive(bench: Bench, *, errors: bool = True) -> pa.Table:
    """Receive all of the queue as one task."""
    where = bench.errors if errors else None
    return bench.receive(bench.task(bench.new_stream(), error_address=where))


def receipt(bench: Bench) -> list[tuple[Any, ...]]:
    """What the receipts say."""
    return bench.dotnet.state_rows("receipt", "messages, expired, diverted, forwarded")


@pytest.mark.parametrize("receipts", [True, False])
def test_a_message_for_another_queue_is_forwarded_with_the_receive(
    bench: Bench, *, receipts: bool
) -> None:
    """Once, without the header, without expiry, under an id of its own; the rest is delivered."""
    bench.another("billing")
    bench.dotnet.send(bench.queue, '{"n":"1"}', b"first")
    send(bench, "billing", b"forward")
    send(bench, "billing", None)
    send(bench, "billing", b"expired", lives=-1)
    bench.dotnet.send(bench.queue, '{"n":"2"}', b"last")
    before = {row.id for row in bench.dotnet.rows(bench.queue)}
    task = bench.task(bench.new_stream() if receipts else None, error_address=bench.errors)

    rows, again = bench.receive(task), bench.receive(task)

    assert rows["body"].to_pylist() == [b"first", b"last"]
    assert rows["headers"].to_pylist() == ['{"n":"1"}', '{"n":"2"}']
    assert again.equals(rows) if receipts else again.num_rows == 0
    found = bench.dotnet.rows(bench.beside("billing"))
    assert [row.body for row in found] == [b"forward", b""]
    assert [(row.headers, row.expires) for row in found] == [('{"a":"b"}', None)] * 2
    assert before.isdisjoint(row.id for row in found)
    assert bench.dotnet.rows(bench.queue) == bench.dotnet.rows(bench.errors) == []
    assert receipt(bench) == ([(2, 1, 0, 2)] if receipts else [])


def test_a_message_that_belongs_here_only_loses_the_header(bench: Bench) -> None:
    """However its address is spelled; null stands for none."""
    schema = bench.dotnet.schema
    spelled = {
        "postgresql": [f"{schema}.orders", f'"{schema}".orders'],
        "sqlserver": [f"orders@{schema}", f"[orders]@[{schema}]"],
    }
    own = [bench.printed, *spelled[bench.dotnet.dialect], None]
    for at, address in enumerate(own):
        send_to(bench, address, b"%d" % at)

    rows = receive(bench)

    assert rows["body"].to_pylist() == [b"0", b"1", b"2", b"3"]
    assert rows["headers"].to_pylist() == ['{"a":"b"}'] * 4
    assert receipt(bench) == [(4, 0, 0, 0)]


@pytest.mark.parametrize(
    "name",
    [
        "NServiceBus.SqlServer.\\u0046orwardDestination",
        "NServiceBus.SqlServer.ForwardDestinatio\\u006e",
        "".join(f"\\u{ord(letter):04x}" for letter in FORWARD_DESTINATION),
    ],
)
def test_a_destination_under_a_name_in_hex_is_one(bench: Bench, name: str) -> None:
    """A foreign writer may spell any character so; its neighbours that only look alike stay."""
    bench.another("billing")
    other = '{"a":"caf\\u0065, List\\u00601"}'
    bench.dotnet.send(bench.queue, other, b"here")
    text = dumps({"n": bench.address("billing")}).replace('"n"', f'"{name}"')
    bench.dotnet.send(bench.queue, text, b"forward")
    send(bench, "billing", b"plain")

    rows = receive(bench)

    assert rows["headers"].to_pylist() == [other]
    found = [(row.body, row.headers) for row in bench.dotnet.rows(bench.beside("billing"))]
    assert found == [(b"forward", "{}"), (b"plain", '{"a":"b"}')]


def test_a_forwarded_message_is_counted_apart(bench: Bench) -> None:
    """`diverted` is what went to the error queue, and a reason for an alarm."""
    bench.another("billing")
    send(bench, "billing")
    send(bench, "absent")
    bench.dotnet.send(bench.queue, "[]", b"poison")
    loop = bench.loop(errorQueue=bench.address("error"))
    end, _ = bench.batch(loop)

    loop.latest(end)

    last = loop.report()["lastBatch"]
    counted = {"messages": 0, "diverted": 2, "forwarded": 1, "emptyTasks": 0}
    assert {name: last[name] for name in counted} == counted
    assert bench.dotnet.state_rows("stream", "diverted, forwarded") == [(2, 1)]


def test_headers_that_speak_of_it_are_left_as_they_are(bench: Bench) -> None:
    """Byte for byte: the word in a value or another name, poison, and what has no headers."""
    texts = [
        '{"a" : "ForwardDestination"}',
        '{"NServiceBus.SqlServer.ForwardDestinations":"\\"x\\""}',
        '["NServiceBus.SqlServer.ForwardDestination"]',
        '{"NServiceBus.SqlServer.ForwardDestination":1}',
        '{"NServiceBus.SqlServer.ForwardDestination":"\\"x\\"","n":1}',
        "",
    ]
    for text in texts:
        bench.dotnet.send(bench.queue, text)

    rows = receive(bench, errors=False)

    assert rows["headers"].to_pylist() == texts


def failing(bench: Bench) -> dict[str, str]:
    """Make destinations that cannot be sent to: address → what the error says of it."""
    dba, address = bench.dotnet.dba, bench.address
    dba.refuse(bench.another("refuses"))
    dba.no_queues(bench.beside("archive"), bench.beside("view"), bench.beside("orders"))
    missing = (address("absent"), address("archive"), address("view"), dba.shapes.missing_schema)
    return {
        **dict.fromkeys(missing, "this login cannot insert into a queue"),
        address("refuses"): "not today",
        **dba.shapes.no_address,
    }


def test_what_cannot_be_forwarded_goes_to_the_error_queue(bench: Bench) -> None:
    """Its headers say where it should have gone, and why not; the rest of the batch goes on."""
    bench.another("billing")
    reasons = failing(bench)
    for address in reasons:
        send_to(bench, address, address.encode())
    send(bench, "billing", b"good")
    send(bench, "orders", b"here")

    rows = receive(bench)

    assert rows["body"].to_pylist() == [b"here"]
    assert bench.bodies("billing") == [b"good"]
    assert bench.dotnet.rows(bench.queue) == []
    found = bench.failures()
    assert found.keys() == {address.encode() for address in reasons}
    for address, reason in reasons.items():
        headers = found[address.encode()]
        assert (headers[FAILED_Q], headers["a"]) == (address, "b")
        assert FORWARD_DESTINATION not in headers
        assert reason in headers[f"{EXCEPTION_INFO}Message"]
        assert headers[f"{EXCEPTION_INFO}ExceptionType"].startswith("sqlq_spark.errors.")
        parse_wire_time(headers[TIME_OF_FAILURE])
    assert receipt(bench) == [(1, 0, len(reasons), 1)]


def test_without_an_error_queue_it_is_delivered_as_it_is(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Its header says where it should have gone; a warning says why it did not."""
    reasons = failing(bench)
    for address in reasons:
        send_to(bench, address, address.encode())
    sent = [row.headers for row in bench.dotnet.rows(bench.queue)]

    rows = receive(bench, errors=False)

    assert rows["body"].to_pylist() == [address.encode() for address in reasons]
    assert rows["headers"].to_pylist() == sent
    assert caplog.text.count("delivered here, as there is no errorQueue") == 1
    assert f"{len(reasons)} delayed messages cannot be forwarded" in caplog.text
    assert f"and {len(reasons) - 5} more destinations" in caplog.text


@only("postgresql", "constraints that are checked at the commit")
def test_a_destination_that_refuses_at_the_commit_goes_to_the_error_queue(bench: Bench) -> None:
    """And does not fail the batch for ever."""
    bench.dotnet.dba.refuse_late(bench.another("late"))
    bench.another("billing")
    send(bench, "late", b"refused")
    send(bench, "billing", b"good")
    send(bench, "orders", b"here")

    rows = receive(bench)

    assert rows["body"].to_pylist() == [b"here"]
    assert bench.bodies("billing") == [b"good"]
    headers = bench.failures()[b"refused"]
    assert headers[FAILED_Q] == bench.address("late")
    assert "not today" in headers[f"{EXCEPTION_INFO}Message"]


@pytest.mark.parametrize("errors", [True, False])
def test_many_false_addresses_are_looked_up_at_once(bench: Bench, *, errors: bool) -> None:
    """An attacker's many addresses do not make as many statements, also to put them aside."""
    for at in range(200):
        send(bench, f"absent {at}")
    bench.watched = True
    where = bench.errors if errors else None
    task = bench.task(bench.new_stream(), error_address=where)

    rows = bench.receive(task, bench.open("watched"))

    assert (rows.num_rows, len(bench.dotnet.rows(bench.errors))) == (
        (0, 200) if errors else (200, 0)
    )
    assert len(bench.said) < 20


def test_a_target_that_is_locked_holds_the_receive_up_for_a_moment_only(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages go to the error queue; all locked targets together are waited for once."""
    monkeypatch.setattr("sqlq_spark.receive.forward.PATIENCE", 0.2)
    locked = [bench.another(f"locked {at}") for at in range(3)]
    bench.another("billing")
    for queue in locked:
        send(bench, queue.table, queue.table.encode())
    send(bench, "billing", b"good")
    send(bench, "orders", b"here")

    with ExitStack() as stack:
        for queue in locked:
            stack.enter_context(bench.dotnet.locked(queue))
        rows = receive(bench)

    assert rows["body"].to_pylist() == [b"here"]
    assert bench.bodies("billing") == [b"good"]
    for headers in bench.failures().values():
        assert headers[f"{EXCEPTION_INFO}ExceptionType"].endswith(".DestinationLocked")
        assert "locked" in headers[FAILED_Q]
    assert receipt(bench) == [(1, 0, 3, 1)]
