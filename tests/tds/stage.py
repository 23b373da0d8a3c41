"""
The server in a process of its own, and its script from here.

mssql-python holds Python's interpreter while it waits for large values in columns. A server in the
same process could neither answer nor hang up then.
"""

from __future__ import annotations

import multiprocessing
import threading
from contextlib import contextmanager
from multiprocessing.managers import BaseManager
from typing import TYPE_CHECKING

from .server import Script, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .server import Answer


class Host:
    """Holds the server, in its process."""

    def __init__(self) -> None:
        self._server = Server(Script())
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def port(self) -> int:
        """Return the server's port."""
        return int(self._server.server_address[1])

    def clear(self) -> None:
        """Begin a script again, for the next test."""
        self._server.script = Script()

    def prepare(self, answers: dict[str, Answer] | None, logins: list[bytes] | None) -> None:
        """Set parts of the script; None leaves a part as it is."""
        if answers is not None:
            self._server.script.answers = answers
        if logins is not None:
            self._server.script.logins = logins

    def connections(self) -> int:
        """Return how many connections the server accepted in this script."""
        return self._server.script.connections

    def requests(self) -> int:
        """Return how many calls of procedures the server received in this script."""
        return self._server.script.calls

    def open(self) -> int:
        """Return how many of them have not ended."""
        return self._server.script.open


class Manager(BaseManager):
    """Starts the process, and calls a host there."""


Manager.register("Host", Host)


class Stage:
    """The script, as a test fills it in."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.port = host.port()

    def answers(self, found: dict[str, Answer]) -> None:
        """Set what is sent for statements that contain a text; others get an empty answer."""
        self._host.prepare(found, None)

    def logins(self, *refusals: bytes) -> None:
        """Set the errors that refuse the next logins; an empty one hangs up."""
        self._host.prepare(None, list(refusals))

    @property
    def connections(self) -> int:
        """How many connections the server accepted in this test."""
        return self._host.connections()

    @property
    def requests(self) -> int:
        """How many calls of procedures the server received in this test."""
        return self._host.requests()

    @property
    def open(self) -> int:
        """How many connections of this test have not ended."""
        return self._host.open()

    def clear(self) -> None:
        """Begin again."""
        self._host.clear()


@contextmanager
def staged() -> Iterator[Stage]:
    """Run a server, and end its process."""
    with Manager(ctx=multiprocessing.get_context("spawn")) as manager:
        yield Stage(manager.Host())  # type: ignore[attr-defined]
