"""
Queue addresses: a table, optionally with schema and catalog, in the notation of each database.

Addresses come from users and from messages, so they are untrusted. They are parsed, checked and
quoted only here. Other modules put names into SQL only as these functions return them. Source:
WIRE.md part 5 and the transports' parsers. This parser accepts the same addresses, but raises an
error where they would misread one.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlq_spark.errors import BadAddress


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """The address of a queue. A schema or catalog of None is the default of the session."""

    table: str
    schema: str | None = None
    catalog: str | None = None


@dataclass(frozen=True, slots=True)
class Notation:
    """How one database writes an address."""

    database: str
    opening: str
    closing: str  # doubled inside a quoted part
    quote: str  # the name of `opening` in errors
    separator: str
    most: int  # parts
    table_last: bool
    stray_quotes: bool  # may `opening` stand inside a part that does not begin with it?
    empty_is_default: bool  # does an empty quoted part mean the default?
    size: Callable[[str], int]
    unit: str  # what `size` counts
    longest_table: int  # of a queue
    longest: int  # of every other name
    default_schema: str  # of a name without a schema

    @property
    def longest_with_delayed(self) -> int:
        """The size of a queue's name to which the name of its delayed table fits."""
        return self.longest_table - self.size(DELAYED)


def _utf8_bytes(text: str) -> int:
    return len(text.encode())


def _utf16_units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


LABELS = ("table", "schema", "catalog")
DELAYED = ".Delayed"  # ends the name of a queue's table of delayed messages
# characters of an address; the longest that a database can hold, all quoted and doubled, has 783
LONGEST_ADDRESS = 1000
SHOWN = 200  # characters of a rejected address in an error
BRACKETS = r"\[(?:[^\]]|\]\])*\]"
BRACKETED_TABLE = re.compile(rf"({BRACKETS})(?:@|\Z)")

POSTGRESQL = Notation(
    database="PostgreSQL",
    opening='"',
    closing='"',
    quote="quote",
    separator=".",
    most=2,
    table_last=True,
    stray_quotes=False,
    empty_is_default=False,
    size=_utf8_bytes,
    unit="UTF-8 bytes",
    longest_table=55,  # the transport needs 8 of PostgreSQL's 63 bytes for the suffix `_seq_seq`
    longest=63,
    default_schema="public",
)

SQLSERVER = Notation(
    database="SQL Server",
    opening="[",
    closing="]",
    quote="bracket",
    separator="@",
    most=3,
    table_last=False,
    stray_quotes=True,
    empty_is_default=True,
    size=_utf16_units,
    unit="UTF-16 code units",
    longest_table=128,
    longest=128,
    default_schema="dbo",
)


def parse_postgresql(text: str) -> QueueAddress:
    """
    Read an address as it stands in a message: `"schema"."table"`, the quotes and schema optional.

    Args:
        text: split at the dot outside quotes; `""` inside quotes is one quote. Case is kept.

    Raises:
        BadAddress: an empty or unclosed part, more than two, or a name PostgreSQL cannot hold.
    """
    _check_length(text)
    return _address(_split(text, POSTGRESQL), text, POSTGRESQL)


def parse_sqlserver(text: str) -> QueueAddress:
    """
    Read an address as it stands in a message: `table@[schema]@[catalog]`, the latter two optional.

    The table is the text up to the first `@`, brackets included, as the transport reads it. So
    `[Orders]@[dbo]` names a table called `[Orders]`. The transport has no address for a table with
    an `@` in its name. `message_sqlserver` writes that one in brackets, and it is read so.

    Args:
        text: in schema and catalog `]]` inside brackets is one bracket, and `[]` is the default. A
            part without brackets ends at the next `@`.

    Raises:
        BadAddress: an empty or unclosed part, more than three, or a name SQL Server cannot hold.
    """
    _check_length(text)
    if _has_at_in_table(text):
        return _address(_split(text, SQLSERVER), text, SQLSERVER)
    table, at, _ = text.partition("@")
    rest = _split(text, SQLSERVER, len(table) + 1) if at else ()
    return _address([table, *rest], text, SQLSERVER)


