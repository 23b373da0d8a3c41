"""First contact: each of its checks runs, and is as expected on every server that tests run on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from servers import only

from . import first_contact
from .first_checks import CHECKS, Seen

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Bench
    from .dotnet import DotNet

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
def test_a_check_is_as_expected(dotnet: DotNet, check: Callable[[Bench], Seen]) -> None:
    """Also a check for SQL Server alone runs its code here, and says what it saw."""
    found = first_contact.run(check, dotnet)

    assert found.ok, found


def test_an_error_is_what_was_seen(dotnet: DotNet, capsys: pytest.CaptureFixture[str]) -> None:
    """The other checks run all the same, and the report says which one failed."""

    def broken(bench: Bench) -> Seen:
        """It reads a table that is not there."""
        bench.dotnet.dba.count(bench.queue.__class__("absent", bench.dotnet.schema))
        raise AssertionError

    found = first_contact.run(broken, dotnet)

    assert not first_contact.report(broken, found)
    assert "NOT  broken: It reads a table" in capsys.readouterr().out


@only("postgresql", "a server for whose url no password is in the way")
def test_the_program_runs_from_the_command_line(dotnet: DotNet) -> None:
    """It finds the suite's own pieces, and leaves no schema behind."""
    schemas = "SELECT count(*) FROM pg_namespace"
    before = dotnet.execute(schemas)

    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.conformance.first_contact"),
            *("--url", dotnet.url, "--only", "locked_rows"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )

    assert done.returncode == 0, done.stderr
    assert "ok   locked_rows: A receive passes over" in done.stdout
    assert "1 of 1 checks are as expected" in done.stdout
    assert dotnet.execute(schemas) == before
