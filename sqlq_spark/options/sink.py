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
FAIL = "fail"  # a value of the option `undeliverable`
LONGEST_APPLICATION = 150  # the most characters of the option txnAppId


def _parse_undeliverable(option: str, text: str, naming: Names) -> QueueAddress | None:
    return None if text.lower() == FAIL else parse_queue(option, text, naming)


def _read_types(text: str) -> str:
    require(types_problem(words(text)) is None)
    return text


def _read_application(text: str) -> str:
    # Blanks at the end are refused: SQL Server ignores them, so two different names could be equal
    # there.
    require(len(words(text)) <= LONGEST_APPLICATION and text == text.strip())
    return text


def _read_topics(text: str) -> tuple[str, ...]:
    # a blank is refused: `Shop.OrderPlaced, Shop` is probably one type with its assembly, not two
    # topics
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
    """The options of a write. They are parsed once. Other modules see only these values."""

    side: ClassVar[tuple[str, str]] = ("write", "spark.read or spark.readStream")

    # The queue for rows that are not published and name no queue. If it is None, each such row must
    # name a queue.
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
    # The table in which delayed rows wait. If it is None, each destination's own table is used.
    delayed_address: QueueAddress | None = option(
        "delayedQueue", parse_table, "a table's name, as Shop.Orders.Delayed"
    )
    # The queue for rows that cannot be sent to their destination. If it is None, such a row fails
    # its batch.
    undeliverable_address: QueueAddress | None = option(
        "undeliverable", _parse_undeliverable, "fail, or an error queue's name"
    )
    delivery: str = option("delivery", one_of("exactlyOnce", "atLeastOnce"), default="exactlyOnce")
    max_rate: int | None = option("maxMessagesPerSecond", count)
    # sending pauses while a destination has more messages than this
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
        """Whether one transaction sends a micro-batch's messages and settles its receipts."""
        return self.transaction_mode is not None

    @property
    def fills_legacy_columns(self) -> bool:
        """Whether the headers CorrelationId and ReplyToAddress are also written into columns."""
        return self.legacy_columns and self.naming.has_legacy_columns

    @property
    def named_tables(self) -> tuple[QueueAddress, ...]:
        named = [self.address, self.delayed_address, self.undeliverable_address]
        if "subscriptiontable" in self.given:
            named.append(self.subscription_address)
        return tuple(filter(None, named))

    @property
    def names_subscriptions(self) -> bool:
        """Whether the options alone show that the table of subscriptions is needed."""
        is_named = self.subscription_address != QueueAddress(SUBSCRIPTION_TABLE)
        return is_named or self.topics is not None

    @property
    def names_tables(self) -> bool:
        """Whether an option names a table of destinations, delayed messages or subscriptions."""
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
        stated = list(
            filter(None, (self.message_type, self.content_type, self.originating_endpoint))
        )
        if self.reply_to_address is not None:
            stated.append(self.naming.print_address(self.reply_to_address))
        if self.time_to_be_received is not None:
            stated.append(f"{self.time_to_be_received} ms")
        if self.as_received and stated:
            expected = f"no option that states a header beside it, {stated} here"
            raise BadOption(option="asReceived", found="true", expected=expected)

    def _check_transaction(self) -> None:
        has_application = self.txn_app_id is not None
        has_version = self.txn_version is not None
        if has_application == has_version:
            return
        missing = "txnVersion" if has_application else "txnAppId"
        given = "txnAppId" if has_application else "txnVersion"
        expected = f"both or none of txnAppId and txnVersion ({given} is there)"
        raise MissingOption(option=missing, example=expected)