def _has_at_in_table(text: str) -> bool:
    """Whether an address begins with a table in brackets, as only `message_sqlserver` writes it."""
    found = BRACKETED_TABLE.match(text)
    return found is not None and "@" in found[1] and "@[" not in found[1]


def name_postgresql(text: str) -> QueueAddress:
    """
    Read what a user writes as a queue: an address if it begins with a quote, else one table name.

    Args:
        text: `Shop.Orders` is one table in the default schema, for endpoint names hold dots;
            `"sales"."Shop.Orders"` names the schema too.

    Raises:
        BadAddress: as `parse_postgresql`.
    """
    if text.startswith('"'):
        return parse_postgresql(text)
    _check_length(text)
    return _address([text], text, POSTGRESQL)


def table_postgresql(text: str) -> QueueAddress:
    """
    Read the name of an existing table, as `name_postgresql`; it may be too long for the transport.

    Raises:
        BadAddress: as `parse_postgresql`, but for a table of up to 63 bytes.
    """
    _check_length(text)
    notation = replace(POSTGRESQL, longest_table=POSTGRESQL.longest)
    parts = _split(text, notation) if text.startswith('"') else [text]
    return _address(parts, text, notation)


def name_sqlserver(text: str) -> QueueAddress:
    """
    Read what a user writes as a queue: as `print_sqlserver` writes it, or in fewer brackets.

    Args:
        text: `Shop.Orders` is one table in the default schema; `Shop.Orders@[sales]` names it.
            Every part may be bracketed. Unlike in a message, the table too.

    Raises:
        BadAddress: as `parse_sqlserver`.
    """
    _check_length(text)
    return _address(_split(text, SQLSERVER), text, SQLSERVER)


def _check_length(text: str) -> None:
    """Reject an address that is too long for any database, before parsing it."""
    if len(text) > LONGEST_ADDRESS:
        most = f"it has {len(text)} characters where {LONGEST_ADDRESS} are the most"
        raise BadAddress(text=text[:SHOWN] + "…", reason=most)


def print_sqlserver(address: QueueAddress) -> str:
    """
    Write an address for people and state tables: `table@[schema]`, with `@[catalog]` if any.

    A table that contains `@` or begins with `[` is bracketed, so that `name_sqlserver` can read it.

    Raises:
        BadAddress: a name SQL Server cannot hold.
    """
    names = _names(address, SQLSERVER)
    table, *rest = (_quote(name, SQLSERVER) for name in names)
    plain = "@" not in address.table and not address.table.startswith("[")
    return "@".join([address.table if plain else table, *rest])


def message_sqlserver(address: QueueAddress) -> str:
    """
    Write an address for a message, as the transport does; `parse_sqlserver` reads it.

    Only a table that contains `@` is bracketed, for which the transport has no address.

    Raises:
        BadAddress: a name SQL Server cannot hold.
    """
    names = _names(address, SQLSERVER)
    table, *rest = (_quote(name, SQLSERVER) for name in names)
    return "@".join([table if "@" in address.table else address.table, *rest])


def quote_postgresql(address: QueueAddress) -> str:
    """
    Write the SQL identifier, `"schema"."table"`; no name can end its quotes early.

    Raises:
        BadAddress: a name PostgreSQL cannot hold, or a catalog.
    """
    names = _names(address, POSTGRESQL)
    return ".".join(_quote(name, POSTGRESQL) for name in reversed(names))


# the canonical address, as in an endpoint's ReplyToAddress, is the SQL identifier
print_postgresql = quote_postgresql


def quote_sqlserver(address: QueueAddress) -> str:
    """
    Write the SQL identifier, `[schema].[table]`, the catalog before it if there is one.

    Raises:
        BadAddress: a name SQL Server cannot hold.
    """
    names = _names(address, SQLSERVER)
    return ".".join(_quote(name, SQLSERVER) for name in reversed(names))


def identifier(name: str) -> str:
    """A name in PostgreSQL's quotes."""
    return _quote(name, POSTGRESQL)


def bracketed(name: str) -> str:
    """A name in SQL Server's brackets."""
    return _quote(name, SQLSERVER)


