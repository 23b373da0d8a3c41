"""
What is known of the third database before a connection: its notation and its urls.

An address is `schema/table`. A part with a slash, a quote, a comma or a blank is in double quotes.
The name of the dialect is not the scheme of its urls.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlq_spark.wire.postgresql import QUOTED, PostgreSQLNames

if TYPE_CHECKING:
    from sqlq_spark.wire.address import Names, QueueAddress

PLAIN = r'[^/",\s]++'
PART = rf"(?:{QUOTED}|{PLAIN})"


@dataclass(frozen=True)
class ThirdNames(PostgreSQLNames):
    """The notation `schema/table`."""

    dialect = "third"
    schemes = ("slashed", "slash")
    example_url = "slashed://user@host:5432/database"
    database = "Third"
    address_form = "schema/table"
    canonical = rf"{PART}/{PART}"
    # behind an opening quote the table ends at the closing one
    table_in_address = (
        rf'(?s)\A(?:"(?:[^"]|"")*+"|{PLAIN})/"?'
        rf'((?<=/")(?:[^"]|"")*+(?="\z)|(?<=/){PLAIN})"?\z'
    )
    separator = "/"

    def parse_queue(self, text: str, longest_table: int | None = None) -> QueueAddress:
        """Read `schema/table` or a table; the parts may be in quotes."""
        self._check_length(text)
        return self._address(self._split(text)[::-1], text, longest_table)

    def print_address(self, address: QueueAddress) -> str:
        return "/".join(map(self._part, reversed(self._names_of(address))))

    def canonical_address(self, address: QueueAddress) -> str:
        return self.print_address(address)

    def is_address_only(self, text: str) -> bool:  # noqa: ARG002
        return False

    def may_be_one_name(self, text: str) -> bool:  # noqa: ARG002
        return False

    def _part(self, name: str) -> str:
        return name if re.fullmatch(PLAIN, name) else self.quote_name(name)


THIRD: Names = ThirdNames()
