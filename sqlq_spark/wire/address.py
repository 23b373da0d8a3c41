"""
Queue addresses: a table, optionally with schema and catalog, in the notation of each database.

Addresses come from users and from messages, so they are untrusted. They are parsed, checked and
quoted only by this module and by postgresql.py and sqlserver.py beside it. These modules accept the
same addresses as the transports' parsers, and raise an error for an address that a transport would
misread.
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
DELAYED = ".Delayed"  # a queue's table of delayed messages has the queue's name and this suffix
# A longer address is refused. The longest address that is possible has 783 characters, with each of
# its characters doubled.
LONGEST_ADDRESS = 1000  # characters
SHOWN = 200  # characters of a rejected address that an error shows


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """The address of a queue. If `schema` or `catalog` is None, it is the session's default."""

    table: str
    schema: str | None = None
    catalog: str | None = None


class Names(ABC):
    """
    How one database writes names, and other facts that are known before a connection is opened.

    The rest of the package asks this object. It does not itself look at the scheme of a url or at
    quote characters. Methods that read or write an address raise BadAddress for a name that the
    database cannot hold.
    """

    dialect: str  # name of the database's folder in database/
    schemes: tuple[str, ...]  # schemes of the database's urls
    example_url: str
    secrets: tuple[str, ...]  # parameters of this database's urls that errors hide too
    database: str  # the database's name in errors
    has_legacy_columns: bool  # whether queues have columns for endpoints of version 1
    password_variable: str | None  # the environment variable that only this database's tools read
    token_services: tuple[str, ...]  # values of `credentials`: services whose tokens it accepts
    # The collations with which a selftest creates other databases, to run a check in each; may be
    # empty.
    collations: tuple[str, ...]
    script_settings: str  # lines for the DBA's tool above a script, each with its line end
    driver_packages: tuple[str, ...]
    opening: str  # the character that begins a quoted part
    closing: str  # the character that ends a quoted part; inside of the part it is doubled
    quoted: re.Pattern[str]  # matches a quoted part
    quote: str  # the name of `opening` in errors
    address_form: str  # the form of an address, as people read it
    canonical: str  # a pattern of addresses as this package writes them
    table_in_address: str  # a Java pattern of such addresses; its group 1 is the table
    doubled_in_table: str  # the character that is doubled in group 1 of `table_in_address`
    separator: str  # the character between the parts of an address
    has_catalogs: bool  # whether an address in a message can name the database too
    stray_quotes: bool  # whether a part that does not begin with `opening` may contain it
    empty_is_default: bool  # whether an empty quoted part means the default
    unit: str  # the unit of `size`, `longest_table` and `longest`, for errors
    longest_table: int  # longest name of a queue's table
    longest: int  # longest name of anything else
    default_schema: str  # the schema of a name that names no schema
    queue_columns: str  # the columns of a queue, as people read them
    largest_message: int  # bytes of headers and body that can be sent

    @abstractmethod
    def size(self, name: str) -> int: ...

    @abstractmethod
    def parse_address(self, text: str) -> QueueAddress:
        """Read an address as messages contain it."""

    @abstractmethod
    def parse_queue(self, text: str, longest_table: int | None = None) -> QueueAddress:
        """Read a queue in the form in which users write it, as `print_address` does."""

    def parse_table(self, text: str) -> QueueAddress:
        """Read the name of an existing table as `parse_queue` does, but allow a longer name."""
        return self.parse_queue(text, self.longest)

    def parse_destination(self, text: str) -> QueueAddress:
        """Read the destination in a row of a DataFrame: a queue's name, or an address."""
        return self.parse_queue(text)

    def split_list(self, text: str) -> list[str]:
        """Split a list of queues' names at its commas, and remove blanks around the names."""
        names = split_at(text, self._commas(text))
        if not all(names):
            raise BadAddress(text=text, reason="a name is missing beside a comma")
        return names

    @abstractmethod
    def _commas(self, text: str) -> Iterable[int]:
        """Find the places of the commas that separate the names of a list."""

    @abstractmethod
    def check_for_script(self, name: str) -> None:
        """Raise BadAddress for a name that the DBA's tool would misread in a script."""

    @abstractmethod
    def by_password(self, url: str) -> str:
        """Return the url changed to log in by user and password, and not in another way."""

    @abstractmethod
    def is_address_only(self, text: str) -> bool:
        """Return whether a text can only be an address of a message, and not a queue's name."""

    @abstractmethod
    def may_be_one_name(self, text: str) -> bool:
        """Return whether a user may mean the name of one table by an address with several parts."""

    @abstractmethod
    def is_of_other_database(self, text: str) -> bool:
        """Return whether an address is in another database's notation, or has a host."""

    def print_address(self, address: QueueAddress) -> str:
        """Write an address as people read it, and as state tables store it."""
        return self.quote_address(address)

    def plain_name(self, address: QueueAddress) -> str:
        """Write an address for a chart: without quotes, and without the default schema."""
        schema = None if address.schema == self.default_schema else address.schema
        return ".".join(filter(None, (address.catalog, schema, address.table)))

    def canonical_address(self, address: QueueAddress) -> str:
        """Write an address as messages contain it. `parse_address` reads this form."""
        return self.quote_address(address)

    def quote_address(self, address: QueueAddress) -> str:
        """Write an address as an SQL identifier. No name can end the quotes early."""
        return ".".join(self.quote_name(name) for name in reversed(self._names_of(address)))

    def place_of(self, address: QueueAddress) -> dict[str, object]:
        """Return a table's names as an element of the JSON list that some statements take."""
        return {
            "catalog": address.catalog,
            "schema_name": self.qualify(address).schema,
            "table_name": address.table,
            "name": self.quote_address(address),
        }

    def quote_name(self, name: str) -> str:
        return self.opening + name.replace(self.closing, self.closing * 2) + self.closing

    def unquote_name(self, text: str) -> str:
        """Return a name without its quotes, if it has any."""
        if not self.quoted.fullmatch(text):
            return text
        return text[1:-1].replace(self.closing * 2, self.closing)

    def qualify(self, address: QueueAddress) -> QueueAddress:
        return address if address.schema else replace(address, schema=self.default_schema)

    @property
    def longest_with_delayed(self) -> int:
        """The longest name of a queue whose table of delayed messages can be created too."""
        return self.longest_table - self.size(DELAYED)

    def _names_of(self, address: QueueAddress) -> list[str]:
        """Check an address, and return its names, the table's first."""
        names = [address.table, self.default_schema if address.schema is None else address.schema]
        if address.catalog is not None:
            names.append(address.catalog)
            if not self.has_catalogs:
                reason = f"it names a catalog, which {self.database} does not have"
                raise BadAddress(text=address.table, reason=reason)
        # `longest`, because `<queue>.Delayed` may be longer than a queue's name may be
        self._address(names, address.table, self.longest)
        return names

    def _check_length(self, text: str) -> None:
        if len(text) > LONGEST_ADDRESS:
            reason = f"it has {len(text)} characters where {LONGEST_ADDRESS} are the most"
            raise BadAddress(text=text[:SHOWN] + "…", reason=reason)

    def _split(self, text: str, start: int = 0) -> list[str | None]:
        """Split an address at its separators. Return the unquoted parts; a default part is None."""
        parts: list[str | None] = []
        while start <= len(text):
            reason = None
            if quoted := self.quoted.match(text, start):
                stop = quoted.end()
                part = quoted[0][1:-1].replace(self.closing * 2, self.closing)
                parts.append(part or (None if self.empty_is_default else ""))
                if text[stop : stop + 1] not in {"", self.separator}:
                    reason = (
                        f"text follows the {self.quote} that closes at character {stop}; "
                        f"double the {self.quote} if it belongs to the name"
                    )
            else:
                part = text[start:].partition(self.separator)[0]
                stop = start + len(part)
                stray = part.find(self.opening)
                parts.append(part)
                if stray == 0:
                    reason = f"the {self.quote} that opens at character {start + 1} is not closed"
                elif stray > 0 and not self.stray_quotes:
                    place = start + stray + 1
                    reason = (
                        f"the {self.quote} at character {place} stands inside a part that "
                        f"does not begin with one; put the whole part in {self.quote}s and double "
                        "those inside"
                    )
            if reason is not None:
                raise BadAddress(text=text, reason=reason)
            start = stop + 1
        return parts

    def _address(
        self, parts: Sequence[str | None], text: str, longest_table: int | None = None
    ) -> QueueAddress:
        """Check the parts, which begin with the table, and return them as an address."""
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
    """Cut a text at separators of one character, and remove blanks around the parts."""
    edges = [-1, *places, len(text)]
    return [text[separator + 1 : stop].strip() for separator, stop in pairwise(edges)]
