"""
Readers: the text of one option becomes a value.

A reader raises ValueError for a text that the option does not take.
`fields.py` then names the option and what it expects.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from sqlq_spark.wire.headers import split_names, topic_problem, types_problem

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
INT64 = 2**63 - 1
DEFAULT_MESSAGE_SIZE = 256 << 20  # of maxMessageBytes; a larger message is not fetched
LARGEST_MESSAGE = 1000 << 20  # PostgreSQL sends no row of 1 GB
LONGEST_NAME = 63  # bytes


class Unreadable(ValueError):
    """An option does not take this text."""


def duration(least: float, most: float = math.inf) -> Callable[[str], float]:
    """Return a reader of `250ms`, `1s`, `15m`, `2 hours` as seconds between two bounds."""

    def read(text: str) -> float:
        found = re.fullmatch(
            r"(\d+(?:\.\d+)?)\s*(ms|millis\w*|s|sec\w*|m|min\w*|h|hours?|d|days?)", text
        )
        if not found:
            raise Unreadable
        unit = (
            found[2] if found[2] in SECONDS else "ms" if found[2].startswith("mil") else found[2][0]
        )
        seconds = float(found[1]) * SECONDS[unit]
        if not least <= seconds <= most:
            raise Unreadable
        return seconds

    return read


def count(text: str) -> int:
    """Read a whole number of at least 1."""
    if not re.fullmatch(r"\d{1,18}", text) or int(text) < 1:
        raise Unreadable
    return int(text)


def count_from_zero(text: str) -> int:
    """Read a whole number of at least 0."""
    return count(str(int(text) + 1)) - 1


def size(text: str) -> int:
    """Read `1048576`, `64m`, `1GiB` as bytes, at least 1."""
    found = re.fullmatch(r"(\d{1,15})\s*([kmg]?)(?:i?b)?", text.lower())
    if not found or int(found[1]) < 1:
        raise Unreadable
    return min(int(found[1]) * BYTES[found[2]], INT64)


def message_size(text: str) -> int:
    """Read bytes as `size`, at most LARGEST_MESSAGE."""
    found = size(text)
    if found > LARGEST_MESSAGE:
        raise Unreadable
    return found


def flag(text: str) -> bool:
    """Read `true` or `false`."""
    if text.lower() not in {"true", "false"}:
        raise Unreadable
    return text.lower() == "true"


def one_of(*known: str) -> Callable[[str], str]:
    """Return a reader of one of a few words, in any case."""

    def read(text: str) -> str:
        for word in known:
            if word.lower() == text.lower():
                return word
        raise Unreadable

    return read


def name(text: str) -> str:
    """Read a name that the user chose: 1 to LONGEST_NAME bytes."""
    if not text or len(text.encode()) > LONGEST_NAME or "\0" in text:
        raise Unreadable
    return text


def words(text: str) -> str:
    """Read any text that is not blank and that a driver can send."""
    if not text.strip():
        raise Unreadable
    text.encode()  # raises a ValueError for half of a surrogate pair
    return text


def type_names(text: str) -> str:
    """Read what becomes the header EnclosedMessageTypes."""
    if types_problem(words(text)) is not None:
        raise Unreadable
    return text


def topic_names(text: str) -> tuple[str, ...]:
    """Read topics that commas separate."""
    found = tuple(split_names(text))
    if any(map(topic_problem, found)):
        raise Unreadable
    return found
