"""Which servers tests run on, and that shared tests contain no SQL of one database."""

from __future__ import annotations

import ast
import re
import socket
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest
import servers
from waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
SHARED = sorted([*HERE.glob("conformance/test_*.py"), *HERE.glob("spark/test_*.py")])
# of one database as a whole
ALONE = {
    "test_delayed_zones.py",
    "test_hanging.py",
    "test_readme.py",
    "test_server_settings.py",
    "test_table_kinds.py",
}
SQL = re.compile(
    r"\s*(?:SELECT|INSERT|UPDATE|DELETE|TRUNCATE|CREATE|ALTER|DROP|GRANT|EXEC|LOCK)\s+"
    r"(?:[A-Z*]+\s|\{|\"|\[|\w+\()"
)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Drop what was found before, and after."""
    monkeypatch.delenv(servers.VARIABLE, raising=False)
    servers.docker.cache_clear()
    yield
    servers.docker.cache_clear()


@contextmanager
def engine(at: Path, answer: bytes) -> Iterator[str]:
    """Listen where a Docker engine would, and say something; give its DOCKER_HOST."""
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(at))
        listening.listen()

        def serve() -> None:
            connection, _ = listening.accept()
            with closing(connection):
                connection.recv(100)
                connection.sendall(answer)
                connection.recv(100)  # until the other side has had enough

        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield f"unix://{at}"
        thread.join(5)


@pytest.mark.parametrize(
    ("answer", "there"),
    [(b"HTTP/1.0 200 OK\r\n\r\nOK", True), (b"HTTP/1.0 500 No\r\n\r\n", False), (b"", False)],
)
def test_a_docker_engine_is_one_that_answers_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, *, there: bool
) -> None:
    """One that says nothing holds a run up for less than a second; one that speaks has time to."""
    assert servers.PATIENCE < 1
    if answer:
        monkeypatch.setattr(servers, "PATIENCE", PATIENCE)
    with engine(tmp_path / "docker.sock", answer) as host:
        monkeypatch.setenv("DOCKER_HOST", host)

        assert servers.docker() == there

    assert servers.databases() == ["postgresql", *(["sqlserver"] if there else [])]


@pytest.mark.parametrize("host", ["unix:///not/there.sock", "tcp://127.0.0.1:9", "ssh://nowhere"])
def test_without_an_engine_only_a_named_server_is_used(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """Whatever DOCKER_HOST says; it is asked only once, and `none` means none."""
    monkeypatch.setenv("DOCKER_HOST", host)

    assert servers.databases() == servers.databases() == ["postgresql"]
    assert servers.docker.cache_info().misses == 1
    monkeypatch.setenv(servers.VARIABLE, "sqlserver://host/db")
    assert servers.databases() == ["postgresql", "sqlserver"]
    monkeypatch.setenv(servers.VARIABLE, servers.NONE)
    assert servers.databases() == ["postgresql"]


def test_the_last_lines_say_what_ran_and_what_was_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run on PostgreSQL alone must not look like one on both."""
    monkeypatch.setenv(servers.VARIABLE, servers.NONE)
    monkeypatch.setattr(servers, "ran", {"postgresql": "18.4, embedded"})
    monkeypatch.setattr(servers, "left_out", {"of postgresql alone, not run: zones": 3})

    postgresql, sqlserver, left_out = servers.closing_lines()

    assert postgresql == "PostgreSQL: 18.4, embedded"
    assert sqlserver.startswith("SQL Server: none ran")
    assert left_out == "3 tests of postgresql alone, not run: zones"
    monkeypatch.setattr(servers, "ran", {"sqlserver": "Microsoft SQL Server 2022"})
    assert servers.closing_lines()[1] == "SQL Server: Microsoft SQL Server 2022"


# ---------------------------------------------------------------- shared tests


def alone(node: ast.AST) -> bool:
    """Whether a function is marked as one database's."""
    marks = getattr(node, "decorator_list", [])
    return any(isinstance(each, ast.Call) and ast.unparse(each.func) == "only" for each in marks)


def spoken(node: ast.AST) -> Iterator[str]:
    """The SQL in a module's shared parts."""
    sparks_own = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("spark.sql")
    if alone(node) or sparks_own:
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL.match(node.value):
        yield node.value
    if isinstance(node, ast.JoinedStr):  # its beginning says what it is
        yield from spoken(node.values[0])
        return
    for inner in ast.iter_child_nodes(node):
        yield from spoken(inner)


def drivers(tree: ast.Module) -> set[str]:
    """The databases' drivers that a module imports."""
    names = [
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (getattr(node, "module", None) or "", *(each.name for each in node.names))
    ]
    return {name.partition(".")[0] for name in names} & {"psycopg", "pyodbc", "mssql_python"}


@pytest.mark.parametrize("path", SHARED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_shared_test_contains_no_sql_of_one_database(path: Path) -> None:
    """It asks its endpoint or the DBA; what one database alone has is marked with `only`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if path.name in ALONE:
        assert drivers(tree) or list(spoken(tree))
        return

    assert drivers(tree) == set()
    assert [text for text in spoken(tree) if not text.startswith(SPARKS)] == []


# statements of Spark's own SQL, and of an error's text
SPARKS = ("SELECT '", "SELECT *", "SELECT CAST(NULL AS string)", "GRANT SELECT ON ")


def test_sql_of_a_database_would_be_found() -> None:
    """In a call, in an f-string, and not in a function of one database."""
    code = """
def test_a(bench): bench.endpoint.run("DELETE FROM {queue}")
def test_b(bench): bench.endpoint.run(f"ALTER TABLE {name} DROP COLUMN x")
@only("postgresql", "why")
def test_c(bench): bench.endpoint.run("TRUNCATE {queue}")
"""
    assert list(spoken(ast.parse(code))) == ["DELETE FROM {queue}", "ALTER TABLE "]
