"""One task: what it takes, what it leaves, and what it must not touch."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import only
from waiting import until

from sqlq_spark import errors
from sqlq_spark.admin.messages import list_messages
from sqlq_spark.database.looks import SAMPLED
from sqlq_spark.database.postgresql import connection as postgresql
from sqlq_spark.receive import browse
from sqlq_spark.receive import task as module
from sqlq_spark.receive.batch import Task, TaskResult
from sqlq_spark.receive.receipts import save
from sqlq_spark.receive.task import receive
from sqlq_spark.wire.rows import QUEUE_ROW, SparkBatch

from .conftest import ON_DATABASE, TIMEOUT, Bench, bodies
from .transport import Busy


def test_messages_arrive_as_sent_and_expired_ones_are_gone(bench: Bench) -> None:
    """A body of NULL and the time that is left arrive too. The receipt counts all messages."""
    text = '{"key\\/with":"\\uD83D\\uDE80","n":null,"ü":"x \\u0000"}'
    for headers, body, lives in (
        *((text, b"\x00\xff", None), (text, None, None), (text, b"", 60_000)),
        *(("{}", b"dead", -1), ("[]", b"dead", -1), ("{}", b"dead", 0)),
    ):
        bench.dotnet.send(bench.queue, headers, body, lives=lives)
    alive = bench.dotnet.rows(bench.queue)[:3]
    task = bench.task(bench.new_stream(), batch=3, task=2, error_address=bench.error_queue)

    session = bench.open_connection()
    rows = receive(session, task, spark_batch=SparkBatch(query_id="q", number=7)).rows

    assert rows.to_pylist() == [row._asdict() | {"id": row.id.bytes} for row in alive]
    assert bench.waiting_seqs() == []
    assert bench.waiting_bodies(bench.error_queue) == []
    weight = 3 * len(text.encode()) + 2
    columns = "stream, batch, task, queue, messages, expired, diverted, bytes"
    assert bench.dotnet.state_rows("receipt", f"{columns}, query_id, spark_batch, settled") == [
        (task.stream, 3, 2, bench.queue_in_options, 3, 3, 0, weight, "q", 7, False)
    ]


@settings(ON_DATABASE, max_examples=30)
@given(data=st.data(), sizes=st.lists(st.integers(0, 3000), max_size=25))
def test_the_lowest_that_fit_are_taken(bench: Bench, data: st.DataObject, sizes: list[int]) -> None:
    """A task stops at its count or at its ceiling of bytes. A retry gets the same rows."""
    gone, held = (data.draw(st.sets(st.integers(0, 24), max_size=4)) for _ in range(2))
    bounds = data.draw(st.tuples(st.integers(0, 26), st.integers(0, 26)))
    messages, ceiling = data.draw(st.integers(1, 26)), data.draw(st.integers(1, 12_000))
    guess, step = data.draw(st.floats(0.5, 5000)), data.draw(st.integers(1, 4000))
    bench.dotnet.dba.empty(bench.queue)
    bench.dotnet.send_many(bench.queue, [b"x" * size for size in sizes])
    base = bench.waiting_seqs()[0] if sizes else 0
    bench.dotnet.dba.do("delete", bench.queue, seqs=[base + at for at in gone])
    weights = {row.seq: len(row.body or b"") + 2 for row in bench.dotnet.rows(bench.queue)}
    first, stop = (base + each for each in bounds)
    locked = [at for at in weights if at - base in held]
    free = [at for at in weights if first <= at < stop and at not in locked]
    limits: dict[str, Any] = {"messages": messages, "bytes": ceiling, "bytes_each": guess}
    task = bench.task(bench.new_stream(), first=first, stop=stop, **limits)

    with bench.dotnet.hold(bench.queue, locked), pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "STEP", step)
        patch.setattr(postgresql, "HELD", {})
        if data.draw(st.booleans()):  # PostgreSQL deletes a whole range at once
            patch.setattr(postgresql, "FEWEST", 0)
        rows = bench.receive(task)

    taken = rows["seq"].to_pylist()
    assert taken == free[: len(taken)]
    assert bench.waiting_seqs() == sorted(weights.keys() - {*taken})
    weight = sum(weights[at] for at in taken)
    assert len(taken) == min(messages, len(free)) or weight >= ceiling
    assert not taken or weight - weights[taken[-1]] < ceiling
    bench.dotnet.send(bench.queue, body=b"later")
    assert bench.receive(task).equals(rows)


def test_a_replay_gives_messages_that_expired_since(bench: Bench) -> None:
    """A message that was received is handed out again, however long Spark takes."""
    # tried again with a longer life, because on a slow machine the message may expire first
    for lives in (300, 3_000, 30_000):
        bench.dotnet.send(bench.queue, body=b"short", lives=lives)
        stream = bench.new_stream()
        first = bench.receive(bench.task(stream))
        if first.num_rows:
            break
    (expires,) = first["expires"].to_pylist()
    until(lambda: bench.dotnet.clock() > expires)

    assert bodies(first) == [b"short"]
    assert bench.receive(bench.task(stream)).equals(first)


def test_a_second_attempt_at_the_same_time_waits_and_then_replays(bench: Bench) -> None:
    """It waits before it takes anything. Otherwise it would leave an empty receipt."""
    bench.dotnet.send_many(bench.queue, [b"%d" % at for at in range(50)])
    task, second = bench.task(bench.new_stream()), bench.new_session("second")

    with bench.uncommitted_task(task, "first") as rows:
        do = partial(receive, task=task, spark_batch=SparkBatch())
        attempt = bench.run_in_thread(lambda: second.run_with_retries(do))
        until(lambda: bench.dotnet.waiting(f"{bench.session_prefix} second"))
        assert not attempt.done()

    assert attempt.result(timeout=TIMEOUT).rows.equals(rows)
    assert rows.num_rows == 50


def test_a_receipt_beside_a_returned_one_is_still_handed_out(bench: Bench) -> None:
    """With failOnDataLoss=false only the returned messages are missing from the batch."""
    bench.dotnet.send_many(bench.queue, [b"0", b"1", b"2"])
    stream = bench.new_stream()
    tasks = [bench.task(stream, task=at, first=at + 1, stop=at + 2) for at in range(2)]
    for task in tasks:
        bench.receive(task)
    bench.return_receipt(stream)

    accepting = bench.source_options(failOnDataLoss="false")
    again = [bench.receive(replace(task, options=accepting)) for task in tasks]

    assert [bodies(rows) for rows in again] == [[], [b"1"]]
    assert bench.waiting_bodies() == [b"2", b"0"]


def test_a_zombie_after_the_ack_is_stale_and_leaves_the_queue_alone(bench: Bench) -> None:
    """Its batch is closed. A task of an unknown stream is refused too."""
    bench.dotnet.send(bench.queue)
    stream = bench.new_stream()
    bench.receive(bench.task(stream))
    bench.acknowledge(stream, 1)
    bench.dotnet.send(bench.queue, body=b"new")

    with pytest.raises(errors.StaleTask, match="ran after the batch was acknowledged"):
        bench.receive(bench.task(stream))
    with pytest.raises(errors.StreamNotFound):
        bench.receive(bench.task(str(uuid.uuid4())))
    accepting = bench.receive(bench.task(stream, fail_on_data_loss=False))

    assert accepting.num_rows == 0
    assert bench.waiting_bodies() == [b"new"]
    assert bench.dotnet.state_rows("receipt", "batch") == []


def test_without_its_error_queue_nothing_is_taken(bench: Bench) -> None:
    """Poison or a large message stops the whole batch. The error of a large one has its size."""
    absent, stream = bench.table_beside("absent"), bench.new_stream()
    bench.dotnet.send(bench.queue, "[]")
    with pytest.raises(errors.QueueNotFound):
        bench.receive(bench.task(stream, error_address=absent))

    bench.dotnet.dba.empty(bench.queue)
    for body in (b"1", BIG):
        bench.dotnet.send(bench.queue, "{}", body)
    with pytest.raises(errors.MessageTooLarge) as caught:
        bench.receive(large_task(bench, error_address=None))

    limit = {"counted": "headers and body", "option": "maxMessageBytes", "largest": 1000}
    assert vars(caught.value) == {"queue": bench.queue_address, "seq": 3, "size": 5002, **limit}
    assert bench.waiting_seqs() == [2, 3]
    assert bench.dotnet.state_rows("receipt", "batch") == []


def test_no_statement_of_an_endpoint_waits_for_our_open_receive(bench: Bench) -> None:
    """Endpoints pass over rows that we hold. Only a purge of everything waits."""
    bench.dotnet.create_delayed(bench.delayed_table)
    for at in range(10):
        bench.dotnet.send(bench.queue, body=b"%d" % at, lives=-1 if at in {2, 7} else None)
    bench.dotnet.store(bench.delayed_table, body=b"due", delay=-1)
    hasty = bench.dotnet.consumer(patience=0.3)

    with bench.uncommitted_task(bench.task(bench.new_stream(), messages=6), "ours") as rows:
        assert rows.num_rows == 5
        assert hasty.peek(bench.queue) == 4
        assert hasty.purge_expired(bench.queue) == 1
        assert hasty.move(bench.delayed_table, bench.queue) == 1
        hasty.send(bench.queue, body=b"sent")
        got = [hasty.receive(bench.queue) for _ in range(6)]
        with pytest.raises(Busy):
            hasty.purge(bench.queue)

    assert [each and each.body for each in got] == [b"6", b"8", b"9", b"due", b"sent", None]
    assert bench.waiting_seqs() == []


def test_with_competing_consumers_every_message_is_in_exactly_one_place(bench: Bench) -> None:
    """Three endpoints delete one row at a time while our tasks receive in sets."""
    total, stream = 3000, bench.new_stream()
    begun = threading.Barrier(5)  # nobody goes on before each has got something
    bench.dotnet.send_many(bench.queue, [b"%d" % at for at in range(total)])
    sent = bench.waiting_bodies()

    def compete() -> list[bytes | None]:
        dotnet, got = bench.dotnet.consumer(), list[bytes | None]()
        while len(got) < 300 and (row := dotnet.receive(bench.queue)) is not None:
            got.append(row.body)
            if len(got) == 1:
                begun.wait(TIMEOUT)
        return got

    def ours(at: int) -> list[bytes | None]:
        connection, got = bench.open_connection(f"task {at}"), list[bytes | None]()
        whole = bench.task(stream, task=at, first=at * 1500 + 1, stop=at * 1500 + 1501)
        for batch in range(1, 6):
            task = replace(whole, batch=batch, messages=200 if batch < 5 else total)
            got += bodies(bench.receive(task, connection))
            if batch == 1:
                begun.wait(TIMEOUT)
        return got

    threads = [bench.run_in_thread(compete) for _ in range(3)]
    threads += [bench.run_in_thread(partial(ours, at)) for at in range(2)]
    got = [thread.result(timeout=TIMEOUT) for thread in threads]

    assert Counter(body for part in [*got, bench.waiting_bodies()] for body in part) == Counter(
        sent
    )
    assert min(map(len, got)) > 0


@pytest.mark.usefixtures("impatient")
def test_a_session_lost_at_any_statement_of_a_task_is_done_again(bench: Bench) -> None:
    """Each message is in one place, whether the statement or only its answer was lost."""
    large = b"x" * 5000
    for session, _ in bench.kill_at_each_statement():
        bench.dotnet.dba.empty(bench.queue)
        bench.dotnet.dba.empty(bench.error_queue)
        for headers, body in (("{}", b"1"), ("[]", b"poison"), ("{}", large), ("{}", b"4")):
            bench.dotnet.send(bench.queue, headers, body)
        sent = {row.id.bytes for row in bench.dotnet.rows(bench.queue)}
        task = bench.task(
            bench.new_stream(),
            error_address=bench.error_queue,
            max_message_bytes=1000,
            bytes_each=9999.0,
        )

        result = session.run_with_retries(partial(receive, task=task, spark_batch=SparkBatch()))

        rows = result.rows
        moved = bench.dotnet.rows(bench.error_queue)
        assert sorted([*rows["id"].to_pylist(), *(row.id.bytes for row in moved)]) == sorted(sent)
        assert bodies(rows) == [b"1", b"4"]
        assert {row.body for row in moved} == {b"poison", large}
        assert bench.waiting_seqs() == []
        assert bench.receive(task).equals(rows)

    wanted = (
        "fence find_receipt receive find_large savepoint divert_large load release "
        "save_receipt commit"
    )
    assert set(wanted.split()) <= set(bench.killed_statements)


@pytest.mark.usefixtures("impatient")
def test_a_session_lost_in_transaction_mode_none_repeats_nothing(bench: Bench) -> None:
    """A message comes at most once. It is lost only with the answer to the commit."""
    task = bench.task(None)
    for session, after in bench.kill_at_each_statement():
        bench.dotnet.send_many(bench.queue, [b"1", b"2", b"3"])

        result = session.run_with_retries(partial(receive, task=task, spark_batch=SparkBatch()))

        assert bodies(result.rows) == ([] if after else [b"1", b"2", b"3"])
        assert bench.receive(task).num_rows == 0

    assert {"receive", "commit"} <= set(bench.killed_statements)


@only("postgresql", "another database deletes in one pass anyway")
def test_ranges_are_not_used_beside_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One statement waits 1 ms for a held row, and is undone. The next task does not try it."""
    monkeypatch.setattr(postgresql, "FEWEST", 0)
    monkeypatch.setattr(postgresql, "HELD", {})
    stream = bench.new_stream()
    bench.dotnet.send_many(bench.queue, [b"a", b"b", b"c", b"d"])
    ours = partial(bench.task, stream, first=1, stop=10, messages=2)

    with bench.dotnet.hold(bench.queue, [2]):
        first = bench.receive(ours(task=0))
        tried = dict(postgresql.HELD)
        second = bench.receive(ours(task=1))

    assert (bodies(first), bodies(second)) == ([b"a", b"c"], [b"d"])
    assert len(tried) == 1
    assert tried == postgresql.HELD
    assert bodies(bench.receive(ours(task=2))) == [b"b"]


