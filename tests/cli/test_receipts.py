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


def test_show_finds_a_message_by_either_of_its_ids(
    run: Run, orders: str, place: Place, state: tuple[str, str]
) -> None:
    """With its receipt, its headers and the whole body; a body that is no text in base64."""
    lines = (
        f'{{"body": "{"x" * 500}", "headers": {{"NServiceBus.MessageId": "M-1"}}}}\n'
        '{"bodyBase64": "/w==", "headers": {"NServiceBus.MessageId": "M-2"}}'
    )
    run("send", orders, stdin=lines)
    ((row,),) = place.sql(f"SELECT id::text FROM {orders} WHERE headers LIKE '%M-1%'")
    received(place, messages=2)

    shown = run("receipts", "show", STREAM, "--message", "m-1", *state)
    by_row = run("receipts", "show", STREAM, "--message", row.upper(), "--json", *state).objects
    binary = run("receipts", "show", STREAM, "--message", "M-2", "--json", *state).objects
    absent = run("receipts", "show", STREAM, "--message", "M-3", *state)

    assert f"receipt: {STREAM}/1/0\n" in shown.out
    assert "NServiceBus.MessageId: M-1\n" in shown.out
    assert f"body: {'x' * 500}\n" in shown.out
    assert [(each["id"], each["receipt"]) for each in by_row] == [(row, f"{STREAM}/1/0")]
    assert [each["bodyBase64"] for each in binary] == ["/w=="]
    assert (absent.code, absent.out) == (1, "")
    assert "holds message M-3" in absent.err
    assert len(run("receipts", "list", "--json", *state).objects) == 1


def test_return_without_a_message_deletes_it(
    run: Run, orders: str, place: Place, words: tuple[str, ...]
) -> None:
    """The others are in the queue again, and no receipt is left."""
    sent = [f'{{"body": "{n}", "headers": {{"NServiceBus.MessageId": "M-{n}"}}}}' for n in range(3)]
    run("send", orders, stdin="\n".join(sent))
    received(place, messages=3)

    returned = run("receipts", "return", *words, "--without", "M-1", "--yes")

    assert returned.code == 0
    assert "and delete M-1 of them" in returned.out
    assert returned.out.endswith("2 messages returned\n")
    assert [body for _, body in messages(place, orders)] == [b"0", b"2"]
    assert place.sql(f"SELECT 1 FROM {place.state}.receipt") == []
    entries = place.sql(f"SELECT action, messages FROM {place.state}.trail ORDER BY entry")
    assert entries == [("return", 2), ("drop", 1)]
