"""
A job as its users run it: `spark-submit jobs/<job>.py --settings …`, in a session of its own.

A test may kill it at a moment: JVM, Python and workers at once, by SIGKILL.
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
from contextlib import (
    AbstractContextManager,
    contextmanager,
    redirect_stderr,
    redirect_stdout,
)
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock
from urllib.parse import unquote

import pyarrow.parquet as pq
import pyspark
from processes import kill_session
from spark.driver import SHORT_LIVED, delta_jars
from waiting import until

from . import gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
TIMEOUT = 300.0  # seconds for a whole job, on a busy machine
SETTINGS = {
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a job ended."""

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
    """A process at work; `folder` has its output in the files `out` and `log`."""

    process: subprocess.Popen[bytes]
    folder: Path

    def kill(self) -> None:
        """End all its processes at once."""
        kill_session(self.process)

    def read(self, name: str) -> str:
        """The text of `out` or `log`."""
        return (self.folder / name).read_text(encoding="utf-8", errors="replace")

    def ended(self) -> Ended:
        """Wait for its end."""
        code = self.process.wait(TIMEOUT)
        return Ended(code=code, out=self.read("out"), log=self.read("log"))

    def until(self, moment: Callable[[], object]) -> None:
        """Wait until something is true; the process must still be at work then."""
        until(
            lambda: moment() or self.process.poll() is not None,
            seconds=TIMEOUT,
            told=lambda: self.read("log")[-3000:],
        )
        assert self.process.poll() is None, self.ended()


@contextmanager
def started(words: list[str], folder: Path, environment: dict[str, str]) -> Iterator[Running]:
    """Run a program as long as the block lasts; none of its processes is left after."""
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
    running = Running(process, folder)
    try:
        yield running
    finally:
        running.kill()


@dataclass(frozen=True)
class Desk:
    """Where jobs are submitted from; `environment` is given to each."""

    folder: Path
    environment: dict[str, str]

    def words(self, job: str, settings: dict[str, Any]) -> list[str]:
        """Write the settings of a job to a file; gives the flags that name it."""
        path = self.folder / f"{job}.toml"
        path.write_text(toml(settings), encoding="utf-8")
        return ["--settings", str(path)]

    def running(self, job: str, settings: dict[str, Any]) -> AbstractContextManager[Running]:
        """Run `jobs/<job>.py` by spark-submit as long as the block lasts."""
        words = [*command(self.folder), str(ROOT / "jobs" / f"{job}.py")]
        return started([*words, *self.words(job, settings)], self.folder, environ(self.environment))

    def submit(self, job: str, settings: dict[str, Any]) -> Ended:
        """Run a job to its end by spark-submit."""
        with self.running(job, settings) as running:
            return running.ended()

    def killed_when(self, moment: Callable[[], object], job: str, settings: dict[str, Any]) -> None:
        """Submit a job and kill it at a moment; a gate keeps it from going on after that."""
        url = self.environment["SQLQUEUE_URL"]
        with gate.opened(url, moment) as way:
            given, environment = (
                {name: way.url if each == url else each for name, each in some.items()}
                for some in (settings, self.environment)
            )
            with replace(self, environment=environment).running(job, given) as running:
                running.until(moment)

    def run(self, job: str, settings: dict[str, Any], *flags: str) -> Ended:
        """Run a job to its end in this process, in its session if there is one."""
        out, log = io.StringIO(), io.StringIO()
        with (
            mock.patch.dict(os.environ, self.environment),
            redirect_stdout(out),
            redirect_stderr(log),
        ):
            code = module(job).main.main([*self.words(job, settings), *flags])
        return Ended(code=code, out=out.getvalue(), log=log.getvalue())


@contextmanager
def sigterm_when(moment: Callable[[], object]) -> Iterator[None]:
    """Send SIGTERM to this process at a moment of the block."""

    def work() -> None:
        until(moment)
        os.kill(os.getpid(), signal.SIGTERM)

    assert threading.current_thread() is threading.main_thread()  # only it receives signals
    ending = threading.Thread(target=work)
    ending.start()
    yield
    ending.join()


def command(folder: Path) -> list[str]:
    """`spark-submit`, with Delta from the cache of jars, or from Maven the first time."""
    jars = delta_jars()
    delta = ["--driver-class-path", ":".join(jars)] if jars else ["--packages", PACKAGE]
    flags = f"-Djava.io.tmpdir={folder} {SHORT_LIVED}"
    own = {"spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    pairs = [f"{name}={value}" for name, value in {**SETTINGS, **own}.items()]
    said = [word for pair in pairs for word in ("--conf", pair)]
    # should the tests be killed, the JVM dies with them, and what hangs on it
    bound = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    start = [*bound, str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]"]
    return [*start, "--driver-java-options", flags, *delta, *said]


def environ(given: dict[str, str]) -> dict[str, str]:
    """The environment of a job; passwords of ours stay here."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PG")}
    return {
        **kept,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LAUNCHER_OPTS": "-XX:-UsePerfData -XX:TieredStopAtLevel=1",
        "SPARK_LOCAL_IP": "127.0.0.1",
        **given,
    }


def module(job: str) -> Any:
    """The module of a job."""
    return import_module(f"sqlq_spark.jobs.{job}")


def toml(settings: dict[str, Any]) -> str:
    """Settings as a file: what JSON writes of a text, a number or a list is TOML too."""
    lines = [
        f"{json.dumps(name)} = {json.dumps(given, ensure_ascii=False)}"
        for name, given in settings.items()
        if not isinstance(given, dict)
    ]
    tables = [
        f"[{name}]\n{toml(given)}" for name, given in settings.items() if isinstance(given, dict)
    ]
    return "\n".join([*lines, *tables]) + "\n"


# ---------------------------------------------------------------- what is in a Delta table


def delta_actions(table: Path) -> list[dict[str, Any]]:
    """Everything that a Delta table's log says, in order."""
    return [
        json.loads(line)
        for commit in sorted((table / "_delta_log").glob("*.json"))
        for line in commit.read_text(encoding="utf-8").splitlines()
    ]


def delta_rows(table: Path) -> list[dict[str, Any]]:
    """The rows of a Delta table; columns of its partitions are text."""
    live: dict[str, dict[str, Any]] = {}
    for action in delta_actions(table):
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
