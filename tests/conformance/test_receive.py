"""One task: what it takes, what it leaves, and what it must not touch."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from servers import only
from waiting import until

from sqlq_spark.database import transaction
from sqlq_spark.errors import QueueNotFound, StaleTask, StatementFailed, StreamNotFound, TimedOut
from sqlq_spark.receive import task as module
from sqlq_spark.receive.receipts import return_
from sqlq_spark.receive.task import TaskRules, receive
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.rows import Origin

from .conftest import TIMEOUT, Bench, Strike, strikes
from .shapes import cases

if TYPE_CHECKING:
    import pyarrow as pa

    from sqlq_spark.receive.task import Task

DATABASE = settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def bodies(rows: pa.Table) -> list[bytes | None]:
    """Return the bodies in the order they came."""
    found: list[bytes | None] = rows["body"].to_pylist()
    return found


# ----- what a task takes -----------------------------------------------------------------------


def test_a_message_arrives_as_the_endpoint_sent_it(bench: Bench) -> None:
    """Id, headers and body, byte for byte; the queue is empty after."""
    text = '{"key\\/with":"\\uD83D\\uDE80","n":null,"ü":"x \\u0000"}'
    row = bench.dotnet.send(bench.queue, text, b"\xef\xbb\xbf{}\x00\xff")

    rows = bench.receive(bench.task(bench.new_stream()))

    assert rows.to_pylist() == [
        {
            "id": row.bytes,
            "expires": None,
            "headers": text,
            "body": b"\xef\xbb\xbf{}\x00\xff",
            "seq": 1,
        }
    ]
    assert bench.seqs() == []


@DATABASE
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
    bench.dotnet.send_many(bench.queue, [b"x" * size for size in sizes], lives=None)
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


def test_rows_locked_by_a_competing_consumer_are_skipped_and_not_waited_for(bench: Bench) -> None:
    """The held ones stay, and can be received when they are free again."""
    bench.dotnet.send_many(bench.queue, [b"%d" % at for at in range(10)], lives=None)
    stream = bench.new_stream()

    with bench.dotnet.hold(bench.queue, [1, 4, 5]):
        rows = bench.receive(bench.task(stream))

    assert rows["seq"].to_pylist() == [2, 3, 6, 7, 8, 9, 10]
    assert bench.receive(bench.task(stream, batch=2))["seq"].to_pylist() == [1, 4, 5]


def test_a_message_of_100_mb_is_received_alone(bench: Bench) -> None:
    """It weighs more than a task may hold: it comes all the same, and nothing with it."""
    bench.dotnet.send(bench.queue, body=b"\xa5" * 100_000_000)
    bench.dotnet.send(bench.queue, body=b"small")
    stream = bench.new_stream()

    rows = bench.receive(bench.task(stream))

    assert rows.num_rows == 1
    assert len(rows["body"][0].as_py()) == 100_000_000
    assert bench.receive(bench.task(stream)).equals(rows)
    assert bodies(bench.receive(bench.task(stream, batch=2))) == [b"small"]


def test_a_task_holds_no_more_than_its_ceiling_of_1_mb_bodies(bench: Bench) -> None:
    """64 MiB, one message beyond it at the most; the rest waits for the next batch."""
    bench.dotnet.send_many(bench.queue, [b"x" * 1_048_576] * 70)
    stream = bench.new_stream()

    rows = bench.receive(bench.task(stream, bytes_each=100.0))

    assert rows["seq"].to_pylist() == list(range(1, 65))
    assert bench.seqs() == list(range(65, 71))


def test_null_and_empty_bodies_stay_what_they_are(bench: Bench) -> None:
    """A foreign writer's NULL is not an empty body."""
    for body in (None, b"", b"x"):
        bench.dotnet.send(bench.queue, body=body)

    rows = bench.receive(bench.task(bench.new_stream()))

    assert bodies(rows) == [None, b"", b"x"]


