"""The databases that this package knows, and what is asked of all of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlq_spark.wire.postgresql import POSTGRESQL
from sqlq_spark.wire.sqlserver import SQLSERVER

if TYPE_CHECKING:
    from sqlq_spark.wire.address import Names

# the statements of the first are the model for the others
LISTED: tuple[Names, ...] = (
    POSTGRESQL,
    SQLSERVER,
)
DIALECTS = {names.dialect: names for names in LISTED}  # by the name of its folder in database/
DEFAULT_DIALECT = next(iter(DIALECTS))  # where no url says which

CANONICAL = re.compile(rf"(?:{'|'.join(names.canonical for names in DIALECTS.values())})(?:, |\Z)")


def split_canonical(text: str) -> list[str]:
    """Split canonical addresses of any database at `, `; any other text is one address."""
    addresses, at = [], 0
    while at < len(text):
        one = CANONICAL.match(text, at)
        if one is None:
            return [text]
        addresses.append(one[0].removesuffix(", "))
        at = one.end()
    return addresses
