"""
Which table a message type goes to, where each has one of its own.

A type's name comes from strangers: of it only `a-z`, `0-9` and `_` reach a table's name, with a
digest of the whole name behind them, so that `Shop.Placed`, `shop.placed` and `Shop_Placed` are
kept apart wherever tables do not tell upper from lower case. What has no type, and what is beyond
the cap, goes to one table.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

OTHER = "other"
STEM = 60  # characters of a type's name that a table's name keeps, its last ones


def table_name(message_type: str) -> str:
    """
    A table's name for a type: `shop_orderplaced_5f1c0a9e` of `Shop.OrderPlaced`.

    Returns:
        Letters, digits and underscores, 69 at most; never `other`, and the same one ever after.
    """
    stem = re.sub(r"[^a-z0-9]+", "_", message_type.lower()).strip("_")[-STEM:].strip("_")
    digest = hashlib.sha256(message_type.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{stem}_{digest}" if stem else digest


def place(table: str, name: str) -> str:
    """The table of a type, below the path `table` or beside the table of that name."""
    return f"{table.rstrip('/')}/{name}" if "/" in table else f"{table}_{name}"


def routes(
    found: Iterable[tuple[str | None, int]], named: Mapping[str, str], *, most: int
) -> dict[str, list[str]]:
    """
    Share the types of a batch among tables.

    Args:
        found: type and number of messages of a batch, in any order.
        named: full name of a type → its table's name, as its owner wants it.
        most: how many types get a table, >= 0; those of `named` always do. The most frequent
            first, by name where they are equal, so that a replay of the batch shares alike.

    Returns:
        A table's name → its types; `other` gets what is in none.
    """
    types = sorted((-messages, each) for each, messages in found if each is not None)
    chosen = [each for _, each in types if each not in named][:most]
    tables: dict[str, list[str]] = {}
    for each in sorted([*chosen, *(each for _, each in types if each in named)]):
        tables.setdefault(named.get(each) or table_name(each), []).append(each)
    tables.pop(OTHER, None)
    return tables


def application(query: str, name: str, named: Mapping[str, str], *, most: int, form: str) -> str:
    """
    By what Delta knows a write of a batch again: the stream, the share, and the rules of sharing.

    The rules are in it, for they may change between a kill and the replay of a batch: that may
    repeat messages in another table, but never leaves one out. `form` is one of them: in a text a
    type is found in poison too, where a map has none.
    """
    rules = json.dumps([sorted(named.items()), most, form]).encode()
    return f"{query}:{name}:{hashlib.sha256(rules).hexdigest()[:16]}"
