"""
Driver processes, alone or on a cluster: a master and two workers of one core each, on loopback.

The workers are on 127.0.0.1 and 127.0.0.2, because Spark starts no speculative attempt on the host
that already runs the task. `local-cluster` would have only one host. A driver takes one order after
another (driver.py), because to start a driver takes longer than an order.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import processes
import pyarrow.parquet as pq
import pyspark
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spark.stand import Queue

HOME, TESTS = Path(pyspark.__file__).parent, Path(__file__).parents[1]
HOSTS = ("127.0.0.1", "127.0.0.2")
DEPLOY = "org.apache.spark.deploy"
# If the test process is killed, its end of the pipe closes. Then this shell kills the JVM.
WATCHED = ["/bin/sh", "-c", '"$@" & cat >/dev/null; kill -9 $!', "sqlq-watched"]
MASTER = rf"spark://{HOSTS[0]}:\d+"  # its url in its log, with the port that it got
PATIENCE = 300.0  # seconds, for a start or an order on a busy machine
SETTINGS = {
    "spark.decommission.enabled": "true",
    "spark.driver.memory": "768m",
    "spark.executor.memory": "512m",
    # a second attempt of what takes longer than the others, where a core is free
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.5",
    "spark.storage.decommission.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def started(log: Path, words: list[str], host: str = HOSTS[0]) -> subprocess.Popen[bytes]:
    """Start a process. Its log is continued if it exists."""
    ours = {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": host,
    }
    with log.open("ab") as out:
        return subprocess.Popen(
            words,
            cwd=TESTS,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ | ours,
            start_new_session=True,
        )


def driver(log: Path, job: dict[str, Any]) -> subprocess.Popen[bytes]:
    return started(log, [sys.executable, "-m", "faults.driver", json.dumps(job)])


def give(process: subprocess.Popen[bytes], order: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(order).encode() + b"\n")
    process.stdin.flush()


def end(process: subprocess.Popen[bytes]) -> None:
    with process:
        for pid in reversed([process.pid, *processes.below(process.pid)]):
            processes.send(pid, signal.SIGKILL)


def landed(table: Path) -> list[str]:
    """Message ids in a table of Parquet, with repeats: in the files that the sink's log names."""
    log = (table / "_spark_metadata").glob("[0-9]*")
    entries = [json.loads(line) for path in log for line in path.read_text().splitlines()[1:]]
    files = {entry["path"].removeprefix("file://") for entry in entries}
    read = [pq.read_table(path, columns=["headers"], partitioning=None) for path in files]
    rows = [row for each in read for row in each["headers"].to_pylist()]
    return [dict(row)["NServiceBus.MessageId"] for row in rows]


class Order:
    """
    Streams that run together until they have received what waits.

    Then their `answer` appears.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.answer = folder, folder / "answer"
        self.streams: list[dict[str, Any]] = []

    def receive(self, queue: Queue, out: Queue | None = None, **rules: Any) -> None:
        """Add a stream of two tasks a batch, into Parquet or a queue; its rules: see driver.py."""
        place = self.folder / str(len(self.streams))
        place.mkdir(parents=True)
        limits = {"maxMessagesPerTrigger": "2000", "maxConcurrency": "2", "peekDelay": "100ms"}
        limits |= {"queryTimeout": "30s"}
        self.streams.append(
            {
                "options": queue.options | limits,
                "out": None if out is None else out.options,
                "format": "parquet",
                "table": str(place / "table"),
                "checkpoint": str(place / "checkpoint"),
                "notes": str(place),
                **rules,
            }
        )

    def go(self) -> None:
        for stream in self.streams:
            Path(stream["notes"], "go").touch()

    def witnesses(self, stream: int = 0) -> list[tuple[str, str, list[str]]]:
        """The task, the host, and the message ids so far of each attempt."""
        found = []
        for path in (self.folder / str(stream)).glob("* seen"):
            batch, partition, _, host, _ = path.name.split()
            found.append((f"{batch} {partition}", host, path.read_text().split()))
        return found

    def landed(self, stream: int = 0) -> list[str]:
        return landed(self.folder / str(stream) / "table")


class Cluster:
    """A running cluster with its driver."""

    driver: subprocess.Popen[bytes]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers: list[subprocess.Popen[bytes]] = []
        self.orders = 0

    def order(self) -> Order:
        self.orders += 1
        return Order(self.folder / f"order{self.orders}")

    def start(self, order: Order) -> None:
        what = {"streams": order.streams, "answer": str(order.answer), "executors": len(HOSTS)}
        give(self.driver, what)

    def finish(self, order: Order) -> None:
        self.until(order.answer.exists)
        error = order.answer.read_text()
        assert not error, error

    def until(self, true: Callable[[], object]) -> None:
        """Wait until a condition is true, while the driver lives."""
        log = self.folder / "driver.log"
        until(
            lambda: true() or self.driver.poll() is not None,
            seconds=PATIENCE,
            told=lambda: log.read_text()[-3000:],
        )
        assert self.driver.poll() is None, log.read_text()[-3000:]

    def executors(self, host: str) -> list[int]:
        below = processes.below(self.workers[HOSTS.index(host)].pid)
        return [pid for pid in below if "ExecutorBackend" in processes.command(pid)]


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    made = Cluster(folder)
    with ExitStack() as stack:

        def start(name: str, host: str, *words: str) -> subprocess.Popen[bytes]:
            place = ["--host", host, "--port", "0", "--webui-port", "0"]
            call = [*WATCHED, str(HOME / "bin" / "spark-class"), f"{DEPLOY}.{name}", *place, *words]
            process = started(folder / f"{name}-{host}.log", call, host)
            stack.callback(end, process)
            return process

        start("master.Master", HOSTS[0])
        log = folder / f"master.Master-{HOSTS[0]}.log"
        found = until(lambda: re.search(MASTER, log.read_text()), seconds=PATIENCE)
        assert found is not None
        for host in HOSTS:
            place = ["--cores", "1", "--memory", "512m", "-d", str(folder / host), found[0]]
            made.workers.append(start("worker.Worker", host, *place))
        job = {"master": found[0], "sink": "parquet", "settings": SETTINGS}
        made.driver = driver(folder / "driver.log", job)
        stack.callback(end, made.driver)
        made.until(lambda: all(made.executors(host) for host in HOSTS))
        yield made
