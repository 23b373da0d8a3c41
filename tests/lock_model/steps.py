"""
The steps of a transaction: locks, tests and changes of rows, in the order of the plan.

A block is what a statement does with one row. A step that fails (READPAST finds the row locked, the
row is gone) leaves the block, and the statement goes on with the next row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from .modes import Mode


class Resource(NamedTuple):
    """What can be locked."""

    kind: Literal["table", "row", "key", "application"]
    of: str  # table; table.index; name of an application lock
    id: str = ""


class Fact(NamedTuple):
    """A row that is there."""

    table: str
    id: str


Ending = Literal["committed", "rolled back", "deadlock", "duplicate key"]


@dataclass(frozen=True, slots=True)
class Get:
    """Take a lock; on a row that is gone, leave the block, or end the transaction."""

    resource: Resource
    mode: Mode
    past: bool = False  # READPAST: leave the block instead of waiting
    kept: bool = True  # until the transaction ends; False: given back at once
    fact: Fact | None = None  # the row; a row that is not there cannot be locked
    otherwise: Ending | None = None


@dataclass(frozen=True, slots=True)
class Needs:
    """Leave the block, or end the transaction, unless a row is there, or is not."""

    fact: Fact
    present: bool = True
    versions: bool = False  # reads the last committed version, without a lock
    otherwise: Ending | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """Remember something for later blocks, as a table variable does."""

    name: str


@dataclass(frozen=True, slots=True)
class Marked:
    """Leave the block unless something was remembered, or was not."""

    name: str
    present: bool = True


@dataclass(frozen=True, slots=True)
class Put:
    """Insert a row; if it is there, the unique index ends the transaction, or the block."""

    fact: Fact
    caught: bool = False  # by TRY … CATCH


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a row."""

    fact: Fact


@dataclass(frozen=True, slots=True)
class End:
    """Commit or roll back, and release all locks."""

    how: Ending


Step = Get | Needs | Mark | Marked | Put | Remove | End
Block = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement's name and its blocks."""

    name: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Transaction:
    """What one session does."""

    name: str
    statements: tuple[Statement, ...]
    ending: Ending = "committed"
    priority: int = 0  # DEADLOCK_PRIORITY: the lowest in a cycle is the victim

    def blocks(self) -> list[tuple[str, Block]]:
        """All blocks, each with the name of its statement, and the end."""
        found = [(each.name, block) for each in self.statements for block in each.blocks]
        return [*found, (self.ending, (End(self.ending),))]
