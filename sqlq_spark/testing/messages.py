"""A message as a test writes and compares it."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.rows import QUEUE_ROW

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True)
class Message:
    """
    A message, to send or as it waits in a queue.

    Attributes:
        body: bytes or text, sent unchanged; any other value is sent as JSON. In a message that
            waits: bytes, or None.
        message_type: the .NET type's full name, for the header EnclosedMessageTypes.
        headers: they override those that `send` adds, as an endpoint does: MessageId,
            CorrelationId, ConversationId, MessageIntent, TimeSent, OriginatingEndpoint, and
            ContentType for a JSON body. None if the text cannot be read.
        corrupt_headers: the text of headers that cannot be read; sent unchanged instead of others.
        expires: when it expires, with a time zone; None: never.
        seq: of a message that waits; None in one to send.
    """

    body: Any = b"{}"
    message_type: str | None = field(default=None, kw_only=True)
    headers: Mapping[str, str | None] | None = field(default_factory=dict, kw_only=True)
    corrupt_headers: str | None = field(default=None, kw_only=True)
    expires: datetime | None = field(default=None, kw_only=True)
    seq: int | None = field(default=None, kw_only=True)

    @property
    def json(self) -> Any:  # noqa: ANN401 - any JSON
        """The body, read as JSON."""
        return json.loads(self.bytes or b"null")

    @property
    def bytes(self) -> bytes | None:
        """The body as it is sent."""
        if self.body is None or isinstance(self.body, bytes):
            return self.body
        text = self.body if isinstance(self.body, str) else json.dumps(self.body)
        return text.encode()


def as_message(given: object) -> Message:
    """Return a message; anything else is the body of one."""
    return given if isinstance(given, Message) else Message(given)


def all_headers(message: Message) -> dict[str, str | None]:
    """Return the headers that an endpoint writes, with the message's own."""
    own = dict(message.headers or {})
    message_id = own.get(wire.MESSAGE_ID) or str(uuid.uuid4())
    added = {
        wire.MESSAGE_ID: message_id,
        wire.CORRELATION_ID: message_id,
        wire.CONVERSATION_ID: str(uuid.uuid4()),
        wire.MESSAGE_INTENT: "Send",
        wire.TIME_SENT: wire.wire_time(datetime.now(UTC)),
        wire.ORIGINATING_ENDPOINT: "Test",
    }
    if message.message_type is not None:
        added[wire.ENCLOSED_MESSAGE_TYPES] = message.message_type
    if not isinstance(message.body, bytes | str | None):
        added[wire.CONTENT_TYPE] = "application/json"
    return added | own


def table_rows(messages: Iterable[Message]) -> pa.Table:
    """Return messages as rows of a queue; those without a seq are numbered by their place."""
    rows = [
        {
            "id": uuid.uuid4().bytes,
            "expires": None if each.expires is None else without_zone(each.expires),
            "headers": each.corrupt_headers or wire.dumps(all_headers(each)),
            "body": each.bytes,
            "seq": number if each.seq is None else each.seq,
        }
        for number, each in enumerate(messages, 1)
    ]
    return pa.Table.from_pylist(rows, schema=QUEUE_ROW)


def without_zone(moment: datetime) -> datetime:
    """Return a time as a queue's table has it: in UTC, without its zone."""
    if moment.tzinfo is None:
        problem = f"expires={moment!r} has no time zone: add tzinfo=UTC"
        raise ValueError(problem)
    return moment.astimezone(UTC).replace(tzinfo=None)
