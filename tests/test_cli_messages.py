"""`sqlqueue send`: where messages go, publishing, and what it says of it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from test_cli import orders, rows, run

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Place

__all__ = ["orders", "run"]  # the fixtures


@pytest.fixture
def heard(run: Any, orders: str, place: Place) -> list[str]:
    """Let the queue hear of Shop.OrderPlaced; give the words that name the table."""
    words = ["--subscription-table", f'"{place.schema}"."Subscriptions"']
    made = run("subscribe", "Shop.OrderPlaced", "--endpoint", "Lake", "--queue", orders, *words)
    assert made[0] == 0
    return words


def test_send_says_where_each_message_went(run: Any, orders: str, place: Place) -> None:
    """A line may have a queue of its own."""
    other = f'"{place.schema}"."Shop.Billing"'
    run("create", other)
    lines = [{"body": "1"}, {"body": "2", "queue": other}, {"body": "3", "queue": other}]
    text = "\n".join(map(json.dumps, lines))

    code, said, _ = run("send", orders, stdin=text)
    printed = json.loads(run("send", orders, "--json", stdin=text)[1])

    assert (code, said) == (0, f"1 message sent to {orders}; 2 messages sent to {other}\n")
    assert printed["queues"] == {orders: 1, other: 2}
    assert printed["sent"] == 3
    assert run("send", orders, stdin="\n")[1] == "no message sent\n"


def test_send_publishes_by_topic(run: Any, heard: list[str], place: Place, tmp_path: Path) -> None:
    """Of a file, and of standard input; the headers are those of an event."""
    path = tmp_path / "events"
    path.write_text('{"body": "1"}\n{"body": "2"}\n')

    code, said, _ = run("send", str(path), "--topic", "Shop.OrderPlaced", *heard)
    more = run(
        "send",
        "--topic",
        "Shop.Special",
        "--topic",
        "Shop.OrderPlaced",
        *heard,
        stdin='{"body": "3"}',
    )

    assert (code, said) == (0, "2 messages published\n")
    assert more[:2] == (0, "1 message published\n")
    headers = [each for each, _ in rows(place)]
    assert [body for _, body in rows(place)] == [b"1", b"2", b"3"]
    assert headers[0]["NServiceBus.EnclosedMessageTypes"] == "Shop.OrderPlaced"
    assert headers[2]["NServiceBus.EnclosedMessageTypes"] == "Shop.Special;Shop.OrderPlaced"
    assert headers[0]["NServiceBus.MessageIntent"] == "Publish"


def test_a_line_may_be_published(run: Any, orders: str, heard: list[str], place: Place) -> None:
    """Beside lines that are sent; what no one hears is told."""
    lines = [
        {"body": "sent"},
        {"body": "published", "topics": ["Shop.Special", "Shop.OrderPlaced"]},
        {"body": "unheard", "topics": ["Shop.Nothing"]},
    ]
    text = "\n".join(map(json.dumps, lines))

    code, said, error = run("send", orders, *heard, stdin=text)
    printed = json.loads(run("send", orders, *heard, "--json", stdin=text)[1])

    assert (code, said) == (0, f"2 messages published; 1 message sent to {orders}\n")
    assert "1 published messages had no subscriber" in error
    assert (printed["published"], printed["unheard"]) == (2, 1)
    assert sorted(body for _, body in rows(place)) == [b"published", b"published", b"sent", b"sent"]


@pytest.mark.parametrize(
    ("words", "line", "told"),
    [
        ((), "", "option QUEUE is missing: give a queue's name, or publish with --topic"),
        (("q", "file", "--topic", "Shop.A"), "", "expected a file of lines, but no QUEUE, with it"),
        (("--topic", "a;b"), '{"body": ""}', "a;b"),
        (("q",), '{"body": "", "topics": "Shop.A"}', "topics is not an array of texts"),
        (("q",), '{"body": "", "topics": [1]}', "topics is not an array of texts"),
        (("q",), '{"body": "", "topics": ["\\ud800"]}', "half of a surrogate pair"),
        (("q",), '{"body": "", "topics": ["A"], "queue": "q"}', "both a queue and topics"),
    ],
)
def test_what_cannot_be_published_is_told(
    run: Any, words: tuple[str, ...], line: str, told: str
) -> None:
    """Before anything is sent."""
    code, _, error = run("send", *words, stdin=line)

    assert code == 2
    assert told in error


def test_send_of_a_file_shows_on_a_terminal_how_far_it_is(
    run: Any, orders: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bytes while it is read, then in messages; not with --json."""
    path = tmp_path / "lines"
    path.write_text('{"body": "1"}\n' * 10)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")

    _, said, shown = run("send", orders, str(path))
    quiet = run("send", orders, str(path), "--json")[2]

    assert said == f"10 messages sent to {orders}\n"
    assert "140 of 140" in shown
    assert "10 of 10" in shown
    assert quiet == ""


def test_json_holds_nothing_that_a_terminal_obeys(run: Any, orders: str) -> None:
    """C1 controls, bidirectional ones and tags are escapes, which a program reads as they were."""
    body = "a\x9b31mb\u202ec\u2066d\u200be\x7ff\U000e0041g ä 😀"
    headers = {"k\u202e": "\x85\u2028"}
    line = json.dumps({"body": body, "headers": headers})
    assert run("send", orders, stdin=line)[0] == 0

    code, out, _ = run("browse", orders, "--json")

    assert code == 0
    assert out.removesuffix("\n").isprintable()
    assert "ä 😀" in out
    found = json.loads(out)
    assert found["body"] == body
    assert found["headers"].items() >= headers.items()
