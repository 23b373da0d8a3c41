"""
Jobs as their users run them: by `spark-submit`, in a session of their own.

A test may kill them at a moment: JVM, Python and workers at once, by SIGKILL.
The rerun is in the session of the tests, because a start of Spark costs ten seconds.
What a job wrote is read from Delta's log and Parquet files, which needs no session.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pyspark
from processes import kill_session
from spark.driver import SHORT_LIVED, SMALL, delta_jars
from waiting import until

from sqlq_spark.jobs.settings import settings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spark.stand import Queue

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
TIMEOUT = 300.0  # seconds for a whole job, on a busy machine
SETTINGS = {
    **SMALL,
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a program ended."""

    code: int
    out: str
    log: str  # standard error

    @property
    def totals(self) -> dict[str, Any]:
        """The last line of standard output."""
        assert self.out.strip(), self.log[-3000:]
        found: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return found


@dataclass(frozen=True)
class Running:
    """A process at work. Its output is in the files `out` and `log` of `folder`."""

    process: subprocess.Popen[bytes]
    folder: Path

    def read(self, name: str) -> str:
        """The text of `out` or `log`."""
        return (self.folder / name).read_text(encoding="utf-8", errors="replace")

    def ended(self) -> Ended:
        """Wait for its end, and return its output and exit code."""
        code = self.process.wait(TIMEOUT)
        return Ended(code=code, out=self.read("out"), log=self.read("log"))

    def until(self, moment: Callable[[], object]) -> None:
        """Wait until something is true, while the process is at work."""
        until(
            lambda: moment() or self.process.poll() is not None,
            seconds=TIMEOUT,
            told=lambda: self.read("log")[-3000:],
        )
        assert self.process.poll() is None, self.ended()


@contextmanager
def started(words: list[str], folder: Path, environment: dict[str, str]) -> Iterator[Running]:
    """Run a program for as long as the block lasts. None of its processes is left afterwards."""
    with (folder / "out").open("wb") as out, (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield Running(process, folder)
    finally:
        kill_session(process)


def settings(
    job: str, queue: Queue, folder: Path, *, most: int = 1000, **more: Any
) -> dict[str, Any]:
    """Settings of a job on a queue and in a folder, and more. `most` is the limit of a batch."""
    # a job that is to be killed may stand for long
    state = {"stateSchema": queue.place.state, "queryTimeout": f"{TIMEOUT:.0f}s"}
    known = {
        **dict.fromkeys(["url", "source_url", "target_url"], queue.place.url),
        **dict.fromkeys(["queue", "queues"], queue.name),
        "error_queue": queue.beside("error").name,
        "table": str(folder / "table"),
        "checkpoint": str(folder / "checkpoint"),
        "source": state | {"maxMessagesPerTrigger": str(most)},
        "sink": state,
    }
    taken = {each.name for each in settings_of(module(job).main.kind)}
    if job == "audit_to_delta":  # its poison goes to the table
        taken.remove("error_queue")
    if job == "error_triage":
        known["queue"] = known["error_queue"]
    return {name: given for name, given in known.items() if name in taken} | more


def flags(**given: object) -> list[str]:
    """Settings as flags. A table of settings is a flag that is repeated."""
    pairs = [
        (name, f"{key}={text}" if key else text)
        for name, value in given.items()
        for key, text in (value.items() if isinstance(value, dict) else [("", value)])
    ]
    words = ((f"--{name.replace('_', '-')}", text) for name, text in pairs)
    return [word if text is True else f"{word}={text}" for word, text in words]


def run(job: str, **given: object) -> Ended:
    """Run a job to its end in this process, in its session if there is one."""
    out, log = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(log):
        code = module(job).main.main(flags(**given))
    return Ended(code=code, out=out.getvalue(), log=log.getvalue())


@contextmanager
def sigterm_when(moment: Callable[[], object]) -> Iterator[None]:
    """Send SIGTERM to this process at a moment of the block."""

    def work() -> None:
        until(moment)
        os.kill(os.getpid(), signal.SIGTERM)

    ending = threading.Thread(target=work)
    ending.start()
    yield
    ending.join()


@contextmanager
def submitted(program: Path, words: list[str], folder: Path) -> Iterator[Running]:
    """Run a program by spark-submit, with Delta. Nothing is downloaded if its jars are there."""
    own = {"spark.local.dir": folder, "spark.sql.warehouse.dir": folder / "warehouse"}
    said = [
        word
        for name, value in {**SETTINGS, **own}.items()
        for word in ("--conf", f"{name}={value}")
    ]
    # if the tests are killed, the JVM and the processes that it started die too
    bound = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    command = [*bound, str(SPARK_HOME / "bin" / "spark-submit"), *said]
    command += ["--master", "local[16]"]  # a task that is held keeps no other waiting
    command += ["--driver-java-options", f"-Djava.io.tmpdir={folder} {SHORT_LIVED}"]
    jars = delta_jars()
    command += ["--driver-class-path", ":".join(jars)] if jars else ["--packages", PACKAGE]
    with started([*command, str(program), *words], folder, environ()) as running:
        yield running


def environ(**given: str) -> dict[str, str]:
    """The environment of a job, without passwords of this process."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PG")}
    places = [str(ROOT), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **kept,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(places),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LAUNCHER_OPTS": "-XX:-UsePerfData -XX:TieredStopAtLevel=1",
        "SPARK_LOCAL_IP": "127.0.0.1",
        **given,
    }


def module(job: str) -> Any:
    """The module of a job."""
    return import_module(f"sqlq_spark.jobs.{job}")


# ---------------------------------------------------------------- what is in a Delta table


def delta_rows(table: Path) -> list[dict[str, Any]]:
    """The rows of a Delta table. Columns of its partitions are text."""
    live: dict[str, dict[str, Any]] = {}
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for action in map(json.loads, commit.read_text(encoding="utf-8").splitlines()):
            if "add" in action:
                assert not action["add"].get("deletionVector"), "not read here"
                live[action["add"]["path"]] = action["add"]["partitionValues"]
            elif "remove" in action:
                live.pop(action["remove"]["path"], None)
    return [
        {**row, **values}
        for path, values in live.items()
        for row in pq.ParquetFile(table / unquote(path), coerce_int96_timestamp_unit="us")
        .read()
        .to_pylist()
    ]
