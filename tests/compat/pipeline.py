"""
The pipeline of conf/pipelines, run by the `spark-pipelines` beside the Python that runs this.

The compatibility run uses it, and the test of docs/pipelines.md. Each gives it a database with the
state tables and the queues Shop.Orders and Shop.Billing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import pyspark
from processes import kill_session
from waiting import until

from compat.stage import BUSY, execute, fill
from jobs import gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
RUNS = 3  # of which a busy machine may end some
TIMEOUT = 600.0  # seconds for a run on a busy machine
LAKE = "/lake/"  # where the example keeps its tables, its catalog and its checkpoints
RECEIPTS, ORDERS, BILLING = "sqlqueue.receipt", '"Shop.Orders"', '"Shop.Billing"'


@dataclass(frozen=True)
class Pipeline:
    """A copy of the example in a folder; its lake is there too."""

    folder: Path
    url: str

    def copy(self) -> None:
        """Copy the example; its lake becomes the folder."""
        shutil.copytree(ROOT / "conf" / "pipelines", self.folder / "project")
        for name in ("spark-pipeline.yml", "catalog.conf"):
            self.edit(name, LAKE, f"{self.folder}/")

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace a text in a file of the project."""
        path = self.folder / "project" / name
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    def count(self, table: str) -> int:
        """How many rows a table of the database has."""
        return int(execute(self.url, f"SELECT count(*) FROM {table}")[0][0])

    def fill(self, first: int, stop: int) -> None:
        """Send the orders `first` … `stop - 1`."""
        fill(self.url, ORDERS, first, stop)

    def received(self) -> list[int]:
        """The numbers of the orders in the streaming table, in order."""
        log = self.folder / "warehouse" / "orders" / "_spark_metadata"
        lines = [x for each in log.glob("[0-9]*") for x in each.read_text("utf-8").splitlines()[1:]]
        paths = [unquote(urlsplit(json.loads(line)["path"]).path) for line in lines]
        bodies = [body for path in paths for body in pq.read_table(path)["body"].to_pylist()]
        return sorted(json.loads(body)["number"] for body in bodies)

    def sent(self) -> list[int]:
        """The numbers of the orders that were sent on, in order."""
        rows = execute(self.url, f"SELECT convert_from(Body, 'UTF8') FROM {BILLING}")
        return sorted(json.loads(body)["number"] for (body,) in rows)

    def run(self, *words: str, good: bool = True) -> str:
        """Run it to its end, again if the machine was too busy; gives what it printed."""
        for _ in range(RUNS):
            with self._started(self.url, *words) as process:
                code = process.wait(TIMEOUT)
            if code == 0 or BUSY not in self.log:
                break
        assert (code == 0) == good, self.log[-5000:]
        return self.log

    def killed_when(self, moment: Callable[[], object]) -> None:
        """Run the pipeline and kill it at a moment; a gate keeps it from going on after that."""
        with gate.opened(self.url, moment) as way, self._started(way.url) as process:
            until(lambda: way.shut.is_set() or process.poll() is not None, seconds=TIMEOUT)
            assert process.poll() is None, self.log[-5000:]

    @property
    def log(self) -> str:
        """What the last run printed."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    @contextmanager
    def _started(self, url: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run it as long as the block lasts; none of its processes is left after."""
        program = Path(sys.executable).with_name("spark-pipelines")
        kept = {name: text for name, text in os.environ.items() if name != "SPARK_REMOTE"}
        # with SPARK_TESTING a local server of Spark Connect chooses its port
        ours = {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_TESTING": "1",
            "SQLQUEUE_URL": url,
        }
        with (self.folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [program, "run", "--properties-file", "catalog.conf", *words],
                cwd=self.folder / "project",
                env=kept | ours,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            kill_session(process)


def killed_twice(pipeline: Pipeline) -> None:
    """Kill it with a batch received, then with a batch sent."""
    pipeline.fill(0, 300)
    pipeline.killed_when(lambda: pipeline.count(RECEIPTS))
    assert (pipeline.count(ORDERS), pipeline.received()) == (0, [])

    killed_when_sent(pipeline, 300)


def killed_when_sent(pipeline: Pipeline, first: int = 0) -> None:
    """Send the orders from `first` on, kill it with a batch sent, and run it to its end."""
    pipeline.fill(first, 400)
    pipeline.killed_when(lambda: pipeline.count(BILLING))
    pipeline.run()

    assert pipeline.received() == pipeline.sent() == list(range(400))
    assert pipeline.count(ORDERS) == 0
    password = str(urlsplit(pipeline.url).password).encode()
    files = [each for each in pipeline.folder.rglob("*") if each.is_file()]
    assert [each for each in files if password in each.read_bytes()] == []


def refreshed(pipeline: Pipeline) -> None:
    """A full refresh is refused, sends all again, and with leave of the table deletes its rows."""
    assert "TABLE_NOT_RESETTABLE" in pipeline.run("--full-refresh", "orders", good=False)

    pipeline.run("--full-refresh-all")
    assert pipeline.received() == list(range(400))
    assert pipeline.sent() == sorted([*range(400)] * 2)

    forbidden = '(table_properties={"pipelines.reset.allowed": "false"})'
    pipeline.edit("transformations/orders.py", forbidden, "")
    pipeline.fill(400, 450)
    pipeline.killed_when(lambda: not pipeline.count(ORDERS))
    pipeline.fill(450, 460)
    said = pipeline.run("--full-refresh", "orders")

    assert pipeline.received() == list(range(450, 460))
    held = f"SELECT sum(messages)::int FROM {RECEIPTS} GROUP BY stream"
    assert (50,) in execute(pipeline.url, held)  # of the lost checkpoint
    assert "lie in receipts of other streams" in said
