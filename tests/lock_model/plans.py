"""
From a path and its hints to locks. Only this module knows what a hint does.

A row is a place of its table. Each nonclustered index has a key of its own for each row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

from .engine import End, Found, Get, Needs, Place, Put, Transaction, explore
from .table import GROUPS, PAIRS_ONLY, PATHS, SHAPES, START, hints

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .engine import Block, Line

QUEUES, HEAPS = {"queue", "errors"}, {"queue", "errors", "delayed"}
INDEXES = {"delayed": ["Index_Due"], "receipt": ["receipt_query"]}  # nonclustered
KEEPS = {"UPDLOCK", "REPEATABLEREAD", "HOLDLOCK"}
ENDINGS = {"commit": "committed", "rollback": "rolled back"}
CLAUSE = re.compile(r"(\w+) (\w+)(?:\.(\w+))?(?:#(\d))? ?(.*)")
ROWS = [Place(table, row) for table, rows in START.items() for row in rows.split()]


@dataclass(frozen=True)
class Touch:
    """A row that a statement reads or changes, by which index, and with which hints."""

    table: str
    row: str
    index: str = ""
    hints: frozenset[str] = frozenset()
    snapshot: bool = False  # whether READ_COMMITTED_SNAPSHOT is on, so that plain reads do not lock
    clustered: bool = False  # whether Index_RowVersion is clustered, as in queues of older versions

    @property
    def fact(self) -> Place:
        return Place(self.table, self.row)

    def place(self, row: str = "") -> Place:
        """Return what stands for a row; the key behind all others is `end`."""
        clustered = self.clustered and self.table in QUEUES
        return Place(f"{self.table}.Index_RowVersion" if clustered else self.table, row or self.row)

    def keys(self) -> list[Place]:
        """Return the row's keys in all nonclustered indexes, in the order of their maintenance."""
        names = INDEXES.get(self.table, [])
        if self.table in QUEUES:
            names = [] if self.clustered else ["Index_RowVersion"]
            names += ["Index_Expires"] if self.row.startswith("e") else []
        return [Place(f"{self.table}.{name}", self.row) for name in names]

    def by_versions(self) -> bool:
        """Whether a read takes no lock on rows."""
        return self.snapshot and not self.hints & (KEEPS | {"READCOMMITTEDLOCK"})

    # ------------------------------------------------------------ operators

    def look(self, mode: str = "S", *, kept: bool = False, covered: bool = False) -> Block:
        """
        Return the steps that read the row.

        `covered` means that the index has all columns that are read.
        """
        if mode == "S" and self.by_versions():
            return (Needs(self.fact, versions=True),)
        mode, past = "U" if "UPDLOCK" in self.hints else mode, "READPAST" in self.hints
        places = [Place(f"{self.table}.{self.index}", self.row)] if self.index else []
        places += [] if covered else [self.place()]
        kept = kept or bool(self.hints & KEEPS)
        return tuple(Get(place, mode, past, kept, self.fact) for place in dict.fromkeys(places))

    def change(self) -> Block:
        """Return the steps that find a row to change. They take an update lock, and keep it."""
        return self.look("U", kept=True)

    def delete(self) -> Block:
        """Return the steps that find the row, and lock it and its keys. No hint applies to them."""
        locks = (Get(place, "X", row=self.fact) for place in (self.place(), *self.keys()))
        return (*self.change(), *locks, Put(self.fact, present=False))

    def insert(self, otherwise: str = "duplicate key") -> Block:
        """Return the steps of the Insert operator: test the gap, lock the row, then its keys."""
        first, keys = Get(self.place(), "X"), [Get(key, "X") for key in self.keys()]
        if self.table in HEAPS:  # these have no unique key, so there is no gap to test
            return (first, *keys, Put(self.fact))
        gap = Get(self.place("end"), "RangeI-N", kept=False)
        absent = Needs(self.fact, present=False, otherwise=otherwise)
        return (gap, first, absent, *keys, Put(self.fact))

    def absent(self, otherwise: str = "") -> Block:
        """Return a look for a key that should not exist. HOLDLOCK locks the gap."""
        versions = self.by_versions()
        needs = Needs(self.fact, present=False, versions=versions, otherwise=otherwise)
        if versions:
            return (needs,)
        gap = [Get(self.place("end"), "RangeS-U")] if "HOLDLOCK" in self.hints else []
        mode = "U" if "UPDLOCK" in self.hints else "S"
        return (*gap, Get(self.place(), mode, kept=False), needs)

    def do(self, verb: str, flag: str) -> Block:
        """Return the steps of one part of a path."""
        expires = replace(self, index="Index_Expires", hints=self.hints - {"UPDLOCK"})
        moved = replace(self, table="queue", row=f"moved-{self.row}")
        verbs: dict[str, Block] = {
            "read": self.look(covered=flag == "covered"),
            "scan": self.look("U"),
            "needs": (Needs(self.fact, otherwise="committed"),),
            "absent": self.absent(flag),
            "insert": self.insert(),
            "insert caught": self.insert(""),
            "insert absent": (*self.absent(), *self.insert("")),
            "update": (*self.change(), Get(self.place(), "X")),
            "delete": self.delete(),
            "whole": (*self.delete(), *Touch(f"{self.table}_page", self.row).delete()),
            "move": (*self.delete(), *moved.insert()),
            "expire": (*expires.look(covered=True), *self.delete()),
        }
        return verbs.get(f"{verb} {flag}") or verbs[verb]