def test_expired_messages_are_counted_and_gone(bench: Bench) -> None:
    """By the database's clock; one that still lives keeps its time."""
    bench.dotnet.send(bench.queue, body=b"dead", lives=-1)
    bench.dotnet.send(bench.queue, body=b"zero", lives=0)
    bench.dotnet.send(bench.queue, body=b"alive", lives=60_000)
    bench.dotnet.send(bench.queue, body=b"eternal")
    expires = bench.dotnet.rows(bench.queue)[2].expires
    stream = bench.new_stream()

    rows = bench.receive(bench.task(stream))

    assert bodies(rows) == [b"alive", b"eternal"]
    assert rows["expires"].to_pylist() == [expires, None]
    assert bench.seqs() == []
    assert bench.dotnet.state_rows("receipt", "messages, expired, diverted") == [(2, 2, 0)]


def test_the_receipt_says_what_was_got(bench: Bench) -> None:
    """Counts, bytes of headers and bodies, and Spark's names of the micro-batch."""
    bench.dotnet.send(bench.queue, '{"a":"ü"}', b"12345")
    stream = bench.new_stream()
    origin = Origin(query_id="q", query_batch=7)

    receive(bench.open(), bench.task(stream, batch=3, task=2), timeout=TIMEOUT, origin=origin)

    columns = "stream, batch, task, messages, expired, diverted, bytes, query_id, query_batch"
    assert bench.dotnet.state_rows("receipt", f"{columns}, settled") == [
        (stream, 3, 2, 1, 0, 0, 15, "q", 7, False)
    ]


def test_the_receipt_names_the_queue_with_its_schema(bench: Bench) -> None:
    """Two schemas may hold queues of one name; the warning of orphans looks for the address."""
    bench.receive(bench.task(bench.new_stream()))

    assert bench.dotnet.state_rows("receipt", "queue") == [(bench.stated,)]


# ----- receipts --------------------------------------------------------------------------------


@DATABASE
@given(sizes=st.lists(st.integers(0, 2000), max_size=20), later=st.integers(0, 5))
def test_a_receipt_replays_identical_rows_in_identical_order(
    bench: Bench, sizes: list[int], later: int
) -> None:
    """Also an empty one, and also when messages came after it: they are for the next batch."""
    bench.dotnet.dba.empty(bench.queue)
    stream = bench.new_stream()
    bench.dotnet.send_many(bench.queue, [b"y" * size for size in sizes], lives=None)
    first = bench.receive(bench.task(stream))
    bench.dotnet.send_many(bench.queue, [b"later"] * later, lives=None)

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
    """It is blocked by the first one's lock, not by chance: nothing is shared between the two."""
    bench.dotnet.send_many(bench.queue, [b"%d" % at for at in range(50)], lives=None)
    stream, second = bench.new_stream(), bench.open("second")
    task = bench.task(stream)
    connection = bench.open("first")
    connection.run("begin")
    _, login = module.fence(connection, task)
    attempt = bench.thread(lambda: bench.receive(task, second))
    bench.blocked("second")
    kept = module.divert(connection, task, module.take(connection, task))
    module.save(connection, task, kept, login=login, origin=Origin())
    assert not attempt.done()
    connection.run("commit")

    assert attempt.result(timeout=TIMEOUT).equals(kept.rows)
    assert kept.rows.num_rows == 50


def test_a_second_attempt_takes_over_when_the_first_dies(bench: Bench) -> None:
    """The first one's rows are in the queue again with its rollback."""
    bench.dotnet.send_many(bench.queue, [b"%d" % at for at in range(50)], lives=None)
    stream, second = bench.new_stream(), bench.open("second")
    task = bench.task(stream)
    connection = bench.open("first")
    connection.run("begin")
    module.fence(connection, task)
    module.take(connection, task)
    attempt = bench.thread(lambda: bench.receive(task, second))
    bench.blocked("second")

    assert bench.dotnet.kill(f"{bench.name} first")
    assert attempt.result(timeout=TIMEOUT)["seq"].to_pylist() == list(range(1, 51))


def test_other_tasks_do_not_wait_for_one_another(bench: Bench) -> None:
    """Two tasks of a batch, and a task of another stream, run at once."""
    bench.dotnet.send_many(bench.queue, [b"%d" % at for at in range(30)], lives=None)
    stream, other = bench.new_stream(), bench.new_stream()
    connection = bench.open("first")
    connection.run("begin")
    task = bench.task(stream, first=1, stop=11)
    module.fence(connection, task)
    module.take(connection, task)

    second = bench.receive(bench.task(stream, task=1, first=11, stop=21))
    third = bench.receive(bench.task(other))

    assert second["seq"].to_pylist() == list(range(11, 21))
    assert third["seq"].to_pylist() == list(range(21, 31))


