"""
A door in front of PostgreSQL that speaks TLS, with certificates made for a test.

The embedded server is built without TLS. The handshake here is a real one; behind it the door hands
on what it reads, so that a test also sees what a client sent before it was satisfied.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

    import trustme

ASKED = (80877103).to_bytes(4)  # a client asks for TLS
HOST = "db.example"


class Door:
    """Lets clients in, over TLS if it has a certificate, and counts them."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        """Listen; the server is at `host`."""
        self.encrypted = 0  # clients that were satisfied with the certificate
        self.plain = 0  # clients that went on without TLS
        self._server = host, port
        self._context = context
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
        with contextlib.suppress(OSError), client:  # also a handshake that the client ends
            start = exactly(client, 8)
            if start[4:] == ASKED and self._context is not None:
                client.sendall(b"S")
                with self._context.wrap_socket(client, server_side=True) as inside:
                    self._relay(inside, exactly(inside, 8), encrypted=True)
            elif start[4:] == ASKED:
                client.sendall(b"N")
                self._relay(client, exactly(client, 8), encrypted=False)
            else:
                self._relay(client, start, encrypted=False)

    def _relay(self, client: socket.socket, start: bytes, *, encrypted: bool) -> None:
        if encrypted:
            self.encrypted += 1
        else:
            self.plain += 1
        with socket.create_connection(self._server) as server:
            server.sendall(start)
            threading.Thread(target=pump, args=(server, client), daemon=True).start()
            pump(client, server)


def exactly(stream: socket.socket, size: int) -> bytes:
    """Read so many bytes."""
    text = b""
    while len(text) < size:
        part = stream.recv(size - len(text))
        if not part:
            raise ConnectionAbortedError
        text += part
    return text


def pump(one: socket.socket, other: socket.socket) -> None:
    """Hand on what comes, until the end of either."""
    with contextlib.suppress(OSError):
        while part := one.recv(65536):
            other.sendall(part)
        other.shutdown(socket.SHUT_WR)


@contextmanager
def door(url: str, authority: trustme.CA | None, *names: str) -> Iterator[Door]:
    """
    Give a door in front of a server over TCP.

    Args:
        url: the server's.
        authority: who issues the door's certificate; None: it has none, and speaks no TLS.
        names: host names and addresses in the certificate.
    """
    context = None
    if authority is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(*names).configure_cert(context)
    parts = urlsplit(url)
    made = Door(parts.hostname or "127.0.0.1", parts.port or 5432, context)
    try:
        yield made
    finally:
        made.close()


def through(url: str, made: Door, *parameters: str, host: str = HOST) -> str:
    """The url of a server behind a door, which is found under the host's name."""
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    query = "&".join((*parameters, "hostaddr=127.0.0.1"))
    return parts._replace(netloc=f"{login}@{host}:{made.port}", query=query).geturl()
