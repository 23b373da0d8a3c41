"""The API of a pyspark, read from its sources: those of a wheel, or of an installed one."""

from __future__ import annotations

import ast
import zipfile
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

Definition = ast.FunctionDef | ast.ClassDef | None  # None: a name of another kind


@dataclass(frozen=True)
class Import:
    """A name that a module has from another one; followed when it is asked for."""

    module: str
    name: str


# of what may stand before a point in the package
CLASSES = [
    ("pyspark.sql.catalog", "Catalog"),
    ("pyspark.sql.column", "Column"),
    ("pyspark.sql.conf", "RuntimeConfig"),
    ("pyspark.sql.dataframe", "DataFrame"),
    ("pyspark.sql.group", "GroupedData"),
    ("pyspark.sql.readwriter", "DataFrameReader"),
    ("pyspark.sql.readwriter", "DataFrameWriter"),
    ("pyspark.sql.session", "DataSourceRegistration"),
    ("pyspark.sql.session", "SparkSession"),
    ("pyspark.sql.streaming.listener", "StreamingQueryListener"),
    ("pyspark.sql.streaming.listener", "StreamingQueryProgress"),
    ("pyspark.sql.streaming.listener", "SourceProgress"),
    ("pyspark.sql.streaming.query", "StreamingQuery"),
    ("pyspark.sql.streaming.query", "StreamingQueryManager"),
    ("pyspark.sql.streaming.readwriter", "DataStreamReader"),
    ("pyspark.sql.streaming.readwriter", "DataStreamWriter"),
    ("pyspark.sql.types", "StructField"),
    ("pyspark.sql.types", "StructType"),
    ("pyspark.errors.exceptions.base", "PySparkException"),
    ("pyspark.taskcontext", "TaskContext"),
]


class Api:
    """The names of a pyspark; `place` is a wheel, or the folder that holds `pyspark`."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._modules: dict[str, dict[str, Definition | Import]] = {}

    @cached_property
    def _files(self) -> zipfile.ZipFile:
        return zipfile.ZipFile(self.place)

    def _text(self, path: str) -> str | None:
        if self.place.is_dir():
            found = self.place / path
            return found.read_text(encoding="utf-8") if found.is_file() else None
        try:
            return self._files.read(path).decode()
        except KeyError:
            return None

    def _source(self, module: str) -> tuple[str | None, bool]:
        path = module.replace(".", "/")
        text = self._text(f"{path}.py")
        return (text, False) if text is not None else (self._text(f"{path}/__init__.py"), True)

    def has_module(self, module: str) -> bool:
        """Whether it is there."""
        return self._source(module)[0] is not None

    def names(self, module: str) -> dict[str, Definition | Import]:
        """What a module defines and imports of pyspark, those of its own `*` too."""
        if module not in self._modules:
            self._modules[module] = {}  # for modules that import each other
            text, package = self._source(module)
            body = ast.parse(text).body if text is not None else []
            for node in statements(body):
                self._modules[module].update(self._defined(module, node, package=package))
        return self._modules[module]

    def _defined(
        self, module: str, node: ast.stmt, *, package: bool
    ) -> dict[str, Definition | Import]:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            return {node.name: node}
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            return dict.fromkeys(assigned(node))
        if not isinstance(node, ast.ImportFrom):
            return {}
        parts = module.split(".")
        parts = parts[: len(parts) - node.level + package] if node.level else []
        origin = ".".join([*parts, *([node.module] if node.module else [])])
        if not origin.startswith("pyspark"):
            return {}
        if node.names[0].name == "*":
            return dict(self.names(origin))
        return {each.asname or each.name: Import(origin, each.name) for each in node.names}

    def find(self, module: str, name: str) -> Definition:
        """A name's definition, where it is a function or class."""
        found = self.names(module).get(name)
        return self.find(found.module, found.name) if isinstance(found, Import) else found

    def has(self, module: str, name: str) -> bool:
        """Whether a module or class has a name, be it that of a module."""
        if name in self.names(module) or self.has_module(f"{module}.{name}"):
            return True
        above, _, own = module.rpartition(".")
        return name in self.members(above, own)

    def members(self, module: str, name: str) -> dict[str, Definition]:
        """Methods and attributes of a class, those of its bases too."""
        node = self.find(module, name)
        if not isinstance(node, ast.ClassDef):
            return {}
        module, name = self._home(module, name)
        found: dict[str, Definition] = {}
        for base in node.bases:
            if isinstance(base, ast.Name):
                found.update(self.members(module, base.id))
        for each in statements(node.body):
            if isinstance(each, (ast.FunctionDef, ast.ClassDef)):
                found[each.name] = each
            elif isinstance(each, (ast.Assign, ast.AnnAssign)):
                found.update(dict.fromkeys(assigned(each)))
        return found

    def _home(self, module: str, name: str) -> tuple[str, str]:
        found = self.names(module).get(name)
        return self._home(found.module, found.name) if isinstance(found, Import) else (module, name)


def assigned(node: ast.Assign | ast.AnnAssign) -> list[str]:
    """The names that an assignment gives a value, or a type."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [each.id for each in targets if isinstance(each, ast.Name)]


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Of a module or class, those below an `if` or `try` too."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                yield from statements(getattr(node, part, []))


def parameters(node: Definition) -> list[str] | None:
    """The parameters of a function, or of what makes a class; None where any may be given."""
    if isinstance(node, ast.ClassDef):
        made = [each for each in node.body if isinstance(each, ast.FunctionDef)]
        node = next((each for each in made if each.name == "__init__"), None)
    if node is None or node.args.kwarg is not None:
        return None
    return [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


@cache
def installed() -> Api:
    """The pyspark of this environment."""
    import pyspark  # noqa: PLC0415

    return Api(Path(pyspark.__file__).parents[1])
