"""Messages larger than maxMessageBytes: moved by the server, whatever else happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sqlq_spark.errors import MessageTooLarge
from sqlq_spark.receive import poison

if TYPE_CHECKING:
    from typing import Any

    from sqlq_spark.receive.task import Task

    from .conftest import Bench

BIG = b"x" * 5000
COUNTS = "messages, expired, diverted"


def task(bench: Bench, **limits: Any) -> Task:
    """Give a task as a plan makes it whose sample held a large message."""
    given: dict[str, Any] = {
        "max_message_bytes": 1000,
        "bytes_each": 5000 / poison.SAMPLED,
        "error_address": bench.errors,
    }
    return bench.task(bench.new_stream(), **given | limits)


def test_large_messages_go_to_the_error_queue_and_the_others_are_received(bench: Bench) -> None:
    """As they are, under their ids, and counted as diverted; one that expired is gone."""
    sent = [
        bench.dotnet.send(bench.queue, '{"a":"b"}', body, lives=lives)
        for body, lives in ((b"1", None), (BIG, None), (b"3", None), (BIG, -1), (BIG, None))
    ]

    with bench.dotnet.hold(bench.queue, [5]):
        rows = bench.receive(task(bench))

    assert rows["body"].to_pylist() == [b"1", b"3"]
    moved = [(row.id, row.headers, row.body) for row in bench.dotnet.rows(bench.errors)]
    assert moved == [(sent[1], '{"a":"b"}', BIG)]
    assert bench.seqs() == [5]  # another consumer holds it
    assert bench.dotnet.state_rows("receipt", COUNTS) == [(2, 1, 1)]


def test_a_message_of_just_the_limit_is_received(bench: Bench) -> None:
    """Headers and body together; one byte more is too much."""
    bench.dotnet.send(bench.queue, "{}", b"x" * 998)
    bench.dotnet.send(bench.queue, "{}", b"x" * 999)

    rows = bench.receive(task(bench, bytes_each=500.0))

    assert rows["seq"].to_pylist() == [1]
    assert [len(row.body or b"") for row in bench.dotnet.rows(bench.errors)] == [999]


def test_without_an_error_queue_nothing_is_taken(bench: Bench) -> None:
    """The error names queue, seq and size."""
    for body in (b"1", BIG):
        bench.dotnet.send(bench.queue, "{}", body)

    with pytest.raises(MessageTooLarge) as caught:
        bench.receive(task(bench, error_address=None))

    facts = {"queue": bench.printed, "seq": 2, "size": 5002, "largest": 1000}
    assert vars(caught.value) == facts
    assert bench.seqs() == [1, 2]


def test_it_is_looked_for_only_with_a_reason(bench: Bench) -> None:
    """A task that got all it was planned for, or whose sample was light, runs no statement more."""
    bench.watched = True
    connection = bench.open()
    cases: list[dict[str, Any]] = [{"messages": 1}, {"bytes_each": 10.0}, {"bytes": 3}]
    for at, limits in enumerate(cases):
        bench.dotnet.send(bench.queue, "{}", b"1")
        bench.receive(task(bench, task=at, **limits), connection)

    assert "find_large" not in bench.said


def test_a_stream_comes_to_it_in_time(bench: Bench) -> None:
    """Passed over at first, behind many others, it becomes the lowest; then the sample shows it."""
    bench.dotnet.send_many(bench.queue, [b"x"] * 300, lives=None)
    bench.dotnet.send(bench.queue, body=BIG)
    bench.dotnet.send_many(bench.queue, [b"x"] * 10, lives=None)
    loop = bench.loop(
        errorQueue=bench.address("error"), maxMessageBytes="1000", maxMessagesPerTrigger="100"
    )

    assert len(bench.drain(loop)) == 310
    assert [row.body for row in bench.dotnet.rows(bench.errors)] == [BIG]
