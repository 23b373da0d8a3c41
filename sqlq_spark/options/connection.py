"""
The options that reads, writes and commands share: the database, its login, and how to parse them.

`DatabaseOptions.parse` refuses typos, options of a write on a read, and options of a read on a
write. All other names belong to Spark and are ignored.
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

LOGIN = {"user": "user", "password": "password"}  # options that `parse` makes parameters of the url
ZONE = "the time zone in which the .NET endpoints' sessions work, as Europe/Berlin"
SERVICES = {service for names in DIALECTS.values() for service in names.token_services}
FUNCTION = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")

# This is added to the error of a missing url. The user may have put the url into OPTIONS.
OF_A_TABLE = (
    "In SQL, Spark does not pass on the OPTIONS of CREATE TABLE: use CREATE TEMPORARY VIEW, or "
    "write WITH (url '…') after the name of the table"
)
CHECKPOINT = "checkpointlocation"  # Spark's own option, which a read and a write may have

# Options of other sources and sinks, by what to use instead with this package. These options raise
# an error. If they were ignored, a job that was written for another source would run without its
# limits, and receive all messages that wait.
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
    """
    Read the option credentials: the name of a service or of a function that returns passwords.

    An error does not show the text, because the user may have put a password there.
    """
    if text.lower() in SERVICES:
        return text.lower()
    if not FUNCTION.fullmatch(text):
        raise BadOption(option="credentials", found="…", expected=credentials.expected)
    return text


credentials = Reader("azure, aws or package.module:function", _read_credentials)


@dataclass(frozen=True, slots=True)
class Trusted:
    """
    The owners whose tables a session uses.

    Tables of the session's own login, of superusers and of the database's owner are always used.
    """

    roles: tuple[str, ...] = ()  # the option trustedOwners
    named: tuple[
        QueueAddress, ...
    ] = ()  # the owners of these tables are trusted, because the user names the tables
    state_schema: str | None = None  # the owner of this schema is trusted; None if not named
    allowed: tuple[QueueAddress, ...] = ()  # tables that are used, whoever owns them

    def values(self, names: Names) -> dict[str, str]:
        """Return the values of this object as parameters of the statements that check owners."""
        named = [names.place_of(queue) for queue in self.named]
        if self.state_schema is not None:
            named.append({"schema_name": self.state_schema})
        return {"owners": json.dumps(self.roles), "named": json.dumps(named)}

    def with_named(self, queues: Iterable[QueueAddress]) -> Trusted:
        """Return a copy that also trusts the owners of `queues`, which the user names."""
        return replace(self, named=(*self.named, *queues))

    def allows(self, catalog: str | None, schema: str, table: str, *, here: bool) -> bool:
        """
        Return whether the option allowedDestinations lists a table.

        `here` says whether the table is in the database of the url.
        """
        return any(
            _fits(listed.table, table)
            and _fits(listed.schema or "", schema)
            and (here if listed.catalog is None else _fits(listed.catalog, catalog or ""))
            for listed in self.allowed
        )


def _fits(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern with the wildcards `*` and `?`."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))  # a bracket is no wildcard here


@dataclass(frozen=True, kw_only=True)
class DatabaseOptions:
    """The options of the database: where it is, how long to wait, and whose tables are used."""

    # for the error if an option of the other side is set: the name of this side, and where to set
    # the option
    side: ClassVar[tuple[str, str]] = ("command", "a read or a write")

    url: str = option("url", words, EXAMPLES, default=MISSING, secret=True)  # contains the login
    # the service or function that returns a password at each connect
    credentials: str | None = option("credentials", credentials)
    state_schema: str = option("stateSchema", name, "the schema of the state tables", default=STATE)
    query_timeout: float = option(
        "queryTimeout", duration(1, 86400, "a time from 1s to 1d, as 30s"), default=30.0
    )  # seconds
    # the session uses tables of these roles
    trusted_owners: tuple[str, ...] = option(
        "trustedOwners", parse_roles, "names of roles, separated by commas", default=()
    )
    # the session uses these tables, whoever owns them; `*` and `?` are wildcards
    allowed: tuple[QueueAddress, ...] = option(
        "allowedDestinations",
        parse_tables,
        "names of tables, separated by commas",
        default=(),
    )
    endpoint_time_zone: str | None = option("endpointTimeZone", name, ZONE)

    given: frozenset[str] = frozenset()  # names of the options that the user has set, in lower case

    @cached_property
    def naming(self) -> Names:
        return names_of(self.url)

    @property
    def named_tables(self) -> tuple[QueueAddress, ...]:
        """The tables that the user names in options, without defaults."""
        return ()

    @property
    def trusted(self) -> Trusted:
        """The owners whose tables a session with these options uses."""
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
            raw: names of options in any case → texts. `user` and `password` are added to the url.
                `path`, the argument of `.load` and `.save`, is another name for `queue`.
            others: values of fields that are no options.

        Raises:
            BadInput: an option is unknown, missing or wrong. The error says what is expected.
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
        """
        Raise an error for an option that does not belong here.

        It is an option of a write that a read was given, or the reverse. Or it is an option of
        another source of Spark, for example Kafka, or a likely typo. Other names are ignored.
        """
        this_side = option_names(cls)
        all_sides = this_side | option_names(*DatabaseOptions.__subclasses__())
        misplaced = (given.keys() & all_sides.keys()) - this_side.keys() - {CHECKPOINT}
        if misplaced:
            given_to, home = cls.side
            raise MisplacedOption(option=all_sides[min(misplaced)], given=given_to, home=home)
        unknown = given.keys() - all_sides.keys() - {"path", *LOGIN}
        likely = this_side | LOGIN
        for key in sorted(unknown):
            if key in FOREIGN:
                option_name, instead = FOREIGN[key]
                raise OptionOfOtherSource(option=option_name, instead=instead)
            if key.startswith("kafka."):  # options of Kafka's client
                raise OptionOfOtherSource(
                    option=key, instead="url, user and password name the server and login"
                )
            # Refuse likely typos. A limit with a misspelt name would have no effect.
            near = find_near(key, likely)
            if near is not None:
                raise UnknownOption(option=key, near=likely[near])


def _check_credentials(url: str, text: str, naming: Names) -> None:
    """Refuse `credentials` if the url has a password, or if the database takes no such tokens."""
    expected = ""
    if text in SERVICES and text not in naming.token_services:
        others = " or ".join([*naming.token_services, "package.module:function"])
        expected = f"{others}, because {naming.database} takes no tokens of {text}"
    elif OWN_PASSWORD.search(url):
        expected = "no password beside it, in the url or as an option"
    if expected:
        raise BadOption(option="credentials", found=text, expected=expected)
