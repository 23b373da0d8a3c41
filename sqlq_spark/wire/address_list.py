"""Several queues in one text: in an option, and in the state tables."""

from __future__ import annotations

import re
from bisect import bisect
from itertools import pairwise
from typing import TYPE_CHECKING

from sqlq_spark.errors import BadAddress
from sqlq_spark.wire.address import BRACKETS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LISTED = re.compile(r'(?:"[^"]*"|[^",])*')  # a doubled quote inside quotes is two quoted runs
# a bracket opens only where a part begins; a double quote is a character like others
OPENING_OR_COMMA = re.compile(r"(?:(?:\A|,)\s*|@)\[|,")
CLOSING = re.compile(r"(?<!\])\](?:\]\])*(?!\])")  # in a run of brackets, pairs belong to the name
# addresses as we write them: PostgreSQL's ends with a quote, SQL Server's with a bracket
QUOTED = r'"(?:[^"]|"")*"'
CANONICAL = re.compile(
    rf"(?:{QUOTED}\.{QUOTED}|(?:{BRACKETS}|[^@\[][^@]*)(?:@{BRACKETS}){{1,2}})(?:, |\Z)"
)


def split_list(text: str) -> list[str]:
    """
    Split the names of several queues at the commas outside double quotes.

    Args:
        text: `orders, "sales"."a, b"` are two; blanks around a name are not part of it.

    Raises:
        BadAddress: a quote is not closed, or a name is missing before or after a comma.
    """
    if text.count('"') % 2:
        raise BadAddress(
            text=text,
            reason="a double quote is not closed; put a name that holds one in double quotes and "
            "double it there",
        )
    return _complete(text, _names(text))


def split_list_sqlserver(text: str) -> list[str]:
    """
    Split the names of several queues at the commas outside brackets.

    Args:
        text: `orders, [a, b]@[sales]` are two; blanks around a name are not part of it.

    Raises:
        BadAddress: a name is missing before or after a comma.
    """
    cuts = [-1, *_commas(text), len(text)]
    return _complete(text, [text[one + 1 : two] for one, two in pairwise(cuts)])


def _commas(text: str) -> Iterator[int]:
    """The commas outside brackets, in linear time, even if many brackets are open."""
    closing = [found.end() for found in CLOSING.finditer(text)]
    at = 0
    while found := OPENING_OR_COMMA.search(text, at):
        if found[0].startswith(","):
            yield found.start()
        at = found.end()
        if found[0].endswith("[") and (place := bisect(closing, at)) < len(closing):
            at = closing[place]


def _names(text: str) -> list[str]:
    found, at = [], 0
    while at <= len(text) and (name := LISTED.match(text, at)) is not None:
        found.append(name[0])
        at = name.end() + 1
    return found


def _complete(text: str, found: Sequence[str]) -> list[str]:
    """The names without surrounding blanks; no name may be empty."""
    names = [each.strip() for each in found]
    if not all(names):
        raise BadAddress(text=text, reason="a name is missing beside a comma")
    return names


def split_canonical(text: str) -> list[str]:
    """
    Split canonical addresses of either database that are joined by `, `.

    Args:
        text: the queues of a stream, as in the state tables; any other text is one address.
    """
    found, at = [], 0
    while at < len(text):
        one = CANONICAL.match(text, at)
        if one is None:
            return [text]
        found.append(one[0].removesuffix(", "))
        at = one.end()
    return found