# ---------------------------------------------------------------- sessions


def blocks(statement: str, rows: list[list[str]], kind: dict[str, bool]) -> Iterator[Block]:
    """Yield the locks of a statement: those on its tables, then those on each row."""
    for at, clause in enumerate(PATHS[statement].split("; ")):
        verb, table, index, number, flag = CLAUSE.fullmatch(clause).groups("")  # type: ignore[union-attr]
        found = hints(SHAPES.get(statement, ""), table, int(number or 0))
        intent = "IX" if verb not in {"read", "absent"} or "UPDLOCK" in found else "IS"
        yield (Get(Place(table), "X" if "TABLOCK" in found else intent),)
        for row in rows[min(at, len(rows) - 1)]:
            if verb != "expire" or row.startswith("e"):
                yield Touch(table, row, index, found, **kind).do(verb, flag)


def transaction(name: str, script: str, kind: dict[str, bool]) -> Transaction:
    """Return what a session runs."""
    lines: list[Line] = []
    for call in f"{script}; commit".split("; "):
        statement, _, given = call.partition(" ")
        if statement in ENDINGS:
            lines.append((statement, End(ENDINGS[statement]), 0))
            break
        rows = [group.split() for group in given.split("/")]
        for block in blocks(statement, rows, kind):
            lines += [(statement, step, len(lines) + len(block)) for step in block]
    return Transaction(name, lines)


def meet(group: str, names: Sequence[str], **kind: bool) -> Found:
    """Let sessions of a group run in every order."""
    sent, delayed = (" enew-1 enew-2", " new-1 new-2") if len(names) == 2 else ("", "")
    queue = "1 e2" + (sent if group == "queue" else "")
    scripts = [GROUPS[group][name] for name in names]
    numbered = [each.format(n=n, q=queue, d=f"1 2{delayed}") for n, each in enumerate(scripts, 1)]
    return explore([transaction(*each, kind) for each in zip(names, numbered, strict=True)], ROWS)


def meetings(group: str, sessions: int) -> Iterator[tuple[tuple[str, ...], Found]]:
    """Yield the meetings of all sessions of a group: two in each kind of database, three in one."""
    names = [name for name in GROUPS[group] if sessions == 2 or name not in PAIRS_ONLY]
    for snapshot, clustered in ((False, False), (True, True), (True, False), (False, True)):
        if sessions == 2 or not (snapshot or clustered):
            for chosen in combinations_with_replacement(names, sessions):
                yield chosen, meet(group, chosen, snapshot=snapshot, clustered=clustered)
