"""
Each statement that returns several columns has one row type, whose fields are its columns.

PostgreSQL describes what a prepared statement returns. For T-SQL the names of the last SELECT or
OUTPUT are read.
"""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from datetime import datetime
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import psycopg
import pytest
import sqlserver_lint

import sqlq_spark
from sqlq_spark.database.postgresql.rows import STATEMENTS, fill_names, number_parameters
from sqlq_spark.database.results import has_no_default
from sqlq_spark.database.sqlserver.calls import STATEMENTS as T_SQL
from sqlq_spark.database.sqlserver.calls import fill_names as fill_t_sql_names
from sqlq_spark.database.sqlserver.rows import COLUMNS, no_rows
from sqlq_spark.wire.address import QueueAddress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark.stand import Queue

PACKAGE = Path(sqlq_spark.__file__).parent
# oid of a type of PostgreSQL → what a field of it may be
KINDS: dict[int, Any] = {
    **dict.fromkeys((16,), bool),
    **dict.fromkeys((17,), bytes),
    **dict.fromkeys((20, 21, 23, 26), int),
    **dict.fromkeys((701, 700), float),
    **dict.fromkeys((18, 19, 25, 705, 1042, 1043), str),
    **dict.fromkeys((1114, 1184), datetime),
    1016: "tuple of int",
    **dict.fromkeys((1115, 1185), "tuple of datetime"),
}
TABLES = ("queue", "queue0", "errors", "delayed", "subscriptions", "table")


@cache
def row_types() -> dict[str, set[str]]:
    """Return the statements that are called with a row type, with the type's module and class."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(("sqlq_spark", *path.relative_to(PACKAGE).with_suffix("").parts))
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and is_read(call):
                statement, row_type = call.args
                assert isinstance(statement, ast.Constant), ast.unparse(call)
                found.setdefault(str(statement.value), set()).add(
                    f"{module}:{ast.unparse(row_type)}"
                )
    return found


def is_read(call: ast.Call) -> bool:
    """Whether a call reads rows with a type."""
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr in {"rows", "row"}
    return is_method and len(call.args) == 2 and isinstance(call.args[0], ast.Constant)


def resolve(named: str) -> type:
    """Return the class that a name means in a module."""
    module, _, name = named.removesuffix(".__init__").partition(":")
    found: Any = import_module(module.removesuffix(".__init__"))
    for part in name.split("."):
        found = getattr(found, part)
    assert isinstance(found, type)
    return found


def type_of(statement: str) -> type:
    types = {resolve(named) for named in row_types()[statement]}
    assert len(types) == 1, f"{statement} is called with {types}"
    return types.pop()


def kind_of(hint: Any) -> set[Any]:
    """Return what a field may be, as KINDS names it."""
    if get_origin(hint) is Literal:
        return {type(word) for word in get_args(hint)}
    kinds = {hint, *get_args(hint)} - {type(None)} if get_origin(hint) is not tuple else {hint}
    return {
        f"tuple of {get_args(kind)[0].__name__}" if get_origin(kind) is tuple else kind
        for kind in kinds
    }


def faults(statement: str, row_type: type, columns: dict[str, set[Any] | None]) -> Iterator[str]:
    """Yield the differences between a row type and the columns of a statement."""
    hints = get_type_hints(row_type)
    known: Any = row_type
    for field in fields(known):
        if field.name not in columns and has_no_default(field):
            yield f"{statement} has no column {field.name}"
    for name, kinds in columns.items():
        if name not in hints:
            yield f"{row_type.__name__} has no field {name} of {statement}"
        elif kinds is not None and not kinds & kind_of(hints[name]):
            yield f"{statement}: column {name} is {kinds}, and the field {hints[name]}"


def described(url: str, state: str, schema: str, text: str, statement: str) -> dict[str, set[Any]]:
    """Return a statement's columns, as the server describes them when it is prepared."""
    tables = {
        name: QueueAddress(name if name == "delayed" else "orders", schema) for name in TABLES
    }
    tables["delayed"] = QueueAddress("orders.Delayed", schema)
    tables["subscriptions"] = QueueAddress("routes", schema)
    if statement == "stats_delayed":
        tables["queue"] = tables["delayed"]
    filled = fill_names(text, state, tables)
    with psycopg.connect(url) as connection:
        pg = connection.pgconn
        prepared = pg.prepare(b"", filled.encode())
        assert prepared.status == psycopg.pq.ExecStatus.COMMAND_OK, (
            statement,
            prepared.error_message,
        )
        found = pg.describe_prepared(b"")
    columns: dict[str, set[Any]] = {}
    for place in range(found.nfields):
        name = (found.fname(place) or b"").decode()
        assert name not in columns, f"{statement} returns {name} twice"
        columns[name] = {KINDS.get(found.ftype(place), f"oid {found.ftype(place)}")}
    return columns


