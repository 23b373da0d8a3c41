"""A way to run commands, and the queue that they work on."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import pytest

from sqlq_spark.cli import main

from .commands import COMMANDS, Result, options
from .database import address

if TYPE_CHECKING:
    from conftest import Place

    from .commands import Run


@pytest.fixture
def run(place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Give a way to run one command on the test's database."""
    monkeypatch.setenv("SQLQUEUE_URL", place.url)
    names = {
        "--state-schema": place.state,
        "--subscription-table": address(place, "SubscriptionRouting"),
    }

    def run(*words: str, stdin: str = "", own: bool = True) -> Result:
        name = " ".join(words[: 2 if words[0] in {"receipts", "streams"} else 1])
        known, given = options(name) if name in COMMANDS else set(), list(words)
        for option, value in names.items() if own and "--url" in known else ():
            given += [option, value] if option in known - {*words} else []
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main.main(given)
        return Result(int(ended.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def orders(place: Place, run: Run) -> str:
    """Give the address of a new queue, beside state tables."""
    made = address(place, "Shop.Orders")
    assert run("create", made).code == run("install").code == 0
    return made
