"""Options of a read."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self

from sqlq_spark.errors import BadOption, MissingOption
from sqlq_spark.options.addresses import parse_queue, parse_queues
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.fields import address_option, computed, option
from sqlq_spark.options.parse import (
    DEFAULT_MESSAGE_SIZE,
    count,
    duration,
    flag,
    message_size,
    one_of,
    size,
)

WRITE = (  # where the options of a write belong
    "df.write or df.writeStream. In SQL, name the columns to send: "
    "CREATE TEMPORARY VIEW … (body STRING) USING sqlqueue"
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlq_spark.wire.address import QueueAddress


@dataclass(frozen=True, kw_only=True)
class SourceOptions(DatabaseOptions):
    """Options of a read, parsed once. Only this package sees a raw option."""

    side: ClassVar[tuple[str, str]] = ("read", WRITE)

    queue: QueueAddress | None = address_option(
        "queue", parse_queue, "a queue's name, also as .load(name)"
    )
    queues: tuple[QueueAddress, ...] = address_option(
        "queues", parse_queues, "names of queues, separated by commas", default=()
    )
    transaction_mode: str = option(
        "transactionMode",
        one_of("receiveOnly", "none"),
        "receiveOnly or none",
        default="receiveOnly",
    )
    max_messages: int = option(
        "maxMessagesPerTrigger", count, "a whole number of at least 1", default=100_000
    )
    max_bytes: int | None = option(
        "maxBytesPerTrigger", size, "bytes, at least 1, as 67108864 or 64m", default=None
    )
    max_message_bytes: int = option(
        "maxMessageBytes",
        message_size,
        "bytes, at least 1 and at most 1000m, as 268435456 or 256m",
        default=DEFAULT_MESSAGE_SIZE,
    )
    min_messages: int | None = option(
        "minMessagesPerTrigger", count, "a whole number of at least 1", default=None
    )
    max_trigger_delay: float = option(
        "maxTriggerDelay", duration(0), "a time, as 15m", default=15 * 60.0
    )  # seconds
    max_concurrency: int | None = option(
        "maxConcurrency", count, "a whole number of at least 1", default=None
    )
    min_concurrency: int = option(
        "minConcurrency", count, "a whole number of at least 1", default=1
    )
    peek_delay: float = option(
        "peekDelay", duration(0.1), "a time of at least 100ms, as 1s", default=1.0
    )  # seconds
    headers_format: str = option(
        "headersFormat", one_of("map", "json"), "map or json", default="map"
    )
    # where poison messages go
    error_address: QueueAddress | None = address_option("errorQueue", parse_queue, "a queue's name")
    delayed_delivery: bool = option("delayedDelivery", flag, "true or false", default=False)
    purge_on_startup: bool = option("purgeOnStartup", flag, "true or false", default=False)
    # whether a starting stream looks for an endpoint that owns the queue
    warn_if_shared: bool = option("warnIfShared", flag, "true or false", default=True)
    fail_on_data_loss: bool = option("failOnDataLoss", flag, "true or false", default=True)
    # for sinks that read every batch whole: fewer receipts than tasks are lost commits
    fail_on_missing_receipts: bool = option(
        "failOnMissingReceipts", flag, "true or false", default=False
    )

    cores: int | None = field(default=None)  # of the cluster, if `register` saw them
    addresses: tuple[QueueAddress, ...] = computed()  # the queues to read, at least one
    names: tuple[str, ...] = computed(shown=False)  # their canonical addresses
    instances: frozenset[QueueAddress] = computed(shown=False)  # see `_is_instance`
    concurrency: int = computed()  # receive tasks of one batch, at most

    @classmethod
    def parse(cls, raw: Mapping[str, str], *, cores: int | None = None) -> Self:
        """Read the options as `DatabaseOptions.parse`; `cores` are those of the cluster."""
        return cls(**cls._read(raw), cores=cores)

    def __post_init__(self) -> None:
        """Compute addresses and numbers, and check what concerns several options."""
        super().__post_init__()
        cores = self.cores or os.cpu_count() or 2
        addresses = self._choose_addresses()
        names = tuple(map(self.naming.print_address, addresses))
        self._compute(
            addresses=addresses,
            names=names,
            instances=frozenset(each for each in addresses if self._is_instance(each, names)),
            concurrency=self.max_concurrency or max(2, cores, self.min_concurrency),
        )
        self._check_limits()
        self._check_queues()

    @property
    def address(self) -> QueueAddress:
        """The queue to read, the first of several."""
        return self.addresses[0]

    def most_tasks(self, address: QueueAddress) -> int | None:
        """
        Return how many tasks may read one of the queues; None for no limit of its own.

        The transport lets one task read an instance-specific queue, which receives replies to one
        instance.
        """
        return 1 if self.max_concurrency is None and address in self.instances else None

    def _choose_addresses(self) -> tuple[QueueAddress, ...]:
        """Take the addresses from `queue` or from `queues`."""
        if self.queue is None:
            if not self.queues:
                raise MissingOption(
                    option="queue",
                    example="a queue's name, also as .load(name), or several in queues",
                )
            return self.queues
        if self.queues:
            name, *names = map(self.naming.print_address, (self.queue, *self.queues))
            raise BadOption(
                option="queues",
                found=", ".join(names),
                expected=f"nothing beside the one queue {name}",
            )
        return (self.queue,)

    def _is_instance(self, address: QueueAddress, names: tuple[str, ...]) -> bool:
        """
        Whether this is the instance-specific queue of an endpoint whose queue is read too.

        The endpoint's queue has the same name up to a dot.
        """
        stem = address.table
        while "." in stem:
            stem = stem.rpartition(".")[0]
            if stem and self.naming.print_address(replace(address, table=stem)) in names:
                return True
        return False

    def _check_limits(self) -> None:
        """Refuse a minimum above its maximum."""
        for option_name, least, most in (
            ("minMessagesPerTrigger", self.min_messages, self.max_messages),
            ("minConcurrency", self.min_concurrency, self.concurrency),
        ):
            if least is not None and least > most:
                raise BadOption(
                    option=option_name, found=str(least), expected=f"at most {most}, the maximum"
                )

    def _check_queues(self) -> None:
        """Refuse a queue that is named twice or that is also the error queue."""
        for name in self.names:
            if self.names.count(name) > 1:
                found, expected = ", ".join(self.names), f"each queue once, but {name} is twice"
                raise BadOption(option="queues", found=found, expected=expected)
        if self.error_address is not None:
            name = self.naming.print_address(self.error_address)
            if name in self.names:
                one = "the one read" if not self.queues else "those read"
                raise BadOption(
                    option="errorQueue", found=name, expected=f"another queue than {one}"
                )