@pytest.fixture
def prepared(queue: Queue) -> Queue:
    """Give a queue with all tables that statements name."""
    schema = queue.place.schema
    queue.place.sql(f"""
        CREATE TABLE "{schema}"."orders.Delayed"
               (id uuid, headers text, body bytea, due timestamptz);
        CREATE TABLE "{schema}".routes (queueaddress text, endpoint text, topic text)""")
    return queue


def test_each_row_type_has_the_columns_that_postgresql_describes(prepared: Queue) -> None:
    """Names and types are compared, for all statements that are read with a type."""
    found = []
    for statement in sorted(row_types().keys() & STATEMENTS.keys()):
        text, _ = number_parameters(statement)
        columns = described(
            prepared.place.url, prepared.place.state, prepared.place.schema, text, statement
        )
        found += list(faults(statement, type_of(statement), dict(columns)))

    assert len(row_types()) > 30
    assert found == []


def test_each_row_type_has_the_columns_of_the_last_select_of_t_sql() -> None:
    """Only names are compared, because no server is here that could describe the types."""
    found = []
    for statement in sorted(row_types().keys() & T_SQL.keys()):
        columns = dict.fromkeys(t_sql_columns(T_SQL[statement]))
        found += list(faults(statement, type_of(statement), columns))

    assert found == []


def arrow_statements() -> set[str]:
    """Return the statements whose rows come in columns, in all the package."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(".arrow"):
                words = [word for each in call.args for word in ast.walk(each)]
                found |= {str(word.value) for word in words if isinstance(word, ast.Constant)}
    return found


def test_every_column_that_comes_from_t_sql_in_columns_has_a_type() -> None:
    """A column that `rows.COLUMNS` lacks would stop each read, whichever rows it has."""
    names = arrow_statements() & T_SQL.keys()
    found = {name: {*t_sql_columns(T_SQL[name])} for name in names}

    assert {"receive", "take", "browse", "browse_seq", "browse_headers"} <= found.keys()
    assert {
        (name, column) for name, columns in found.items() for column in columns - {*COLUMNS}
    } == set()
    assert found["receive"] == {*no_rows().column_names}


def t_sql_columns(text: str) -> list[str]:
    """Return the names of the columns of the last SELECT or OUTPUT of a text."""
    tables = {name: QueueAddress(name, "dbo") for name in TABLES}
    sql = fill_t_sql_names(text, "sqlqueue", tables)
    clauses = [
        clause
        for clause in sqlserver_lint.Text(sql).all("select_clause", "output_clause")
        if is_result(clause, sql)
    ]
    assert clauses, text
    return [name_of(element) for element in elements(clauses[-1])]


def is_result(clause: Any, sql: str) -> bool:
    """Whether the rows of a clause go to the client: not in brackets, and not into a table."""
    before = sql[: sql.index(clause.raw)]
    is_outside = before.count("(") == before.count(")")
    is_value = re.search(r"(?:INSERT INTO [^;]*|UNION ALL\s*)\Z", before) is not None
    return is_outside and not is_value and not re.search(r"\bINTO\b", clause.raw)


def elements(clause: Any) -> list[Any]:
    """Return the columns of a SELECT, which the parser finds, or of an OUTPUT, as texts."""
    found = [part for part in clause.segments if part.is_type("select_clause_element")]
    return found or re.split(r",(?![^(]*\))", clause.raw.partition("OUTPUT")[2])


def name_of(element: Any) -> str:
    """Return the name of a column: its alias, or the last part of what it names."""
    text = element if isinstance(element, str) else element.raw
    aliased = re.search(r"\bAS\s+\[?(\w+)\]?\s*\Z", text)
    last = aliased or re.search(r"\[?(\w+)\]?\s*\Z", text)
    assert last is not None, text
    return last[1]


# a statement, what is planted in its text, and what is found
PLANTED = {
    "renamed": ("lock_stream", "acked_batch", "acked_batch AS acknowledged"),
    "missing": ("lock_stream", "SELECT queue, driver,", "SELECT queue,"),
    "swapped": (
        "lock_stream",
        "SELECT queue, driver, acked_batch,",
        "SELECT acked_batch AS queue, driver, plan_batch::text AS acked_batch,",
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(prepared: Queue, fault: str) -> None:
    """A column is renamed, missing, or in the place of another."""
    statement, old, new = PLANTED[fault]
    text, _ = number_parameters(statement)
    assert old in text
    planted = text.replace(old, new, 1)

    place = prepared.place
    columns = described(place.url, place.state, place.schema, planted, statement)

    assert list(faults(statement, type_of(statement), dict(columns)))
