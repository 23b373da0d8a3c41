"""
All interleavings of some transactions over one lock manager.

The manager grants in the order of requests, and a conversion before new requests. So a session
waits for those who hold an incompatible lock and for those who asked for one before it. A schedule
in which a later request overtakes a waiting one equals one in which the other asks later.

A step of a session takes one lock and runs on to the next one: what it reads or changes in between
is protected by that lock. States that were seen before are not explored again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .found import Deadlock, Found, Wait
from .modes import COMPATIBLE
from .sessions import (
    Run,
    Session,
    State,
    committed,
    end,
    is_local,
    needs_versions,
    put,
    there,
    without_uncontended,
)
from .steps import Get, Resource

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from .steps import Fact, Transaction

ESCALATION = 5000  # locks of one transaction on one table or index
# tables with LOCK_ESCALATION = DISABLE
NO_ESCALATION = {
    *("stream", "receipt", "receipt_page", "staging", "staging_page", "dispatch_log"),
    "trail",
}


def explore(
    transactions: Collection[Transaction],
    facts: Collection[Fact] = (),
    *,
    escalation: int = ESCALATION,
) -> Found:
    """
    Run transactions in every order of their steps.

    Args:
        transactions: one for each session.
        facts: the rows at the start.
        escalation: locks on one table or index from which on the whole table is locked.
    """
    return Explorer(list(transactions), escalation).run(frozenset(facts))


class Explorer:
    """A search through the states; `found` grows."""

    def __init__(self, transactions: list[Transaction], escalation: int) -> None:
        self.transactions = transactions
        self.escalation = escalation
        self.found = Found()
        programs = [each.blocks() for each in transactions]
        if escalation == ESCALATION:  # else the locks on a table, and their number, matter
            programs = without_uncontended(programs)
        self.programs = programs

    def run(self, facts: frozenset[Fact]) -> Found:
        """Visit every state once."""
        start = State(tuple(Session() for _ in self.programs), frozenset(), (), facts)
        for number in range(len(self.programs)):
            start = self.go_on(start, number)
        stack, seen = [start], {start}
        while stack:
            state = stack.pop()
            following = list(self.following(state))
            if not following:
                assert all(each.ended for each in state.sessions), "a deadlock was overlooked"
                self.found.ends.add((tuple(each.ended for each in state.sessions), state.facts))
            for each in following:
                if each not in seen:
                    seen.add(each)
                    stack.append(each)
        self.found.states = len(seen)
        return self.found

    def following(self, state: State) -> Iterator[State]:
        """Yield the states after one step of any session that need not wait."""
        for number, session in enumerate(state.sessions):
            if session.ended:
                continue
            step = self.programs[number][session.block][1][session.step]
            if isinstance(step, Get):
                yield from self.get(state, number, step)
            else:
                yield self.go_on(state, number, forced=True)

    # ------------------------------------------------------------ locks

    def get(self, state: State, number: int, step: Get) -> Iterator[State]:
        """Ask for a lock: it is granted, passed by, or waited for."""
        if step.fact is not None and not there(state, step.fact):
            yield self.missed(state, number, step)
            return
        blockers = self.blockers(state, number, step)
        if not blockers:
            yield self.granted(state, number, step)
        elif step.past:
            yield self.leave(state, number)
        elif number not in state.waiting:
            self.found.waits.add(self.wait(state, number, step, blockers))
            waiting = state._replace(waiting=(*state.waiting, number))
            yield from self.resolved(waiting, number)

    def blockers(self, state: State, number: int, step: Get) -> set[int]:
        """Return the sessions that a request waits for."""
        beside = COMPATIBLE[step.mode]
        found, mine = set(), False
        for resource, holder, mode in state.locks:
            if resource == step.resource:
                mine |= holder == number
                if holder != number and mode not in beside:
                    found.add(holder)
        for other in () if mine else state.waiting:
            if other == number:
                break
            asked = self.request(state, other)
            if asked.resource == step.resource and asked.mode not in beside:
                found.add(other)
        return found

    def request(self, state: State, number: int) -> Get:
        """Return what a session waits for."""
        session = state.sessions[number]
        step = self.programs[number][session.block][1][session.step]
        assert isinstance(step, Get)
        return step

    def granted(self, state: State, number: int, step: Get) -> State:
        """Hold the lock, if it is kept, and go on."""
        sessions, locks, waiting, facts = state
        if number in waiting:
            waiting = tuple(each for each in waiting if each != number)
        if step.kept:
            locks |= {(step.resource, number, step.mode)}
        state = self.escalated(State(sessions, locks, waiting, facts), number, step)
        if step.fact is not None and step.fact not in facts:
            return self.missed(state, number, step)
        block, at, marks, undo, _ = sessions[number]
        return self.go_on(put(state, number, Session(block, at + 1, marks, undo)), number)

    def missed(self, state: State, number: int, step: Get) -> State:
        """Go on where the row is gone."""
        if step.otherwise:
            return end(state, number, step.otherwise)
        waiting = tuple(each for each in state.waiting if each != number)
        return self.leave(state._replace(waiting=waiting), number)

    def escalated(self, state: State, number: int, step: Get) -> State:
        """Lock the whole table from many locks on; if others use it, go on without."""
        of = step.resource.of
        name = of.partition(".")[0]
        if len(state.locks) < self.escalation or name in NO_ESCALATION:
            return state
        mine = {each for each, holder, _ in state.locks if holder == number and each.of == of}
        table = Get(Resource("table", name), "X")
        if len(mine - {table.resource}) < self.escalation or self.blockers(state, number, table):
            return state
        return state._replace(locks=state.locks | {(table.resource, number, "X")})

    def wait(self, state: State, number: int, step: Get, blockers: set[int]) -> Wait:
        """Describe a wait."""
        name, statement = self.place(state, number)
        holders = tuple(sorted(self.transactions[each].name for each in blockers))
        return Wait(name, statement, step.resource, step.mode, holders)

    def place(self, state: State, number: int) -> tuple[str, str]:
        """Return the names of a session's transaction and statement."""
        statement = self.programs[number][state.sessions[number].block][0]
        return self.transactions[number].name, statement

    # ------------------------------------------------------------ deadlocks

    def resolved(self, state: State, number: int) -> Iterator[State]:
        """Yield the states after the deadlock monitor has ended a session of each cycle."""
        cycle = self.cycle(state, number)
        if not cycle:
            yield state
            return
        lowest = min(self.transactions[each].priority for each in cycle)
        victims = [each for each in cycle if self.transactions[each].priority == lowest]
        names = tuple(sorted(self.transactions[each].name for each in victims))
        self.found.deadlocks.add(
            Deadlock(tuple(sorted(self.place(state, each) for each in cycle)), names)
        )
        for each in victims:
            yield from self.resolved(end(state, each, "deadlock"), number)

    def cycle(self, state: State, number: int) -> list[int]:
        """Return the sessions that wait for each other, with this one; empty if there are none."""

        def search(path: list[int]) -> list[int]:
            if path[-1] not in state.waiting:
                return []
            for each in self.blockers(state, path[-1], self.request(state, path[-1])):
                if each == number:
                    return path
                if each not in path and (found := search([*path, each])):
                    return found
            return []

        return search([number])

    # ------------------------------------------------------------ rows

    def leave(self, state: State, number: int) -> State:
        """Go on with the next block."""
        session = state.sessions[number]
        after = session._replace(block=session.block + 1, step=0)
        return self.go_on(put(state, number, after), number)

    def go_on(self, state: State, number: int, *, forced: bool = False) -> State:
        """Do all steps up to the next one that depends on others; `forced`: that one too."""
        run = Run(self.programs[number], state.sessions[number], state.facts)
        while run.ended is None:
            step = run.next()
            if isinstance(step, Get) or not (forced or is_local(step)):
                break
            forced = False
            run.do(step, committed(state, number) if needs_versions(step) else run.facts)
        state = run.stopped(state, number)
        return end(state, number, run.ended) if run.ended else state
