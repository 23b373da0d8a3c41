"""
Header texts: the JSON of a message's headers, the headers' names, and the times and types in them.

Written JSON is the same, byte for byte, as version 9.1 of the transports writes it.
`header_columns.py` reads the headers of many rows at once.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from sqlq_spark.wire.address import split_at

MESSAGE_ID = "NServiceBus.MessageId"
CORRELATION_ID = "NServiceBus.CorrelationId"
CONVERSATION_ID = "NServiceBus.ConversationId"
RELATED_TO = "NServiceBus.RelatedTo"
MESSAGE_INTENT = "NServiceBus.MessageIntent"
ENCLOSED_MESSAGE_TYPES = "NServiceBus.EnclosedMessageTypes"
CONTENT_TYPE = "NServiceBus.ContentType"
REPLY_TO_ADDRESS = "NServiceBus.ReplyToAddress"
TIME_TO_BE_RECEIVED = "NServiceBus.TimeToBeReceived"
TIME_SENT = "NServiceBus.TimeSent"
DELIVER_AT = "NServiceBus.DeliverAt"
ORIGINATING_ENDPOINT = "NServiceBus.OriginatingEndpoint"
CONTROL_MESSAGE = "NServiceBus.ControlMessage"  # "True": endpoints do not read the body
ORIGINATING_MACHINE = "NServiceBus.OriginatingMachine"
VERSION = "NServiceBus.Version"
HOST_ID = "$.diagnostics.originating.hostid"
PROCESSING_STARTED = "NServiceBus.ProcessingStarted"
PROCESSING_ENDED = "NServiceBus.ProcessingEnded"
PROCESSING_ENDPOINT = "NServiceBus.ProcessingEndpoint"
PROCESSING_MACHINE = "NServiceBus.ProcessingMachine"
FAILED_Q = "NServiceBus.FailedQ"
TIME_OF_FAILURE = "NServiceBus.TimeOfFailure"
EXCEPTION_INFO = "NServiceBus.ExceptionInfo."  # a prefix
RETRIES = "NServiceBus.Retries"  # also a prefix: NServiceBus.Retries.Timestamp
FL_RETRIES = "NServiceBus.FLRetries"
ORIGINATING_SAGA_ID = "NServiceBus.OriginatingSagaId"  # a reply has it as the header SAGA_ID
ORIGINATING_SAGA_TYPE = "NServiceBus.OriginatingSagaType"
SAGA_ID = "NServiceBus.SagaId"
SAGA_TYPE = "NServiceBus.SagaType"
# PostgreSQL's transport uses this name too.
FORWARD_DESTINATION = "NServiceBus.SqlServer.ForwardDestination"
# A stream moves a message with unreadable headers to the error queue, and gives it new headers.
# POISON_TYPE is then its message type and its exception type. One of the two headers below has the
# old header text of the message.
POISON_TYPE = "SqlQueue.Poison"
CORRUPT_HEADERS = "SqlQueue.CorruptHeaders"
CORRUPT_HEADERS_BASE64 = "SqlQueue.CorruptHeadersBase64"  # used if the old text is not UTF-8
TRACE_PARENT = "traceparent"
TRACE_STATE = "tracestate"
BAGGAGE = "baggage"
# "True": the receiver begins a trace of its own, with a link to the sender's. "False": it continues
# the sender's trace.
START_NEW_TRACE = "NServiceBus.OpenTelemetry.StartNewTrace"

# Endpoints up to 9.0 fail on a header text in which this name is the first.
NEVER_FIRST = "__type"

# A header whose name begins with one of these is removed when a failed message returns to its
# source.
FAULT_PREFIXES = (RETRIES, FAILED_Q, TIME_OF_FAILURE, EXCEPTION_INFO)

_ESCAPED = frozenset({"Cc", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
_BYTE_ORDER_MARK = "\ufeff"  # escaped, although other characters of its category (Cf) are not
_BMP_END = 0xFFFF
_BEYOND_BMP = re.compile("[^\0-\uffff]")


class _Escapes(dict[int, str]):
    """The escape of each code point, computed when it is first used."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        if code > _BMP_END:  # not stored, so that the dict has at most 65,536 entries
            pair = character.encode("utf-16-be").hex().upper()
            return f"\\u{pair[:4]}\\u{pair[4:]}"
        if category == "Cs":  # Python's texts have no surrogate pairs, so this is only half of one
            character = "\\uFFFD"
        elif character == _BYTE_ORDER_MARK or (category in _ESCAPED and character != " "):
            character = f"\\u{code:04X}"
        self[code] = character
        return character


