"""A shell completes commands, options and the names of queues, and never hangs for them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from test_cli import run
from waiting import PATIENCE

from sqlq_spark.cli import completion
from sqlq_spark.cli.completion import queues

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from conftest import Place

__all__ = ["run"]  # the fixture


@pytest.fixture
def shop(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give a queue of the default schema, and one whose name a shell would have to quote."""
    name = f"{place.schema}.Shop"
    columns = "id uuid, expires timestamp, headers text, body bytea, seq bigint"
    place.sql(f'CREATE TABLE public."{name}" ({columns})')
    place.sql(f'CREATE TABLE public."{name} $(reboot)" ({columns})')
    place.sql(f'CREATE TABLE public."{name}.Other" (id uuid)')
    monkeypatch.setenv("SQLQUEUE_URL", place.url)
    yield name
    place.sql(f'DROP TABLE public."{name}", public."{name} $(reboot)", public."{name}.Other"')


def test_queues_are_completed(place: Place, shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their first letters; only names that a shell takes as they are."""
    monkeypatch.setattr(completion, "PATIENCE", PATIENCE)
    assert queues(place.schema) == [shop]
    assert queues("no such queue") == []


def test_a_shell_is_given_them(shop: str, place: Place) -> None:
    """As the script asks that --show-completion prints."""
    words = f"sqlqueue stats {place.schema}"
    asked = {"_SQLQUEUE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "2"}
    program = (
        f"from sqlq_spark.cli import completion, main; completion.PATIENCE = {PATIENCE}; "
        "import sys; sys.argv = ['sqlqueue']; main.main()"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout.split(), done.stderr) == ([shop], "")


def test_what_is_wrong_is_no_names_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No url, a bad one, no server, one that never answers: it would be waited for, for ever."""
    monkeypatch.delenv("SQLQUEUE_URL", raising=False)
    assert queues("") == []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for url in ("x://", "postgresql://127.0.0.1:1/x", f"postgresql://127.0.0.1:{port}/x"):
            monkeypatch.setenv("SQLQUEUE_URL", url)
            assert queues("") == []

    assert completion.PATIENCE <= 1


def test_the_script_for_a_shell_can_be_had(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By --show-completion, and put in place by --install-completion."""
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")

    code, script, _ = run("--show-completion", "bash")

    assert code == 0
    assert "complete -o default -F" in script
    assert "--install-completion" in run("--help")[1]
