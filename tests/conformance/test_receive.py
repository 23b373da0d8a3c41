"""One task: what it takes, what it leaves, and what it must not touch."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers import only
from waiting import until

from sqlq_spark import errors
from sqlq_spark.database import transaction
from sqlq_spark.database.postgresql import connection as postgresql
from sqlq_spark.receive import poison
from sqlq_spark.receive import task as module
from sqlq_spark.receive.receipts import return_
from sqlq_spark.receive.task import Task, receive
from sqlq_spark.wire.rows import Origin

from .conftest import ON_DATABASE, TIMEOUT, Bench, bodies

# ----- what a task takes -----------------------------------------------------------------------


def test_a_message_arrives_as_the_endpoint_sent_it(bench: Bench) -> None:
    """Id, headers and body, byte for byte, a body of NULL too; the receipt counts them."""
    text = '{"key\\/with":"\\uD83D\\uDE80","n":null,"ü":"x \\u0000"}'
    sent = [b"\xef\xbb\xbf{}\x00\xff", None, b""]
    ids = [bench.dotnet.send(bench.queue, text, body).bytes for body in sent]
    stream, origin = bench.new_stream(), Origin(query_id="q", query_batch=7)

    task = bench.task(stream, batch=3, task=2)
    rows = receive(bench.open(), task, origin=origin)

    whole = {"expires": None, "headers": text}
    assert rows.to_pylist() == [
        {"id": ids[at], **whole, "body": body, "seq": at + 1} for at, body in enumerate(sent)
    ]
    assert bench.seqs() == []
    weight = 3 * len(text.encode()) + 7
    columns = "stream, batch, task, queue, messages, expired, diverted, bytes"
    assert bench.dotnet.state_rows("receipt", f"{columns}, query_id, query_batch, settled") == [
        (stream, 3, 2, bench.stated, 3, 0, 0, weight, "q", 7, False)
    ]


@ON_DATABASE
@given(
    sizes=st.lists(st.integers(0, 3000), max_size=25),
    held=st.sets(st.integers(0, 24), max_size=8),
    first=st.integers(0, 26),
    stop=st.integers(0, 26),
    messages=st.integers(1, 26),
    ceiling=st.integers(1, 12_000),
    step=st.integers(1, 4000),
    guess=st.floats(0.5, 5000),
)
def test_a_task_takes_exactly_the_lowest_of_its_range_that_fit(
    bench: Bench,
    *,
    sizes: list[int],
    held: set[int],
    first: int,
    stop: int,
    messages: int,
    ceiling: int,
    step: int,
    guess: float,
) -> None:
    """
    Skipping what others hold, up to the count, and until the rows before weigh the ceiling.

    Whatever the size of a step, and however wrong the guess of what a message weighs.
    """
    stream = bench.new_stream()
    bench.dotnet.dba.empty(bench.queue)
    bench.dotnet.send_many(bench.queue, [b"x" * size for size in sizes])
    there = bench.dotnet.rows(bench.queue)
    base = there[0].seq if there else 0
    locked = {base + at for at in held}
    free = [row for row in there if base + first <= row.seq < base + stop and row.seq not in locked]
    expected, before = [], 0
    for row in free[:messages]:
        if before >= ceiling:
            break
        expected.append(row.seq)
        before += len(row.body or b"") + len(row.headers or "")
    task = bench.task(
        stream,
        first=base + first,
        stop=base + stop,
        messages=messages,
        bytes=ceiling,
        bytes_each=guess,
    )

    with bench.dotnet.hold(bench.queue, sorted(locked)), pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "STEP", step)
        rows = bench.receive(task)

    assert rows["seq"].to_pylist() == expected
    assert bench.seqs() == [row.seq for row in there if row.seq not in expected]


def test_a_task_holds_64_mib_and_a_larger_message_alone(bench: Bench) -> None:
    """A message that weighs more than a task may hold comes with nothing behind it."""
    bench.dotnet.send(bench.queue, body=b"\xa5" * 100_000_000)
    bench.dotnet.send_many(bench.queue, [b"x" * 1_048_576] * 66)
    stream = bench.new_stream()

    rows = bench.receive(bench.task(stream))

    assert [len(body) for body in bodies(rows)] == [100_000_000]
    assert bench.receive(bench.task(stream)).equals(rows)
    second = bench.receive(bench.task(stream, batch=2, bytes_each=100.0))
    assert second["seq"].to_pylist() == list(range(2, 66))
    assert bench.seqs() == [66, 67]


def test_expired_messages_are_counted_and_gone(bench: Bench) -> None:
    """By the database's clock, poison too; one that still lives keeps its time."""
    bench.dotnet.send(bench.queue, body=b"dead", lives=-1)
    bench.dotnet.send(bench.queue, "[]", lives=-1)
    bench.dotnet.send(bench.queue, body=b"zero", lives=0)
    bench.dotnet.send(bench.queue, body=b"alive", lives=60_000)
    bench.dotnet.send(bench.queue, body=b"eternal")
    expires = bench.dotnet.rows(bench.queue)[3].expires

    rows = bench.receive(bench.task(bench.new_stream(), error_address=bench.errors))

    assert bodies(rows) == [b"alive", b"eternal"]
    assert rows["expires"].to_pylist() == [expires, None]
    assert bench.seqs() == []
    assert bench.bodies(bench.errors) == []
    assert bench.dotnet.state_rows("receipt", "messages, expired, diverted") == [(2, 3, 0)]


