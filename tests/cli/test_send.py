"""`sqlqueue send` and `browse`: lines in, lines out, publishing and delays."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from sqlq_spark.wire.headers import (
    CONTENT_TYPE,
    DELIVER_AT,
    ENCLOSED_MESSAGE_TYPES,
    FORWARD_DESTINATION,
    MESSAGE_ID,
    MESSAGE_INTENT,
    REPLY_TO_ADDRESS,
    TIME_TO_BE_RECEIVED,
)

from .commands import json_lines
from .database import address, count, messages

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Place

    from .commands import Run


@pytest.fixture
def subscribed(run: Run, queue: str, place: Place) -> list[str]:
    """Subscribe the queue to Shop.OrderPlaced; give the words that name the table."""
    words = ["--subscription-table", address(place, "Subscriptions")]
    made = run("subscribe", "Shop.OrderPlaced", "--endpoint", "Lake", "--queue", queue, *words)
    assert made.code == 0
    return words


def test_send_reads_json_lines(run: Run, queue: str, place: Place) -> None:
    """Text is sent as it is, other values as JSON; a line's headers win over the options'."""
    text = (
        '{"body": "plain ä", "id": "m1"}\n\n'
        '{"body": {"a": [1, 2.5, null]}, "headers": {"k": "own"}, "timeToBeReceived": "00:01:00"}\n'
    )
    options = ("--message-type", "Shop.Placed", "--content-type", "application/json")
    sent = run("send", queue, *options, "--header", "k=v=w", stdin=text)

    (first, plain), (second, value) = messages(place, queue)
    assert sent == (0, f"2 messages sent to {queue}\n", "")
    assert (plain, value) == ("plain ä".encode(), b'{"a":[1,2.5,null]}')
    assert first[MESSAGE_ID] == "m1"
    assert first[ENCLOSED_MESSAGE_TYPES] == "Shop.Placed"
    assert first[CONTENT_TYPE] == "application/json"
    assert (first["k"], second["k"]) == ("v=w", "own")
    assert second[TIME_TO_BE_RECEIVED] == "00:01:00"


def test_a_lines_reply_address_is_written_as_endpoints_read_it(
    run: Run, queue: str, place: Place
) -> None:
    """Its canonical form; what cannot be one is refused by its line, and nothing is sent."""
    line = {"body": "", "replyToAddress": "Spark.In"}
    sent = run("send", queue, stdin=json.dumps(line))
    bad = run(
        "send", queue, stdin=f'{{"body": ""}}\n{json.dumps(line | {"replyToAddress": "a@b"})}'
    )

    assert (sent.code, bad.code) == (0, 2)
    assert "line 2 cannot be sent: column replyToAddress is 'a@b'" in bad.err
    assert [headers[REPLY_TO_ADDRESS] for headers, _ in messages(place, queue)] == [
        '"public"."Spark.In"'
    ]


def test_send_reads_a_file_as_one_body(run: Run, queue: str, place: Place, tmp_path: Path) -> None:
    """The bytes are sent unchanged."""
    path = tmp_path / "body"
    path.write_bytes(b"\xff\x00\n")

    sent = run("send", queue, "--file", str(path))

    assert sent == (0, f"1 message sent to {queue}\n", "")
    assert messages(place, queue)[0][1] == b"\xff\x00\n"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "it is not JSON"),
        ("[1]", "expected an object"),
        ("{}", "it has no body"),
        ('{"body": null}', "it has no body"),
        ('{"body": "", "bdoy": 1}', "'bdoy' is not known; expected one of body"),
        ('{"body": "", "id": 1}', "id is 1: expected text"),
        ('{"body": "", "headers": {"a": 1}}', "expected an object of texts"),
        ('{"body": "", "headers": {"a": "\\ud800"}}', "headers is {"),
        ('{"body": "\\ud800"}', "text without half of a surrogate pair"),
        ('{"body": "", "timeToBeReceived": "soon"}', "cannot be read"),
        ('{"body": "", "timeToBeReceived": 1}', "timeToBeReceived is 1: expected text"),
        ('{"bodyBase64": "?"}', 'bodyBase64 is "?": expected base64'),
        ('{"body": "", "topics": "Shop.A"}', "expected an array of texts"),
        ('{"body": "", "topics": [1]}', "topics is [1]: expected an array of texts"),
        ('{"body": "", "topics": ["\\ud800"]}', "expected an array of texts"),
        ('{"body": "", "topics": ["A"], "queue": "q"}', "both a queue and topics"),
        ('{"body": "", "delay": 1.5}', "delay is 1.5: expected text"),
        ('{"body": "", "delay": "-00:00:01"}', "delay '-00:00:01' is negative"),
        ('{"body": "", "delay": "1e9"}', "delay '1e9' cannot be read"),
        ('{"body": "", "delay": "9999999.00:00:00"}', "is longer than 365000.00:00:00"),
        ('{"body": "", "deliverAt": "2030-01-01T00:00:00"}', "expected a time with its zone"),
        ('{"body": "", "deliverAt": "soon"}', "expected a time with its zone"),
        ('{"body": "", "deliverAt": 20300101}', "expected a time with its zone"),
        ('{"body": "", "deliverAt": "0001-01-01T00:00:00+14:00"}', "outside of the years 1900 to"),
        ('{"body": "", "deliverAt": "9999-12-31T23:59:59-14:00"}', "outside of the years 1900 to"),
        (
            '{"body": "", "delay": "00:00:01", "deliverAt": "2030-01-01T00:00:00Z"}',
            "both deliverAt and delay",
        ),
        (
            '{"body": "", "delay": "00:00:01", "timeToBeReceived": "00:00:01"}',
            "cannot delay a message that expires",
        ),
    ],
)
def test_nothing_is_sent_if_one_line_is_wrong(run: Run, line: str, reason: str) -> None:
    """The error names the line, and counts blank ones; it comes before any connection."""
    nowhere = ("--url", "postgresql://127.0.0.1:1/shop")
    sent = run("send", "q", *nowhere, stdin=f'{{"body": "good"}}\n\n{line}\n')

    assert (sent.code, sent.out) == (2, "")
    assert sent.err.startswith("line 3 cannot be sent: ")
    assert reason in sent.err
    assert sent.err.endswith(". Nothing was sent.\n")


def test_lines_of_browse_can_be_sent_again(run: Run, queue: str, place: Place) -> None:
    """Headers and bodies of any bytes come back unchanged."""
    run("send", queue, stdin='{"body": "ä"}\n{"bodyBase64": "/wA="}\n{"body": ""}')
    before = messages(place, queue)

    run("send", queue, stdin=run("browse", queue, "--json").out)

    assert [body for _, body in before] == ["ä".encode(), b"\xff\x00", b""]
    assert messages(place, queue)[3:] == before


def test_browse_shows_the_lowest_messages_and_deletes_nothing(
    run: Run, queue: str, place: Place
) -> None:
    """It shows poison and null bodies too, and no markup or control character of a message."""
    lines = [{"body": "1"}, {"body": "2"}, {"body": "[red]x\x1b[2J\x07"}]
    run("send", queue, "--message-type", "A.B.Placed, X", stdin=json_lines(*lines))
    place.sql(f"INSERT INTO {queue} (id, headers) VALUES (gen_random_uuid(), '[]')")

    two = run("browse", queue, "--json", "--limit", "2").objects
    table = run("browse", queue).out

    assert [each["body"] for each in two] == ["1", "2"]
    assert "Placed" in table
    assert "(corrupt headers)" in table
    assert "[red]x·[2J·" in table
    assert count(place, queue) == 4


def test_json_holds_no_character_that_a_terminal_obeys(run: Run, queue: str) -> None:
    """C1 controls, bidirectional marks and tags are escaped, and a program reads them back."""
    body = "a\x9b31mb\u202ec\u2066d\u200be\x7ff\U000e0041g ä 😀"
    headers = {"k\u202e": "\x85\u2028"}
    assert run("send", queue, stdin=json_lines({"body": body, "headers": headers})).code == 0

    shown = run("browse", queue, "--json")

    assert shown.code == 0
    assert shown.out.removesuffix("\n").isprintable()
    assert "ä 😀" in shown.out
    assert shown.objects[0]["body"] == body
    assert shown.objects[0]["headers"].items() >= headers.items()


def test_send_reports_where_each_message_went(run: Run, queue: str, place: Place) -> None:
    """A line may name a queue of its own."""
    other = address(place, "Shop.Billing")
    run("create", other)
    text = json_lines({"body": "1"}, {"body": "2", "queue": other}, {"body": "3", "queue": other})

    sent = run("send", queue, stdin=text)
    (printed,) = run("send", queue, "--json", stdin=text).objects

    assert sent == (0, f"1 message sent to {queue}; 2 messages sent to {other}\n", "")
    assert printed["queues"] == {queue: 1, other: 2}
    assert printed["sent"] == 3
    assert run("send", queue, stdin="\n").out == "no message sent\n"


def test_send_publishes_by_topic(
    run: Run, queue: str, subscribed: list[str], place: Place, tmp_path: Path
) -> None:
    """A file or lines of standard input; the headers are those of an event."""
    path = tmp_path / "event"
    path.write_text("1")
    topics = ("--topic", "Shop.Special", "--topic", "Shop.OrderPlaced")

    of_file = run("send", "--file", str(path), "--topic", "Shop.OrderPlaced", *subscribed)
    of_input = run("send", *topics, *subscribed, stdin='{"body": "2"}\n{"body": "3"}')

    assert of_file == (0, "1 message published\n", "")
    assert of_input == (0, "2 messages published\n", "")
    headers = [each for each, _ in messages(place, queue)]
    assert [body for _, body in messages(place, queue)] == [b"1", b"2", b"3"]
    assert headers[0][ENCLOSED_MESSAGE_TYPES] == "Shop.OrderPlaced"
    assert headers[2][ENCLOSED_MESSAGE_TYPES] == "Shop.Special;Shop.OrderPlaced"
    assert headers[0][MESSAGE_INTENT] == "Publish"


def test_a_line_may_be_published(run: Run, queue: str, subscribed: list[str], place: Place) -> None:
    """Beside lines that are sent; an event without a subscriber is reported."""
    text = json_lines(
        {"body": "sent"},
        {"body": "published", "topics": ["Shop.Special", "Shop.OrderPlaced"]},
        {"body": "unheard", "topics": ["Shop.Nothing"]},
    )

    sent = run("send", queue, *subscribed, stdin=text)
    (printed,) = run("send", queue, *subscribed, "--json", stdin=text).objects

    assert sent[:2] == (0, f"2 messages published; 1 message sent to {queue}\n")
    assert "1 published message had no subscriber" in sent.err
    assert (printed["published"], printed["unheard"]) == (2, 1)
    assert sorted(body for _, body in messages(place, queue)) == [b"published"] * 2 + [b"sent"] * 2


def test_send_needs_no_queue_if_each_line_has_its_own(
    run: Run, queue: str, subscribed: list[str], place: Place
) -> None:
    """A line without a destination is named, and nothing is sent."""
    lines = json_lines({"body": "1", "queue": queue}, {"body": "2", "topics": ["Shop.OrderPlaced"]})

    sent = run("send", *subscribed, stdin=lines)
    refused = run("send", *subscribed, stdin=f'{lines}\n{{"body": "3"}}')

    assert sent == (0, f"1 message published; 1 message sent to {queue}\n", "")
    assert sorted(body for _, body in messages(place, queue)) == [b"1", b"2"]
    assert refused.code == 2
    assert refused.err.startswith("line 3 cannot be sent: queue is null, topics too, and ")


def test_lines_may_be_delayed(run: Run, queue: str, place: Place) -> None:
    """By a span or until a moment; the others are sent at once."""
    run("create", queue, "--delayed")
    delayed = address(place, "Shop.Orders.Delayed")
    text = json_lines(
        {"body": "a", "delay": "01:00:00"},
        {"body": "b", "delay": "00:00:05"},
        {"body": "c", "deliverAt": "2345-06-07T10:09:10.111213+02:00"},
        {"body": "d"},
    )

    sent = run("send", queue, stdin=text)

    assert sent == (0, f"4 messages sent to {queue}, 3 of them delayed\n", "")
    assert [body for _, body in messages(place, queue)] == [b"d"]
    waiting = place.sql(f"SELECT body, headers, due::text FROM {delayed} ORDER BY body")
    assert [bytes(body) for body, _, _ in waiting] == [b"a", b"b", b"c"]
    _, headers, due = waiting[-1]
    assert json.loads(headers)[DELIVER_AT] == "2345-06-07 08:09:10:111213 Z"
    assert json.loads(headers)[FORWARD_DESTINATION] == queue
    assert due.startswith("2345-06-07 08:09:10.111213")


def test_send_of_a_file_shows_its_progress_on_a_terminal(
    run: Run, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with --json."""
    path = tmp_path / "lines"
    path.write_text('{"body": "1"}\n' * 10)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")

    sent = run("send", queue, str(path))
    quiet = run("send", queue, str(path), "--json")

    assert sent.out == f"10 messages sent to {queue}\n"
    assert "10 of 10" in sent.err
    assert quiet.err == ""
