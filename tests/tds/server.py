"""
A server that speaks TDS 7.4 to a real driver, and replays the answer that a test has prepared.

It stands for no database: it parses no statement and holds no data. It shows what a driver makes
of an error, wherever the error stands in an answer. The public specification is MS-TDS.
"""

from __future__ import annotations

import socketserver
import struct
import threading
from contextlib import suppress
from multiprocessing.managers import BaseManager

BATCH, CALL, RESULT, STOP, LOGIN, PRELOGIN = 0x01, 0x03, 0x04, 0x06, 0x10, 0x12
PACKET = 4096  # bytes
# values of the status of a DONE token
FINAL, MORE, ERROR, ATTENTION = 0x00, 0x01, 0x02, 0x20
# the answer to a PRELOGIN: SQL Server 2022, without encryption
VERSION = bytes.fromhex("000015000601001b000102001c000104001d0001ff100010000000020000")
# the answer to a LOGIN: database shop, collation Latin1_General_CI_AS, packets of 4096 bytes, and
# the server's name
ACCEPTED = bytes.fromhex(
    "e317000104730068006f007000066d0061007300740065007200e3080007050904d0003400e3130004043400"
    "300039003600043400300039003600ad32000174000004144d006900630072006f0073006f00660074002000"
    "530051004c00200053006500720076006500720010001000"
)
HANDLE = bytes.fromhex("ac0000000100000000000026040401000000")  # handle of a prepared statement
# the columns seq and body of a result
COLUMNS = bytes.fromhex("810200000000000900260403730065007100000000000900a5ffff0462006f0064007900")
SEQ = bytes.fromhex("810100000000000900260403730065007100")  # only the column seq
END_OF_VALUE = struct.pack("<I", 0)


class Script(socketserver.ThreadingTCPServer):
    """Listens on a port of this machine, with the answers for one test after another."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Session)
        self.port = self.server_address[1]
        self.clear()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def clear(self) -> None:
        """Begin again, for the next test."""
        self.sent, self.ends = b"", "whole"
        self.refusals: list[bytes] = []
        self.logged_in = b""
        self.is_open = 1
        self.connections = 0
        self.requests = 0
        self.calls = 0  # calls of procedures
        # a new set, because a session of an earlier test may end late
        self.alive: set[Session] = set()

    def prepare(self, sent: bytes, ends: str = "whole") -> None:
        """
        Set what is sent for `take`; other statements get an empty answer.

        It ends `whole`, or as `failed`, or the server cuts the connection, or stalls.
        """
        self.sent, self.ends = sent, ends

    def end_transactions(self) -> None:
        """Let each error end the whole transaction, also after a savepoint."""
        self.is_open = 0

    def refuse(self, *logins: bytes) -> None:
        """Set the errors that refuse the next logins. An empty one hangs up."""
        self.refusals = list(logins)

    def login(self) -> bytes:
        """Return the last login that a driver sent, as it sent it."""
        return self.logged_in

    def count(self, what: str) -> int:
        """Return the number of `connections`, `open` ones, `requests` or `calls`, or the `port`."""
        return len(self.alive) if what == "open" else int(getattr(self, what))


class Process(BaseManager):
    """
    Runs the script in a process of its own.

    mssql-python holds Python's interpreter while it waits for large values in columns. A server in
    the same process could neither answer nor hang up then.
    """


Process.register("Script", Script)


class Session(socketserver.StreamRequestHandler):
    """One connection."""

    disable_nagle_algorithm = True
    server: Script

    def handle(self) -> None:
        """Answer messages until the driver leaves."""
        body = b""
        self.server.connections += 1
        self.server.alive.add(self)
        with suppress(OSError):
            while head := self.rfile.read(8):
                kind, status, size = struct.unpack(">BBH", head[:4])
                body += self.rfile.read(size - 8)
                if status & 1:
                    if not self.reply(kind, body):
                        break
                    body = b""
        self.server.alive.discard(self)

    def reply(self, kind: int, body: bytes) -> bool:
        """Answer one message; return whether the connection goes on."""
        if kind == LOGIN:
            self.server.logged_in = body
        if kind == LOGIN and self.server.refusals:
            if refusal := self.server.refusals.pop(0):
                self.send(refusal + done(ERROR))
            return False
        self.server.calls += kind == CALL
        self.server.requests += kind in {BATCH, CALL}
        if kind == BATCH and "XACT_STATE()".encode("utf-16-le") in body:
            self.send(SEQ + row(self.server.is_open) + done())
            return True
        asked = any("sqlqueue:take".encode(each) in body for each in ("utf-16-le", "ascii"))
        if kind not in {BATCH, CALL} or not asked:
            answers = {PRELOGIN: VERSION, LOGIN: ACCEPTED + done(), STOP: done(ATTENTION)}
            self.send(answers.get(kind) or end_of(kind, FINAL))
            return True
        sent, ends = self.server.sent, self.server.ends
        if ends in {"cut", "stalls"}:
            self.send(sent, last=False)
            return ends == "stalls"
        self.send(sent + end_of(kind, ERROR if ends == "failed" else FINAL))
        return True

    def send(self, body: bytes, *, last: bool = True) -> None:
        """Send a message in packets. One that is not the last has no end, and may be empty."""
        parts = [body[at : at + PACKET - 8] for at in range(0, len(body), PACKET - 8)]
        for at, part in enumerate(parts, 1):
            ends = last and at == len(parts)
            self.wfile.write(struct.pack(">BBHHBB", RESULT, ends, len(part) + 8, 51, at % 256, 0))
            self.wfile.write(part)


# ---------------------------------------------------------------- tokens


def done(status: int = FINAL, token: int = 0xFD) -> bytes:
    """Return a token DONE, DONEINPROC (`token` 0xFF) or DONEPROC (0xFE)."""
    return struct.pack("<BHHQ", token, status, 0xC1, 0)


def end_of(kind: int, status: int) -> bytes:
    """Return the end of a batch, or of a call, which returns the handle of what it prepared."""
    if kind != CALL:
        return done(status)
    result = b"\x79" + bytes(4) + (HANDLE if status == FINAL else b"")
    return done(status | MORE, 0xFF) + result + done(status, 0xFE)


def error(number: int, text: str) -> bytes:
    """Return an error, of severity 16."""
    said = struct.pack("<IBBH", number, 1, 16, len(text)) + text.encode("utf-16-le") + bytes(6)
    return struct.pack("<BH", 0xAA, len(said)) + said


def row(seq: int, body: bytes | None = None, size: int | None = None) -> bytes:
    """Return a row. With `size` its body is only the first chunk of a value of `size` bytes."""
    head = b"\xd1\x04" + struct.pack("<i", seq)
    if body is None:
        return head
    start = head + struct.pack("<QI", size or len(body), len(body)) + body
    return start if size else start + END_OF_VALUE
