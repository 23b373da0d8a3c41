"""
What the bench asks of a database: tables filled the same way, and the yardsticks that are its own.

PostgreSQL is in postgresql.py, SQL Server in sqlserver.py. Nothing else of `python -m tests.bench`
knows which one it measures. A refill copies prepared messages from the table `store` on the server,
which is faster than sending them again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor
    from contextlib import AbstractContextManager

SECONDS = 3.0  # of the one-row loop
_FILL = """
INSERT INTO {queue} (id, headers, body)
SELECT id, headers, body FROM {store} WHERE number < {messages} ORDER BY number
"""
_SEND_ONE = """
INSERT INTO {queue} (id, headers, body)
SELECT {new_id}, headers, body FROM store WHERE number = 0
"""


@dataclass(frozen=True)
class Database(ABC):
    """A database of the bench's own, with a session that commits each statement."""

    url: str  # as our options take it
    connection: Any

    jar: ClassVar[str]  # the JDBC driver's coordinates on Maven Central
    seq: ClassVar[str]  # the column that orders a queue
    rewriting: ClassVar[str]  # at the end of a JDBC url: the driver inserts many rows at once
    analyze: ClassVar[str]  # what the server would else do during the next measurement
    new_id: ClassVar[str]
    # settings: what a figure depends on; receipts: makes the table; hard: makes a second store
    texts: ClassVar[dict[str, str]]
    take: ClassVar[Callable[[str, int, int], int]]  # in a process: a range of `orders`, a receipt

    @abstractmethod
    def ask(self, text: str) -> list[tuple[Any, ...]]:
        """Run a statement, commit it, and return its rows."""

    @abstractmethod
    def jdbc(self) -> dict[str, str]:
        """The same connection in the words of Spark's JDBC source."""

    @abstractmethod
    def prepare(self, queues: Sequence[str], messages: int) -> None:
        """Make the queues, and the store of messages that `fill` copies from."""

    @abstractmethod
    def receiving(self) -> AbstractContextManager[Callable[[], object]]:
        """
        Give what receives one row of `orders` in a transaction; false where there is none.

        Autocommit saves the transport's BEGIN and COMMIT: measured, 10 to 50 % faster.
        """

    def fill(
        self, queue: str, messages: int, *, store: str = "store", settled: bool = True
    ) -> None:
        """
        Leave so many messages of a store, and if `settled` no dead rows and fresh statistics.

        The checkpoint comes before the sends: a queue's rows live shorter than a checkpoint's
        cycle, so receiving them seldom pays for the first touch of a page. (It did: 144 MB of WAL
        against 25.)
        """
        self.ask(f"TRUNCATE TABLE {queue}")
        if settled:
            self.ask("CHECKPOINT")
        self.ask(_FILL.format(queue=queue, store=store, messages=messages))
        if settled:
            self.settle(queue)

    def settle(self, queue: str) -> None:
        """Do now what the server would else do during the next measurement."""
        self.ask(f"{self.analyze} {queue}")

    def send_one(self, queue: str) -> None:
        """Send a message, and commit."""
        self.ask(_SEND_ONE.format(queue=queue, new_id=self.new_id))

    def count(self, queue: str) -> int:
        """Count what waits in the queue."""
        return int(self.ask(f"SELECT count(*) FROM {queue}")[0][0])

    def bounds(self, queue: str) -> tuple[int, int]:
        """Find the lowest seq, and the one after the highest."""
        first, stop = self.ask(f"SELECT min({self.seq}), max({self.seq}) + 1 FROM {queue}")[0]
        return int(first), int(stop)

    def part(self, queue: str, first: int, stop: int) -> str:
        """A range of a queue, from FROM on."""
        return f"FROM {queue} WHERE {self.seq} >= {first} AND {self.seq} < {stop}"

    def settings(self) -> dict[str, str]:
        """What a figure depends on."""
        return {str(name): str(value) for name, value in self.ask(self.texts["settings"])}

    def loop(self) -> float:
        """Receive one row of `orders` in one transaction after another. Messages/s."""
        with self.receiving() as receive:
            taken, start = 0, time.perf_counter()
            while receive():
                taken += 1
                if time.perf_counter() - start > SECONDS:
                    break
            return taken / (time.perf_counter() - start)

    def limit(self, pool: Executor, cores: int) -> float:
        """Delete `orders` by ranges on some connections, with a receipt each. Messages/s."""
        self.ask(self.texts["receipts"])
        first, stop = self.bounds("orders")
        ends = edges((first, stop), cores)
        start = time.perf_counter()
        taken = sum(pool.map(type(self).take, [self.url] * cores, ends, ends[1:]))
        elapsed = time.perf_counter() - start
        expect("the limit line took", taken, stop - first)
        self.ask("TRUNCATE TABLE limit_receipt")
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


def expect(what: str, found: int, messages: int) -> None:
    """Raise an error where a measurement moved another number of messages."""
    if found != messages:
        text = f"{what} {found} messages, not {messages}"
        raise RuntimeError(text)


def install_state(url: str) -> None:
    """Make the state tables, as a user does."""
    command = [sys.executable, "-m", "sqlq_spark", "install"]
    environ = os.environ | {"SQLQUEUE_URL": url}  # not an argument: the password would show in `ps`
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environ)
