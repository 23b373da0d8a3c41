"""
Turns JSON lines into rows to send, for `sqlqueue send`.

A line is an object with `body` and optionally the other columns that a DataFrame may have.
A text body is sent unchanged. Any other JSON value is serialised without spaces.
The output of `sqlqueue browse --json` can be sent again.
"""

from __future__ import annotations

import base64
import binascii
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sqlq_spark.errors import BadInput, BadMessage
from sqlq_spark.send.frame import IGNORED, MOMENT, TOPICS, WRITTEN
from sqlq_spark.wire.headers import LONGEST_DELAY, BadTimeSpan, format_span, span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from sqlq_spark.send.sender import Sender

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


class Unfit(ValueError):
    """The reason why a line cannot be sent."""


def chunks(
    lines: Iterable[bytes], sender: Sender, headers: Mapping[str, str]
) -> Iterator[pa.Table]:
    """
    Read lines into tables of CHUNK_ROW. Blank lines are skipped.

    Args:
        lines: UTF-8.
        sender: has the defaults for all messages.
        headers: added to every message that does not have them.

    Raises:
        BadLine.
    """
    numbers: list[int] = []
    try:
        everywhere = sender.options.address is not None or sender.options.topics is not None
        yield from sender.chunks(_batches(lines, headers, numbers, homeless=not everywhere))
    except BadMessage as error:
        raise BadLine(line=numbers[error.row], reason=error.reason) from None


def whole(body: bytes, headers: Mapping[str, str]) -> pa.RecordBatch:
    """A batch of one message with this body."""
    return pa.RecordBatch.from_pylist(
        [{"body": body, "headers": list(headers.items())}], schema=SCHEMA
    )


def _batches(
    lines: Iterable[bytes], headers: Mapping[str, str], numbers: list[int], *, homeless: bool
) -> Iterator[pa.RecordBatch]:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(row(line, headers))
        except Unfit as error:
            raise BadLine(line=number, reason=str(error)) from None
        if homeless and rows[-1]["queue"] is None and rows[-1]["topics"] is None:
            raise BadLine(line=number, reason=HOMELESS)
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
        raise Unfit(f"it is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise Unfit('expected an object, for example {"body": …}')
    if strange := found.keys() - KNOWN:
        raise Unfit(f"{min(strange)!r} is not known; expected one of {', '.join(FIELDS)}")
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
            raise Unfit("bodyBase64 must be text, and body must not be set with it")
        try:
            return base64.b64decode(packed, validate=True)
        except binascii.Error as error:
            raise Unfit(f"bodyBase64 is not base64 ({error})") from None
    body = found.get("body")
    if body is None:
        raise Unfit('it has no body; use "" to send an empty body')
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
        raise Unfit("headers is not an object of texts")
    for name, value in found.items():
        _encodable("a header", name)
        _encodable(f"header {name!a}", value)
    return found


def _delay(found: object) -> str | None:
    if isinstance(found, str | None):
        return found
    if type(found) is not int or not 0 <= found <= LONGEST_DELAY:
        raise Unfit(f'delay is neither "hh:mm:ss" nor whole milliseconds from 0 to {LONGEST_DELAY}')
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
            "for example 2026-06-30T17:05:09Z"
        )
    return moment


def _topics(found: object) -> list[str] | None:
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise Unfit("topics is not an array of texts")
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
