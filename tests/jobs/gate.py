"""
A gate between a job and its database. At a moment it stops passing on answers.

It asks before each answer whether the moment has come. So a job cannot run past it, however slow
the test is that kills it. The job waits there, its statement done and the answer not received.
"""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from proxy import Proxy, moved, pump

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Gate(Proxy):
    """Passes messages on until a moment."""

    def __init__(self, url: str, moment: Callable[[], object]) -> None:
        """Listen in front of a database that is reached over TCP."""
        self.moment = moment
        self.shut, self.over = threading.Event(), threading.Event()
        self._asking = threading.Lock()
        super().__init__(url)
        self.url = moved(url, "127.0.0.1", self.port, urlsplit(url).query)

    def session(self, client: socket.socket) -> None:
        """Pass on what both sides say, up to the moment."""
        with socket.create_connection(self.server) as server:
            threading.Thread(target=pump, args=(client, server), daemon=True).start()
            while (said := server.recv(1 << 16)) and self._may_answer():
                client.sendall(said)

    def _may_answer(self) -> bool:
        """Wait for the end, if the moment has come."""
        with self._asking:
            if not self.shut.is_set() and self.moment():
                self.shut.set()
        if self.shut.is_set():
            self.over.wait()
        return not self.shut.is_set()


@contextmanager
def opened(url: str, moment: Callable[[], object]) -> Iterator[Gate]:
    """Give a gate for as long as the block lasts."""
    gate = Gate(url, moment)
    with gate.listening:
        try:
            yield gate
        finally:
            gate.over.set()
