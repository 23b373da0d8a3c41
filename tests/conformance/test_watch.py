"""Looks at queues, browses and purges, and returns of failed messages to their source."""

from __future__ import annotations

import logging
import re
import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_connection import RecordedConnection
from waiting import until
from wire import golden

from sqlq_spark.admin import report, return_to_source, stats
from sqlq_spark.admin.purge import purge_expired, purge_parts
from sqlq_spark.admin.return_to_source import Choice, Returned, ReturnPlan
from sqlq_spark.errors import Deadlock, MessageChanged, QueueNotFound, QueueNotWritable
from sqlq_spark.receive import browse
from sqlq_spark.wire import returning
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.headers import (
    EXCEPTION_INFO,
    FAILED_Q,
    FAULT_PREFIXES,
    MESSAGE_ID,
    POISON_TYPE,
    TIME_OF_FAILURE,
    dumps,
    escape,
    format_wire_time,
)

from .conftest import ON_DATABASE, TIMEOUT, Bench

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterator

    import pyarrow as pa


def look(bench: Bench) -> stats.QueueLook:
    """Look at the queue."""
    return stats.look_at(bench.connection, bench.queue, bench.source_options(), {})


def counts(before: stats.QueueLook, now: stats.QueueLook) -> list[int | None]:
    """How many messages came and went between two looks."""
    assert before.at is not None
    assert now.at is not None
    its, seconds = stats.flow(before, now), (now.at - before.at).total_seconds()
    rates = (its.incoming, its.outgoing)
    return [None if rate is None else round(rate * seconds) for rate in rates]


def test_what_came_and_went_between_two_looks_is_counted(bare: Bench) -> None:
    """Messages that are gone at the second look count, also where none waited at a look."""
    first = look(bare)
    bare.dotnet.send_many(bare.queue, [b"x"] * 5)
    second = look(bare)
    for _ in range(3):
        bare.dotnet.receive(bare.queue)
    bare.dotnet.send_many(bare.queue, [b"y"] * 4)
    third = look(bare)
    while bare.dotnet.receive(bare.queue):
        pass
    bare.dotnet.send(bare.queue)
    bare.dotnet.receive(bare.queue)
    fourth = look(bare)

    assert counts(first, second) == [None, None]  # no seq was ever given out before
    assert counts(second, third) == [4, 3]
    assert counts(third, fourth) == [1, 7]
    assert stats.flow(None, first) == first


def test_a_look_finds_since_when_the_lowest_waits(bare: Bench) -> None:
    """The age is by the database's clock and the header TimeSent, and absent without it."""
    sent = bare.dotnet.clock().replace(tzinfo=UTC) - timedelta(seconds=90)
    assert look(bare).oldest is None

    bare.dotnet.send(bare.queue, dumps({"NServiceBus.TimeSent": format_wire_time(sent)}))
    bare.dotnet.send(bare.queue, "{}")

    oldest = look(bare).oldest
    waited = (bare.dotnet.clock().replace(tzinfo=UTC) - sent).total_seconds()
    assert 85 < (oldest or 0) < waited + 1
    bare.dotnet.receive(bare.queue)
    assert look(bare).oldest is None


def test_failures_are_grouped_by_exception(bare: Bench) -> None:
    """Each group has its queues, its first and last time, and an example of the message."""
    moments = [datetime(2026, 3, day, 12, tzinfo=UTC) for day in (2, 1, 3)]
    for moment, kind in zip(moments, ("A.X", "A.X", "A.Y"), strict=True):
        failure = {
            "NServiceBus.ExceptionInfo.ExceptionType": kind,
            "NServiceBus.ExceptionInfo.Message": "no stock",
            "NServiceBus.FailedQ": "Shop",
            "NServiceBus.TimeOfFailure": format_wire_time(moment),
        }
        bare.dotnet.send(bare.error_queue, dumps(failure))
    bare.dotnet.send(bare.error_queue)

    look = stats.take_look(
        bare.connection,
        [bare.queue_address, bare.connection.printed(bare.error_queue)],
        bare.source_options(),
    )
    (found,) = report.find_failures(bare.connection, look, are_named=True)

    x, y, none = found["groups"]
    assert (x["messages"], x["queues"], x["example"]) == (2, {"Shop": 2}, "no stock")
    assert (x["first"], x["last"]) == (moments[1], moments[0])
    assert (none["exception"], y["exception"]) == ("(none)", "A.Y")
    assert (found["messages"], found["read"]) == (4, 4)


