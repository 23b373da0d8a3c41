"""
More than one process: executors die, retire and double, queries share; each message arrives once.

In local mode Spark neither tries a task again nor doubles it, so these run on a standalone cluster
(cluster.py). Each stream has 2,000 messages in a batch of two tasks, one for each executor.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from spark.stand import numbered

from .cluster import HOSTS, Cluster, Order, descendants, queues, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Place
    from spark.stand import Queue

pytestmark = [pytest.mark.spark, pytest.mark.faults]
HOLD = 100  # of a task's 1,000 rows
long = pytest.mark.skipif(
    os.environ.get("SQLQ_FAULTS_LONG") != "1", reason="SQLQ_FAULTS_LONG=1 runs it too"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Give a cluster that the tests share: six JVMs."""
    with running(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def queue(place: Place) -> Queue:
    """Give an empty queue."""
    return queues(place, "orders")[0]


@pytest.fixture
def out(queue: Queue) -> Queue:
    """Give another one on the same database, to be sent to."""
    return queues(queue.place, "out")[0]


def settled(queue: Queue) -> list[int]:
    """What is left in the queue, the receipts and the staging."""
    return [queue.count(), queue.state("receipt"), queue.state("staging")]


def replayed(order: Order, stream: int = 0) -> int:
    """
    How many tasks were tried twice or more; each attempt saw the same rows.

    An attempt that died, or lost a race, saw the beginning of what the longest one saw.
    """
    tasks: dict[tuple[int, int], list[list[str]]] = {}
    for each in order.witnesses(stream):
        tasks.setdefault((each.batch, each.partition), []).append(each.ids)
    for attempts in tasks.values():
        longest = max(attempts, key=len)
        assert all(ids == longest[: len(ids)] for ids in attempts)
    return sum(len(attempts) > 1 for attempts in tasks.values())


@contextmanager
def held_in_mid_task(cluster: Cluster, order: Order) -> Iterator[int]:
    """
    Start an order with `hold=HOLD`; when the second host's executor stands there, give its pid.

    Nothing goes on before the block's end: a cold executor would else lose its task to a
    speculative attempt on the warm one before it has seen a row.
    """
    cluster.start(order)
    cluster.until(lambda: order.answer.exists() or (HOSTS[1], HOLD) in held(order))
    assert (HOSTS[1], HOLD) in held(order), order.answer.read_text()
    (executor,) = cluster.executors(HOSTS[1])
    try:
        yield executor
    finally:
        order.go()


def held(order: Order) -> list[tuple[str, int]]:
    """Each attempt's host, and how many rows it has seen."""
    return [(each.host, len(each.ids)) for each in order.witnesses()]


def test_a_failed_attempt_is_tried_again_with_the_same_rows(cluster: Cluster, queue: Queue) -> None:
    """Each task fails after the source has given it rows."""
    queue.fill(0, 2000)
    order = cluster.order()
    order.receive(queue, fail=300)

    cluster.start(order)
    cluster.finish(order)

    assert replayed(order) == 2
    assert sorted(order.landed()) == sorted(numbered(0, 2000))
    assert settled(queue) == [0, 0, 0]


@pytest.mark.parametrize("sink", [pytest.param("parquet", marks=long), "sqlqueue"])
def test_a_speculative_attempt_ends_with_the_same_rows(
    cluster: Cluster, queue: Queue, out: Queue, sink: str
) -> None:
    """Each waits until Spark has started the other beside it; one of them counts."""
    queue.fill(0, 4000)
    order = cluster.order()
    order.receive(queue, out if sink == "sqlqueue" else None, double=True)

    cluster.start(order)
    cluster.finish(order)

    assert replayed(order) >= 1
    landed = out.ids() if sink == "sqlqueue" else order.landed()
    assert sorted(landed) == sorted(numbered(0, 4000))
    assert settled(queue) == [0, 0, 0]


@pytest.mark.parametrize("sink", ["parquet", pytest.param("sqlqueue", marks=long)])
def test_an_executor_killed_in_mid_task(
    cluster: Cluster, queue: Queue, out: Queue, sink: str
) -> None:
    """SIGKILL: Spark starts another, and the task that was lost replays its receipt."""
    queue.fill(0, 2000)
    order = cluster.order()
    order.receive(queue, out if sink == "sqlqueue" else None, hold=HOLD)

    with held_in_mid_task(cluster, order) as victim:
        os.kill(victim, signal.SIGKILL)
    cluster.finish(order)

    assert replayed(order) >= 1
    landed = out.ids() if sink == "sqlqueue" else order.landed()
    assert sorted(landed) == sorted(numbered(0, 2000))
    assert settled(queue) == [0, 0, 0]
    cluster.until(lambda: cluster.executors(HOSTS[1]) not in ([], [victim]))


@long
def test_two_queries_share_a_queue(cluster: Cluster, queue: Queue) -> None:
    """Each has a checkpoint of its own, so each is a stream; a message goes to one of them."""
    queue.fill(0, 6000)
    order = cluster.order()
    order.receive(queue, pause=0.0002)
    order.receive(queue, pause=0.0002)

    cluster.start(order)
    cluster.finish(order)

    assert all(len(order.landed(stream)) > 0 for stream in (0, 1))
    assert sorted(order.landed(0) + order.landed(1)) == sorted(numbered(0, 6000))
    assert settled(queue) == [0, 0, 0]
    assert queue.state("stream") == 2


@pytest.mark.parametrize("sink", ["parquet", pytest.param("sqlqueue", marks=long)])
def test_an_executor_decommissioned_in_mid_task(
    cluster: Cluster, queue: Queue, out: Queue, sink: str
) -> None:
    """SIGPWR: it takes no more tasks, ends the one it has, and goes."""
    queue.fill(0, 2000)
    order = cluster.order()
    order.receive(queue, out if sink == "sqlqueue" else None, hold=HOLD, pause=0.002)

    with held_in_mid_task(cluster, order) as retired:
        os.kill(retired, signal.SIGPWR)
    cluster.finish(order)

    replayed(order)
    landed = out.ids() if sink == "sqlqueue" else order.landed()
    assert sorted(landed) == sorted(numbered(0, 2000))
    assert settled(queue) == [0, 0, 0]
    cluster.until(lambda: retired not in cluster.executors(HOSTS[1]))


@long
def test_a_frozen_executor_that_comes_back(cluster: Cluster, queue: Queue) -> None:
    """SIGSTOP: its tasks are done elsewhere; when it goes on, nobody wants its rows any more."""
    queue.fill(0, 4000)
    order = cluster.order()
    order.receive(queue, hold=HOLD, pause=0.002)

    with held_in_mid_task(cluster, order) as frozen:
        pids = [frozen, *descendants(frozen)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
    try:
        cluster.finish(order)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    again = cluster.order()
    queue.fill(4000, 8000)
    again.receive(queue)
    cluster.start(again)
    cluster.finish(again)

    assert replayed(order) >= 1
    assert sorted(order.landed()) == sorted(numbered(0, 4000))
    assert sorted(again.landed()) == sorted(numbered(4000, 8000))
    assert settled(queue) == [0, 0, 0]
