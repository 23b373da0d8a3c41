"""
Jobs in one session, as a program: `together.py '[[["relay", …], …], …]'`.

Each list of jobs with their flags is run beside the others, in its order. SPARK_REMOTE names a
server of Spark Connect; without it the session is classic. Each job prints its totals as a line,
but for two: `page` runs the code of docs/guide/upserts.md, and `listen` exports a query's metrics.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import generate_latest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from waiting import until

from jobs.submit import module
from sqlq_spark.jobs import streams
from sqlq_spark.jobs.settings import Settings
from sqlq_spark.metrics import PrometheusExport, QueueMetrics

if TYPE_CHECKING:
    from collections.abc import Callable


def page(session: SparkSession, code: str) -> int:
    """Run a page's upserts. The first batch fails after Delta has it, and is repeated."""
    names = {"spark": session, "__name__": "__main__"}
    try:
        exec(code.replace("(upsert)", "(lambda *of: [upsert(*of), 1 / 0])"), names)  # noqa: S102
    except PySparkException:
        exec(code, names)  # noqa: S102 - ours
        return 0
    return 1


def listen(session: SparkSession, folder: str, options: str) -> int:
    """Receive a queue, and write all that the listener exports into a file, until it is empty."""
    pages: list[str] = []
    export = PrometheusExport(lambda registry: pages.append(generate_latest(registry).decode()))
    listener = QueueMetrics(export)
    session.conf.set("spark.sql.streaming.noDataProgressEventInterval", "1000")
    session.streams.addListener(listener)
    read = session.readStream.format("sqlqueue").options(**json.loads(options)).load()
    writer = read.writeStream.format("parquet").queryName("listened")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.start(f"{folder}/rows")
    mine = '{query="listened"}'
    until(lambda: f"sqlqueue_query_batch_seconds{mine} 0.0" in "".join(pages[-1:]))
    query.stop()
    until(lambda: f"sqlqueue_query_running{mine} 0.0" in pages[-1])
    session.streams.removeListener(listener)
    Path(folder, "pages.json").write_text(json.dumps(pages), encoding="utf-8")
    return 0


OTHERS: dict[str, Callable[..., int]] = {"page": page, "listen": listen}  # these are no jobs


def run(session: SparkSession, jobs: list[list[str]]) -> int:
    """Run jobs one after the other, up to the first that fails."""
    if hasattr(session, "sparkContext"):  # a session is only active in the thread that made it
        jvm = SparkSession._get_j_spark_session_class(session._jvm)  # noqa: SLF001
        jvm.setActiveSession(session._jsparkSession)  # noqa: SLF001
    else:
        type(session)._set_default_and_active_session(session)  # type: ignore[attr-defined] # noqa: SLF001
    codes = (
        OTHERS[name](session, *flags) if name in OTHERS else module(name).main.main(flags)
        for name, *flags in jobs
    )
    return next(filter(None, codes), 0)


def main(orders: list[list[list[str]]]) -> int:
    """Run all, or up to the first that fails."""
    with (
        streams.session("tests", Settings(log_level="ERROR")) as session,
        ThreadPoolExecutor(len(orders)) as pool,
    ):
        session.conf.set("spark.sql.shuffle.partitions", "2")
        session.conf.set("spark.databricks.delta.snapshotPartitions", "2")
        for ended in as_completed([pool.submit(run, session, each) for each in orders]):
            if code := ended.result():
                os._exit(code)
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
