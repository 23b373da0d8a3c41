"""`sqlqueue purge` and `purge-expired`: what they delete, after which question."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from .database import count

if TYPE_CHECKING:
    from conftest import Place

    from .commands import Run


@pytest.fixture
def three(run: Run, queue: str) -> str:
    """Give a queue of three messages, two of them expired."""
    line = '{"body": "2", "timeToBeReceived": "00:00:00"}\n'
    run("send", queue, stdin=f'{{"body": "1"}}\n{line}{line}')
    return queue


def test_purge_deletes_only_after_a_yes(run: Run, place: Place, three: str) -> None:
    """It says how many messages it will delete, and asks."""
    refused = run("purge", three, stdin="n\n")
    no_answer = run("purge", three, stdin="")
    kept = count(place, three)
    agreed = run("purge", three, stdin="y\n")

    assert (refused.code, no_answer.code, agreed.code) == (1, 1, 0)
    assert f"This will delete 3 messages of {three} permanently." in refused.out
    assert no_answer.err.endswith("nothing was done; --yes answers the question\n")
    assert kept == 3
    assert agreed.out.endswith("3 messages deleted\n")
    assert count(place, three) == 0
    assert run("purge", three) == (0, "0 messages deleted\n", "")


def test_purge_expired_deletes_only_expired_messages(
    run: Run, place: Place, three: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reports how many, and shows its progress on a terminal, on standard error."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")

    purged = run("purge-expired", three)
    again = run("purge-expired", three, "--json")

    assert purged[:2] == (0, f"2 expired messages deleted from {three}\n")
    assert "2 of 2" in purged.err
    assert again.objects == [{"queue": three, "deleted": 0}]
    assert count(place, three) == 1
