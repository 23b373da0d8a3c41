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
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import pyspark
from adbc_driver_postgresql import dbapi
from processes import kill_session
from waiting import until

from compat.stage import BUSY
from jobs import gate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
RUNS = 3  # of which a busy machine may end some
TIMEOUT = 600.0  # seconds for a run on a busy machine
LAKE = "/lake/"  # where the example keeps its tables, its catalog and its checkpoints
RECEIPTS, ORDERS, BILLING = "sqlqueue.receipt", '"Shop.Orders"', '"Shop.Billing"'
_FILL = """
INSERT INTO "Shop.Orders" (Id, Headers, Body)
SELECT gen_random_uuid(), '{{"NServiceBus.EnclosedMessageTypes":"Shop.PlaceOrder"}}',
    convert_to('{{"number":' || number || '}}', 'UTF8')
FROM generate_series({}, {}) AS number ORDER BY number
"""


@dataclass(frozen=True)
class Pipeline:
    """A copy of the example in a folder; its lake is there too."""

    folder: Path
    url: str

    @property
    def project(self) -> Path:
        """The folder of spark-pipeline.yml."""
        return self.folder / "project"

    # ------------------------------------------------------------ the database and the table

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        """Run one statement in a transaction of its own; gives its rows."""
        with dbapi.connect(self.url) as connection, connection.cursor() as cursor:
            cursor.execute(text)
            found: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
            connection.commit()
            return found

    def count(self, table: str) -> int:
        """How many rows a table of the database has."""
        return int(self.sql(f"SELECT count(*) FROM {table}")[0][0])

    def fill(self, first: int, stop: int) -> None:
        """Send the orders `first` … `stop - 1`."""
        self.sql(_FILL.format(first, stop - 1))

    def received(self) -> list[int]:
        """The numbers of the orders in the streaming table, in order."""
        files = self.folder / "warehouse" / "orders"
        entries = [
            json.loads(line)
            for entry in (files / "_spark_metadata").glob("[0-9]*")
            for line in entry.read_text(encoding="utf-8").splitlines()[1:]
        ]
        paths = [Path(unquote(urlsplit(each["path"]).path)) for each in entries]
        bodies = [body for path in paths for body in pq.read_table(path)["body"].to_pylist()]
        return sorted(json.loads(body)["number"] for body in bodies)

    def sent(self) -> list[int]:
        """The numbers of the orders that were sent on, in order."""
        rows = self.sql("SELECT convert_from(Body, 'UTF8') FROM \"Shop.Billing\"")
        return sorted(json.loads(body)["number"] for (body,) in rows)

    # ------------------------------------------------------------ the runs

    def copy(self) -> None:
        """Copy the example; its lake becomes the folder."""
        shutil.copytree(ROOT / "conf" / "pipelines", self.project)
        for name in ("spark-pipeline.yml", "catalog.conf"):
            self.edit(name, LAKE, f"{self.folder}/")

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace a text in a file of the project."""
        path = self.project / name
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    def run(self, *words: str) -> str:
        """Run the pipeline to its end, again if the machine was too busy; gives what it printed."""
        for _ in range(RUNS):
            with self._started(self.url, *words) as process:
                code = process.wait(TIMEOUT)
            if code == 0 or BUSY not in self.log:
                break
        assert code == 0, self.log[-5000:]
        return self.log

    def fails(self, *words: str) -> str:
        """Run a pipeline that must fail; gives what it printed."""
        with self._started(self.url, *words) as process:
            code = process.wait(TIMEOUT)
        assert code != 0, self.log[-5000:]
        return self.log

    def killed_when(self, moment: Callable[[], object]) -> None:
        """Run the pipeline and kill it at a moment; a gate keeps it from going on after that."""
        with gate.opened(self.url, moment) as way, self._started(way.url) as process:
            until(
                lambda: moment() or process.poll() is not None,
                seconds=TIMEOUT,
                told=lambda: self.log[-3000:],
            )
            assert process.poll() is None, self.log[-5000:]

    @property
    def log(self) -> str:
        """What the last run printed."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    def holds(self, secret: str) -> bool:
        """Whether the log, a checkpoint or the catalog has a text in it."""
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return any(secret.encode() in path.read_bytes() for path in files)

    @contextmanager
    def _started(self, url: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run it as long as the block lasts; none of its processes is left after."""
        program = Path(sys.executable).with_name("spark-pipelines")
        with (self.folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [program, "run", "--properties-file", "catalog.conf", *words],
                cwd=self.project,
                env=environment() | {"SQLQUEUE_URL": url},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            kill_session(process)


def environment() -> dict[str, str]:
    """The environment of a run."""
    kept = {name: text for name, text in os.environ.items() if name != "SPARK_REMOTE"}
    # with SPARK_TESTING a local server of Spark Connect chooses its port
    return kept | {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_TESTING": "1",
    }


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

    assert pipeline.received() == list(range(400))
    assert pipeline.sent() == list(range(400))
    assert pipeline.count(ORDERS) == 0
    assert not pipeline.holds(str(urlsplit(pipeline.url).password))


def refreshed(pipeline: Pipeline) -> None:
    """A full refresh is refused, sends all again, and with leave of the table deletes its rows."""
    said = pipeline.fails("--full-refresh", "orders")
    assert "TABLE_NOT_RESETTABLE" in said

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
    held = pipeline.sql(f"SELECT sum(messages)::int FROM {RECEIPTS} GROUP BY stream")
    assert (50,) in held  # of the lost checkpoint
    assert "lie in receipts of other streams" in said
