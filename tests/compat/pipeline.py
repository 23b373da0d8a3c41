"""
The pipeline of conf/pipelines, run by the `spark-pipelines` beside the Python that runs this.

The compatibility run uses it, and the test of docs/pipelines.md. Each gives it a database with the
state tables and the queues Shop.Orders and Shop.Billing.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pyspark
from faults.cluster import landed
from jobs.submit import started

from compat.stage import BUSY, execute, fill, numbered
from jobs import gate

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from jobs.submit import Running

ROOT = Path(__file__).parents[2]
RUNS = 3  # attempts to run the pipeline; on a busy machine some of them fail
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
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def rows(self, table: str, what: str = "1") -> list[object]:
        return execute(self.url, f"SELECT {what} FROM {table}")

    def fill(self, first: int, stop: int) -> None:
        fill(self.url, ORDERS, first, stop)

    def check(self, first: int, stop: int, times: int = 1) -> None:
        """Check that each order is once in the streaming table, and was sent on `times` times."""
        ids = sorted(numbered(first, stop))
        sent = self.rows(BILLING, "convert_from(Body, 'UTF8')::json->>'number'")
        assert sorted(landed(self.folder / "warehouse" / "orders")) == ids
        assert sorted(f"m-{number}" for number in sent) == sorted(ids * times)
        assert self.rows(ORDERS) == []

    def run(self, *words: str, good: bool = True) -> str:
        """Run it to its end, again if the machine was too busy; gives what it printed."""
        for _ in range(RUNS):
            with self._started(self.url, *words) as running:
                ended = running.ended()
            if ended.code == 0 or BUSY not in ended.log:
                break
        assert (ended.code == 0) == good, ended.log[-5000:]
        return ended.out + ended.log

    def killed_when(self, moment: Callable[[], object]) -> None:
        """Run the pipeline and kill it at a moment; a gate keeps it from going on after that."""
        with gate.opened(self.url, moment) as way, self._started(way.url) as running:
            running.until(way.shut.is_set)

    def _started(self, url: str, *words: str) -> AbstractContextManager[Running]:
        """Run it as long as the block lasts; none of its processes is left after."""
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
        program = str(Path(sys.executable).with_name("spark-pipelines"))
        command = [program, "run", "--properties-file", "catalog.conf", *words]
        return started(command, self.folder / "project", kept | ours)


def killed_when_sent(pipeline: Pipeline, first: int = 0) -> None:
    """Send the orders from `first` on, kill it after a batch was sent, and run it to its end."""
    pipeline.fill(first, 400)
    pipeline.killed_when(lambda: pipeline.rows(BILLING))
    pipeline.run()

    pipeline.check(0, 400)
    password = str(urlsplit(pipeline.url).password).encode()
    files = [each for each in pipeline.folder.rglob("*") if each.is_file()]
    assert [each for each in files if password in each.read_bytes()] == []


def killed_and_refreshed(pipeline: Pipeline) -> None:
    """
    Kill it after a batch was received, then after one was sent, and refresh it.

    The full refresh of a table is refused until the table allows it. Then it deletes the rows. The
    full refresh of a sink sends all orders again.
    """
    pipeline.fill(0, 300)
    pipeline.killed_when(lambda: pipeline.rows(RECEIPTS))
    killed_when_sent(pipeline, 300)

    assert "TABLE_NOT_RESETTABLE" in pipeline.run("--full-refresh", "orders", good=False)
    pipeline.run("--full-refresh-all")
    pipeline.check(0, 400, times=2)

    forbidden = '(table_properties={"pipelines.reset.allowed": "false"})'
    pipeline.edit("transformations/orders.py", forbidden, "")
    pipeline.fill(400, 450)
    pipeline.killed_when(lambda: not pipeline.rows(ORDERS))
    pipeline.fill(450, 460)
    said = pipeline.run("--full-refresh", "orders")

    assert sorted(landed(pipeline.folder / "warehouse" / "orders")) == numbered(450, 460)
    # the receipts of the lost checkpoint
    assert 50 in pipeline.rows(f"{RECEIPTS} GROUP BY stream", "sum(messages)::int")
    assert "lie in receipts of other streams" in said
