"""
Does the work of `sqlqueue send`: reads JSON lines into rows, inserts them, and counts them.

A line is an object with `body` and optionally the other columns that a DataFrame may have.
If the body is a JSON string, its text is sent. The JSON text of any other value is sent as the line
has it, byte for byte.

A line with `seq` is a row that `sqlqueue browse --json` printed. It keeps its row id, because this
is also the message id if the header MessageId is missing. If its body is null, the sent body is
empty.
"""

from __future__ import annotations

import base64
import codecs
import json
import re
from functools import partial
from itertools import islice
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from sqlq_spark.admin.formats import quantity
from sqlq_spark.cli.options import read_moment
from sqlq_spark.cli.screen import say_error
from sqlq_spark.database import read_clock
from sqlq_spark.errors import BadInput, BadMessage, BadOption, StatementRefused
from sqlq_spark.send import frame, publish
from sqlq_spark.send.chunk import CHUNK_ROW, find_waiting, topics_of
from sqlq_spark.send.insert import Inserted, send_in_transaction
from sqlq_spark.send.routes import rows_by_queue
from sqlq_spark.send.sender import Sender, with_new_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
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
        "expires": frame.MOMENT,
        frame.ROW_ID: pa.binary(16),
        **dict.fromkeys(TEXTS, pa.string()),
    }
)
FIELDS = (*frame.WRITTEN, "bodyBase64")
# With --as-received a line must not have these fields, because its headers have their values.
STATED = ("correlationId", "replyToAddress", "timeToBeReceived")
# A line that `browse` printed keeps its row id, but not if one of these fields was added: it then
# becomes rows in other tables.
ELSEWHERE = {"topics", "delay", "deliverAt"}
LONGEST_SHOWN = 64  # characters of a value in an error


class BadLine(BadInput):
    """A line cannot become a message. Nothing was sent."""

    line: int
    reason: str
    template = "line {line} cannot be sent: {reason}. Nothing was sent."


def read_lines(
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
        session: gives addresses as the database writes them, and its time. It is opened only if a
            row needs one of these.
        options: the defaults of all messages.
        source: JSON lines, or the body of the only message. Blank lines are skipped.
        headers: added to every message that does not have them.
        is_body: whether the source is the body.

    Raises:
        BadLine, BadOption.
    """
    sender = Sender(
        options=options,
        partition=0,
        clock=lambda: read_clock(session.open()),
        own_address=lambda address: session.open().canonical(address),
        rows_choose=True,
    )
    numbers: list[int] = []  # the numbers of the lines that became rows
    if is_body:
        rows = iter([{"body": source.read(), "headers": [*headers.items()]}])
        numbers.append(1)
    else:
        rows = _rows(source, headers, numbers, options)
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

    def work(inserts: Inserts, rows: list[pa.Table]) -> Inserted:
        inserted: list[Inserted] = []

        def batches() -> Iterator[int]:
            for chunk in rows:
                inserted.append(inserts.insert(chunk))
                yield chunk.num_rows

        context.follow(batches(), "message", whole.num_rows, "inserted, and undone")
        return sum(inserted, start=Inserted())

    # There is no retry. If the answer to a commit were lost, a retry would send twice.
    renamed = 0
    try:
        inserted = send_in_transaction(connection, options, partial(work, rows=chunks))
    except StatementRefused:
        # The transaction was undone, perhaps because the queue already has a row with one of the
        # ids. So try once more with new ids.
        renamed = sum(len(chunk["id"]) - chunk["id"].null_count for chunk in chunks)
        if not renamed:
            raise
        rows = [*map(with_new_ids, chunks)]
        inserted = send_in_transaction(connection, options, partial(work, rows=rows))
    answer_sent(context, connection, options, whole, inserted)
    if renamed:
        say_error(
            f"{quantity(renamed, 'message')} sent under new row ids: one of theirs is in the "
            "queue already"
        )
    if inserted.without_subscriber:
        say_error(publish.describe_without_subscriber(inserted.without_subscriber))


def answer_sent(
    context: Context,
    connection: Connection,
    options: SinkOptions,
    sent: pa.Table,
    inserted: Inserted,
) -> None:
    """Print how many messages went to each queue, how many were published, and how many wait."""
    waiting = find_waiting(sent)
    topics = topics_of(sent)
    waits = 0 if waiting is None else pc.sum(waiting).as_py()
    published = 0 if topics is None else len(topics) - topics.null_count
    names = {
        connection.printed(queue): pc.sum(mask).as_py()
        for queue, mask in rows_by_queue(sent, options).items()
    }
    places = [f"{quantity(count, 'message')} sent to {name}" for name, count in names.items()]
    if published:
        places.insert(0, f"{quantity(published, 'message')} published")
    if waits:
        places[-1] += f", {waits:,} of them delayed"
    counts = {"sent": sent.num_rows, "published": published, "delayed": waits}
    result = {**counts, "queues": names, "unheard": inserted.without_subscriber.total()}
    context.answer(result, "; ".join(places) or "no message sent")


# ---------------------------------------------------------------- lines


def _rows(
    lines: Iterable[bytes], headers: dict[str, str], numbers: list[int], options: SinkOptions
) -> Iterator[dict[str, Any]]:
    """Yield a row for each line, and append the line's number to `numbers`."""
    for number, line in enumerate(lines, 1):
        text = line.removeprefix(codecs.BOM_UTF8)
        if text.strip():
            try:
                row = _row(text, options)
            except ValueError as error:
                raise BadLine(line=number, reason=str(error)) from None
            row["headers"] = [*{**headers, **dict(row.get("headers", ()))}.items()]
            numbers.append(number)
            yield row


def _row(line: bytes, options: SinkOptions) -> dict[str, Any]:
    """Read one line; a ValueError says why it cannot be sent."""
    members = read_members(_decode(line))
    if strange := members.keys() - {*FIELDS, *frame.IGNORED}:
        raise ValueError(f"{min(strange)!r} is not known; expected one of {', '.join(FIELDS)}")
    stated = {name: member for name, member in members.items() if member.value is not None}
    _refuse_losses(stated, options)
    row: dict[str, Any] = {}
    for name in (*FIELDS, "expires"):
        if name not in stated:
            continue
        column = name.removesuffix("Base64")
        if column in row:
            raise ValueError("it has both body and bodyBase64")
        read, expected = READERS.get(name, (_own_value, "text"))
        try:
            row[column] = read(stated[name])
            pa.array([row[column]], SCHEMA.field(column).type)
        except (AttributeError, BadOption, TypeError, ValueError):
            shown = stated[name].text[:LONGEST_SHOWN]
            raise ValueError(f"{name} is {shown}: expected {expected}") from None
    is_browsed = "seq" in stated
    if is_browsed:
        row.setdefault("body", b"")
    elif "body" not in row:
        raise ValueError('it has no body; use "" to send an empty body')
    if is_browsed and options.topics is None and ELSEWHERE.isdisjoint(row):
        row[frame.ROW_ID] = _row_id(row.get("id", ""))
    return row


def _refuse_losses(stated: Mapping[str, Member], options: SinkOptions) -> None:
    """Raise ValueError for a member that would have no effect on the message."""
    if "corruptHeaders" in stated:
        raise ValueError(
            "it has corruptHeaders: a poison message cannot be sent unchanged. Leave the line out, "
            "or replace corruptHeaders by headers"
        )
    if "expires" in stated and not options.as_received:
        raise ValueError(
            "it has expires: use --as-received to keep the remaining time to live, or leave "
            "expires out, so that the message does not expire"
        )
    for name in STATED if options.as_received else ():
        if name in stated:
            raise ValueError(
                f"it has {name}, which states a header: leave it out, or send without --as-received"
            )


def _row_id(text: str) -> bytes | None:
    """Return the row id that `browse` printed; None if the text is only a message id."""
    try:
        found = UUID(text)
    except ValueError:
        return None
    return found.bytes if str(found) == text.lower() else None


# ---------------------------------------------------------------- JSON


class Member(NamedTuple):
    """A member of a line's object."""

    value: Any  # An object is a tuple of its members. A number is a float that is not used.
    text: str  # the text of the value, as the line has it


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it has {name}, which is no JSON")


# Only the text of a number is used, not its value. Integers are read as floats too, because Python
# refuses an int of too many digits.
DECODER = json.JSONDecoder(
    object_pairs_hook=tuple,
    parse_int=float,
    parse_float=float,
    parse_constant=_refuse_constant,
)
WHITE_SPACE = re.compile(r"[ \t\n\r]*")


def read_members(text: str) -> dict[str, Member]:
    """
    Read the members of a JSON object, each with its own text.

    Raises:
        ValueError: the text is no JSON object, has NaN or Infinity, or has a name twice.
    """
    try:
        return _read_object(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error})") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _read_object(text: str) -> dict[str, Member]:
    members: dict[str, Member] = {}
    place = _skip_space(text, 0)
    if not text.startswith("{", place):
        DECODER.decode(text)
        raise ValueError('expected an object, for example {"body": …}')
    place = _skip_space(text, place + 1)
    is_open = not text.startswith("}", place)
    while is_open:
        _expect('"', text, place)
        name, place = DECODER.raw_decode(text, place)
        place = _skip_space(text, place)
        _expect(":", text, place)
        first = _skip_space(text, place + 1)
        value, stop = DECODER.raw_decode(text, first)
        if name in members:
            raise ValueError(f"it has {name!r} twice")
        members[name] = Member(value, text[first:stop])
        place = _skip_space(text, stop)
        is_open = text.startswith(",", place)
        if is_open:
            place = _skip_space(text, place + 1)
    _expect("}", text, place)
    place = _skip_space(text, place + 1)
    if place < len(text):
        raise json.JSONDecodeError("Extra data", text, place)
    return members


def _skip_space(text: str, place: int) -> int:
    space = WHITE_SPACE.match(text, place)
    return place if space is None else space.end()


def _expect(mark: str, text: str, place: int) -> None:
    if not text.startswith(mark, place):
        raise json.JSONDecodeError(f"Expecting {mark!r}", text, place)


def _decode(line: bytes) -> str:
    if b"\0" in line or line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError(
            "it is UTF-16 (a byte order mark, or bytes that are zero): expected UTF-8, as "
            "`Out-File -Encoding utf8` writes it in PowerShell"
        )
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 ({error.reason} at byte {error.start})") from None


# ---------------------------------------------------------------- values


def _own_value(member: Member) -> Any:  # noqa: ANN401 - JSON
    return member.value


def _body(member: Member) -> bytes:
    text = member.value if isinstance(member.value, str) else member.text
    return text.encode()


def _headers(member: Member) -> list[tuple[str, str | None]]:
    pairs = member.value
    if not isinstance(pairs, tuple) or len(dict(pairs)) < len(pairs):
        raise TypeError
    return [*pairs]


# Field of a line → a function that reads its value, and what is expected. The values of all other
# fields are texts.
READERS: dict[str, tuple[Callable[[Member], Any], str]] = {
    "body": (_body, "text without half of a surrogate pair"),
    "bodyBase64": (lambda member: base64.b64decode(member.value, validate=True), "base64"),
    "headers": (_headers, "an object of texts, each name once"),
    # Arrow would read a text as a list of its characters.
    "topics": (lambda member: add([], member.value), "an array of texts"),
    "deliverAt": (lambda member: read_moment("deliverAt", member.value), "a time with its zone"),
    "expires": (lambda member: read_moment("expires", member.value), "a time with its zone"),
}
