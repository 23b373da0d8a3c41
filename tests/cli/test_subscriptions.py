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
    assert made[-1].out == f"Shop.Web is subscribed to Shop.Placed with {queue}\n"
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
    ended = run("unsubscribe", *words)
    assert wrong.code == 1
    assert wrong.err.startswith("Shop.Web is not subscribed to Shop.placed")
    stopped = "is no longer subscribed to Shop.Placed; publishers stop within 5 seconds\n"
    assert ended == (0, f"Shop.Web {stopped}", "")
    assert count(place, table) == 1
