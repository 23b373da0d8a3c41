"""What is known of PostgreSQL before a connection is opened: its notation, limits and urls."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlq_spark.errors import BadAddress
from sqlq_spark.wire.address import Names, QueueAddress

if TYPE_CHECKING:
    from collections.abc import Iterable

# A part in quotes. The repetition is possessive (*+), so that the part never ends at the first of
# two quotes which stand for one quote of the name.
QUOTED = r'"(?:[^"]|"")*+"'
# Finds commas and quoted parts. It takes a part with a doubled quote for two parts, but finds the
# same commas.
QUOTED_OR_COMMA = re.compile(r'"[^"]*"|,')


@dataclass(frozen=True)
class PostgreSQLNames(Names):
    """PostgreSQL's notation: `"schema"."table"`."""

    dialect = "postgresql"
    schemes = ("postgresql", "postgres")
    example_url = "postgresql://user@host:5432/database"
    secrets = ("scram_client_key",)
    database = "PostgreSQL"
    has_legacy_columns = False
    password_variable = "PGPASSWORD"  # noqa: S105 - the variable's name
    token_services = ("azure", "aws")
    collations = ()
    script_settings = "\\set ON_ERROR_STOP on\n"  # psql; another tool would take it for SQL
    driver_packages = ("adbc-driver-postgresql",)
    opening = closing = '"'
    quoted = re.compile(QUOTED)
    quote = "quote"
    address_form = '"schema"."table"'
    canonical = rf"{QUOTED}\.{QUOTED}"
    table_in_address = r'(?s)\A"(?:[^"]|"")*+"\."((?:[^"]|"")*+)"\z'
    doubled_in_table = '""'
    separator = "."
    has_catalogs = False
    stray_quotes = False
    empty_is_default = False
    unit = "UTF-8 bytes"
    longest_table = 55  # PostgreSQL allows 63, and the sequence's name has 8 more, `_seq_seq`
    longest = 63
    default_schema = "public"
    queue_columns = "id, expires, headers, body and seq, in lower case"
    largest_message = 1000 << 20  # the server cannot send a row of 1 GiB

    def size(self, name: str) -> int:
        return len(name.encode())

    def parse_address(self, text: str) -> QueueAddress:
        """Read `"schema"."table"`; quotes and schema may be left out. Upper case is kept."""
        self._check_length(text)
        return self._address(self._split(text)[::-1], text)

    def parse_queue(self, text: str, longest_table: int | None = None) -> QueueAddress:
        """
        Read an address if the text begins with a quote, or else the name of one table.

        `Shop.Orders` is one table in the default schema, because endpoints' names contain dots.
        """
        self._check_length(text)
        parts = self._split(text)[::-1] if text.startswith('"') else [text]
        return self._address(parts, text, longest_table)

    def _commas(self, text: str) -> Iterable[int]:
        """Find the commas outside of double quotes. `orders, "sales"."a, b"` has one such comma."""
        if text.count('"') % 2:
            reason = (
                "a double quote is not closed; put a name that holds one in double quotes and "
                "double it there"
            )
            raise BadAddress(text=text, reason=reason)
        return (mark.start() for mark in QUOTED_OR_COMMA.finditer(text) if mark[0] == ",")

    def check_for_script(self, name: str) -> None:
        """Do nothing, because psql never misreads a quoted name."""

    def by_password(self, url: str) -> str:
        return url

    def is_address_only(self, text: str) -> bool:
        """Return whether a text has quotes, as `public."Spark.In"`. A queue's name has none."""
        return '"' in text

    def may_be_one_name(self, text: str) -> bool:
        """Return whether a text has a dot and no quotes, as `Shop.Orders`."""
        return "." in text and '"' not in text

    def is_of_other_database(self, text: str) -> bool:
        return "@" in text and not text.startswith('"')


POSTGRESQL: Names = PostgreSQLNames()
