"""
All interleavings of some transactions over one lock manager.

The manager grants in the order of requests, and a conversion before new requests. So a session
waits for those who hold an incompatible lock and for those who asked for one before it. A step
takes one lock and runs on to the next one: what comes in between is protected by that lock.

A session keeps all modes that it was granted. That equals Microsoft's conversions: S and IX
together admit what SIX admits, U and X what X admits, RangeS-U and X what RangeX-X admits.
"""

from __future__ import annotations

from collections import defaultdict
from functools import reduce
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

# mode of a lock → modes that another session may hold on the same thing at the same time
COMPATIBLE = {
    "IS": {"IS", "IX", "S", "U"},
    "IX": {"IS", "IX"},
    "S": {"IS", "S", "U", "RangeS-U", "RangeI-N"},
    "U": {"IS", "S", "RangeI-N"},
    "X": {"RangeI-N"},
    "RangeS-U": {"S"},
    "RangeI-N": {"S", "U", "X", "RangeI-N"},
}


class Place(NamedTuple):
    """Something that can be locked, and the row there."""

    of: str  # a table, or an index as table.index
    id: str = ""  # the row or key; empty: the table as a whole


class Get(NamedTuple):
    """Take a lock, and leave the block if the row is gone."""

    place: Place
    mode: str
    past: bool = False  # READPAST: leave the block instead of waiting
    kept: bool = True  # whether it is kept until the transaction ends, or released at once
    row: Place | None = None  # the row must exist, or it cannot be locked


class Needs(NamedTuple):
    """Leave the block, or end the transaction, unless a row exists or does not exist."""

    row: Place
    present: bool = True
    versions: bool = False  # whether it reads the last committed version, without a lock
    otherwise: str = ""  # how the transaction ends then; empty: it goes on after the block


class Put(NamedTuple):
    """Insert a row, unless it exists, or delete it."""

    row: Place
    present: bool = True


class End(NamedTuple):
    """Commit or roll back, and release all locks."""

    how: str


Step = Get | Needs | Put | End
Block = tuple[Step, ...]  # the steps of a statement for one row; a step that fails leaves the block
Line = tuple[str, Step, int]  # a statement, one of its steps, and the line of the next block


class Transaction(NamedTuple):
    """What one session runs. In a deadlock the server ends ours, which have LOW priority."""

    name: str
    lines: list[Line]


class Session(NamedTuple):
    """The state of one session."""

    at: int = 0
    undo: frozenset[tuple[Place, bool]] = (
        frozenset()
    )  # changed rows, and whether they were inserted
    ended: str = ""


class State(NamedTuple):
    """The sessions, the locks that they hold, who waits, in order, and which rows exist."""

    sessions: tuple[Session, ...]
    locks: frozenset[tuple[Place, int, str]]
    waiting: tuple[int, ...]
    rows: frozenset[Place]

    def put(self, number: int, session: Session, rows: frozenset[Place] | None = None) -> State:
        """Replace a session, which no longer waits, and the rows."""
        sessions = (*self.sessions[:number], session, *self.sessions[number + 1 :])
        waiting = tuple(each for each in self.waiting if each != number)
        return State(sessions, self.locks, waiting, self.rows if rows is None else rows)

    def end(self, number: int, how: str) -> State:
        """End a session and release its locks. Unless it commits, its changes are undone."""
        rows = self.rows if how == "committed" else undone(self.rows, self.sessions[number])
        locks = frozenset(each for each in self.locks if each[1] != number)
        return self._replace(locks=locks).put(number, Session(ended=how), rows)

    def committed(self, number: int) -> frozenset[Place]:
        """Return the rows as a session reads them by versions: without changes of others."""
        others = [*self.sessions[:number], *self.sessions[number + 1 :]]
        return reduce(undone, others, self.rows)


def undone(rows: frozenset[Place], session: Session) -> frozenset[Place]:
    """Return the rows without the changes of a session."""
    inserted = {row for row, new in session.undo if new}
    return (rows - inserted) | ({row for row, new in session.undo if not new} - inserted)


class Found(NamedTuple):
    """What was seen in all interleavings. Sessions are known by their transactions' names."""

    waits: set[tuple[str, str, str]]  # a session, its statement, and the session it waits for
    deadlocks: set[tuple[frozenset[str], frozenset[str]]]  # the sessions, and the possible victims
    ends: set[tuple[tuple[str, ...], frozenset[Place]]]  # how each session ended, and the rows left