# ----- the fence -------------------------------------------------------------------------------


def test_a_receipt_beside_a_returned_one_is_still_handed_out(bench: Bench) -> None:
    """With failOnDataLoss=false: only what was returned is in the queue again."""
    bench.dotnet.send_many(bench.queue, [b"0", b"1", b"2"], lives=None)
    stream = bench.new_stream()
    tasks = [bench.task(stream, task=at, first=at + 1, stop=at + 2) for at in range(2)]
    for task in tasks:
        bench.receive(task)
    with transaction(bench.desk, timeout=TIMEOUT):
        return_(bench.desk, stream, 1, 0, bench.queue)

    again = [
        bench.receive(replace(task, rules=TaskRules(fail_on_data_loss=False))) for task in tasks
    ]

    assert [bodies(rows) for rows in again] == [[], [b"1"]]
    assert bench.bodies() == [b"2", b"0"]


def test_a_zombie_after_the_ack_is_stale_and_leaves_the_queue_alone(bench: Bench) -> None:
    """Also where its receipt was there once: the batch is closed."""
    bench.dotnet.send(bench.queue)
    stream = bench.new_stream()
    bench.receive(bench.task(stream))
    bench.ack(stream, 1)
    bench.dotnet.send(bench.queue, body=b"new")

    with pytest.raises(StaleTask) as caught:
        bench.receive(bench.task(stream))

    assert str(caught.value) == (
        f"task 0 of batch 1 of stream {stream} ran after the batch was acknowledged (up to 1). "
        "It is an earlier attempt that was abandoned, or the checkpoint was rolled back or copied."
    )
    assert bench.bodies() == [b"new"]
    assert bench.dotnet.state_rows("receipt", "batch") == []


def test_a_zombie_that_waits_for_the_ack_is_stale_too(bench: Bench) -> None:
    """It read nothing before the ack's commit that it could act on after."""
    bench.dotnet.send(bench.queue)
    stream, zombie, driver = bench.new_stream(), bench.open("zombie"), bench.open("driver")
    driver.run("begin")
    login = driver.rows("lock_stream", stream=stream, login=None)[0][5]
    none = dict.fromkeys(("messages", "expired", "diverted", "forwarded"), 0)
    driver.run("acknowledge", tables=None, stream=stream, login=login, batch=1, **none)
    attempt = bench.thread(lambda: bench.receive(bench.task(stream), zombie))
    bench.blocked("zombie")
    driver.run("commit")

    with pytest.raises(StaleTask):
        attempt.result(timeout=TIMEOUT)
    assert bench.seqs() == [1]


def test_without_fail_on_data_loss_a_stale_task_receives_nothing(bench: Bench) -> None:
    """The stream goes on; the queue is as little touched."""
    bench.dotnet.send(bench.queue)
    stream = bench.new_stream(acked=4)

    rows = bench.receive(bench.task(stream, batch=4, fail_on_data_loss=False))

    assert rows.num_rows == 0
    assert bench.seqs() == [1]


def test_a_stream_unknown_to_the_state_tables_receives_nothing(bench: Bench) -> None:
    """State tables made anew, or another database's."""
    bench.dotnet.send(bench.queue)
    stream = str(uuid.uuid4())

    with pytest.raises(StreamNotFound) as caught:
        bench.receive(bench.task(stream))

    assert f"stream {stream} of this checkpoint is not in schema {bench.dotnet.state} of" in str(
        caught.value
    )
    assert bench.seqs() == [1]


def test_a_task_of_transaction_mode_none_leaves_no_receipt(bench: Bench) -> None:
    """The delete is committed at once, the fence is not asked."""
    bench.dotnet.send(bench.queue, body=b"once")

    rows = bench.receive(bench.task(None))

    assert bodies(rows) == [b"once"]
    assert bench.seqs() == []
    assert bench.dotnet.state_rows("receipt", "batch") == []
    assert bench.receive(bench.task(None)).num_rows == 0


