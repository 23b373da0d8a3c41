"""
Options: text from Spark → frozen values.

The only place that knows option names.
Each field says its option's name, how to read it and what would do; its default is the option's.
A name that is near one of ours is refused, because a misspelt limit would be silently no limit, and
so is one of the other side; other names belong to Spark and are left alone.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar
from urllib.parse import quote

from sqlq_spark import database
from sqlq_spark.database.zone import ZONE
from sqlq_spark.errors import BadAddress, BadOption, MisplacedOption, MissingOption, UnknownOption
from sqlq_spark.wire.address import (
    SHOWN,
    QueueAddress,
    name_postgresql,
    name_sqlserver,
    print_postgresql,
    print_sqlserver,
    split_list,
    split_list_sqlserver,
    table_postgresql,
)
from sqlq_spark.wire.headers import parse_span
from sqlq_spark.wire.message_types import split_names, unfit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")


def encoded(word: str) -> str:
    """A pattern of a word of which a url may percent-encode each letter; for use without case."""
    return "".join(f"(?:{each}|%{ord(each):x}|%{ord(each.upper()):x})" for each in word)


SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
INT64 = 2**63 - 1
LARGEST_MESSAGE = 1000 << 20  # PostgreSQL sends no row of 1 GB

# how a user's name for a queue is read, by the dialect
NAMED = {"postgresql": name_postgresql, "sqlserver": name_sqlserver}
# and how it is written, so that one queue has one name
PRINTED = {"postgresql": print_postgresql, "sqlserver": print_sqlserver}
# the same for a table that is there, whether peers take its name or not
ANY_TABLE = NAMED | {"postgresql": table_postgresql}
# in which schema a name without one is
DEFAULT_SCHEMAS = {"postgresql": "public", "sqlserver": "dbo"}
# how a list of names is split
LISTED = {"postgresql": split_list, "sqlserver": split_list_sqlserver}
# a password in a url, before the host or in the query
OWN_PASSWORD = re.compile(rf"(?i)://[^/?@:]*:[^/?]*@|[?&]{encoded('password')}=")
# whose queues have columns for the peers of version 1
WITH_LEGACY_COLUMNS = {"sqlserver"}


class Unreadable(ValueError):
    """A text is not what an option takes."""


def duration(least: float, most: float = math.inf) -> Callable[[str], float]:
    """Read `250ms`, `1s`, `15m`, `2 hours` as seconds, within bounds."""

    def read(text: str) -> float:
        found = re.fullmatch(
            r"(\d+(?:\.\d+)?)\s*(ms|millis\w*|s|sec\w*|m|min\w*|h|hours?|d|days?)", text
        )
        if not found:
            raise Unreadable
        unit = (
            found[2] if found[2] in SECONDS else "ms" if found[2].startswith("mil") else found[2][0]
        )
        seconds = float(found[1]) * SECONDS[unit]
        if not least <= seconds <= most:
            raise Unreadable
        return seconds

    return read


def count(text: str) -> int:
    """Read a whole number of at least 1."""
    if not re.fullmatch(r"\d{1,18}", text) or int(text) < 1:
        raise Unreadable
    return int(text)


def size(text: str) -> int:
    """Read `1048576`, `64m`, `1GiB` as bytes, at least 1."""
    found = re.fullmatch(r"(\d{1,15})\s*([kmg]?)(?:i?b)?", text.lower())
    if not found or int(found[1]) < 1:
        raise Unreadable
    return min(int(found[1]) * BYTES[found[2]], INT64)


def message_size(text: str) -> int:
    """Read bytes as `size`, at most LARGEST_MESSAGE."""
    found = size(text)
    if found > LARGEST_MESSAGE:
        raise Unreadable
    return found


def flag(text: str) -> bool:
    """Read `true` or `false`."""
    if text.lower() not in {"true", "false"}:
        raise Unreadable
    return text.lower() == "true"


def one_of(*known: str) -> Callable[[str], str]:
    """Read one of a few words, in any case."""

    def read(text: str) -> str:
        for word in known:
            if word.lower() == text.lower():
                return word
        raise Unreadable

    return read


def name(text: str) -> str:
    """Read a name for a schema or an application of the user's: not empty, 63 bytes at most."""
    if not text or len(text.encode()) > 63 or "\0" in text:  # noqa: PLR2004
        raise Unreadable
    return text


