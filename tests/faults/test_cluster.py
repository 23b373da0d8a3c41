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

import processes
import psycopg
import pytest
from spark.stand import Queue, numbered

from .cluster import HOSTS, Cluster, Order, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Place

pytestmark = [pytest.mark.spark, pytest.mark.faults]
HOLD = 100  # of a task's 1,000 rows


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Give a cluster that the tests share: six JVMs."""
    with running(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def queue(place: Place) -> Queue:
    """Give an empty queue."""
    made = Queue(place, "orders")
    made.install()
    made.create()
    return made


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
    assert sorted(order.landed(0) + order.landed(1)) == sorted(numbered(0, 4000))
    assert settled(queue) == [0, 0, 0]
    assert queue.state("stream") == 2


def test_a_speculative_attempt_ends_with_the_same_rows(cluster: Cluster, queue: Queue) -> None:
    """Each waits until Spark has started the other beside it; one of them counts."""
    out = queue.beside("out")
    out.create()
    queue.fill(0, 4000)
    order = cluster.order()
    order.receive(queue, out, double=True)

    cluster.start(order)
    cluster.finish(order)

    assert replayed(order) >= 1
    assert sorted(out.ids()) == sorted(numbered(0, 4000))
    assert settled(queue) == [0, 0, 0]


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGPWR, signal.SIGSTOP])
def test_an_executor_killed_decommissioned_or_frozen_in_mid_task(
    cluster: Cluster, queue: Queue, sign: signal.Signals
) -> None:
    """
    The task that was lost replays its receipt, and the executor's end or return changes nothing.

    SIGKILL: Spark starts another. SIGPWR decommissions: it takes no more tasks, ends the one it
    has, and goes. SIGSTOP: its tasks are done elsewhere, and when it goes on, Spark drops its rows.
    """
    queue.fill(0, 2000)
    order = cluster.order()
    order.receive(queue, hold=HOLD, pause=0.002)

    with held_in_mid_task(cluster, order) as executor:
        stopped = [executor, *(processes.below(executor) if sign == signal.SIGSTOP else [])]
        for pid in stopped:
            os.kill(pid, sign)
    cluster.finish(order)

    assert replayed(order) >= (sign != signal.SIGPWR)
    assert sorted(order.landed()) == sorted(numbered(0, 2000))
    assert settled(queue) == [0, 0, 0]
    if sign != signal.SIGSTOP:
        cluster.until(lambda: cluster.executors(HOSTS[1]) not in ([], [executor]))
        return
    thawed(cluster, queue, stopped)


HELD_PAGES = """
CREATE FUNCTION "{0}".hold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(7);
    RETURN NEW;
END$$;
CREATE TRIGGER hold BEFORE INSERT ON "{0}".receipt_page
   FOR EACH ROW WHEN (NEW.page >= 0) EXECUTE FUNCTION "{0}".hold()
"""


def test_an_executor_frozen_while_it_writes_its_receipt(cluster: Cluster, queue: Queue) -> None:
    """
    Its session holds the task's locks for as long as it is frozen: the next attempt ends it.

    A trigger holds the pages of the receipts, but not the lock, until both tasks are in their COPY.
    """
    queue.fill(0, 2000)
    queue.place.sql(f"""
        UPDATE {queue.name} SET body = (
            SELECT string_agg(uuid_send(gen_random_uuid()), '')
              FROM generate_series(1, 40) WHERE seq > 0)""")
    order = cluster.order()
    order.receive(queue, timeout="10s")
    copies = f"""
        SELECT count(*) FROM pg_stat_activity
         WHERE query LIKE 'COPY "{queue.place.state}"%' AND wait_event_type = 'Lock'"""

    with psycopg.connect(queue.place.url, autocommit=True) as locked:
        locked.execute(HELD_PAGES.format(queue.place.state).encode())
        locked.execute(b"SELECT pg_advisory_lock(7)")
        cluster.start(order)
        cluster.until(lambda: order.answer.exists() or queue.place.sql(copies) == [(2,)])
        (executor,) = cluster.executors(HOSTS[1])
        stopped = [executor, *processes.below(executor)]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
    cluster.finish(order)

    assert sorted(order.landed()) == sorted(numbered(0, 2000))
    assert settled(queue) == [0, 0, 0]
    thawed(cluster, queue, stopped)


def thawed(cluster: Cluster, queue: Queue, stopped: list[int]) -> None:
    """Let a frozen executor go on, and receive with it as if nothing had been."""
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    queue.fill(2000, 4000)
    again = cluster.order()
    again.receive(queue)
    cluster.start(again)
    cluster.finish(again)

    assert sorted(again.landed()) == sorted(numbered(2000, 4000))
    assert settled(queue) == [0, 0, 0]