def test_a_queue_that_is_gone_is_told_by_its_name(bench: Bench) -> None:
    """The state tables are not blamed, whatever the names look like."""
    gone = QueueAddress(f"x{bench.dotnet.state}.orders", f"x{bench.dotnet.schema}")
    task = bench.task(bench.new_stream(), queue=gone)

    with pytest.raises(QueueNotFound):
        bench.receive(task)


def test_a_wait_longer_than_query_timeout_ends(bench: Bench) -> None:
    """A table that a DBA has locked blocks a task for queryTimeout, no longer."""
    task, session = bench.task(bench.new_stream()), bench.session()
    with bench.dotnet.locked(bench.queue), pytest.raises(TimedOut) as caught:
        # a session that was idle for so long is ended, which is another matter
        session.do(partial(receive, task=task, timeout=0.2, origin=Origin()))

    assert "Raise the option queryTimeout" in str(caught.value)


# ----- poison ----------------------------------------------------------------------------------

POISON = [
    "not JSON",
    '["an","array"]',
    "null",
    '"text"',
    "7",
    '{"nested":{"a":"b"}}',
    '{"list":[]}',
    '{"number":1}',
    '{"truth":true}',
    '{"trailing":"comma",}',
    '{"half":"\\ud800"}',
    '{"half":"\\udc00 and more"}',
    '{"\\ud800":"in a name"}',
    '{"unclosed":"',
    "{'single':'quotes'}",
    '{"a":"b"} and more',
    '{"a":' * 3000,
    '{"nan":NaN}',
    '{"raw control":"a\nb"}',
    " ",
]
SOUND = [
    "",
    "{}",
    ' {"spaces" : "fine"}\n',
    '{"nothing":null}',
    '{"nul":"\\u0000"}',
    '{"twice":"a","twice":"b"}',
    '{"pair":"\\ud83d\\ude80"}',
    '{"":""}',
    '{"big":"' + "x" * 5_000_000 + '"}',
]


def test_poison_is_moved_to_the_error_queue_as_it_was(bench: Bench) -> None:
    """Its id, headers and body; the rest of the batch is untouched and in order."""
    sent = {
        text: bench.dotnet.send(bench.queue, text, b"of %d" % at)
        for at, pair in enumerate(zip(POISON, [*SOUND, *SOUND, *SOUND], strict=False))
        for text in pair
        if at < len(POISON)
    }

    rows = bench.receive(bench.task(bench.new_stream(), errors=bench.errors))

    moved = bench.dotnet.rows(bench.errors)
    assert [row.headers for row in moved] == POISON
    assert [row.id for row in moved] == [sent[text] for text in POISON]
    assert [row.body for row in moved] == [b"of %d" % at for at in range(len(POISON))]
    assert {row.expires for row in moved} == {None}
    assert set(rows["headers"].to_pylist()) == set(SOUND)
    assert bench.seqs() == []
    assert bench.dotnet.state_rows("receipt", "messages, diverted") == [
        (rows.num_rows, len(POISON))
    ]


@pytest.mark.parametrize("text", [None, ""])
def test_no_headers_are_not_poison(bench: Bench, text: str | None) -> None:
    """Empty text and NULL read as an empty object, also in an old table that allows NULL."""
    bench.dotnet.dba.allow_null_headers(bench.queue)
    bench.dotnet.send(bench.queue, text)

    rows = bench.receive(bench.task(bench.new_stream(), errors=bench.errors))

    assert rows["headers"].to_pylist() == [text]
    assert bench.dotnet.rows(bench.errors) == []


def test_poison_of_5_mb_without_a_body_is_moved_whole(bench: Bench) -> None:
    """NULL stays NULL."""
    bench.dotnet.send(bench.queue, "[" + "x" * 5_000_000, None)

    bench.receive(bench.task(bench.new_stream(), errors=bench.errors))

    (row,) = bench.dotnet.rows(bench.errors)
    assert row.headers == "[" + "x" * 5_000_000
    assert row.body is None


@only("postgresql", "an id that must be unique")
def test_poison_whose_id_is_in_the_error_queue_gets_a_new_one(bench: Bench) -> None:
    """What lies there already is not touched."""
    row = bench.dotnet.send(bench.queue, "[]", b"second")
    bench.dotnet.send(bench.errors, "{}", b"first", row=row)

    bench.receive(bench.task(bench.new_stream(), errors=bench.errors))

    first, second = bench.dotnet.rows(bench.errors)
    assert (first.id, first.body) == (row, b"first")
    assert (second.headers, second.body) == ("[]", b"second")
    assert second.id != row


