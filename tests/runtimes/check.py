"""What of the package's uses a pyspark has not."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .api import CLASSES, Api, installed, parameters

if TYPE_CHECKING:
    from .uses import Override, Source, Use

# Looked for by their names in sqlq_spark/spark_api.py, and there alone; what stands in for them:
DETECTED = {
    "DataSourceStreamArrowWriter": "a DataSourceStreamWriter that is a DataSourceArrowWriter too",
    "ReadLimit": "a class of ours",
    "ReadMaxRows": "a class of ours",
    "SupportsTriggerAvailableNow": "a class of ours; the jobs start a stream again",
}
DETECTING = "spark_api.py"
# Only a session with a JVM of its own has them; each is asked for by `hasattr` or by the
# environment first.
CLASSIC = {"sparkContext"}
# A field's, a function's or a class's; a stream's own `name` came later, and is not used.
AMBIGUOUS = {"name"}
# Databricks' own, of its DBUtils
DATABRICKS = {("get", "scope"), ("get", "key")}


def missing(api: Api, sources: list[Source]) -> list[str]:
    """One line for each use that would fail."""
    found = [line for each in sources for use in each.uses for line in unknown(api, use)]
    found += [line for each in sources for own in each.overrides for line in unfit(api, own)]
    return sorted(set(found))


def unknown(api: Api, use: Use) -> list[str]:
    """What is wrong with a use."""
    if use.module:
        if use.name in DETECTED and use.where.startswith(DETECTING):
            return []
        if not api.has(use.module, use.name):
            return [f"{use.where} {use.module} has no {use.name}"]
        return refused(use, [api.find(use.module, use.name)])
    if use.name in CLASSIC | AMBIGUOUS or use.name.startswith("__"):
        return []
    owners = [each for each in CLASSES if use.name in installed().members(*each)]
    absent = [name for module, name in owners if use.name not in api.members(module, name)]
    if absent:
        return [f"{use.where} {', '.join(absent)} has no {use.name}"]
    return refused(use, [api.members(*each)[use.name] for each in owners])


def refused(use: Use, definitions: list[ast.FunctionDef | ast.ClassDef | None]) -> list[str]:
    """Keywords that no definition of that name takes."""
    taken = [parameters(each) for each in definitions]
    if not taken or None in taken:
        return []
    known = {name for each in taken for name in each or ()}
    given = [name for name in use.parameters if (use.name, name) not in DATABRICKS]
    wrong = [name for name in given if name not in known]
    return [f"{use.where} {use.name} has no parameter {name}" for name in wrong]


def unfit(api: Api, own: Override) -> list[str]:
    """Parameters of a base's method that ours does not take, or that ours needs and it has not."""
    args = own.method.args
    ours = [each.arg for each in args.args]
    needed = ours[: len(ours) - len(args.defaults)]
    wrong = []
    for base in own.bases:
        node = api.members(*base).get(own.method.name)
        theirs = parameters(node) if isinstance(node, ast.FunctionDef) else None
        if theirs is None or own.method.name == "__init__":
            continue
        wrong += [name for name in theirs if name not in ours]
        wrong += [name for name in needed if name not in theirs]
    return [f"{own.where} {own.method.name}: parameter {each} is not in both" for each in wrong]
