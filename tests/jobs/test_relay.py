"""relay: killed in the middle and started again, every message is in the other database once."""

from __future__ import annotations

import json
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from conftest import Place
from spark.stand import Queue, numbered

from jobs.submit import module

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jobs.submit import Desk

pytestmark = [pytest.mark.spark, pytest.mark.faults]

EXACT = (  # of several writers: escapes, white space, order, no message id
    '{"NServiceBus.MessageId":"a\\/b","k":"\\u00E4 \\uD83D\\uDE80","n":null}',
    ' { "NServiceBus.MessageId" : "spaced" , "x": "/" }',
)


@contextmanager
def other_database(place: Place) -> Iterator[Place]:
    """Give a place in another database of the server."""
    name = f"other_{secrets.token_hex(6)}"
    place.sql(f"CREATE DATABASE {name}")
    url = urlunsplit(urlsplit(place.url)._replace(path=f"/{name}"))
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE SCHEMA sales")
            yield Place(url=url, schema="sales", state="states", connection=connection)
    finally:
        place.sql(f"DROP DATABASE {name} WITH (FORCE)")


def settings(desk: Desk, queue: Queue, error: Queue, **more: Any) -> dict[str, Any]:
    """Settings from a queue into the same of another database."""
    return {
        "source_url": queue.place.url,
        "queues": queue.name,
        "error_queue": error.name,
        "checkpoint": str(desk.folder / "checkpoint"),
        "source": {"stateSchema": queue.place.state, "maxMessagesPerTrigger": "300"},
        **more,
    }


@pytest.fixture
def error(queue: Queue) -> Queue:
    """Give an error queue beside the queue."""
    return queue.another("error")


@pytest.mark.usefixtures("spark")
def test_killed_between_two_databases(queue: Queue, error: Queue, desk: Desk) -> None:
    """Headers byte for byte, message ids, bodies, remaining lifetimes; poison stays behind."""
    bills = queue.another("bills")
    hour = 3_600_000  # milliseconds
    for headers in EXACT:
        queue.dotnet.send(queue.address, headers, b"\x00\xff", lives=hour)
    queue.put("{}", None)
    queue.put("no json", b"poison")
    queue.fill(0, 1000)
    bills.fill(1000, 1200)
    queue.dotnet.send(queue.address, EXACT[0].replace("a", "gone"), b"late", lives=-hour)
    with other_database(queue.place) as place:
        orders = Queue(place, "orders")
        orders.install()
        orders.create()
        invoices = orders.another("Invoices")
        given = settings(
            desk,
            queue,
            error,
            target_url=place.url,
            queues=f"{queue.name}, {bills.name}",
            target_schema=place.schema,
            targets={bills.name: invoices.name},
            sink={"stateSchema": place.state},
        )

        desk.killed_when(lambda: orders.count() > 0, "relay", given)
        between = orders.count()
        ended = desk.run("relay", given)

        assert 0 < between < 1003
        assert (desk.folder / "checkpoint" / "sqlqueue_target").exists()
        assert (ended.code, ended.totals["job"]) == (0, "relay"), ended.log
        found = place.sql(
            "SELECT headers, body, extract(epoch FROM expires - now() AT TIME ZONE 'UTC')::int"
            f" FROM {orders.name}"
        )
        texts = [row[0] for row in found]
        ids = [json.loads(text)["NServiceBus.MessageId"] for text in texts]
        assert len(set(ids)) == len(ids) == 1003
        assert {*numbered(0, 1000)} < set(ids)
        assert set(EXACT) < set(texts)
        assert sorted(invoices.ids()) == sorted(numbered(1000, 1200))
        lives = {text: (bytes(body), left) for text, body, left in found}
        assert all(lives[text][0] == b"\x00\xff" for text in EXACT)
        assert all(3000 < lives[text][1] <= 3600 for text in EXACT)
        assert sum(left is None for _, _, left in found) == 1001
        assert sum(bytes(body) == b"" for _, body, _ in found) == 1
    assert [queue.count(), bills.count(), queue.state("receipt")] == [0, 0, 0]
    assert [row[0] for row in queue.place.sql(f"SELECT headers FROM {error.name}")] == ["no json"]


# ---------------------------------------------------------------- without Spark


def check(queue: Queue, error: Queue, desk: Desk, **more: Any) -> None:
    """Do what the job does before it receives."""
    relay = module("relay")
    given = {
        "target_url": queue.place.url,
        "sink": {"stateSchema": queue.place.state},
        **settings(desk, queue, error, **more),
    }
    made = relay.Settings(**given)
    made.options()
    relay.check(made)


def test_targets_are_checked_before_anything_is_received(
    queue: Queue, error: Queue, desk: Desk
) -> None:
    """An absent target; a queue that is relayed into itself, also with other parameters."""
    place = queue.place
    with pytest.raises(Exception, match=r'"public"\."absent" in'):
        check(queue, error, desk, targets={queue.name: "absent"})
    with pytest.raises(Exception, match=r"nobody in \[targets\] is not one of the queues"):
        check(queue, error, desk, targets={"nobody": "x"})
    for url in (place.url, f"{place.url}?connect_timeout=9"):
        with pytest.raises(Exception, match="is read and sent to in postgresql://"):
            check(queue, error, desk, target_schema=place.schema, target_url=url)


def test_two_databases_may_have_queues_of_one_name(queue: Queue, error: Queue, desk: Desk) -> None:
    """And so may two queues of one database, which may commit together."""
    bills = queue.another("bills")
    together = {"stateSchema": queue.place.state, "transactionMode": "sendsAtomicWithReceive"}

    check(queue, error, desk, targets={queue.name: bills.name}, sink=together)
    with other_database(queue.place) as place:
        orders = Queue(place, "orders")
        orders.install()
        orders.create()
        more = {"target_url": place.url, "sink": {"stateSchema": place.state}}
        check(queue, error, desk, target_schema=place.schema, **more)
