"""
A server that speaks TDS to a real driver, and replays answers that a test has prepared.

It stands for no database: it parses no statement and holds no data. It shows what a driver makes
of an error, wherever the error stands in an answer. One thread serves one connection. See `stage`
for its process.
"""

from __future__ import annotations

import re
import socketserver
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import tokens

if TYPE_CHECKING:
    import socket

BATCH, CALL, RESULT, STOP, LOGIN, PRELOGIN = 0x01, 0x03, 0x04, 0x06, 0x10, 0x12
PACKET = 4096  # bytes
PREPARE_AND_EXECUTE = 13  # the number of sp_prepexec
HANDLE = 1
TEXT = re.compile(rb"(?:[\t-~]\0){3,}|[\t-~]{6,}")  # nvarchar, or varchar


@dataclass(frozen=True)
class Answer:
    """What the server sends for a statement."""

    sent: bytes = b""  # tokens before the last one
    failed: bool = False  # whether the last token reports an error
    cut: bool = False  # whether the connection ends in place of a last token
    stalls: bool = False  # whether nothing more comes until the driver gives up


@dataclass
class Script:
    """The answers of a test, and what the server received."""

    answers: dict[str, Answer] = field(default_factory=dict)  # part of a statement → answer
    logins: list[bytes] = field(default_factory=list)  # refusals of the next; b"" hangs up
    statements: list[str] = field(default_factory=list)
    connections: int = 0
    calls: int = 0  # of procedures, which statements with values are
    open: int = 0  # connections that have not ended

    def answer(self, statement: str) -> Answer:
        """Return the answer of a statement; an empty one if the test prepared none."""
        self.statements.append(statement)
        found = (answer for part, answer in self.answers.items() if part in statement)
        return next(found, Answer())


class Session(socketserver.StreamRequestHandler):
    """One connection."""

    disable_nagle_algorithm = True

    request: socket.socket
    server: Server

    def handle(self) -> None:
        """Answer packets until the driver leaves."""
        script = self.server.script
        script.connections += 1
        script.open += 1
        try:
            with suppress(ConnectionError, OSError):
                while (received := self.receive()) is not None:
                    if not self.reply(*received):
                        return
        finally:
            script.open -= 1

    def reply(self, kind: int, body: bytes) -> bool:
        """Answer one message; return whether the connection goes on."""
        if kind == PRELOGIN:
            self.send(tokens.prelogin())
        elif kind == LOGIN:
            return self.log_in()
        elif kind == STOP:
            self.send(tokens.done(tokens.ATTENTION))
        elif kind in {BATCH, CALL}:
            return self.execute(kind, body)
        else:
            self.send(tokens.done())
        return True

    def log_in(self) -> bool:
        """Refuse the login as the script says, or accept it."""
        if self.server.script.logins:
            refusal = self.server.script.logins.pop(0)
            if refusal:
                self.send(refusal + tokens.done(tokens.ERROR))
            return False
        self.send(tokens.login_accepted("shop", PACKET))
        return True

    def execute(self, kind: int, body: bytes) -> bool:
        """Send the answer of a statement."""
        procedure = kind == CALL
        self.server.script.calls += procedure
        answer = self.server.script.answer(text_of(body))
        if answer.cut or answer.stalls:
            self.send(answer.sent, last=False)
            return answer.stalls
        status = tokens.ERROR if answer.failed else tokens.FINAL
        end = tokens.done(status)
        if procedure:
            handle = HANDLE if not answer.failed and prepares(body) else None
            inner = tokens.done(status | tokens.MORE, token=tokens.DONE_IN_PROCEDURE)
            end = inner + tokens.procedure_done(status, handle)
        self.send(answer.sent + end)
        return True

    def receive(self) -> tuple[int, bytes] | None:
        """Return the type and the body of a message; None when the driver has left."""
        body = b""
        while head := self.read(8):
            kind, status, size = struct.unpack(">BBH", head[:4])
            body += self.read(size - 8)
            if status & 1:
                return kind, body
        return None

    def read(self, size: int) -> bytes:
        """Return so many bytes; fewer only at the end."""
        found = b""
        while len(found) < size and (part := self.request.recv(size - len(found))):
            found += part
        return found

    def send(self, body: bytes, *, last: bool = True) -> None:
        """Send a message in packets; one that is not the last has no end, and may be empty."""
        room = PACKET - 8
        parts = [body[at : at + room] for at in range(0, len(body), room)]
        sent = b""
        for at, part in enumerate(parts, 1):
            ends = last and at == len(parts)
            head = struct.pack(">BBHHBB", RESULT, int(ends), len(part) + 8, 51, at % 256, 0)
            sent += head + part
        self.request.sendall(sent)


class Server(socketserver.ThreadingTCPServer):
    """Listens on a port of this machine."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), Session)
        self.script = script

    @property
    def port(self) -> int:
        """The port."""
        return int(self.server_address[1])


def text_of(body: bytes) -> str:
    """Return the readable texts of a batch or a call, wherever they stand in its bytes."""
    found = TEXT.findall(body)
    return " ".join(each.replace(b"\0", b"").decode("ascii") for each in found)


def prepares(body: bytes) -> bool:
    """Whether a call is sp_prepexec, whose answer contains a handle."""
    skipped = struct.unpack("<I", body[:4])[0]  # the headers of the message
    return body[skipped : skipped + 4] == struct.pack("<HH", 0xFFFF, PREPARE_AND_EXECUTE)