# ----- browsing --------------------------------------------------------------------------------


def pages(bench: Bench, first: int, stop: int, *, narrow: bool = False) -> list[pa.Table]:
    """Read a range."""
    return list(browse.read_pages(bench.connection, bench.queue, first, stop, narrow=narrow))


@ON_DATABASE
@given(gone=st.sets(st.integers(0, 39)), parts=st.integers(1, 9), size=st.integers(0, 3000))
def test_ranges_hold_every_message_once(
    bench: Bench, gone: set[int], parts: int, size: int
) -> None:
    """Ranges ascend, do not overlap, and are not more than asked for, whatever gaps there are."""
    bench.dotnet.dba.empty(bench.queue)
    bench.dotnet.send_many(bench.queue, [b"%d" % at + b"x" * size for at in range(40)])
    base = bench.waiting_seqs()[0]
    bench.dotnet.dba.do("delete", bench.queue, seqs=[base + at for at in gone])

    ranges = browse.split_queues(bench.connection, [bench.queue], count=parts)
    tables = [page for _, first, stop in ranges for page in pages(bench, first, stop)]

    assert len(ranges) <= parts
    assert all(stop == first for (_, _, stop), (_, first, _) in pairwise(ranges))
    rows = [(row["id"], row["body"], row["seq"]) for page in tables for row in page.to_pylist()]
    there = bench.dotnet.rows(bench.queue)
    assert rows == [(row.id.bytes, row.body, row.seq) for row in there]


def test_heavy_messages_come_in_small_pages(bench: Bench) -> None:
    """The size of a page follows from the one before. A reader that stops holds no transaction."""
    bench.dotnet.send_many(bench.queue, [b"x"] * browse.FIRST_PAGE + [bytes(1 << 20)] * 70)

    found = [(page.num_rows, page.nbytes) for page in pages(bench, 1, 1000)]
    begun = browse.read_pages(bench.connection, bench.queue, 1, 1000, narrow=False)
    next(begun)
    bench.dotnet.dba.do("truncate", bench.queue)  # waits for every transaction on it

    assert sum(rows for rows, _ in found) == browse.FIRST_PAGE + 70
    assert browse.PAGE_BYTES < max(size for _, size in found) < 4 * browse.PAGE_BYTES
    assert list(begun) == []


# ----- purging ---------------------------------------------------------------------------------


def fill(bench: Bench, *lives: int | None) -> None:
    """Send messages that are numbered from 0."""
    for at, each in enumerate(lives):
        bench.dotnet.send(bench.queue, body=b"%d" % at, lives=each)


def test_a_purge_in_batches_deletes_what_was_measured(bare: Bench) -> None:
    """What is sent meanwhile stays. An empty queue has no batch."""
    assert list(purge_parts(bare.connection, bare.queue, look(bare).depth)) == []
    fill(bare, *[None] * 25)
    depth = look(bare).depth
    bare.dotnet.send(bare.queue, body=b"new")

    batches = purge_parts(bare.connection, bare.queue, depth, batch=10)
    first = next(batches)
    left = len(bare.waiting_seqs())

    assert (first, left) == (9, 17)
    assert first + sum(batches) == 25
    assert bare.waiting_bodies() == [b"new"]


def test_only_what_has_expired_is_purged(bare: Bench) -> None:
    """
    The purge deletes full batches.

    It does not wait for a message that a consumer holds, but the next purge finds it.
    """
    fill(bare, None, -1, 3_600_000, 0, -86_400_000, *[-1] * 5)
    purged = partial(purge_expired, bare.connection, bare.queue, batch=3)

    with bare.dotnet.hold(bare.queue, bare.waiting_seqs()[1:2]):
        assert list(purged()) == [3, 3, 1]

    assert bare.waiting_bodies() == [b"0", b"1", b"2"]
    assert list(purged()) == [1]
    assert list(purged()) == []
    assert bare.waiting_bodies() == [b"0", b"2"]


class Victim(RecordedConnection):
    """A session whose first delete is undone to end a deadlock."""

    undone = False

    def around(self, statement: str, call: Callable[[], Any]) -> Any:
        """Undo the first delete after it ran, and report a deadlock."""
        found = call()
        if statement.startswith("purge_") and not self.undone:
            self.undone = True
            raise Deadlock(statement=statement, reason="victim")
        return found


