"""
A client or a server that is gone, or reads nothing: TCP ends the session within queryTimeout.

A Unix socket has no such limits. `server` is reached over TCP.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from waiting import until

from sqlq_spark.database.postgresql.connection import connect
from sqlq_spark.database.postgresql.rows import write_values

if TYPE_CHECKING:
    from conftest import Place

LIMITS = ("tcp_user_timeout", "tcp_keepalives_idle", "tcp_keepalives_interval")
# the same of a client's socket
OPTIONS = (socket.TCP_USER_TIMEOUT, socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL)


def client_sockets(port: int) -> list[tuple[int, ...]]:
    """Return the limits of this process's connections to a port."""
    found = []
    for each in Path("/dev/fd").iterdir():
        with suppress(OSError):  # closed since, or not connected
            if stat.S_ISSOCK(os.fstat(int(each.name)).st_mode):
                with socket.socket(fileno=os.dup(int(each.name))) as copy:
                    if copy.getpeername()[1:2] == (port,):
                        found.append(
                            tuple(copy.getsockopt(socket.IPPROTO_TCP, name) for name in OPTIONS)
                        )
    return found


def timeouts(seconds: int) -> str:
    """Our statement that begins each transaction."""
    return write_values("timeouts", {"milliseconds": seconds * 1000, "application": "test"})


def shown(session: psycopg.Connection[Any]) -> tuple[int, ...]:
    """Return the limits that the server's side of a session has now."""
    return tuple(int(row[0]) for name in LIMITS for row in session.execute(f"SHOW {name}"))


def test_the_server_drops_a_client_that_is_gone(place: Place) -> None:
    """In each transaction, also at the largest queryTimeout, and no longer after its end."""
    with psycopg.connect(place.url) as session:
        before = shown(session)
        session.execute(timeouts(86_400))

        assert shown(session) == (86_400_000, 28_800, 8640)
        session.commit()
        assert shown(session) == before


def test_the_server_undoes_the_transaction_of_a_client_that_reads_nothing(place: Place) -> None:
    """statement_timeout does not end a statement that waits to write to its client."""
    with closing(psycopg.connect(place.url)) as session:
        session.execute(timeouts(1))
        session.pgconn.send_query(
            b"COPY (SELECT repeat('x', 1000000) FROM generate_series(1, 1000)) TO STDOUT"
        )

        pid = session.info.backend_pid
        until(lambda: not place.sql("SELECT 1 FROM pg_locks WHERE pid = %s", pid))


@pytest.mark.parametrize(
    ("parameters", "limits"),
    [
        ("", (30_000, 10, 3)),
        ("tcp_user_timeout=7000&keepalives_idle=5&keepalives_interval=2", (7000, 5, 2)),
    ],
)
def test_the_client_drops_a_server_that_is_gone(
    place: Place, parameters: str, limits: tuple[int, ...]
) -> None:
    """As fast as the server a client, or as the url says."""
    url = f"{place.url}{'&' if '?' in place.url else '?'}{parameters}".rstrip("?&")
    port = place.connection.info.port
    before = client_sockets(port)
    with closing(connect(url, application="test", timeout=30, state=place.state)):
        found = client_sockets(port)

    for each in before:
        found.remove(each)
    assert found == [limits]
