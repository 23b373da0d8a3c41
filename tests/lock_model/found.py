"""What a search through all interleavings has seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .modes import Mode
    from .steps import Ending, Fact, Resource


class Wait(NamedTuple):
    """A session waited for a lock."""

    transaction: str
    statement: str
    resource: Resource
    mode: Mode
    holders: tuple[str, ...]  # names of transactions


class Deadlock(NamedTuple):
    """A cycle: each transaction and the statement in which it waits; and who may be the victim."""

    cycle: tuple[tuple[str, str], ...]
    victims: tuple[str, ...]


@dataclass
class Found:
    """What was seen in all interleavings."""

    states: int = 0
    waits: set[Wait] = field(default_factory=set)
    deadlocks: set[Deadlock] = field(default_factory=set)
    ends: set[tuple[tuple[Ending | None, ...], frozenset[Fact]]] = field(default_factory=set)
