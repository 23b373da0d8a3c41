"""Checks of the source without running it: imports, statements, tables of options."""

from __future__ import annotations

import ast
import re
from dataclasses import MISSING
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest
from pages.page import table

from sqlq_spark import errors
from sqlq_spark.database.looks import SAMPLED
from sqlq_spark.database.postgresql import rows as postgresql
from sqlq_spark.database.sqlserver import calls as sqlserver
from sqlq_spark.database.statements import StatementName
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.fields import option_fields, read_option
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.dialects import DIALECTS
from sqlq_spark.wire.postgresql import POSTGRESQL as NAMES_THERE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlq_spark.options.connection import DatabaseOptions

PACKAGE = Path(__file__).parent.parent / "sqlq_spark"
SOURCES = {path.relative_to(PACKAGE): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
TREES = {path: [*ast.walk(ast.parse(text))] for path, text in SOURCES.items()}

# each may import from its own floor's package and from the floors before it
FLOORS = """
errors; log; wire versions checkpoints; options; database; send;
receive functions spark_api metrics; admin; datasource; jobs testing; demo; cli
"""
FLOOR = {name: at for at, names in enumerate(FLOORS.split(";")) for name in names.split()}
ENTRIES = {"__init__", "__main__"}  # what a user imports or runs: they see everything


def test_imports_run_one_way() -> None:
    """A module imports from its own package and from lower floors. Each package has a floor."""
    wrong = []
    for path, nodes in TREES.items():
        home, names = path.parts[0].removesuffix(".py"), set()
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                names |= {f"{node.module}.{each.name}" for each in node.names}
            elif isinstance(node, ast.Import):
                names |= {each.name for each in node.names}
        ours = {name.split(".")[1] for name in names if name.startswith("sqlq_spark.")}
        above = {name for name in ours - {home} if FLOOR.get(name, -1) >= FLOOR.get(home, 99)}
        if home not in ENTRIES and (above or home not in FLOOR):
            wrong.append((str(path), above))

    assert wrong == []


# words of one database: its name, its drivers and tools, its notation
OF_ONE = re.compile(
    r"(?i)postgres|sql ?server\b|\bpsql|sqlcmd|adbc|odbc|mssql|libpq|npgsql|pgpassword|openjson"
    r"|@\[|^GO$|\nGO\b"
)
# a folder or module that may name one: the dialects, their list, what starts a PostgreSQL of its
# own, and the names of headers
NAMES_ONE = {"database", *DIALECTS, "dialects", "testing", "demo", "headers"}


def words_of(nodes: list[ast.AST], *, is_command: bool = False) -> Iterator[tuple[int, str]]:
    """
    The texts and names of a module's code, by line, without docstrings.

    With `is_command` docstrings of functions count, because `--help` prints them.
    """
    kinds = (
        (ast.Module, ast.ClassDef) if is_command else (ast.Module, ast.ClassDef, ast.FunctionDef)
    )
    bodies = [node.body[0] for node in nodes if isinstance(node, kinds) and node.body]
    docstrings = {id(first.value) for first in bodies if isinstance(first, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in docstrings:
                yield node.lineno, node.value
        elif isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, f"{node.module} {' '.join(each.name for each in node.names)}"


def test_only_a_dialect_names_its_database() -> None:
    """Other code asks the connection or its names, by methods that every dialect has."""
    wrong = [
        f"{path}:{line}: {word}"
        for path, nodes in TREES.items()
        if NAMES_ONE.isdisjoint(path.with_suffix("").parts)
        for line, word in words_of(nodes, is_command=path.parts[0] == "cli")
        if OF_ONE.search(word)
    ]

    assert wrong == []


def test_a_name_of_one_database_is_found() -> None:
    """It may be in a text, a name, an attribute or an import, but a docstring may have it."""
    planted = {
        "if name == 'sqlserver': pass": True,
        "text = f'on PostgreSQL {x}'": True,
        "text.endswith('GO')": True,
        "names is SQLSERVER": True,
        "wire.POSTGRESQL": True,
        "from sqlq_spark.database.sqlserver import calls": True,
        "url.split('@[')": True,
        "def f():\n    'of SQL Server'": False,
        "words = 'GOOD'": False,
    }
    for text, is_found in planted.items():
        words = words_of([*ast.walk(ast.parse(text))])
        assert any(OF_ONE.search(word) for _, word in words) == is_found, text
    help_of_a_command = words_of(
        [*ast.walk(ast.parse("def f():\n    'of SQL Server'"))], is_command=True
    )
    assert any(OF_ONE.search(word) for _, word in help_of_a_command)


# ----- statements ------------------------------------------------------------------------------

NAMES = get_args(StatementName)
POSTGRESQL, SQLSERVER = postgresql.STATEMENTS, sqlserver.STATEMENTS
SHARED = [name for name in NAMES if name in POSTGRESQL and name in SQLSERVER]
BRACES = re.compile(r"\{(\w+)\}")
ROLES = {"queue", "delayed", "errors", "subscriptions", "table"}  # words for tables
# words of SQL Server's statements, which PostgreSQL's have in another form or elsewhere
WORDS = {"role_name", "database", "database_escaped"}


def test_a_call_gives_what_its_statement_takes() -> None:
    """The suites run each call on PostgreSQL; on SQL Server it lacks no table and no value."""
    for name in SHARED:
        named = {*BRACES.findall(POSTGRESQL[name])}
        given = {*postgresql.PARAMETER.findall(POSTGRESQL[name])}
        given |= {"bytes"} if name == "browse" else set()  # PostgreSQL's text has no @bytes
        roles = {word.removesuffix("_escaped") for word in named} | ({"table_name"} & given)
        tables = {role: QueueAddress(role) for role in ROLES if role in roles}
        if "table_name" in given:
            tables |= {"queue": QueueAddress("q"), "delayed": QueueAddress("d")}

        text = sqlserver.fill_names(SQLSERVER[name], "sqlqueue", tables)

        assert {*BRACES.findall(text)} <= named | given | WORDS, name
        bound = {*sqlserver.PARAMETER.findall(text)}
        own = {each for each in bound if re.search(rf"DECLARE\b[^;]*@{each} ", text)}
        assert bound - own <= given, name


@pytest.mark.parametrize(("texts", "limit"), [(POSTGRESQL, "LIMIT"), (SQLSERVER, "TOP")])
def test_the_sample_has_as_many_messages_as_the_search_for_large_ones_assumes(
    texts: dict[str, str], limit: str
) -> None:
    """A large message is looked for only if it may be among the SAMPLED lowest ones."""
    found = re.findall(rf"{limit} \(?(\d+)", texts["sample"])

    assert found[0] == str(SAMPLED)


# ----- errors in transactions -------------------------------------------------------------------

# An error of a statement undoes the transaction. So where one does not end its function, what it
# undid is the whole of a `transaction` or an `attempt` in the guarded block.
UNDONE_WHOLE = {"transaction", "attempt"}
# errors that code makes of rows: no statement failed
OF_ROWS = {"StateOfOther", "TableRefused"}
# functions that no transaction is open around
OUTSIDE = {
    "admin/doctor.py describe_version",
    "admin/doctor.py of_state",
    "admin/queue_checks.py blockers",
    "cli/main.py main",
    "cli/sending.py insert",
    "database/schema.py _create",
    "datasource/__init__.py streamReader",
    "datasource/write.py discard",
    "jobs/maintenance.py run",
    "receive/due.py _move",
    "receive/heartbeat.py _run",
    "receive/heartbeat.py beat",
    "send/insert.py send_in_transaction",
}


def of_statements(node: ast.AST | None) -> set[str]:
    """The names of errors, in an expression, that a statement may raise."""
    names = {
        each.attr if isinstance(each, ast.Attribute) else each.id
        for each in ([] if node is None else ast.walk(node))
        if isinstance(each, ast.Attribute | ast.Name)
    }
    roots = (errors.DatabaseFailure, errors.SqlQueueError)
    found = {name: getattr(errors, name, None) for name in names - OF_ROWS}
    return {
        name
        for name, kind in found.items()
        if isinstance(kind, type) and (issubclass(kind, roots[0]) or kind is roots[1])
    }


def opens(*nodes: ast.AST) -> bool:
    """Whether some items or statements open a transaction or an attempt."""
    items = (item for node in nodes for item in ast.walk(node) if isinstance(item, ast.withitem))
    return any(is_call(item, UNDONE_WHOLE) for item in items)


def is_call(node: ast.AST, names: set[str]) -> bool:
    """Whether a function of such a name is called in an expression."""
    found = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
    return any(getattr(each, "attr", getattr(each, "id", "")) in names for each in found)


def goes_on(node: ast.AST) -> bool:
    """Whether a `try` or `with` continues after an error that may have undone more."""
    if isinstance(node, ast.Try):
        suppress = [not isinstance(each.body[-1], ast.Raise) for each in node.handlers]
        caught = [of_statements(each.type) for each in node.handlers]
        return any(map(all, zip(suppress, caught, strict=True))) and not opens(*node.body)
    if isinstance(node, ast.With):
        for at, item in enumerate(node.items, 1):
            if is_call(item, {"suppress"}) and of_statements(item):
                return not opens(*node.items[at:], *node.body)
    return False


def suppressed(tree: ast.AST) -> set[str]:
    """The functions that suppress an error of a statement in this way."""
    functions = (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef))
    return {each.name for each in functions if any(map(goes_on, ast.walk(each)))}


def test_no_error_is_suppressed_in_a_transaction_that_goes_on() -> None:
    """On each database the error undoes the transaction, so what follows would not be in it."""
    found = {
        f"{path} {name}" for path, text in SOURCES.items() for name in suppressed(ast.parse(text))
    }

    assert found == OUTSIDE


def test_an_error_that_is_suppressed_is_found() -> None:
    """A `with` and an `except` count, but not around a whole transaction or an attempt."""
    planted = {
        "with suppress(errors.SubscriptionsNotFound): f()": True,
        "with transaction(c), suppress(QueueNotFound): f()": True,
        "with suppress(QueueNotFound), transaction(c): f()": False,
        "with suppress(QueueNotFound):\n  with attempt(c): f()": False,
        "try: f()\n except (errors.TimedOut, ValueError): pass": True,
        "try: f()\n except errors.DatabaseFailure as e: raise e": False,
        "try:\n  with attempt(c): f()\n except errors.TimedOut: pass": False,
        "with suppress(errors.BadAddress): f()": False,
    }
    for text, is_found in planted.items():
        assert bool(suppressed(ast.parse(f"def g():\n {text}"))) == is_found, text


# ----- documents -------------------------------------------------------------------------------


def rows(table_id: str) -> dict[str, str]:
    """Option → default, from a table of options."""
    return {
        name: default
        for names, default, _ in table("docs/options.md", table_id).rows
        for name in re.findall(r"`(\w+)`", names)
    }


@pytest.mark.parametrize(
    ("table_id", "options"), [("read-options", SourceOptions), ("write-options", SinkOptions)]
)
def test_the_tables_name_every_option(table_id: str, options: type[DatabaseOptions]) -> None:
    """The default in the table is that of the code."""
    found = rows(table_id)
    fields = {each.metadata["option"]: each for each in option_fields(options)}
    fields.pop("checkpointLocation", None)  # Spark's own

    assert set(found) == {*fields, "user", "password"}
    for name, each in fields.items():
        default = found[name]
        if default.startswith("`"):
            assert read_option(each, default.strip("`"), NAMES_THERE) == each.default
        else:
            assert each.default in {None, MISSING, ()}
            assert (default == "required") == (each.default is MISSING)
