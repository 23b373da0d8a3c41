"""
What users see. Each line is a fact, and what has it.

python tests/surface.py > tests/golden/surface.txt
"""

from __future__ import annotations

import inspect
import io
import json
import os
import sys
from collections import defaultdict
from contextlib import redirect_stdout
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_type_hints
from unittest.mock import patch

import typer.main
from cli.calls import CALLS, filled, prepare
from cli.commands import COMMANDS
from conftest import placed

import sqlq_spark
from sqlq_spark import functions, testing
from sqlq_spark.admin import stats
from sqlq_spark.cli import main, options
from sqlq_spark.jobs.settings import settings_of
from sqlq_spark.options import SourceOptions
from sqlq_spark.receive.batch import Offset
from sqlq_spark.receive.driver import StreamDriver
from sqlq_spark.receive.receipts import Closed, QueueOutcome
from sqlq_spark.testing import plugin

if TYPE_CHECKING:
    from collections.abc import Iterator

Facts: TypeAlias = "Iterator[tuple[str, str]]"
OPEN = {"headers", "staying", "queues"}  # objects, not lists of them, whose keys are data
LINES = '{"body": "4"}\n{"body": "5", "delay": "01:00:00"}\n'


def facts(server: str) -> list[str]:
    """All facts, each with what has it. The commands run on a PostgreSQL server."""
    parts = of_metrics(), of_commands(), of_exports(), of_jobs()
    found: defaultdict[str, set[str]] = defaultdict(set)
    for fact, owner in chain(*parts, of_json(server)):
        found[fact].add(owner)
    return sorted(": ".join(filter(None, (key, ", ".join(sorted(found[key]))))) for key in found)


def of_metrics() -> Facts:
    """Names in `sources[].latestOffset` of a stream's progress, and those for Prometheus."""
    options = SourceOptions.parse({"url": "postgresql://host/shop", "queues": "a, b"})
    driver = StreamDriver(options, lambda: 0.0, lambda *_: None)
    outcome = QueueOutcome(options.names[0], 1, 0, 1, 0, 0, 0, None, None, None)
    last = Closed(1, (outcome,))
    driver.memory = driver.memory.close(Offset(stream="s", batch=1), last, options)
    yield from keys("metrics", driver.report())
    yield from (("gauges of stats --openmetrics", its) for its, _ in stats.GAUGES.values())
    of_streams = (f"stream_{its}" for its, _ in stats.STREAM_GAUGES.values())
    yield from (("gauges of stats --openmetrics", its) for its in of_streams)


def keys(place: str, value: object) -> Facts:
    """The keys of a JSON value and of all values in it, by their paths."""
    if isinstance(value, list):
        for each in value:
            yield from keys(f"{place}[]", each)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield place, key
            if key not in OPEN or isinstance(each, list):
                yield from keys(f"{place} {key}", each)


def of_commands() -> Facts:
    """Arguments and options of each command."""
    groups = {"sqlqueue": typer.main.get_command(main.app)}
    for name, command in (groups | COMMANDS).items():
        hints = get_type_hints(options.Shared) | get_type_hints(command.callback)
        for each in command.params:
            words = [each.param_type_name, *each.opts, *each.secondary_opts]
            words += [inspect.formatannotation(hints[each.name])] if each.name in hints else []
            words += ["required"] if each.required else [f"default {each.default!r}"]
            words += [f"or {each.envvar}"] if each.envvar else []
            yield f"command's {' '.join(words)}", name


def of_jobs() -> Facts:
    """The settings of each job, by their names in a file."""
    for path in sorted((Path(__file__).parents[1] / "jobs").glob("*.py")):
        kind = import_module(f"sqlq_spark.jobs.{path.stem}").main.kind
        for each in settings_of(kind):
            yield f"setting {each.name}{' required' if each.is_required else ''}", path.stem


def of_json(server: str) -> Facts:
    """The keys that each command prints with --json, and its exit code."""
    with placed(server) as place:
        words = prepare(place)
        for name, call in CALLS.items():
            code, printed = run(place.url, *name.split(), *filled(call, words), "--json")
            yield f"json of {name}", f"exit code {code}"
            yield from chain(*(keys(f"json of {name}", each) for each in printed))


def run(url: str, *words: str) -> tuple[object, list[Any]]:
    """Run one command in this process. Return its exit code and what it printed."""
    stdin = io.TextIOWrapper(io.BytesIO(LINES.encode()))
    with (
        patch.dict(os.environ, SQLQUEUE_URL=url),
        patch("signal.signal"),
        patch("sys.stdin", stdin),
        redirect_stdout(io.StringIO()) as out,
    ):
        try:
            main.main(words)
        except SystemExit as ended:
            code = ended.code or 0
    return code, [json.loads(line) for line in out.getvalue().splitlines()]


def of_exports() -> Facts:
    """What modules export, with signatures, and the fixtures of the plugin of pytest."""
    for module in (sqlq_spark, functions, testing):
        for name in module.__all__:
            yield from of_export(f"{module.__name__}.{name}", getattr(module, name))
    yield from (("fixtures", name) for name in vars(plugin) if name.startswith("sqlqueue_"))


def of_export(name: str, value: Any) -> Facts:
    """A value, function or class with its public members."""
    error = isinstance(value, type) and issubclass(value, Exception)
    signature = str(inspect.signature(value)) if callable(value) and not error else ""
    yield f"export {name}{signature}", ""
    for key, member in vars(value).items() if isinstance(value, type) and not error else ():
        if not key.startswith("_") and (callable(member) or isinstance(member, property)):
            yield from of_export(f"{name}.{key}", member)


if __name__ == "__main__":
    with testing.server() as running:
        sys.stdout.write("\n".join([*facts(running), ""]))
