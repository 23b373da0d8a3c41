"""`sqlqueue retire`: a queue is dropped only when nothing of it can be lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import pytest
from waiting import until

from sqlq_spark.cli import endpoints

from .database import STREAM, address, count, received, tables

if TYPE_CHECKING:
    from conftest import Place

    from .commands import Run

PUT = "INSERT INTO {} (id, headers, body) VALUES (gen_random_uuid(), '{{}}', '')"


@pytest.fixture
def words(place: Place, state: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Give the options of the test's own tables; nothing waits for the caches of endpoints."""
    monkeypatch.setattr(endpoints, "PATIENCE", 0)
    return (*state, "--subscription-table", address(place, "SubscriptionRouting"))


@pytest.fixture
def subscribed(run: Run, place: Place, orders: str, words: tuple[str, ...]) -> str:
    """Give the address of a queue with delayed messages and two topics, beside another's queue."""
    other = address(place, "Shop.Billing")
    run("create", other)
    run("create", orders, "--delayed")
    for endpoint, queue in (("Shop.Orders", orders), ("Shop.Billing", other)):
        subscription = ("Shop.Placed", "Shop.Paid", "--endpoint", endpoint, "--queue", queue)
        assert run("subscribe", *subscription, *words[2:]).code == 0
    return orders


def test_a_queue_is_unsubscribed_and_dropped_with_its_delayed_table(
    run: Run, place: Place, subscribed: str, words: tuple[str, ...]
) -> None:
    """Each step asks first, and says that it waits; other subscribers stay."""
    routing = address(place, "SubscriptionRouting")

    refused = run("retire", subscribed, *words, stdin="n\n")
    kept = count(place, routing)
    stopped = run("retire", subscribed, *words, stdin="y\n")
    left = tables(place)
    done = run("retire", subscribed, *words, stdin="y\n")

    assert (refused.code, kept) == (1, 4)
    assert f"This will end 2 subscriptions of {subscribed}." in refused.out
    assert stopped.code == 1
    assert "waiting 0 seconds: endpoints keep the subscribers" in stopped.out
    delayed = address(place, "Shop.Orders.Delayed")
    assert f"This will drop {subscribed} and {delayed} permanently." in stopped.out
    assert {"Shop.Orders", "Shop.Orders.Delayed"} < left
    assert (done.code, done.err) == (0, "Continue? [y/N]: ")
    assert done.out.endswith(f"{delayed} and {subscribed} dropped\n")
    assert tables(place) == {"Shop.Billing", "SubscriptionRouting"}
    assert place.sql(f"SELECT DISTINCT endpoint FROM {routing}") == [("Shop.Billing",)]
    assert run("retire", subscribed, *words).code == 3


def test_a_queue_with_messages_is_dropped_only_with_the_flag(
    run: Run, place: Place, subscribed: str, words: tuple[str, ...]
) -> None:
    """Waiting and delayed ones count; the subscriptions are ended, so that it can run empty."""
    run("send", subscribed, stdin='{"body": "1"}\n{"body": "2", "delay": "01:00:00"}')

    refused = run("retire", subscribed, *words, "--yes")
    kept = tables(place)
    discarded = run("retire", subscribed, *words, "--yes", "--discard-messages", "--json")
    (entry,) = run("trail", "--json", *words[:2]).objects

    assert (entry["action"], entry["queue"], entry["messages"]) == ("retire", subscribed, 2)
    assert refused.code == 1
    assert f"queue {subscribed} was not dropped: 2 messages would be lost; " in refused.err
    assert "Shop.Orders" in kept
    assert discarded.code == 0
    assert "with 2 messages permanently" in discarded.err
    assert discarded.objects == [
        {
            "queue": subscribed,
            "unsubscribed": [],
            "messages": 1,
            "delayed": 1,
            "dropped": [address(place, "Shop.Orders.Delayed"), subscribed],
            "recorded": True,
            "unread": [],
        }
    ]


def test_a_queue_of_which_a_stream_has_receipts_is_never_dropped(
    run: Run, place: Place, orders: str, words: tuple[str, ...]
) -> None:
    """Its messages could not be returned."""
    run("send", orders, stdin='{"body": "1"}\n{"body": "2"}')
    received(place, messages=2)

    refused = run("retire", orders, *words, "--yes", "--discard-messages")
    run("receipts", "drop", "--stream", STREAM, "--yes", *words[:2])
    done = run("retire", orders, *words, "--yes")

    assert refused.code == 1
    assert f"receipt {STREAM}/1/0 with 2 messages of it is open" in refused.err
    assert (done.code, done.err) == (0, "")
    assert "Shop.Orders" not in tables(place)


def test_a_queue_of_which_another_team_has_receipts_is_never_dropped(
    run: Run, place: Place, orders: str, words: tuple[str, ...]
) -> None:
    """Every state schema is looked into where none is named."""
    other = replace(place, state=f"{place.state}_other")
    assert run("install", "--state-schema", other.state).code == 0
    try:
        run("send", orders, stdin='{"body": "1"}')
        received(other, messages=1)

        refused = run("retire", orders, *words[2:], "--yes")
        run("receipts", "drop", "--stream", STREAM, "--yes", "--state-schema", other.state)
        done = run("retire", orders, *words[2:], "--yes")

        assert refused.code == 1
        assert f"receipt {STREAM}/1/0 with 1 message of it is open" in refused.err
        assert done.code == 0
    finally:
        place.sql(f"DROP SCHEMA {other.state} CASCADE")


def test_only_a_queue_can_be_retired(run: Run, place: Place, words: tuple[str, ...]) -> None:
    """Another table of that name is not dropped."""
    place.sql(f"CREATE TABLE {address(place, 'customer')} (id uuid)")

    refused = run("retire", address(place, "customer"), *words, "--yes")

    assert refused.code == 3
    assert "is not a queue: it has no column body" in refused.err
    assert tables(place) == {"customer"}


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
def test_a_message_that_arrives_meanwhile_is_not_lost(
    run: Run, place: Place, orders: str, words: tuple[str, ...], ending: str
) -> None:
    """It was sent before the lock and keeps the queue, or its sender waits and then fails."""
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s::regclass"

    def send(text: str) -> str:
        with psycopg.connect(place.url, autocommit=True) as other:
            try:
                other.execute(text.encode())
            except psycopg.errors.UndefinedTable:
                return "failed"
            return "sent"

    def meet() -> str:
        with psycopg.connect(place.url, autocommit=True) as watch, ThreadPoolExecutor(1) as pool:
            until(lambda: watch.execute(waiting, [orders]).fetchone() == (1,))
            late = pool.submit(send, PUT.format(orders))
            until(lambda: watch.execute(waiting, [orders]).fetchone() == (2,))
            early.execute(ending.encode())
            return late.result()

    with psycopg.connect(place.url, autocommit=True) as early, ThreadPoolExecutor(1) as pool:
        early.execute(b"BEGIN")
        early.execute(PUT.format(orders).encode())
        met = pool.submit(meet)
        retired = run("retire", orders, *words, "--yes")
        late = met.result()

    if ending == "COMMIT":
        assert (retired.code, late) == (1, "sent")
        assert "1 message would be lost" in retired.err
        assert count(place, orders) == 2
    else:
        assert (retired.code, late) == (0, "failed")
        assert "Shop.Orders" not in tables(place)
