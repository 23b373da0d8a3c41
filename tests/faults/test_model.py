"""
Whatever happens to whom and when, every message is in one place: hypothesis looks for the contrary.

SQLQ_MODEL_EXAMPLES raises the number of examples. The last lines of a run tell how much was done.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import stamina
from conformance.dotnet import PostgreSQL
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import run_state_machine_as_test

from sqlq_spark.database import postgresql, schema
from sqlq_spark.database.postgresql import calls
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.receive import pace, receipts, streams
from sqlq_spark.receive import task as receiving
from sqlq_spark.receive.offset import write_plan
from sqlq_spark.wire import payload
from sqlq_spark.wire.address import QueueAddress, print_postgresql

from .model.message_places import Lost
from .model.participants import World
from .model.queries import TIMEOUT, Kind
from .model.state_machine import Machine
from .model.steps import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Place

    from sqlq_spark.database import Connection
    from sqlq_spark.receive.offset import BatchPlan

pytestmark = pytest.mark.faults

EXAMPLES = int(os.environ.get("SQLQ_MODEL_EXAMPLES", "60"))
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
            "queue": print_postgresql(queues["orders"]),
            "errorQueue": print_postgresql(queues["error"]),
            "maxMessagesPerTrigger": "4",
            "maxConcurrency": "2",
        }
    )
    modes: dict[Kind, dict[str, str]] = {
        "queue": {},
        "atomic": {"transactionMode": "sendsAtomicWithReceive"},
    }
    targets = {
        kind: SinkOptions.parse({**shared, **mode, "queue": print_postgresql(queues[kind])})
        for kind, mode in modes.items()
    }
    monkeypatch.setattr(pace, "MESSAGES_PER_TASK", 1)
    monkeypatch.setattr(payload, "LARGE", payload.LARGE)
    with psycopg.connect(url, autocommit=True) as desk:
        dotnet = PostgreSQL(url, place.schema, place.state, desk)
        for queue in queues.values():
            dotnet.create(queue)
        state(postgresql.connect(url, application="install", timeout=TIMEOUT, state=place.state))
        stage = Stage(desk, postgresql.connect)
        monkeypatch.setattr(postgresql, "connect", stage.open)
        world = World(stage, dotnet, source, queues["error"], targets)
        with stamina.set_testing(testing=True, attempts=7, cap=True):
            yield type("Model", (Machine,), {"world": world})
        world.rival.connection.close()
        stage.close()


def state(connection: Connection) -> None:
    """Make the state tables."""
    schema.install(connection, timeout=TIMEOUT)
    connection.close()


def test_every_message_is_in_one_place_whatever_happens(machine: type[Machine]) -> None:
    """Looked at after every commit, and when all have come to an end."""
    run_state_machine_as_test(machine, settings=SETTINGS)


def test_without_the_fence_the_model_finds_a_lost_message(
    machine: type[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of a batch that was acknowledged receives, and nobody will read its receipt."""

    def open_always(connection: Connection, task: receiving.Task) -> tuple[bool, str]:
        _, login = connection.rows("fence", stream=task.stream)[0]
        receiving.lock(connection, task, login)
        return True, login

    monkeypatch.setattr(receiving, "fence", open_always)

    # what was found is run once more, and there another may get a lock first
    with pytest.raises((Lost, FlakyFailure)) as found:
        run_state_machine_as_test(machine, settings=HUNT)
    assert isinstance(found.value, Lost) or found.group_contains(Lost)


def dawdle(world: World) -> None:
    """One attempt of a task stops behind the fence; another finishes, and the batch is acked."""
    world.send(1)
    driver = world.drive(world.query("table"))
    assert driver is not None
    world.through(driver, until="tasks")
    driver.attempt((0, 0))
    late = world.jobs[0]
    world.step(late)
    assert late.work.at == "task_lock"
    driver.attempt((0, 0))
    world.run(world.jobs[1])
    world.through(driver, until="plan")
    driver.next()
    world.run(world.jobs[-1])
    world.send(1)

    world.run(late)
    world.drain()


def forget(world: World) -> None:
    """A batch of two tasks is received, its offsets are lost, then one more message comes."""
    checkpoint = world.query("table")
    for messages in (1, 2):
        world.send(messages)
        driver = world.drive(checkpoint)
        assert driver is not None
        world.through(driver, until="sink")
        world.through(driver, until="plan" if messages == 1 else "sink")
    assert len(world.before) == 2
    world.roll_back(checkpoint, 1, offsets=True)
    world.send(1)

    world.drain()


@pytest.mark.parametrize("story", [dawdle, forget])
def test_the_stories_of_the_mutants_end_well_without_them(
    machine: type[Machine], story: Callable[[World], None]
) -> None:
    """So what the next two tests find is the mutant's fault."""
    machine.world.begin()

    story(machine.world)

    assert not machine.world.before
    machine.world.close()


def test_if_an_ack_does_not_wait_for_tasks_the_model_finds_a_lost_message(
    machine: type[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that began before the ack leaves its receipt after it."""
    statements = calls.STATEMENTS
    bare = statements["lock_stream"].replace("FOR UPDATE", "")
    monkeypatch.setitem(statements, "lock_stream", bare)
    monkeypatch.setitem(statements, "fence", statements["fence"].replace("FOR SHARE", ""))
    calls.number_parameters.cache_clear()
    machine.world.begin()

    with pytest.raises(Lost, match="no one will read it"):
        dawdle(machine.world)

    machine.world.close()
    calls.number_parameters.cache_clear()


def test_if_a_stored_plan_is_forgotten_the_model_finds_a_lost_message(
    machine: type[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planned anew, a batch has other tasks, and nobody replays the receipts of the first ones."""
    inner = receipts.acknowledge

    def forgetful(*args: Any, **named: Any) -> receipts.Acknowledged:
        return replace(inner(*args, **named), plan=None)

    def anew(connection: Connection, stream: str, batch: int, plan: BatchPlan, _: Any) -> BatchPlan:
        login = connection.rows("lock_stream", stream=stream, login=None)[0][5]
        connection.run("store_plan", stream=stream, login=login, batch=batch, plan=write_plan(plan))
        return plan

    monkeypatch.setattr(receipts, "acknowledge", forgetful)
    monkeypatch.setattr(streams, "store_plan", anew)
    machine.world.begin()

    with pytest.raises(Lost, match="no place"):
        forget(machine.world)

    machine.world.close()
