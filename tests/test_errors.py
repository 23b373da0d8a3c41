"""The errors: their texts get the facts that they name, and survive the way between processes."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import pkgutil
from importlib import import_module
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING

import pytest

import sqlq_spark
from sqlq_spark.errors import SqlQueueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PACKAGE = Path(sqlq_spark.__path__[0])


def classes() -> dict[str, type[SqlQueueError]]:
    """All errors of the package, by name."""
    for module in pkgutil.walk_packages(sqlq_spark.__path__, "sqlq_spark."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    found: list[type[SqlQueueError]] = [SqlQueueError]
    for each in found:  # it grows
        found += each.__subclasses__()
    return {each.__name__: each for each in found if each.__module__.startswith("sqlq_spark.")}


def facts(error: type[SqlQueueError]) -> set[str]:
    """The facts that an error needs: those of its text, and those that its class declares."""
    declared = inspect.get_annotations(error).keys() - {"template"}
    return {name for _, name, *_ in Formatter().parse(error.template) if name} | declared


def constructions(file: Path) -> Iterator[tuple[str, int, set[str | None]]]:
    """The name, the line and the keywords of each call, and of each bare class that is raised."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        call = node.exc if isinstance(node, ast.Raise) else node
        named = call.func if isinstance(call, ast.Call) else call
        name = named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", "")
        if isinstance(call, ast.Call):
            yield name, call.lineno, {each.arg for each in call.keywords}
        elif isinstance(node, ast.Raise):
            yield name, node.lineno, set()


def test_each_call_gives_the_facts_of_the_text() -> None:
    """No fact is missing, and none is unknown; a call with ** could hide one."""
    known = {name: facts(each) for name, each in classes().items()}
    calls = [
        (f"{file.relative_to(PACKAGE)}:{line}: {name}", given, known[name])
        for file in sorted(PACKAGE.rglob("*.py"))
        for name, line, given in constructions(file)
        if name in known
    ]

    assert {place: given ^ needed for place, given, needed in calls if given != needed} == {}
    assert len(calls) > len(known)


@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))],  # noqa: S301 - its own,
    ids=["copy", "deepcopy", "pickle"],
)
def test_an_error_keeps_its_facts(again: Callable[[SqlQueueError], SqlQueueError]) -> None:
    """Between Spark's processes; with the notes that were added to it."""
    for name, kind in classes().items():
        error = kind(**dict.fromkeys(facts(kind), 4))
        error.add_note("in a task")

        twin = again(error)

        assert type(twin) is kind
        assert (str(twin), repr(twin)) == (str(error), f"{name}({str(error)!r})")
        assert vars(twin) == vars(error)
        assert not hasattr(twin, "another")
