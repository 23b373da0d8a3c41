"""
Whatever happens to whom and when, every message is in one place: hypothesis looks for the contrary.

SQLQ_MODEL_EXAMPLES raises the number of examples. The last lines of a run say how much was done.
"""

from __future__ import annotations

import os
from contextlib import closing, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest
import stamina
from conformance.transport import PostgreSQL
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import run_state_machine_as_test

from sqlq_spark.database import postgresql, schema
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.receive import pace
from sqlq_spark.receive import task as receiving
from sqlq_spark.wire import payload
from sqlq_spark.wire.address import POSTGRESQL, QueueAddress

from .model.message_places import Lost
from .model.participants import World
from .model.queries import TIMEOUT, Kind
from .model.state_machine import Machine
from .model.steps import FIGURES, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Place

    from sqlq_spark.database import Connection
    from sqlq_spark.wire.rows import Origin

EXAMPLES = int(os.environ.get("SQLQ_MODEL_EXAMPLES", "60"))
pytestmark = [pytest.mark.faults, pytest.mark.timeout(900 + 2 * EXAMPLES)]
SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=60,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    report_multiple_bugs=False,
)
# A counterexample is enough; making it small takes longer than finding it.
HUNT = settings(SETTINGS, max_examples=400, derandomize=True, phases=[Phase.generate])


@pytest.fixture
def machine(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Machine]]:
    """Give the machine a queue, an error queue, two to send to, and small numbers."""
    # a crash of the server is not among the faults here: need not wait for its disk
    url = place.url + ("&" if "?" in place.url else "?") + "options=-csynchronous_commit%3Doff"
    names = ["orders", "error", "queue", "atomic"]
    queues = {name: QueueAddress(name, place.schema) for name in names}
    shared = {"url": url, "stateSchema": place.state, "queryTimeout": f"{TIMEOUT:g}s"}
    source = SourceOptions.parse(
        {
            **shared,
            "queue": POSTGRESQL.print_address(queues["orders"]),
            "errorQueue": POSTGRESQL.print_address(queues["error"]),
            "maxMessagesPerTrigger": "4",
            "maxConcurrency": "2",
        }
    )
    modes: dict[Kind, dict[str, str]] = {
        "queue": {},
        "atomic": {"transactionMode": "sendsAtomicWithReceive"},
    }
    targets = {
        kind: SinkOptions.parse({**shared, **mode, "queue": POSTGRESQL.print_address(queues[kind])})
        for kind, mode in modes.items()
    }
    monkeypatch.setattr(pace, "MESSAGES_PER_TASK", 1)
    monkeypatch.setattr(payload, "LARGE", payload.LARGE)
    with psycopg.connect(url, autocommit=True) as desk:
        dotnet = PostgreSQL(url, place.schema, place.state, desk)
        for queue in queues.values():
            dotnet.create(queue)
        connect = partial(postgresql.connect, url, timeout=TIMEOUT, state=place.state)
        with closing(connect(application="install")) as connection:
            schema.install(connection)
        stage = Stage(desk, postgresql.connect)
        monkeypatch.setattr(postgresql, "connect", stage.open)
        world = World(stage, dotnet, source, queues["error"], targets)
        with stamina.set_testing(testing=True, attempts=7, cap=True):
            yield type("Model", (Machine,), {"world": world})
        world.rival.connection.close()
        stage.close()


def test_every_message_is_in_one_place_whatever_happens(machine: type[Machine]) -> None:
    """Looked at after every commit, and when all have come to an end."""
    run_state_machine_as_test(machine, settings=SETTINGS)


def test_without_the_fence_the_model_finds_a_lost_message(
    machine: type[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of a batch that was acknowledged receives, and nobody will read its receipt."""

    def open_always(
        connection: Connection, task: receiving.Task, origin: Origin
    ) -> tuple[bool, None]:
        connection.rows("fence", stream=task.stream, query_id=origin.query_id)
        return True, None  # the high-water mark is a second fence

    monkeypatch.setattr(receiving, "fence", open_always)

    # what was found is run once more, and there another may get a lock first
    with pytest.raises((Lost, FlakyFailure)) as found:
        run_state_machine_as_test(machine, settings=HUNT)
    assert isinstance(found.value, Lost) or found.group_contains(Lost)


def lose_entries(world: World, kind: Kind, sources: int) -> None:
    """Commit two batches, lose entries of the checkpoint, and go on to the end."""
    world.begin()
    checkpoint = world.query(kind, sources)
    world.send(3)
    driver = world.drive(checkpoint)
    assert driver is not None
    for batch in (0, 1):
        while batch not in checkpoint.commits:
            world.hurry(driver)
        if sources > 1:  # the next batch is of the other source alone
            driver.streams[0].freeze()
        world.send(3)
    world.roll_back(checkpoint, 2 if sources == 1 else 1, offsets=True)
    world.drain()
    world.check()


@pytest.mark.parametrize("sources", [1, 2])
@pytest.mark.parametrize("kind", ["table", "queue", "atomic"])
@pytest.mark.parametrize("marked", [True, False])
def test_lost_entries_lose_no_message_unless_there_is_no_high_water_mark(
    machine: type[Machine],
    monkeypatch: pytest.MonkeyPatch,
    *,
    kind: Kind,
    sources: int,
    marked: bool,
) -> None:
    """One source loses the first entry, two lose the last: a sink would drop new messages."""
    world, refused = machine.world, FIGURES["incomplete checkpoints refused"]
    if not marked:
        monkeypatch.setattr(receiving, "is_new", lambda *_: True)

    try:
        with nullcontext() if marked else pytest.raises(Lost):
            lose_entries(world, kind, sources)
    finally:
        world.close()

    assert (FIGURES["incomplete checkpoints refused"] > refused) == marked
