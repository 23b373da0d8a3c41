"""
A third dialect runs: PostgreSQL's under another name, with its own addresses and urls.

It is in a copy of the package, made by the steps of CONTRIBUTING. Code that knows its databases by
name, or takes their notation for the only one, fails here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from filecmp import cmp
from typing import TYPE_CHECKING

import pytest
from pages.page import ROOT
from script_texts import golden
from servers import VARIABLE as SQLSERVER_VARIABLE
from third.build import build, steps

from sqlq_spark.testing.queues import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Place

LIMIT = 600  # seconds of a program; a busy machine may need five times the usual
# What differs between dialects of one server is names, addresses and where statements are found.
# These files show it in some seconds. All files run with SQLQ_THIRD_DIALECT=whole, without the two
# tests that kill a session at each statement, a fifth of the time.
WHOLE = os.environ.get("SQLQ_THIRD_DIALECT") == "whole"
FILES = ("wire", "subscriptions", "delayed")
SUITE = "third and not session_lost"
SELFTEST = """
import sys
from sqlq_spark.admin import selftest
from sqlq_spark.cli.main import main

selftest.LARGE_ROWS, selftest.MEASURED, selftest.FILLED = 1000, 1000, 100
sys.argv[0] = "sqlqueue"
sys.exit(main())
"""
# an address → the table that `failure` finds in it
TABLES = {
    "shop/Orders": "Orders",
    '"a/b"/"Shop ""Orders"""': 'Shop "Orders"',
    'shop/"a, b"': "a, b",
    '"shop"."Orders"': "Orders",
    "Orders@[shop]": "Orders",
    "Orders": "Orders",
    "a/b/c": "a/b/c",
}
FUNCTIONS = """
import json, sys
from pyspark.sql import SparkSession
from sqlq_spark.functions import fail
from sqlq_spark.wire.headers import PROCESSING_ENDPOINT

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
queues = json.loads(sys.argv[1])
rows = [(each, b"", "{}", "7") for each in queues]
frame = spark.createDataFrame(rows, "queue string, body binary, headers string, id string")
made = frame.select("queue", *fail("type", "text", json=True)).collect()
print(json.dumps({row.queue: json.loads(row.headers)[PROCESSING_ENDPOINT] for row in made}))
"""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of the copy."""
    folder = tmp_path_factory.mktemp("third")
    build(folder)
    return folder


def run(folder: Path, *args: str, **environ: str) -> str:
    """Run a program of the copy, and return what it printed."""
    done = subprocess.run(
        [sys.executable, *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), SQLSERVER_VARIABLE: "none", **environ},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-10_000:]
    return done.stdout


def files(folder: Path) -> Iterator[str]:
    for name in ("sqlq_spark", "tests"):
        for path in (folder / name).rglob("*.*"):
            if path.is_file() and path.suffix in {".py", ".sql", ".html"}:
                yield path.relative_to(folder).as_posix()


def test_the_steps_of_the_page_make_a_dialect_and_change_nothing_else(copied: Path) -> None:
    """Every file that is new or differs is in the tables, and every file of the tables is one."""
    changed = {
        name
        for name in files(copied)
        if not (ROOT / name).exists() or not cmp(ROOT / name, copied / name, shallow=False)
    }
    named = steps()

    assert [name for name in changed if not any(map(name.startswith, named))] == []
    assert [name for name in named if not any(each.startswith(name) for each in changed)] == []
    printed = run(copied, "-c", "import sqlq_spark; print(sqlq_spark.__file__)")
    assert printed.strip() == str(copied / "sqlq_spark" / "__init__.py")


@pytest.mark.timeout(2 * LIMIT)
def test_the_conformance_suite_passes(copied: Path, server: str) -> None:
    """It runs with the third endpoint, which writes addresses in its own notation."""
    folder = "tests/conformance"
    places = [folder] if WHOLE else [f"{folder}/test_{name}.py" for name in FILES]
    words = ("pytest", "-q", "-k", SUITE, *places)

    said = run(copied, "-m", *words, **{VARIABLE: server})

    passed = re.search(r"^(\d+) passed, \d+ deselected in", said, flags=re.MULTILINE)
    assert passed is not None, said[-2000:]
    assert int(passed[1]) > (200 if WHOLE else 20)


def test_the_selftest_passes(copied: Path, place: Place, tmp_path: Path) -> None:
    """Each check passes, with roles and logins."""
    url = place.superuser.replace("postgresql://", "slashed://", 1)
    report = tmp_path / "report.json"
    words = ("selftest", "--roles", "--yes", "--url", url, "--file", str(report))

    run(copied, "-c", SELFTEST, *words)

    checks = json.loads(report.read_text("utf-8"))["checks"]
    assert len(checks) > 8
    assert {check["outcome"] for check in checks} == {"passed"}


def test_the_commands_take_and_print_its_addresses(copied: Path, place: Place) -> None:
    """The commands run from `create` to `retire`, with delayed messages and a subscription."""
    url = place.url.replace("postgresql://", "slashed://", 1)
    queue, state = f"{place.schema}/Shop.Orders", ("--state-schema", place.state)
    routing = ("--subscription-table", f"{place.schema}/Routing")
    message = copied / "message.json"
    message.write_text("{}", "utf-8")

    def command(*words: str) -> str:
        return run(copied, "-m", "sqlq_spark", *words, SQLQUEUE_URL=url)

    assert queue in command("create", queue, "--delayed")
    command("install", *state)
    command("subscribe", "Shop.Event", "--endpoint", "Lake", "--queue", queue, *routing)
    command("send", queue, "--file", str(message))
    command("send", "--topic", "Shop.Event", "--file", str(message), *routing)
    assert queue in command("stats", queue, *state)
    assert "no problem" in command("doctor", queue, *state, *routing)
    assert len(command("browse", queue, "--json").splitlines()) == 2
    command("purge", queue, "--yes")
    command("send", queue, "--file", str(message))
    command("retire", queue, "--discard-messages", "--yes", *state, *routing)

    assert place.sql("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'Shop.%%'") == [(0,)]


def test_the_script_is_that_of_the_same_server(copied: Path) -> None:
    """SQL has names as the server writes them, whatever the notation of addresses."""
    assert run(copied, "tests/script_texts.py", "third") == golden("postgresql")
    words = ("script", "sales/Shop", "--dialect", "third")
    assert '"sales"."Shop"' in run(copied, "-m", "sqlq_spark", *words)


@pytest.mark.spark
def test_the_functions_read_its_addresses(copied: Path) -> None:
    """The endpoint of a failure is the table of the address, in the notation of any database."""
    said = run(copied, "-c", FUNCTIONS, json.dumps([*TABLES]))

    assert json.loads(said.splitlines()[-1]) == TABLES
