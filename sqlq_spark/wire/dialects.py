"""The databases that this package knows, and functions that try all of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlq_spark.wire.postgresql import POSTGRESQL
from sqlq_spark.wire.sqlserver import SQLSERVER

if TYPE_CHECKING:
    from sqlq_spark.wire.address import Names

# The SQL files of the first database are the model: those of all others are compared with them.
LISTED: tuple[Names, ...] = (
    POSTGRESQL,
    SQLSERVER,
)
DIALECTS = {names.dialect: names for names in LISTED}  # folder in database/ → names
DEFAULT_DIALECT = next(iter(DIALECTS))  # used where no url chooses one

CANONICAL = re.compile(rf"(?:{'|'.join(names.canonical for names in DIALECTS.values())})(?:, |\Z)")


def split_canonical(text: str) -> list[str]:
    """Split canonical addresses of any database at `, `. A text of another form is one address."""
    addresses = []
    place = 0
    while place < len(text):
        address = CANONICAL.match(text, place)
        if address is None:
            return [text]
        addresses.append(address[0].removesuffix(", "))
        place = address.end()
    return addresses
