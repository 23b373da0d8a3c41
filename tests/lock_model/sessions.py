"""Where sessions stand, and what they do between two locks: read, insert, delete, end."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .modes import COMPATIBLE
from .steps import End, Get, Mark, Marked, Needs, Put, Remove

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .modes import Mode
    from .steps import Block, Ending, Fact, Resource, Step


class Session(NamedTuple):
    """Where a session stands."""

    block: int = 0
    step: int = 0
    marks: frozenset[str] = frozenset()
    undo: frozenset[tuple[bool, Fact]] = frozenset()  # whether it inserted, and which row
    ended: Ending | None = None


class State(NamedTuple):
    """Where all stand, what they hold, who waits (in order), and which rows are there."""

    sessions: tuple[Session, ...]
    locks: frozenset[tuple[Resource, int, Mode]]
    waiting: tuple[int, ...]
    facts: frozenset[Fact]


class Run:
    """A session that does steps which lock nothing."""

    __slots__ = ("at", "block", "ended", "facts", "marks", "program", "undo")

    def __init__(
        self, program: list[tuple[str, Block]], session: Session, facts: frozenset[Fact]
    ) -> None:
        self.program, self.facts = program, facts
        self.block, self.at, self.marks, self.undo, self.ended = session

    def next(self) -> Step:
        """Return the step that comes next, of this block or of one behind it."""
        while self.at == len(self.program[self.block][1]):
            self.leave()
        return self.program[self.block][1][self.at]

    def leave(self) -> None:
        """Go to the next block."""
        self.block, self.at = self.block + 1, 0

    def do(self, step: Step, seen: frozenset[Fact]) -> None:
        """Do one step; `seen` are the rows that it reads."""
        self.at += 1
        match step:
            case End(how):
                self.ended = how
            case Needs(fact, present, _, otherwise):
                if (fact in seen) != present:
                    self.ended = otherwise
                    self.leave()
            case Marked(name, present):
                if (name in self.marks) != present:
                    self.leave()
            case Mark(name):
                self.marks |= {name}
            case Put(fact, caught):
                self.insert(fact, caught=caught)
            case Remove(fact):
                assert fact in self.facts, f"{fact} is deleted twice"
                self.facts, self.undo = self.facts - {fact}, self.undo | {(False, fact)}

    def insert(self, fact: Fact, *, caught: bool) -> None:
        """Insert a row; a second one with the same key is an error, which may be caught."""
        if fact not in self.facts:
            self.facts, self.undo = self.facts | {fact}, self.undo | {(True, fact)}
        elif caught:
            self.leave()
        else:
            self.ended = "duplicate key"

    def stopped(self, state: State, number: int) -> State:
        """Return the state in which the session stands here."""
        session = Session(self.block, self.at, self.marks, self.undo)
        return put(state, number, session, self.facts)


def is_local(step: Step) -> bool:
    """Whether a step reads or changes only what the session has locked."""
    return not (isinstance(step, End) or needs_versions(step))


def needs_versions(step: Step) -> bool:
    """Whether a step reads committed rows without a lock."""
    return isinstance(step, Needs) and step.versions


def committed(state: State, number: int) -> frozenset[Fact]:
    """Return the rows as a session reads them by versions: without changes that others undo."""
    facts = state.facts
    for other, session in enumerate(state.sessions):
        if other != number:
            facts = undone(facts, session)
    return facts


def there(state: State, fact: Fact) -> bool:
    """Whether a row can be locked: deleted rows can until their transaction ends."""
    return fact in state.facts or any((False, fact) in each.undo for each in state.sessions)


def undone(facts: frozenset[Fact], session: Session) -> frozenset[Fact]:
    """Return the rows without the changes of a session."""
    inserted = {fact for new, fact in session.undo if new}
    return (facts - inserted) | ({fact for new, fact in session.undo if not new} - inserted)


def put(state: State, number: int, session: Session, facts: frozenset[Fact] | None = None) -> State:
    """Replace a session, and the rows."""
    before, locks, waiting, rows = state
    sessions = (*before[:number], session, *before[number + 1 :])
    return State(sessions, locks, waiting, rows if facts is None else facts)


def end(state: State, number: int, how: Ending) -> State:
    """End a session and release its locks; unless it commits, its changes are undone."""
    session = state.sessions[number]
    facts = state.facts if how == "committed" else undone(state.facts, session)
    return State(
        put(state, number, Session(ended=how)).sessions,
        frozenset(each for each in state.locks if each[1] != number),
        tuple(each for each in state.waiting if each != number),
        facts,
    )


def without_uncontended(programs: list[list[tuple[str, Block]]]) -> list[list[tuple[str, Block]]]:
    """Leave out the locks that no other session can wait for: they change nothing."""
    asked: dict[Resource, set[tuple[int, Mode]]] = {}
    for number, program in enumerate(programs):
        for step in (step for _, block in program for step in block):
            if isinstance(step, Get):
                asked.setdefault(step.resource, set()).add((number, step.mode))

    def needed(number: int, step: Step) -> Iterator[Step]:
        if not isinstance(step, Get) or any(
            other != number and mode not in COMPATIBLE[step.mode]
            for other, mode in asked[step.resource]
        ):
            yield step
        elif step.fact is not None:
            yield Needs(step.fact, otherwise=step.otherwise)

    return [
        [
            (name, tuple(kept for step in block for kept in needed(number, step)))
            for name, block in program
        ]
        for number, program in enumerate(programs)
    ]
