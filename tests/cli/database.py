"""Queues, receipts and roles of a test, and databases of its own."""

from __future__ import annotations

import json
import secrets
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
from bench.postgresql import uri
from conftest import Place

from sqlq_spark.database.sessions import StateSession
from sqlq_spark.options import SourceOptions
from sqlq_spark.receive.batch import Task
from sqlq_spark.receive.task import receive
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.rows import SparkBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def put(place: Place, queue: str, headers: str = "{}", body: bytes = b"", times: int = 1) -> None:
    """Insert messages, as an endpoint does."""
    row = "SELECT gen_random_uuid(), %s, %s FROM generate_series(1, %s)"
    place.sql(f"INSERT INTO {queue} (id, headers, body) {row}", headers, body, times)


def count(place: Place, table: str) -> int:
    """How many rows a table has."""
    return int(place.sql(f"SELECT count(*) FROM {table}")[0][0])


def received(
    place: Place, *, messages: int, batch: int = 1, url: str = "", errors: str | None = None
) -> list[bytes]:
    """
    Receive as a task of a login with an error queue does, and return the bodies.

    Nothing acknowledges.
    """
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
            connection.run("new_stream", stream=STREAM, queue_name=name, driver="d")
        task = Task(
            queue=queue,
            stream=STREAM,
            batch=batch,
            task=0,
            first=0,
            stop=2**31,
            messages=messages,
            options=options,
        )
        result = receive(connection, task, spark_batch=SparkBatch())
        bodies: list[bytes] = result.rows["body"].to_pylist()
        return bodies


def as_role(url: str, role: str) -> str:
    """Return the same login with the rights of one role only."""
    return f"{url}{'&' if '?' in url else '?'}options=-c%20role%3D{role}"


@contextmanager
def own_database(server: str, schema: str = "public", more: str = "") -> Iterator[Place]:
    """
    Give a place in a database of its own.

    At the end it is dropped, with the roles whose names begin with the database's name.
    """
    name = f"own_{secrets.token_hex(4)}"
    with psycopg.connect(server, autocommit=True) as dba:
        dba.execute(f"CREATE DATABASE {name} {more}".encode())
        url = uri(server, name)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}".encode())
            yield Place(
                url=url, superuser=url, schema=schema, state="sqlqueue", connection=connection
            )
        dba.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
        made = "SELECT rolname FROM pg_roles WHERE starts_with(rolname, %s)"
        for (role,) in dba.execute(made, [f"{name}_"]).fetchall():
            dba.execute(f"DROP ROLE {role}".encode())
