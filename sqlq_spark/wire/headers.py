"""
Header text: the JSON of a message's headers, the names of headers, and the times in them.

The text is the same, byte for byte, as that of the transports' version 9.1. Source: WIRE.md part 2.
`rows.py` reads headers, in columns.
"""

import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

MESSAGE_ID: Final = "NServiceBus.MessageId"
CORRELATION_ID: Final = "NServiceBus.CorrelationId"
CONVERSATION_ID: Final = "NServiceBus.ConversationId"
RELATED_TO: Final = "NServiceBus.RelatedTo"
MESSAGE_INTENT: Final = "NServiceBus.MessageIntent"
ENCLOSED_MESSAGE_TYPES: Final = "NServiceBus.EnclosedMessageTypes"
CONTENT_TYPE: Final = "NServiceBus.ContentType"
REPLY_TO_ADDRESS: Final = "NServiceBus.ReplyToAddress"
TIME_TO_BE_RECEIVED: Final = "NServiceBus.TimeToBeReceived"
TIME_SENT: Final = "NServiceBus.TimeSent"
DELIVER_AT: Final = "NServiceBus.DeliverAt"
ORIGINATING_ENDPOINT: Final = "NServiceBus.OriginatingEndpoint"
CONTROL_MESSAGE: Final = "NServiceBus.ControlMessage"  # "True": the body is not read
ORIGINATING_MACHINE: Final = "NServiceBus.OriginatingMachine"
VERSION: Final = "NServiceBus.Version"
HOST_ID: Final = "$.diagnostics.originating.hostid"
PROCESSING_STARTED: Final = "NServiceBus.ProcessingStarted"
PROCESSING_ENDED: Final = "NServiceBus.ProcessingEnded"
PROCESSING_ENDPOINT: Final = "NServiceBus.ProcessingEndpoint"
PROCESSING_MACHINE: Final = "NServiceBus.ProcessingMachine"
FAILED_Q: Final = "NServiceBus.FailedQ"
TIME_OF_FAILURE: Final = "NServiceBus.TimeOfFailure"
EXCEPTION_INFO: Final = "NServiceBus.ExceptionInfo."  # a prefix
RETRIES: Final = "NServiceBus.Retries"  # also a prefix, of RETRIES.Timestamp
FL_RETRIES: Final = "NServiceBus.FLRetries"
ORIGINATING_SAGA_ID: Final = "NServiceBus.OriginatingSagaId"  # of a request; a reply's SAGA_ID
ORIGINATING_SAGA_TYPE: Final = "NServiceBus.OriginatingSagaType"
SAGA_ID: Final = "NServiceBus.SagaId"
SAGA_TYPE: Final = "NServiceBus.SagaType"
FORWARD_DESTINATION: Final = "NServiceBus.SqlServer.ForwardDestination"  # on both databases
TRACE_PARENT: Final = "traceparent"
TRACE_STATE: Final = "tracestate"
BAGGAGE: Final = "baggage"

# Endpoints up to 9.0 fail on headers that begin with this name.
NEVER_FIRST: Final = "__type"

# Headers that begin with one of these are removed when a failed message returns to its source.
FAULT_PREFIXES: Final = (RETRIES, FAILED_Q, TIME_OF_FAILURE, EXCEPTION_INFO)

