"""
The frame of a job: settings in, a line of totals out, by spark-submit, python or on Databricks.

A job is a module with a docstring, a frozen dataclass of settings (see settings.py) and
`run(spark, settings)`, which returns totals; `program` does the rest. Exit codes: 0; 1 the totals
say `found`, which only jobs that look do; 2 usage or bad settings; 3 the database or Spark. What
went wrong is one sentence on standard error; the totals are the last line of standard output, as
JSON.

    def main() -> None:
        job.program(__doc__, Settings, run)
"""

from __future__ import annotations

import json
import re
import sys
import time
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from sqlq_spark import errors, versions
from sqlq_spark.database import transaction
from sqlq_spark.database.destinations import check_writable
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import (
    BadInput,
    MissingDelta,
    MissingPackage,
    QueueNotFound,
    UnsupportedVersion,
)
from sqlq_spark.java import NoJava
from sqlq_spark.jobs import settings as job_settings
from sqlq_spark.jobs import settings_reader
from sqlq_spark.jobs import spark as job_spark
from sqlq_spark.jobs.settings import (
    BadSettings,
    DatabaseSettings,
    Settings,
    checkpoint,
    database_url,
    passed,
    setting,
    trigger,
)
from sqlq_spark.jobs.spark import is_path, read_table, spread, start_into
from sqlq_spark.jobs.stream import follow, receive, triggered
from sqlq_spark.jobs.target import bind
from sqlq_spark.options import SourceOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from sqlq_spark.jobs.settings_reader import S
    from sqlq_spark.options import SinkOptions

__all__ = [
    "BadSettings",
    "DatabaseSettings",
    "Settings",
    "bind",
    "checkpoint",
    "database_url",
    "follow",
    "is_path",
    "main",
    "passed",
    "program",
    "read_table",
    "receive",
    "setting",
    "spread",
    "start_into",
    "trigger",
    "triggered",
]

GOOD, FOUND, USAGE, FAILED = 0, 1, 2, 3  # exit codes
# what to change before a next run
UNUSABLE = (BadInput, MissingPackage, MissingDelta, NoJava, UnsupportedVersion)
TRACED = {"ERROR", "WARN", "INFO", "DEBUG"}  # log levels that ask for stack traces


def program(
    doc: str | None,
    kind: type[S],
    run: Callable[[SparkSession, S], dict[str, Any]],
    *,
    spark: bool = True,
) -> None:
    """
    Do a job as a program: see `main`; its name is that of the module in which `kind` stands.

    Raises:
        SystemExit: the code is not 0. Databricks takes this for a failed task; it would not look
            at what an entry point returns, and takes an exit with 0 for a failure as well.
    """
    name = kind.__module__.rpartition(".")[2]  # `python -m` calls it __main__
    if code := main(doc, kind, run, spark=spark, name=None if name == "__main__" else name):
        sys.exit(code)


def main(
    doc: str | None,
    kind: type[S],
    run: Callable[[SparkSession, S], dict[str, Any]],
    words: Sequence[str] | None = None,
    *,
    spark: bool = True,
    name: str | None = None,
) -> int:
    """
    Do a job.

    Args:
        doc: its help.
        kind: its settings.
        run: its work.
        words: its command line.
        spark: whether it needs a session; `run` is given None without.
        name: of the job; else that of the file that runs.

    Returns:
        The exit code. A good job should end without sys.exit: it need not know where it runs.
    """
    name, level = name or Path(sys.argv[0]).stem, "FATAL"
    try:
        given = sys.argv[1:] if words is None else words
        found = settings_reader.parse_words(doc or "", kind, given)
        settings = settings_reader.load(kind, found, job_spark.secret)
        level = settings.log_level
        settings.options()
        if spark:
            versions.check("pyspark", "pyarrow")
        totals = look(name, settings) if found.dry_run else timed(name, settings, run, spark=spark)
    except Exception as error:  # noqa: BLE001 - the one place where a job's failure is told
        for line in sentence(error).splitlines() or [""]:
            tell(f"{name}: {line}", sys.stderr)
        if level in TRACED:
            traceback.print_exc()
        return USAGE if isinstance(error, UNUSABLE) else FAILED
    print(json.dumps({"job": name, **totals}, ensure_ascii=False, default=str), flush=True)  # noqa: T201
    return FOUND if totals.get("found") else GOOD


