"""The job error_triage: failures become columns and groups, and are returned once."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from jobs.submit import delta_rows
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark.admin.return_to_source import TOO_MANY
from sqlq_spark.functions import return_to_source
from sqlq_spark.jobs import error_triage as triage
from sqlq_spark.jobs.settings import BadSettings
from sqlq_spark.send.dispatch import give_up
from sqlq_spark.wire import returning
from sqlq_spark.wire.headers import (
    ENCLOSED_MESSAGE_TYPES,
    EXCEPTION_INFO,
    FAILED_Q,
    MESSAGE_ID,
    POISON_TYPE,
    TIME_OF_FAILURE,
    dumps,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from spark.stand import SparkQueue

    Start = Callable[..., triage.Retry]

pytestmark = pytest.mark.spark

TRACE = """System.InvalidOperationException: Order "{order}" is unknown
 ---> System.TimeoutException: after {order}
   at Shop.Db.Get(Guid id) in {place}/Db.cs:line {line}
   --- End of inner exception stack trace ---
   {at} Shop.Sales.Handler.<Handle>d__{number}.MoveNext() in {place}/Handler.cs:line {line}
   {at} Shop.Sales.<>c__DisplayClass{number}_0.<Run>b__{number}(Func`2 next)
"""
SAME = {"order": "a1", "place": "/src", "line": "42", "number": "5", "at": "at"}
WHEN = "2026-06-30 {}:00:00:000001 Z"
GUID = "0f6f8e9b-5f0a-4b55-8a54-b2a100c1d0f4"


def failed(message: str | None = None, stack: str | None = None, **headers: str | None) -> str:
    """Headers of a failed message."""
    info = {"ExceptionType": "Bad", "Message": message, "StackTrace": stack}
    named = {f"{EXCEPTION_INFO}{name}": text for name, text in info.items() if text is not None}
    return dumps(named | {name: text for name, text in headers.items() if text is not None})


def trace(**parts: str) -> str:
    """Headers with a stack."""
    return failed(f"Order {parts} is unknown", TRACE.format(**SAME | parts))


def failures(spark: SparkSession, *headers: str | None) -> DataFrame:
    """The failures of messages with these headers, their ids `1`, `2` and so on."""
    rows = [(str(at), text, b"%d" % at, at, "e") for at, text in enumerate(headers, 1)]
    kinds = "id string, headers string, body binary, seq bigint, queue string"
    return triage.failures(spark.createDataFrame(rows, kinds)).coalesce(1)


def digests(spark: SparkSession, *headers: str | None) -> list[str]:
    """The digest of each."""
    return [row[0] for row in failures(spark, *headers).select("digest").collect()]


# ---------------------------------------------------------------- columns and groups


def test_failures_of_one_kind_have_one_digest_and_others_another(spark: SparkSession) -> None:
    """Line, build, order, machine and language do not count. The stack and the exception do."""
    parts = {"order": GUID, "line": "7", "place": "C:\\\\build\\\\17", "number": "12", "at": "bei"}
    alike: list[list[str | None]] = [
        [trace(), *(trace(**{name: text}) for name, text in parts.items())],
        [trace().replace("Bad", "Worse")],
        [failed(stack="   at Shop.Other() in x.cs:line 1\n")],
        [failed(stack="   at Shop.Other(Int32 n)\n")],
        [failed(f"Order {who} ms") for who in ('"a" took 17', '"b" took 3', "'c' took 3")],
        [failed(f"at {text}") for text in (f"0x7fff {GUID}", f"0xdeadBEEF {GUID.upper()}")],
        [failed("no\nstack"), failed("no\nstack")],
        ["{}", "", "[]", "poison", None],
    ]

    found = iter(digests(spark, *(text for group in alike for text in group)))

    groups = [{next(found) for _ in group} for group in alike]
    assert [len(group) for group in groups] == [1] * len(alike)
    assert len(set.union(*groups)) == len(alike)
    assert all(len(each) == 16 for group in groups for each in group)


# Units that a text may repeat very often: blanks, words, calls, and Java's ends of lines.
UNITS = (" ", " a", "x(", "\n", " \u2028", " \u0085x ", " \u2029x", "\r x ", "\x0b \f", "\n at x(")


def test_a_digest_of_hostile_text_is_quick(spark: SparkSession) -> None:
    """No text makes the patterns backtrack or read a part twice, however long it is."""
    size = 300_000
    hostile = [
        failed("'" * size, each) for unit in UNITS for each in (unit * size, f"   at {unit * size}")
    ]
    java: Any = spark._jvm  # noqa: SLF001 - the pattern without the cut
    frame = java.java.util.regex.Pattern.compile(triage.FRAME)

    assert len(digests(spark, *hostile, failed("0x" * size), failed("0" * size))) == 22
    assert [frame.matcher(unit * size).replaceAll("") == unit * size for unit in UNITS] == [
        True
    ] * 10


def test_a_digest_reads_the_beginning_of_a_text(spark: SparkSession) -> None:
    """Only 64 kB are read. A line feed begins a frame, and any end of a line ends it."""
    frame, other = "   at Shop.A()\n", "   at Shop.B()\n"
    many = frame * (triage.LONGEST_TEXT // len(frame) + 1)
    message = "x" * triage.LONGEST_TEXT
    alike = [
        *(failed(stack=f"{frame}{end}{other}") for end in ("\u2028", "\u0085", "\u2029")),
        failed(stack=frame),
    ]

    found = digests(spark, *alike)
    long = digests(spark, *(failed(stack=many + each) for each in ("", other)))
    texts = digests(spark, *(failed(message + each) for each in ("", "y")))
    two, one = digests(spark, failed(stack=frame + other), failed(stack=frame))

    assert [len({*each}) for each in (found, long, texts)] == [1, 1, 1]
    assert two != one


def test_a_group_has_what_its_failures_have_in_common(spark: SparkSession) -> None:
    """A group has their number, times, last message, queues and types. Poison is a group, too."""
    texts = [
        failed(f"'{at}'", **{MESSAGE_ID: own, TIME_OF_FAILURE: WHEN.format(hour)} | more)
        for at, own, hour, more in (
            (1, "m", "09", {FAILED_Q: "a", ENCLOSED_MESSAGE_TYPES: "Shop.B, Shop;Shop.IA, Shop"}),
            (2, None, "11", {FAILED_Q: "b"}),
            (3, "n", "10", {FAILED_Q: "a", ENCLOSED_MESSAGE_TYPES: "Shop.A"}),
        )
    ]
    table = failures(spark, *texts, "[]")

    groups = table.groupBy("digest").agg(*map(F.expr, triage.GROUPS)).collect()
    poison, found = sorted((row.asDict() for row in groups), key=lambda row: row["failures"])

    assert [row[0] for row in table.select("messageId").collect()] == ["m", "2", "n", "4"]
    assert [str(found[name])[11:13] for name in ("firstSeen", "lastSeen")] == ["09", "11"]
    rest = ("failures", "returned", "exceptionType", "sampleMessage", "failedQueues")
    assert [found[name] for name in rest] == [3, 0, "Bad", "'2'", ["a", "b"]]
    assert found["messageTypes"] == ["Shop.A", "Shop.B", "Shop.IA"]
    assert [poison["exceptionType"], poison["messageTypes"]] == [None, []]


def test_a_message_that_no_endpoint_can_read_has_no_failed_queue(spark: SparkSession) -> None:
    """Spark could parse it, and would return another message."""
    sound = f'{{"{FAILED_Q}":"orders","n":null}}'
    poison = [f'{{"{FAILED_Q}":"orders","n":7}}', sound + " more", sound.replace("null", "{}")]

    table = failures(spark, sound, *poison).collect()

    assert [row["failedQueue"] for row in table] == ["orders", None, None, None]


# ---------------------------------------------------------------- return

BEFORE_SEND, BEFORE_MARK = "before the send", "before the mark"
GAPS = pytest.mark.parametrize("gap", [BEFORE_SEND, BEFORE_MARK])


class Killed(Exception):
    """Ends a retry between two steps."""


@pytest.fixture
def options(queue: SparkQueue) -> dict[str, str]:
    """Options of the sink, which a test may change between two runs."""
    return {"stateSchema": queue.place.state}


@pytest.fixture
def retry(queue: SparkQueue, options: dict[str, str]) -> Start:
    """Give a function that makes a Retry of some of four failures, as a new process does."""
    errors, table = queue.another("e"), str(queue.folder / "failures")
    rows = [dumps({MESSAGE_ID: f"m-{at}", FAILED_Q: queue.name}) for at in range(1, 5)]
    failures(queue.spark, *rows).write.format("delta").save(table)

    def start(*ids: str, **more: Any) -> triage.Retry:
        settings = triage.TriageSettings(
            url=queue.place.url,
            queue=errors.name,
            table=table,
            mode="retry",
            ids=ids,
            source=dict(options),
            sink=dict(options),
            **more,
        )
        return triage.Retry(queue.spark, settings)

    return start


def state(made: triage.Retry) -> dict[str, tuple[bool, bool]]:
    """Which failures have a request, and which are returned."""
    columns = "failureId", "request IS NOT NULL", "returned IS NOT NULL"
    return {name: (*marks,) for name, *marks in made.rows.selectExpr(*columns).collect()}


def counted(made: triage.Retry) -> dict[str, int]:
    """What was done to failures, and to how many."""
    return {name: total for name, total in made.totals.items() if total}


def killed(retry: Start, gap: str, *ids: str, limit: int | None = None) -> str:
    """Begin a return of these messages, and end it in a gap. Return the pending request."""
    made = retry(*ids)
    update = made._update  # noqa: SLF001 - the second gap is before its second call

    def end(*_: object) -> str:
        raise Killed

    def update_once(which: str, change: str) -> None:
        if change.startswith("returned ="):
            raise Killed
        update(which, change)

    name, replacement = ("send", end) if gap == BEFORE_SEND else ("_update", update_once)
    setattr(made, name, replacement)
    with pytest.raises(Killed):
        made.do(limit)
    (request,) = retry().pending()
    return request


@GAPS
def test_the_oldest_of_a_choice_are_returned_once(
    queue: SparkQueue, retry: Start, gap: str
) -> None:
    """Failures are ordered by time, and then by seq in the error queue. The others stay free."""
    ids = [f"m-{at}" for at in range(1, 5)]
    earlier = "timeOfFailure = TIMESTAMP '2020-01-01 00:00:00Z'"
    retry()._update("failureId = '4'", earlier)  # noqa: SLF001
    request = killed(retry, gap, *ids, limit=2)
    open_, free = (True, False), (False, False)
    assert state(retry()) == {"1": open_, "2": free, "3": free, "4": open_}
    assert queue.count() == (0 if gap == BEFORE_SEND else 2)

    again = retry(*ids)
    again.resume()
    again.finish(request, "resumed")
    again.do(0)
    assert sorted(queue.ids()) == ["m-1", "m-4"]
    again.do(3)
    assert sorted(queue.ids()) == ["m-1", "m-2", "m-4"]
    again.do(9)
    assert sorted(queue.ids()) == ids
    assert counted(again) == {"resumed": 2, "returned": 2}
    assert [again.pending(), {*state(again).values()}] == [[], {(True, True)}]


def test_what_no_endpoint_can_read_stays(
    queue: SparkQueue, retry: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules are those of the command. In addition, a run returns to MOST_QUEUES at most."""
    monkeypatch.setattr(triage, "MOST_QUEUES", 1)
    other = queue.another("other").name.replace("'", "''")
    made = retry("m-1", "m-2", "m-3", "m-4")
    made._update("seq = 1", f"exceptionType = '{POISON_TYPE}'")  # noqa: SLF001
    made._update("seq = 2", "failedQueue = repeat('x', 5000)")  # noqa: SLF001
    made._update("seq = 3", f"failedQueue = '{other}'")  # noqa: SLF001

    made.do(None)

    (reason,) = made.staying.keys() - {returning.POISON, TOO_MANY}
    assert (made.totals["returned"], [*made.staying.values()]) == (1, [1, 1, 1])
    assert "1000 are the most" in reason


def test_one_rule_for_returns(queue: SparkQueue) -> None:
    """The function refuses what the command refuses, and both write the same headers."""
    exception = f"{EXCEPTION_INFO}ExceptionType"
    own = {MESSAGE_ID: "m", "a": None, "NServiceBus.RetriesX": "r", "NServiceBus.X": "x"}
    cases: list[dict[str, str | None]] = [
        own | {FAILED_Q: queue.name, exception: "Bad", TIME_OF_FAILURE: "t"},
        {FAILED_Q: queue.name},
        {FAILED_Q: ""},
        {FAILED_Q: None, exception: "Bad"},
        {FAILED_Q: queue.name, exception: POISON_TYPE},
        {FAILED_Q: queue.name, exception: f"{POISON_TYPE} "},
    ]
    row = "8f14e45f-ceea-467f-a0d9-0d3f6d3b2c12"
    kinds = "id string, headers string, body binary, seq bigint, queue string"
    for headers in cases:
        frame = queue.spark.createDataFrame([(row, dumps(headers), b"", 1, "e")], kinds)
        refusal = returning.find_refusal(headers.get(FAILED_Q), headers.get(exception))

        if refusal == returning.POISON:
            with pytest.raises(PySparkException, match='"Poison messages"'):
                frame.select(*return_to_source(json=True)).collect()
            continue
        (found,) = frame.select(*return_to_source(json=True)).collect()
        assert (found["queue"] is None) == (refusal == returning.NO_SOURCE)
        expected = json.loads(returning.write_headers(headers, row))
        assert {MESSAGE_ID: found["id"], **json.loads(found["headers"])} == expected


def test_only_failures_that_were_returned_long_ago_are_deleted(
    queue: SparkQueue, retry: Start
) -> None:
    """One that waits for a decision or a retry stays, however old it is."""
    made = retry(retention_days=7.0)
    old, new = (f"current_timestamp() - INTERVAL {days} DAYS" for days in (8, 6))
    made._update("true", f"receivedAt = {old}")  # noqa: SLF001
    for row, change in enumerate([f"returned = {old}", f"returned = {new}", "returned = NULL"], 1):
        made._update(f"failureId = '{row}'", f"request = 'r', {change}")  # noqa: SLF001

    done = [triage.tidy(queue.spark, made.settings) for _ in range(2)]

    assert done == [{"deletedFailures": 1}, {"deletedFailures": 0}]
    assert [*state(made)] == ["2", "3", "4"]
    assert len(delta_rows(queue.folder / "failures_groups")) == 1


def test_a_request_whose_queue_was_dropped_waits_for_it(queue: SparkQueue, retry: Start) -> None:
    """It goes on when the queue is there again, and stops no other request until then."""
    request = killed(retry, BEFORE_SEND, "m-1")
    queue.dba.drop(queue.address)
    made = retry("m-1", "2", "9", groups=("0",))

    made.finish(request, "resumed")

    ((reason, messages),) = made.staying.items()
    assert (counted(made), messages) == ({}, 1)
    assert re.search(r"cannot be finished: .*cannot insert into a queue", reason)
    assert made.missing() == ["0", "9"]
    queue.create()
    made.resume()
    assert counted(made) == {"resumed": 1}
    assert queue.ids() == ["m-1"]


def test_another_dispatch_log_does_not_send_again(
    retry: Start, queue: SparkQueue, options: dict[str, str]
) -> None:
    """A request that was sent and not marked waits under another stateSchema."""
    request = killed(retry, BEFORE_MARK, "m-1")
    options["stateSchema"] += "_2"
    replace(queue, place=replace(queue.place, state=options["stateSchema"])).install()
    other = retry(give_up=(request,))
    other.resume()
    options["stateSchema"] = queue.place.state
    again = retry()
    again.resume()

    ((reason, messages),) = other.staying.items()
    assert (counted(other), messages) == ({}, 1)
    assert "the dispatch log does not have it" in reason
    assert counted(again) == {"resumed": 1}
    assert queue.ids() == ["m-1"]


@GAPS
def test_a_request_that_is_given_up_is_never_sent_automatically(
    retry: Start, queue: SparkQueue, gap: str
) -> None:
    """Its failures are free again. If they were sent before, they are marked."""
    request = killed(retry, gap, "m-1", "m-2")
    asleep, made = retry(), retry("m-1", "m-2", give_up=(request,))
    rows = asleep.rows.where("request IS NOT NULL")

    if gap == BEFORE_SEND:  # as a run that is killed between the log and the rows
        triage.in_log(made.settings.write(request), give_up)
    asleep.send(request, rows, {queue.name: 2})
    made.resume()

    sent = gap == BEFORE_MARK
    assert counted(made) == ({"resumed": 2} if sent else {"freed": 2})
    assert queue.count() == (2 if sent else 0)
    made.do(None)
    assert made.totals["returned"] == (0 if sent else 2)
    assert sorted(queue.ids()) == ["m-1", "m-2"]
    with pytest.raises(BadSettings, match=f"names '{request}': expected a pending request .none."):
        made.resume()


def test_runs_that_mark_at_once_all_succeed(retry: Start) -> None:
    """Each run marks its own rows of one file. An earlier commit is no failure."""
    runs = [retry() for _ in range(4)]

    def mark(at: int) -> None:
        runs[at]._update(f"seq = {at + 1}", "returned = current_timestamp()")  # noqa: SLF001

    with ThreadPoolExecutor(len(runs)) as pool:
        list(pool.map(mark, range(len(runs))))

    assert {*state(retry()).values()} == {(False, True)}