# ----- receipts --------------------------------------------------------------------------------


@ON_DATABASE
@given(sizes=st.lists(st.integers(0, 2000), max_size=20), later=st.integers(0, 5))
def test_a_receipt_replays_identical_rows_in_identical_order(
    bench: Bench, sizes: list[int], later: int
) -> None:
    """Also an empty one, and also when messages came after it: they are for the next batch."""
    bench.dotnet.dba.empty(bench.queue)
    stream = bench.new_stream()
    bench.dotnet.send_many(bench.queue, [b"y" * size for size in sizes])
    first = bench.receive(bench.task(stream))
    bench.dotnet.send_many(bench.queue, [b"later"] * later)

    again = bench.receive(bench.task(stream))

    assert again.equals(first)
    assert first.num_rows == len(sizes)
    assert len(bench.seqs()) == later


def test_a_replay_gives_messages_that_expired_since(bench: Bench) -> None:
    """What was received once is received, however long Spark takes."""
    for lives in (300, 3_000, 30_000):  # a machine that stands still may find it expired
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
    """It waits before it takes anything: it would skip the rows, and leave an empty receipt."""
    bench.dotnet.send_many(bench.queue, [b"%d" % at for at in range(50)])
    task, second = bench.task(bench.new_stream()), bench.session("second")

    with bench.running(task, "first") as rows:
        do = partial(receive, task=task, origin=Origin())
        attempt = bench.thread(lambda: second.run_with_retries(do))
        bench.blocked("second")
        assert not attempt.done()

    assert attempt.result(timeout=TIMEOUT).equals(rows)
    assert rows.num_rows == 50


# ----- the fence -------------------------------------------------------------------------------


def test_a_receipt_beside_a_returned_one_is_still_handed_out(bench: Bench) -> None:
    """With failOnDataLoss=false: only what was returned is in the queue again."""
    bench.dotnet.send_many(bench.queue, [b"0", b"1", b"2"])
    stream = bench.new_stream()
    tasks = [bench.task(stream, task=at, first=at + 1, stop=at + 2) for at in range(2)]
    for task in tasks:
        bench.receive(task)
    with transaction(bench.desk, timeout=TIMEOUT):
        return_(bench.desk, (stream, 1, 0), bench.queue)

    accepting = bench.source(failOnDataLoss="false")
    again = [bench.receive(replace(task, options=accepting)) for task in tasks]

    assert [bodies(rows) for rows in again] == [[], [b"1"]]
    assert bench.bodies() == [b"2", b"0"]


