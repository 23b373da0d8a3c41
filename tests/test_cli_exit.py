"""
Exit codes of every command: 1 found, 2 usage, 3 the database.

That what is done is 0 stands in test_cli_json.py, of every command too; 130 in test_cli_stop.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from test_cli import run
from test_cli_json import CALLS, filled, place, ready, shared
from test_cli_options import COMMANDS, options

if TYPE_CHECKING:
    from conftest import Place

__all__ = ["place", "ready", "run", "shared"]  # the fixtures

CONNECTING = [name for name in sorted(COMMANDS) if "--url" in options(name)]


def told(name: str, words: dict[str, str]) -> list[str]:
    """The words of a call; a report is asked for something."""
    return [*filled(CALLS[name][0], words), *(["--json"] if name == "report" else [])]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_what_cannot_be_meant_is_2(run: Any, name: str) -> None:
    """Nothing is connected for it."""
    code, printed, error = run(*name.split(), "--no-such-option")

    assert (code, printed) == (2, "")
    assert "--no-such-option" in error


@pytest.mark.parametrize("name", CONNECTING)
def test_a_database_that_is_not_there_is_3(run: Any, name: str) -> None:
    """Where it is stands in the one sentence that says so."""
    words = {"QUEUE": "q", "STATE": "s", "TABLE": "t"}
    url = "postgresql://127.0.0.1:1/shop"

    code, printed, error = run(*name.split(), *told(name, words), "--url", url)

    assert (code, printed) == (3, "")
    assert error.startswith("no connection to postgresql://127.0.0.1:1/shop: ")
    assert len(error.splitlines()) == 1


def test_what_is_found_or_refused_is_1(run: Any, ready: dict[str, str]) -> None:
    """Something to fix, nothing to work on, or a no."""
    nobody = ("--stream", "nobody", "--state-schema", "STATE", "--yes")
    for call in (
        ("doctor", "QUEUE", "--state-schema", "STATE"),
        ("unsubscribe", "a", "--endpoint", "b", "--subscription-table", "TABLE"),
        ("receipts", "return", *nobody),
        ("receipts", "drop", *nobody),
        ("purge", "QUEUE"),  # the answer is no
    ):
        assert run(*filled(call, ready), stdin="no\n")[0] == 1, call


def test_no_answer_is_a_no(run: Any, ready: dict[str, str], place: Place) -> None:
    """A script without --yes destroys nothing, and hears what it lacks."""
    code, _, error = run("purge", ready["OTHER"], stdin="")

    assert code == 1
    assert error.endswith("nothing was done (standard input gives no answer: use --yes)\n")
    assert place.sql(f"SELECT count(*) FROM {ready['OTHER']}") == [(4,)]
