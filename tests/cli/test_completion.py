"""A shell completes commands, options and the names of queues, and never hangs for them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from waiting import PATIENCE

from sqlq_spark.cli import completion
from sqlq_spark.cli.completion import queues

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Place

    from .commands import Run


@pytest.fixture
def shop(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give a queue of the default schema, beside one whose name a shell would have to quote."""
    name = f"{place.schema}.Shop"
    names = {name: "queue", f"{name} $(reboot)": "queue", f"{name}.Other": "another table"}
    for table, kind in names.items():
        rest = ", expires timestamp, headers text, body bytea, seq bigint" * (kind == "queue")
        place.sql(f'CREATE TABLE public."{table}" (id uuid{rest})')
    monkeypatch.setenv("SQLQUEUE_URL", place.url)
    yield name
    for table in names:
        place.sql(f'DROP TABLE public."{table}"')


def test_a_shell_completes_the_names_of_queues(
    shop: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their first letters, as the installed script asks; only names that need no quotes."""
    monkeypatch.setattr(completion, "PATIENCE", PATIENCE)
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
    assert queues(place.schema) == [shop]
    assert queues("no such queue") == []


def test_a_failure_completes_nothing_and_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No url, a bad one, no server, and one that never answers."""
    monkeypatch.delenv("SQLQUEUE_URL", raising=False)
    assert queues("") == []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for url in ("x://", "postgresql://127.0.0.1:1/x", f"postgresql://127.0.0.1:{port}/x"):
            monkeypatch.setenv("SQLQUEUE_URL", url)
            assert queues("") == []

    assert completion.PATIENCE <= 1


def test_the_script_for_a_shell_is_printed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """By --show-completion; --install-completion installs it."""
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")

    script = run("--show-completion", "bash")

    assert script.code == 0
    assert "complete -o default -F" in script.out
    assert "--install-completion" in run("--help").out
