"""Queues, receipts and roles in the schema of a test."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from psycopg import sql

from sqlq_spark.database.sessions import StateSession
from sqlq_spark.options import SourceOptions
from sqlq_spark.receive import task as receive
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.rows import Origin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Place

STREAM = "0f0e0d0c-0000-4000-8000-000000000001"


def address(place: Place, table: str) -> str:
    """The canonical address of a table of the test's schema."""
    return f'"{place.schema}"."{table}"'


def tables(place: Place) -> set[str]:
    """The tables of the test's schema."""
    found = place.sql("SELECT tablename FROM pg_tables WHERE schemaname = %s", place.schema)
    return {name for (name,) in found}


def messages(place: Place, queue: str) -> list[tuple[dict[str, str | None], bytes]]:
    """Headers and bodies of a queue, by seq."""
    found = place.sql(f"SELECT headers, body FROM {queue} ORDER BY seq")
    return [(json.loads(headers), bytes(body)) for headers, body in found]


def count(place: Place, table: str) -> int:
    """How many rows a table has."""
    return int(place.sql(f"SELECT count(*) FROM {table}")[0][0])


def received(
    place: Place, *, messages: int, batch: int = 1, url: str = "", errors: str | None = None
) -> list[bytes]:
    """Receive as a task does, as a login with an error queue, and never acknowledge; the bodies."""
    options = SourceOptions.parse(
        {"url": url or place.url, "queue": "x", "stateSchema": place.state, "queryTimeout": "10s"}
    )
    if errors:
        options = replace(options, error_address=QueueAddress(errors, place.schema))
    queue = QueueAddress("Shop.Orders", place.schema)
    with StateSession(options, "test") as session:
        connection = session.open()
        if batch == 1:
            name = connection.printed(queue)
            connection.rows("new_stream", stream=STREAM, queue_name=name, driver="d")
        task = receive.Task(
            queue=queue,
            stream=STREAM,
            batch=batch,
            task=0,
            first=0,
            stop=2**31,
            messages=messages,
            options=options,
        )
        rows = receive.receive(connection, task, origin=Origin())
        bodies: list[bytes] = rows["body"].to_pylist()
        return bodies


def as_role(url: str, role: str) -> str:
    """The same login, with the rights of a role only."""
    return f"{url}{'&' if '?' in url else '?'}options=-c%20role%3D{role}"


@contextmanager
def executed(place: Place, script: str, *roles: str) -> Iterator[None]:
    """Execute a DBA's script twice, because it may be run again; drop its roles after the test."""
    try:
        for _ in range(2):
            place.connection.execute(script.encode())
        yield
    finally:
        for role in map(sql.Identifier, roles):
            place.connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(role))
            place.connection.execute(sql.SQL("DROP ROLE {}").format(role))
