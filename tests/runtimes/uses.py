"""
What the package uses of pyspark, read from its sources: names, parameters, methods it overrides.

What is imported for annotations alone is left out: nothing needs it when a job runs.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
OURS = {"options", "self", "settings"}  # what the package calls objects of its own


@dataclass(frozen=True, order=True)
class Use:
    """One use; `where` is `file:line`."""

    where: str
    module: str  # "" for an attribute of an object whose class is not known
    name: str
    parameters: tuple[str, ...] = ()  # by keyword


@dataclass(frozen=True)
class Override:
    """A method of ours, and the pyspark classes that its class has for bases."""

    where: str
    bases: tuple[tuple[str, str], ...]  # module, class
    method: ast.FunctionDef


class Source:
    """One file of the package."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.names: dict[str, tuple[str, str]] = {}  # ours → module, name
        self.others: set[str] = set()  # what is imported from elsewhere
        self.uses: list[Use] = []
        self.overrides: list[Override] = []
        for node in list(walk(self.tree)):
            self._import(node)
        if self.names:
            for node in list(walk(self.tree)):
                self._used(node)

    def _where(self, node: ast.stmt | ast.expr) -> str:
        return f"{self.path.name}:{node.lineno}"

    def _import(self, node: ast.AST) -> None:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyspark"):
            for each in node.names:
                self.names[each.asname or each.name] = (str(node.module), each.name)
                self.uses.append(Use(self._where(node), str(node.module), each.name))
        elif isinstance(node, (ast.ImportFrom, ast.Import)):
            self.others |= {each.asname or each.name for each in node.names}

    def _used(self, node: ast.AST) -> None:
        if isinstance(node, ast.Call):
            self._called(node)
        elif isinstance(node, ast.Attribute):
            self._attribute(node, ())
        elif isinstance(node, ast.ClassDef):
            bases = tuple(
                self.names[each.id]
                for each in node.bases
                if isinstance(each, ast.Name) and each.id in self.names
            )
            for each in node.body:
                if bases and isinstance(each, ast.FunctionDef):
                    self.overrides.append(Override(self._where(each), bases, each))

    def _called(self, node: ast.Call) -> None:
        keywords = tuple(each.arg for each in node.keywords if each.arg is not None)
        if isinstance(node.func, ast.Name) and node.func.id in self.names:
            self.uses.append(Use(self._where(node), *self.names[node.func.id], keywords))
        elif isinstance(node.func, ast.Attribute):
            self._attribute(node.func, keywords)

    def _attribute(self, node: ast.Attribute, keywords: tuple[str, ...]) -> None:
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        if owner in self.names:
            module, name = self.names[owner]
            self.uses.append(Use(self._where(node), f"{module}.{name}", node.attr, keywords))
        elif owner not in self.others | OURS:
            self.uses.append(Use(self._where(node), "", node.attr, keywords))


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those for annotations alone."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        for each in node.orelse:
            yield from walk(each)
        return
    yield node
    for below in ast.iter_child_nodes(node):
        yield from walk(below)


def sources(root: Path = ROOT) -> list[Source]:
    """The package's files that use pyspark."""
    paths = [root / "pyspark_sqlqueue.py", *sorted((root / "sqlq_spark").rglob("*.py"))]
    found = [Source(path) for path in paths]
    return [each for each in found if each.names]
