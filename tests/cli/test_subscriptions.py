"""`sqlqueue subscribe`, `unsubscribe` and `subscribers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .database import address, count

if TYPE_CHECKING:
    from conftest import Place

    from .commands import Run


@pytest.fixture
def table(place: Place) -> str:
    """Give the address of a table of subscriptions that does not exist yet."""
    return address(place, "SubscriptionRouting")


def test_a_subscription_is_made_listed_and_ended(
    run: Run, place: Place, queue: str, table: str
) -> None:
    """Subscribing makes the table, may be repeated, and replaces an older queue."""
    other = address(place, "other")
    run("create", other)
    named = ("--subscription-table", table)
    words = ("Shop.Placed", "--endpoint", "Shop.Web", *named)

    made = [run("subscribe", *words, "--queue", each) for each in (other, queue, queue)]

    assert [each.code for each in made] == [0, 0, 0]
    assert made[-1].out.splitlines()[-1].split() == ["Shop.Placed", "Shop.Web", queue]
    assert place.sql(f"SELECT topic, endpoint, queueaddress FROM {table}") == [
        ("Shop.Placed", "Shop.Web", queue)
    ]
    place.sql(f"INSERT INTO {table} VALUES ('x', E'odd\\x1b[31m', 'Shop.IEvent')")
    shown = run("subscribers", *named).out
    assert "odd·[31m" in shown
    assert "Shop.Placed" in shown
    (found,) = run("subscribers", "Shop.Placed", "--json", *named).objects
    assert found == {"topic": "Shop.Placed", "endpoint": "Shop.Web", "address": queue}
    assert run("subscribers", "Shop.Nothing", *named).out == "no subscriptions\n"

    wrong = run("unsubscribe", "Shop.placed", "--endpoint", "Shop.Web", *named)
    refused = run("unsubscribe", *words, stdin="n\n")
    ended = run("unsubscribe", *words, "--yes")
    assert wrong.code == 1
    assert wrong.err.startswith("Shop.Web is not subscribed to Shop.placed")
    stopped = "is no longer subscribed to Shop.Placed; publishers stop within 5 seconds\n"
    asked = f"This will end the subscription of Shop.Web with {queue} to Shop.Placed.\n"
    assert (refused.code, refused.out) == (1, asked)
    assert ended == (0, f"{asked}Shop.Web {stopped}", "")
    assert count(place, table) == 1


def test_several_topics_are_subscribed_and_ended_together(
    run: Run, place: Place, queue: str, table: str
) -> None:
    """All or none; a topic that was not subscribed is reported, and ends by 1."""
    words = ("--endpoint", "Shop.Web", "--subscription-table", table)

    refused = run("subscribe", "Shop.Placed", "Shop.Paid, Shop", *words, "--queue", queue)
    absent = place.sql(f"SELECT to_regclass('{table}')")
    made = run("subscribe", "Shop.Placed", "Shop.Paid", *words, "--queue", queue, "--json")
    ended = run("unsubscribe", "Shop.Placed", "Shop.Sent", "Shop.Paid", *words, "--yes", "--json")

    assert (refused.code, absent) == (2, [(None,)])
    assert [each["topic"] for each in made.objects] == ["Shop.Placed", "Shop.Paid"]
    assert ended.code == 1
    assert "Shop.Web is not subscribed to Shop.Sent; " in ended.err
    assert [each["topic"] for each in ended.objects] == ["Shop.Paid", "Shop.Placed"]
    assert count(place, table) == 0