_SHORT = {'"': r"\"", "\\": r"\\", "/": r"\/"}
_SHORT |= {"\b": r"\b", "\t": r"\t", "\n": r"\n", "\f": r"\f", "\r": r"\r"}
_ESCAPES = _Escapes(str.maketrans(_SHORT))


def escape(text: str) -> str:
    r"""
    Escape any text for a JSON string. Half of a surrogate pair becomes `\uFFFD`.

    Characters that Unicode has not assigned are escaped. Python's version of Unicode decides which
    characters these are. Endpoints read such a character with and without the escape.
    """
    # Most texts need only these three replacements, which take a tenth of the time.
    if not _BEYOND_BMP.search(text) and text.isprintable():
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("/", "\\/")
    return text.translate(_ESCAPES)


def dumps(headers: Mapping[str, str | None]) -> str:
    """
    Write headers as compact JSON. If NEVER_FIRST comes first, it is moved to the end.

    Raises:
        TypeError: a value is neither a text nor None.
    """
    if next(iter(headers), None) == NEVER_FIRST:
        first, *others = headers.items()
        headers = dict([*others, first])
    members = (
        f'"{escape(name)}":null' if value is None else f'"{escape(name)}":"{escape(value)}"'
        for name, value in headers.items()
    )
    return "{" + ",".join(members) + "}"


def host_headers(machine: str) -> dict[str, str]:
    """Return the headers that say on which machine a message failed."""
    return {
        PROCESSING_MACHINE: machine,
        "$.diagnostics.hostid": hashlib.md5(machine.encode(), usedforsecurity=False).hexdigest(),
        "$.diagnostics.hostdisplayname": machine,
    }


# ----- times ---------------------------------------------------------------------------------

LONGEST_SPAN = 2**31 - 1  # milliseconds, 24.8 days, because the transports use an int32
LONGEST_DELAY = 365_000 * 86_400_000  # milliseconds; the year of a due time has four digits
LIFETIME = "time to be received"  # the name of a lifetime in errors

_WIRE_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d):(\d{6}) Z", re.ASCII)
_SPAN = re.compile(
    r"(?:(\d{1,8})\.)?([01]?\d|2[0-3]):([0-5]?\d):([0-5]?\d)(?:\.(\d{1,7}))?", re.ASCII
)


class BadWireTime(ValueError):
    """A time in a header is not in the transports' form."""


class BadTimeSpan(ValueError):
    """A time-to-be-received or a delay cannot be read, or is too long for the transports."""

    def __str__(self) -> str:
        what, found, reason = self.args
        return (
            f"{what} {found[:64]!r} {reason}: "
            "expected [d.]hh:mm:ss[.fffffff], as 00:30:00 or 1.12:00:00"
        )


def format_wire_time(moment: datetime) -> str:
    """Write a time in the headers' form. Raise ValueError if the time has no zone."""
    if moment.tzinfo is None:
        raise ValueError(f"time {moment} has no zone: give an aware datetime, as datetime.now(UTC)")
    utc = moment.astimezone(UTC).replace(tzinfo=None)
    return utc.isoformat(sep=" ", timespec="microseconds").replace(".", ":") + " Z"


def parse_wire_time(text: str) -> datetime:
    """Read a time of a header, in UTC. Raise BadWireTime if the text has another form."""
    parts = _WIRE_TIME.fullmatch(text)
    try:
        return datetime.fromisoformat(f"{parts[1]}.{parts[2]}+00:00" if parts else "")
    except ValueError:
        reason = (
            f"time {text[:64]!r} cannot be read: "
            "expected yyyy-MM-dd HH:mm:ss:ffffff Z, as 2026-06-30 17:05:09:123456 Z"
        )
        raise BadWireTime(reason) from None


def parse_span(text: str, *, longest: int = LONGEST_SPAN, what: str = LIFETIME) -> int:
    """
    Read .NET's invariant `[d.]hh:mm:ss[.fffffff]` as milliseconds.

    Parts of a millisecond are cut off, as the transports do. `what` is the span's name in errors.

    Raises:
        BadTimeSpan: the text has another form, is negative, or is more than `longest` milliseconds.
    """
    parts = _SPAN.fullmatch(text)
    if parts is None:
        negative = _SPAN.fullmatch(text.removeprefix("-"))
        raise BadTimeSpan(what, text, "is negative" if negative else "cannot be read")
    days, hours, minutes, seconds = (int(part or 0) for part in parts.groups()[:4])
    whole = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    milliseconds = whole * 1000 + int((parts[5] or "").ljust(3, "0")[:3])
    if milliseconds > longest:
        raise BadTimeSpan(what, text, f"is longer than {span(longest)}")
    return milliseconds


