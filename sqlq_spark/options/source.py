"""Options of a read."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

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
    size,
)
from sqlq_spark.options.names import parse_queue, parse_queues

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

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlq_spark.wire.address import QueueAddress

WRITE = (  # where the options of a write belong
    "df.write or df.writeStream. In SQL, name the columns to send: "
    "CREATE TEMPORARY VIEW … (body STRING) USING sqlqueue"
)


@dataclass(frozen=True, kw_only=True)
class SourceOptions(DatabaseOptions):
    """Options of a read, parsed once. Only this package sees a raw option."""

    side: ClassVar[tuple[str, str]] = ("read", WRITE)

    queue: QueueAddress | None = option("queue", parse_queue, "a queue's name, also as .load(name)")
    queues: tuple[QueueAddress, ...] = option(
        "queues", parse_queues, "names of queues, separated by commas", default=()
    )
    transaction_mode: str = option(
        "transactionMode", one_of("receiveOnly", "none"), default="receiveOnly"
    )
    max_messages: int = option("maxMessagesPerTrigger", count, default=100_000)
    max_bytes: int | None = option("maxBytesPerTrigger", size)
    max_message_bytes: int = option(
        "maxMessageBytes", read_message_size, default=DEFAULT_MESSAGE_SIZE
    )
    max_header_bytes: int = option("maxHeaderBytes", read_message_size, default=DEFAULT_HEADER_SIZE)
    min_messages: int | None = option("minMessagesPerTrigger", count)
    max_trigger_delay: float = option("maxTriggerDelay", duration(0), default=15 * 60.0)  # seconds
    max_concurrency: int | None = option("maxConcurrency", count)
    min_concurrency: int = option("minConcurrency", count, default=1)
    peek_delay: float = option(
        "peekDelay", duration(0.1, expected="a time of at least 100ms, as 1s"), default=1.0
    )  # seconds
    headers_format: str = option("headersFormat", one_of("map", "json"), default="map")
    # where poison messages go
    error_address: QueueAddress | None = option("errorQueue", parse_queue, "a queue's name")
    delayed_delivery: bool = option("delayedDelivery", flag, default=False)
    purge_on_startup: bool = option("purgeOnStartup", flag, default=False)
    # whether a starting stream looks for an endpoint that owns the queue
    warn_if_shared: bool = option("warnIfShared", flag, default=True)
    fail_on_data_loss: bool = option("failOnDataLoss", flag, default=True)
    # Whether a batch that left fewer receipts than tasks ends the query and stays open. None: a
    # batch of which no task ran is closed, and ends only a run of AvailableNow.
    fail_on_missing_receipts: bool | None = option("failOnMissingReceipts", flag)

    cores: int | None = None  # of the cluster, if `register` saw them

    def __post_init__(self) -> None:
        self._check_queues()
        self._check_limits()

    @cached_property
    def addresses(self) -> tuple[QueueAddress, ...]:
        """The queues to read, at least one."""
        if self.queue is None:
            if not self.queues:
                raise MissingOption(
                    option="queue",
                    example="a queue's name, also as .load(name), or several in queues",
                )
            return self.queues
        if self.queues:
            name, *names = map(self.naming.print_address, (self.queue, *self.queues))
            expected = f"nothing beside the one queue {name}"
            raise BadOption(option="queues", found=", ".join(names), expected=expected)
        return (self.queue,)

    @property
    def named_tables(self) -> tuple[QueueAddress, ...]:
        return tuple(filter(None, (self.queue, *self.queues, self.error_address)))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The canonical addresses of the queues to read."""
        return tuple(map(self.naming.print_address, self.addresses))

    @cached_property
    def concurrency(self) -> int:
        """How many receive tasks one batch has at most."""
        cores = self.cores or os.cpu_count() or 2
        return self.max_concurrency or max(2, cores, self.min_concurrency)

    @cached_property
    def instances(self) -> frozenset[QueueAddress]:
        """
        The instance-specific queues of endpoints whose queues are read too.

        Such a queue has the name of the endpoint's queue, and goes on with a dot.
        """
        return frozenset(filter(self._is_instance, self.addresses))

    @property
    def limits_headers(self) -> bool:
        """Whether headers have a limit of their own; one as high as maxMessageBytes is none."""
        return self.max_header_bytes < self.max_message_bytes

    @property
    def address(self) -> QueueAddress:
        """The queue to read, the first of several."""
        return self.addresses[0]

    @property
    def columns(self) -> dict[str, str]:
        """Column → type, as a read with these options gives them."""
        if self.headers_format == "map":
            return COLUMNS
        kept = {name: kind for name, kind in COLUMNS.items() if name != "corruptHeaders"}
        return kept | {"headers": "string"}

    def check_columns(self, wanted: Mapping[str, str]) -> None:
        """Raise BadFrame for a column (→ type) that a read does not give; fewer are allowed."""
        known = self.columns
        for column, kind in wanted.items():
            if known.get(column) != kind:
                expected = ", ".join(f"{name} {kind}" for name, kind in known.items())
                reason = f"a read has no column {column} {kind}; choose from {expected}"
                if kind == "timestamp_ntz":  # of spark.sql.timestampType=TIMESTAMP_NTZ
                    reason += "; in a schema of your own write TIMESTAMP_LTZ"
                raise BadFrame(reason=reason, done="read")

    def most_tasks(self, address: QueueAddress) -> int | None:
        """
        Return how many tasks may read one of the queues; None for no limit of its own.

        The transport lets one task read an instance-specific queue, which receives replies to one
        instance.
        """
        return 1 if self.max_concurrency is None and address in self.instances else None

    def _is_instance(self, address: QueueAddress) -> bool:
        stem = address.table
        while stem := stem.rpartition(".")[0]:
            if self.naming.print_address(replace(address, table=stem)) in self.names:
                return True
        return False

    def _check_limits(self) -> None:
        for public, least, most in (
            ("minMessagesPerTrigger", self.min_messages, self.max_messages),
            ("minConcurrency", self.min_concurrency, self.concurrency),
        ):
            if least is not None and least > most:
                expected = f"at most {most}, the maximum"
                raise BadOption(option=public, found=str(least), expected=expected)

    def _check_queues(self) -> None:
        for name in self.names:
            if self.names.count(name) > 1:
                found, expected = ", ".join(self.names), f"each queue once, but {name} is twice"
                raise BadOption(option="queues", found=found, expected=expected)
        if self.error_address is not None:
            name = self.naming.print_address(self.error_address)
            if name in self.names:
                expected = f"another queue than {'those' if self.queues else 'the one'} read"
                raise BadOption(option="errorQueue", found=name, expected=expected)
