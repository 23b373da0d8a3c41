"""
Tokens of TDS 7.4, the protocol of SQL Server, as a server sends them.

The public specification is MS-TDS. Only what the tests need is here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

COLLATION = bytes.fromhex("0904d00034")  # Latin1_General_CI_AS
UNKNOWN_LENGTH = 0xFFFFFFFFFFFFFFFE  # of a value that is sent in chunks
# status of a DONE token
FINAL, MORE, ERROR, ATTENTION = 0x00, 0x01, 0x02, 0x20
DONE, DONE_IN_PROCEDURE, DONE_PROCEDURE = 0xFD, 0xFF, 0xFE


@dataclass(frozen=True)
class Message:
    """An error of the server, as `sys.messages` has it."""

    number: int
    text: str
    severity: int = 16
    state: int = 1


def short_text(text: str) -> bytes:
    """Return a text with its length in one byte."""
    return struct.pack("<B", len(text)) + text.encode("utf-16-le")


def sized(token: int, body: bytes) -> bytes:
    """Return a token with its length in two bytes."""
    return struct.pack("<BH", token, len(body)) + body


def prelogin() -> bytes:
    """Return the answer to the first packet: a version of SQL Server 2022, no encryption."""
    options = [(0, bytes([16, 0, 0x10, 0x00, 0, 0])), (1, b"\x02"), (2, b"\0"), (4, b"\0")]
    place = 5 * len(options) + 1
    heads, values = b"", b""
    for name, value in options:
        heads += struct.pack(">BHH", name, place + len(values), len(value))
        values += value
    return heads + b"\xff" + values


def login_accepted(database: str, packet: int) -> bytes:
    """Return the tokens after which a session is open."""
    changes = [
        b"\x01" + short_text(database) + short_text("master"),
        b"\x07" + bytes([5]) + COLLATION + b"\0",
        b"\x04" + short_text(str(packet)) + short_text(str(packet)),
    ]
    version = bytes([16, 0, 0x10, 0x00])
    accepted = b"\x01" + struct.pack(">I", 0x74000004) + short_text("Microsoft SQL Server")
    return (
        b"".join(sized(0xE3, change) for change in changes)
        + sized(0xAD, accepted + version)
        + done()
    )


def error(message: Message) -> bytes:
    """Return an error."""
    text = struct.pack("<H", len(message.text)) + message.text.encode("utf-16-le")
    head = struct.pack("<IBB", message.number, message.state, message.severity)
    return sized(0xAA, head + text + short_text("tds") + short_text("") + struct.pack("<I", 1))


def done(status: int = FINAL, rows: int | None = None, token: int = DONE) -> bytes:
    """Return the end of a statement, of a statement in a procedure, or of a procedure."""
    counted = 0 if rows is None else 0x10
    return struct.pack("<BHHQ", token, status | counted, 0xC1, rows or 0)


def procedure_done(status: int, handle: int | None) -> bytes:
    """Return the end of a procedure, with the handle of a prepared statement if there is one."""
    result = b"\x79" + struct.pack("<i", 0)
    if handle is not None:
        kind = struct.pack("<IH", 0, 0) + b"\x26\x04"
        result += b"\xac" + struct.pack("<H", 0) + short_text("") + b"\x01" + kind
        result += b"\x04" + struct.pack("<i", handle)
    return result + done(status, token=DONE_PROCEDURE)


def columns(*each: tuple[str, str]) -> bytes:
    """Return the names and the types of a result: `int`, `binary` or `text`."""
    kinds = {
        "int": b"\x26\x04",
        "binary": b"\xa5\xff\xff",
        "text": b"\xe7\xff\xff" + COLLATION,
    }
    body = b"".join(
        struct.pack("<IH", 0, 0x09) + kinds[kind] + short_text(name) for name, kind in each
    )
    return b"\x81" + struct.pack("<H", len(each)) + body


def row(*values: bytes) -> bytes:
    """Return a row of encoded values."""
    return b"\xd1" + b"".join(values)


def number(value: int) -> bytes:
    """Return a value of type `int`."""
    return b"\x04" + struct.pack("<i", value)


def large(value: bytes) -> bytes:
    """Return a value of type `binary` or `text`, in one chunk."""
    return large_start(len(value), value) + struct.pack("<I", 0)


def large_start(total: int, first: bytes) -> bytes:
    """Return the beginning of a large value: its length, and one chunk of it."""
    return struct.pack("<QI", total, len(first)) + first
