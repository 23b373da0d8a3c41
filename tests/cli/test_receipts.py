"""`sqlqueue receipts`: list, return and drop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .database import STREAM, messages, received

if TYPE_CHECKING:
    from conftest import Place

    from .commands import Run


@pytest.fixture
def words(state: tuple[str, str]) -> tuple[str, ...]:
    """Give the words that name the stream."""
    return "--stream", STREAM, *state


@pytest.fixture
def two(run: Run, orders: str, place: Place) -> str:
    """Give a queue whose two messages are in two receipts of a stream."""
    run("send", orders, stdin='{"body": "1"}\n{"body": "2"}')
    for batch in (1, 2):
        received(place, messages=1, batch=batch)
    return orders


def test_return_puts_messages_back_unchanged(
    run: Run, orders: str, place: Place, words: tuple[str, ...]
) -> None:
    """Ids, headers and bodies; only seq is new."""
    run("send", orders, stdin='{"body": "1"}\n{"body": "2"}')
    whole = f"SELECT id, expires, headers, body FROM {orders} ORDER BY seq"
    before = place.sql(whole)
    received(place, messages=10)
    assert place.sql(whole) == []
    ((queue,),) = place.sql(f"SELECT queue FROM {place.state}.stream")

    returned = run("receipts", "return", *words, "--yes")

    assert returned.code == 0
    assert f"This will return 2 messages of 1 receipt to {queue}." in returned.out
    assert returned.out.endswith("2 messages returned\n")
    assert place.sql(whole) == before
    assert run("receipts", "return", *words, "--yes").code == 1


def test_return_takes_one_batch_if_it_is_named(
    run: Run, two: str, place: Place, words: tuple[str, ...], state: tuple[str, str]
) -> None:
    """The other receipt stays, and is not returned once it is settled."""
    assert run("receipts", "return", *words, "--batch", "2", "--task", "0", "--yes").code == 0

    left = run("receipts", "list", "--json", *state).objects
    assert [body for _, body in messages(place, two)] == [b"2"]
    assert [each["batch"] for each in left] == [1]
    place.sql(f"UPDATE {place.state}.receipt SET settled = true")
    settled = run("receipts", "return", *words, "--yes")
    assert settled.code == 1
    assert "is settled" in settled.err
    assert len(messages(place, two)) == 1


def test_drop_deletes_only_after_a_yes(
    run: Run, two: str, words: tuple[str, ...], state: tuple[str, str]
) -> None:
    """It says what it will delete, and asks."""
    refused = run("receipts", "drop", *words, stdin="n\n")
    kept = run("receipts", "list", two, "--json", *state).objects
    agreed = run("receipts", "drop", *words, stdin="y\n")

    assert (refused.code, agreed.code) == (1, 0)
    assert "This will delete 2 messages of 2 receipts permanently." in refused.out
    assert [each["messages"] for each in kept] == [1, 1]
    assert run("receipts", "list", "--json", *state).out == ""