@only("postgresql", "times beyond the year 9999")
@pytest.mark.parametrize("expires", ["infinity", "20000-01-01"])
def test_poison_that_expires_beyond_all_calendars_is_moved(bench: Bench, expires: str) -> None:
    """A time that Python has not stops no task."""
    bench.dotnet.send(bench.queue, "[]", b"poison", lives=3_600_000)
    bench.dotnet.dba.on(bench.queue, f"UPDATE {{queue}} SET Expires = '{expires}'")

    bench.receive(bench.task(bench.new_stream(), errors=bench.errors))

    assert [row.body for row in bench.dotnet.rows(bench.errors)] == [b"poison"]


@only("postgresql", "a seq that must be unique, and a sequence behind it")
def test_poison_that_the_error_queue_refuses_stays_in_its_queue(bench: Bench) -> None:
    """Under any id, as where its sequence was set back: nothing is taken, and the fix is told."""
    for body in (b"1", b"2", b"3"):
        bench.dotnet.send(bench.errors, "{}", body)
    bench.dotnet.dba.on(bench.errors, "UPDATE {queue} SET Seq = Seq + 3")
    bench.dotnet.send(bench.queue, "[]", b"poison")
    task = bench.task(bench.new_stream(), errors=bench.errors)

    with pytest.raises(StatementFailed, match="let it go on behind the highest seq"):
        bench.receive(task)

    assert bench.bodies() == [b"poison"]
    assert [row.body for row in bench.dotnet.rows(bench.errors)] == [b"1", b"2", b"3"]
    bench.receive(task)  # by then its sequence has gone on
    assert [row.body for row in bench.dotnet.rows(bench.errors)] == [b"1", b"2", b"3", b"poison"]


def test_poison_is_delivered_where_there_is_no_error_queue(bench: Bench) -> None:
    """Nothing is lost for want of an option."""
    for text in POISON:
        bench.dotnet.send(bench.queue, text)

    rows = bench.receive(bench.task(bench.new_stream()))

    assert rows["headers"].to_pylist() == POISON


def test_expired_poison_is_gone_and_not_moved(bench: Bench) -> None:
    """As in the transport, which looks at the expiry first."""
    bench.dotnet.send(bench.queue, "[]", lives=-1)

    bench.receive(bench.task(bench.new_stream(), errors=bench.errors))

    assert bench.dotnet.rows(bench.errors) == []
    assert bench.dotnet.state_rows("receipt", "messages, expired, diverted") == [(0, 1, 0)]


def test_without_its_error_queue_nothing_is_taken(bench: Bench) -> None:
    """The poison, and the batch with it, stays until the error queue is made."""
    bench.dotnet.send(bench.queue, "[]")
    absent = QueueAddress("absent", bench.dotnet.schema)
    stream = bench.new_stream()

    with pytest.raises(QueueNotFound):
        bench.receive(bench.task(stream, errors=absent))

    assert bench.seqs() == [1]
    assert bench.dotnet.state_rows("receipt", "batch") == []


# ----- others at the queue ---------------------------------------------------------------------


def test_with_competing_consumers_every_message_is_in_exactly_one_place(bench: Bench) -> None:
    """Three endpoints delete one row at a time while our tasks receive in sets."""
    total, stream = 3000, bench.new_stream()
    begun = threading.Barrier(5)  # nobody goes on before each has got something
    bench.dotnet.send_many(bench.queue, [b"%d" % at for at in range(total)], lives=None)
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
        ids: list[bytes] = []
        for batch in range(1, 6):
            task = bench.task(
                stream, batch=batch, task=at, first=at * 1500 + 1, stop=at * 1500 + 1501
            )
            rows = bench.receive(task if batch == 5 else small(task), connection)
            ids += rows["id"].to_pylist()
            if batch == 1:
                begun.wait(TIMEOUT)
        return ids

    def small(task: Task) -> Task:
        return bench.task(
            stream,
            batch=task.batch,
            task=task.task,
            first=task.first,
            stop=task.stop,
            messages=200,
        )

    threads = [bench.thread(compete) for _ in range(3)]
    threads += [bench.thread(partial(ours, at)) for at in range(2)]
    got = [thread.result(timeout=TIMEOUT) for thread in threads]
    left = [row.id.bytes for row in bench.dotnet.rows(bench.queue)]

    everywhere = [row for part in got for row in part] + left
    assert sorted(everywhere) == sorted(sent)
    assert min(len(part) for part in got[:3]) > 0
    assert min(len(part) for part in got[3:]) > 0


