"""
How options are parsed, and those that all have: the database and how to reach it.

`DatabaseOptions.parse` refuses typos and options of the other side. Other names are left to Spark.
"""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from sqlq_spark.errors import (
    BadOption,
    MisplacedOption,
    MissingOption,
    OptionOfOtherSource,
    UnknownOption,
)
from sqlq_spark.options.fields import (
    Reader,
    duration,
    find_near,
    name,
    option,
    option_names,
    read_options,
    words,
)
from sqlq_spark.options.names import (
    EXAMPLES,
    OWN_PASSWORD,
    STATE,
    names_of,
    parse_roles,
    parse_tables,
    with_login,
    with_lower_scheme,
)
from sqlq_spark.wire.dialects import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlq_spark.wire.address import Names, QueueAddress

LOGIN = {"user": "user", "password": "password"}  # options that become part of the url
ZONE = "the time zone in which the .NET endpoints' sessions work, as Europe/Berlin"
SERVICES = {service for names in DIALECTS.values() for service in names.token_services}
FUNCTION = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")

# said where the url is missing: who wrote OPTIONS in CREATE TABLE has given one
OF_A_TABLE = (
    "In SQL, Spark does not pass on the OPTIONS of CREATE TABLE: use CREATE TEMPORARY VIEW, or "
    "write WITH (url '…') after the name of the table"
)
CHECKPOINT = "checkpointlocation"  # Spark's own option, allowed on both sides of a stream

# what to use here → options of other sources and sinks
# A ported job would otherwise run without its limit, and delete all that waits.
INSTEAD = {
    "name the queue by queue, or several of a read by queues": (
        "subscribe subscribePattern assign dbtable query subscriptionId"
    ),
    "name the queue by queue, or publish by topics of a write": "topic topicId",
    "there are no offsets: a stream receives all that waits. Filter a batch read by seq": (
        "startingOffsets endingOffsets startingTimestamp endingTimestamp "
        "startingOffsetsByTimestamp endingOffsetsByTimestamp"
    ),
    "use maxMessagesPerTrigger or maxBytesPerTrigger of a stream": "maxOffsetsPerTrigger",
    "use minMessagesPerTrigger of a stream": "minOffsetsPerTrigger",
    "the driver cuts a batch into tasks, and maxConcurrency of a stream limits them": (
        "minPartitions numPartitions numFetchPartitions maxRecordsPerPartition partitionColumn "
        "lowerBound upperBound"
    ),
    "a read always has the column headers, and headersFormat sets its type": "includeHeaders",
    "rows go in blocks of a fixed size, and maxBytesPerTrigger limits a batch of a stream": (
        "fetchsize batchsize"
    ),
    "use transactionMode": "isolationLevel",
    "url alone decides which server, database and driver are used": "driver projectId",
    "run `sqlqueue unsubscribe` or `sqlqueue retire`": "deleteSubscriptionOnStreamStop",
}
FOREIGN = {
    name.lower(): (name, advice) for advice, names in INSTEAD.items() for name in names.split()
}


def _read_credentials(text: str) -> str:
    """Read what gives the password; an error does not show the text, which may be a password."""
    if text.lower() in SERVICES:
        return text.lower()
    if not FUNCTION.fullmatch(text):
        raise BadOption(option="credentials", found="…", expected=credentials.expected)
    return text


credentials = Reader("azure, aws or package.module:function", _read_credentials)


@dataclass(frozen=True, slots=True)
class Trusted:
    """Whose tables a session uses, beside those of itself, superusers and the database's owner."""

    roles: tuple[str, ...] = ()  # the option trustedOwners
    named: tuple[QueueAddress, ...] = ()  # tables of options and arguments: their owners' too
    state_schema: str | None = None  # if the option names it: its owner's too
    allowed: tuple[QueueAddress, ...] = ()  # the option allowedDestinations: whoever owns them

    def values(self, names: Names) -> dict[str, str]:
        """Return what statements ask that look whose tables are trusted."""
        named = [names.place_of(queue) for queue in self.named]
        if self.state_schema is not None:
            named.append({"schema_name": self.state_schema})
        return {"owners": json.dumps(self.roles), "named": json.dumps(named)}

    def with_named(self, queues: Iterable[QueueAddress]) -> Trusted:
        """Return it with tables that an argument names."""
        return replace(self, named=(*self.named, *queues))

    def allows(self, catalog: str | None, schema: str, table: str, *, here: bool) -> bool:
        """Whether the option allowedDestinations lists a table; `here`: in the url's database."""
        return any(
            _fits(each.table, table)
            and _fits(each.schema or "", schema)
            and (here if each.catalog is None else _fits(each.catalog, catalog or ""))
            for each in self.allowed
        )


