"""Options of a write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sqlq_spark.errors import BadOption, MissingOption
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.fields import (
    Reader,
    count,
    flag,
    one_of,
    option,
    require,
    whole_number,
    words,
)
from sqlq_spark.options.names import parse_queue, parse_reply_address, parse_table
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.headers import (
    has_blank,
    parse_span,
    split_names,
    topic_problem,
    types_problem,
)

if TYPE_CHECKING:
    from sqlq_spark.wire.address import Names

SUBSCRIPTION_TABLE = "SubscriptionRouting"  # the transport's default
FAIL = "fail"  # of `undeliverable`
LONGEST_APPLICATION = 150  # characters of txnAppId


def _parse_undeliverable(option: str, text: str, naming: Names) -> QueueAddress | None:
    return None if text.lower() == FAIL else parse_queue(option, text, naming)


def _read_types(text: str) -> str:
    require(types_problem(words(text)) is None)
    return text


def _read_application(text: str) -> str:
    # SQL Server ignores blanks at the end of names: two writes would be one
    require(len(words(text)) <= LONGEST_APPLICATION and text == text.strip())
    return text


def _read_topics(text: str) -> tuple[str, ...]:
    # `Shop.OrderPlaced, Shop` is one type with its assembly, and not two topics
    require(not has_blank(text))
    topics = tuple(split_names(text))
    require(not any(map(topic_problem, topics)))
    return topics


application = Reader(
    f"a name that lasts, of at most {LONGEST_APPLICATION} characters, without blanks at its ends, "
    "with txnVersion",
    _read_application,
)
type_names = Reader("a .NET type's full name, or several joined by ;, each once", _read_types)
topic_names = Reader(
    "types' full names, as Shop.OrderPlaced,Shop.IEvent, which commas separate, without blanks",
    _read_topics,
)
lifetime = Reader("hh:mm:ss, at most 24.20:31:23", parse_span)


@dataclass(frozen=True, kw_only=True)
class SinkOptions(DatabaseOptions):
    """Options of a write, parsed once. Only this package sees a raw option."""

    side: ClassVar[tuple[str, str]] = ("write", "spark.read or spark.readStream")

    # where all rows go that are not published; None: to their own queues
    address: QueueAddress | None = option(
        "queue", parse_queue, "a queue's name, also as .save(name)"
    )
    topics: tuple[str, ...] | None = option("topics", topic_names)
    subscription_address: QueueAddress = option(
        "subscriptionTable",
        parse_queue,
        "a table's name, written as a queue's",
        default=QueueAddress(SUBSCRIPTION_TABLE),
    )
    # where delayed rows wait; None: in the table of their destination
    delayed_address: QueueAddress | None = option(
        "delayedQueue", parse_table, "a table's name, as Shop.Orders.Delayed"
    )
    # where rows go that cannot be sent to their own destination; None: such a row fails its batch
    undeliverable_address: QueueAddress | None = option(
        "undeliverable", _parse_undeliverable, "fail, or an error queue's name"
    )
    delivery: str = option("delivery", one_of("exactlyOnce", "atLeastOnce"), default="exactlyOnce")
    max_rate: int | None = option("maxMessagesPerSecond", count)
    # messages in a destination
    pause_above: int | None = option("pauseAboveBacklog", whole_number(0))
    transaction_mode: str | None = option(
        "transactionMode",
        one_of("sendsAtomicWithReceive"),
        "sendsAtomicWithReceive, or left out",
    )
    time_to_be_received: int | None = option("timeToBeReceived", lifetime)  # milliseconds
    message_type: str | None = option("messageType", type_names)
    content_type: str | None = option("contentType", words, "application/json")
    intent: str = option("intent", one_of("Send", "Publish", "Reply"), default="Send")
    originating_endpoint: str | None = option("originatingEndpoint", words, "an endpoint's name")
    reply_to_address: QueueAddress | None = option(
        "replyToAddress", parse_reply_address, "a queue's address"
    )
    as_received: bool = option("asReceived", flag, default=False)
    legacy_columns: bool = option("legacyColumns", flag, default=False)
    txn_app_id: str | None = option("txnAppId", application)
    txn_version: int | None = option("txnVersion", whole_number(0))
    checkpoint: str | None = option("checkpointLocation", words, "a folder")

    @property
    def settles(self) -> bool:
        """Whether sends and the settling of their micro-batch's receipts commit together."""
        return self.transaction_mode is not None

    @property
    def fills_legacy_columns(self) -> bool:
        """Whether CorrelationId and ReplyToAddress are also written into columns of their own."""
        return self.legacy_columns and self.naming.has_legacy_columns

    @property
    def named_tables(self) -> tuple[QueueAddress, ...]:
        named = [self.address, self.delayed_address, self.undeliverable_address]
        if "subscriptiontable" in self.given:
            named.append(self.subscription_address)
        return tuple(filter(None, named))

    @property
    def names_subscriptions(self) -> bool:
        """Whether an option needs the table of subscriptions, whatever the rows say."""
        named = self.subscription_address != QueueAddress(SUBSCRIPTION_TABLE)
        return named or self.topics is not None

    @property
    def names_tables(self) -> bool:
        """Whether any option names a table to which rows go, or that says where they go."""
        tables = (self.address, self.delayed_address, self.undeliverable_address)
        return self.names_subscriptions or any(tables)

    def __post_init__(self) -> None:
        self._check_modes()
        self._check_transaction()
        if self.topics is not None and self.address is not None:
            expected = (
                f"no queue beside it, {self.naming.print_address(self.address)} here: rows without "
                "a destination of their own are sent to that queue or published, not both"
            )
            raise BadOption(option="topics", found=", ".join(self.topics), expected=expected)

    def _check_modes(self) -> None:
        if self.delivery != "exactlyOnce" and (self.settles or self.max_rate is not None):
            expected = (
                "exactlyOnce with transactionMode=sendsAtomicWithReceive"
                if self.settles
                else "exactlyOnce with maxMessagesPerSecond, or pauseAboveBacklog instead"
            )
            raise BadOption(option="delivery", found=self.delivery, expected=expected)
        lifetime, reply = self.time_to_be_received, self.reply_to_address
        headers = (
            self.message_type,
            self.content_type,
            self.originating_endpoint,
            None if reply is None else self.naming.print_address(reply),
            None if lifetime is None else f"{lifetime} ms",
        )
        stated = list(filter(None, headers))
        if self.as_received and stated:
            expected = f"no option that states a header beside it, {stated} here"
            raise BadOption(option="asReceived", found="true", expected=expected)

    def _check_transaction(self) -> None:
        missing, other = "txnVersion", "txnAppId"
        if (self.txn_app_id is None) != (self.txn_version is None):
            if self.txn_app_id is None:
                missing, other = other, missing
            expected = f"both or none of txnAppId and txnVersion ({other} is there)"
            raise MissingOption(option=missing, example=expected)
