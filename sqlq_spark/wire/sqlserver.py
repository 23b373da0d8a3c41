"""What is known of SQL Server before a connection is opened: its notation, limits and urls."""

from __future__ import annotations

import re
from bisect import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlq_spark.errors import BadAddress
from sqlq_spark.wire.address import Names, QueueAddress

if TYPE_CHECKING:
    from collections.abc import Iterator

# A part in brackets. The repetition is possessive (*+), so that the part never ends at the first of
# two brackets which stand for one bracket of the name.
BRACKETS = r"\[(?:[^\]]|\]\])*+\]"
BRACKETED_TABLE = re.compile(rf"({BRACKETS})(?:@|\Z)")
# A bracket opens only at the beginning of a part. A double quote has no meaning here.
OPENING_OR_COMMA = re.compile(r"(?:(?:\A|,)\s*|@)\[|,")
# sqlcmd would misread these in a name. A line break may end a batch, and `$(` begins a variable.
MISREAD = re.compile(r"\$\(|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
# A run of an odd number of closing brackets. Only such a run ends a part, because each two closing
# brackets stand for one bracket of the name.
CLOSING = re.compile(r"(?<!\])\](?:\]\])*(?!\])")


@dataclass(frozen=True)
class SQLServerNames(Names):
    """SQL Server's notation: `table@[schema]@[catalog]`."""

    dialect = "sqlserver"
    schemes = ("sqlserver",)
    example_url = "sqlserver://user@host:1433/database"
    secrets = ("pwd",)
    database = "SQL Server"
    has_legacy_columns = True
    password_variable = None
    token_services = ("azure",)
    script_settings = ""  # sqlcmd stops at an error by its option -b
    collations = (
        "Latin1_General_100_CS_AS",
        "Latin1_General_100_BIN2",
        "Turkish_100_CI_AS",
        "Latin1_General_100_CI_AS_SC_UTF8",
    )
    driver_packages = ("mssql-python", "pyodbc")
    opening = "["
    closing = "]"
    quoted = re.compile(BRACKETS)
    quote = "bracket"
    address_form = "table@[schema]"
    canonical = rf"(?:{BRACKETS}|[^@\[][^@]*)(?:@{BRACKETS}){{1,2}}"
    table_in_address = r"(?s)\A(.*?)@\[.*\z"
    doubled_in_table = ""
    separator = "@"
    has_catalogs = True
    stray_quotes = True
    empty_is_default = True
    unit = "UTF-16 code units"
    longest_table = longest = 128
    default_schema = "dbo"
    queue_columns = "id, expires, headers, body and RowVersion, in any case"
    # The rows of a send are one JSON parameter of at most 2**30 - 1 characters. A body is base64
    # there, which is a third longer than the body.
    largest_message = 512 << 20

    def size(self, name: str) -> int:
        return len(name.encode("utf-16-le")) // 2

    def parse_address(self, text: str) -> QueueAddress:
        """
        Read `table@[schema]@[catalog]`. Schema and catalog may be left out.

        As in the transport, the table is the text before the first `@`, with its brackets. So
        `[Orders]@[dbo]` names a table called `[Orders]`. The transport has no address for a table
        with an `@` in its name. `canonical_address` writes such a name in brackets, and this method
        reads that form too. In a schema or catalog in brackets `]]` means one bracket. `[]` means
        the default. A part without brackets ends at the next `@`.
        """
        self._check_length(text)
        bracketed = BRACKETED_TABLE.match(text)
        if bracketed and "@" in bracketed[1] and "@[" not in bracketed[1]:
            return self.parse_queue(text)
        table, _, _ = text.partition("@")
        return self._address([table, *self._split(text, len(table) + 1)], text)

    def parse_queue(self, text: str, longest_table: int | None = None) -> QueueAddress:
        """Read an address as a user writes it. There the table may be in brackets too."""
        self._check_length(text)
        return self._address(self._split(text), text, longest_table)

    parse_destination = parse_address

    def print_address(self, address: QueueAddress) -> str:
        """
        Write `table@[schema]`, and `@[catalog]` if the address has one.

        A table whose name contains `@` or begins with `[` is written in brackets.
        """
        bare = "@" not in address.table and not address.table.startswith("[")
        return self._write(address, bare=bare)

    def canonical_address(self, address: QueueAddress) -> str:
        return self._write(address, bare="@" not in address.table)

    def _write(self, address: QueueAddress, *, bare: bool) -> str:
        table, *others = map(self.quote_name, self._names_of(address))
        return "@".join([address.table if bare else table, *others])

    def _commas(self, text: str) -> Iterator[int]:
        """
        Find the commas outside of brackets. `orders, [a, b]@[sales]` has one such comma.

        The text is untrusted, so the time must not grow faster than its length.
        """
        part_ends = [bracket.end() for bracket in CLOSING.finditer(text)]
        place = 0
        while mark := OPENING_OR_COMMA.search(text, place):
            if mark[0].startswith(","):
                yield mark.start()
            place = mark.end()
            if mark[0].endswith("["):
                next_end = bisect(part_ends, place)
                if next_end < len(part_ends):
                    place = part_ends[next_end]

    def check_for_script(self, name: str) -> None:
        if MISREAD.search(name):
            raise BadAddress(text=name, reason="sqlcmd would misread a line break or $( in a name")

    def by_password(self, url: str) -> str:
        return re.sub(r"(?i)(?<=[?&]authentication=)[^&]*", "SqlPassword", url)

    def is_address_only(self, text: str) -> bool:  # noqa: ARG002
        return False

    def may_be_one_name(self, text: str) -> bool:  # noqa: ARG002
        return False

    def is_of_other_database(self, text: str) -> bool:
        return text.startswith('"')


SQLSERVER: Names = SQLServerNames()
