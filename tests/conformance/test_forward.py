"""Forwarding: what was delayed for another queue leaves with the receive, once, or is not lost."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from servers import only

from sqlq_spark.wire.address import QueueAddress
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
    from .transport import Stored


@dataclass
class Post:
    """A queue, and others to forward to."""

    bench: Bench

    def address(self, table: str) -> QueueAddress:
        """A table beside the queue."""
        return QueueAddress(table, self.bench.dotnet.schema)

    def queue(self, table: str) -> QueueAddress:
        """Make a queue."""
        self.bench.dotnet.create(self.address(table))
        return self.address(table)

    def send(self, table: str, body: bytes | None = b"x", *, lives: int | None = None) -> None:
        """Let a message for another table be moved into our queue."""
        self.send_to(self.bench.address(table), body, lives=lives)

    def send_to(
        self, destination: str | None, body: bytes | None, *, lives: int | None = None
    ) -> None:
        """Let a message for an address be moved into our queue."""
        text = dumps({"a": "b", FORWARD_DESTINATION: destination})
        self.bench.dotnet.send(self.bench.queue, text, body, lives=lives)

    def receive(self, *, errors: bool = True) -> pa.Table:
        """Receive all of the queue as one task."""
        where = self.bench.errors if errors else None
        return self.bench.receive(self.bench.task(self.bench.new_stream(), error_address=where))

    def rows(self, table: str) -> list[Stored]:
        """What a queue holds."""
        return self.bench.dotnet.rows(self.address(table))

    def bodies(self, table: str) -> list[bytes | None]:
        """The bodies that a queue holds."""
        return self.bench.bodies(self.address(table))

    def failures(self) -> dict[bytes | None, dict[str, str]]:
        """Headers of what the error queue holds, by body."""
        return {row.body: json.loads(row.headers or "") for row in self.rows("error")}


@pytest.fixture
def post(bench: Bench) -> Post:
    """Give a queue and an error queue."""
    return Post(bench)


def receipt(post: Post) -> list[tuple[Any, ...]]:
    """What the receipts say."""
    return post.bench.dotnet.state_rows("receipt", "messages, expired, diverted, forwarded")


@pytest.mark.parametrize("receipts", [True, False])
def test_a_message_for_another_queue_is_forwarded_with_the_receive(
    post: Post, *, receipts: bool
) -> None:
    """Once, without the header, without expiry, under an id of its own; the rest is delivered."""
    post.queue("billing")
    post.bench.dotnet.send(post.bench.queue, '{"n":"1"}', b"first")
    post.send("billing", b"forward")
    post.send("billing", None)
    post.send("billing", b"expired", lives=-1)
    post.bench.dotnet.send(post.bench.queue, '{"n":"2"}', b"last")
    before = {row.id for row in post.rows("orders")}
    task = post.bench.task(
        post.bench.new_stream() if receipts else None, error_address=post.bench.errors
    )

    rows, again = post.bench.receive(task), post.bench.receive(task)

    assert rows["body"].to_pylist() == [b"first", b"last"]
    assert rows["headers"].to_pylist() == ['{"n":"1"}', '{"n":"2"}']
    assert again.equals(rows) if receipts else again.num_rows == 0
    found = post.rows("billing")
    assert [row.body for row in found] == [b"forward", b""]
    assert [(row.headers, row.expires) for row in found] == [('{"a":"b"}', None)] * 2
    assert before.isdisjoint(row.id for row in found)
    assert post.rows("orders") == post.rows("error") == []
    assert receipt(post) == ([(2, 1, 0, 2)] if receipts else [])


def test_a_message_that_belongs_here_only_loses_the_header(post: Post) -> None:
    """However its address is spelled; null stands for none."""
    schema = post.bench.dotnet.schema
    spelled = {
        "postgresql": [f"{schema}.orders", f'"{schema}".orders'],
        "sqlserver": [f"orders@{schema}", f"[orders]@[{schema}]"],
    }
    own = [post.bench.printed, *spelled[post.bench.dotnet.dialect], None]
    for at, address in enumerate(own):
        post.send_to(address, b"%d" % at)

    rows = post.receive()

    assert rows["body"].to_pylist() == [b"0", b"1", b"2", b"3"]
    assert rows["headers"].to_pylist() == ['{"a":"b"}'] * 4
    assert receipt(post) == [(4, 0, 0, 0)]


@pytest.mark.parametrize(
    "name",
    [
        "NServiceBus.SqlServer.\\u0046orwardDestination",
        "NServiceBus.SqlServer.ForwardDestinatio\\u006e",
        "".join(f"\\u{ord(letter):04x}" for letter in FORWARD_DESTINATION),
    ],
)
def test_a_destination_under_a_name_in_hex_is_one(post: Post, name: str) -> None:
    """A foreign writer may spell any character so; its neighbours that only look alike stay."""
    post.queue("billing")
    other = '{"a":"caf\\u0065, List\\u00601"}'
    post.bench.dotnet.send(post.bench.queue, other, b"here")
    text = dumps({"n": post.bench.address("billing")}).replace('"n"', f'"{name}"')
    post.bench.dotnet.send(post.bench.queue, text, b"forward")
    post.send("billing", b"plain")

    rows = post.receive()

    assert rows["headers"].to_pylist() == [other]
    found = [(row.body, row.headers) for row in post.rows("billing")]
    assert found == [(b"forward", "{}"), (b"plain", '{"a":"b"}')]


def test_a_forwarded_message_is_counted_apart(post: Post) -> None:
    """`diverted` is what went to the error queue, and a reason for an alarm."""
    post.queue("billing")
    post.send("billing")
    post.send("absent")
    post.bench.dotnet.send(post.bench.queue, "[]", b"poison")
    loop = post.bench.loop(errorQueue=post.bench.address("error"))
    end, _ = post.bench.batch(loop)

    loop.latest(end)

    last = loop.report()["lastBatch"]
    counted = {"messages": 0, "diverted": 2, "forwarded": 1, "emptyTasks": 0}
    assert {name: last[name] for name in counted} == counted
    assert post.bench.dotnet.state_rows("stream", "diverted, forwarded") == [(2, 1)]


def test_headers_that_speak_of_it_are_left_as_they_are(post: Post) -> None:
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
        post.bench.dotnet.send(post.bench.queue, text)

    rows = post.receive(errors=False)

    assert rows["headers"].to_pylist() == texts


def failing(post: Post) -> dict[str, str]:
    """Make destinations that cannot be sent to: address → what the error says of it."""
    dba, address = post.bench.dotnet.dba, post.bench.address
    dba.refuse(post.queue("refuses"))
    dba.no_queues(post.address("archive"), post.address("view"), post.address("orders"))
    missing = (address("absent"), address("archive"), address("view"), dba.shapes.missing_schema)
    return {
        **dict.fromkeys(missing, "this login cannot insert into a queue"),
        address("refuses"): "not today",
        **dba.shapes.no_address,
    }


def test_what_cannot_be_forwarded_goes_to_the_error_queue(post: Post) -> None:
    """Its headers say where it should have gone, and why not; the rest of the batch goes on."""
    post.queue("billing")
    reasons = failing(post)
    for address in reasons:
        post.send_to(address, address.encode())
    post.send("billing", b"good")
    post.send("orders", b"here")

    rows = post.receive()

    assert rows["body"].to_pylist() == [b"here"]
    assert post.bodies("billing") == [b"good"]
    assert post.rows("orders") == []
    found = post.failures()
    assert found.keys() == {address.encode() for address in reasons}
    for address, reason in reasons.items():
        headers = found[address.encode()]
        assert (headers[FAILED_Q], headers["a"]) == (address, "b")
        assert FORWARD_DESTINATION not in headers
        assert reason in headers[f"{EXCEPTION_INFO}Message"]
        assert headers[f"{EXCEPTION_INFO}ExceptionType"].startswith("sqlq_spark.errors.")
        parse_wire_time(headers[TIME_OF_FAILURE])
    assert receipt(post) == [(1, 0, len(reasons), 1)]


def test_without_an_error_queue_it_is_delivered_as_it_is(
    post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    """Its header says where it should have gone; a warning says why it did not."""
    reasons = failing(post)
    for address in reasons:
        post.send_to(address, address.encode())
    sent = [row.headers for row in post.rows("orders")]

    rows = post.receive(errors=False)

    assert rows["body"].to_pylist() == [address.encode() for address in reasons]
    assert rows["headers"].to_pylist() == sent
    assert caplog.text.count("delivered here, as there is no errorQueue") == 1
    assert f"{len(reasons)} delayed messages cannot be forwarded" in caplog.text
    assert f"and {len(reasons) - 5} more destinations" in caplog.text


@only("postgresql", "constraints that are checked at the commit")
def test_a_destination_that_refuses_at_the_commit_goes_to_the_error_queue(post: Post) -> None:
    """And does not fail the batch for ever."""
    post.bench.dotnet.dba.refuse_late(post.queue("late"))
    post.queue("billing")
    post.send("late", b"refused")
    post.send("billing", b"good")
    post.send("orders", b"here")

    rows = post.receive()

    assert rows["body"].to_pylist() == [b"here"]
    assert post.bodies("billing") == [b"good"]
    headers = post.failures()[b"refused"]
    assert headers[FAILED_Q] == post.bench.address("late")
    assert "not today" in headers[f"{EXCEPTION_INFO}Message"]


@pytest.mark.parametrize("errors", [True, False])
def test_many_false_addresses_are_looked_up_at_once(post: Post, *, errors: bool) -> None:
    """An attacker's many addresses do not make as many statements, also to put them aside."""
    for at in range(200):
        post.send(f"absent {at}")
    post.bench.watched = True
    where = post.bench.errors if errors else None
    task = post.bench.task(post.bench.new_stream(), error_address=where)

    rows = post.bench.receive(task, post.bench.open("watched"))

    assert (rows.num_rows, len(post.rows("error"))) == ((0, 200) if errors else (200, 0))
    assert len(post.bench.said) < 20


def test_a_target_that_is_locked_holds_the_receive_up_for_a_moment_only(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages go to the error queue; all locked targets together are waited for once."""
    monkeypatch.setattr("sqlq_spark.receive.forward.PATIENCE", 0.2)
    locked = [post.queue(f"locked {at}") for at in range(3)]
    post.queue("billing")
    for queue in locked:
        post.send(queue.table, queue.table.encode())
    post.send("billing", b"good")
    post.send("orders", b"here")

    with ExitStack() as stack:
        for queue in locked:
            stack.enter_context(post.bench.dotnet.locked(queue))
        rows = post.receive()

    assert rows["body"].to_pylist() == [b"here"]
    assert post.bodies("billing") == [b"good"]
    for headers in post.failures().values():
        assert headers[f"{EXCEPTION_INFO}ExceptionType"].endswith(".DestinationLocked")
        assert "locked" in headers[FAILED_Q]
    assert receipt(post) == [(1, 0, 3, 1)]
