"""
JSON lines → rows to send, for the command line.

A line is an object with `body`, and any of what a DataFrame may have beside it.
A body that is text is sent as it is; any other JSON value is serialised, compact.
What `sqlqueue browse --json` prints can be sent again.
"""

from __future__ import annotations

import base64
import binascii
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sqlq_spark.errors import BadInput, BadMessage
from sqlq_spark.send.columns import IGNORED, WRITTEN
from sqlq_spark.send.delays import MOMENT
from sqlq_spark.send.topics import TOPICS
from sqlq_spark.wire.headers import LONGEST_DELAY, BadTimeSpan, format_span, span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from sqlq_spark.send.messages import Sender

BATCH = 5_000  # lines
TEXTS = ("id", "correlationId", "replyToAddress", "queue")
FIELDS = (*WRITTEN, "bodyBase64")
KNOWN = {*FIELDS, *IGNORED}

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
    """A line cannot become a message; nothing was sent."""

    template = "line {0} cannot be sent: {1}; nothing was sent"

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(line, reason)


class Unfit(ValueError):
    """Why a line cannot be sent."""


def chunks(
    lines: Iterable[bytes], sender: Sender, headers: Mapping[str, str]
) -> Iterator[pa.Table]:
    """
    Read lines into tables of CHUNK_ROW; blank lines are passed over.

    Args:
        lines: UTF-8.
        sender: with the defaults for all messages.
        headers: for every message that does not bring its own.

    Raises:
        BadLine.
    """
    numbers: list[int] = []
    try:
        yield from sender.chunks(_batches(lines, headers, numbers))
    except BadMessage as error:
        _, row, reason = error.args
        raise BadLine(numbers[row], reason) from None


def whole(body: bytes, headers: Mapping[str, str]) -> pa.RecordBatch:
    """One message of which the body is given as it is."""
    return pa.RecordBatch.from_pylist(
        [{"body": body, "headers": list(headers.items())}], schema=SCHEMA
    )


def _batches(
    lines: Iterable[bytes], headers: Mapping[str, str], numbers: list[int]
) -> Iterator[pa.RecordBatch]:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(row(line, headers))
        except Unfit as error:
            raise BadLine(number, str(error)) from None
        numbers.append(number)
        if len(rows) == BATCH:
            yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
            rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def row(line: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    """
    Read one line.

    Raises:
        Unfit.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Unfit(f"it is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise Unfit('expected an object, as {"body": …}')
    if strange := found.keys() - KNOWN:
        raise Unfit(f"{min(strange)!r} is not known; known are {', '.join(FIELDS)}")
    for name in TEXTS:
        if not isinstance(found.get(name), str | None):
            raise Unfit(f"{name} is {json.dumps(found[name])[:64]}: expected text")
    return {
        **{name: _encodable(name, found.get(name)) for name in TEXTS},
        "body": _body(found),
        "headers": list({**headers, **_headers(found.get("headers"))}.items()),
        "timeToBeReceived": _lifetime(found.get("timeToBeReceived")),
        "delay": _delay(found.get("delay")),
        "deliverAt": _moment(found.get("deliverAt")),
        "topics": _topics(found.get("topics")),
    }


def _body(found: dict[str, Any]) -> bytes:
    if (packed := found.get("bodyBase64")) is not None:
        if "body" in found or not isinstance(packed, str):
            raise Unfit("bodyBase64 is a text, and stands in the place of body")
        try:
            return base64.b64decode(packed, validate=True)
        except binascii.Error as error:
            raise Unfit(f"bodyBase64 is not base64 ({error})") from None
    body = found.get("body")
    if body is None:
        raise Unfit('it has no body; "" sends zero bytes')
    text = (
        body
        if isinstance(body, str)
        else json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    )
    return str(_encodable("body", text)).encode()


def _encodable(name: str, text: str | None) -> str | None:
    try:
        if text is not None:
            text.encode()
    except UnicodeEncodeError:
        raise Unfit(f"{name} holds half of a surrogate pair") from None
    return text


def _headers(found: object) -> dict[str, str | None]:
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(
        isinstance(value, str | None) for value in found.values()
    ):
        raise Unfit("headers is no object of texts")
    for name, value in found.items():
        _encodable("a header", name)
        _encodable(f"header {name!a}", value)
    return found


def _delay(found: object) -> str | None:
    if isinstance(found, str | None):
        return found
    if type(found) is not int or not 0 <= found <= LONGEST_DELAY:
        raise Unfit(
            'delay is neither "hh:mm:ss" nor whole milliseconds, at least 0 and at most '
            f"{LONGEST_DELAY}"
        )
    return span(found)


def _moment(found: object) -> datetime | None:
    if found is None:
        return None
    try:
        moment = datetime.fromisoformat(str(found))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise Unfit(
            f"deliverAt is {json.dumps(found)[:64]}: expected a time with its zone, "
            "as 2026-06-30T17:05:09Z"
        )
    return moment


def _topics(found: object) -> list[str] | None:
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise Unfit("topics is no array of texts")
    for each in found:
        _encodable("topics", each)
    return found


def _lifetime(found: object) -> str | None:
    if isinstance(found, str | None):
        return found
    if type(found) is not int:
        raise Unfit('timeToBeReceived is neither "hh:mm:ss" nor whole milliseconds')
    try:
        return format_span(found)
    except BadTimeSpan as error:
        raise Unfit(str(error)) from None
