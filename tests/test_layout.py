"""The package's layout: imports run one way, and no folder hides another."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "sqlq_spark"
# each may import from its own floor's package and from the floors before it
FLOORS = (
    {"errors"},
    {"wire", "versions", "checkpoints"},
    {"options"},
    {"database"},
    {"send"},
    {"receive", "functions", "spark_api"},
    {"admin"},
    {"datasource"},
    {"jobs", "testing"},
    {"demo"},
    {"cli"},
)
FLOOR = {name: at for at, names in enumerate(FLOORS) for name in names}
ENTRIES = {"__init__", "__main__"}  # what a user imports or runs: they see everything


def imported(module: Path) -> set[str]:
    """The packages of ours that a module imports, for its types too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "sqlq_spark":
            names = [f"sqlq_spark.{each.name}" for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("sqlq_spark.")}
    return found


def home(module: Path) -> str:
    """The package, or the single module, that a file belongs to."""
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


MODULES = [each for each in sorted(PACKAGE.rglob("*.py")) if home(each) not in ENTRIES]


@pytest.mark.parametrize("module", MODULES, ids=lambda each: str(each.relative_to(PACKAGE)))
def test_imports_run_one_way(module: Path) -> None:
    """A module imports from its own package and from the floors below, from no other."""
    own = home(module)
    wrong = {
        name
        for name in imported(module) & FLOOR.keys()
        if name != own and FLOOR[name] >= FLOOR[own]
    }

    assert wrong == set()


def test_every_package_has_a_floor() -> None:
    """A new package is given its place before it is used."""
    assert {home(each) for each in MODULES} <= FLOOR.keys()
