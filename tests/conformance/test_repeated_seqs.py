"""
Tables in which several messages have one seq: none is lost, or taken for another one.

SQL Server's transport creates no unique index on RowVersion. On PostgreSQL the transport creates
one, but other software creates queues without it. A twin is a message with the seq of another one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from servers import only

from sqlq_spark.admin import doctor, return_to_source
from sqlq_spark.admin.purge import purge_expired
from sqlq_spark.receive import browse, poison
from sqlq_spark.receive.batch import INITIAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.wire.address import QueueAddress

    from .conftest import Bench

WOLVERINE = (
    "ALTER TABLE {queue} DROP CONSTRAINT {table}_seq_key;"
    'CREATE INDEX "idx_{table}_seq" ON {queue} (seq)'
)


@pytest.fixture
def twins(bench: Bench) -> Bench:
    """Give the bench with queues whose seq may repeat."""
    if bench.dotnet.numbers_once:
        for queue in (bench.queue, bench.error_queue):
            bench.dotnet.dba.on(queue, WOLVERINE)
    return bench


def send(bench: Bench, seqs: Sequence[int], queue: QueueAddress | None = None) -> list[bytes]:
    """Send a message at each seq; its body is its place among them."""
    sent = [b"%d" % at for at in range(len(seqs))]
    for body, seq in zip(sent, seqs, strict=True):
        send_at(bench, seq, body, queue=queue)
    return sent


def send_at(
    bench: Bench,
    seq: int,
    body: bytes,
    headers: str = "{}",
    *,
    lives: int | None = None,
    queue: QueueAddress | None = None,
) -> str:
    """Send a message that gets this seq, and return its id."""
    queue = queue or bench.queue
    bench.dotnet.dba.do("set_next", queue, seq=seq)
    return str(bench.dotnet.send(queue, headers, body, lives=lives))


SHAPES = {
    "all the same": [7] * 24,
    "pairs": [at // 2 + 1 for at in range(24)],
    "one far twin": [*range(1, 23), 22, 22],
    "the lowest": [1, 1, 1, *range(2, 23)],
}


@pytest.mark.parametrize("seqs", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("most", ["7", "100"])
def test_a_stream_receives_each_message_once(twins: Bench, seqs: list[int], most: str) -> None:
    """A batch may end between messages of one seq."""
    sent = send(twins, seqs)
    loop = twins.stream_driver(maxMessagesPerTrigger=most, maxConcurrency="3")

    got = twins.drain(loop)

    assert sorted(got) == sorted(sent)
    assert twins.waiting_bodies() == []


@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize("seqs", SHAPES.values(), ids=SHAPES)
def test_a_browse_shows_each_message_once(
    twins: Bench, seqs: list[int], *, narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page may end between messages of one seq, by its number or by its bytes."""
    send(twins, seqs)
    ids = sorted(row.id.bytes for row in twins.dotnet.rows(twins.queue))
    monkeypatch.setattr(browse, "FIRST_PAGE", 5)
    monkeypatch.setattr(browse, "LARGEST_PAGE", 5)

    for size in (8 << 20, 1):
        monkeypatch.setattr(browse, "PAGE_BYTES", size)
        shown = [
            row["id"]
            for _, first, stop in browse.split_queues(twins.connection, [twins.queue], count=2)
            for page in browse.read_pages(twins.connection, twins.queue, first, stop, narrow=narrow)
            for row in page.to_pylist()
        ]
        assert sorted(shown) == ids


def test_a_large_message_leaves_its_twin_in_the_queue(twins: Bench) -> None:
    """Only the message that was weighed goes to the error queue. Its twin came later."""
    large = b"x" * 5000
    send_at(twins, 5, large)
    send_at(twins, 5, large, lives=-1)
    task = twins.task(None, max_message_bytes=1000)

    with twins.transaction():
        found = twins.connection.rows(
            "find_large",
            poison.LargeMessage,
            tables={"queue": twins.queue},
            first=1,
            stop=100,
            messages=10,
            largest=1000,
            largest_headers=1000,
        )
        send_at(twins, 5, b"twin")
        moved = poison.divert_group(twins.connection, task, twins.error_queue, found)

    assert moved == poison.LargeDiverted(diverted=1, expired=1)
    assert twins.waiting_bodies() == [b"twin"]
    assert twins.waiting_bodies(twins.error_queue) == [large]


def test_a_failed_message_is_returned_and_its_twin_stays(twins: Bench) -> None:
    """The message is chosen by its id."""
    headers = json.dumps({"NServiceBus.FailedQ": twins.queue_address})
    chosen = send_at(twins, 5, b"chosen", headers, queue=twins.error_queue)
    send_at(twins, 5, b"twin", headers, queue=twins.error_queue)
    choice = return_to_source.Choice(ids=frozenset({chosen}))
    planned = return_to_source.plan_return(twins.connection, twins.error_queue, choice)

    (done,) = return_to_source.give_back(
        twins.new_session("retry"), twins.error_queue, planned, batch=9
    )

    assert (done.messages, done.skipped, done.reason) == (1, 0, None)
    assert twins.waiting_bodies() == [b"chosen"]
    assert twins.waiting_bodies(twins.error_queue) == [b"twin"]


def test_both_twins_can_be_returned(twins: Bench) -> None:
    """Each goes to the queue where it failed."""
    headers = json.dumps({"NServiceBus.FailedQ": twins.queue_address})
    send(twins, [5, 5, 5])
    for body in (b"a", b"b"):
        send_at(twins, 5, body, headers, queue=twins.error_queue)
    choice = return_to_source.Choice()
    planned = return_to_source.plan_return(twins.connection, twins.error_queue, choice)

    (done,) = return_to_source.give_back(
        twins.new_session("retry"), twins.error_queue, planned, batch=9
    )

    assert (done.messages, done.skipped, done.reason) == (2, 0, None)
    assert sorted(map(bytes, filter(None, twins.waiting_bodies()))) == [
        b"0",
        b"1",
        b"2",
        b"a",
        b"b",
    ]


def test_a_purge_of_what_has_expired_leaves_its_twin(twins: Bench) -> None:
    """The purge deletes only what it has looked at."""
    send_at(twins, 5, b"gone", lives=-1)
    send_at(twins, 5, b"stays")

    assert list(purge_expired(twins.connection, twins.queue)) == [1]
    assert twins.waiting_bodies() == [b"stays"]


@only("postgresql", "an index that another maker of queues makes")
def test_an_index_of_wolverine_is_noted_and_none_is_proposed(twins: Bench) -> None:
    """Wolverine would drop another index at its next start, so doctor proposes no fix."""
    send(twins, [5, 5])
    found = doctor.of_any_queue(twins.connection, twins.queue)

    assert [(each.name, each.severity) for each in found] == [("seq_repeats", "note")]
    assert "Wolverine owns this table, and drops other indexes at each of its starts" in str(found)
    assert "CREATE" not in found[0].fix
    assert twins.stream_driver().latest(INITIAL) != INITIAL
