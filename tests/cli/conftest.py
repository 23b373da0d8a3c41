"""A way to run commands, and the queue that they work on."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import pytest

from sqlq_spark.cli import main

from .commands import Result
from .database import address

if TYPE_CHECKING:
    from conftest import Place

    from .commands import Run


@pytest.fixture
def run(place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Give a way to run one command on the test's database."""
    monkeypatch.setenv("SQLQUEUE_URL", place.url)

    def run(*words: str, stdin: str | bytes = b"") -> Result:
        given = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        with pytest.raises(SystemExit) as ended:
            main.main(words)
        return Result(int(ended.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def state(place: Place) -> tuple[str, str]:
    """Give the words that name the schema of the state tables."""
    return "--state-schema", place.state


@pytest.fixture
def queue(place: Place, run: Run) -> str:
    """Give the address of a new queue."""
    made = address(place, "Shop.Orders")
    assert run("create", made).code == 0
    return made


@pytest.fixture
def orders(queue: str, run: Run, state: tuple[str, str]) -> str:
    """Give the address of a new queue, beside state tables."""
    assert run("install", *state).code == 0
    return queue
