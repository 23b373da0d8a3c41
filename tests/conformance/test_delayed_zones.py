"""
Delayed delivery in whatever zone server, clients and endpoints are: of PostgreSQL alone.

There a due time is the server's UTC clock, taken for a time of the session's zone.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest
from conftest import Place
from psycopg import sql
from servers import only

from sqlq_spark.errors import BadOption, MissingOption
from sqlq_spark.wire.address import QueueAddress

from .conftest import Bench
from .test_delayed import Desk, chunk, desk, send_now
from .transport import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Iterator

ZONES = ["Asia/Kolkata", "America/Phoenix", "Pacific/Kiritimati"]  # without summer time
__all__ = ["desk"]  # the fixture


@pytest.fixture(scope="module")
def zoned(server: str) -> Iterator[str]:
    """Give a database whose zone can be changed."""
    name = f"zone_{secrets.token_hex(4)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield server.rpartition("/")[0] + f"/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture(params=ZONES)
def abroad(request: pytest.FixtureRequest, zoned: str) -> Iterator[Desk]:
    """Give a desk on a server in a zone; the endpoint is a plain session of it."""
    with psycopg.connect(zoned, autocommit=True) as connection:
        text = sql.SQL("ALTER DATABASE {} SET timezone TO {}")
        name = sql.Identifier(zoned.rpartition("/")[2])
        connection.execute(text.format(name, sql.Literal(request.param)))
    with psycopg.connect(zoned, autocommit=True) as connection:
        place = Place(url=zoned, schema="public", state="sqlqueue", connection=connection)
        queue = QueueAddress(f"orders {secrets.token_hex(4)}", "public")
        errors = replace(queue, table="error")
        bench = Bench(PostgreSQL.at(place), queue, errors, name=secrets.token_hex(4))
        desk = Desk(bench)
        bench.dotnet.create(queue)
        bench.dotnet.create_delayed(desk.table)
        yield desk
        bench.close()


CLIENTS = ["UTC", "Asia/Tokyo", "America/Los_Angeles"]


def ask_for(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    """Let our own sessions ask for a zone from now on."""
    monkeypatch.setitem(os.environ, "PGTZ", zone)


@pytest.mark.parametrize("client", CLIENTS)
def test_what_the_endpoint_stores_we_move_at_the_right_time(
    abroad: Desk, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever zone our client is in: not an hour too early, nor too late."""
    ask_for(monkeypatch, client)
    abroad.store(body=b"due", delay=-1)
    abroad.store(body=b"waits", delay=600)

    moved = abroad.move()

    assert moved.messages == 1
    assert 500 < (moved.next_due or 0) <= 600
    assert abroad.bench.bodies() == [b"due"]


@pytest.mark.parametrize("client", CLIENTS)
def test_what_we_store_the_endpoint_moves_at_the_right_time(
    abroad: Desk, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By delays and by moments."""
    ask_for(monkeypatch, client)
    now = abroad.dotnet.clock()
    near = timedelta(minutes=10)

    send_now(
        abroad,
        chunk({"delay": 0}, {"delay": 600_000}, {"due": now - near}, {"due": now + near}),
    )

    assert abroad.dotnet.move(abroad.table, abroad.bench.queue) == 2
    assert {*abroad.bench.bodies()} == {b"0", b"2"}
    assert 500 < (abroad.move().next_due or 0) <= 600


def test_endpoints_in_a_zone_of_their_own_are_followed_by_the_option(abroad: Desk) -> None:
    """The option endpointTimeZone, of the sink and of the source."""
    zone = "Asia/Tokyo"
    dotnet = abroad.dotnet.consumer(zone)
    dotnet.store(abroad.table, body=b"due", delay=-1)
    dotnet.store(abroad.table, body=b"waits", delay=600)

    assert abroad.move(endpointTimeZone=zone).messages == 1
    send_now(abroad, chunk({"delay": 0}, {"delay": 700_000}), endpointTimeZone=zone)

    assert dotnet.move(abroad.table, abroad.bench.queue) == 1
    assert abroad.bench.bodies() == [b"due", b"0"]
    assert 500 < (abroad.move(endpointTimeZone=zone).next_due or 0) <= 600


@only("postgresql", "due times of a session's zone")
def test_a_zone_that_cannot_be_seen_is_asked_for(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's own, where this session has one of its client; nothing is moved or sent."""
    desk.store(delay=-1)
    ask_for(monkeypatch, "Asia/Tokyo")
    connection = desk.bench.open("tokyo")

    with pytest.raises(MissingOption) as caught:
        desk.mover().move(connection)
    with pytest.raises(MissingOption, match="option endpointTimeZone is missing"):
        send_now(desk, chunk({"delay": 1}, {}))

    assert str(caught.value) == (
        "option endpointTimeZone is missing: give the time zone in which the .NET endpoints' "
        "sessions work, as Europe/Berlin; this session cannot read the server's own zone, because "
        "PGTZ or the options of the url set another one"
    )
    assert desk.bench.bodies() == []
    assert desk.mover(endpointTimeZone="UTC").move(connection).messages == 1


@only("postgresql", "due times of a session's zone")
@pytest.mark.parametrize("zone", ["Mars/Olympus", "x'; DROP TABLE orders; --", "{state}", "%s"])
def test_a_zone_that_the_server_does_not_know_is_refused(desk: Desk, zone: str) -> None:
    """Before anything is moved."""
    with pytest.raises(BadOption) as caught:
        desk.move(endpointTimeZone=zone)

    assert (caught.value.option, caught.value.found) == ("endpointTimeZone", zone)
    with pytest.raises(BadOption):
        send_now(desk, chunk({"delay": 1}), endpointTimeZone=zone)
