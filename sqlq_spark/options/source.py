"""Options of a read."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Self

from sqlq_spark.errors import BadFrame, BadOption, MissingOption
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.fields import (
    DEFAULT_HEADER_SIZE,
    DEFAULT_MESSAGE_SIZE,
    count,
    duration,
    flag,
    one_of,
    option,
    read_message_size,
    short_text,
    size,
)
from sqlq_spark.options.names import parse_queue, parse_queues

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlq_spark.wire.address import QueueAddress

# the columns of a read with headersFormat=map → their types in Spark's SQL
COLUMNS = {
    "id": "string",
    "correlationId": "string",
    "replyToAddress": "string",
    "expires": "timestamp",
    "headers": "map<string,string>",
    "corruptHeaders": "string",
    "body": "binary",
    "seq": "bigint",
    "queue": "string",
}

# where an error says that an option of a write belongs
WRITE = (
    "df.write or df.writeStream. In SQL, name the columns to send: "
    "CREATE TEMPORARY VIEW … (body STRING) USING sqlqueue"
)


USUAL_BATCH = 100_000  # messages; the default of maxMessagesPerTrigger
# the options that limit a batch, in lower case; if one is set, a batch does not grow
BATCH_LIMITS = frozenset({"maxmessagespertrigger", "maxbytespertrigger", "maxconcurrency"})


@dataclass(frozen=True, kw_only=True)
class SourceOptions(DatabaseOptions):
    """The options of a read. They are parsed once. Other modules see only these values."""

    side: ClassVar[tuple[str, str]] = ("read", WRITE)

    queue: QueueAddress | None = option("queue", parse_queue, "a queue's name, also as .load(name)")
    queues: tuple[QueueAddress, ...] = option(
        "queues", parse_queues, "names of queues, separated by commas", default=()
    )
    transaction_mode: str = option(
        "transactionMode", one_of("receiveOnly", "none"), default="receiveOnly"
    )
    max_messages: int = option("maxMessagesPerTrigger", count, default=USUAL_BATCH)
    max_bytes: int | None = option("maxBytesPerTrigger", size)
    max_message_bytes: int = option(
        "maxMessageBytes", read_message_size, default=DEFAULT_MESSAGE_SIZE
    )
    max_header_bytes: int = option("maxHeaderBytes", read_message_size, default=DEFAULT_HEADER_SIZE)
    min_messages: int | None = option("minMessagesPerTrigger", count)
    max_trigger_delay: float = option("maxTriggerDelay", duration(0), default=15 * 60.0)  # seconds
    max_concurrency: int | None = option("maxConcurrency", count)
    min_concurrency: int = option("minConcurrency", count, default=1)
    # How many tasks the cluster runs at a time. `register` and the jobs find it out. It is None if
    # neither was asked.
    cores: int | None = option("clusterCores", count)
    peek_delay: float = option(
        "peekDelay", duration(0.1, expected="a time of at least 100ms, as 1s"), default=1.0
    )  # seconds
    headers_format: str = option("headersFormat", one_of("map", "json"), default="map")
    # The queue to which poison messages are moved. If it is None, Spark gets them, with the column
    # corruptHeaders.
    error_address: QueueAddress | None = option("errorQueue", parse_queue, "a queue's name")
    delayed_delivery: bool = option("delayedDelivery", flag, default=False)
    purge_on_startup: bool = option("purgeOnStartup", flag, default=False)
    # whether a stream, when it starts, warns if an endpoint seems to own the queue
    warn_if_shared: bool = option("warnIfShared", flag, default=True)
    fail_on_data_loss: bool = option("failOnDataLoss", flag, default=True)
    # the name of the stream in lists of streams, if Spark's query has none
    stream_name: str | None = option("streamName", short_text)
    # whether other streams receive from the queue too, on purpose
    shared_by_streams: bool = option("sharedByStreams", flag, default=False)
    # What to do about a batch that left fewer receipts than it had tasks. If True, the query ends
    # with an error, and the batch stays open. If False, the batch is closed with a warning. None is
    # the same as False, with one exception: if no task of a batch ran, a run of AvailableNow ends
    # with an error.
    fail_on_missing_receipts: bool | None = option("failOnMissingReceipts", flag)

    application: str | None = None  # the application's name; None if it is not known
    growth: int = 1  # how many times as large as usual a batch may be now: see `grown`

    def __post_init__(self) -> None:
        self._check_one_of_queue_and_queues()
        self._check_queues()
        self._check_limits()

    @cached_property
    def addresses(self) -> tuple[QueueAddress, ...]:
        """The queues to read, at least one."""
        return self.queues if self.queue is None else (self.queue,)

    @property
    def named_tables(self) -> tuple[QueueAddress, ...]:
        return tuple(filter(None, (self.queue, *self.queues, self.error_address)))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The printed addresses of the queues to read."""
        return tuple(map(self.naming.print_address, self.addresses))

    @cached_property
    def concurrency(self) -> int:
        """How many receive tasks one batch has at most."""
        cores = self.cores or os.cpu_count() or 2
        return self.growth * (self.max_concurrency or max(2, cores, self.min_concurrency))

    @property
    def may_grow(self) -> bool:
        """Whether a batch may grow while more messages wait: no option limits it."""
        is_usual = self.max_messages == self.growth * USUAL_BATCH and self.max_concurrency is None
        return is_usual and self.given.isdisjoint(BATCH_LIMITS)

    def grown(self, growth: int) -> Self:
        """
        Return the options of a batch that is `growth` times as large, with as many more tasks.

        A task of it is as large as usual. `self` must be the options that the user gave.
        """
        if growth == 1:
            return self
        return replace(self, growth=growth, max_messages=growth * self.max_messages)

    @cached_property
    def instances(self) -> frozenset[QueueAddress]:
        """
        The queues of single instances of an endpoint whose own queue is read too.

        The name of an instance's queue is that of the endpoint's queue, with a dot and a suffix.
        """
        return frozenset(filter(self._is_instance, self.addresses))

    @property
    def limits_headers(self) -> bool:
        """Whether maxHeaderBytes has an effect. It has none if maxMessageBytes is not higher."""
        return self.max_header_bytes < self.max_message_bytes

    @property
    def address(self) -> QueueAddress:
        """The queue to read, or the first of several."""
        return self.addresses[0]

    @property
    def columns(self) -> dict[str, str]:
        """The columns that a read with these options has: name → type in Spark's SQL."""
        if self.headers_format == "map":
            return COLUMNS
        kept = {name: kind for name, kind in COLUMNS.items() if name != "corruptHeaders"}
        return kept | {"headers": "string"}

    def check_columns(self, wanted: Mapping[str, str]) -> None:
        """
        Raise BadFrame if a user's schema has a column, or a type, that a read does not have.

        `wanted` has the columns of the user's schema: name → type. It may have fewer than a read.
        """
        known = self.columns
        for column, kind in wanted.items():
            if known.get(column) != kind:
                expected = ", ".join(f"{name} {kind}" for name, kind in known.items())
                reason = f"a read has no column {column} {kind}; choose from {expected}"
                # With spark.sql.timestampType=TIMESTAMP_NTZ, Spark reads `timestamp` as this type.
                if kind == "timestamp_ntz":
                    reason += "; in a schema of your own write TIMESTAMP_LTZ"
                raise BadFrame(reason=reason, done="read")

    def most_tasks(self, address: QueueAddress) -> int | None:
        """
        Return how many tasks may read a queue, or None if it has no limit of its own.

        The queue of one instance of an endpoint holds only replies to this instance. Unless
        maxConcurrency is set, only one task reads it, as in the transport.
        """
        return 1 if self.max_concurrency is None and address in self.instances else None

    def _is_instance(self, address: QueueAddress) -> bool:
        stem, _, _ = address.table.rpartition(".")
        while stem:
            if self.naming.print_address(replace(address, table=stem)) in self.names:
                return True
            stem, _, _ = stem.rpartition(".")
        return False

    def _check_limits(self) -> None:
        for public, least, most in (
            ("minMessagesPerTrigger", self.min_messages, self.max_messages),
            ("minConcurrency", self.min_concurrency, self.concurrency),
        ):
            if least is not None and least > most:
                expected = f"at most {most}, the maximum"
                raise BadOption(option=public, found=str(least), expected=expected)

    def _check_one_of_queue_and_queues(self) -> None:
        if self.queue is None and not self.queues:
            raise MissingOption(
                option="queue",
                example="a queue's name, also as .load(name), or several in queues",
            )
        if self.queue is not None and self.queues:
            found = ", ".join(map(self.naming.print_address, self.queues))
            expected = f"nothing beside the one queue {self.naming.print_address(self.queue)}"
            raise BadOption(option="queues", found=found, expected=expected)

    def _check_queues(self) -> None:
        for name in self.names:
            if self.names.count(name) > 1:
                found = ", ".join(self.names)
                expected = f"each queue once, but {name} is twice"
                raise BadOption(option="queues", found=found, expected=expected)
        if self.error_address is not None:
            name = self.naming.print_address(self.error_address)
            if name in self.names:
                read_queues = "those" if self.queues else "the one"
                expected = f"another queue than {read_queues} read"
                raise BadOption(option="errorQueue", found=name, expected=expected)
