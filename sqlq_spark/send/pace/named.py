"""
Where the rows of a task go, as the rows and the options name it.

Delayed rows are left out. They reach their queue only when they are due.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from sqlq_spark.errors import BadAddress, BadInput, SubscriptionsNotFound
from sqlq_spark.send import delayed
from sqlq_spark.send.fan_out import cache
from sqlq_spark.send.queue_writer import destination_of
from sqlq_spark.send.topics import topics_of
from sqlq_spark.wire.headers import full_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.wire.address import QueueAddress


@dataclass
class Named:
    """Destinations by name, untrusted; a queue None is that of the options."""

    queues: set[str | None] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)

    @classmethod
    def of_options(cls, options: SinkOptions) -> Named:
        """Return what the options name."""
        topics = set(options.topics or ())
        return cls(set() if topics or options.address is None else {None}, topics)

    @classmethod
    def of_chunk(cls, chunk: pa.Table) -> Named:
        """Return what the rows of a chunk name."""
        named = cls()
        named.add(chunk)
        return named

    def record(self, chunks: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Pass chunks on, and add what their rows name."""
        for chunk in chunks:
            self.add(chunk)
            yield chunk

    def add(self, chunk: pa.Table) -> None:
        """Add what the rows of a chunk name."""
        waiting = delayed.waiting(chunk)
        if waiting is not None:
            chunk = chunk.filter(pc.invert(waiting))
        own, topics = chunk["queue"], topics_of(chunk)
        if topics is not None:
            self.topics.update(pc.unique(pc.list_flatten(topics)).to_pylist())
            own = own.filter(pc.is_null(topics))
        self.queues.update(pc.unique(own).to_pylist())

    def __or__(self, other: Named) -> Named:
        return Named(self.queues | other.queues, self.topics | other.topics)

    def __sub__(self, other: Named) -> Named:
        return Named(self.queues - other.queues, self.topics - other.topics)

    def find_queues(self, connection: Connection, options: SinkOptions) -> list[QueueAddress]:
        """
        Return the queues of these names, those of subscribers among them, in a constant order.

        Names that lead to no queue are left out: the dispatch reports them.

        Args:
            connection: in a transaction, if there are topics.
            options: the sink's.
        """
        found: list[QueueAddress] = []
        for name in sorted(self.queues, key=str):
            try:
                found.append(destination_of(name, options))
            except BadInput:
                continue
        if self.topics:
            found += self._find_subscribers(connection, options)
        return list(dict.fromkeys(map(connection.names.qualify, found)))

    def _find_subscribers(
        self, connection: Connection, options: SinkOptions
    ) -> Iterator[QueueAddress]:
        try:
            by_topic = cache.by_topic(connection, options.url, options.subscription_address)
        except SubscriptionsNotFound:
            return
        for topic in sorted(self.topics):
            for each in by_topic.get(full_name(topic), []):
                try:
                    yield connection.names.parse_address(each.address)
                except BadAddress:
                    continue
