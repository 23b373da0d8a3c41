"""
The machine that looks for a counterexample: rules in any order, one statement at a time.

A rule picks its driver, process or query by a number, modulo how many there are: so that hypothesis
can make a counterexample small. No rule has a precondition, and none draws as it runs: what is
drawn must not depend on who got a lock first, or hypothesis, which runs a beginning again, refuses.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, ClassVar, Literal

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from sqlq_spark.wire import payload

from .steps import FIGURES

if TYPE_CHECKING:
    from .participants import World
    from .queries import Checkpoint, Driver, Job, Kind
    from .steps import Order

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
        """Begin with some queries on one queue."""
        payload.LARGE = 64 if large else 256 << 10
        self.world.begin()
        FIGURES["examples"] += 1
        for kind in kinds:
            self.world.query(kind, sources)
        self.world.send(messages)

    def teardown(self) -> None:
        """Let all come to an end, unless a fault was found: then everything is where it stays."""
        world = self.world
        try:
            if sys.exc_info()[0] is None:
                world.drain()
                world.check()
        finally:
            world.close()

    # ------------------------------------------------------------ who

    def checkpoint(self, which: int) -> Checkpoint:
        """One of the queries."""
        return self.world.checkpoints[which % len(self.world.checkpoints)]

    def driver(self, which: int) -> Driver | None:
        """A driver that lives: of the query, or a new one for it."""
        checkpoint = self.checkpoint(which)
        alive = self.world.alive(checkpoint)
        return alive[which % len(alive)] if alive else self.world.drive(checkpoint)

    def job(self, which: int) -> Job | None:
        """A process at work; where there is none, a driver does its next things until there is."""
        for _ in range(4):
            if self.world.jobs:
                return self.world.jobs[which % len(self.world.jobs)]
            if driver := self.driver(which):
                driver.next()
        return None

    # ------------------------------------------------------------ messages come, and go elsewhere

    @rule(messages=st.integers(1, 4), kind=st.sampled_from(["plain", "plain", "expired", "poison"]))
    def send(self, messages: int, kind: str) -> None:
        """Send messages, some of them expired, or poison."""
        self.world.send(messages, kind)

    @rule(takes=st.integers(1, 3))
    def compete(self, takes: int) -> None:
        """Take messages as the transport does, and keep the transaction open."""
        for _ in range(takes):
            self.world.rival_takes()

    @rule(commit=st.booleans())
    def decide(self, *, commit: bool) -> None:
        """Commit what the competitor took, if anything, or roll it back."""
        self.world.rival_ends(commit=commit)

    # ------------------------------------------------------------ work goes on

    @rule(which=WHICH, things=st.integers(1, 3))
    def go_on(self, which: int, things: int) -> None:
        """A driver does its next things; what they start is left where it begins."""
        for _ in range(things):
            if driver := self.driver(which):
                driver.next()

    @rule(which=WHICH, things=st.integers(3, 12))
    def hurry(self, which: int, things: int) -> None:
        """A driver does several things, and nobody comes between unless it must wait."""
        for _ in range(things):
            driver = self.driver(which)
            if driver is None or driver.idle:
                break
            self.world.hurry(driver)

    @rule(which=WHICH, statements=st.integers(1, 4))
    def advance(self, which: int, statements: int) -> None:
        """A process does a statement or a few."""
        if job := self.job(which):
            for _ in range(statements):
                self.world.step(job)

    @rule(which=WHICH)
    def end(self, which: int) -> None:
        """A process goes to its end, or to where it must wait."""
        if job := self.job(which):
            self.world.run(job)

    @rule(which=WHICH, slot=WHICH, statements=st.integers(0, 6))
    def attempt_again(self, which: int, slot: int, statements: int) -> None:
        """Speculation, a self-union, a retry: one more attempt of a task, which may be slow."""
        tasking = [each for each in self.world.alive() if each.phase == "tasks"]
        if tasking:
            driver = tasking[which % len(tasking)]
            chosen = sorted(driver.slots)[slot % len(driver.slots)]
            if driver.attempts(chosen) < 3:
                driver.attempt(chosen)
                job = self.world.jobs[-1]
                for _ in range(statements):
                    self.world.step(job)

    # ------------------------------------------------------------ faults

    @rule(which=WHICH, statements=st.integers(0, 8), order=st.sampled_from(FAULTS))
    def fault(self, which: int, statements: int, order: Order) -> None:
        """A process dies in its work, or its connection does, or a commit's answer is lost."""
        job = self.job(which)
        if job is None:
            return
        late = order in {"late", "mute"}
        for _ in range(statements + 8 * late):
            if job.work.done or (late and job.work.at == "commit"):
                break
            self.world.step(job)
        if job.work.done:
            return
        dies = order in {"die", "late"}
        FIGURES["processes killed"] += dies
        if dies and job.driver is not None and job is job.driver.job:
            FIGURES["drivers killed"] += 1
            job.driver.die(order)
        else:
            self.world.step(job, order)

    @rule(which=WHICH, executors=st.booleans())
    def crash(self, which: int, *, executors: bool) -> None:
        """A driver dies and is restarted; what its executors still do is a zombie's work."""
        alive = self.world.alive()
        if not alive:
            return
        driver = alive[which % len(alive)]
        FIGURES["drivers killed"] += 1
        driver.die()
        for job in [each for each in self.world.jobs if each.driver is driver and executors]:
            if not job.work.done:
                FIGURES["processes killed"] += 1
                self.world.step(job, "die")
        FIGURES["restarts"] += self.world.drive(driver.checkpoint) is not None

    @rule(
        which=WHICH,
        what=st.sampled_from(["second", "copy", "roll back", "roll back", "lose"]),
        more=WHICH,
    )
    def misfortune(self, which: int, what: str, more: int) -> None:
        """A checkpoint is used twice, copied, rolled back or lost."""
        checkpoint = self.checkpoint(which)
        if what == "second":
            if len(self.world.alive(checkpoint)) < 2:
                FIGURES["second drivers"] += self.world.drive(checkpoint) is not None
        elif what == "lose":
            self.world.lose(checkpoint)
        # Two queries that run at once under one name would give a batch's number to two plans: on a
        # copy without offsets, or with two sources.
        elif what == "copy" and checkpoint.sources == 1 and checkpoint.offsets:
            self.world.copy(checkpoint, elsewhere=more % 2 == 0)
        elif what == "roll back" and checkpoint.offsets:
            self.world.roll_back(checkpoint, 1 + more // 4, offsets=more % 2 == 0)

    @rule(which=WHICH, move=st.sampled_from(MOVES))
    def operate(self, which: int, move: Literal["return_", "drop"]) -> None:
        """An operator returns or drops a receipt, if one is left."""
        keys = [key for key in self.world.before if self.world.may_operate(key)]
        if keys:
            self.world.operate(keys[which % len(keys)], move)