@pytest.mark.usefixtures("impatient")
def test_a_session_lost_at_any_statement_of_a_task_is_answered_by_doing_it_again(
    bench: Bench,
) -> None:
    """Each message is in one place, whether the statement or only its answer was lost."""
    bench.watched = True
    struck: list[str] = []
    for at, after in strikes(struck):
        bench.dotnet.dba.empty(bench.queue)
        bench.dotnet.dba.empty(bench.errors)
        bench.watched, bench.strike = False, None
        stream = bench.new_stream()
        for text in ("{}", "[]", "{}"):
            bench.dotnet.send(bench.queue, text)
        sent = {row.id.bytes for row in bench.dotnet.rows(bench.queue)}
        name = f"struck {at}"
        bench.watched = True
        bench.strike = Strike(at, partial(bench.dotnet.kill, f"{bench.name} {name}"), after)
        session = bench.session(name)
        task = bench.task(stream, errors=bench.errors)

        rows = session.do(partial(receive, task=task, timeout=TIMEOUT, origin=Origin()))

        bench.watched = False
        moved = [row.id.bytes for row in bench.dotnet.rows(bench.errors)]
        assert sorted([*rows["id"].to_pylist(), *moved]) == sorted(sent)
        assert rows.num_rows == 2
        assert bench.seqs() == []
        assert bench.receive(task).equals(rows)
        if bench.strike.fell is not None and not after:
            struck.append(bench.strike.fell)

    wanted = "fence task_lock find_receipt receive savepoint load release save_receipt commit"
    assert set(wanted.split()) <= set(struck)


# ----- older tables ----------------------------------------------------------------------------


@pytest.mark.parametrize("older", cases("older"))
def test_older_tables_are_received_from(bench: Bench, older: str) -> None:
    """Columns go by name."""
    bench.dotnet.dba.drop(bench.queue)
    bench.dotnet.dba.on(bench.queue, bench.dotnet.dba.shapes.older[older])
    big = older == "bigint seq"
    if big:
        bench.dotnet.dba.put_at(bench.queue, 3_000_000_000)
    row = bench.dotnet.send(bench.queue, '{"a":"b"}', b"body", lives=60_000)

    rows = bench.receive(bench.task(bench.new_stream()))

    found = rows.to_pylist()[-1 if not big else 0]
    assert (found["id"], found["headers"], found["body"]) == (row.bytes, '{"a":"b"}', b"body")
    assert found["expires"] is not None
    assert rows["seq"].to_pylist() == ([1, 3_000_000_000] if big else [1])
    assert bench.seqs() == []


@pytest.mark.usefixtures("impatient")
def test_a_session_lost_in_transaction_mode_none_repeats_nothing(bench: Bench) -> None:
    """At most once: nothing is lost but where the commit's answer is, and then all of it."""
    struck: list[str] = []
    for at, after in strikes(struck):
        bench.watched, bench.strike = False, None
        for _ in range(3):
            bench.dotnet.send(bench.queue)
        sent = sorted(row.id.bytes for row in bench.dotnet.rows(bench.queue))
        name = f"struck {at}"
        bench.watched = True
        bench.strike = Strike(at, partial(bench.dotnet.kill, f"{bench.name} {name}"), after)
        session = bench.session(name)
        task = bench.task(None)

        rows = session.do(partial(receive, task=task, timeout=TIMEOUT, origin=Origin()))

        bench.watched = False
        assert sorted(rows["id"].to_pylist()) == ([] if after else sent)
        assert bench.receive(task).num_rows == 0
        if bench.strike.fell is not None and not after:
            struck.append(bench.strike.fell)

    assert {"receive", "commit"} <= set(struck)
