"""The errors: their texts get the facts that they name, and survive the way between processes."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING

import pytest
from surface import error_classes

import sqlq_spark
from sqlq_spark.errors import NAMED_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.errors import SqlQueueError

PACKAGE = Path(sqlq_spark.__path__[0])


def facts(error: type[SqlQueueError]) -> set[str]:
    """What an error needs: the facts of its text, and those that its class declares."""
    declared = inspect.get_annotations(error).keys() - {"template"}
    named = {name for _, name, *_ in Formatter().parse(error.template) if name}
    return named - {*NAMED_OPTIONS} | declared


def test_each_call_gives_the_facts_of_the_text() -> None:
    """No fact is missing, and none is unknown; a call with ** could hide one."""
    known = {each.__name__: facts(each) for each in error_classes()}
    wrong, calls = {}, 0
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            name = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and name in known:
                calls += 1
                if odd := known[name] ^ {each.arg for each in node.keywords}:
                    wrong[f"{file.relative_to(PACKAGE)}:{node.lineno}: {name}"] = odd

    assert wrong == {}
    assert calls > len(known)


@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))],  # noqa: S301
    ids=["copy", "deepcopy", "pickle"],
)
def test_an_error_keeps_its_facts(again: Callable[[SqlQueueError], SqlQueueError]) -> None:
    """Between Spark's processes, with the notes that were added to it."""
    for kind in error_classes():
        error = kind(**dict.fromkeys(facts(kind), 4))
        error.add_note("in a task")

        twin = again(error)

        assert (type(twin), vars(twin)) == (kind, vars(error))
        assert repr(twin) == f"{kind.__name__}({str(error)!r})"