BIG = b"x" * 5000


def large_task(bench: Bench, **limits: Any) -> Task:
    """Give a task of a plan whose sample had a large message."""
    given: dict[str, Any] = {
        "max_message_bytes": 1000,
        "bytes_each": 5000 / SAMPLED,
        "error_address": bench.error_queue,
    }
    return bench.task(bench.new_stream(), **given | limits)


def test_large_messages_go_to_the_error_queue_and_the_others_are_received(bench: Bench) -> None:
    """They keep headers and id, and count as diverted. Headers and body weigh together."""
    just, more = b"x" * (1000 - len('{"a":"b"}')), b"x" * (1001 - len('{"a":"b"}'))
    given = [(just, None), (BIG, None), (b"3", None), (BIG, -1), (more, None), (BIG, None)]
    sent = [bench.dotnet.send(bench.queue, '{"a":"b"}', body, lives=lives) for body, lives in given]

    with bench.dotnet.hold(bench.queue, [6]):
        rows = bench.receive(large_task(bench))

    assert bodies(rows) == [just, b"3"]
    moved = [(row.id, row.headers, row.body) for row in bench.dotnet.rows(bench.error_queue)]
    assert moved == [(sent[1], '{"a":"b"}', BIG), (sent[4], '{"a":"b"}', more)]
    assert bench.waiting_seqs() == [6]  # another consumer holds it
    assert bench.dotnet.state_rows("receipt", "messages, expired, diverted") == [(2, 1, 2)]