def due_index(delayed: QueueAddress) -> str:
    """The name of a delayed table's index, cut so that it differs from the table's name."""
    suffix = "_Due"
    room = POSTGRESQL.longest - len(suffix)
    return delayed.table.encode()[:room].decode(errors="ignore") + suffix


def _quote(name: str, notation: Notation) -> str:
    closing = notation.closing
    return notation.opening + name.replace(closing, closing * 2) + closing


def _names(address: QueueAddress, notation: Notation) -> list[str]:
    """Check an address, and return its names, table first."""
    table, catalog = address.table, address.catalog
    schema = notation.default_schema if address.schema is None else address.schema
    if catalog is not None and notation.most < len(LABELS):
        raise BadAddress(
            text=table, reason=f"it names a catalog, which {notation.database} does not have"
        )
    names = [table, schema] if catalog is None else [table, schema, catalog]
    for label, name in zip(LABELS, names, strict=False):
        # `<queue>.Delayed` may be longer than a queue's name.
        _check(label, name, name, notation, notation.longest)
    return names


def _split(text: str, notation: Notation, at: int = 0) -> list[str | None]:
    """Cut an address at its separators: the parts unquoted, the table first, None for a default."""
    parts: list[str | None] = []
    while at <= len(text):
        read = _quoted_part if text.startswith(notation.opening, at) else _plain_part
        part, stop = read(text, at, notation)
        parts.append(part)
        at = stop + 1
    return parts[::-1] if notation.table_last else parts


def _plain_part(text: str, at: int, notation: Notation) -> tuple[str | None, int]:
    """Read the unquoted part that begins at `at`; returns it and the place of its separator."""
    found = text.find(notation.separator, at)
    stop = len(text) if found < 0 else found
    stray = text.find(notation.opening, at, stop)
    if stray >= 0 and not notation.stray_quotes:
        raise BadAddress(
            text=text,
            reason=f"the {notation.quote} at character {stray + 1} stands inside a part that does "
            f"not begin with one; put the whole part in {notation.quote}s and double those inside",
        )
    return text[at:stop], stop


def _quoted_part(text: str, at: int, notation: Notation) -> tuple[str | None, int]:
    """Read the quoted part that begins at `at`; returns it and the place of its separator."""
    closing = notation.closing
    end = text.find(closing, at + 1)
    while end >= 0 and text.startswith(closing, end + 1):
        end = text.find(closing, end + 2)
    if end < 0:
        raise BadAddress(
            text=text, reason=f"the {notation.quote} that opens at character {at + 1} is not closed"
        )
    stop = end + 1
    if stop < len(text) and text[stop] != notation.separator:
        raise BadAddress(
            text=text,
            reason=f"text follows the {notation.quote} that closes at character {end + 1}; "
            f"double the {notation.quote} if it belongs to the name",
        )
    name = text[at + 1 : end].replace(closing * 2, closing)
    return None if not name and notation.empty_is_default else name, stop


def _address(parts: Sequence[str | None], text: str, notation: Notation) -> QueueAddress:
    """Check the parts, table first, and make an address."""
    if len(parts) > notation.most:
        raise BadAddress(
            text=text,
            reason=f"it has {len(parts)} parts where {notation.most} are the most; "
            f"put a part that holds {notation.separator!r} in {notation.quote}s",
        )
    table = parts[0] or ""
    _check("table", table, text, notation, notation.longest_table)
    for label, name in zip(LABELS[1:], parts[1:], strict=False):
        if name is not None:
            _check(label, name, text, notation, notation.longest)
    return QueueAddress(table, *parts[1:])


def _check(label: str, name: str, text: str, notation: Notation, longest: int) -> None:
    """Reject a name that the database cannot store, or would cut."""
    if not name:
        raise BadAddress(text=text, reason=f"the {label} is empty")
    if "\0" in name:
        raise BadAddress(text=text, reason=f"the {label} holds a NUL character")
    try:
        size = notation.size(name)
    except UnicodeEncodeError as error:
        raise BadAddress(text=text, reason=f"the {label} holds half of a surrogate pair") from error
    if size > longest:
        raise BadAddress(
            text=text, reason=f"the {label} has {size} {notation.unit} where {longest} are the most"
        )
