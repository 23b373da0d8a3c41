"""
Every message is in one place, whatever happens: hypothesis searches for a counterexample.

Rules come in any order, one statement at a time. A rule picks its driver, process or query by a
number, modulo how many there are, so that hypothesis can make a counterexample small. No rule has a
precondition, and none draws as it runs. What is drawn must not depend on who got a lock first:
hypothesis repeats the beginning of an example, and fails if it then draws something else.

Examples are the same in each run. SQLQ_MODEL_EXAMPLES asks for so many new ones. The last lines of
a run say how much was done.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, ClassVar, Literal

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from sqlq_spark.receive import task as receiving
from sqlq_spark.receive.receipts import Fence, read_fence
from sqlq_spark.wire import payload

from .steps import FIGURES
from .world import Lost

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.database import Connection
    from sqlq_spark.wire.rows import SparkBatch

    from .queries import Checkpoint, Driver, Kind
    from .steps import Order, Work
    from .world import World

EXAMPLES = int(os.environ.get("SQLQ_MODEL_EXAMPLES", "40"))
pytestmark = [pytest.mark.faults, pytest.mark.timeout(900 + 2 * EXAMPLES)]
SETTINGS = settings(
    max_examples=EXAMPLES,
    derandomize="SQLQ_MODEL_EXAMPLES" not in os.environ,
    stateful_step_count=60,
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    report_multiple_bugs=False,
)
# A counterexample is enough; making it small takes longer than finding it.
HUNT = settings(SETTINGS, max_examples=400, derandomize=True, phases=[Phase.generate])

WHICH = st.integers(0, 7)
KINDS: list[Kind] = ["table", "queue", "atomic"]
MOVES: list[Literal["return_", "drop"]] = ["return_", "return_", "drop"]
FAULTS: list[Order] = ["die", "late", "cut", "mute"]


class Machine(RuleBasedStateMachine):
    """Queries, attempts, a competitor and an operator, in any order, one statement at a time."""

    world: ClassVar[World]

    @initialize(
        kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=2),
        sources=st.sampled_from([1, 1, 1, 2]),
        messages=st.integers(1, 8),
        large=st.booleans(),
    )
    def begin(self, kinds: list[Kind], sources: int, messages: int, *, large: bool) -> None:
        payload.LARGE = 64 if large else 256 << 10
        self.world.begin()
        FIGURES["examples"] += 1
        for kind in kinds:
            self.world.query(kind, sources)
        self.world.send(messages)

    def teardown(self) -> None:
        """End all work, unless a fault was found. Then everything stays as it is."""
        try:
            if sys.exc_info()[0] is None:
                self.world.drain()
        finally:
            self.world.close()

    # ------------------------------------------------------------ who

    def checkpoint(self, which: int) -> Checkpoint:
        return self.world.checkpoints[which % len(self.world.checkpoints)]

    def driver(self, which: int) -> Driver:
        """Return a living driver of the query, or a new one."""
        checkpoint = self.checkpoint(which)
        alive = self.world.alive(checkpoint)
        return alive[which % len(alive)] if alive else self.world.drive(checkpoint)

    def job(self, which: int) -> Work | None:
        """Return a process at work. If there is none, a driver continues until there is one."""
        for _ in range(4):
            if self.world.jobs:
                return self.world.jobs[which % len(self.world.jobs)]
            self.driver(which).next()
        return None

    # ------------------------------------------------------------ messages come, and go elsewhere

    @rule(messages=st.integers(1, 4), kind=st.sampled_from(["plain", "plain", "expired", "poison"]))
    def send(self, messages: int, kind: str) -> None:
        self.world.send(messages, kind)

    @rule(takes=st.integers(0, 3), commit=st.booleans())
    def compete(self, takes: int, *, commit: bool) -> None:
        for _ in range(takes):
            self.world.rival_takes()
        if not takes:
            self.world.rival_ends(commit=commit)

    # ------------------------------------------------------------ work goes on

    @rule(which=WHICH, things=st.integers(1, 3))
    def go_on(self, which: int, things: int) -> None:
        """Let a driver take its next steps. What they start stays at its beginning."""
        for _ in range(things):
            self.driver(which).next()

    @rule(which=WHICH, things=st.integers(3, 12))
    def hurry(self, which: int, things: int) -> None:
        """Let a driver take several steps. Others work in between only if it must wait."""
        for _ in range(things):
            driver = self.driver(which)
            if not driver.idle:
                self.world.hurry(driver)

    @rule(which=WHICH, statements=st.sampled_from([1, 2, 3, 4, 100, 100]))
    def advance(self, which: int, statements: int) -> None:
        if job := self.job(which):
            self.world.run(job, statements)

    @rule(which=WHICH, slot=WHICH, statements=st.integers(0, 6))
    def attempt_again(self, which: int, slot: int, statements: int) -> None:
        """Start one more attempt of a task, as speculation, a self-union or a retry does."""
        tasking = [each for each in self.world.alive() if each.phase == "tasks"]
        if tasking:
            driver = tasking[which % len(tasking)]
            chosen = sorted(driver.slots)[slot % len(driver.slots)]
            if driver.attempts(chosen) < 3:
                driver.attempt(chosen)
                self.world.run(self.world.jobs[-1], statements)

    # ------------------------------------------------------------ faults

    @rule(which=WHICH, statements=st.integers(0, 8), order=st.sampled_from(FAULTS))
    def fault(self, which: int, statements: int, order: Order) -> None:
        """Kill a process at work, or cut its connection, or lose the answer to its commit."""
        job = self.job(which)
        if job is None:
            return
        late = order in {"late", "mute"}
        for _ in range(statements + 8 * late):
            if job.done or (late and job.at == "commit"):
                break
            self.world.step(job)
        if job.done:
            return
        dies = order in {"die", "late"}
        FIGURES["processes killed"] += dies
        if dies and job.driver is not None and job is job.driver.job:
            job.driver.die(order)
        else:
            self.world.step(job, order)

    @rule(which=WHICH, executors=st.booleans())
    def crash(self, which: int, *, executors: bool) -> None:
        """Kill a driver and restart it. Work on its executors continues, as a zombie's."""
        alive = self.world.alive()
        if not alive:
            return
        driver = alive[which % len(alive)]
        FIGURES["processes killed"] += 1
        driver.die()
        for job in [each for each in self.world.jobs if each.driver is driver and executors]:
            if not job.done:
                FIGURES["processes killed"] += 1
                self.world.step(job, "die")
        self.world.drive(driver.checkpoint)

    @rule(
        which=WHICH,
        what=st.sampled_from(["second", "copy", "roll back", "roll back", "lose"]),
        more=WHICH,
    )
    def misfortune(self, which: int, what: str, more: int) -> None:
        checkpoint = self.checkpoint(which)
        if what == "second":
            if len(self.world.alive(checkpoint)) < 2:
                self.world.drive(checkpoint)
        elif what == "lose":
            self.world.lose(checkpoint)
        # Two queries that run at once under one name would give a batch's number to two plans: on a
        # copy without offsets, or with two sources.
        elif what == "copy" and checkpoint.sources == 1 and checkpoint.offsets:
            self.world.copy(checkpoint)
        elif what == "roll back" and checkpoint.offsets:
            self.world.roll_back(checkpoint, 1 + more // 4, offsets=more % 2 == 0)

    @rule(which=WHICH, move=st.sampled_from(MOVES))
    def operate(self, which: int, move: Literal["return_", "drop"]) -> None:
        keys = [key for key in self.world.before if self.world.may_operate(key)]
        if keys:
            self.world.operate(keys[which % len(keys)], move)


def test_every_message_is_in_one_place_whatever_happens(world: World) -> None:
    """Every message is looked for after each commit, and at the end."""
    run_state_machine_as_test(type("Model", (Machine,), {"world": world}), settings=SETTINGS)


def open_always(connection: Connection, stream: str, spark_batch: SparkBatch, queue: str) -> Fence:
    """Let a task receive for a batch that was acknowledged. Nobody will read its receipt."""
    read_fence(connection, stream, spark_batch, queue)
    # without a high-water mark, which would refuse the task too
    return Fence(acked_batch=-1, plan_high_water=None, is_reader=True)


def new_always(*_: object) -> bool:
    """Let a task receive under a number that its query has used. The sink drops the messages."""
    return True


@pytest.mark.parametrize(("rule", "lacking"), [("read_fence", open_always), ("is_new", new_always)])
def test_the_model_finds_a_message_that_is_lost_without_a_rule(
    world: World, monkeypatch: pytest.MonkeyPatch, rule: str, lacking: Callable[..., object]
) -> None:
    """When hypothesis repeats the example, locks may go to others. Then it calls it flaky."""
    monkeypatch.setattr(receiving, rule, lacking)

    with pytest.raises((Lost, FlakyFailure)) as found:
        run_state_machine_as_test(type("Model", (Machine,), {"world": world}), settings=HUNT)
    assert isinstance(found.value, Lost) or found.group_contains(Lost)
