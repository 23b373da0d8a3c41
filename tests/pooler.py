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

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

WHOLE = b"QX"  # a query in one message; good-bye
# what a pooler says to a begin that lends its sessions for a statement only, and is gone
REFUSED = b"SFATAL\0C08P01\0Mtransaction blocks not allowed in statement pooling mode\0\0"
# what PgBouncer says to a client that brings settings of its own
STRANGE = b"SFATAL\0C08P01\0Munsupported startup parameter: options\0\0"
IDLE = b"I"  # of ReadyForQuery: no transaction is open


class Relay:
    """Passes messages on, and keeps the kinds of those that a pooler would tear apart."""

    def __init__(self, host: str, port: int, *, begins: bool, options: bool) -> None:
        """
        Listen; the server is at `host`.

        Without `begins` a session is lent for a statement; without `options` clients may bring
        none.
        """
        self.refused = 0  # clients that brought options
        self.torn: list[bytes] = []
        self.whole = 0  # messages between transactions that are as they should be
        self._server = host, port
        self._begins = begins
        self._options = options
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Take no more clients."""
        self._door.close()

    def _serve(self) -> None:
        while True:
            try:
                client = self._door.accept()[0]
            except OSError:  # closed
                return
            threading.Thread(target=self._session, args=(client,), daemon=True).start()

    def _session(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with client, client.makefile("rb") as asked:
            start = message(asked)  # the first one has no kind
            if self._options or b"\0options\0" not in start:
                self._lend(client, asked, start)
            else:
                self.refused += 1
                client.sendall(b"E" + (len(STRANGE) + 4).to_bytes(4) + STRANGE)

    def _lend(self, client: socket.socket, asked: BufferedReader, start: bytes) -> None:
        state = [b""]  # the server's, as it said last
        with socket.create_connection(self._server) as server:
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
def relayed(url: str, *, begins: bool = True, options: bool = True) -> Iterator[tuple[str, Relay]]:
    """Give the url of a relay in front of a server over TCP, and the relay."""
    parts = urlsplit(url)
    relay = Relay(parts.hostname or "127.0.0.1", parts.port or 5432, begins=begins, options=options)
    login = parts.netloc.rpartition("@")[0]
    plain = "&".join(filter(None, (parts.query, "sslmode=disable", "gssencmode=disable")))
    there = parts._replace(netloc=f"{login}@127.0.0.1:{relay.port}", query=plain)
    yield there.geturl(), relay
    relay.close()
