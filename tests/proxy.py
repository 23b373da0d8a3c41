"""Our own servers in front of PostgreSQL. They pass messages on, and count or change them."""

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
    from io import BufferedReader
    from pathlib import Path

    import trustme


class Proxy:
    """Listens on a port of its own, and runs `session` for each client."""

    def __init__(self, url: str) -> None:
        """Listen; the url is that of the server, over TCP."""
        parts = urlsplit(url)
        self.server = parts.hostname or "127.0.0.1", parts.port or 5432
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client = self.listening.accept()[0]
                threading.Thread(target=self._run, args=(client,), daemon=True).start()

    def _run(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:  # also a handshake that the client ends
            self.session(client)

    def session(self, client: socket.socket) -> None:
        """Serve a client until either side ends."""
        raise NotImplementedError


def moved(url: str, host: str, port: int, *parameters: str) -> str:
    """The url with another host and port, with other parameters, and with the same login."""
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    query = "&".join(filter(None, parameters))
    return parts._replace(netloc=f"{login}@{host}:{port}", query=query).geturl()


# ---------------------------------------------------------------- TLS

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
        """Answer the client's request for TLS, and relay the rest."""
        start = client.recv(8, socket.MSG_WAITALL)
        if start[4:] == ASKED and self._context is not None:
            client.sendall(b"S")
            with self._context.wrap_socket(client, server_side=True) as inside:
                if start := inside.recv(65536):
                    self.encrypted += 1
                    self._relay(inside, start)
            return
        if start[4:] == ASKED:
            client.sendall(b"N")
            start = client.recv(8, socket.MSG_WAITALL)
        self.plain += bool(start)
        self._relay(client, start)

    def _relay(self, client: socket.socket, start: bytes) -> None:
        with socket.create_connection(self.server) as server:
            server.sendall(start)
            threading.Thread(target=pump, args=(server, client), daemon=True).start()
            pump(client, server)


def pump(one: socket.socket, other: socket.socket) -> None:
    """Pass on what arrives, until either side ends."""
    with contextlib.suppress(OSError):
        while part := one.recv(65536):
            other.sendall(part)
        other.shutdown(socket.SHUT_WR)


@contextmanager
def door(
    url: str, authority: trustme.CA | None, *names: str, clients: trustme.CA | None = None
) -> Iterator[Door]:
    """
    Give a door with a certificate, or without TLS.

    `clients` issues the clients' certificates.
    """
    context = None
    if authority is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(*names).configure_cert(context)
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            clients.configure_trust(context)
    made = Door(url, context)
    with made.listening:
        yield made


def client_words(issuer: trustme.CA, user: str, folder: Path) -> list[str]:
    """Write a client's certificate and its key, and return the parameters that name them."""
    issued = issuer.issue_cert(f"{user}@clients.example", common_name=user)
    certificate, key = folder / f"{user}.pem", folder / f"{user}.key"
    issued.cert_chain_pems[0].write_to_path(certificate)
    key.touch(0o600)  # libpq reads no key that others may read
    issued.private_key_pem.write_to_path(key)
    return [f"sslcert={certificate}", f"sslkey={key}"]


def through(url: str, made: Door, *parameters: str, host: str = HOST) -> str:
    """The url of a server behind a door, which has the host's name."""
    return moved(url, host, made.port, *parameters, "hostaddr=127.0.0.1")


# ---------------------------------------------------------------- a transaction pooler

WHOLE = b"QX"  # kinds of messages: a query in one message, and the end of the session
# a pooler that lends a session for one statement only answers this to BEGIN
REFUSED = "transaction blocks not allowed in statement pooling mode"
# what PgBouncer says to a client that brings settings of its own
STRANGE = "unsupported startup parameter: options"
IDLE = b"I"  # the state in ReadyForQuery: no transaction is open


def message(stream: BufferedReader) -> bytes:
    """One message after the byte of its kind: its length, which counts itself, and its text."""
    head = stream.read(4)
    return head + stream.read(int.from_bytes(head) - 4)


def error(text: str) -> bytes:
    """A fatal error in the form of a pooler."""
    said = f"SFATAL\0C08P01\0M{text}\0\0".encode()
    return b"E" + (len(said) + 4).to_bytes(4) + said


class Pooler(Proxy):
    """
    Lends a session from the begin of a transaction to its end.

    Between transactions only whole statements may be sent, each in one message. It records the
    kinds of all others, which a pooler would spread over sessions.
    """

    def __init__(self, url: str, *, begins: bool, options: bool) -> None:
        """Refuse BEGIN without `begins`, and the options of a session without `options`."""
        self.refused = 0  # clients that brought options
        self.torn: list[bytes] = []
        self.whole = 0  # messages between transactions that are as they should be
        self._begins = begins
        self._options = options
        super().__init__(url)

    def session(self, client: socket.socket) -> None:
        """Lend a session of the server, transaction by transaction."""
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        state = [b""]  # the server's, as it said last
        with client.makefile("rb") as asked, socket.create_connection(self.server) as server:
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            start = message(asked)  # the first one has no kind
            if not self._options and b"\0options\0" in start:
                self.refused += 1
                client.sendall(error(STRANGE))
                return
            back = threading.Thread(target=answer, args=(server, client, state), daemon=True)
            back.start()
            server.sendall(start)
            while kind := asked.read(1):
                text = message(asked)
                if state[0] == IDLE:
                    self.whole += kind in WHOLE
                    self.torn += [] if kind in WHOLE else [kind]
                if not self._begins and b"BEGIN" in text:
                    client.sendall(error(REFUSED))
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


@contextmanager
def relayed(url: str, *, begins: bool = True, options: bool = True) -> Iterator[tuple[str, Pooler]]:
    """Give the url of a pooler in front of a server over TCP, and the pooler."""
    relay = Pooler(url, begins=begins, options=options)
    with relay.listening:
        yield without_tls(url, relay), relay


def without_tls(url: str, made: Proxy) -> str:
    """The url of a server behind a proxy that reads each message."""
    plain = (urlsplit(url).query, "sslmode=disable", "gssencmode=disable")
    return moved(url, "127.0.0.1", made.port, *plain)


# ---------------------------------------------------------------- what a client asks


class Recorder(Proxy):
    """Passes everything on, records the queries that are one message, and counts rows."""

    def __init__(self, url: str) -> None:
        """Listen in front of the server of the url."""
        self.sessions = self.rows = 0
        self.queries: list[str] = []
        super().__init__(url)

    def session(self, client: socket.socket) -> None:
        """Relay a session."""
        self.sessions += 1
        with client.makefile("rb") as asked, socket.create_connection(self.server) as server:
            threading.Thread(target=self._answer, args=(server, client), daemon=True).start()
            server.sendall(message(asked))
            while kind := asked.read(1):
                text = message(asked)
                if kind == b"Q":
                    self.queries.append(text[4:-1].decode())
                server.sendall(kind + text)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError), server.makefile("rb") as said:
            while kind := said.read(1):
                self.rows += kind == b"D"
                client.sendall(kind + message(said))
