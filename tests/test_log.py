"""The lines of the log: their form, their fields, and where nothing is set up."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from typing import TYPE_CHECKING

from sqlq_spark.log import log, name_batch

if TYPE_CHECKING:
    import pytest

LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING sqlq_spark query=(\S+) batch=(\S+): (.*)"
)


def run(program: str) -> str:
    """Run a program in a process of its own; return its standard error."""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stderr


def test_a_process_without_logging_prints_lines_with_time_and_batch() -> None:
    """A name in a message or of a query begins no new line."""
    said = run(
        "from sqlq_spark.log import log, name_batch, set_up\n"
        "set_up()\n"
        "log.warning('%s: no batch', 'orders')\n"
        "name_batch('night\\nly', 7)\n"
        "log.warning('%s: a batch', 'or\\nders')\n"
        "log.info('not shown')\n"
    )

    found = [LINE.fullmatch(line) for line in said.splitlines()]
    assert [line and line.groups() for line in found] == [
        ("-", "-", "orders: no batch"),
        ("night·ly", "7", "or·ders: a batch"),
    ]


def test_a_process_that_has_set_up_logging_keeps_it() -> None:
    """The record has the fields, for a format of its own."""
    said = run(
        "import logging\n"
        "logging.basicConfig(format='%(name)s %(query)s/%(batch)s %(message)s')\n"
        "from sqlq_spark.log import log, name_batch, set_up\n"
        "set_up()\n"
        "name_batch('nightly', 7)\n"
        "log.warning('text')\n"
    )

    assert said == "sqlq_spark nightly/7 text\n"


def test_retries_have_no_line_without_a_message() -> None:
    """The library's own lines are left out where the package prints its lines."""
    program = (
        "from sqlq_spark.log import set_up, silence_retries\n"
        "{}\n"
        "silence_retries()\n"
        "import stamina\n"
        "try:\n"
        "    for attempt in stamina.retry_context(on=ValueError, attempts=2, wait_initial=0.001):\n"
        "        with attempt: raise ValueError\n"
        "except ValueError: pass\n"
    )

    assert run(program.format("set_up()")) == ""
    assert "stamina.retry_scheduled" in run(program.format("pass"))


def test_a_record_has_the_fields(caplog: pytest.LogCaptureFixture) -> None:
    """The fields hold the query and the batch that `name_batch` set in the thread."""
    name_batch("nightly", 3)
    log.warning("text")
    name_batch(None)
    log.warning("text")

    found = [(vars(each)["query"], vars(each)["batch"]) for each in caplog.records]
    assert found == [("nightly", "3"), ("-", "-")]
    assert all(each.levelno == logging.WARNING for each in caplog.records)
