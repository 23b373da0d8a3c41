"""
Small faults in the product, and the tests that must fail with each of them.

history.py has faults that this repository once had and repaired. drawn.py has faults that draw.py
drew. `python -m tests.mutants` shows that the tests catch all of them. If the code of a fault
moves, the fault moves with it and keeps its promise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A small change of one file that breaks a promise."""

    id: str
    promise: str  # what no longer holds
    file: str  # in sqlq_spark
    old: str  # a text that is there exactly once
    new: str  # what replaces it
    tests: list[str]  # the cheapest that fail with it: node ids of pytest, in tests
    statement: str | None = None  # of an SQL file: the text is looked for in this statement only
    fixed: str | None = None  # of history.py: the commit that repaired it

    @property
    def path(self) -> str:
        """The file, from the root of the tree."""
        return f"sqlq_spark/{self.file}"

    @property
    def package(self) -> str:
        """Where it is; the SQL of each database is a package of its own."""
        parts = Path(self.file).parts
        return f"{parts[-2]} SQL" if self.file.endswith(".sql") else Path(parts[0]).stem

    def apply(self, text: str) -> str | None:
        """Return a file's text with the fault; None if it cannot be applied."""
        start, stop = 0, len(text)
        if self.statement is not None:
            found = re.search(rf"^-- name: {self.statement}\n", text, re.MULTILINE)
            if found is None:
                return None
            start = found.end()
            following = text.find("\n-- name: ", start)
            stop = stop if following < 0 else following
        if text.count(self.old, start, stop) != 1 or self.old == self.new:
            return None
        at = text.index(self.old, start, stop)
        return text[:at] + self.new + text[at + len(self.old) :]
