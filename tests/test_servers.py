"""Tests that both databases share contain no SQL of one of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
SHARED = sorted([*HERE.glob("conformance/test_*.py"), *HERE.glob("spark/test_*.py")])
# of one database as a whole
ALONE = {"test_delayed.py", "test_readme.py", "test_server_settings.py", "test_tables.py"}
SQL = re.compile(
    r"\s*(?:SELECT|INSERT|UPDATE|DELETE|TRUNCATE|CREATE|ALTER|DROP|GRANT|EXEC|LOCK)\s+"
    r"(?:[A-Z*]+\s|\{|\"|\[|\w+\()|(?:psycopg|pyodbc|mssql_python)$"
)
# statements of Spark's own SQL, and of an error's text
SPARKS = ("SELECT '", "SELECT *", "SELECT CAST(NULL AS string)", "GRANT SELECT ON ")


def spoken(node: ast.AST) -> Iterator[str]:
    """The SQL in a module's shared parts, and the drivers that it imports."""
    marks = [ast.unparse(each) for each in getattr(node, "decorator_list", [])]
    sparks_own = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("spark.sql")
    if sparks_own or any(each.startswith("only(") for each in marks):
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL.match(node.value):
        yield node.value
    if isinstance(node, ast.alias) and SQL.match(node.name):
        yield node.name
    if isinstance(node, ast.JoinedStr):  # its beginning says what it is
        yield from spoken(node.values[0])
        return
    for inner in ast.iter_child_nodes(node):
        yield from spoken(inner)


def test_sql_of_a_database_would_be_found() -> None:
    """In a call, in an f-string, and not in a function of one database."""
    code = """
def test_a(bench): bench.endpoint.run("DELETE FROM {queue}")
def test_b(bench): bench.endpoint.run(f"ALTER TABLE {name} DROP COLUMN x")
@only("postgresql", "why")
def test_c(bench): bench.endpoint.run("TRUNCATE {queue}")
"""
    assert list(spoken(ast.parse(code))) == ["DELETE FROM {queue}", "ALTER TABLE "]


@pytest.mark.parametrize("path", SHARED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_shared_test_contains_no_sql_of_one_database(path: Path) -> None:
    """It asks its endpoint or the DBA; what one database alone has is marked with `only`."""
    if path.name not in ALONE:
        found = spoken(ast.parse(path.read_text(encoding="utf-8")))
        assert [text for text in found if not text.startswith(SPARKS)] == []