def test_a_zombie_after_the_ack_is_stale_and_leaves_the_queue_alone(bench: Bench) -> None:
    """The batch is closed; with failOnDataLoss=false it receives nothing."""
    bench.dotnet.send(bench.queue)
    stream = bench.new_stream()
    bench.receive(bench.task(stream))
    bench.ack(stream, 1)
    bench.dotnet.send(bench.queue, body=b"new")

    with pytest.raises(errors.StaleTask) as caught:
        bench.receive(bench.task(stream))
    accepting = bench.receive(bench.task(stream, fail_on_data_loss=False))

    assert str(caught.value) == (
        f"task 0 of batch 1 of stream {stream} ran after the batch was acknowledged (up to 1). "
        "It is an earlier attempt that was abandoned, or the checkpoint was rolled back or copied."
    )
    assert accepting.num_rows == 0
    assert bench.bodies() == [b"new"]
    assert bench.dotnet.state_rows("receipt", "batch") == []


def test_a_stream_unknown_to_the_state_tables_receives_nothing(bench: Bench) -> None:
    """The state tables were made again, or are another database's."""
    bench.dotnet.send(bench.queue)
    stream = str(uuid.uuid4())

    with pytest.raises(errors.StreamNotFound) as caught:
        bench.receive(bench.task(stream))

    where = f"stream {stream} of this checkpoint is not in schema {bench.dotnet.state} of"
    assert where in str(caught.value)
    assert bench.seqs() == [1]


def test_a_wait_longer_than_query_timeout_ends(bench: Bench) -> None:
    """A table that a DBA has locked blocks a task for queryTimeout, no longer."""
    task, session = bench.task(bench.new_stream()), bench.session(queryTimeout="1s")
    with bench.dotnet.locked(bench.queue), pytest.raises(errors.TimedOut) as caught:
        # a session that was idle for so long is ended, which is another matter
        session.run_with_retries(partial(receive, task=task, origin=Origin()))

    assert "Raise the option queryTimeout" in str(caught.value)


# ----- poison ----------------------------------------------------------------------------------


@only("postgresql", "an id that must be unique")
def test_poison_whose_id_is_in_the_error_queue_gets_a_new_one(bench: Bench) -> None:
    """What lies there already is not touched."""
    row = bench.dotnet.send(bench.queue, "[]", b"second")
    bench.dotnet.send(bench.errors, "{}", b"first", row=row)

    bench.receive(bench.task(bench.new_stream(), error_address=bench.errors))

    first, second = bench.dotnet.rows(bench.errors)
    assert (first.id, first.body) == (row, b"first")
    assert (second.headers, second.body) == ("[]", b"second")
    assert second.id != row


@only("postgresql", "a seq that must be unique, and a sequence behind it")
def test_poison_that_the_error_queue_refuses_stays_in_its_queue(bench: Bench) -> None:
    """Under any id, as where its sequence was set back: nothing is taken, the error has the fix."""
    there = [b"1", b"2", b"3"]
    bench.dotnet.send_many(bench.errors, there)
    bench.dotnet.dba.on(bench.errors, "UPDATE {queue} SET Seq = Seq + 3")
    bench.dotnet.send(bench.queue, "[]", b"poison")
    task = bench.task(bench.new_stream(), error_address=bench.errors)

    with pytest.raises(errors.StatementFailed, match="let it go on behind the highest seq"):
        bench.receive(task)

    assert bench.bodies() == [b"poison"]
    assert bench.bodies(bench.errors) == there
    bench.receive(task)  # by then its sequence has gone on
    assert bench.bodies(bench.errors) == [*there, b"poison"]


def test_without_its_error_queue_nothing_is_taken(bench: Bench) -> None:
    """The poison, and the batch with it, stays until the error queue is made."""
    bench.dotnet.send(bench.queue, "[]")
    absent = bench.beside("absent")
    stream = bench.new_stream()

    with pytest.raises(errors.QueueNotFound):
        bench.receive(bench.task(stream, error_address=absent))

    assert bench.seqs() == [1]
    assert bench.dotnet.state_rows("receipt", "batch") == []


# ----- others at the queue ---------------------------------------------------------------------


