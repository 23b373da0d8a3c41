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

from proxy import Proxy, moved

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import trustme

ASKED = (80877103).to_bytes(4)  # a client asks for TLS
HOST = "db.example"


class Door(Proxy):
    """Lets clients in, over TLS if it has a certificate, and counts them."""

    def __init__(self, url: str, context: ssl.SSLContext | None) -> None:
        """Listen in front of the server of the url."""
        self.encrypted = 0  # clients that were satisfied with the certificate
        self.plain = 0  # clients that went on without TLS
        self._context = context
        super().__init__(url)

    def session(self, client: socket.socket) -> None:
        """Answer the client's wish for TLS, and relay the rest."""
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
        with socket.create_connection(self.server) as server:
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
def door(
    url: str, authority: trustme.CA | None, *names: str, clients: trustme.CA | None = None
) -> Iterator[Door]:
    """
    Give a door in front of a server over TCP.

    Args:
        url: the server's.
        authority: who issues the door's certificate; None: it has none, and speaks no TLS.
        names: host names and addresses in the certificate.
        clients: who issues the certificates that clients must have; None: they need none.
    """
    context = None
    if authority is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(*names).configure_cert(context)
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            clients.configure_trust(context)
    made = Door(url, context)
    try:
        yield made
    finally:
        made.close()


def client_words(issuer: trustme.CA, user: str, folder: Path) -> list[str]:
    """Write a client's certificate and its key, and return the parameters that name them."""
    issued = issuer.issue_cert(f"{user}@clients.example", common_name=user)
    certificate, key = folder / f"{user}.pem", folder / f"{user}.key"
    issued.cert_chain_pems[0].write_to_path(certificate)
    key.touch(0o600)  # libpq reads no key that others may read
    issued.private_key_pem.write_to_path(key)
    return [f"sslcert={certificate}", f"sslkey={key}"]


def through(url: str, made: Door, *parameters: str, host: str = HOST) -> str:
    """The url of a server behind a door, which is found under the host's name."""
    return moved(url, host, made.port, *parameters, "hostaddr=127.0.0.1")
