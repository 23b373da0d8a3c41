"""The embedded server: real, private, and gone with its owner."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psycopg
import pytest
from processes import inheriting, naming
from waiting import until

from sqlq_spark.errors import MissingPackage
from sqlq_spark.testing import embedded

if TYPE_CHECKING:
    from collections.abc import Iterator

OWNER = """
import sys, time
from sqlq_spark.testing import embedded
with embedded.server(keep=sys.argv[1] if len(sys.argv) > 1 else None) as server:
    print(server.home, server.url, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def running() -> Iterator[embedded.Server]:
    """Give a server over TCP to all tests that leave it as it is."""
    with embedded.server(tcp=True) as server:
        yield server


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder that `pgserver` may enter; pytest's own are closed to it."""
    made = Path(tempfile.mkdtemp(prefix="sqlq-keep-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def owner(*words: str) -> Iterator[tuple[subprocess.Popen[str], Path, str]]:
    """Start a process that owns a server; give its folder and url too."""
    command = [sys.executable, "-c", OWNER, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            home, url = process.stdout.readline().split()
            yield process, Path(home), url
        finally:
            process.kill()


def left(home: Path) -> list[str]:
    """What is left of a server: its folder, and processes that name it."""
    return [*([str(home)] if home.exists() else []), *naming(home)]


COMMITTED = "CREATE TABLE t AS SELECT 7 AS a; COMMIT; SELECT a FROM t"


def one(url: str, text: str = COMMITTED) -> object:
    """The only value of a query, or of one that commits a table."""
    with psycopg.connect(url) as connection:
        cursor = connection.execute(text.encode())
        while cursor.nextset():
            pass
        row = cursor.fetchone()
    assert row is not None
    return row[0]


def test_a_server_syncs_to_disk_and_every_login_needs_the_password(
    running: embedded.Server,
) -> None:
    """On the socket and over TCP; the folder is its own; a database may have any name."""
    names = ("fsync", "synchronous_commit", "timezone")
    assert [one(running.url, f"SHOW {name}") for name in names] == ["on", "on", "UTC"]
    name = 'a "b"/c?d=é-😀'
    assert one(running.create_database(name), "SELECT current_database()") == name
    for url in (running.url, f"{replace(running, tcp=False).url}&port={running.port}"):
        assert one(url, "SELECT 1") == 1
        without = url.replace(f":{running.password}", ":wrong")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(without)
    assert running.home.stat().st_mode & 0o777 == 0o700
    assert running.password not in repr(running)


def test_two_servers_run_side_by_side_and_survive_a_crash(running: embedded.Server) -> None:
    """Each has its folder, data and port; what is committed outlives a stop and a crash."""
    with embedded.server(tcp=True) as other:
        one(other.url)
        assert one(running.url, "SELECT count(*) FROM pg_tables WHERE tablename = 't'") == 0
        modes: tuple[Literal["fast", "immediate"], ...] = ("fast", "immediate")
        for mode in modes:
            other.stop(mode)
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(other.url)
            other.start()
            assert one(other.url, "SELECT a FROM t") == 7

    assert left(other.home) == []
    assert max(running.port, other.port) < 32_768  # the first that Linux gives a client


def test_kept_data_is_there_the_next_time(folder: Path) -> None:
    """Password and data stay, only the folder with the socket goes; a second owner is refused."""
    with embedded.server(folder) as server:
        one(server.url)
        with (
            pytest.raises(embedded.ServerFailed, match=r"postmaster\.pid"),
            embedded.server(folder),
        ):
            pass
        assert one(server.url, "SELECT 1") == 1
    with embedded.server(folder) as again:
        assert one(again.url, "SELECT a FROM t") == 7

    assert again.password == server.password
    assert left(server.home) == []
    assert [child.name for child in folder.iterdir()] == ["postgresql"]
    assert (folder / "postgresql").stat().st_mode & 0o777 == 0o700


@pytest.mark.faults
def test_nothing_is_left_of_a_killed_owner_but_kept_data(folder: Path) -> None:
    """However the owner ends, its server stops and its folder goes."""
    signs = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
    with contextlib.ExitStack() as stack:
        owners = [stack.enter_context(owner()) for _ in signs]
        keeper, home, url = stack.enter_context(owner(str(folder)))
        one(url)
        for (process, _, other), sign in zip(owners, signs, strict=True):
            psycopg.connect(other).close()
            process.send_signal(sign)
        keeper.kill()

        for gone in (home, *(each for _, each, _ in owners)):
            until(partial(left, gone), [])
    with embedded.server(folder) as server:
        assert one(server.url, "SELECT a FROM t") == 7


@pytest.mark.faults
def test_nothing_is_left_of_an_owner_killed_while_it_starts(folder: Path) -> None:
    """A kill during initdb leaves no folder either."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    until(lambda: [*folder.rglob("PG_VERSION")])
    process.kill()
    process.wait()

    # a process that has inherited the folder might make it again
    until(lambda: [*inheriting(f"TMPDIR={folder}"), *naming(folder), *folder.iterdir()], [])


def test_without_the_wheel_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(MissingPackage) as raised, embedded.server():
        pass

    assert "pip install 'sqlq-spark[demo]'" in str(raised.value)