def test_with_competing_consumers_every_message_is_in_exactly_one_place(bench: Bench) -> None:
    """Three endpoints delete one row at a time while our tasks receive in sets."""
    total, stream = 3000, bench.new_stream()
    begun = threading.Barrier(5)  # nobody goes on before each has got something
    bench.dotnet.send_many(bench.queue, [b"%d" % at for at in range(total)])
    sent = {row.id.bytes for row in bench.dotnet.rows(bench.queue)}

    def compete() -> list[bytes]:
        dotnet = bench.dotnet.consumer()
        got: list[bytes] = []
        while len(got) < 300 and (row := dotnet.receive(bench.queue)) is not None:
            got.append(row.id.bytes)
            if len(got) == 1:
                begun.wait(TIMEOUT)
        return got

    def ours(at: int) -> list[bytes]:
        connection = bench.open(f"task {at}")
        whole = bench.task(stream, task=at, first=at * 1500 + 1, stop=at * 1500 + 1501)
        ids: list[bytes] = []
        for batch in range(1, 6):
            task = replace(whole, batch=batch, messages=200 if batch < 5 else total)
            ids += bench.receive(task, connection)["id"].to_pylist()
            if batch == 1:
                begun.wait(TIMEOUT)
        return ids

    threads = [bench.thread(compete) for _ in range(3)]
    threads += [bench.thread(partial(ours, at)) for at in range(2)]
    got = [thread.result(timeout=TIMEOUT) for thread in threads]
    left = [row.id.bytes for row in bench.dotnet.rows(bench.queue)]

    everywhere = [row for part in got for row in part] + left
    assert sorted(everywhere) == sorted(sent)
    assert min(map(len, got)) > 0


@pytest.mark.usefixtures("impatient")
def test_a_session_lost_at_any_statement_of_a_task_is_answered_by_doing_it_again(
    bench: Bench,
) -> None:
    """Each message is in one place, whether the statement or only its answer was lost."""
    large = b"x" * 5000
    for session, _ in bench.strikes():
        bench.dotnet.dba.empty(bench.queue)
        bench.dotnet.dba.empty(bench.errors)
        for headers, body in (("{}", b"1"), ("[]", b"poison"), ("{}", large), ("{}", b"4")):
            bench.dotnet.send(bench.queue, headers, body)
        sent = {row.id.bytes for row in bench.dotnet.rows(bench.queue)}
        task = bench.task(
            bench.new_stream(),
            error_address=bench.errors,
            max_message_bytes=1000,
            bytes_each=9999.0,
        )

        rows = session.run_with_retries(partial(receive, task=task, origin=Origin()))

        moved = bench.dotnet.rows(bench.errors)
        assert sorted([*rows["id"].to_pylist(), *(row.id.bytes for row in moved)]) == sorted(sent)
        assert bodies(rows) == [b"1", b"4"]
        assert {row.body for row in moved} == {b"poison", large}
        assert bench.seqs() == []
        assert bench.receive(task).equals(rows)

    wanted = (
        "fence find_receipt receive find_large savepoint divert_large load release "
        "save_receipt commit"
    )
    assert set(wanted.split()) <= set(bench.struck)


@pytest.mark.usefixtures("impatient")
def test_a_session_lost_in_transaction_mode_none_repeats_nothing(bench: Bench) -> None:
    """At most once: without a receipt, messages are lost only where the commit's answer is."""
    for session, after in bench.strikes():
        bench.dotnet.send_many(bench.queue, [b"x"] * 3)
        sent = sorted(row.id.bytes for row in bench.dotnet.rows(bench.queue))
        task = bench.task(None)

        rows = session.run_with_retries(partial(receive, task=task, origin=Origin()))

        assert sorted(rows["id"].to_pylist()) == ([] if after else sent)
        assert bench.receive(task).num_rows == 0

    assert bench.dotnet.state_rows("receipt", "batch") == []
    assert {"receive", "commit"} <= set(bench.struck)


# ----- a whole range at once, on PostgreSQL ------------------------------------------------------