_SHORT = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\t": "\\t"} | {
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}
_ESCAPED = frozenset({"Cc", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
_BYTE_ORDER_MARK = "\ufeff"  # escaped too, unlike the other characters of its category
_BMP_END = 0xFFFF
_BEYOND_BMP = re.compile("[^\0-\uffff]")


class _Escapes(dict[int, str]):
    """The escape of each code point, computed at its first use."""

    def __missing__(self, code: int) -> str:
        written = _escape_one(chr(code))
        if code <= _BMP_END:  # at most 65,536 are kept
            self[code] = written
        return written


def _escape_one(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    category = unicodedata.category(character)
    if category == "Cs":  # a surrogate alone, because Python's text has no pairs
        return "\\uFFFD"
    if character > chr(_BMP_END):
        pair = character.encode("utf-16-be").hex().upper()
        return f"\\u{pair[:4]}\\u{pair[4:]}"
    if character == _BYTE_ORDER_MARK or (category in _ESCAPED and character != " "):
        return f"\\u{ord(character):04X}"
    return character


_ESCAPES = _Escapes()


def escape(text: str) -> str:
    r"""
    Escape text for a JSON string.

    Args:
        text: any; a surrogate alone becomes `\uFFFD`. Python's Unicode version decides which
            characters are not assigned and therefore escaped; endpoints read either form.
    """
    if not _BEYOND_BMP.search(text) and text.isprintable():  # a tenth of the time
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("/", "\\/")
    return text.translate(_ESCAPES)


def dumps(headers: Mapping[str, str | None]) -> str:
    """
    Write headers as one compact JSON object, in the order given.

    NEVER_FIRST moves to the end.

    Raises:
        TypeError: a name or value is not text (a value may be None).
    """
    if next(iter(headers), None) == NEVER_FIRST:
        first, *others = headers.items()
        headers = dict([*others, first])
    members = (
        f'"{escape(name)}":null' if value is None else f'"{escape(name)}":"{escape(value)}"'
        for name, value in headers.items()
    )
    return "{" + ",".join(members) + "}"


# ----- times ---------------------------------------------------------------------------------

LONGEST_SPAN: Final = 2**31 - 1  # milliseconds, 24.8 days: the transports use an int32
LONGEST_DELAY: Final = 365_000 * 86_400_000  # milliseconds, no year of five digits

_WIRE_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d):(\d{6}) Z", re.ASCII)
_SPAN = re.compile(
    r"(?:(\d{1,8})\.)?([01]?\d|2[0-3]):([0-5]?\d):([0-5]?\d)(?:\.(\d{1,7}))?", re.ASCII
)


class BadWireTime(ValueError):
    """A time in a header is not in the transports' form."""

    def __init__(self, text: str) -> None:
        super().__init__(text)

    def __str__(self) -> str:
        return (
            f"time {self.args[0][:64]!r} cannot be read: "
            "expected yyyy-MM-dd HH:mm:ss:ffffff Z, as 2026-06-30 17:05:09:123456 Z"
        )


class BadTimeSpan(ValueError):
    """A time-to-be-received or a delay cannot be read, or is too long for the transports."""

    def __init__(self, found: str, reason: str, what: str = "time to be received") -> None:
        super().__init__(found, reason, what)

    def __str__(self) -> str:
        found, reason, what = self.args
        return (
            f"{what} {found[:64]!r} {reason}: "
            "expected [d.]hh:mm:ss[.fffffff], as 00:30:00 or 1.12:00:00"
        )


def wire_time(moment: datetime) -> str:
    """
    Write a time in the headers' form, `yyyy-MM-dd HH:mm:ss:ffffff Z`.

    Raises:
        ValueError: the time has no zone.
    """
    if moment.tzinfo is None:
        raise ValueError(f"time {moment} has no zone: give an aware datetime, as datetime.now(UTC)")
    utc = moment.astimezone(UTC).replace(tzinfo=None)
    return utc.isoformat(sep=" ", timespec="microseconds").replace(".", ":") + " Z"


def parse_wire_time(text: str) -> datetime:
    """
    Read a time in the headers' form; the result is aware and UTC.

    Raises:
        BadWireTime: the form is different, or there is no such day.
    """
    found = _WIRE_TIME.fullmatch(text)
    if found is None:
        raise BadWireTime(text)
    try:
        return datetime.fromisoformat(f"{found[1]}.{found[2]}+00:00")
    except ValueError:
        raise BadWireTime(text) from None


def parse_span(text: str, *, longest: int = LONGEST_SPAN, what: str = "time to be received") -> int:
    """
    Read a time-to-be-received, or a delay; .NET's invariant `[d.]hh:mm:ss[.fffffff]`.

    Args:
        text: untrusted.
        longest: milliseconds.
        what: its name, for the error.

    Returns:
        Milliseconds, 0 to `longest`; smaller parts are cut off, as in the transports.

    Raises:
        BadTimeSpan: the form is different, or the span is negative or too long.
    """
    found = _SPAN.fullmatch(text)
    if found is None:
        negative = _SPAN.fullmatch(text.removeprefix("-"))
        raise BadTimeSpan(text, "is negative" if negative else "cannot be read", what)
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:4])
    whole = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    milliseconds = whole * 1000 + int((found[5] or "").ljust(3, "0")[:3])
    if milliseconds > longest:
        raise BadTimeSpan(text, f"is longer than {span(longest)}", what)
    return milliseconds


def format_span(milliseconds: int) -> str:
    """
    Write a time-to-be-received as .NET does: `00:30:00`, `1.12:00:00`, `00:00:01.5000000`.

    Raises:
        BadTimeSpan: a negative number, or one above LONGEST_SPAN.
    """
    if not 0 <= milliseconds <= LONGEST_SPAN:
        raise BadTimeSpan(f"{milliseconds} ms", f"is not between 0 and {LONGEST_SPAN} ms")
    return span(milliseconds)


def span(milliseconds: int) -> str:
    """Write any time span as .NET does."""
    days, rest = divmod(milliseconds, 86_400_000)
    hours, rest = divmod(rest, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    seconds, rest = divmod(rest, 1000)
    fraction = f".{rest:03d}0000" if rest else ""
    return f"{f'{days}.' if days else ''}{hours:02d}:{minutes:02d}:{seconds:02d}{fraction}"
