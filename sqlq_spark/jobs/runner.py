"""
Runs a job: reads its settings, does its work or a dry run, and prints its totals.

A job is a module with a docstring, a frozen dataclass of settings (settings.py) and a function
`run(spark, settings)`, which returns totals. `Job` does the rest. Exit codes:

- 0: The job is done.
- 1: The job found something: `found` in its totals is true (maintenance and triage).
- 2: The usage or a setting is wrong.
- 3: The database or Spark failed.

An error is reported on standard error. The totals are the last line of standard output, as JSON.
"""

from __future__ import annotations

import json
import re
import sys
import time
import traceback
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from sqlq_spark import errors, versions
from sqlq_spark.admin import doctor
from sqlq_spark.admin.formats import escape_unencodable, write_utf_8
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.jobs.settings import BadSettings, Settings, load_settings, show_value, values_of
from sqlq_spark.log import set_up
from sqlq_spark.options import SourceOptions
from sqlq_spark.send.insert import check_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

GOOD, FOUND_PROBLEMS, USAGE, FAILED = 0, 1, 2, 3  # exit codes
# After one of these errors the exit code is 2: a user must change something before the next run.
UNUSABLE = (
    errors.BadInput,
    errors.MissingPackage,
    errors.MissingDriver,
    errors.MissingDelta,
    versions.NoJava,
    errors.UnsupportedVersion,
)


@dataclass(frozen=True)
class Job:
    """A job as a program: the `main` of its module, which is an entry point of the wheel."""

    doc: str | None  # the text of --help
    kind: type[Settings]  # the name of its module is the name of the job
    run: Callable[[Any, Any], dict[str, Any]]  # does the work, with a Spark session and settings
    spark: bool = True  # whether the job needs a Spark session; if not, `run` gets None

    def __call__(self) -> None:
        """
        Run the job, with the flags of the command line.

        Raises:
            SystemExit: the code is not 0. Databricks reports every SystemExit as a failed task,
                even with code 0, and ignores what an entry point returns.
        """
        if code := self.main(sys.argv[1:]):
            sys.exit(code)

    def main(self, words: Sequence[str]) -> int:
        """Run the job with these flags, and return its exit code."""
        name = self.kind.__module__.rpartition(".")[2]
        level = "FATAL"
        escape_unencodable()
        set_up()
        try:
            if self.spark:
                versions.check_versions("pyspark", "pyarrow")
            settings, dry_run = load_settings(self.doc, self.kind, words)
            level = settings.log_level
            settings.options()
            session: Any = nullcontext()
            if self.spark:
                from sqlq_spark.jobs import streams  # noqa: PLC0415 - pyspark is an extra

                session = streams.session(name, settings)
            with session as spark:
                begun = time.monotonic()
                totals = do_dry_run(spark, settings) if dry_run else self.run(spark, settings)
                totals["seconds"] = round(time.monotonic() - begun, 3)
        except Exception as error:  # noqa: BLE001 - the only place that reports a job's failure
            for line in describe_failure(error).splitlines() or [""]:
                print_line(f"{name}: {line}", sys.stderr)
            if level not in {"OFF", "FATAL"}:
                traceback.print_exc()
            return USAGE if isinstance(error, UNUSABLE) else FAILED
        write_utf_8()
        print(json.dumps({"job": name, **totals}, ensure_ascii=False, default=str), flush=True)  # noqa: T201
        return FOUND_PROBLEMS if totals.get("found") else GOOD


def describe_failure(error: BaseException) -> str:
    """
    Return the text to report for an error. If an error of this package is the cause, it is that.

    An error of an executor or of Spark's Python runner arrives only as text in a stack trace.
    """
    text = str(error)
    if isinstance(error, errors.SqlQueueError):
        return text
    for name, message in re.findall(r"sqlq_spark\.(?:\w+\.)*(\w+): (.+)", text):
        if hasattr(errors, name):
            return str(message)
    text = re.sub(
        r"\AAn error occurred while calling \S+\n: ", "", text.strip()
    )  # Py4J's beginning
    first = text.partition("\n")[0].strip()
    return f"{type(error).__name__}: {first or 'without a message'}"


def print_line(line: str, file: TextIO | None = None) -> None:
    """Print a line without control characters, because parts of it are untrusted."""
    print(errors.clean(line), file=file)


# ---------------------------------------------------------------- dry run


def do_dry_run(spark: SparkSession | None, settings: Settings) -> dict[str, Any]:
    """
    Print the settings and what the job would do, with the checks that streams and writes do first.

    Raises:
        SqlQueueError: something cannot be reached or used.
        BadSettings: a table that must exist does not.
    """
    for name, given in values_of(settings).items():
        print_line(f"{name} = {show_value(name, given)}")
    for options in settings.options():
        check: Any = check_tables
        if isinstance(options, SourceOptions):
            check, state = doctor.at_start, options.transaction_mode != "none"
        else:
            state = options.delivery == "exactlyOnce"
        with (StateSession if state else Session)(options, "dry run") as session:
            check(session.open(), options)
            print_line(f"{session.open().server}: all that the options name can be used")
    if spark is not None:
        from sqlq_spark.jobs import streams  # noqa: PLC0415 - pyspark is an extra

        if table := getattr(settings, "table", ""):
            there = streams.has_table(spark, table)
            if settings.needs_table() and not there:
                raise BadSettings(reason=f"table {table} does not exist, or is not a Delta table")
            print_line(f"table {table}: {'exists' if there else 'will be created'}")
        if (frame := settings.frame(spark)) is not None:
            print_line("columns: " + ", ".join(f"{name} {kind}" for name, kind in frame.dtypes))
    return {"dryRun": True}
