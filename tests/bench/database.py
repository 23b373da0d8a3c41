"""
What the bench asks of a database: tables filled the same way, and the yardsticks that are its own.

PostgreSQL is in postgresql.py and transport.py, SQL Server in sqlserver.py; nothing else of
`python -m tests.bench` knows which one it measures.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor
    from contextlib import AbstractContextManager

SECONDS = 3.0  # of the one-row loop


class Database(Protocol):
    """A database of the bench's own, with a session that commits each statement."""

    @property
    def url(self) -> str:
        """Where it is, as our options take it."""

    @property
    def jar(self) -> str:
        """The JDBC driver's coordinates on Maven Central."""

    @property
    def seq(self) -> str:
        """The column that orders a queue."""

    @property
    def rewriting(self) -> str:
        """What at the end of a JDBC url lets the driver insert many rows at once."""

    def jdbc(self) -> dict[str, str]:
        """The same connection in the words of Spark's JDBC source."""

    def prepare(self, queues: Sequence[str], messages: int) -> None:
        """Make the queues, and the store of messages that `fill` copies from."""

    def fill(self, queue: str, messages: int) -> None:
        """Leave so many messages and fresh statistics."""

    def settle(self, queue: str) -> None:
        """Do now what the server would else do during the next measurement."""

    def send_one(self, queue: str) -> None:
        """Send a message, and commit."""

    def count(self, queue: str) -> int:
        """Count what waits in the queue."""

    def bounds(self, queue: str) -> tuple[int, int]:
        """Find the lowest seq, and the one after the highest."""

    def settings(self) -> dict[str, str]:
        """What a figure depends on."""

    def loop(self) -> float:
        """Receive one row of `orders` in one transaction after another. Messages/s."""

    def limit(self, pool: Executor, cores: int) -> float:
        """Delete `orders` by ranges on some connections, with a receipt each. Messages/s."""


def fresh(server: str) -> AbstractContextManager[Database]:
    """Make a database on the server with this url, open it, and drop it afterwards."""
    if server.lower().startswith("sqlserver:"):
        from . import sqlserver  # noqa: PLC0415 its drivers may not be there

        return sqlserver.opened(server)
    from . import postgresql  # noqa: PLC0415 as above

    return postgresql.opened(server)


def edges(bounds: tuple[int, int], parts: int) -> list[int]:
    """Cut seqs into even ranges."""
    first, stop = bounds
    return [first + (stop - first) * at // parts for at in range(parts + 1)]


def install_state(url: str) -> None:
    """Make the state tables, as a user does."""
    command = [sys.executable, "-m", "sqlq_spark", "install"]
    environ = os.environ | {"SQLQUEUE_URL": url}  # not an argument: the password would show in `ps`
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environ)
