"""
A .NET endpoint's delayed delivery: what its sender stores and what its satellite moves.

On PostgreSQL a due time is the server's UTC clock, read as a time of the session's zone, so a
satellite can work in a zone of its own. On SQL Server it is UTC for everyone, and a moved message
gets a new id.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from .transport import Delayed

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterator

    from sqlq_spark.wire.address import QueueAddress

    from .dotnet import DotNet

__all__ = ["Delayed", "Satellite", "at"]

_EPOCH = datetime(1900, 1, 1)  # noqa: DTZ001 - of the type datetime, in no zone


@dataclass(frozen=True)
class Satellite:
    """An endpoint's session with a table of delayed messages."""

    dotnet: DotNet
    connection: Any

    @property
    def keeps_ids(self) -> bool:
        """Whether a moved message has the id that it was stored under."""
        return self.dotnet.dialect == "postgresql"

    def kept(self, due: datetime) -> datetime:
        """A time in UTC as the column holds it; SQL Server's 1/300 s show as milliseconds."""
        if self.dotnet.dialect == "postgresql":
            return due
        ticks = round((due - _EPOCH) / timedelta(seconds=1) * 300)
        seconds, rest = divmod(ticks, 300)
        return _EPOCH + timedelta(seconds=seconds, milliseconds=round(rest * 10 / 3))

    def create(self, table: QueueAddress) -> None:
        """Create the table as the transport's installer does."""
        self.dotnet.transport.create_delayed(self.connection, table)

    def store(
        self,
        table: QueueAddress,
        headers: str = "{}",
        body: bytes | None = b"{}",
        *,
        delay: float,
        row: uuid.UUID | None = None,
    ) -> None:
        """Delay a message by some seconds."""
        milliseconds = int(delay * 1000)
        self.dotnet.transport.store(self.connection, table, headers, body, milliseconds, row=row)

    def move(self, table: QueueAddress, queue: QueueAddress, most: int = 100) -> int:
        """Move what is due, in a transaction of its own; returns how many messages."""
        return self.dotnet.transport.move(self.connection, table, queue, most)

    def rows(self, table: QueueAddress) -> list[Delayed]:
        """What waits, by due time."""
        return self.dotnet.transport.delayed_rows(self.connection, table)

    @contextmanager
    def holding(self, table: QueueAddress, bodies: list[bytes]) -> Iterator[None]:
        """Lock rows, as another mover does, as long as the block lasts."""
        with self.dotnet.apart() as other:
            text = other.transport.texts["hold_delayed"]
            other.transport.ask(other.connection, text, table, bodies=bodies)
            yield


@contextmanager
def at(dotnet: DotNet, zone: str | None = None) -> Iterator[Satellite]:
    """Give a satellite of an endpoint; on PostgreSQL it may work in a zone of its own."""
    with closing(dotnet.transport.connect(zone)) as connection:
        yield Satellite(dotnet, connection)
