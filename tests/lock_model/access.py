"""
How a statement with its hints locks rows: the one place that knows what a hint does.

A row of a heap is a `row`, a row of a clustered index is its `key`. Each nonclustered index has a
`key` of its own for each row. In an id, `e` at the start means that the message has expired.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .skeletons import hints
from .steps import Fact, Get, Mark, Marked, Needs, Put, Remove, Resource, Statement

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .modes import Mode
    from .steps import Block, Ending

HEAPS = {"queue", "errors", "delayed"}
QUEUES = {"queue", "errors"}
END = "end"  # the key behind all others: new keys of these small tables share the gap before it


@dataclass(frozen=True)
class Tables:
    """The tables of a database, and the skeletons of the statements on them."""

    shapes: dict[str, str]
    snapshot: bool = False  # READ_COMMITTED_SNAPSHOT: plain reads take no lock
    clustered: bool = False  # queues of older versions, with a clustered Index_RowVersion
    by_index: bool = False  # a DELETE goes index by index, not row by row

    def whole(self, table: str) -> Resource:
        """Return the table as a whole."""
        return Resource("table", table)

    def tables_of(self, statement: str) -> list[str]:
        """Return the tables in the skeleton of a statement, in its order."""
        return re.findall(r"\b[a-z_]+\b", self.shapes[statement])

    def reads_versions(self, statement: str, table: str, use: int = 0) -> bool:
        """Whether a read takes no lock on rows."""
        found = hints(self.shapes[statement], table, use)
        locking = {"UPDLOCK", "REPEATABLEREAD", "HOLDLOCK", "READCOMMITTEDLOCK"}
        return self.snapshot and not found & locking

    def row(self, table: str, row: str) -> Resource:
        """Return what stands for the row: its place in the heap, or its clustered key."""
        if table in QUEUES and self.clustered:
            return self.key(table, "Index_RowVersion", row)
        return Resource("row" if table in HEAPS else "key", table, row)

    def key(self, table: str, index: str, row: str) -> Resource:
        """Return a row's key in a nonclustered index."""
        return Resource("key", f"{table}.{index}", row)

    def keys(self, table: str, row: str) -> list[Resource]:
        """Return a row's keys in all nonclustered indexes, in the order of their maintenance."""
        names = {"delayed": ["Index_Due"], "receipt": ["receipt_query"]}.get(table, [])
        if table in QUEUES:
            names = [] if self.clustered else ["Index_RowVersion"]
            names += ["Index_Expires"] if row.startswith("e") else []
        return [self.key(table, name, row) for name in names]

    def table(self, statement: str, table: str, *, writes: bool = True, use: int = 0) -> Block:
        """Return the lock on the table that comes before those on rows."""
        found = hints(self.shapes[statement], table, use)
        mode: Mode = "X" if "TABLOCK" in found else "IX" if writes or "UPDLOCK" in found else "IS"
        return (Get(self.whole(table), mode),)

    def look(
        self,
        statement: str,
        table: str,
        row: str,
        *,
        by: str = "",
        use: int = 0,
        target: bool = False,
        covered: bool = False,
        otherwise: Ending | None = None,
    ) -> Block:
        """
        Return the steps that read one row.

        Args:
            statement: its name; its skeleton has the hints.
            table: the table.
            row: the row's id.
            by: the nonclustered index that finds it; empty: the row itself is sought or scanned.
            use: which use of the table in the skeleton.
            target: whether the statement changes it: then it is read with an update lock.
            covered: whether the index has all that is read, so that the row is not looked up.
            otherwise: how the transaction ends if the row is not there.
        """
        found, fact = hints(self.shapes[statement], table, use), Fact(table, row)
        kept = target or bool(found & {"UPDLOCK", "REPEATABLEREAD", "HOLDLOCK"})
        if not target and self.reads_versions(statement, table, use):
            return (Needs(fact, versions=True, otherwise=otherwise),)
        mode: Mode = "U" if target or "UPDLOCK" in found else "S"
        places = [self.key(table, by, row)] if by else []
        places += [] if covered else [self.row(table, row)]
        past = "READPAST" in found
        return tuple(
            Get(place, mode, past=past, kept=kept, fact=fact, otherwise=otherwise)
            for place in dict.fromkeys(places)
        )

    def erase(self, table: str, row: str) -> Block:
        """Return what the Delete operator does: the row, then its keys; no hint applies to it."""
        places, fact = [self.row(table, row), *self.keys(table, row)], Fact(table, row)
        return (*(Get(place, "X", fact=fact) for place in places), Remove(fact))

    def insert(self, table: str, row: str, *, caught: bool = False) -> Block:
        """
        Return what the Insert operator does: a test of the gap, the row, then its keys.

        A duplicate ends it at the row, before it locks a key of another index.
        """
        heap, fact = table in HEAPS, Fact(table, row)  # the ids of a heap need not be unique
        first = Get(self.row(table, row), "X")
        keys = (Get(key, "X") for key in self.keys(table, row))
        if heap:
            return (first, *keys, Put(fact, caught=True))
        gap = Get(self.row(table, END), "RangeI-N", kept=False)
        absent = Needs(fact, present=False, otherwise=None if caught else "duplicate key")
        return (gap, first, absent, *keys, Put(fact, caught))

    def insert_if_absent(self, statement: str, table: str, row: str, *, use: int = 1) -> Block:
        """Return INSERT … WHERE NOT EXISTS: HOLDLOCK locks the gap where the key would be."""
        found, fact, key = (
            hints(self.shapes[statement], table, use),
            Fact(table, row),
            self.row(table, row),
        )
        if self.reads_versions(statement, table, use):
            absent: Block = (Needs(fact, present=False, versions=True),)
        else:
            mode: Mode = "U" if "UPDLOCK" in found else "S"
            absent = (Get(key, mode, kept=False), Needs(fact, present=False))
        if "HOLDLOCK" in found:
            absent = (Get(self.row(table, END), "RangeS-U"), *absent)
        return (*absent, *self.insert(table, row))

    # ------------------------------------------------------------ whole statements

    def select(
        self, name: str, table: str, rows: Iterable[str], *, by: str = "", covered: bool = False
    ) -> Statement:
        """Return a SELECT that finds some rows."""
        blocks = [self.look(name, table, row, by=by, covered=covered) for row in rows]
        return Statement(name, (self.table(name, table, writes=False), *blocks))

    def delete(
        self, name: str, table: str, rows: Iterable[str], *, by: str = "", top: bool = False
    ) -> Statement:
        """Return a DELETE; `top`: of the first row that it finds."""
        blocks = [
            (
                *([Marked(name, present=False)] if top else []),
                *self.look(name, table, row, by=by, target=True),
                *([Mark(f"{name} {row}")] if self.by_index else self.erase(table, row)),
                Mark(name),
            )
            for row in rows
        ]
        if self.by_index:
            blocks += self.erase_by_index(name, table, list(rows))
        return Statement(name, (self.table(name, table), *blocks))

    def erase_by_index(self, name: str, table: str, rows: list[str]) -> list[Block]:
        """Return a plan that deletes all rows that were found, then their keys, index by index."""
        steps = {row: self.erase(table, row) for row in rows}
        most = max(map(len, steps.values()), default=0)
        return [
            (Marked(f"{name} {row}"), steps[row][at])
            for at in range(most)
            for row in rows
            if at < len(steps[row])
        ]

    def update(self, name: str, table: str, row: str) -> Statement:
        """Return an UPDATE of one row that changes no key."""
        change = (*self.look(name, table, row, target=True), Get(self.row(table, row), "X"))
        return Statement(name, (self.table(name, table), change))
