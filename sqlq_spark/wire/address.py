"""
Queue addresses: a table, optionally with schema and catalog, in the notation of each database.

Addresses come from users and from messages, so they are untrusted. They are parsed, checked and
quoted only here. The transports' parsers accept the same addresses; this one raises an error where
they would misread one.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from sqlq_spark.errors import BadAddress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

LABELS = ("table", "schema", "catalog")
DELAYED = ".Delayed"  # ends the name of a queue's table of delayed messages
# characters of an address; the longest that a database can hold, all quoted and doubled, has 783
LONGEST_ADDRESS = 1000
SHOWN = 200  # characters of a rejected address in an error

# a part in quotes: possessive, because a doubled quote never ends it
QUOTED = r'"(?:[^"]|"")*+"'
BRACKETS = r"\[(?:[^\]]|\]\])*+\]"
BRACKETED_TABLE = re.compile(rf"({BRACKETS})(?:@|\Z)")
# addresses as we write them: PostgreSQL's ends with a quote, SQL Server's with a bracket
CANONICAL = re.compile(
    rf"(?:{QUOTED}\.{QUOTED}|(?:{BRACKETS}|[^@\[][^@]*)(?:@{BRACKETS}){{1,2}})(?:, |\Z)"
)
QUOTED_OR_COMMA = re.compile(r'"[^"]*"|,')  # a doubled quote inside quotes is two quoted runs
# a bracket opens only where a part begins; a double quote is a character like others
OPENING_OR_COMMA = re.compile(r"(?:(?:\A|,)\s*|@)\[|,")
CLOSING = re.compile(r"(?<!\])\](?:\]\])*(?!\])")  # in a run of brackets, pairs belong to the name


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
    database: str  # its name in errors
    has_legacy_columns: bool  # its queues have columns for endpoints of version 1
    misread: str | None  # what the tool that runs a script would misread in a name, a pattern
    password_variable: str | None  # the environment variable that only this database's tools read
    # what replaces the option `credentials`; None: the option may be set
    own_credentials: str | None
    opening: str
    closing: str  # doubled inside a quoted part
    quoted: re.Pattern[str]  # a part in quotes
    quote: str  # the name of `opening` in errors
    separator: str
    has_catalogs: bool  # an address in a message names the database too
    stray_quotes: bool  # may `opening` stand inside a part that does not begin with it?
    empty_is_default: bool  # does an empty quoted part mean the default?
    unit: str  # what `size` counts
    longest_table: int  # of a queue
    longest: int  # of every other name
    default_schema: str  # of a name without a schema

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


@dataclass(frozen=True)
class _PostgreSQL(Names):
    """As `"schema"."table"`."""

    dialect = "postgresql"
    database = "PostgreSQL"
    has_legacy_columns = False
    misread = None
    password_variable = "PGPASSWORD"  # noqa: S105 - the variable's name
    own_credentials = None
    opening = closing = '"'
    quoted = re.compile(QUOTED)
    quote = "quote"
    separator = "."
    has_catalogs = False
    stray_quotes = False
    empty_is_default = False
    unit = "UTF-8 bytes"
    longest_table = 55  # the transport needs 8 of PostgreSQL's 63 bytes for the suffix `_seq_seq`
    longest = 63
    default_schema = "public"

    def size(self, name: str) -> int:
        return len(name.encode())

    def parse_address(self, text: str) -> QueueAddress:
        """Read `"schema"."table"`, the quotes and schema optional; the case is kept."""
        self._check_length(text)
        return self._address(self._split(text)[::-1], text)

    def parse_queue(self, text: str, longest_table: int | None = None) -> QueueAddress:
        """
        Read an address if it begins with a quote, else one table name.

        `Shop.Orders` is one table in the default schema, for endpoint names hold dots.
        """
        self._check_length(text)
        parts = self._split(text)[::-1] if text.startswith('"') else [text]
        return self._address(parts, text, longest_table)

    def _commas(self, text: str) -> Iterable[int]:
        """Find the comma outside double quotes in `orders, "sales"."a, b"`."""
        if text.count('"') % 2:
            reason = (
                "a double quote is not closed; put a name that holds one in double quotes and "
                "double it there"
            )
            raise BadAddress(text=text, reason=reason)
        return (mark.start() for mark in QUOTED_OR_COMMA.finditer(text) if mark[0] == ",")

    def is_of_other_database(self, text: str) -> bool:
        return "@" in text and not text.startswith('"')


@dataclass(frozen=True)
class _SQLServer(Names):
    """As `table@[schema]@[catalog]`."""

    dialect = "sqlserver"
    database = "SQL Server"
    has_legacy_columns = True
    misread = r"\$\(|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]"
    password_variable = None
    own_credentials = "authentication=ActiveDirectoryDefault (or another value) in the url"
    opening = "["
    closing = "]"
    quoted = re.compile(BRACKETS)
    quote = "bracket"
    separator = "@"
    has_catalogs = True
    stray_quotes = True
    empty_is_default = True
    unit = "UTF-16 code units"
    longest_table = longest = 128
    default_schema = "dbo"

    def size(self, name: str) -> int:
        return len(name.encode("utf-16-le")) // 2

    def parse_address(self, text: str) -> QueueAddress:
        """
        Read `table@[schema]@[catalog]`, the latter two optional.

        The table is the text up to the first `@`, brackets included, as the transport reads it. So
        `[Orders]@[dbo]` names a table called `[Orders]`. The transport has no address for a table
        with an `@` in its name. `canonical_address` writes it in brackets, and it is read so.
        In schema and catalog `]]` inside brackets is one bracket, and `[]` is the default. A part
        without brackets ends at the next `@`.
        """
        self._check_length(text)
        bracketed = BRACKETED_TABLE.match(text)
        if bracketed and "@" in bracketed[1] and "@[" not in bracketed[1]:
            return self.parse_queue(text)
        table, _, _ = text.partition("@")
        return self._address([table, *self._split(text, len(table) + 1)], text)

    def parse_queue(self, text: str, longest_table: int | None = None) -> QueueAddress:
        """Read an address of which, unlike in a message, the table too may be in brackets."""
        self._check_length(text)
        return self._address(self._split(text), text, longest_table)

    parse_destination = parse_address

    def print_address(self, address: QueueAddress) -> str:
        """Write `table@[schema]`, with `@[catalog]` if any; `@` and a first `[` need brackets."""
        bare = "@" not in address.table and not address.table.startswith("[")
        return self._write(address, bare=bare)

    def canonical_address(self, address: QueueAddress) -> str:
        return self._write(address, bare="@" not in address.table)

    def _write(self, address: QueueAddress, *, bare: bool) -> str:
        table, *others = map(self.quote_name, self._names_of(address))
        return "@".join([address.table if bare else table, *others])

    def _commas(self, text: str) -> Iterator[int]:
        """Find the comma outside brackets in `orders, [a, b]@[sales]`, in linear time."""
        closing = [bracket.end() for bracket in CLOSING.finditer(text)]
        at = 0
        while mark := OPENING_OR_COMMA.search(text, at):
            if mark[0].startswith(","):
                yield mark.start()
            at = mark.end()
            if mark[0].endswith("[") and (place := bisect(closing, at)) < len(closing):
                at = closing[place]

    def is_of_other_database(self, text: str) -> bool:
        return text.startswith('"')


POSTGRESQL: Names = _PostgreSQL()
SQLSERVER: Names = _SQLServer()


def delayed_of(queue: QueueAddress) -> QueueAddress:
    """Return the table in which a queue's delayed messages wait."""
    return replace(queue, table=queue.table + DELAYED)


def due_index(delayed: QueueAddress) -> str:
    """Return the name of a delayed table's index, cut so that it differs from the table's name."""
    suffix = "_Due"
    room = POSTGRESQL.longest - len(suffix)
    return delayed.table.encode()[:room].decode(errors="ignore") + suffix


# ----- several queues in one text ------------------------------------------------------------


def split_canonical(text: str) -> list[str]:
    """Split canonical addresses of either database at `, `; any other text is one address."""
    addresses, at = [], 0
    while at < len(text):
        one = CANONICAL.match(text, at)
        if one is None:
            return [text]
        addresses.append(one[0].removesuffix(", "))
        at = one.end()
    return addresses


def split_at(text: str, places: Iterable[int]) -> list[str]:
    """Cut a text at separators of one character; the parts are without blanks around them."""
    edges = [-1, *places, len(text)]
    return [text[at + 1 : stop].strip() for at, stop in pairwise(edges)]
