"""
A .NET endpoint beside us: what it does to its queue and its neighbours', by the transport's rules.

Written from WIRE.md; its statements are in transport.py, its JSON in netjson.py. None of it is the
package's.
"""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum, auto
from typing import TYPE_CHECKING, Self

from . import netjson
from .netjson import Headers, Poison

if TYPE_CHECKING:
    from collections.abc import Callable

    from .transport import Database, Row, Session

FORWARD = "NServiceBus.SqlServer.ForwardDestination"
FAILED_Q = "NServiceBus.FailedQ"
# headers that begin so are removed when a message goes to the error queue
RETRIES = ("NServiceBus.Retries", "NServiceBus.FLRetries")
# headers that begin so are removed when a failed message returns to its source
FAULTS = (
    "NServiceBus.Retries",
    "NServiceBus.FailedQ",
    "NServiceBus.TimeOfFailure",
    "NServiceBus.ExceptionInfo.",
)


class Mode(Enum):
    """The transport's transaction modes that need no distributed transaction."""

    NONE = auto()
    RECEIVE_ONLY = auto()
    SENDS_ATOMIC_WITH_RECEIVE = auto()


class NoBody(Exception):
    """A body of NULL, which this transport's stream cannot read."""


class HandlerFailed(Exception):
    """What a handler raises that cannot do its work."""


@dataclass
class Incoming:
    """A message that is being handled, and what its handler may do."""

    id: uuid.UUID
    headers: Headers
    body: bytes
    endpoint: Endpoint
    connection: Session  # for what it sends; the receive's, where that is atomic with it

    @property
    def message_id(self) -> str:
        """Its header, or else the row's id."""
        return self.headers.get("NServiceBus.MessageId") or str(self.id)

    def send(self, address: str, body: bytes, **headers: str) -> Headers:
        """Send a message that this one caused."""
        caused: Headers = {
            "NServiceBus.RelatedTo": self.message_id,
            "NServiceBus.CorrelationId": self.headers.get("NServiceBus.CorrelationId")
            or self.message_id,
        }
        if conversation := self.headers.get("NServiceBus.ConversationId"):
            caused["NServiceBus.ConversationId"] = conversation
        return self.endpoint.send(address, body, {**caused, **headers}, connection=self.connection)

    def reply(self, body: bytes) -> Headers:
        """Answer to the queue that the message names."""
        address = self.headers["NServiceBus.ReplyToAddress"]
        assert address is not None
        return self.send(address, body, **{"NServiceBus.MessageIntent": "Reply"})


@dataclass(eq=False)
class Endpoint:
    """One instance of an endpoint: its input queue, the tables beside it, and a session."""

    database: Database
    name: str
    errors: str = "error"  # its error queue's table
    attempts: int = 1  # of the handler, before a message is moved there
    older: bool = False  # writes headers as versions before 9.1 may
    failed: Counter[uuid.UUID] = field(default_factory=Counter, init=False)
    connection: Session = field(init=False)
    outside: Session | None = field(default=None, init=False)  # for sends of their own

    def __post_init__(self) -> None:
        """Open its session."""
        self.connection = self.database.connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        if self.outside is not None:
            self.outside.close()

    def instance(self) -> Endpoint:
        """Scale out: the same queue, another session, for a thread."""
        return replace(self)

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
        connection: Session | None = None,
    ) -> Headers:
        """
        Send one message; returns its headers.

        Raises:
            LookupError: there is no such queue.
        """
        whole = self.complete(headers or {})
        text = netjson.dumps(whole, older=self.older)
        connection = connection or self.connection
        with connection.transaction():
            self.database.send(connection, address, text, body, lives=lives)
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

    def subscribe(self, topic: str) -> None:
        """Have the events of a topic sent to the input queue."""
        with self.connection.transaction():
            routing = self.routing
            self.database.subscribe(self.connection, routing, self.name, topic, self.address)

    def unsubscribe(self, topic: str) -> None:
        """End that."""
        with self.connection.transaction():
            self.database.unsubscribe(self.connection, self.routing, self.name, topic)

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

    def receive(
        self, handle: Callable[[Incoming], object], mode: Mode = Mode.SENDS_ATOMIC_WITH_RECEIVE
    ) -> bool:
        """
        Take one message and handle it; False where there is none.

        A handler that fails rolls the receive back, but in mode none, where the message is gone.
        """
        row = incoming = None
        try:
            with self.connection.transaction():
                row = self.database.receive(self.connection, self.address)
                if row is None:
                    return False
                incoming = self._take(row, mode)
                if incoming is not None and mode is not Mode.NONE:
                    handle(incoming)
            if incoming is not None and mode is Mode.NONE:
                handle(incoming)
        except (HandlerFailed, LookupError):
            assert row is not None
            self.failed[row.id] += 1
        return True

    def _take(self, row: Row, mode: Mode) -> Incoming | None:
        """See what is to be done with a row, in its transaction; None where nothing is left."""
        try:
            headers = netjson.loads(row.headers)
        except Poison:  # the raw row, as it was
            errors = self.error_address
            self.database.send(self.connection, errors, row.headers, row.body, row=row.id)
            return None
        destination = headers.pop(FORWARD, None) or self.address
        if self.failed[row.id] >= self.attempts:
            self._fail(row, headers, destination)
            return None
        if destination != self.address:
            self.database.send(self.connection, destination, netjson.dumps(headers), row.body)
            return None
        if row.expired:
            return None
        if row.body is None:  # it fails, and again, and stays at the head
            raise NoBody(row.id)
        atomic = mode is Mode.SENDS_ATOMIC_WITH_RECEIVE
        connection = self.connection if atomic else self._outside()
        return Incoming(row.id, headers, row.body, self, connection)

    def _outside(self) -> Session:
        """The session of sends that are not atomic with the receive."""
        self.outside = self.outside or self.database.connect()
        return self.outside

    def _fail(self, row: Row, headers: Headers, source: str) -> None:
        """Move a message that could not be handled to the error queue, in its transaction."""
        kept = {name: value for name, value in headers.items() if not name.startswith(RETRIES)}
        reasons = {
            FAILED_Q: source,
            "NServiceBus.ExceptionInfo.ExceptionType": "System.InvalidOperationException",
            "NServiceBus.ExceptionInfo.Message": "the handler failed",
            "NServiceBus.TimeOfFailure": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S:%f} Z",
        }
        text = netjson.dumps(kept | reasons, older=self.older)
        self.database.send(self.connection, self.error_address, text, row.body)

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
