"""
A job as its users run it: `spark-submit jobs/<job>.py --settings …`, in a session of its own.

It may be killed when something is so: JVM, Python and workers at once, by SIGKILL.
What it wrote is read from Delta's log and Parquet files, without a Spark of ours: a start costs ten
seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pyspark
from waiting import until

from sqlq_spark.demo.process import members

from . import gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
# of the jars that Delta's package names, those that are used here
JARS = ("io.delta_*.jar", "io.unitycatalog_*.jar")
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
    """A job at work."""

    process: subprocess.Popen[bytes]
    folder: Path

    def kill(self) -> None:
        """End all its processes at once; stopped first, so that none sees another die."""
        for sign in (signal.SIGSTOP, signal.SIGKILL):
            for pid in members(self.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, sign)
        self.process.wait()

    def terminate(self) -> None:
        """Ask the Python process to end, as `kill PID` does."""
        pids = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.process.pid)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        os.kill(int(pids[0]), signal.SIGTERM)

    def ended(self) -> Ended:
        """Wait for its end."""
        code = self.process.wait(TIMEOUT)
        out, log = (
            (self.folder / name).read_text(encoding="utf-8", errors="replace")
            for name in ("out", "log")
        )
        return Ended(code=code, out=out, log=log)

    def until(self, moment: Callable[[], object]) -> None:
        """Wait until something is so; the job must still be at work then."""
        log = self.folder / "log"
        until(
            lambda: moment() or self.process.poll() is not None,
            seconds=TIMEOUT,
            told=lambda: log.read_text(encoding="utf-8", errors="replace")[-3000:],
        )
        assert self.process.poll() is None, self.ended()


@dataclass(frozen=True)
class Desk:
    """Where jobs are submitted from; `environment` is given to each."""

    folder: Path
    environment: dict[str, str]

    @contextmanager
    def running(
        self, job: str, settings: dict[str, Any], *flags: str, conf: dict[str, str] | None = None
    ) -> Iterator[Running]:
        """Run `jobs/<job>.py` as long as the block lasts; nothing of it is left after."""
        path = self.folder / f"{job}.toml"
        path.write_text(toml(settings), encoding="utf-8")
        words = ["--settings", str(path), *flags]
        with (self.folder / "out").open("wb") as out, (self.folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*command(conf or {}, self.folder), str(ROOT / "jobs" / f"{job}.py"), *words],
                cwd=self.folder,
                env=environ(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                start_new_session=True,
            )
        running = Running(process, self.folder)
        try:
            yield running
        finally:
            running.kill()

    def run(self, job: str, settings: dict[str, Any], *flags: str, **conf: str) -> Ended:
        """Run a job to its end."""
        with self.running(job, settings, *flags, conf=conf) as running:
            return running.ended()

    def killed_when(
        self, moment: Callable[[], object], job: str, settings: dict[str, Any], **conf: str
    ) -> None:
        """Run a job up to a moment, and kill it there; a gate keeps it from running past it."""
        url = self.environment["SQLQUEUE_URL"]
        with gate.opened(url, moment) as way:
            given, environment = (
                {name: way.url if each == url else each for name, each in some.items()}
                for some in (settings, self.environment)
            )
            desk = replace(self, environment=environment)
            with desk.running(job, given, conf=conf) as running:
                running.until(moment)


def command(conf: dict[str, str], folder: Path) -> list[str]:
    """`spark-submit`, with Delta from the cache of jars, or from Maven the first time."""
    jars = [str(jar) for each in JARS for jar in (Path.home() / ".ivy2.5.2/jars").glob(each)]
    delta = ["--driver-class-path", ":".join(jars)] if jars else ["--packages", PACKAGE]
    # a short-lived JVM on few cores: C1 alone, one collector thread, no second look at classes
    flags = (
        f"-Djava.io.tmpdir={folder} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
        "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    )
    own = {"spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    pairs = [f"{name}={value}" for name, value in {**SETTINGS, **own, **conf}.items()]
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