def words(text: str) -> str:
    """Read any text that is not blank, and that a driver can send."""
    if not text.strip():
        raise Unreadable
    text.encode()  # half of a surrogate pair is a ValueError
    return text


def topic_names(text: str) -> tuple[str, ...]:
    """Read topics that commas separate."""
    found = tuple(split_names(text))
    if any(map(unfit, found)):
        raise Unreadable
    return found


def option(
    public: str,
    read: Callable[[str], Any],
    expected: str,
    *,
    default: Any = MISSING,  # noqa: ANN401 - as dataclasses.field
    secret: bool = False,
) -> Any:  # noqa: ANN401
    """Describe one option, as the field of a dataclass."""
    metadata = {"option": public, "read": read, "expected": expected}
    return field(default=default, repr=not secret, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class DatabaseOptions:
    """Where the database is, and how long to wait for it."""

    url: str = option("url", words, database.EXAMPLES, secret=True)
    state_schema: str = option(
        "stateSchema", name, "the schema of the state tables", default="sqlqueue"
    )
    query_timeout: float = option(
        "queryTimeout", duration(1, 86400), "a time from 1s to 1d, as 30s", default=30.0
    )
    allowed_destinations: str | None = option(
        "allowedDestinations", words, "names of tables, in which * and ? may stand", default=None
    )

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> Self:
        """
        Read what Spark hands over.

        Args:
            raw: option names in any case → text. `user` and `password` are put into the url,
                `path` (of `.load` and `.save`) stands for `queue`.

        Raises:
            BadOption, MissingOption, UnknownOption: with what was found and what would do.
        """
        given = {key.lower(): text for key, text in raw.items()}
        if "path" in given:
            queue = given.setdefault("queue", given["path"])
            if queue != given["path"]:
                raise BadOption(
                    "queue", queue, f"nothing beside .load or .save of {given['path']!r}"
                )
        refuse_strays(given, cls)
        values = {}
        for each in fields(cls):
            public = each.metadata["option"]
            text = given.get(public.lower())
            if text is not None:
                values[each.name] = parsed(
                    public, text, each.metadata["read"], each.metadata["expected"]
                )
            elif each.default is MISSING:
                raise MissingOption(public, each.metadata["expected"])
        values["url"] = with_login(values["url"], given.get("user"), given.get("password"))
        return cls(**values)

    def __post_init__(self) -> None:
        """Refuse a url that no dialect speaks, before anything uses it."""
        database.kind(self.url)
        _ = self.allowed

    @property
    def allowed(self) -> tuple[QueueAddress, ...]:
        """
        Tables that are trusted as destinations, whoever owns them.

        `*` and `?` in a part stand for any text and any character; a schema is always there.
        """
        if self.allowed_destinations is None:
            return ()
        public, schema = "allowedDestinations", DEFAULT_SCHEMAS[database.kind(self.url)]
        found = listed(public, self.url, self.allowed_destinations, ANY_TABLE)
        return tuple(each if each.schema else replace(each, schema=schema) for each in found)


@dataclass(frozen=True, kw_only=True)
class SourceOptions(DatabaseOptions):
    """What a stream needs, parsed once; no one else sees a raw option."""

    queue: str | None = option("queue", words, "a queue's name, also as .load(name)", default=None)
    queues: str | None = option(
        "queues", words, "names of queues, separated by commas", default=None
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
        default=256 << 20,
    )
    min_messages: int | None = option(
        "minMessagesPerTrigger", count, "a whole number of at least 1", default=None
    )
    max_trigger_delay: float = option(
        "maxTriggerDelay", duration(0), "a time, as 15m", default=15 * 60.0
    )
    max_concurrency: int | None = option(
        "maxConcurrency", count, "a whole number of at least 1", default=None
    )
    min_concurrency: int = option(
        "minConcurrency", count, "a whole number of at least 1", default=1
    )
    peek_delay: float = option(
        "peekDelay", duration(0.1), "a time of at least 100ms, as 1s", default=1.0
    )
    headers_format: str = option(
        "headersFormat", one_of("map", "json"), "map or json", default="map"
    )
    include_body_string: bool = option("includeBodyString", flag, "true or false", default=False)
    error_queue: str | None = option("errorQueue", words, "a queue's name", default=None)
    delayed_delivery: bool = option("delayedDelivery", flag, "true or false", default=False)
    endpoint_time_zone: str | None = option("endpointTimeZone", name, ZONE, default=None)
    purge_on_startup: bool = option("purgeOnStartup", flag, "true or false", default=False)
    fail_on_data_loss: bool = option("failOnDataLoss", flag, "true or false", default=True)
    cores: ClassVar[int | None] = None  # of the cluster, where `register` saw it; see `on`

    def __post_init__(self) -> None:
        """Refuse what no single option can see by itself."""
        super().__post_init__()
        if self.min_messages is not None and self.min_messages > self.max_messages:
            raise BadOption(
                "minMessagesPerTrigger",
                str(self.min_messages),
                f"at most {self.max_messages}, the maximum",
            )
        if self.min_concurrency > self.concurrency:
            raise BadOption(
                "minConcurrency",
                str(self.min_concurrency),
                f"at most {self.concurrency}, the maximum",
            )
        self._check_queues()

    def _check_queues(self) -> None:
        """Each queue once, and none of them the error queue."""
        if self.queue is None and self.queues is None:
            raise MissingOption(
                "queue", "a queue's name, also as .load(name), or several in queues"
            )
        if self.queue is not None and self.queues is not None:
            raise BadOption("queues", self.queues, f"nothing beside the one queue {self.queue!r}")
        names = self.names
        for name in names:
            if names.count(name) > 1:
                raise BadOption("queues", str(self.queues), f"each queue once, but {name} is twice")
        if self.error_address is not None and printed(self.url, self.error_address) in names:
            one = "the one read" if self.queues is None else "those read"
            raise BadOption("errorQueue", str(self.error_queue), f"another queue than {one}")

    @property
    def addresses(self) -> tuple[QueueAddress, ...]:
        """The queues to read, one at least."""
        if self.queues is None:
            return (addressed("queue", self.url, str(self.queue)),)
        return tuple(listed("queues", self.url, self.queues))

    @property
    def names(self) -> list[str]:
        """Their canonical addresses."""
        return [printed(self.url, each) for each in self.addresses]

    @property
    def address(self) -> QueueAddress:
        """The queue to read, the first of several."""
        return self.addresses[0]

    def most_tasks(self, address: QueueAddress) -> int | None:
        """
        How many tasks may read one of several queues, where that is known without being told.

        One for an instance-specific queue, as in the transport, where replies to one instance come
        in.
        """
        return 1 if self.max_concurrency is None and self.is_instance(address) else None

    def is_instance(self, address: QueueAddress) -> bool:
        """Whether it is the instance-specific queue of an endpoint whose queue is read too."""
        stem = address.table
        while "." in stem:
            stem = stem.rpartition(".")[0]
            if stem and printed(self.url, replace(address, table=stem)) in self.names:
                return True
        return False

    @property
    def error_address(self) -> QueueAddress | None:
        """Where poison goes, if anywhere."""
        return (
            None
            if self.error_queue is None
            else addressed("errorQueue", self.url, self.error_queue)
        )

    def on(self, cores: int | None) -> Self:
        """Give the same options for a cluster with so many cores, which are no option."""
        made = replace(self)
        object.__setattr__(made, "cores", cores)  # frozen, and no field, as all fields are options
        return made

    @property
    def concurrency(self) -> int:
        """Receive tasks of one batch, at most; by default one for each core that is known."""
        cores = self.cores or os.cpu_count() or 2
        return self.max_concurrency or max(2, cores, self.min_concurrency)


@dataclass(frozen=True, kw_only=True)
class SinkOptions(DatabaseOptions):
    """What a writer needs, parsed once."""

    queue: str | None = option("queue", words, "a queue's name, also as .save(name)", default=None)
    topics: tuple[str, ...] | None = option(
        "topics", topic_names, "types' full names, as Shop.OrderPlaced,Shop.IEvent", default=None
    )
    subscription_table: str = option(
        "subscriptionTable",
        words,
        "a table's name, written as a queue's",
        default="SubscriptionRouting",
    )
    delayed_queue: str | None = option(
        "delayedQueue", words, "a table's name, as Shop.Orders.Delayed", default=None
    )
    endpoint_time_zone: str | None = option("endpointTimeZone", name, ZONE, default=None)
    delivery: str = option(
        "delivery",
        one_of("exactlyOnce", "atLeastOnce"),
        "exactlyOnce or atLeastOnce",
        default="exactlyOnce",
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
    message_type: str | None = option("messageType", words, "a .NET type's full name", default=None)
    content_type: str | None = option("contentType", words, "application/json", default=None)
    intent: str = option(
        "intent", one_of("Send", "Publish", "Reply"), "Send, Publish or Reply", default="Send"
    )
    originating_endpoint: str | None = option(
        "originatingEndpoint", words, "an endpoint's name", default=None
    )
    reply_to_address: str | None = option(
        "replyToAddress", words, "a queue's address", default=None
    )
    as_received: bool = option("asReceived", flag, "true or false", default=False)
    legacy_columns: bool = option("legacyColumns", flag, "true or false", default=False)
    txn_app_id: str | None = option(
        "txnAppId", words, "a name that lasts, with txnVersion", default=None
    )
    txn_version: int | None = option(
        "txnVersion",
        lambda text: count(str(int(text) + 1)) - 1,
        "a whole number of at least 0",
        default=None,
    )
    checkpoint: str | None = option("checkpointLocation", words, "a folder", default=None)

    def __post_init__(self) -> None:
        """Refuse what no single option can see by itself."""
        super().__post_init__()
        if self.settles and self.delivery != "exactlyOnce":
            raise BadOption(
                "delivery", self.delivery, "exactlyOnce with transactionMode=sendsAtomicWithReceive"
            )
        if self.as_received and any(self.stated):
            raise BadOption(
                "asReceived",
                "true",
                f"no option that states a header beside it, {self.stated} here",
            )
        if (self.txn_app_id is None) != (self.txn_version is None):
            missing, other = (
                ("txnAppId", "txnVersion")
                if self.txn_app_id is None
                else ("txnVersion", "txnAppId")
            )
            raise MissingOption(
                missing, f"both or none of txnAppId and txnVersion ({other} is there)"
            )
        if self.txn_app_id is not None and len(self.txn_app_id) > 150:  # noqa: PLR2004
            raise BadOption("txnAppId", self.txn_app_id[:20] + "…", "at most 150 characters")
        if self.txn_app_id is not None and self.txn_app_id != self.txn_app_id.strip():
            # SQL Server compares names without the blanks at their ends: two writes would be one
            raise BadOption("txnAppId", self.txn_app_id, "a name without blanks at its ends")
        if self.topics is not None and self.queue is not None:
            raise BadOption(
                "topics",
                ", ".join(self.topics),
                f"no queue beside it, {self.queue!r} here: rows without a destination of their own "
                "are sent to that queue or published, not both",
            )
        _ = self.address, self.subscription_address, self.delayed_address

    @property
    def stated(self) -> list[str]:
        """What the options put into headers."""
        given = (self.message_type, self.content_type, self.originating_endpoint)
        lifetime = self.time_to_be_received
        spoken = (*given, self.reply_to_address, None if lifetime is None else f"{lifetime} ms")
        return [text for text in spoken if text is not None]

    @property
    def fills_legacy_columns(self) -> bool:
        """Whether CorrelationId and ReplyToAddress are also written into columns of their own."""
        return self.legacy_columns and database.kind(self.url) in WITH_LEGACY_COLUMNS

    @property
    def settles(self) -> bool:
        """Whether what is sent commits with what the micro-batch received."""
        return self.transaction_mode is not None

    @property
    def address(self) -> QueueAddress | None:
        """Where rows go that name no queue of their own."""
        return None if self.queue is None else addressed("queue", self.url, self.queue)

    @property
    def subscription_address(self) -> QueueAddress:
        """The table of subscriptions."""
        return addressed("subscriptionTable", self.url, self.subscription_table)

    @property
    def delayed_address(self) -> QueueAddress | None:
        """Where delayed rows wait, if not in the table of their destination."""
        return (
            None
            if self.delayed_queue is None
            else addressed("delayedQueue", self.url, self.delayed_queue, ANY_TABLE)
        )


def parsed(public: str, text: str, read: Callable[[str], T], expected: str) -> T:
    """Read one option's text."""
    try:
        return read(text)
    except ValueError:
        raise BadOption(public, text, expected) from None


def addressed(
    public: str,
    url: str,
    text: str,
    named: Mapping[str, Callable[[str], QueueAddress]] = NAMED,
) -> QueueAddress:
    """Read a queue's name in the notation of the url's database."""
    try:
        return named[database.kind(url)](text)
    except BadAddress as error:
        raise BadOption(public, text[:SHOWN], f"a queue's name ({error.args[1]})") from None


def listed(
    public: str,
    url: str,
    text: str,
    named: Mapping[str, Callable[[str], QueueAddress]] = NAMED,
) -> list[QueueAddress]:
    """Read names of queues that commas separate."""
    try:
        names = LISTED[database.kind(url)](text)
    except BadAddress as error:
        expected = f"names of queues, separated by commas ({error.args[1]})"
        raise BadOption(public, text, expected) from None
    return [addressed(public, url, each, named) for each in names]


def printed(url: str, address: QueueAddress) -> str:
    """Write the canonical address in the notation of the url's database."""
    return PRINTED[database.kind(url)](address)


# a read and a write: what it is called, and where the options of the other are given
SIDES: dict[type[DatabaseOptions], tuple[str, str]] = {
    SourceOptions: ("read", "df.write or df.writeStream"),
    SinkOptions: ("write", "spark.read or spark.readStream"),
}
STREAMS_OWN = {"checkpointlocation"}  # Spark's, which either side of a stream may be told


def refuse_strays(given: Mapping[str, str], cls: type[DatabaseOptions]) -> None:
    """Raise for a name that is nearly one of ours, or one that only the other side knows."""
    known, all_known = names(cls), names(*SIDES)
    if strays := (given.keys() & all_known.keys()) - known.keys() - STREAMS_OWN:
        raise MisplacedOption(all_known[min(strays)], *SIDES[cls])
    known |= {"user": "user", "password": "password"}
    for key in given.keys() - known.keys() - all_known.keys() - {"path"}:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.8)
        if near:
            raise UnknownOption(key, known[near[0]])


def names(*classes: type[DatabaseOptions]) -> dict[str, str]:
    """All names of options, by themselves in lower case."""
    listed = (each.metadata["option"] for cls in classes for each in fields(cls))
    return {public.lower(): public for public in listed}


def with_password(url: str, password: str | None) -> str:
    """Put a password of the environment into the url, where that has none of its own."""
    return url if OWN_PASSWORD.search(url) else with_login(url, None, password)


def with_login(url: str, user: str | None, password: str | None) -> str:
    """Put user and password, given as options of their own, into the url."""
    login = {"user": user, "password": password}
    query = "&".join(
        f"{key}={quote(text, safe='')}" for key, text in login.items() if text is not None
    )
    return f"{url}{'&' if '?' in url else '?'}{query}" if query else url