def header_texts(bench: Bench, limit: int) -> tuple[str, str]:
    """Give headers of exactly `limit` bytes in the table, and headers of one character more."""
    texts = [f'{{"é":"{"x" * at}"}}' for at in range(limit)]
    sizes = [len(text.encode(bench.dotnet.stored)) for text in texts]
    at = sizes.index(limit)
    return texts[at], texts[at + 1]


def test_large_headers_go_to_the_error_queue_though_all_messages_are_small(bench: Bench) -> None:
    """They count as the table stores them, without the body. No task gets them."""
    just, more = header_texts(bench, 1000)
    given = [(just, b"1"), (more, b"2"), ("{}", b"3"), ("{}", b"4" * 1200)]
    sent = [bench.dotnet.send(bench.queue, headers, body) for headers, body in given]
    task = large_task(
        bench, max_message_bytes=1 << 20, max_header_bytes=1000, bytes_each=1000 / SAMPLED
    )

    rows = bench.receive(task)

    assert rows["headers"].to_pylist() == [just, "{}", "{}"]
    moved = [(row.id, row.headers, row.body) for row in bench.dotnet.rows(bench.error_queue)]
    assert moved == [(sent[1], more, b"2")]
    assert bench.waiting_seqs() == []
    assert bench.dotnet.state_rows("receipt", "messages, diverted") == [(3, 1)]


