"""The world of the tests by statement."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest
import stamina
from conformance.transport import PostgreSQL

from sqlq_spark.database import postgresql, schema
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.receive import pace
from sqlq_spark.wire import payload
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.postgresql import POSTGRESQL

from .queries import TIMEOUT
from .steps import Stage
from .world import HEARING, INPUTS, World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Place

QUEUES = (*INPUTS, "error", "queue", "atomic", *HEARING)


@pytest.fixture
def world(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Give a world with queues and state tables; batches have four messages and two tasks."""
    # a crash of the server is not among the faults here: need not wait for its disk
    url = place.url + ("&" if "?" in place.url else "?") + "options=-csynchronous_commit%3Doff"
    queues = {name: QueueAddress(name, place.schema) for name in QUEUES}
    named = {name: POSTGRESQL.print_address(queue) for name, queue in queues.items()}
    shared = {"url": url, "stateSchema": place.state, "queryTimeout": f"{TIMEOUT:g}s"}
    limits = {"maxMessagesPerTrigger": "4", "maxConcurrency": "2", "maxMessageBytes": "20k"}
    source = {**shared, **limits, "queue": named["orders"], "errorQueue": named["error"]}
    atomic = {"transactionMode": "sendsAtomicWithReceive"}
    monkeypatch.setattr(pace, "MESSAGES_PER_TASK", 1)
    monkeypatch.setattr(payload, "LARGE", 64)
    with psycopg.connect(url, autocommit=True) as desk:
        dotnet = PostgreSQL(url, place.schema, place.state, desk)
        for queue in queues.values():
            dotnet.create(queue)
        connect = partial(postgresql.connect, url, timeout=TIMEOUT, state=place.state)
        with closing(connect(application="install")) as connection:
            schema.install(connection)
        stage = Stage(desk, postgresql.connect)
        monkeypatch.setattr(postgresql, "connect", stage.open)
        made = World(
            stage,
            dotnet,
            queues,
            SourceOptions.parse(source),
            {
                "queue": SinkOptions.parse({**shared, "queue": named["queue"]}),
                "atomic": SinkOptions.parse({**shared, **atomic, "queue": named["atomic"]}),
            },
        )
        with stamina.set_testing(testing=True, attempts=7, cap=True):
            yield made
        made.rival.connection.close()
        stage.close()
