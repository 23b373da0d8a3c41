"""Options of a write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sqlq_spark.errors import BadOption, MissingOption
from sqlq_spark.options.addresses import (
    parse_queue,
    parse_queue_unless,
    parse_reply_address,
    parse_table,
)
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.fields import address_option, computed, option
from sqlq_spark.options.parse import (
    count,
    count_from_zero,
    flag,
    one_of,
    topic_names,
    type_names,
    words,
)
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.headers import parse_span

SUBSCRIPTION_TABLE = "SubscriptionRouting"  # the transport's default
FAIL = "fail"  # of `undeliverable`
LONGEST_APPLICATION = 150  # characters of txnAppId


@dataclass(frozen=True, kw_only=True)
class SinkOptions(DatabaseOptions):
    """Options of a write, parsed once. Only this package sees a raw option."""

    side: ClassVar[tuple[str, str]] = ("write", "spark.read or spark.readStream")

    # where all rows go that are not published; None: to their own queues
    address: QueueAddress | None = address_option(
        "queue", parse_queue, "a queue's name, also as .save(name)"
    )
    topics: tuple[str, ...] | None = option(
        "topics", topic_names, "types' full names, as Shop.OrderPlaced,Shop.IEvent", default=None
    )
    subscription_address: QueueAddress = address_option(
        "subscriptionTable",
        parse_queue,
        "a table's name, written as a queue's",
        default=QueueAddress(SUBSCRIPTION_TABLE),
    )
    # where delayed rows wait; None: in the table of their destination
    delayed_address: QueueAddress | None = address_option(
        "delayedQueue", parse_table, "a table's name, as Shop.Orders.Delayed"
    )
    # where rows go that cannot be sent to their own destination; None: such a row fails its batch
    undeliverable_address: QueueAddress | None = address_option(
        "undeliverable", parse_queue_unless(FAIL), "fail, or an error queue's name"
    )
    delivery: str = option(
        "delivery",
        one_of("exactlyOnce", "atLeastOnce"),
        "exactlyOnce or atLeastOnce",
        default="exactlyOnce",
    )
    max_rate: int | None = option(
        "maxMessagesPerSecond", count, "a whole number of at least 1", default=None
    )
    # messages in a destination
    pause_above: int | None = option(
        "pauseAboveBacklog", count_from_zero, "a whole number of at least 0", default=None
    )
    transaction_mode: str | None = option(
        "transactionMode",
        one_of("sendsAtomicWithReceive"),
        "sendsAtomicWithReceive, or left out",
        default=None,
    )
    time_to_be_received: int | None = option(
        "timeToBeReceived", parse_span, "hh:mm:ss, at most 24.20:31:23", default=None
    )  # milliseconds
    message_type: str | None = option(
        "messageType",
        type_names,
        "a .NET type's full name, or several joined by ;, each once",
        default=None,
    )
    content_type: str | None = option("contentType", words, "application/json", default=None)
    intent: str = option(
        "intent", one_of("Send", "Publish", "Reply"), "Send, Publish or Reply", default="Send"
    )
    originating_endpoint: str | None = option(
        "originatingEndpoint", words, "an endpoint's name", default=None
    )
    reply_to_address: QueueAddress | None = address_option(
        "replyToAddress", parse_reply_address, "a queue's address"
    )
    as_received: bool = option("asReceived", flag, "true or false", default=False)
    legacy_columns: bool = option("legacyColumns", flag, "true or false", default=False)
    txn_app_id: str | None = option(
        "txnAppId", words, "a name that lasts, with txnVersion", default=None
    )
    txn_version: int | None = option(
        "txnVersion", count_from_zero, "a whole number of at least 0", default=None
    )
    checkpoint: str | None = option("checkpointLocation", words, "a folder", default=None)

    settles: bool = computed()  # whether sends and the receive of their micro-batch commit together
    # whether CorrelationId and ReplyToAddress are also written into columns of their own
    fills_legacy_columns: bool = computed()

    @property
    def names_subscriptions(self) -> bool:
        """Whether an option needs the table of subscriptions, whatever the rows say."""
        named = self.subscription_address != QueueAddress(SUBSCRIPTION_TABLE)
        return named or self.topics is not None

    @property
    def names_tables(self) -> bool:
        """Whether any option names a table to which rows go, or that says where they go."""
        tables = (self.address, self.delayed_address, self.undeliverable_address)
        return self.names_subscriptions or any(each is not None for each in tables)

    def __post_init__(self) -> None:
        """Compute what the database allows, and check what concerns several options."""
        super().__post_init__()
        self._compute(
            settles=self.transaction_mode is not None,
            fills_legacy_columns=self.legacy_columns and self.naming.has_legacy_columns,
        )
        self._check_modes()
        self._check_transaction()
        self._check_destination()

    def _check_modes(self) -> None:
        """Refuse options that contradict the transaction mode or `asReceived`."""
        if self.settles and self.delivery != "exactlyOnce":
            raise BadOption(
                option="delivery",
                found=self.delivery,
                expected="exactlyOnce with transactionMode=sendsAtomicWithReceive",
            )
        if self.max_rate is not None and self.delivery != "exactlyOnce":
            expected = "exactlyOnce with maxMessagesPerSecond, or pauseAboveBacklog instead"
            raise BadOption(option="delivery", found=self.delivery, expected=expected)
        stated = self._list_stated_headers()
        if self.as_received and stated:
            expected = f"no option that states a header beside it, {stated} here"
            raise BadOption(option="asReceived", found="true", expected=expected)

    def _list_stated_headers(self) -> list[str]:
        """Return what the options write into headers."""
        lifetime, reply = self.time_to_be_received, self.reply_to_address
        stated = (
            self.message_type,
            self.content_type,
            self.originating_endpoint,
            None if reply is None else self.naming.print_address(reply),
            None if lifetime is None else f"{lifetime} ms",
        )
        return [text for text in stated if text is not None]

    def _check_transaction(self) -> None:
        """Refuse one of txnAppId and txnVersion without the other, and a bad txnAppId."""
        if self.txn_app_id is None or self.txn_version is None:
            if self.txn_app_id is not None or self.txn_version is not None:
                names = ("txnAppId", "txnVersion")
                missing, other = names if self.txn_app_id is None else names[::-1]
                expected = f"both or none of txnAppId and txnVersion ({other} is there)"
                raise MissingOption(option=missing, example=expected)
            return
        if len(self.txn_app_id) > LONGEST_APPLICATION:
            expected = f"at most {LONGEST_APPLICATION} characters"
            raise BadOption(option="txnAppId", found=self.txn_app_id[:20] + "…", expected=expected)
        if self.txn_app_id != self.txn_app_id.strip():
            # SQL Server ignores blanks at the end of names: two writes would be one
            raise BadOption(
                option="txnAppId",
                found=self.txn_app_id,
                expected="a name without blanks at its ends",
            )

    def _check_destination(self) -> None:
        """Refuse topics beside a queue."""
        if self.topics is not None and self.address is not None:
            queue = self.naming.print_address(self.address)
            raise BadOption(
                option="topics",
                found=", ".join(self.topics),
                expected=f"no queue beside it, {queue} here: rows without a destination of their "
                "own are sent to that queue or published, not both",
            )
