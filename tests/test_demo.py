"""The demo as a user runs it, and that nothing of it stays behind, however it ends."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import inheriting, naming
from waiting import PATIENCE, until

from sqlq_spark.demo import Result, count

if TYPE_CHECKING:
    from collections.abc import Iterator

DEMO = [sys.executable, "-m", "sqlq_spark", "demo"]
# of its two kills, as each start of Spark takes ten seconds
KILLED_ONCE = (
    "from sqlq_spark import demo\n"
    "from sqlq_spark.cli.main import main\n"
    "demo.KILL_AFTER = (2, demo.BATCHES)\n"
    "main()\n"
)


def demo(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the demo to its end, as a user who set nothing."""
    return subprocess.run(
        words or DEMO, env=environ(**more), capture_output=True, text=True, check=False
    )


def environ(**more: str) -> dict[str, str]:
    """The environment of a user who set nothing."""
    return {name: text for name, text in os.environ.items() if name[:8] != "PYSPARK_"} | more


@pytest.fixture
def kept() -> Iterator[Path]:
    """Give a folder that is not there yet, where also the user pgserver may enter."""
    folder = Path("/tmp") / f"sqlq-test-{secrets.token_hex(8)}"  # noqa: S108
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.spark
@pytest.mark.faults
def test_the_demo_loses_nothing_and_repeats_nothing(kept: Path) -> None:
    """A kill, every message once; the kept folder holds the table."""
    words = ("demo", "--messages", "4000", "--keep", str(kept))
    done = demo(sys.executable, "-c", KILLED_ONCE, *words)

    assert (done.returncode, done.stderr) == (0, "")
    for figure in ("4,000 +sent", "4,000 +received", "1 +kills", "0 +lost", "0 +repeated"):
        assert re.search(rf"^\s*{figure}", done.stdout, flags=re.MULTILINE)
    assert {"checkpoint", "postgresql", "spark.log", "table"} <= {*os.listdir(kept)}  # noqa: PTH208
    again = demo(*DEMO, "--keep", str(kept))
    assert again.returncode == 2
    assert "expected a folder that is new or empty" in again.stderr


@pytest.mark.spark
@pytest.mark.faults
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_nothing_stays_behind_when_the_demo_is_stopped(kept: Path) -> None:
    """No process, no server, no file, whatever the stop."""
    kept.mkdir(0o711)
    started = []
    for ending, code in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
        mark = secrets.token_hex(8)
        process = subprocess.Popen(
            [*DEMO, "--messages", "1000"],
            env=environ(SQLQ_MARK=mark, TMPDIR=str(kept)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append((mark, process, ending, code))
    for mark, process, ending, code in started:
        with process:
            until(lambda at=mark: [its for its in inheriting(at).values() if "SparkSubmit" in its])
            process.send_signal(ending)
            assert process.wait(PATIENCE) == code
            assert process.stderr is not None
            assert process.stderr.read() == ""

        until(lambda at=mark: inheriting(at), {})
    until(lambda: [*kept.iterdir()], [])
    assert naming(kept) == []


def test_without_a_new_java_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    """Before anything is done; Spark 4 would fail with a stack trace on an old one."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_442\"' >&2\n")
    java.chmod(0o755)

    none, old = demo(PATH=str(tmp_path), JAVA_HOME=""), demo(JAVA_HOME=str(tmp_path))

    assert (none.returncode, none.stdout, old.returncode) == (2, "", 2)
    assert none.stderr.startswith("Spark needs Java 17 or newer, but there is none on PATH. Inst")
    assert f"{java} is version 8" in old.stderr


def test_when_spark_fails_its_log_is_kept() -> None:
    """And the error says where."""
    done = demo(PYSPARK_SUBMIT_ARGS="--no-such-option pyspark-shell")

    found = re.search(r"Spark's log is in (/\S+/spark\.log)", done.stderr)
    assert done.returncode == 1
    assert found
    assert "no-such-option" in Path(found[1]).read_text()
    assert "Traceback" not in done.stderr
    shutil.rmtree(Path(found[1]).parent)


def test_a_result_is_good_only_if_every_message_came_once() -> None:
    """The count finds what is lost, repeated and strange; any wrong figure is exit 1."""
    counted = count(["a", "b", "b", "b", "x", None], ["a", "b", "c"])
    assert counted == {"received": 6, "lost": 1, "repeated": 1, "strange": 2}
    figures = {"sent": 5, "received": 5, "lost": 0, "repeated": 0, "strange": 0, "left": 0}
    more = {"kills": 2, "sent_each_second": 1, "received_each_second": 1}
    assert Result(**figures, **more).good
    for wrong in ("lost", "repeated", "strange", "left", "received"):
        assert not Result(**{**figures, wrong: figures[wrong] + 1}, **more).good
