"""
Small faults in the product, and the tests that must fail with each of them.

history.py has faults that this repository once had and repaired, drawn.py has faults that were
drawn by chance. The names of their tests are the promises that they break. If the code of a fault
moves, the fault moves with it.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A small change of one file that breaks a promise."""

    id: str
    file: str  # path in sqlq_spark
    place: str  # the function, class or constant with dots, in an SQL file the statement
    old: str  # a text that occurs exactly once in that place
    new: str  # the text that replaces it
    tests: list[str]  # the fastest tests that fail with it: pytest's node ids, in the folder tests

    @property
    def path(self) -> str:
        """The file, from the root of the tree."""
        return f"sqlq_spark/{self.file}"

    def apply(self, text: str) -> str | None:
        """Return a file's text with the fault; None if it cannot be applied."""
        find = _find_statement if self.file.endswith(".sql") else _find_definition
        found = find(text, self.place)
        if found is None:
            return None
        part = text[found]
        if part.count(self.old) != 1 or self.old == self.new:
            return None
        return text[: found.start] + part.replace(self.old, self.new) + text[found.stop :]


def _find_statement(text: str, name: str) -> slice | None:
    head = re.search(rf"^-- (?:name|part): {name}\n", text, flags=re.MULTILINE)
    if head is None:
        return None
    following = re.search(r"^-- (?:name|part): ", text[head.end() :], flags=re.MULTILINE)
    return slice(head.end(), len(text) if following is None else head.end() + following.start())


def _find_definition(text: str, name: str) -> slice | None:
    """Return the whole lines of a function, class or constant."""
    node: ast.AST = ast.parse(text)
    for part in name.split("."):
        found = [each for each in ast.walk(node) if each is not node and part in _names(each)]
        if not found:
            return None
        node = found[0]
    assert isinstance(node, ast.stmt)
    assert node.end_lineno is not None
    lines = text.splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1]))
    return slice(start, start + sum(map(len, lines[node.lineno - 1 : node.end_lineno])))


def _names(node: ast.AST) -> list[str]:
    """Return what a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [each.id for each in node.targets if isinstance(each, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []
