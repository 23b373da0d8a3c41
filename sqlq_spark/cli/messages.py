"""The commands `send` and `browse`."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import pyarrow.compute as pc
import typer

from sqlq_spark.admin import inspect
from sqlq_spark.admin.formats import quantity
from sqlq_spark.cli import lines
from sqlq_spark.cli.options import (
    AsJson,
    EndpointTimeZone,
    Patience,
    Queue,
    QueueToSend,
    Url,
    location,
    source_options,
)
from sqlq_spark.cli.screens import queues, screen
from sqlq_spark.cli.screens.progress import progress
from sqlq_spark.cli.screens.screen import say, say_error
from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import BadOption, MissingOption
from sqlq_spark.options import SinkOptions
from sqlq_spark.send import delayed, queue_writer
from sqlq_spark.send.message.sender import Sender
from sqlq_spark.send.topics import topics_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa

    from sqlq_spark.wire.address import QueueAddress

app = typer.Typer()

STEP = 1 << 20  # bytes of a file after which the bar moves


@app.command("send")
def send_(
    queue: QueueToSend = None,
    source: Annotated[
        Path | None, typer.Argument(help="A file of JSON lines; default: standard input.")
    ] = None,
    *,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="Publish to this topic; then omit QUEUE. Most derived type first."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Send one message with this file as its body.")
    ] = None,
    message_type: Annotated[str | None, typer.Option(help="The .NET type's full name.")] = None,
    content_type: Annotated[
        str | None, typer.Option(help="Content type, for example application/json.")
    ] = None,
    time_to_be_received: Annotated[
        str | None, typer.Option(help="hh:mm:ss, after which the message expires.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE, added to each message.")
    ] = None,
    subscription_table: Annotated[
        str | None, typer.Option(help='The subscription table: a table, or "schema"."table".')
    ] = None,
    as_json: AsJson = False,
    query_timeout: Patience = "30s",
    url: Url = None,
) -> None:
    """
    Send messages in one transaction: each line is a JSON object with the field body.

    A text body is sent unchanged. Another JSON value is serialised.
    Use bodyBase64 instead of body to send bytes.
    Optional fields: headers, id, timeToBeReceived (hh:mm:ss), delay
    (hh:mm:ss), deliverAt (a time with its zone), correlationId,
    replyToAddress, queue (another destination for this line), and topics
    (to publish this line).

    {"body": {"OrderId": 7}, "headers": {"tenant": "blue"}}
    {"body": "later", "delay": "00:30:00"}
    {"body": "then", "deliverAt": "2026-06-30T17:05:09Z"}
    {"body": "published", "topics": ["Shop.OrderPlaced", "Shop.IEvent"]}
    """
    queue, source = queue_and_file(queue, source, topic)
    if source is not None and file is not None:
        raise BadOption("--file", str(file), "a file of JSON lines or --file, not both")
    raw = {
        "url": location(url),
        "queue": queue,
        "topics": ",".join(topic) if topic else None,
        "subscriptionTable": subscription_table,
        "messageType": message_type,
        "contentType": content_type,
        "timeToBeReceived": time_to_be_received,
        "queryTimeout": query_timeout,
    }
    options = SinkOptions.parse({name: text for name, text in raw.items() if text is not None})
    headers = dict(pair(text) for text in header or ())
    with Session(options, "send", state=False) as session:
        address = partial(queue_writer.own_address, session)
        sender = Sender(options=options, partition=0, own_address=address, rows_choose=True)
        chunks = read(source, file, sender, headers, quiet=as_json)
        sent = Sent(chunks, options)
        insert(session, chunks, options, sent, quiet=as_json)
    if as_json:
        screen.print_json(sent.as_json())
    else:
        say(sent.as_text())
    if sent.unheard:
        say_error(queue_writer.describe_unheard(sent.unheard))


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
        writer = queue_writer.QueueWriter(connection, options)
        for chunk in chunks:
            writer.insert(chunk)
            advance(chunk.num_rows)
        writer.confirm()
    sent.unheard += writer.unheard
    sent.printed = connection.printed


@app.command()
def browse(
    queue: Queue,
    *,
    limit: Annotated[int, typer.Option(min=1, help="Messages to show.")] = 20,
    delayed_: Annotated[
        bool, typer.Option("--delayed", help="Show delayed messages, in the order of due times.")
    ] = False,
    endpoint_time_zone: EndpointTimeZone = None,
    as_json: AsJson = False,
    query_timeout: Patience = "30s",
    url: Url = None,
) -> None:
    """Show the messages that wait, lowest seq first. Deletes and locks nothing."""
    options = source_options(
        url, queue, endpointTimeZone=endpoint_time_zone, queryTimeout=query_timeout
    )
    how: dict[str, Any] = {"limit": limit, "timeout": options.query_timeout}
    with Session(options, "browse", state=False) as session:
        connection, address = session.open(), options.address
        if delayed_:
            zone = options.endpoint_time_zone
            found = inspect.delayed_messages(connection, address, zone=zone, **how)
            if not as_json:
                queues.show_delayed(found)
                return
            show_json(found)
        elif as_json:
            show_json(inspect.messages(connection, address, **how))
        else:
            screen.show_messages(inspect.messages(connection, address, **how))


def show_json(messages: Iterable[inspect.Message | inspect.DelayedMessage]) -> None:
    """Print one line of JSON for each message."""
    for each in messages:
        screen.print_json(screen.whole(each))


# ---------------------------------------------------------------- what was sent


class Sent:
    """How many messages some chunks hold, for the summary."""

    def __init__(self, chunks: Iterable[pa.Table], options: SinkOptions) -> None:
        self.queues: Counter[QueueAddress] = Counter()
        self.printed = options.naming.print_address  # how the summary names a queue
        self.unheard: Counter[str] = Counter()  # lists of topics that no one is subscribed to
        self.messages = self.published = self.delayed = 0
        for chunk in chunks:
            self.messages += chunk.num_rows
            later, topics = delayed.waiting(chunk), topics_of(chunk)
            self.delayed += 0 if later is None else pc.sum(later).as_py()
            self.published += 0 if topics is None else len(topics) - topics.null_count
            for queue, own in queue_writer.rows_by_queue(chunk, options).items():
                self.queues[queue] += pc.sum(own).as_py() or 0

    def as_json(self) -> dict[str, Any]:
        """The summary as a JSON object."""
        return {
            "sent": self.messages,
            "queues": {self.printed(queue): count for queue, count in self.queues.items()},
            "published": self.published,
            "unheard": self.unheard.total(),
            "delayed": self.delayed,
        }

    def as_text(self) -> str:
        """The summary as a line."""
        places = [f"{quantity(self.published, 'message')} published"] if self.published else []
        places += [
            f"{quantity(count, 'message')} sent to {self.printed(queue)}"
            for queue, count in self.queues.items()
        ]
        later = f", {self.delayed:,} of them delayed" if self.delayed else ""
        return ("; ".join(places) or "no message sent") + later


# ---------------------------------------------------------------- input


def queue_and_file(
    queue: str | None, source: Path | None, topic: list[str] | None
) -> tuple[str | None, Path | None]:
    """Read the arguments: with --topic there is no queue, and the first argument is the file."""
    if not topic:
        if queue is None:
            raise MissingOption("QUEUE", "a queue's name, or publish with --topic")
        return queue, source
    if source is not None:
        raise BadOption("--topic", ", ".join(topic), "a file of lines, but no QUEUE, with it")
    return None, None if queue is None else Path(queue)


def read(
    source: Path | None,
    file: Path | None,
    sender: Sender,
    headers: Mapping[str, str],
    *,
    quiet: bool,
) -> list[pa.Table]:
    """Read all messages into chunks."""
    if file is not None:
        return list(sender.chunks([lines.whole(contents(file), headers)]))
    with open_lines(source) as (stream, size), progress("byte", size, quiet=quiet) as advance:
        return list(lines.chunks(count_bytes(stream, advance), sender, headers))


def count_bytes(stream: BinaryIO, advance: Callable[[int], None]) -> Iterator[bytes]:
    """Pass the lines of a file on, and report their bytes to `advance` after each STEP."""
    size = 0
    for text in stream:
        yield text
        size += len(text)
        if size >= STEP:
            advance(size)
            size = 0
    advance(size)


def pair(text: str) -> tuple[str, str]:
    """Read KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise BadOption("--header", text, "KEY=VALUE")
    return key, value


def contents(path: Path) -> bytes:
    """Read a whole file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadOption("--file", str(path), f"a file to read ({error.strerror})") from None


@contextmanager
def open_lines(path: Path | None) -> Iterator[tuple[BinaryIO, int | None]]:
    """Open a file of lines or standard input. Gives its size in bytes too, if it is known."""
    if path is None or str(path) == "-":
        if sys.stdin.isatty():
            say_error("reading JSON lines from the terminal; press Ctrl-D to end")
        yield sys.stdin.buffer, None
        return
    try:
        stream = path.open("rb")
    except OSError as error:
        raise BadOption("SOURCE", str(path), f"a file to read ({error.strerror})") from None
    with stream:
        yield stream, path.stat().st_size or None
