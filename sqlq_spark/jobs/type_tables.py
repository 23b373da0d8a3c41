"""
Chooses the table of each message type.

The name of a type is untrusted. A table's name therefore has only `a-z`, `0-9`, `_` and a digest of
the whole type name. The digest separates `Shop.Placed`, `shop.placed` and `Shop_Placed`, even if
table names are not case-sensitive. Messages without a type, and types above the limit, go to one
table.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

OTHER = "other"
STEM = 60  # the last characters of a type's name that its table's name contains


def table_name(message_type: str) -> str:
    """
    A table's name for a type: `shop_orderplaced_5f1c0a9e` of `Shop.OrderPlaced`.

    Returns:
        At most 69 letters, digits and underscores; always the same, and never `other`.
    """
    stem = re.sub(r"[^a-z0-9]+", "_", message_type.lower()).strip("_")[-STEM:].strip("_")
    digest = hashlib.sha256(message_type.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{stem}_{digest}" if stem else digest


def place(table: str, name: str) -> str:
    """The table of a type: a folder below the path `table`, or a name that begins with `table`."""
    return f"{table.rstrip('/')}/{name}" if "/" in table else f"{table}_{name}"


def routes(
    found: Iterable[tuple[str | None, int]], named: Mapping[str, str], *, most: int
) -> dict[str, list[str]]:
    """
    Share the types of a batch among tables.

    Args:
        found: type and number of messages of a batch, in any order.
        named: full type name → table name, from the settings.
        most: how many other types get a table, >= 0. The most frequent are chosen, and by name if
            they are equal, so that a replay of the batch has the same result.

    Returns:
        Table name → its types. Types that are not in it go to `other`.
    """
    types = sorted((-messages, each) for each, messages in found if each is not None)
    chosen = [each for _, each in types if each not in named][:most]
    tables: dict[str, list[str]] = {}
    for each in sorted([*chosen, *(each for _, each in types if each in named)]):
        tables.setdefault(named.get(each) or table_name(each), []).append(each)
    tables.pop(OTHER, None)
    return tables


def application(
    query: str,
    name: str,
    named: Mapping[str, str],
    *,
    most: int,
    form: str,
    schemas: Mapping[str, str] | None = None,
) -> str:
    """
    The txnAppId by which Delta recognises a write: the query, the table, and the rules of sharing.

    It contains the rules, because they may change between a kill and the replay of a batch. Then
    messages may be repeated in another table, but none is lost. `form` is one of the rules: with
    headers as text, poison messages can have a type too. So are the schemas, by which a body is
    written or fails.
    """
    typed = [sorted(schemas.items())] if schemas else []
    rules = json.dumps([sorted(named.items()), most, form, *typed]).encode()
    return f"{query}:{name}:{hashlib.sha256(rules).hexdigest()[:16]}"
