"""
What `sqlqueue send` does: reads JSON lines into rows, inserts the messages, and counts them.

A line is an object with `body` and optionally the other columns that a DataFrame may have.
A text body is sent unchanged. Any other JSON value is serialised without spaces.
The output of `sqlqueue browse --json` can be sent again.
"""

from __future__ import annotations

import base64
import json
from functools import partial
from itertools import islice
from operator import add
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.admin.formats import quantity
from sqlq_spark.cli.options import read_moment
from sqlq_spark.cli.screen import say_error
from sqlq_spark.errors import BadInput, BadMessage, BadOption
from sqlq_spark.send import delayed, frame, publish
from sqlq_spark.send.insert import rows_by_queue, send_in_transaction
from sqlq_spark.send.sender import CHUNK_ROW, Sender

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import BinaryIO

    from sqlq_spark.cli.options import Context
    from sqlq_spark.database import Connection
    from sqlq_spark.database.sessions import Session
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.insert import Inserts

BATCH = 5_000  # lines
TEXTS = ("id", "correlationId", "replyToAddress", "queue", "timeToBeReceived", "delay")
SCHEMA = pa.schema(
    {
        "body": pa.binary(),
        "headers": pa.map_(pa.string(), pa.string()),
        "deliverAt": frame.MOMENT,
        "topics": frame.TOPICS,
        **dict.fromkeys(TEXTS, pa.string()),
    }
)
FIELDS = (*frame.WRITTEN, "bodyBase64")


class BadLine(BadInput):
    """A line cannot become a message. Nothing was sent."""

    line: int
    reason: str
    template = "line {line} cannot be sent: {reason}. Nothing was sent."


def read(
    session: Session,
    options: SinkOptions,
    source: BinaryIO,
    headers: dict[str, str],
    *,
    is_body: bool,
) -> list[pa.Table]:
    """
    Read all messages into tables of CHUNK_ROW.

    Args:
        session: writes addresses as the database does; not opened where no row has one.
        options: have the defaults for all messages.
        source: JSON lines, or the body of the only message. Blank lines are skipped.
        headers: added to every message that does not have them.
        is_body: whether the source is the body.

    Raises:
        BadLine, BadOption.
    """
    sender = Sender(
        options=options,
        partition=0,
        own_address=lambda address: session.open().canonical(address),
        rows_choose=True,
    )
    numbers: list[int] = []  # of the lines that became rows
    if is_body:
        rows = iter([{"body": source.read(), "headers": [*headers.items()]}])
        numbers.append(1)
    else:
        rows = _rows(source, headers, numbers)
    batches = iter(lambda: [*islice(rows, BATCH)], [])
    try:
        tables = (pa.RecordBatch.from_pylist(some, schema=SCHEMA) for some in batches)
        return [*sender.chunks(tables)]
    except BadMessage as error:
        raise BadLine(line=numbers[error.row], reason=error.reason) from None


def insert(
    context: Context, connection: Connection, options: SinkOptions, chunks: list[pa.Table]
) -> None:
    """Insert all messages in one transaction, and print how many went where."""
    whole = pa.concat_tables([CHUNK_ROW.empty_table(), *chunks], promote_options="default")
    waiting, topics = delayed.find_waiting(whole), publish.topics_of(whole)
    waits = 0 if waiting is None else pc.sum(waiting).as_py()
    published = 0 if topics is None else len(topics) - topics.null_count

    def work(inserts: Inserts) -> None:
        def batches() -> Iterator[int]:
            for chunk in chunks:
                inserts.insert(chunk)
                yield chunk.num_rows

        context.follow(batches(), "message", whole.num_rows, "inserted, and undone")

    # no retry: if the answer to a commit is lost, a retry would send twice
    lost = send_in_transaction(connection, options, work).without_subscriber
    names = {
        connection.printed(queue): pc.sum(own).as_py()
        for queue, own in rows_by_queue(whole, options).items()
    }
    places = [f"{quantity(count, 'message')} sent to {name}" for name, count in names.items()]
    if published:
        places.insert(0, f"{quantity(published, 'message')} published")
    if waits:
        places[-1] += f", {waits:,} of them delayed"
    counts = {"sent": whole.num_rows, "published": published, "delayed": waits}
    result = {**counts, "queues": names, "unheard": lost.total()}
    context.answer(result, "; ".join(places) or "no message sent")
    if lost:
        say_error(publish.describe_without_subscriber(lost))


# ---------------------------------------------------------------- input


def _rows(
    lines: Iterable[bytes], headers: dict[str, str], numbers: list[int]
) -> Iterator[dict[str, Any]]:
    """Read lines into rows, and add the number of each to a list."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = _row(line, headers)
            except ValueError as error:
                raise BadLine(line=number, reason=str(error)) from None
            numbers.append(number)
            yield row


def _row(line: bytes, headers: dict[str, str]) -> dict[str, Any]:
    """Read one line; a ValueError says why it cannot be sent."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError('expected an object, for example {"body": …}')  # noqa: TRY004 - a line's
    if strange := found.keys() - {*FIELDS, *frame.IGNORED}:
        raise ValueError(f"{min(strange)!r} is not known; expected one of {', '.join(FIELDS)}")
    row: dict[str, Any] = {}
    for name in FIELDS:
        if (value := found.get(name)) is None:
            continue
        column = name.removesuffix("Base64")
        if column in row:
            raise ValueError("it has both body and bodyBase64")
        read, expected = READERS.get(name, (lambda text: text, "text"))
        try:
            row[column] = read(value)
            pa.array([row[column]], SCHEMA.field(column).type)
        except (AttributeError, BadOption, TypeError, ValueError):
            shown = json.dumps(value)[:64]
            raise ValueError(f"{name} is {shown}: expected {expected}") from None
    if "body" not in row:
        raise ValueError('it has no body; use "" to send an empty body')
    row["headers"] = [*{**headers, **dict(row.get("headers", ()))}.items()]
    return row


def _body(value: Any) -> bytes:  # noqa: ANN401 - JSON
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return str(value).encode()


# field of a line → what reads a value that Arrow does not, and what is expected
READERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "body": (_body, "text without half of a surrogate pair"),
    "bodyBase64": (partial(base64.b64decode, validate=True), "base64"),
    "headers": (lambda value: [*value.items()], "an object of texts"),
    "topics": (partial(add, []), "an array of texts"),  # Arrow reads a text as its characters
    "deliverAt": (partial(read_moment, "deliverAt"), "a time with its zone"),
}
