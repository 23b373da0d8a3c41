"""
The things that all lines use: a database with queues, a Spark session, a folder, and a frame.

The queue `orders` is filled before each run, and received from. `shelf` is filled once, and only
read. `sent` is written to.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from sqlq_spark.jobs.streams import DELTA

from .messages import orders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from .postgresql import Database

CORES = 2
BATCHES = 4  # batches of one stream; the first warms up and does not count
MANY = tuple(f"many{at}" for at in range(64))
ERROR_QUEUE = "failed"
QUEUES = ("orders", "shelf", "sent", ERROR_QUEUE, *MANY)
# name of a form of messages → a column, and Spark's expression that makes it of an endpoint's
FORMS = {
    "white space": ("headers", """replace(replace(headers, '":"', '": "'), '","', '", "')"""),
    "escapes": ("headers", r"replace(headers, '\\/', '\\u002f')"),
    "map": ("headers", "from_json(headers, 'map<string,string>')"),
    # 1 kB of hexadecimal digits, which hardly can be compressed
    "hard": (
        "body",
        "encode(concat_ws('', transform(sequence(1, 16), n -> sha2(id || n, 256))), 'UTF-8')",
    ),
}


@dataclass(frozen=True)
class Stand:
    """One bench, set up."""

    database: Database
    messages: int  # how many one batch, one read and one write have
    folder: Path
    pool: ProcessPoolExecutor  # for lines without Spark that need both cores
    _numbers: Iterator[int]

    @property
    def url(self) -> str:
        """The url of the database."""
        return self.database.url

    @cached_property
    def spark(self) -> SparkSession:
        """Start Spark with its JDBC driver, and make our format known to it."""
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = (
            SparkSession.builder.master(f"local[{CORES}]")
            .appName("sqlq_spark bench")
            .config(map={**DELTA})
            .config("spark.driver.memory", "3g")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", CORES)
            .config("spark.sql.streaming.numRecentProgressUpdates", 1000)
            # over TCP every Python task waits 40 ms, because an acknowledgement is delayed
            .config("spark.python.unix.domain.socket.enabled", "true")
        )
        builder = configure_spark_with_delta_pip(builder, [self.database.jar])
        spark: SparkSession = builder.getOrCreate()
        # A stopped rate stream logs its last task as an error. Real errors are also raised.
        spark.sparkContext.setLogLevel("FATAL")
        return spark

    @cached_property
    def ours(self) -> str:
        """Register our format in the session, create the state tables, and return its name."""
        from sqlq_spark import register  # noqa: PLC0415 the yardsticks do without

        register(self.spark)
        install_state(self.url)
        return "sqlqueue"

    @cached_property
    def frame(self) -> DataFrame:
        """Hold the messages to write (id, headers, body) in memory, a partition for each core."""
        path = self.folder / "frame"
        path.mkdir()
        share = -(-self.messages // CORES)
        for first in range(0, self.messages, share):
            part = orders(first, min(first + share, self.messages))
            pq.write_table(part, path / f"{first}.parquet")
        return self.spark.read.parquet(str(path)).repartition(CORES).cache()

    @cached_property
    def forms(self) -> dict[str, DataFrame]:
        """Hold the same messages in each of FORMS."""
        return {
            form: self.frame.withColumn(column, expr(made)).cache()
            for form, (column, made) in FORMS.items()
        }

    def checkpoint(self) -> str:
        """Name a checkpoint folder that no one has used."""
        return str(self.folder / f"checkpoint{next(self._numbers)}")


def install_state(url: str) -> None:
    """Make the state tables, as a user does."""
    command = [sys.executable, "-m", "sqlq_spark", "install"]
    environ = os.environ | {"SQLQUEUE_URL": url}  # not an argument: the password would show in `ps`
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environ)


def expect(what: str, found: int, messages: int) -> None:
    """Raise an error where a measurement moved another number of messages."""
    if found != messages:
        text = f"{what} {found} messages, not {messages}"
        raise RuntimeError(text)


@contextmanager
def fresh(server: str | None) -> Iterator[Database]:
    """Make a database on the server with this url, or on one of our own, and drop it afterwards."""
    with ExitStack() as stack:
        if server is None:
            from sqlq_spark.testing import embedded  # noqa: PLC0415 only if no other is there

            server = stack.enter_context(embedded.run_server(tcp=True)).url
        from . import postgresql  # noqa: PLC0415 it imports this module

        yield stack.enter_context(postgresql.opened(server))


@contextmanager
def stand(url: str | None, messages: int) -> Iterator[Stand]:
    """Set up a bench on a server, and remove it after the block."""
    with (
        tempfile.TemporaryDirectory(prefix="sqlq_bench") as folder,
        fresh(url) as database,
        ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as pool,
    ):
        database.prepare(QUEUES, messages * BATCHES)
        database.fill("shelf", messages)
        yield Stand(database, messages, Path(folder), pool, count())
        if active := SparkSession.getActiveSession():
            active.stop()