def _fits(pattern: str, name: str) -> bool:
    """Whether a name is as a pattern, in which `*` is any text and `?` any character."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))  # a bracket is a character like others


@dataclass(frozen=True, kw_only=True)
class DatabaseOptions:
    """Where the database is, how long to wait for it, and which names it uses."""

    # what has these options, and where the options of the other side belong
    side: ClassVar[tuple[str, str]] = ("command", "a read or a write")

    url: str = option("url", words, EXAMPLES, default=MISSING, secret=True)  # with the login
    # what gives the password at each connect
    credentials: str | None = option("credentials", credentials)
    state_schema: str = option("stateSchema", name, "the schema of the state tables", default=STATE)
    query_timeout: float = option(
        "queryTimeout", duration(1, 86400, "a time from 1s to 1d, as 30s"), default=30.0
    )  # seconds
    # roles whose tables are used
    trusted_owners: tuple[str, ...] = option(
        "trustedOwners", parse_roles, "names of roles, separated by commas", default=()
    )
    # tables that are used whoever owns them; `*` and `?` are wildcards
    allowed: tuple[QueueAddress, ...] = option(
        "allowedDestinations",
        parse_tables,
        "names of tables, separated by commas",
        default=(),
    )
    endpoint_time_zone: str | None = option("endpointTimeZone", name, ZONE)

    given: frozenset[str] = frozenset()  # names of options that are set, in lower case

    @cached_property
    def naming(self) -> Names:
        return names_of(self.url)

    @property
    def named_tables(self) -> tuple[QueueAddress, ...]:
        """The tables that options name, their defaults apart."""
        return ()

    @property
    def trusted(self) -> Trusted:
        """Whose tables a session with these options uses."""
        return Trusted(
            roles=self.trusted_owners,
            named=self.named_tables,
            state_schema=self.state_schema if "stateschema" in self.given else None,
            allowed=self.allowed,
        )

    @classmethod
    def parse(cls, raw: Mapping[str, str], **others: Any) -> Self:  # noqa: ANN401
        """
        Read the options that Spark passes on.

        Args:
            raw: option names in any case → text. `user` and `password` become part of the url.
                `path`, the argument of `.load` and `.save`, is another name of `queue`.
            others: values of fields that are no options.

        Raises:
            BadInput: with what was found and what is expected.
        """
        given = {key.lower(): text for key, text in raw.items()}
        if "path" in given:
            queue = given.setdefault("queue", given["path"])
            if queue != given["path"]:
                expected = f"nothing beside .load or .save of {given['path']!r}"
                raise BadOption(option="queue", found=queue, expected=expected)
        cls._refuse_strays(given)
        if "url" not in given:
            raise MissingOption(option="url", example=f"{EXAMPLES}. {OF_A_TABLE}")
        naming = names_of(given["url"])
        values = read_options(cls, given, naming)
        url = with_lower_scheme(values["url"])
        url = with_login(url, given.get("user"), given.get("password"))
        if "credentials" in values:
            _check_credentials(url, values["credentials"], naming)
        return cls(**values | {"url": url}, given=frozenset(given), **others)

    @classmethod
    def _refuse_strays(cls, given: Mapping[str, str]) -> None:
        own = option_names(cls)
        known = own | option_names(*DatabaseOptions.__subclasses__())
        if misplaced := (given.keys() & known.keys()) - own.keys() - {CHECKPOINT}:
            given_to, home = cls.side
            raise MisplacedOption(option=known[min(misplaced)], given=given_to, home=home)
        unknown, likely = given.keys() - known.keys() - {"path", *LOGIN}, own | LOGIN
        for key in sorted(unknown):
            if key in FOREIGN:
                option_name, instead = FOREIGN[key]
                raise OptionOfOtherSource(option=option_name, instead=instead)
            if key.startswith("kafka."):  # of Kafka's client
                raise OptionOfOtherSource(
                    option=key, instead="url, user and password name the server and login"
                )
            # a misspelt limit would set no limit; other names belong to Spark and are left alone
            if (near := find_near(key, likely)) is not None:
                raise UnknownOption(option=key, near=likely[near])


def _check_credentials(url: str, text: str, naming: Names) -> None:
    """Refuse `credentials` beside a password, and a service whose tokens the database refuses."""
    expected = ""
    if text in SERVICES and text not in naming.token_services:
        others = " or ".join([*naming.token_services, "package.module:function"])
        expected = f"{others}, because {naming.database} takes no tokens of {text}"
    elif OWN_PASSWORD.search(url):
        expected = "no password beside it, in the url or as an option"
    if expected:
        raise BadOption(option="credentials", found=text, expected=expected)
