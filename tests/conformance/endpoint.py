"""
A .NET endpoint beside us: what it does to its queue and its neighbours', by the transport's rules.

Written from WIRE.md; its statements are in transport.py, its JSON in netjson.py. None of it is the
package's.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from . import netjson
from .netjson import Headers, Poison

if TYPE_CHECKING:
    from collections.abc import Callable

    from .transport import Database, Row, Session

FORWARD = "NServiceBus.SqlServer.ForwardDestination"
FAILED_Q = "NServiceBus.FailedQ"
# headers that begin so are removed when a failed message returns to its source
FAULTS = (
    "NServiceBus.Retries",
    "NServiceBus.FailedQ",
    "NServiceBus.TimeOfFailure",
    "NServiceBus.ExceptionInfo.",
)


class NoBody(Exception):
    """A body of NULL, which this transport's stream cannot read."""


@dataclass
class Incoming:
    """A message that is being handled, and what its handler may do."""

    id: uuid.UUID
    headers: Headers
    body: bytes
    endpoint: Endpoint

    @property
    def message_id(self) -> str:
        """Its header, or else the row's id."""
        return self.headers.get("NServiceBus.MessageId") or str(self.id)

    def reply(self, body: bytes) -> Headers:
        """Answer to the queue that the message names; the answer commits with the receive."""
        address = self.headers["NServiceBus.ReplyToAddress"]
        assert address is not None
        headers: Headers = {
            "NServiceBus.MessageIntent": "Reply",
            "NServiceBus.RelatedTo": self.message_id,
            "NServiceBus.CorrelationId": self.headers.get("NServiceBus.CorrelationId")
            or self.message_id,
        }
        if conversation := self.headers.get("NServiceBus.ConversationId"):
            headers["NServiceBus.ConversationId"] = conversation
        return self.endpoint.send(address, body, headers)


@dataclass(eq=False)
class Endpoint:
    """One instance of an endpoint: its input queue, the tables beside it, and a session."""

    database: Database
    name: str
    errors: str = "error"  # its error queue's table
    older: bool = False  # writes headers as versions before 9.1 may
    connection: Session = field(init=False)

    def __post_init__(self) -> None:
        """Open its session."""
        self.connection = self.database.connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    @property
    def address(self) -> str:
        """Of its input queue."""
        return self.database.address(self.name)

    @property
    def delayed(self) -> str:
        """Of its table of delayed messages."""
        return self.database.address(f"{self.name}.Delayed")

    @property
    def error_address(self) -> str:
        """Of its error queue."""
        return self.database.address(self.errors)

    @property
    def routing(self) -> str:
        """Of the subscription table."""
        return self.database.address("SubscriptionRouting")

    def install(self) -> None:
        """Make what it needs, as its installer does."""
        self.database.create(self.connection, self.address)
        self.database.create(self.connection, self.error_address)
        self.database.create_delayed(self.connection, self.delayed)
        self.database.create_subscriptions(self.connection, self.routing)

    # ------------------------------------------------------------ sending

    def complete(self, headers: Headers) -> Headers:
        """Headers with those that every message has."""
        message_id = str(uuid.uuid4())
        defaults: Headers = {
            "NServiceBus.MessageId": message_id,
            "NServiceBus.MessageIntent": "Send",
            "NServiceBus.ConversationId": str(uuid.uuid4()),
            "NServiceBus.CorrelationId": headers.get("NServiceBus.MessageId", message_id),
            "NServiceBus.ReplyToAddress": self.address,
            "NServiceBus.OriginatingEndpoint": self.name,
            "NServiceBus.TimeSent": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S:%f} Z",
        }
        return defaults | headers

    def send(
        self,
        address: str,
        body: bytes = b"{}",
        headers: Headers | None = None,
        *,
        lives: int | None = None,
    ) -> Headers:
        """
        Send one message; returns its headers.

        Raises:
            LookupError: there is no such queue.
        """
        whole = self.complete(headers or {})
        text = netjson.dumps(whole, older=self.older)
        with self.connection.transaction():
            self.database.send(self.connection, address, text, body, lives=lives)
        return whole

    def defer(self, address: str, body: bytes, delay: int, headers: Headers | None = None) -> None:
        """Send one message in `delay` ms, by way of the own table of delayed messages."""
        text = netjson.dumps(self.complete(headers or {}) | {FORWARD: address}, older=self.older)
        with self.connection.transaction():
            self.database.store(self.connection, self.delayed, text, body, delay)

    def move_due(self) -> float | None:
        """Move a batch of what is due into the input queue; the seconds until the next is due."""
        with self.connection.transaction():
            self.database.move(self.connection, self.delayed, self.address)
            return self.database.next_due(self.connection, self.delayed)

    def publish(self, topics: list[str], body: bytes) -> list[str]:
        """Send an event to whoever subscribed to any of its types; returns their queues."""
        event = {
            "NServiceBus.MessageIntent": "Publish",
            "NServiceBus.MessageId": str(uuid.uuid4()),
            "NServiceBus.EnclosedMessageTypes": ";".join(topics),
        }
        with self.connection.transaction():
            queues = self.database.subscribers(self.connection, self.routing, topics)
            for queue in queues:
                self.send(queue, body, dict(event))
        return queues

    # ------------------------------------------------------------ receiving

    def peek(self) -> int:
        """How many messages there may be."""
        with self.connection.transaction():
            return self.database.peek(self.connection, self.address)

    def receive(self, handle: Callable[[Incoming], object]) -> bool:
        """Take one message and handle it in one transaction; False where there is none."""
        with self.connection.transaction():
            row = self.database.receive(self.connection, self.address)
            if row is None:
                return False
            incoming = self._take(row)
            if incoming is not None:
                handle(incoming)
        return True

    def _take(self, row: Row) -> Incoming | None:
        """See what is to be done with a row, in its transaction; None where nothing is left."""
        try:
            headers = netjson.loads(row.headers)
        except Poison:  # the raw row, as it was
            errors = self.error_address
            self.database.send(self.connection, errors, row.headers, row.body, row=row.id)
            return None
        destination = headers.pop(FORWARD, None) or self.address
        if destination != self.address:
            self.database.send(self.connection, destination, netjson.dumps(headers), row.body)
            return None
        if row.expired:
            return None
        if row.body is None:  # it fails, and again, and stays at the head
            raise NoBody(row.id)
        return Incoming(row.id, headers, row.body, self)

    # ------------------------------------------------------------ operations

    def purge(self) -> int:
        """Delete all that waits, as at a start that asks for it."""
        with self.connection.transaction():
            return self.database.purge(self.connection, self.address)

    def purge_expired(self) -> int:
        """Delete a batch of what has expired."""
        with self.connection.transaction():
            return self.database.purge_expired(self.connection, self.address)

    def return_to_source(self) -> str | None:
        """
        Return the first message of the error queue to where it failed, as the tools do.

        Returns:
            That queue; None where the error queue is empty.

        Raises:
            Poison: its headers cannot be read; it stays.
            KeyError: they do not say where it failed; it stays.
        """
        with self.connection.transaction():
            row = self.database.receive(self.connection, self.error_address)
            if row is None:
                return None
            headers = netjson.loads(row.headers)
            source = str(headers[FAILED_Q])
            kept = {name: value for name, value in headers.items() if not name.startswith(FAULTS)}
            self.database.send(self.connection, source, netjson.dumps(kept), row.body)
            return source