def test_a_batch_that_deadlocks_is_deleted_again(bare: Bench) -> None:
    """Both purges, by ranges and by expiry, count each message once."""
    fill(bare, *[-1] * 2, *[None] * 3)

    waits = look(bare).depth
    expired, rest = Victim(bare.connection), Victim(bare.connection)

    assert list(purge_expired(expired, bare.queue)) == [2]
    assert sum(purge_parts(rest, bare.queue, waits)) == 3
    assert expired.undone
    assert rest.undone
    assert bare.waiting_seqs() == []


def test_purge_on_startup_waits_for_consumers(
    bare: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """What a consumer gives back is purged too. What comes later waits for another run."""
    sessions = bare.use_unique_queue()
    fill(bare, *[None] * 3)
    caplog.set_level(logging.WARNING, logger="sqlq_spark")
    loop = bare.stream_driver(purgeOnStartup="true", transactionMode="none")

    with bare.dotnet.hold(bare.queue, bare.waiting_seqs()[:1]):
        started = bare.run_in_thread(loop.freeze)
        until(lambda: bare.dotnet.waiting(sessions))
    started.result(timeout=TIMEOUT)
    fill(bare, None)

    assert bare.drain(loop) == []
    assert len(bare.waiting_seqs()) == 1
    (record,) = caplog.records
    assert record.getMessage() == f"{bare.queue_address}: 3 messages purged (purgeOnStartup=true)"


# ----- return to source -----------------------------------------------------------------------


EXCEPTION = f"{EXCEPTION_INFO}ExceptionType"


def fail(bench: Bench, body: bytes = b"{}", /, **headers: str | None) -> uuid.UUID:
    """Put a message into the error queue, as an endpoint does; `headers` are more of them."""
    failed = {FAILED_Q: bench.queue_address, TIME_OF_FAILURE: "2026-06-30 17:05:39:000001 Z"}
    whole = {MESSAGE_ID: "m", EXCEPTION: "System.Bad", **failed, **headers}
    return bench.dotnet.send(bench.error_queue, dumps(whole), body)


def planned(bench: Bench, **choice: Any) -> ReturnPlan:
    """Look at the error queue."""
    return return_to_source.plan_return(bench.connection, bench.error_queue, Choice(**choice))


def give_back(
    bench: Bench, found: ReturnPlan, application: str = "retry", batch: int = 2
) -> Iterator[Returned]:
    """Return what can be returned, batch by batch."""
    session = bench.new_session(application)
    return return_to_source.give_back(session, bench.error_queue, found, batch=batch)


def waiting(bench: Bench) -> list[bytes | None]:
    """The bodies of the error queue."""
    return bench.waiting_bodies(bench.error_queue)


def test_failures_of_real_endpoints_are_returned_as_they_were(bare: Bench) -> None:
    """Headers that the endpoint added are removed. The others stay byte for byte."""
    failures = [case for case in golden() if FAILED_Q in (case.read or {})]
    here = f'"{FAILED_Q}":"{escape(bare.queue_address)}"'
    texts = [
        re.sub(rf'"{FAILED_Q}":"(\\"|[^"])*"', lambda _: here, str(each.headers))
        for each in failures
    ]
    for text, each in zip(texts, failures, strict=True):
        bare.dotnet.send(bare.error_queue, text, each.body)

    found = planned(bare, exceptions=frozenset({"InvalidOperationException"}))
    (done,) = give_back(bare, found, batch=100)

    kind = "System.InvalidOperationException"
    assert [each[1:] for each in found.groups] == [(kind, 5)]
    assert (done.messages, waiting(bare)) == (5, [])
    added = rf',"({"|".join(map(re.escape, FAULT_PREFIXES))})[^"]*":"(\\.|[^"\\])*"'
    assert [(each.headers, each.body) for each in bare.dotnet.rows(bare.queue)] == [
        (re.sub(added, "", text), each.body) for text, each in zip(texts, failures, strict=True)
    ]


def test_a_message_keeps_its_identity(bare: Bench) -> None:
    """Without a message id the row's id counts. It changes, so it becomes a header."""
    row = bare.dotnet.send(bare.error_queue, dumps({FAILED_Q: bare.queue_address}), None)

    (done,) = give_back(bare, planned(bare, ids=frozenset({str(row)})))

    (back,) = bare.dotnet.rows(bare.queue)
    assert done.messages == 1
    assert (back.headers, back.body) == (dumps({MESSAGE_ID: str(row)}), b"")


def test_a_choice_takes_what_fits_all_of_it(bare: Bench) -> None:
    """A choice has ids, exceptions by either name, the failed queue, and the time."""
    noon = "2026-06-30 12:00:00:000000 Z"
    row = fail(bare, b"0", **{MESSAGE_ID: "a", EXCEPTION: "Shop.Late"})
    fail(bare, b"1", **{MESSAGE_ID: "b", TIME_OF_FAILURE: noon})
    fail(bare, b"2", **{MESSAGE_ID: "c", EXCEPTION: None, TIME_OF_FAILURE: "lunch"})
    at = datetime(2026, 6, 30, 12, tzinfo=UTC)

    def count(*exceptions: str, ids: tuple[str, ...] = (), **choice: Any) -> int:
        if ids:
            choice["ids"] = frozenset(ids)
        if exceptions:
            choice["exceptions"] = frozenset(exceptions)
        return planned(bare, **choice).messages

    assert count() == count(failed_queue=bare.queue) == 3
    assert count(ids=(str(row), "b", "z")) == 2
    assert planned(bare, ids=frozenset({"z", "a"})).missing == ["z"]
    assert count("Late") == count("Bad", ids=("a", "b")) == 1
    assert count("Shop.Late", "System.Bad", "System") == 2
    assert count("") == count(failed_queue=QueueAddress("other")) == 0
    assert (count(since=at), count(until=at), count(since=at, until=at)) == (2, 0, 0)


HOSTILE = {
    "": "no header NServiceBus.FailedQ",
    '"unclosed': "cannot be used",
    "a" * 5000: "cannot be used",
    "orders; DROP TABLE orders": "cannot insert into a queue",
    "Shop.Sales@[dbo]@[shop]": "names a queue in another database than",
    "Shop.Sales": 'is read as schema and table "Shop"."Sales"',
}


def test_what_cannot_be_returned_stays_with_its_reason(bare: Bench) -> None:
    """
    The headers are corrupt, or FailedQ is absent or hostile.

    It may also name no usable queue.
    """
    known = bare.dotnet.dialect == "postgresql"
    reasons = {dumps({FAILED_Q: each}): why if known else "" for each, why in HOSTILE.items()}
    reasons |= {dumps({FAILED_Q: bare.address("error")}): "error queue itself", "{}": "no header"}
    reasons |= {"[]": "corrupt", '{"NServiceBus.FailedQ":7}': "corrupt"}
    for text in reasons:
        bare.dotnet.send(bare.error_queue, text)
    fail(bare, b"good")

    found = planned(bare)
    (done,) = give_back(bare, found)

    assert done.messages == 1
    said = {row: reason for reason, some in found.staying.items() for row in some.ids}
    rows = {row.headers: said.get(str(row.id), "") for row in bare.dotnet.rows(bare.error_queue)}
    assert rows.keys() == reasons.keys()
    for text, reason in reasons.items():
        assert reason in rows[text] != ""
    assert bare.waiting_bodies() == [b"good"]


def test_a_queue_that_refuses_keeps_its_messages_and_the_others_go(bare: Bench) -> None:
    """One queue was dropped, and one has a constraint. A refused batch is undone as a whole."""
    gone, strict = bare.create_queue("gone"), bare.create_queue("strict")
    for at, each in enumerate((gone, strict, strict, bare.queue)):
        fail(bare, b"%d" % at, **{FAILED_Q: bare.connection.printed(each)})
    found = planned(bare)
    bare.dotnet.dba.drop(gone)
    bare.dotnet.dba.do("refuse", strict)

    done = [*give_back(bare, found)]

    assert [(each.messages, each.left) for each in done] == [(0, 1), (0, 1), (0, 1), (1, 0)]
    # If a database has no lock for a table, the error does not say that the table is absent.
    assert isinstance(done[0].reason, QueueNotFound | QueueNotWritable)
    assert done[1].reason is done[2].reason
    assert "not today" in str(done[1].reason)
    assert [bare.waiting_bodies(), waiting(bare)] == [[b"3"], [b"0", b"1", b"2"]]


def test_batches_are_cut_by_number_and_weight(bare: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heavy message goes alone."""
    monkeypatch.setattr(return_to_source, "BATCH_BYTES", 3000)
    for size in (1, 1, 1, 4000, 1, 1):
        fail(bare, b"x" * size)

    done = [*give_back(bare, planned(bare))]

    assert [each.messages for each in done] == [2, 1, 1, 2]


def test_a_message_that_is_another_now_is_not_returned(bare: Bench) -> None:
    """Its headers changed after it was read, so nothing of its batch is returned."""
    for body in (b"0", b"1", b"2"):
        fail(bare, body)
    batches = give_back(bare, planned(bare), batch=1)
    assert next(batches).messages == 1
    bare.dotnet.dba.do("rewrite", bare.error_queue, headers=dumps({FAILED_Q: "elsewhere"}))

    with pytest.raises(MessageChanged, match="Nothing of its batch was returned"):
        next(batches)

    assert [bare.waiting_bodies(), waiting(bare)] == [[b"0"], [b"1", b"2"]]


def test_a_message_with_the_seq_of_one_that_is_gone_stays(bare: Bench) -> None:
    """In a new table the seqs begin again, so the id is compared too."""
    for body in (b"0", b"1"):
        fail(bare, body)
    batches = give_back(bare, planned(bare), batch=1)
    assert next(batches).messages == 1
    bare.dotnet.dba.drop(bare.error_queue)
    bare.dotnet.create(bare.error_queue)
    for body in (b"other", b"same seq"):
        fail(bare, body)

    (done,) = batches

    assert (done.messages, done.skipped) == (0, 1)
    assert [bare.waiting_bodies(), waiting(bare)] == [[b"0"], [b"other", b"same seq"]]


def test_what_comes_after_the_plan_stays(bare: Bench) -> None:
    """Only what the plan showed is returned, and only to the queues that it showed."""
    for body in (b"0", b"1"):
        fail(bare, body)
    found = planned(bare)
    for queue in (bare.create_queue("late"), bare.queue):
        fail(bare, b"late", **{FAILED_Q: bare.connection.printed(queue)})

    assert [each.messages for each in give_back(bare, found)] == [2]
    assert waiting(bare) == [b"late", b"late"]
    assert [each.messages for each in give_back(bare, replace(found, stop=2**40))] == [1]


# ----- what senders choose is not kept ----------------------------------------------------------


def test_a_return_keeps_no_text_that_a_sender_chose(
    bare: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues, exceptions and reasons beyond a limit count together, and each text is cut."""
    for name in ("MOST_SOURCES", "MOST_GROUPS", "MOST_REASONS"):
        monkeypatch.setattr(return_to_source, name, 2)
    for each in range(3):
        fail(bare, **{EXCEPTION: f"{each}" * 100_000})
        fail(bare, **{FAILED_Q: f'"{each}'})
        fail(bare, **{FAILED_Q: bare.connection.printed(bare.create_queue(f"q{each}"))})

    found = planned(bare)
    done = [*give_back(bare, found)]

    assert len(found.destinations) == 2
    groups = [(len(str(kind)), messages) for _, kind, messages in found.groups]
    assert sorted(groups) == [(8, 2), (10, 1), (1001, 1)]
    assert sum(each.messages for each in done) == found.messages == 4
    assert [*found.staying][-1] == return_to_source.OTHER_GROUPS
    assert sum(each.messages for each in found.staying.values()) == len(waiting(bare)) == 5
    assert sum(len(each.ids) for each in found.staying.values()) == 5


def test_a_return_holds_a_page(bare: Bench) -> None:
    """Only a page of headers is in memory at once, however many messages there are."""

    def peak() -> int:
        tracemalloc.start()
        try:
            found = planned(bare)
            parts = [
                *return_to_source.cut_batches(
                    bare.new_session("retry"), bare.error_queue, found, most=99
                )
            ]
            _, largest = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert sum(len(part) for _, part in parts) == bare.dotnet.dba.count(bare.error_queue)
        return largest

    peaks = []
    for _ in range(2):
        for _ in range(48):
            fail(bare, **{EXCEPTION: "x" * 1_000_000})
        peaks.append(peak())

    assert peaks[1] < peaks[0] + browse.PAGE_BYTES // 4


def test_poison_stays(bare: Bench) -> None:
    """A message that was diverted for its headers needs other headers before it can return."""
    fail(bare, b"poison", **{EXCEPTION: POISON_TYPE})
    fail(bare, b"good")

    found = planned(bare)
    done = [*give_back(bare, found)]

    assert [found.messages, *(each.messages for each in done)] == [1, 1]
    assert [*found.staying] == [returning.POISON]
    assert waiting(bare) == [b"poison"]
