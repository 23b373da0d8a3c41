"""
What `sqlqueue send` does: reads JSON lines into rows, inserts the messages, and counts them.

A line is an object with `body` and optionally the other columns that a DataFrame may have.
A text body is sent unchanged. Any other JSON value is serialised without spaces.
The output of `sqlqueue browse --json` can be sent again.
"""

from __future__ import annotations

import base64
import binascii
import json
import sys
from collections import Counter
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.admin.formats import quantity
from sqlq_spark.cli.screen import progress, say_error
from sqlq_spark.database import transaction
from sqlq_spark.errors import BadInput, BadMessage, BadOption
from sqlq_spark.send import delayed
from sqlq_spark.send.frame import IGNORED, MOMENT, TOPICS, WRITTEN
from sqlq_spark.send.insert import Inserts, rows_by_queue
from sqlq_spark.send.publish import describe_without_subscriber, topics_of
from sqlq_spark.send.sender import Sender
from sqlq_spark.wire.headers import LONGEST_DELAY, BadTimeSpan, format_span, span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from sqlq_spark.database.sessions import Session
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.wire.address import QueueAddress

STEP = 1 << 20  # bytes of a file after which the bar moves
BATCH = 5_000  # lines
TEXTS = ("id", "correlationId", "replyToAddress", "queue")
FIELDS = (*WRITTEN, "bodyBase64")
KNOWN = {*FIELDS, *IGNORED}

HOMELESS = "it has neither queue nor topics, and the command has neither QUEUE nor --topic"

