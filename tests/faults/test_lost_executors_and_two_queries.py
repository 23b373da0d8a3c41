"""
More than one process: executors die, retire and double, queries share; each message arrives once.

In local mode Spark neither tries a task again nor doubles it, so these run on a standalone cluster
(cluster.py). Each stream has 2,000 messages in a batch of two tasks, one for each executor.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import processes
import pytest
from spark.stand import numbered

from .cluster import HOSTS, Cluster, Order, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark.stand import Queue

pytestmark = [pytest.mark.spark, pytest.mark.faults]
HOLD = 100  # the row at which a task waits, of 1,000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Give a cluster that the tests share: six JVMs."""
    with running(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def check(queue: Queue, ids: list[str], first: int, stop: int) -> None:
    assert sorted(ids) == sorted(numbered(first, stop))
    assert [queue.count(), queue.state("receipt"), queue.state("staging")] == [0, 0, 0]


def replayed(order: Order, stream: int = 0) -> int:
    """
    Count the tasks that were tried twice or more, and check that each attempt saw the same rows.

    An attempt that died, or lost a race, saw the beginning of what the longest one saw.
    """
    tasks: dict[str, list[list[str]]] = {}
    for task, _, ids in order.witnesses(stream):
        tasks.setdefault(task, []).append(ids)
    for attempts in tasks.values():
        longest = max(attempts, key=len)
        assert all(ids == longest[: len(ids)] for ids in attempts)
    return sum(len(attempts) > 1 for attempts in tasks.values())


def test_two_queries_share_a_queue_and_failed_attempts_see_the_same_rows(
    cluster: Cluster, queue: Queue
) -> None:
    """A message goes to one of them; each task fails after the source has given it rows."""
    queue.fill(0, 4000)
    order = cluster.order()
    for _ in range(2):
        order.receive(queue, hold=HOLD, fail=3 * HOLD)

    cluster.start(order)
    cluster.until(lambda: order.answer.exists() or queue.state("stream") == 2)
    order.go()
    cluster.finish(order)

    assert replayed(order, 0) + replayed(order, 1) >= 2
    check(queue, order.landed(0) + order.landed(1), 0, 4000)
    assert queue.state("stream") == 2


def test_a_speculative_attempt_ends_with_the_same_rows(cluster: Cluster, queue: Queue) -> None:
    """Each waits until Spark has started the other beside it; one of them counts."""
    out = queue.another("out")
    queue.fill(0, 4000)
    order = cluster.order()
    order.receive(queue, out, double=True)

    cluster.start(order)
    cluster.finish(order)

    assert replayed(order) >= 1
    check(queue, out.ids(), 0, 4000)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGPWR, signal.SIGSTOP])
def test_an_executor_killed_decommissioned_or_frozen_in_mid_task(
    cluster: Cluster, queue: Queue, sign: signal.Signals
) -> None:
    """
    The task that was lost replays its receipt, and the executor's end or return changes nothing.

    SIGPWR decommissions: it takes no more tasks, ends the one it has, and goes. SIGSTOP: its tasks
    are done elsewhere, and when it goes on, Spark drops its rows. All tasks hold until the signal:
    otherwise a cold executor would lose its task to a speculative attempt.
    """
    queue.fill(0, 2000)
    order = cluster.order()
    order.receive(queue, hold=HOLD, pause=0.002)

    def held() -> list[tuple[str, int]]:
        return [(host, len(ids)) for _, host, ids in order.witnesses()]

    cluster.start(order)
    cluster.until(lambda: order.answer.exists() or (HOSTS[1], HOLD) in held())
    (executor,) = cluster.executors(HOSTS[1])
    stopped = [executor, *(processes.below(executor) if sign == signal.SIGSTOP else [])]
    for pid in stopped:
        os.kill(pid, sign)
    order.go()
    cluster.finish(order)

    assert replayed(order) >= (sign != signal.SIGPWR)
    check(queue, order.landed(), 0, 2000)
    if sign != signal.SIGSTOP:
        cluster.until(lambda: cluster.executors(HOSTS[1]) not in ([], [executor]))
        return
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    queue.fill(2000, 4000)
    again = cluster.order()
    again.receive(queue)
    cluster.start(again)
    cluster.finish(again)
    check(queue, again.landed(), 2000, 4000)
