"""What `sqlqueue send` does: reads the input, inserts the messages, and counts them."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow.compute as pc

from sqlq_spark.admin.formats import quantity
from sqlq_spark.cli import lines
from sqlq_spark.cli.screen import progress, say_error
from sqlq_spark.database import transaction
from sqlq_spark.errors import BadOption
from sqlq_spark.send import delayed
from sqlq_spark.send.insert import Inserts, rows_by_queue
from sqlq_spark.send.publish import describe_without_subscriber, topics_of
from sqlq_spark.send.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from sqlq_spark.database.sessions import Session
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.wire.address import QueueAddress

STEP = 1 << 20  # bytes of a file after which the bar moves


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


# ---------------------------------------------------------------- what was sent


class Sent:
    """How many messages some chunks hold, for the summary."""

    def __init__(self, chunks: Iterable[pa.Table], options: SinkOptions) -> None:
        self.queues: Counter[QueueAddress] = Counter()
        self.printed = options.naming.print_address  # how the summary names a queue
        self.without_subscriber: Counter[str] = (
            Counter()
        )  # lists of topics that no one is subscribed to
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
        """The summary as a JSON object."""
        return {
            "sent": self.messages,
            "queues": {self.printed(queue): count for queue, count in self.queues.items()},
            "published": self.published,
            "unheard": self.without_subscriber.total(),
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


def contents(path: Path) -> bytes:
    """Read a whole file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadOption(
            option="--file", found=str(path), expected=f"a file to read ({error.strerror})"
        ) from None


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
        raise BadOption(
            option="SOURCE", found=str(path), expected=f"a file to read ({error.strerror})"
        ) from None
    with stream:
        yield stream, path.stat().st_size or None
