"""
A standalone cluster on loopback: a master, two workers of one core each, and a driver.

The workers stand on 127.0.0.1 and 127.0.0.2, for Spark starts no speculative attempt on a host
that runs the task already, and `local-cluster` has one host only. The driver, a process of its own
(cluster_driver.py), takes one order after another: starting it costs more than an order.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import processes
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from waiting import until

from . import cluster_driver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark.stand import Queue

HOME = Path(pyspark.__file__).parent
HOSTS = ("127.0.0.1", "127.0.0.2")
DEPLOY = "org.apache.spark.deploy"
# Whoever ran the tests may have been killed: then its end of the pipe closes, and the JVM goes too.
WATCHED = ["/bin/sh", "-c", '"$@" & cat >/dev/null; kill -9 $!', "sqlq-watched"]
MASTER = rf"spark://{HOSTS[0]}:\d+"  # in its log, with the port that it got
PATIENCE = 300.0  # seconds, for a start or an order on a busy machine


class Witness(NamedTuple):
    """What one attempt of a task saw; its file's name says which."""

    batch: int
    partition: int
    attempt: int
    host: str
    ids: list[str]


@dataclass
class Order:
    """Streams that run together until what waits is through; `answer` appears when they are."""

    folder: Path
    streams: list[dict[str, Any]] = field(default_factory=list)

    @property
    def answer(self) -> Path:
        """What the driver writes last."""
        return self.folder / "answer"

    def receive(
        self, queue: Queue, out: Queue | None = None, *, timeout: str = "30s", **rules: Any
    ) -> None:
        """
        Add a stream, into Parquet or another queue.

        Args:
            queue: where from, 2,000 messages in a batch of two tasks.
            out: where to; None: a table of its own.
            timeout: the option queryTimeout.
            rules: what happens to its tasks, see cluster_driver.py.
        """
        place = self.folder / str(len(self.streams))
        place.mkdir(parents=True)
        options = queue.options | {"maxMessagesPerTrigger": "2000", "maxConcurrency": "2"}
        self.streams.append(
            {
                "options": options | {"peekDelay": "100ms", "queryTimeout": timeout},
                "out": None if out is None else out.options,
                "table": str(place / "table"),
                "checkpoint": str(place / "checkpoint"),
                "notes": str(place),
                **rules,
            }
        )

    def go(self) -> None:
        """Let the tasks that hold go on."""
        for stream in self.streams:
            Path(stream["notes"], "go").touch()

    def witnesses(self, stream: int = 0) -> list[Witness]:
        """What each attempt saw so far, in the order of batch, partition and attempt."""
        found = []
        for path in (self.folder / str(stream)).glob("* seen"):
            batch, partition, attempt, host, _ = path.name.split()
            seen = path.read_text(encoding="utf-8").split()
            found.append(Witness(int(batch), int(partition), int(attempt), host, seen))
        return sorted(found)

    def landed(self, stream: int = 0) -> list[str]:
        """Message ids in a stream's table, with repeats: the files that the sink's log names."""
        table = self.folder / str(stream) / "table"
        log = (table / "_spark_metadata").glob("[0-9]*")
        entries = (line for path in log for line in path.read_text().splitlines()[1:])
        files = {json.loads(entry)["path"].removeprefix("file://") for entry in entries}
        headers = [pq.read_table(path, columns=["headers"], partitioning=None) for path in files]
        rows = pa.concat_tables(headers)["headers"].to_pylist() if headers else []
        return [dict(row)["NServiceBus.MessageId"] for row in rows]


class Cluster:
    """A running cluster; everything of it ends with `running`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers: list[subprocess.Popen[bytes]] = []
        self.driver: subprocess.Popen[bytes] | None = None
        self._orders = count()

    def order(self) -> Order:
        """Begin an order."""
        return Order(self.folder / f"order{next(self._orders)}")

    def start(self, order: Order) -> None:
        """Give it to the driver."""
        assert self.driver is not None
        assert self.driver.stdin is not None
        text = json.dumps({"streams": order.streams, "answer": str(order.answer)})
        self.driver.stdin.write(text.encode() + b"\n")
        self.driver.stdin.flush()

    def finish(self, order: Order) -> None:
        """Wait for the order's end; raises what its streams raised."""
        self.until(order.answer.exists)
        error = order.answer.read_text(encoding="utf-8")
        assert not error, error

    def until(self, true: Any) -> None:
        """Wait until a condition is true, while the driver lives."""
        assert self.driver is not None
        driver = self.driver

        def said() -> str:
            return (self.folder / "driver.log").read_text(encoding="utf-8")[-3000:]

        until(lambda: true() or driver.poll() is not None, seconds=PATIENCE, told=said)
        assert driver.poll() is None, said()

    def executors(self, host: str) -> list[int]:
        """The executors' JVMs on one host."""
        worker = self.workers[HOSTS.index(host)]
        return [
            pid
            for pid in processes.below(worker.pid)
            if "ExecutorBackend" in processes.command(pid)
        ]


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Run a cluster as long as the block."""
    made = Cluster(folder)
    with ExitStack() as stack:

        def start(name: str, words: list[str], host: str) -> subprocess.Popen[bytes]:
            return stack.enter_context(_process(folder / f"{name}.log", words, host))

        master = ["--host", HOSTS[0], "--port", "0", "--webui-port", "0"]
        start("master", [*WATCHED, _spark_class(), f"{DEPLOY}.master.Master", *master], HOSTS[0])
        log = folder / "master.log"
        found = until(lambda: re.search(MASTER, log.read_text()), seconds=PATIENCE)
        assert found is not None
        url = found[0]
        for host in HOSTS:
            worker = ["--host", host, "--port", "0", "--webui-port", "0", "--cores", "1"]
            worker += ["--memory", "512m", "-d", str(folder / host), url]
            words = [*WATCHED, _spark_class(), f"{DEPLOY}.worker.Worker", *worker]
            made.workers.append(start(f"worker-{host}", words, host))
        made.driver = start("driver", [sys.executable, cluster_driver.__file__, url], HOSTS[0])
        made.until(lambda: all(made.executors(host) for host in HOSTS))
        yield made


def _spark_class() -> str:
    return str(HOME / "bin" / "spark-class")


@contextmanager
def _process(log: Path, words: list[str], host: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process with its children; all are gone when the block ends."""
    environ = os.environ | {
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": host,
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }
    with (
        log.open("wb") as out,
        subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environ,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            for pid in reversed([process.pid, *processes.below(process.pid)]):
                processes.send(pid, signal.SIGKILL)