SCHEMA = pa.schema(
    [
        pa.field("body", pa.binary()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("timeToBeReceived", pa.string()),
        pa.field("delay", pa.string()),
        pa.field("deliverAt", MOMENT),
        pa.field("topics", TOPICS),
        *(pa.field(name, pa.string()) for name in TEXTS),
    ]
)


class BadLine(BadInput):
    """A line cannot become a message. Nothing was sent."""

    template = "line {line} cannot be sent: {reason}. Nothing was sent."


def make_sender(session: Session, options: SinkOptions) -> Sender:
    """What turns rows into messages."""
    return Sender(
        options=options,
        partition=0,
        own_address=lambda address: session.open().canonical(address),
        rows_choose=True,
    )


def insert(
    session: Session, chunks: Iterable[pa.Table], options: SinkOptions, sent: Sent, *, quiet: bool
) -> None:
    """Insert all messages in one transaction, and count those that nobody is subscribed to."""
    # no retry: if the answer to a commit is lost, a retry would send twice
    connection = session.open()
    with (
        progress("message", sent.messages, quiet=quiet) as advance,
        transaction(connection, timeout=options.query_timeout),
    ):
        inserts = Inserts(connection, options)
        for chunk in chunks:
            inserts.insert(chunk)
            advance(chunk.num_rows)
        inserts.destinations.confirm()
    sent.without_subscriber += inserts.without_subscriber
    sent.printed = connection.printed


class Sent:
    """How many messages some chunks hold, for the summary."""

    def __init__(self, chunks: Iterable[pa.Table], options: SinkOptions) -> None:
        self.queues: Counter[QueueAddress] = Counter()
        self.printed = options.naming.print_address  # how the summary names a queue
        self.without_subscriber: Counter[str] = Counter()  # lists of topics
        self.messages = self.published = self.delayed = 0
        for chunk in chunks:
            self.messages += chunk.num_rows
            later, topics = delayed.find_waiting(chunk), topics_of(chunk)
            self.delayed += 0 if later is None else pc.sum(later).as_py()
            self.published += 0 if topics is None else len(topics) - topics.null_count
            for queue, own in rows_by_queue(chunk, options).items():
                self.queues[queue] += pc.sum(own).as_py() or 0

    def describe_without_subscriber(self) -> str:
        """Say which messages nobody is subscribed to; empty for none."""
        return (
            describe_without_subscriber(self.without_subscriber) if self.without_subscriber else ""
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "sent": self.messages,
            "queues": {self.printed(queue): count for queue, count in self.queues.items()},
            "published": self.published,
            "unheard": self.without_subscriber.total(),
            "delayed": self.delayed,
        }

    def as_text(self) -> str:
        places = [f"{quantity(self.published, 'message')} published"] if self.published else []
        places += [
            f"{quantity(count, 'message')} sent to {self.printed(queue)}"
            for queue, count in self.queues.items()
        ]
        later = f", {self.delayed:,} of them delayed" if self.delayed else ""
        return ("; ".join(places) or "no message sent") + later


# ---------------------------------------------------------------- input


def read(
    source: Path | None,
    file: Path | None,
    sender: Sender,
    headers: Mapping[str, str],
    *,
    quiet: bool,
) -> list[pa.Table]:
    """
    Read all messages into tables of CHUNK_ROW.

    Args:
        source: a file of JSON lines; None: standard input. Blank lines are skipped.
        file: the body of the only message, instead of lines.
        sender: has the defaults for all messages.
        headers: added to every message that does not have them.
        quiet: show no progress.

    Raises:
        BadLine.
    """
    if file is not None:
        message = {"body": _contents(file), "headers": list(headers.items())}
        return list(sender.chunks([pa.RecordBatch.from_pylist([message], schema=SCHEMA)]))
    numbers: list[int] = []  # of the lines that became rows
    homeless = sender.options.address is None and sender.options.topics is None
    with _open_lines(source) as (stream, size), progress("byte", size, quiet=quiet) as advance:
        lines = _count_bytes(stream, advance)
        try:
            return list(sender.chunks(_batches(lines, headers, numbers, homeless=homeless)))
        except BadMessage as error:
            raise BadLine(line=numbers[error.row], reason=error.reason) from None


@contextmanager
def _open_lines(path: Path | None) -> Iterator[tuple[BinaryIO, int | None]]:
    """Open a file of lines or standard input. Gives its size in bytes too, if it is known."""
    if path is None or str(path) == "-":
        if sys.stdin.isatty():
            say_error("reading JSON lines from the terminal; press Ctrl-D to end")
        yield sys.stdin.buffer, None
        return
    try:
        stream = path.open("rb")
    except OSError as error:
        raise BadOption(
            option="SOURCE", found=str(path), expected=f"a file to read ({error.strerror})"
        ) from None
    with stream:
        yield stream, path.stat().st_size or None


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadOption(
            option="--file", found=str(path), expected=f"a file to read ({error.strerror})"
        ) from None


def _count_bytes(stream: BinaryIO, advance: Callable[[int], None]) -> Iterator[bytes]:
    """Pass the lines of a file on, and report their bytes to `advance` after each STEP."""
    size = 0
    for text in stream:
        yield text
        size += len(text)
        if size >= STEP:
            advance(size)
            size = 0
    advance(size)


def _batches(
    lines: Iterable[bytes], headers: Mapping[str, str], numbers: list[int], *, homeless: bool
) -> Iterator[pa.RecordBatch]:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = _read_line(line, headers)
            _require(
                not homeless or row["queue"] is not None or row["topics"] is not None, HOMELESS
            )
        except ValueError as error:
            raise BadLine(line=number, reason=str(error)) from None
        rows.append(row)
        numbers.append(number)
        if len(rows) == BATCH:
            yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
            rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


# ---------------------------------------------------------------- one line


def _require(fine: object, reason: str) -> None:
    if not fine:
        raise ValueError(reason)


def _read_line(line: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    """Read one line; a ValueError says why it cannot be sent."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from None
    _require(isinstance(found, dict), 'expected an object, for example {"body": …}')
    if strange := found.keys() - KNOWN:
        raise ValueError(f"{min(strange)!r} is not known; expected one of {', '.join(FIELDS)}")
    for name in TEXTS:
        value = found.get(name)
        _require(
            isinstance(value, str | None), f"{name} is {json.dumps(value)[:64]}: expected text"
        )
    return {
        **{name: _encodable(name, found.get(name)) for name in TEXTS},
        "body": _body(found),
        "headers": list({**headers, **_headers(found.get("headers"))}.items()),
        "timeToBeReceived": _lifetime(found.get("timeToBeReceived")),
        "delay": _delay(found.get("delay")),
        "deliverAt": _moment(found.get("deliverAt")),
        "topics": _topics(found.get("topics")),
    }


def _encodable(name: str, text: str | None) -> str | None:
    try:
        if text is not None:
            text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} holds half of a surrogate pair") from None
    return text


def _body(found: dict[str, Any]) -> bytes:
    if (packed := found.get("bodyBase64")) is not None:
        fits = "body" not in found and isinstance(packed, str)
        _require(fits, "bodyBase64 must be text, and body must not be set with it")
        try:
            return base64.b64decode(packed, validate=True)
        except binascii.Error as error:
            raise ValueError(f"bodyBase64 is not base64 ({error})") from None
    body = found.get("body")
    _require(body is not None, 'it has no body; use "" to send an empty body')
    if not isinstance(body, str):
        body = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return str(_encodable("body", body)).encode()


def _headers(found: Any) -> dict[str, str | None]:  # noqa: ANN401 - JSON
    if found is None:
        return {}
    texts = isinstance(found, dict) and all(isinstance(each, str | None) for each in found.values())
    _require(texts, "headers is not an object of texts")
    for name, value in found.items():
        _encodable("a header", name)
        _encodable(f"header {name!a}", value)
    return dict(found)


def _lifetime(found: object) -> str | None:
    if isinstance(found, str | None):
        return found
    if type(found) is not int:
        raise ValueError('timeToBeReceived is neither "hh:mm:ss" nor whole milliseconds')
    try:
        return format_span(found)
    except BadTimeSpan as error:
        raise ValueError(str(error)) from None


def _delay(found: object) -> str | None:
    if isinstance(found, str | None):
        return found
    if type(found) is not int or not 0 <= found <= LONGEST_DELAY:
        most = f"whole milliseconds from 0 to {LONGEST_DELAY}"
        raise ValueError(f'delay is neither "hh:mm:ss" nor {most}')
    return span(found)


def _moment(found: object) -> datetime | None:
    if found is None:
        return None
    try:
        moment = datetime.fromisoformat(str(found))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(
            f"deliverAt is {json.dumps(found)[:64]}: expected a time with its zone, "
            "for example 2026-06-30T17:05:09Z"
        )
    return moment


def _topics(found: Any) -> list[str] | None:  # noqa: ANN401 - JSON
    if found is None:
        return None
    texts = isinstance(found, list) and all(isinstance(each, str) for each in found)
    _require(texts, "topics is not an array of texts")
    for each in found:
        _encodable("topics", each)
    return list(found)