def explore(transactions: Sequence[Transaction], rows: Collection[Place] = ()) -> Found:
    """Run transactions in every order of their steps, beginning with some rows."""
    explorer = Explorer(transactions)
    start = State((Session(),) * len(transactions), frozenset(), (), frozenset(rows))
    for number in range(len(transactions)):
        start = explorer.go_on(start, number)
    stack, seen = [start], {start}
    while stack:
        state = stack.pop()
        following = set(explorer.following(state)) or set(explorer.without_a_victim(state))
        stack += following - seen
        seen |= following
    return explorer.found


class Explorer:
    """Goes from each state to the next ones, and adds what it sees to `found`."""

    def __init__(self, transactions: Sequence[Transaction]) -> None:
        self.names = [each.name for each in transactions]
        self.lines = contended(transactions)
        self.found = Found(set(), set(), set())

    def following(self, state: State) -> Iterator[State]:
        """Yield the states after one step of any session that need not wait."""
        for number, session in enumerate(state.sessions):
            if session.ended:
                continue
            statement, step, behind = self.lines[number][session.at]
            left = state.put(number, session._replace(at=behind))
            if not isinstance(step, Get):
                yield self.go_on(state, number, forced=True)
                continue
            there = step.row is None or step.row in state.rows
            # a deleted row can be locked until its transaction ends
            if not there and not any((step.row, False) in each.undo for each in state.sessions):
                yield self.go_on(left, number)
            elif not (blockers := self.blockers(state, number, step)):
                granted = state.put(number, session._replace(at=session.at + 1)) if there else left
                held = {(step.place, number, step.mode)} if step.kept else set()
                yield self.go_on(granted._replace(locks=state.locks | held), number)
            elif step.past:
                yield self.go_on(left, number)
            elif number not in state.waiting:
                who = self.names[number]
                self.found.waits.update((who, statement, self.names[each]) for each in blockers)
                yield state._replace(waiting=(*state.waiting, number))

    def without_a_victim(self, state: State) -> Iterator[State]:
        """Yield the states after the server has ended one of the sessions that wait for others."""
        stuck = [number for number, each in enumerate(state.sessions) if not each.ended]
        victims = [each for each in stuck if not self.names[each].startswith("endpoint")] or stuck
        who, ends = (frozenset(self.names[each] for each in group) for group in (stuck, victims))
        if stuck:
            self.found.deadlocks.add((who, ends))
            yield from (state.end(each, "deadlock") for each in victims)
        else:
            self.found.ends.add((tuple(each.ended for each in state.sessions), state.rows))

    def blockers(self, state: State, number: int, step: Get) -> set[int]:
        """Return the sessions that a request waits for: those that hold or asked before."""
        beside = COMPATIBLE[step.mode]
        uses = [(holder, mode) for place, holder, mode in state.locks if place == step.place]
        if number not in dict(uses):
            for other in takewhile(lambda each: each != number, state.waiting):
                asked = self.request(state, other)
                uses += [(other, asked.mode)] if asked.place == step.place else []
        return {other for other, mode in uses if other != number and mode not in beside}

    def request(self, state: State, number: int) -> Get:
        """Return what a session waits for."""
        step = self.lines[number][state.sessions[number].at][1]
        assert isinstance(step, Get)
        return step

    def go_on(self, state: State, number: int, *, forced: bool = False) -> State:
        """Do all steps up to the next one that depends on others. `forced` includes that one."""
        at, undo, ended = state.sessions[number]
        rows = state.rows
        while not ended:
            _, step, behind = self.lines[number][at]
            depends = isinstance(step, End) or (isinstance(step, Needs) and step.versions)
            if isinstance(step, Get) or (depends and not forced):
                break
            forced, at = False, at + 1
            match step:
                case End(how):
                    ended = how
                case Needs(row, present, versions, otherwise):
                    if (row in (state.committed(number) if versions else rows)) != present:
                        at, ended = behind, otherwise
                case Put(row, present) if (row in rows) != present:
                    rows, undo = rows ^ {row}, undo | {(row, present)}
        state = state.put(number, Session(at, undo), rows)
        return state.end(number, ended) if ended else state


def contended(transactions: Sequence[Transaction]) -> list[list[Line]]:
    """Return the lines of each, without locks that no other session can wait for."""
    asked = defaultdict(set)
    for number, transaction in enumerate(transactions):
        for _, step, _ in transaction.lines:
            if isinstance(step, Get):
                asked[step.place].add((number, step.mode))

    def needed(number: int, step: Step) -> Step:
        if isinstance(step, Get) and not any(
            other != number and mode not in COMPATIBLE[step.mode]
            for other, mode in asked[step.place]
        ):
            return Needs(step.row or Place(""), present=step.row is not None)
        return step

    return [
        [(statement, needed(number, step), behind) for statement, step, behind in each.lines]
        for number, each in enumerate(transactions)
    ]
