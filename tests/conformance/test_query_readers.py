"""Which stream of a Spark query may receive from a queue: one for each run of the query."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from waiting import until

from sqlq_spark import errors
from sqlq_spark.receive import receipts
from sqlq_spark.receive.task import receive
from sqlq_spark.wire.rows import NO_SPARK_BATCH, SparkBatch

from .conftest import TIMEOUT, Bench, bodies

if TYPE_CHECKING:
    from sqlq_spark.database import Connection
    from sqlq_spark.receive.batch import Task
    from sqlq_spark.wire.address import QueueAddress

QUERY, OTHER_QUERY = "6f1c4c1e-0000-4000-8000-000000000001", "6f1c4c1e-0000-4000-8000-000000000002"
RUN = SparkBatch(query_id=QUERY, run_id="run 1", number=7)
NEXT_RUN = replace(RUN, run_id="run 2")
IN_ANOTHER_QUERY = replace(RUN, query_id=OTHER_QUERY)
IN_NO_RUN = replace(RUN, run_id=None)


@dataclass(frozen=True)
class Case:
    """What the first stream did, and what a second stream asks for."""

    first: SparkBatch
    second: SparkBatch
    is_received: bool  # whether the second stream receives
    same_queue: bool = True


CASES = {
    "one run": Case(RUN, RUN, is_received=False),
    # the first stream belongs to a checkpoint that is lost
    "an earlier run": Case(RUN, NEXT_RUN, is_received=True),
    "another query": Case(RUN, IN_ANOTHER_QUERY, is_received=True),
    "another queue": Case(RUN, RUN, is_received=True, same_queue=False),
    # a function of the user took the name of the run away: in doubt the second one is refused
    "no run": Case(IN_NO_RUN, IN_NO_RUN, is_received=False),
    # a task in a thread that a user's function started has no names, and is not checked
    "no query": Case(NO_SPARK_BATCH, NO_SPARK_BATCH, is_received=True),
}


@pytest.mark.parametrize("name", CASES)
def test_one_stream_of_a_run_receives_from_a_queue(bench: Bench, name: str) -> None:
    """The other stream takes nothing and leaves no receipt, even if it was planned much later."""
    case = CASES[name]
    other = bench.create_queue("other")
    bench.dotnet.send(bench.queue, body=b"first")
    first = bench.new_stream()
    assert bodies(bench.receive(bench.task(first), spark_batch=case.first)) == [b"first"]
    queue = bench.queue if case.same_queue else other
    bench.dotnet.send(queue, body=b"second")
    task = bench.task(bench.new_stream(), queue=queue)

    if case.is_received:
        assert bodies(bench.receive(task, spark_batch=case.second)) == [b"second"]
        return
    for _ in range(2):
        with pytest.raises(errors.QueueReadTwice, match=f"streams, {first} and {task.stream}"):
            bench.receive(task, spark_batch=case.second)

    assert bench.waiting_bodies() == [b"second"]
    assert bench.dotnet.state_rows("receipt", "stream") == [(first,)]


def test_a_receipt_of_a_refused_stream_is_not_handed_out(bench: Bench) -> None:
    """A release without this rule may have written it. It holds a part of the messages only."""
    bench.dotnet.send(bench.queue)
    second = bench.task(bench.new_stream())
    bench.receive(second)
    bench.receive(bench.task(bench.new_stream()), spark_batch=RUN)

    with pytest.raises(errors.QueueReadTwice):
        bench.receive(second, spark_batch=RUN)


def test_a_stream_enters_itself_once_in_each_run(bench: Bench) -> None:
    """A later batch and a replay ask nothing more, and a new run asks once."""
    stream = bench.new_stream()
    bench.records_statements = True
    session = bench.new_session()
    entered = []
    for batch, spark_batch in ((1, RUN), (1, RUN), (2, RUN), (2, NEXT_RUN), (3, NEXT_RUN)):
        bench.statements.clear()
        bench.receive(bench.task(stream, batch=batch), session.open(), spark_batch)
        entered.append(bench.statements.count("enter_query"))

    assert entered == [1, 0, 0, 1, 0]


@pytest.mark.parametrize("queries", [1, 2])
def test_two_streams_that_enter_at_once(bench: Bench, queries: int) -> None:
    """The second waits for the first one's commit, and is refused if both are of one query."""
    bench.dotnet.send(bench.queue, body=b"message")
    first, second = bench.task(bench.new_stream()), bench.task(bench.new_stream())
    beside = RUN if queries == 1 else IN_ANOTHER_QUERY
    session = bench.new_session("second")
    work = partial(receive, task=second, spark_batch=beside)
    connection = bench.open_connection("first")

    connection.begin()
    enter(connection, first, bench.queue)
    attempt = bench.run_in_thread(lambda: session.run_with_retries(work))
    if queries == 1:
        until(lambda: bench.dotnet.waiting(f"{bench.session_prefix} second"))
        assert not attempt.done()
        connection.run("commit")
        with pytest.raises(errors.QueueReadTwice):
            attempt.result(timeout=TIMEOUT)
        assert bodies(bench.receive(first, spark_batch=RUN)) == [b"message"]
    else:
        assert bodies(attempt.result(timeout=TIMEOUT).rows) == [b"message"]
        connection.run("commit")


def enter(connection: Connection, task: Task, queue: QueueAddress) -> None:
    """Enter a task's stream in the transaction that is open."""
    connection.run(
        "enter_query",
        query_id=RUN.query_id,
        queue_name=connection.printed(queue),
        stream=task.stream,
        run_id=receipts.name_run(RUN),
    )