def test_a_large_range_with_large_headers_is_received_without_them(bench: Bench) -> None:
    """The range has so many messages that PostgreSQL first tries to delete it in one pass."""
    more = header_texts(bench, 1000)[1]
    bench.dotnet.send_many(bench.queue, [b"x"] * 1500)
    bench.dotnet.send(bench.queue, more, b"large")

    task = large_task(bench, max_message_bytes=1 << 20, max_header_bytes=1000, first=1, stop=2000)

    rows = bench.receive(task)

    assert rows.num_rows == 1500
    assert bench.waiting_bodies(bench.error_queue) == [b"large"]


def test_without_an_error_queue_large_headers_stop_the_stream(bench: Bench) -> None:
    """The error has their size and the option, and nothing is taken."""
    more = header_texts(bench, 1000)[1]
    bench.dotnet.send(bench.queue, more, b"1")
    task = large_task(bench, max_message_bytes=1 << 20, max_header_bytes=1000, error_address=None)

    with pytest.raises(errors.MessageTooLarge) as caught:
        bench.receive(task)

    assert vars(caught.value) == {
        "queue": bench.queue_address,
        "seq": 1,
        "size": len(more.encode(bench.dotnet.stored)),
        "counted": "headers",
        "option": "maxHeaderBytes",
        "largest": 1000,
    }
    assert bench.waiting_seqs() == [1]


