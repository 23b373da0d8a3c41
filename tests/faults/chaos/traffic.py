"""
The queue's other users, who live through all of it: a producer and a competing consumer.

Both keep their books in the database, in the transaction of the message itself, so that what was
committed is known however many answers are lost.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from conformance.transport import PostgreSQL

from sqlq_spark.wire.address import QueueAddress

if TYPE_CHECKING:
    from random import Random

    from .server import Place

_PAD = " " * 7000  # a batch of a few hundred is worth two tasks; the database keeps it in 100 bytes
_MOST = 4000  # messages that wait; the producer pauses above that
_SEND = """
INSERT INTO {queue} (Id, Expires, Headers, Body)
SELECT gen_random_uuid(),
       (clock_timestamp() AT TIME ZONE 'UTC') + make_interval(secs => lifetime),
       headers,
       convert_to(body, 'UTF8')
  FROM unnest(%s::float8[], %s::text[], %s::text[]) AS message (lifetime, headers, body)
"""
# A lost session, whatever the server or the line says of it.
_LOST = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.Rollback,  # one that found its session lost
    psycopg.errors.IdleInTransactionSessionTimeout,
)


class Message(NamedTuple):
    """One numbered message."""

    number: int
    kind: str  # plain, expiring or poison
    lifetime: float | None  # seconds

    @property
    def columns(self) -> tuple[float | None, str, str]:
        """Lifetime, headers and body; the headers of poison are text that nobody can read."""
        named = {
            "NServiceBus.MessageId": f"m-{self.number}",
            "NServiceBus.MessageIntent": "Send",
            "NServiceBus.EnclosedMessageTypes": "Shop.PlaceOrder",
            "NServiceBus.TimeSent": "2026-06-30 17:05:09:123456 Z",
        }
        headers = f"no headers, {self.number}" if self.kind == "poison" else json.dumps(named)
        return self.lifetime, headers, json.dumps({"number": self.number, "pad": _PAD})


class User(threading.Thread):
    """A loop of transactions on a connection that is opened again whenever it is lost."""

    def __init__(self, place: Place, rng: Random) -> None:
        super().__init__(daemon=True)
        self.place = place
        self.rng = rng
        self.lost = 0  # sessions
        self.failure: BaseException | None = None
        self._stop_it = threading.Event()

    def run(self) -> None:
        """Go on until `finish`; an error that is no lost session is kept."""
        try:
            while not self.done():
                self._session()
        except BaseException as error:  # noqa: BLE001 - raised by `finish`
            self.failure = error

    def finish(self) -> None:
        """Stop at the end of a transaction, and raise what failed."""
        self._stop_it.set()
        self.join(60.0)
        if self.is_alive():
            raise TimeoutError(f"{type(self).__name__} does not end")
        if self.failure is not None:
            raise self.failure

    def done(self) -> bool:
        """Whether it may stop here."""
        return self._stop_it.is_set()

    def step(self, connection: psycopg.Connection[Any]) -> None:
        """Do one transaction."""
        raise NotImplementedError

    def _session(self) -> None:
        try:
            with psycopg.connect(
                self.place.url,
                autocommit=True,
                connect_timeout=5,
                application_name=type(self).__name__.lower(),
            ) as connection:
                while not self.done():
                    self.step(connection)
        except _LOST:
            self.lost += 1
            time.sleep(0.1)


class Producer(User):
    """
    Sends numbered messages, and knows which of them were committed.

    A transaction whose answer was lost is done again: its rows in `sent` say whether it counts.
    """

    def __init__(self, place: Place, rng: Random) -> None:
        super().__init__(place, rng)
        self.confirmed: set[int] = set()
        self._next = 0
        self._pending: list[Message] = []

    def done(self) -> bool:
        """Not before the last answer is known."""
        return super().done() and not self._pending

    def step(self, connection: psycopg.Connection[Any]) -> None:
        """Send some messages."""
        if not self._pending:
            self._pause(connection)
            self._pending = self._messages()
        if self._send(connection):
            self.confirmed |= {message.number for message in self._pending}
        self._pending = []

    def _pause(self, connection: psycopg.Connection[Any]) -> None:
        time.sleep(self.rng.expovariate(8.0))
        waiting = f"SELECT count(*) FROM (SELECT FROM {self.place.address('orders')} LIMIT {_MOST})"
        while connection.execute(waiting.encode()).fetchone() == (_MOST,) and not super().done():
            time.sleep(0.1)

    def _messages(self) -> list[Message]:
        size = self.rng.choice([1, 2, 10, 30, 60, 150])
        first, self._next = self._next, self._next + size
        made = []
        for number in range(first, first + size):
            kind = self.rng.choices(["plain", "expiring", "poison"], [88, 10, 2])[0]
            lifetime = self.rng.uniform(0.0, 3.0) if kind == "expiring" else None
            made.append(Message(number, kind, lifetime))
        return made

    def _send(self, connection: psycopg.Connection[Any]) -> bool:
        """Send the pending ones; False where they were rolled back at will."""
        pending, name = self._pending, self.place.name
        with connection.transaction():
            new = connection.execute(
                f"INSERT INTO {name}.sent SELECT * FROM unnest(%s::int[], %s::text[]) "
                "ON CONFLICT DO NOTHING RETURNING number".encode(),
                [[each.number for each in pending], [each.kind for each in pending]],
            ).fetchall()
            if not new:  # an earlier try was committed, and its answer lost
                return True
            columns = zip(*(each.columns for each in pending), strict=True)
            send = _SEND.format(queue=self.place.address("orders")).encode()
            connection.execute(send, [list(column) for column in columns])
            if self.rng.random() < 0.03:
                raise psycopg.Rollback
            return True
        return False


class Competitor(User):
    """Receives as the transport does, one row a transaction, and books it in the same."""

    def step(self, connection: psycopg.Connection[Any]) -> None:
        """Receive a message, or hold some for a second; now and then all is rolled back."""
        held = self.rng.random() < 0.01
        with connection.transaction():
            numbers = [self._receive(connection) for _ in range(5 if held else 1)]
            connection.execute(
                f"INSERT INTO {self.place.name}.taken SELECT unnest(%s::int[])".encode(),
                [[number for number in numbers if number is not None]],
            )
            if held:
                time.sleep(1.0)
            if self.rng.random() < 0.1:
                raise psycopg.Rollback
        time.sleep(0.02 if None not in numbers else 0.1)

    def _receive(self, connection: psycopg.Connection[Any]) -> int | None:
        dotnet = PostgreSQL(self.place.url, self.place.name, "", connection)
        found = dotnet.receive(QueueAddress("orders", self.place.name))
        return int(json.loads(found.body)["number"]) if found and found.body else None
