"""A proxy in front of a server: tests pass its messages on, and count or change them."""

from __future__ import annotations

import contextlib
import socket
import threading
from abc import ABC, abstractmethod
from urllib.parse import urlsplit


class Proxy(ABC):
    """Listens on a port of its own, and runs a session for each client."""

    def __init__(self, url: str) -> None:
        """Listen; the url is that of the server, over TCP."""
        parts = urlsplit(url)
        self.server = parts.hostname or "127.0.0.1", parts.port or 5432
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Take no more clients."""
        self._door.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client = self._door.accept()[0]
                threading.Thread(target=self._run, args=(client,), daemon=True).start()

    def _run(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:  # also a handshake that the client ends
            self.session(client)

    @abstractmethod
    def session(self, client: socket.socket) -> None:
        """Serve a client until either side ends."""


def moved(url: str, host: str, port: int, *parameters: str) -> str:
    """The url with another host and port, other parameters, and the same login."""
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    query = "&".join(filter(None, parameters))
    return parts._replace(netloc=f"{login}@{host}:{port}", query=query).geturl()
