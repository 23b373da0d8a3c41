"""
A relay in front of PostgreSQL that notes what a transaction pooler would tear apart.

Such a pooler lends a client a session from the begin of a transaction to its end. A statement that
is prepared while none is open may be looked for in another session afterwards, so all that may be
sent between transactions is a whole statement, in one message.
"""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from proxy import Proxy, moved

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

WHOLE = b"QX"  # a query in one message; good-bye
# what a pooler says to a begin that lends its sessions for a statement only, and is gone
REFUSED = b"SFATAL\0C08P01\0Mtransaction blocks not allowed in statement pooling mode\0\0"
# what PgBouncer says to a client that brings settings of its own
STRANGE = b"SFATAL\0C08P01\0Munsupported startup parameter: options\0\0"
IDLE = b"I"  # of ReadyForQuery: no transaction is open


class Pooler(Proxy):
    """Passes messages on, and keeps the kinds of those that a pooler would tear apart."""

    def __init__(self, url: str, *, begins: bool, options: bool) -> None:
        """Without `begins` a session is lent for a statement; without `options` none may come."""
        self.refused = 0  # clients that brought options
        self.torn: list[bytes] = []
        self.whole = 0  # messages between transactions that are as they should be
        self._begins = begins
        self._options = options
        super().__init__(url)

    def session(self, client: socket.socket) -> None:
        """Lend a session of the server, transaction by transaction."""
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with client.makefile("rb") as asked:
            start = message(asked)  # the first one has no kind
            if self._options or b"\0options\0" not in start:
                self._lend(client, asked, start)
            else:
                self.refused += 1
                client.sendall(b"E" + (len(STRANGE) + 4).to_bytes(4) + STRANGE)

    def _lend(self, client: socket.socket, asked: BufferedReader, start: bytes) -> None:
        state = [b""]  # the server's, as it said last
        with socket.create_connection(self.server) as server:
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=answer, args=(server, client, state), daemon=True)
            back.start()
            server.sendall(start)
            while kind := asked.read(1):
                text = message(asked)
                if state[0] == IDLE:
                    self.whole += kind in WHOLE
                    self.torn += [] if kind in WHOLE else [kind]
                if not self._begins and b"BEGIN" in text:
                    client.sendall(b"E" + (len(REFUSED) + 4).to_bytes(4) + REFUSED)
                    break
                server.sendall(kind + text)
            server.shutdown(socket.SHUT_WR)
            back.join()


def answer(server: socket.socket, client: socket.socket, state: list[bytes]) -> None:
    """Pass on what a server says, and keep its state."""
    with server.makefile("rb") as said:
        while kind := said.read(1):
            text = message(said)
            if kind == b"Z":
                state[0] = text[4:]
            client.sendall(kind + text)


def message(stream: BufferedReader) -> bytes:
    """One message behind its kind: its length, itself included, and its text."""
    head = stream.read(4)
    return head + stream.read(int.from_bytes(head) - 4)


@contextmanager
def relayed(url: str, *, begins: bool = True, options: bool = True) -> Iterator[tuple[str, Pooler]]:
    """Give the url of a pooler in front of a server over TCP, and the pooler."""
    relay = Pooler(url, begins=begins, options=options)
    plain = (urlsplit(url).query, "sslmode=disable", "gssencmode=disable")
    yield moved(url, "127.0.0.1", relay.port, *plain), relay
    relay.close()