@only("postgresql", "another database deletes in one pass anyway")
@ON_DATABASE
@given(
    sizes=st.lists(st.integers(0, 3000), max_size=25),
    gone=st.sets(st.integers(0, 24), max_size=8),
    held=st.sets(st.integers(0, 24), max_size=2),
    messages=st.integers(1, 26),
    ceiling=st.integers(1, 30_000),
)
def test_a_range_that_is_deleted_at_once_holds_the_lowest_messages_of_the_queue(
    bench: Bench,
    *,
    sizes: list[int],
    gone: set[int],
    held: set[int],
    messages: int,
    ceiling: int,
) -> None:
    """Whatever is missing or held; up to the count, and about up to the ceiling."""
    stream = bench.new_stream()
    bench.dotnet.dba.empty(bench.queue)
    bench.dotnet.send_many(bench.queue, [b"x" * size for size in sizes])
    sent = bench.dotnet.rows(bench.queue)
    base = sent[0].seq if sent else 0
    table = f'"{bench.queue.schema}"."{bench.queue.table}"'
    bench.dotnet.execute(f"DELETE FROM {table} WHERE seq = ANY(%s)", [base + at for at in gone])
    there = [row for row in sent if row.seq - base not in gone]
    locked = [row.seq for row in there if row.seq - base in held]
    weights = {row.seq: len(row.body or b"") + len(row.headers or "") for row in there}
    free = [at for at in weights if at not in locked]
    task = bench.task(stream, first=base, stop=base + 25, messages=messages, bytes=ceiling)

    with bench.dotnet.hold(bench.queue, locked), pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgresql, "FEWEST", 0)
        patch.setattr(postgresql, "HELD", {})
        taken = bench.receive(task)["seq"].to_pylist()

    assert taken == free[: len(taken)]
    assert bench.seqs() == sorted(weights.keys() - {*taken})
    weight = sum(weights[at] for at in taken)
    assert len(taken) == min(messages, len(free)) or weight >= ceiling
    assert not taken or weight - weights[taken[-1]] < ceiling


@only("postgresql", "another database deletes in one pass anyway")
def test_a_queue_with_another_consumer_is_not_received_from_by_ranges(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    One statement waits 1 ms for its row, and is undone; the next task does not try it.

    The server counts the limit for each row, so a larger one adds up beside busy endpoints.
    """
    waits: list[float | None] = []
    patience = bench.desk.set_lock_timeout

    def wait(seconds: float | None) -> None:
        waits.append(seconds)
        patience(seconds)

    monkeypatch.setattr(bench.desk, "set_lock_timeout", wait)
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
    assert waits == [0.001]
    assert len(tried) == 1
    assert tried == postgresql.HELD
    assert bodies(bench.receive(ours(task=2))) == [b"b"]


# ----- messages larger than maxMessageBytes ---------------------------------------------------


BIG = b"x" * 5000
COUNTS = "messages, expired, diverted"


def large_task(bench: Bench, **limits: Any) -> Task:
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
        rows = bench.receive(large_task(bench))

    assert rows["body"].to_pylist() == [b"1", b"3"]
    moved = [(row.id, row.headers, row.body) for row in bench.dotnet.rows(bench.errors)]
    assert moved == [(sent[1], '{"a":"b"}', BIG)]
    assert bench.seqs() == [5]  # another consumer holds it
    assert bench.dotnet.state_rows("receipt", COUNTS) == [(2, 1, 1)]


def test_a_message_of_just_the_limit_is_received(bench: Bench) -> None:
    """Headers and body together; one byte more is too much."""
    bench.dotnet.send(bench.queue, "{}", b"x" * 998)
    bench.dotnet.send(bench.queue, "{}", b"x" * 999)

    rows = bench.receive(large_task(bench, bytes_each=500.0))

    assert rows["seq"].to_pylist() == [1]
    assert [len(row.body or b"") for row in bench.dotnet.rows(bench.errors)] == [999]


def test_without_an_error_queue_nothing_is_taken(bench: Bench) -> None:
    """The error names queue, seq and size."""
    for body in (b"1", BIG):
        bench.dotnet.send(bench.queue, "{}", body)

    with pytest.raises(errors.MessageTooLarge) as caught:
        bench.receive(large_task(bench, error_address=None))

    facts = {"queue": bench.printed, "seq": 2, "size": 5002, "largest": 1000}
    assert vars(caught.value) == facts
    assert bench.seqs() == [1, 2]


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
