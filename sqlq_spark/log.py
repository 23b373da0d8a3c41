"""
The package's logger, its lines, and warnings that a process logs only once.

Each record has the fields `query` and `batch`: the name or id of Spark's query, and Spark's number
of the batch. They are `-` where they are not known, for example in a command.

A job, a command and the processes that Spark starts print lines with time, level and logger, unless
logging is set up there already. In a user's session nothing is set up: its own logging decides.
"""

from __future__ import annotations

import logging
import time
from contextvars import ContextVar
from functools import cache
from typing import TextIO

from sqlq_spark.errors import clean

log = logging.getLogger("sqlq_spark")
# Spark makes several readers and writers in one process, and each of them would log the warning.
warn_once = cache(log.warning)

FORMAT = (
    "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s query=%(query)s batch=%(batch)s: %(message)s"
)
TIME = "%Y-%m-%dT%H:%M:%S"
UNKNOWN = "-"

_query: ContextVar[str] = ContextVar("query", default=UNKNOWN)
_batch: ContextVar[str] = ContextVar("batch", default=UNKNOWN)


def _complete(record: logging.LogRecord) -> bool:
    """Add the fields, and replace control characters, so that no name begins a new line."""
    if isinstance(record.args, tuple):
        record.args = tuple(clean(arg) if isinstance(arg, str) else arg for arg in record.args)
    record.query = _query.get()
    record.batch = _batch.get()
    return True


def name_batch(query: str | None, number: int | None = None) -> None:
    """Set the query and the batch of the lines that follow in this thread."""
    # others may have named the query
    _query.set(UNKNOWN if query is None else clean(query))
    _batch.set(UNKNOWN if number is None else str(number))


class LineHandler(logging.StreamHandler[TextIO]):
    """Prints the package's lines, where nobody has set up logging."""


@cache
def set_up() -> None:
    """
    Print the package's lines on standard error, in a process of ours or of Spark.

    Does nothing if the process has set up logging.
    """
    if not log.hasHandlers():
        formatter = logging.Formatter(FORMAT, TIME)
        formatter.converter = time.gmtime
        handler = LineHandler()
        handler.setFormatter(formatter)
        log.addHandler(handler)


def silence_retries() -> None:
    """
    Leave out the lines of the library that retries, where the package prints its own lines.

    The library's lines do not say what failed, and the package logs that. In a user's session they
    stay, because the user's code may use that library too.
    """
    if any(isinstance(handler, LineHandler) for handler in log.handlers):
        from stamina import instrumentation  # noqa: PLC0415 - it imports asyncio

        instrumentation.set_on_retry_hooks(())


log.addFilter(_complete)