def timed(
    name: str, settings: S, run: Callable[[SparkSession, S], dict[str, Any]], *, spark: bool = True
) -> dict[str, Any]:
    """Run a job, and add the seconds that it took, without those of Spark's start."""
    with session(name, settings) if spark else nullcontext() as made:
        begun = time.monotonic()
        totals = run(made, settings)  # type: ignore[arg-type]  # None where it is not asked for
        return {**totals, "seconds": round(time.monotonic() - begun, 3)}


def session(name: str, settings: Settings) -> AbstractContextManager[SparkSession]:
    """Give Spark, with Delta where the job needs it."""
    return job_spark.session(name, settings.log_level, delta=settings.needs_delta())


def sentence(error: BaseException) -> str:
    """
    What to tell of an error: our own sentence, where one of ours is behind it.

    Of an error in an executor or in Spark's Python runner only the text arrives, in a stack trace.
    """
    if isinstance(error, errors.SqlQueueError):
        return str(error)
    text = str(error)
    ours = re.findall(r"sqlq_spark\.(?:\w+\.)*(\w+): (.+)", text)
    told = [said for name, said in ours if hasattr(errors, name)]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (
        told[0] if told else f"{type(error).__name__}: {lines[0] if lines else 'no more is known'}"
    )


# ---------------------------------------------------------------- dry run


def look(name: str, settings: Settings) -> dict[str, Any]:
    """
    Tell what the job would do, and reach everything that it needs; nothing is changed.

    Raises:
        SqlQueueError: something cannot be reached.
        BadSettings: a table that must be there is not.
    """
    for each, given in job_settings.shown(settings).items():
        tell(f"{each} = {json.dumps(given, ensure_ascii=False, default=str)}")
    for options in settings.options():
        for line in reached(options):
            tell(line)
    tables = settings.tables()
    if tables or type(settings).frame is not Settings.frame:
        with session(name, settings) as spark:
            for line in looked(spark, settings):
                tell(line)
    return {"dryRun": True}


def looked(spark: SparkSession, settings: Settings) -> Iterator[str]:
    """Look at the tables, and have Spark check what the job would write."""
    for table, must in settings.tables().items():
        there = job_spark.has_table(spark, table)
        if must and not there:
            raise BadSettings(f"table {table} is not there, or is no Delta table")
        yield f"table {table}: {'there' if there else 'will be made'}"
    frame = settings.frame(spark)
    if frame is not None:
        yield "columns: " + ", ".join(f"{name} {kind}" for name, kind in frame.dtypes)


def reached(options: SourceOptions | SinkOptions) -> list[str]:
    """Reach a database, its state tables and queues."""
    if isinstance(options, SourceOptions):
        state, reads = options.transaction_mode != "none", options.addresses
        writes = options.error_address
    else:
        state, reads, writes = options.delivery == "exactlyOnce", (), options.address
    with Session(options, "dry run", state=state) as session:
        connection = session.open()
        told = [f"{connection.server}: reached"]
        told += [f"state tables in schema {options.state_schema}: there"] if state else []
        with transaction(connection, timeout=options.query_timeout):
            for queue in reads:
                if not connection.columns(queue):
                    raise QueueNotFound(connection.printed(queue), connection.server)
                told.append(f"queue {connection.printed(queue)}: there")
            if writes is not None:
                check_writable(connection, [writes], options.allowed)
                told.append(f"queue {connection.printed(writes)}: may be sent to")
    return told


def tell(line: str, file: TextIO | None = None) -> None:
    """Print a line for people; strangers' words in it move no cursor."""
    print("".join(each if each.isprintable() else "·" for each in line), file=file)
