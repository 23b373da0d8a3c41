"""
Queue addresses: a table, optionally with schema and catalog, in the notation of each database.

Addresses come from users and from messages, so they are untrusted. They are parsed, checked and
quoted only here. The transports' parsers accept the same addresses; this one raises an error where
they would misread one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from sqlq_spark.errors import BadAddress

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Sequence

LABELS = ("table", "schema", "catalog")
DELAYED = ".Delayed"  # ends the name of a queue's table of delayed messages
# characters of an address; the longest that a database can hold, all quoted and doubled, has 783
LONGEST_ADDRESS = 1000
SHOWN = 200  # characters of a rejected address in an error


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """The address of a queue. A schema or catalog of None is the default of the session."""

    table: str
    schema: str | None = None
    catalog: str | None = None


class Names(ABC):
    """
    How one database writes names, and what else is known of it before anything is connected.

    The rest of the package asks this value. It never looks at a url's scheme or a quote character.
    Methods that read or write an address raise BadAddress for a name that the database cannot hold.
    """

    dialect: str  # its folder in database/
    schemes: tuple[str, ...]  # of its urls
    example_url: str
    secrets: tuple[str, ...]  # parameters of its urls that errors hide, beside those of all
    database: str  # its name in errors
    has_legacy_columns: bool  # its queues have columns for endpoints of version 1
    password_variable: str | None  # the environment variable that only this database's tools read
    token_services: tuple[str, ...]  # whose tokens it takes: values of the option `credentials`
    # of the databases in which a selftest works too; none: the database of the url is enough
    collations: tuple[str, ...]
    driver_packages: tuple[str, ...]
    opening: str
    closing: str  # doubled inside a quoted part
    quoted: re.Pattern[str]  # a part in quotes
    quote: str  # the name of `opening` in errors
    address_form: str  # of an address, for people
    canonical: str  # a pattern of an address as we write it
    # a pattern of Java whose group 1 is the table of such an address, and what is doubled there
    table_in_address: str
    doubled_in_table: str
    separator: str
    has_catalogs: bool  # an address in a message names the database too
    stray_quotes: bool  # may `opening` stand inside a part that does not begin with it?
    empty_is_default: bool  # does an empty quoted part mean the default?
    unit: str  # what `size` counts
    longest_table: int  # of a queue
    longest: int  # of every other name
    default_schema: str  # of a name without a schema
    queue_columns: str  # of a queue, for people
    largest_message: int  # bytes of headers and body that can be sent

    @abstractmethod
    def size(self, name: str) -> int: ...

    @abstractmethod
    def parse_address(self, text: str) -> QueueAddress:
        """Read an address as it stands in a message."""

    @abstractmethod
    def parse_queue(self, text: str, longest_table: int | None = None) -> QueueAddress:
        """Read what a user writes as a queue; `print_address` writes it."""

    def parse_table(self, text: str) -> QueueAddress:
        """Read the name of an existing table, as `parse_queue`; it may be longer than a queue's."""
        return self.parse_queue(text, self.longest)

    def parse_destination(self, text: str) -> QueueAddress:
        """Read a queue's name or an address, in a row of a frame."""
        return self.parse_queue(text)

    def split_list(self, text: str) -> list[str]:
        """Split the names of several queues at the commas, without the blanks around a name."""
        names = split_at(text, self._commas(text))
        if not all(names):
            raise BadAddress(text=text, reason="a name is missing beside a comma")
        return names

    @abstractmethod
    def _commas(self, text: str) -> Iterable[int]:
        """Find the commas between the names of a list."""

    @abstractmethod
    def check_for_script(self, name: str) -> None:
        """Raise BadAddress for a name that the tool which runs a script would misread."""

    @abstractmethod
    def by_password(self, url: str) -> str:
        """Return a url whose login is by user and password, however it was."""

    @abstractmethod
    def is_address_only(self, text: str) -> bool:
        """Whether a text is an address as messages have it, and cannot be a queue's name."""

    @abstractmethod
    def may_be_one_name(self, text: str) -> bool:
        """Whether an address in a message was perhaps meant as the name of one table."""

    @abstractmethod
    def is_of_other_database(self, text: str) -> bool:
        """Whether an address is in another notation, or has a host."""

    def print_address(self, address: QueueAddress) -> str:
        """Write an address for people and state tables."""
        return self.quote_address(address)

    def canonical_address(self, address: QueueAddress) -> str:
        """Write an address for a message, as an endpoint's ReplyToAddress; see `parse_address`."""
        return self.quote_address(address)

    def quote_address(self, address: QueueAddress) -> str:
        """Write the SQL identifier; no name can end its quotes early."""
        return ".".join(self.quote_name(name) for name in reversed(self._names_of(address)))

    def place_of(self, address: QueueAddress) -> dict[str, object]:
        """Return the names of a table, as statements take them that are about many tables."""
        return {
            "catalog": address.catalog,
            "schema_name": self.qualify(address).schema,
            "table_name": address.table,
            "name": self.quote_address(address),
        }

    def quote_name(self, name: str) -> str:
        return self.opening + name.replace(self.closing, self.closing * 2) + self.closing

    def unquote_name(self, text: str) -> str:
        """Read one name, which may be in quotes."""
        if not self.quoted.fullmatch(text):
            return text
        return text[1:-1].replace(self.closing * 2, self.closing)

    def qualify(self, address: QueueAddress) -> QueueAddress:
        return address if address.schema else replace(address, schema=self.default_schema)

    @property
    def longest_with_delayed(self) -> int:
        """The size of a queue's name to which the name of its delayed table fits."""
        return self.longest_table - self.size(DELAYED)

    def _names_of(self, address: QueueAddress) -> list[str]:
        """Check an address, and return its names, table first."""
        names = [address.table, self.default_schema if address.schema is None else address.schema]
        if address.catalog is not None:
            names.append(address.catalog)
            if not self.has_catalogs:
                reason = f"it names a catalog, which {self.database} does not have"
                raise BadAddress(text=address.table, reason=reason)
        self._address(names, address.table, self.longest)  # also of a table `<queue>.Delayed`
        return names

    def _check_length(self, text: str) -> None:
        if len(text) > LONGEST_ADDRESS:
            reason = f"it has {len(text)} characters where {LONGEST_ADDRESS} are the most"
            raise BadAddress(text=text[:SHOWN] + "…", reason=reason)

    def _split(self, text: str, at: int = 0) -> list[str | None]:
        """Cut an address at its separators: the parts unquoted, None for a default."""
        parts: list[str | None] = []
        while at <= len(text):
            reason = None
            if quoted := self.quoted.match(text, at):
                stop = quoted.end()
                part = quoted[0][1:-1].replace(self.closing * 2, self.closing)
                parts.append(part or (None if self.empty_is_default else ""))
                if text[stop : stop + 1] not in {"", self.separator}:
                    reason = (
                        f"text follows the {self.quote} that closes at character {stop}; "
                        f"double the {self.quote} if it belongs to the name"
                    )
            else:
                part = text[at:].partition(self.separator)[0]
                stop, stray = at + len(part), part.find(self.opening)
                parts.append(part)
                if stray == 0:
                    reason = f"the {self.quote} that opens at character {at + 1} is not closed"
                elif stray > 0 and not self.stray_quotes:
                    reason = (
                        f"the {self.quote} at character {at + stray + 1} stands inside a part that "
                        f"does not begin with one; put the whole part in {self.quote}s and double "
                        "those inside"
                    )
            if reason is not None:
                raise BadAddress(text=text, reason=reason)
            at = stop + 1
        return parts

    def _address(
        self, parts: Sequence[str | None], text: str, longest_table: int | None = None
    ) -> QueueAddress:
        """Check the parts, table first, and make an address."""
        most = 3 if self.has_catalogs else 2
        if len(parts) > most:
            reason = (
                f"it has {len(parts)} parts where {most} are the most; "
                f"put a part that holds {self.separator!r} in {self.quote}s"
            )
            raise BadAddress(text=text, reason=reason)
        table, *others = parts
        self._check("table", table or "", text, longest_table or self.longest_table)
        for label, name in zip(LABELS[1:], others, strict=False):
            if name is not None:
                self._check(label, name, text, self.longest)
        return QueueAddress(table or "", *others)

    def _check(self, label: str, name: str, text: str, longest: int) -> None:
        reason = None
        try:
            if not name:
                reason = "is empty"
            elif "\0" in name:
                reason = "holds a NUL character"
            elif (size := self.size(name)) > longest:
                reason = f"has {size} {self.unit} where {longest} are the most"
        except UnicodeEncodeError:
            reason = "holds half of a surrogate pair"
        if reason is not None:
            raise BadAddress(text=text, reason=f"the {label} {reason}")


def delayed_of(queue: QueueAddress) -> QueueAddress:
    """Return the table in which a queue's delayed messages wait."""
    return replace(queue, table=queue.table + DELAYED)


def split_at(text: str, places: Iterable[int]) -> list[str]:
    """Cut a text at separators of one character; the parts are without blanks around them."""
    edges = [-1, *places, len(text)]
    return [text[at + 1 : stop].strip() for at, stop in pairwise(edges)]