def format_span(milliseconds: int) -> str:
    """Write a time-to-be-received as .NET does. Raise BadTimeSpan if it is too long for that."""
    if not 0 <= milliseconds <= LONGEST_SPAN:
        reason = f"is not between 0 and {LONGEST_SPAN} ms"
        raise BadTimeSpan(LIFETIME, f"{milliseconds} ms", reason)
    return span(milliseconds)


def span(milliseconds: int) -> str:
    """Write any time span as .NET does: `00:30:00`, `1.12:00:00`, `00:00:01.5000000`."""
    days, rest = divmod(milliseconds, 86_400_000)
    hours, rest = divmod(rest, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    seconds, rest = divmod(rest, 1000)
    whole_days = f"{days}." if days else ""
    fraction = f".{rest:03d}0000" if rest else ""
    return f"{whole_days}{hours:02d}:{minutes:02d}:{seconds:02d}{fraction}"


# ----- names of .NET types -------------------------------------------------------------------

# The header EnclosedMessageTypes lists assembly-qualified names (`Shop.Placed, Shop,
# Version=1.0.0.0`). The full name (`Shop.Placed`) is the text before the first comma, and is also
# the topic. A generic type has its arguments, with their assemblies, in brackets. So a comma ends a
# name only outside of brackets. A backslash escapes a character. The text is untrusted: every
# function accepts any text and takes one pass. A text that is not a type name is returned
# unchanged.

SEPARATOR = ";"  # separates the types of EnclosedMessageTypes, also inside of brackets

_MARKS = re.compile(r"\\.|[\[\],\s]", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_INTERFACE = re.compile(r"I[A-Z][a-z]")  # how .NET code names interfaces: IOrderEvent


def full_name(name: str) -> str:
    """Return the full name of a type, which is its topic: the text before the first comma."""
    return name[: next(_commas(name), len(name))].strip()


def split_types(header: str | None) -> list[str]:
    """Return the names in EnclosedMessageTypes, the most derived one first, without blank names."""
    names = [part.strip() for part in (header or "").split(SEPARATOR)]
    return [name for name in names if name]


def split_names(text: str) -> list[str]:
    """Split the full names of an option at commas. Blank names are kept. They are refused later."""
    return split_at(text, _commas(text))


def has_blank(text: str) -> bool:
    """Return whether there is white space outside of brackets, for example before an assembly."""
    return any(mark.isspace() for _, mark in _outside_brackets(text))


def topic_problem(topic: str) -> str | None:
    """Return why a text cannot be a topic, or None if it can be one."""
    if not topic.strip():
        return "a blank topic"
    if SEPARATOR in topic:
        return f"a topic with {SEPARATOR!r}: give each type as an item of its own"
    if "\0" in topic:
        return "a topic with a NUL character"
    return None


def types_problem(header: str) -> str | None:
    """
    Return why a text cannot be the header EnclosedMessageTypes, or None if it can be.

    An endpoint fails on a blank name between semicolons. The source code of NServiceBus 10 says so.
    """
    seen: set[str] = set()
    for part in header.split(SEPARATOR):
        name = full_name(part)
        if not name:
            return "a blank name"
        if name[0] in "[]" or _CONTROL.search(part.strip()):
            return f"{part.strip()!r}, which is no type name"
        if name in seen:
            return f"{name} twice"
        seen.add(name)
    return None


def begins_with_interface(header: str) -> bool:
    """
    Return whether the types begin with an interface, although a class follows.

    Only the names are known, and a class can be named IPhoneOrdered. So a caller may only warn.
    """
    names = [re.split(r"[.+]", full_name(name))[-1] for name in split_types(header)]
    interfaces = [bool(_INTERFACE.match(name)) for name in names]
    return bool(interfaces) and interfaces[0] and not all(interfaces)


def _commas(text: str) -> Iterator[int]:
    return (place for place, mark in _outside_brackets(text) if mark == ",")


def _outside_brackets(text: str) -> Iterator[tuple[int, str]]:
    """Yield each comma and white space outside of brackets, with its place."""
    depth = 0
    for mark in _MARKS.finditer(text):
        if mark[0] == "[":
            depth += 1
        elif mark[0] == "]":
            depth = max(0, depth - 1)
        elif len(mark[0]) == 1 and not depth:
            yield mark.start(), mark[0]
