"""
Runs a job: reads its settings, does its work or looks at what it needs, and prints its totals.

A job is a module with a docstring, a frozen dataclass of settings (settings.py) and a function
`run(spark, settings)`, which returns totals. `program` does the rest. Exit codes:

- 0: done
- 1: the totals have `found` (maintenance and triage)
- 2: usage or bad settings
- 3: the database or Spark

An error is reported on standard error. The totals are the last line of standard output, as JSON.
"""

from __future__ import annotations

import json
import re
import sys
import time
import traceback
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TextIO

from sqlq_spark import errors, versions
from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.database.trust import RETURNED, Destinations
from sqlq_spark.jobs import spark as job_spark
from sqlq_spark.jobs.settings import BadSettings, Settings, load, parse_words, without_secrets
from sqlq_spark.options import SourceOptions
from sqlq_spark.versions import NoJava

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from sqlq_spark.jobs.settings import S
    from sqlq_spark.options import SinkOptions

GOOD, FOUND, USAGE, FAILED = 0, 1, 2, 3  # exit codes
# errors that need a change before the next run
UNUSABLE = (
    errors.BadInput,
    errors.MissingPackage,
    errors.MissingDelta,
    NoJava,
    errors.UnsupportedVersion,
)
TRACED = {"ERROR", "WARN", "INFO", "DEBUG"}  # log levels with stack traces


def program(
    doc: str | None,
    kind: type[S],
    run: Callable[[SparkSession, S], dict[str, Any]],
    *,
    spark: bool = True,
) -> None:
    """
    Run a job as a program, as `main` does.

    Raises:
        SystemExit: the code is not 0. Databricks reports every SystemExit as a failed task, even
            with code 0, and ignores what an entry point returns.
    """
    if code := main(doc, kind, run, spark=spark):
        sys.exit(code)


def main(
    doc: str | None,
    kind: type[S],
    run: Callable[[SparkSession, S], dict[str, Any]],
    words: Sequence[str] | None = None,
    *,
    spark: bool = True,
) -> int:
    """
    Run a job.

    Args:
        doc: its help.
        kind: its settings; the name of their module is the job's.
        run: its work.
        words: its command line.
        spark: whether it needs a session; if not, `run` gets None.

    Returns:
        The exit code. A successful job ends without sys.exit, a failure on Databricks.
    """
    name, level = kind.__module__.rpartition(".")[2], "FATAL"
    try:
        found = parse_words(doc or "", kind, sys.argv[1:] if words is None else words)
        settings = load(kind, found, job_spark.secret)
        level = settings.log_level
        settings.options()
        if spark:
            versions.check("pyspark", "pyarrow")
        if found.dry_run:
            totals = look(name, settings)
        else:
            with session(name, settings) if spark else nullcontext() as made:
                begun = time.monotonic()
                totals = run(made, settings)  # type: ignore[arg-type]  # None if it needs no Spark
                totals["seconds"] = round(time.monotonic() - begun, 3)
    except Exception as error:  # noqa: BLE001 - the only place that reports a job's failure
        for line in sentence(error).splitlines() or [""]:
            print_line(f"{name}: {line}", sys.stderr)
        if level in TRACED:
            traceback.print_exc()
        return USAGE if isinstance(error, UNUSABLE) else FAILED
    print(json.dumps({"job": name, **totals}, ensure_ascii=False, default=str), flush=True)  # noqa: T201
    return FOUND if totals.get("found") else GOOD


def session(name: str, settings: Settings) -> AbstractContextManager[SparkSession]:
    """Give a Spark session, with Delta if the job needs it."""
    return job_spark.session(name, settings.log_level, delta=settings.needs_delta())


def sentence(error: BaseException) -> str:
    """
    The text to report of an error: our own message, if one of our errors is the cause.

    An error of an executor or of Spark's Python runner arrives only as text in a stack trace.
    """
    text = str(error)
    if isinstance(error, errors.SqlQueueError):
        return text
    for name, message in re.findall(r"sqlq_spark\.(?:\w+\.)*(\w+): (.+)", text):
        if hasattr(errors, name):
            return str(message)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'without a message'}"


def print_line(line: str, file: TextIO | None = None) -> None:
    """Print a line without control characters, because parts of it are untrusted."""
    print("".join(each if each.isprintable() else "·" for each in line), file=file)


# ---------------------------------------------------------------- dry run


def look(name: str, settings: Settings) -> dict[str, Any]:
    """
    Print what the job would do, and connect to everything that it needs. Changes nothing.

    Raises:
        SqlQueueError: something cannot be reached.
        BadSettings: a table that must exist does not.
    """
    for each, given in without_secrets(settings).items():
        print_line(f"{each} = {json.dumps(given, ensure_ascii=False, default=str)}")
    for options in settings.options():
        for line in look_at_database(options):
            print_line(line)
    if settings.tables() or type(settings).frame is not Settings.frame:
        with session(name, settings) as spark:
            for line in look_at_tables(spark, settings):
                print_line(line)
    return {"dryRun": True}


def look_at_tables(spark: SparkSession, settings: Settings) -> Iterator[str]:
    """Look at the tables, and let Spark check what the job would write."""
    for table, must in settings.tables().items():
        there = job_spark.has_table(spark, table)
        if must and not there:
            raise BadSettings(reason=f"table {table} does not exist, or is not a Delta table")
        yield f"table {table}: {'exists' if there else 'will be created'}"
    frame = settings.frame(spark)
    if frame is not None:
        yield "columns: " + ", ".join(f"{name} {kind}" for name, kind in frame.dtypes)


def look_at_database(options: SourceOptions | SinkOptions) -> Iterator[str]:
    """Connect to a database, and look at its state tables and queues."""
    if isinstance(options, SourceOptions):
        state, reads = options.transaction_mode != "none", options.addresses
        writes = [options.error_address]
    else:
        state, reads = options.delivery == "exactlyOnce", ()
        writes = [options.address, options.undeliverable_address]
    with (StateSession if state else Session)(options, "dry run") as session:
        connection = session.open()
        yield f"{connection.server}: reached"
        if state:
            yield f"state tables in schema {options.state_schema}: exist"
        with transaction(connection, timeout=options.query_timeout):
            for queue in reads:
                if not connection.columns(queue):
                    raise errors.QueueNotFound(
                        queue=connection.printed(queue), server=connection.server
                    )
                yield f"queue {connection.printed(queue)}: exists"
            for queue in (each for each in writes if each is not None):
                destinations = Destinations(connection, options.allowed, by_header=True)
                destinations.check([queue], RETURNED)
                yield f"queue {connection.printed(queue)}: can be sent to"