def test_a_stream_comes_to_large_headers_though_the_mean_is_small(bench: Bench) -> None:
    """Many small messages come first, so that 50 times the mean is far below maxMessageBytes."""
    more = header_texts(bench, 2000)[1]
    bench.dotnet.send_many(bench.queue, [b"x"] * 300)
    bench.dotnet.send(bench.queue, more, b"large")
    bench.dotnet.send_many(bench.queue, [b"x"] * 60)
    loop = bench.stream_driver(
        errorQueue=bench.address("error"), maxHeaderBytes="2000", maxMessagesPerTrigger="100"
    )

    assert len(bench.drain(loop)) == 360
    assert bench.waiting_bodies(bench.error_queue) == [b"large"]


def test_the_mean_of_the_lowest_shows_one_large_message_among_them(bench: Bench) -> None:
    """A plan stores the mean as a whole number, which must not be lower."""
    for _ in range(SAMPLED - 1):
        bench.dotnet.send(bench.queue, "", b"")
    bench.dotnet.send(bench.queue, "{}", b"x" * 1009)
    loop = bench.stream_driver(errorQueue=bench.address("error"), maxMessageBytes="1010")

    end, (rows, *_) = bench.run_batch(loop)

    assert (rows.num_rows, end.plan[0].messages) == (49, 50)
    assert bench.waiting_bodies(bench.error_queue) == [b"x" * 1009]


