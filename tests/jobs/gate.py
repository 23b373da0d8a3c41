"""
A gate between a job and its database: up to a moment it lets all through, then no answer any more.

Whether the moment has come is asked before each answer is passed on. So a job cannot run past it,
however slow the one who kills it: it stands there, its statement done and the answer not heard.
"""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHUNK = 1 << 16


class Gate:
    """Passes connections on until a moment; `shut` tells that it has come."""

    def __init__(self, url: str, moment: Callable[[], object]) -> None:
        """
        Begin; `opened` does the work.

        Args:
            url: of a database, over TCP.
            moment: when no answer is passed on any more.
        """
        self.parts = urlsplit(url)
        self.moment = moment
        self.shut, self.over = threading.Event(), threading.Event()
        self._asking = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listening]

    @property
    def url(self) -> str:
        """The same database, through the gate."""
        login, at, _ = self.parts.netloc.rpartition("@")
        port = self._listening.getsockname()[1]
        return urlunsplit(self.parts._replace(netloc=f"{login}{at}127.0.0.1:{port}"))

    def serve(self) -> None:
        """Take connections in."""
        there = self.parts.hostname or "127.0.0.1", self.parts.port or 5432
        with suppress(OSError):  # closed
            while True:
                job, _ = self._listening.accept()
                server = socket.create_connection(there)
                self._sockets += [job, server]
                begin(self._pass_on, job, server, lambda: True)
                begin(self._pass_on, server, job, self._may_answer)

    def _pass_on(self, here: socket.socket, there: socket.socket, may: Callable[[], bool]) -> None:
        with suppress(OSError):  # one of the two has gone
            while (said := here.recv(CHUNK)) and may():
                there.sendall(said)
        for each in (here, there):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _may_answer(self) -> bool:
        """Wait for the end, if the moment has come."""
        with self._asking:
            if not self.shut.is_set() and self.moment():
                self.shut.set()
        if self.shut.is_set():
            self.over.wait()
        return not self.shut.is_set()

    def close(self) -> None:
        """End all connections."""
        self.over.set()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # wakes who reads or accepts
            each.close()


def begin(work: Callable[..., None], *args: object) -> None:
    """Do something beside the test."""
    threading.Thread(target=work, args=args, daemon=True).start()


@contextmanager
def opened(url: str, moment: Callable[[], object]) -> Iterator[Gate]:
    """Give a gate as long as the block."""
    with ExitStack() as stack:
        gate = Gate(url, moment)
        stack.callback(gate.close)
        begin(gate.serve)
        yield gate
