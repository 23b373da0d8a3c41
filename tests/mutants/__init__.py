"""
Small faults in the product, and the tests that must fail with each of them.

history.py has faults that this repository once had and repaired, drawn.py has faults that were
drawn by chance. The names of their tests are the promises that they break. If the code of a fault
moves, the fault moves with it.
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
    file: str  # path in sqlq_spark
    old: str  # a text that occurs exactly once
    new: str  # the text that replaces it
    tests: list[str]  # the fastest tests that fail with it: pytest's node ids, in the folder tests
    statement: str | None = None  # in an SQL file, only this statement is searched for the text

    @property
    def path(self) -> str:
        """The file, from the root of the tree."""
        return f"sqlq_spark/{self.file}"

    def apply(self, text: str) -> str | None:
        """Return a file's text with the fault; None if it cannot be applied."""
        begin, end = 0, len(text)
        if self.statement:
            head = re.search(rf"^-- (?:name|part): {self.statement}\n", text, flags=re.MULTILINE)
            if head is None:
                return None
            begin = head.end()
            following = re.search(r"^-- (?:name|part): ", text[begin:], flags=re.MULTILINE)
            end = len(text) if following is None else begin + following.start()
        part = text[begin:end]
        if part.count(self.old) != 1 or self.old == self.new:
            return None
        return text[:begin] + part.replace(self.old, self.new) + text[end:]