def test_a_stream_comes_to_it_in_time(bench: Bench) -> None:
    """The large message waits behind many others. When it is the lowest, the sample shows it."""
    bench.dotnet.send_many(bench.queue, [b"x"] * 300)
    bench.dotnet.send(bench.queue, body=BIG)
    bench.dotnet.send_many(bench.queue, [b"x"] * 10)
    loop = bench.stream_driver(
        errorQueue=bench.address("error"), maxMessageBytes="1000", maxMessagesPerTrigger="100"
    )

    assert len(bench.drain(loop)) == 310
    assert [row.body for row in bench.dotnet.rows(bench.error_queue)] == [BIG]


# ---------------------------------------------------------------- expiries without an end


EXPIRIES = {
    "infinity": None,
    "294276-12-31": None,
    "10000-01-01": None,
    "9999-12-31 23:59:59": None,
    "9999-12-30": datetime(9999, 12, 30),  # noqa: DTZ001 - UTC without a zone
    "2999-01-01 12:00": datetime(2999, 1, 1, 12),  # noqa: DTZ001
}
LONG_AGO = datetime(1900, 1, 1)  # noqa: DTZ001
EXPIRED = {"-infinity": LONG_AGO, "0044-03-15 BC": LONG_AGO, "1950-01-01": datetime(1950, 1, 1)}  # noqa: DTZ001


@only("postgresql", "times beyond the calendar")
def test_an_expiry_without_an_end_is_null_and_one_before_all_times_has_expired(
    bench: Bench,
) -> None:
    """Browses with and without headers, a command, a receive, its replay and its return agree."""
    for text in EXPIRIES | EXPIRED:
        row = bench.dotnet.send(bench.queue, body=text.encode())
        bench.dotnet.dba.do("set_expires_text", bench.queue, moment=text, row=str(row))
    queue, connection = bench.queue, bench.connection
    first, stop = 1, 100

    narrow, wide = (
        [
            row["expires"]
            for page in browse.read_pages(connection, queue, first, stop, narrow=is_narrow)
            for row in page.to_pylist()
        ]
        for is_narrow in (True, False)
    )
    listed = [
        None if message.expires is None else message.expires.replace(tzinfo=None)
        for message in list_messages(connection, queue, limit=100)
    ]
    task = bench.task(bench.new_stream())
    rows = bench.receive(task)

    assert narrow == wide == listed == [*EXPIRIES.values(), *EXPIRED.values()]
    assert rows["expires"].to_pylist() == [*EXPIRIES.values()]
    assert [body.decode() for body in bodies(rows)] == [*EXPIRIES]
    assert bench.receive(task).equals(rows)
    bench.return_receipt(str(task.stream))
    assert [row.expires for row in bench.dotnet.rows(queue)] == [*EXPIRIES.values()]


def test_a_receipt_of_an_earlier_release_may_have_expiries_beyond_the_calendar(
    bench: Bench,
) -> None:
    """Such an expiry becomes null when the receipt is read, because Spark could not show it."""
    stream = bench.new_stream()
    bench.store_empty_plan(stream, 1)
    task = bench.task(stream)
    odd = [-(2**63) + 946684800000000 - 1, 253402300800000000, 0, None]  # the first is infinity
    rows = pa.Table.from_pylist(
        [
            {"id": bytes([at]) * 16, "expires": each, "headers": "{}", "body": b"", "seq": at}
            for at, each in enumerate(odd)
        ],
        QUEUE_ROW,
    )
    with bench.transaction():
        save(bench.connection, task, TaskResult(rows), SparkBatch())

    got = bench.receive(task)["expires"].to_pylist()

    assert got == [None, None, datetime(1970, 1, 1), None]  # noqa: DTZ001
