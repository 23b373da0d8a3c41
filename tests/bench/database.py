"""
What the bench asks of a database: tables filled the same way, and the yardsticks that are its own.

PostgreSQL is in postgresql.py and transport.py, SQL Server in sqlserver.py; nothing else of
`python -m tests.bench` knows which one it measures.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor
    from contextlib import AbstractContextManager

SECONDS = 3.0  # of the one-row loop


@dataclass(frozen=True)
class Database(ABC):
    """A database of the bench's own, with a session that commits each statement."""

    url: str  # as our options take it
    connection: Any
    jar: str  # the JDBC driver's coordinates on Maven Central
    seq: str  # the column that orders a queue
    rewriting: str  # at the end of a JDBC url: lets the driver insert many rows at once

    @abstractmethod
    def jdbc(self) -> dict[str, str]:
        """The same connection in the words of Spark's JDBC source."""

    @abstractmethod
    def prepare(self, queues: Sequence[str], messages: int) -> None:
        """Make the queues, and the store of messages that `fill` copies from."""

    @abstractmethod
    def fill(self, queue: str, messages: int) -> None:
        """Leave so many messages and fresh statistics."""

    @abstractmethod
    def settle(self, queue: str) -> None:
        """Do now what the server would else do during the next measurement."""

    @abstractmethod
    def send_one(self, queue: str) -> None:
        """Send a message, and commit."""

    @abstractmethod
    def count(self, queue: str) -> int:
        """Count what waits in the queue."""

    @abstractmethod
    def bounds(self, queue: str) -> tuple[int, int]:
        """Find the lowest seq, and the one after the highest."""

    @abstractmethod
    def settings(self) -> dict[str, str]:
        """What a figure depends on."""

    @abstractmethod
    def receiving(self) -> AbstractContextManager[Callable[[], object]]:
        """Give what receives one row of `orders` in a transaction; false where there is none."""

    @abstractmethod
    def limit(self, pool: Executor, cores: int) -> float:
        """Delete `orders` by ranges on some connections, with a receipt each. Messages/s."""

    def loop(self) -> float:
        """Receive one row of `orders` in one transaction after another. Messages/s."""
        with self.receiving() as receive:
            taken, start = 0, time.perf_counter()
            while receive():
                taken += 1
                if time.perf_counter() - start > SECONDS:
                    break
            return taken / (time.perf_counter() - start)

    def taken(self, pool: Executor, cores: int, take: Callable[[str, int, int], int]) -> float:
        """Take all of `orders`, a range on each of some connections. Messages/s."""
        first, stop = self.bounds("orders")
        ends = edges((first, stop), cores)
        start = time.perf_counter()
        taken = sum(pool.map(take, [self.url] * cores, ends, ends[1:]))
        elapsed = time.perf_counter() - start
        if taken != stop - first:
            message = f"the limit line took {taken} messages of {stop - first}"
            raise RuntimeError(message)
        return taken / elapsed


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
