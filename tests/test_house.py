"""
Floors that keep the package easy to change: circles, long functions, names with two meanings.

Two more floors are elsewhere: test_row_types.py finds a statement that is called with two row
types, and test_third_dialect.py runs the suites with a dialect that this repository does not ship.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parent.parent
MOST_LINES = 45  # lines of code in a function, without docstring and comments
DIALECTS = ("postgresql", "sqlserver")
# each module that logs has its own logger, and each program its own start
EVERYWHERE = {"log", "main"}


def name_module(path: Path) -> str:
    """Return the name by which a module is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {name_module(path): path.read_text("utf-8") for path in ROOT.glob("sqlq_spark/**/*.py")}


def imported_names(source: str) -> Iterator[tuple[str, str]]:
    """Yield each import of a module, also those for types and in functions: module and name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.module, alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ""


# ---------------------------------------------------------------- circles


def imports_of(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Return which modules of the package each module imports, annotations included."""
    imports: dict[str, set[str]] = {}
    for module, source in sources.items():
        imports[module] = set()
        for origin, name in imported_names(source):
            target = f"{origin}.{name}" if f"{origin}.{name}" in sources else origin
            if target in sources and target != module:
                imports[module].add(target)
    return imports


def find_circles(imports: Mapping[str, set[str]]) -> list[set[str]]:
    """Return groups of modules of which each imports each, directly or through others."""
    reached: dict[str, set[str]] = {}
    for module in imports:
        seen: set[str] = set()
        waiting = [module]
        while waiting:
            following = imports[waiting.pop()] - seen
            seen |= following
            waiting += following
        reached[module] = seen
    circles: list[set[str]] = []
    for module, others in reached.items():
        circle = {other for other in others if module in reached[other]} | {module}
        if module in others and circle not in circles:
            circles.append(circle)
    return circles


def test_no_two_modules_import_each_other() -> None:
    """Imports form no circle; those for annotations and those in functions count."""
    assert find_circles(imports_of(SOURCES)) == []


def test_a_circle_is_found() -> None:
    """A circle counts if one of its imports is for an annotation, and another in a function."""
    sources = {
        "p.a": "if TYPE_CHECKING:\n    from p.b import B",
        "p.b": "from p import c",
        "p.c": "def f():\n    from p.a import A",
        "p.d": "import p.a",
    }

    assert find_circles(imports_of(sources)) == [{"p.a", "p.b", "p.c"}]


# ---------------------------------------------------------------- long functions


def count_lines(function: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> int:
    """Count the lines of a function's body that have code."""
    body = function.body
    has_docstring = ast.get_docstring(function) is not None
    code = body[1:] if has_docstring else body
    if not code:
        return 0
    texts = [line.strip() for line in lines[code[0].lineno - 1 : function.end_lineno]]
    return sum(1 for text in texts if text and not text.startswith("#"))


def long_functions(source: str) -> list[tuple[str, int]]:
    """Return the functions with more lines of code than allowed, and how many each has."""
    lines = source.splitlines()
    functions = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    counted = [(function.name, count_lines(function, lines)) for function in functions]
    return [(name, count) for name, count in counted if count > MOST_LINES]


def test_a_function_tells_one_story() -> None:
    """No function has more than 45 lines of code."""
    found = {module: long for module, source in SOURCES.items() if (long := long_functions(source))}

    assert found == {}


@pytest.mark.parametrize(("lines", "is_long"), [(MOST_LINES, False), (MOST_LINES + 1, True)])
def test_a_long_function_is_found(lines: int, is_long: bool) -> None:  # noqa: FBT001
    """Docstrings, comments and empty lines do not count."""
    body = "\n    # why\n\n".join(f"    x = {number}" for number in range(lines))
    source = f'def f():\n    """What\n\n    it does."""\n{body}\n'

    assert bool(long_functions(source)) == is_long


# ---------------------------------------------------------------- names with two meanings


def defined_names(source: str) -> set[str]:
    """Return the constants and functions that a module defines."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names - EVERYWHERE


def used_names(
    module: str, source: str, modules: Mapping[str, object]
) -> Iterator[tuple[str, str]]:
    """Yield what a module takes from others: the module that has it, and its name."""
    imported_as: dict[str, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in modules:
                    imported_as[alias.asname or alias.name] = whole
                elif node.module in modules and node.module != module:
                    yield node.module, alias.name
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            continue
        if node.value.id in imported_as:
            yield imported_as[node.value.id], node.attr


def dialect_of(module: str) -> str | None:
    """Return the dialect that a module belongs to."""
    return next((name for name in DIALECTS if name in module.split(".")), None)


def find_ambiguous(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """
    Return names that other modules import, and that several modules define.

    The dialects have twins on purpose: what one defines counts as defined once.
    """
    defined = {module: defined_names(source) for module, source in sources.items()}
    used = {
        (place, name)
        for module, source in sources.items()
        for place, name in used_names(module, source, sources)
    }
    ambiguous: dict[str, list[str]] = {}
    for place, name in used:
        if name not in defined[place]:
            continue
        homes = [module for module, names in defined.items() if name in names]
        outside = [module for module in homes if dialect_of(module) is None]
        # two modules of one dialect that define a name are two meanings as well
        by_dialect = [
            [module for module in homes if dialect_of(module) == dialect] for dialect in DIALECTS
        ]
        meanings = max(len(outside) + bool(any(by_dialect)), *map(len, by_dialect))
        if meanings > 1:
            ambiguous[name] = sorted(homes)
    return ambiguous


def test_a_name_that_others_import_has_one_meaning() -> None:
    """A constant or function that another module uses is defined in one module, twins apart."""
    assert find_ambiguous(SOURCES) == {}


def test_a_name_with_two_meanings_is_found() -> None:
    """It counts whether it is imported by name or through its module; twins do not."""
    sources = {
        "p.a": "LIMIT = 1\ndef look(): pass\nONLY_HERE = 2",
        "p.b": "LIMIT = 2\ndef look(): pass",
        "p.c": "from p.a import LIMIT, ONLY_HERE\nfrom p import b\nb.look()",
        "p.postgresql.x": "TWIN = 1",
        "p.sqlserver.x": "TWIN = 2",
        "p.d": "from p.postgresql.x import TWIN\nOWN = 1",
        "p.e": "OWN = 2",
    }

    assert find_ambiguous(sources) == {"LIMIT": ["p.a", "p.b"], "look": ["p.a", "p.b"]}
