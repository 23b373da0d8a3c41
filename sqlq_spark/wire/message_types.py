"""
Names of .NET types, in headers and as topics.

A header lists assembly-qualified names (`Shop.Placed, Shop, Version=1.0.0.0`), a topic is a full
name (`Shop.Placed`). A generic type holds its arguments, assemblies and all, in brackets, so that a
comma ends a name only outside of them; a backslash takes a character's meaning away.
The text comes from strangers: every function takes any, in one pass, and what is no type's name
comes back as it is.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SEPARATOR = ";"  # of EnclosedMessageTypes; the peers split there, whatever stands around it

_MARKS = re.compile(r"\\.|[\[\],]", re.DOTALL)


def full_name(name: str) -> str:
    """
    The full name of a type, which is its topic; `name` may be it already.

    Returns:
        What stands before the first comma outside brackets.
    """
    end = next(_commas(name), len(name))
    return name[:end].strip()


def split_types(header: str | None) -> list[str]:
    """The names in an EnclosedMessageTypes header, most derived first; blank ones are left out."""
    return [name for part in (header or "").split(SEPARATOR) if (name := part.strip())]


def join_types(names: Iterable[str]) -> str:
    """An EnclosedMessageTypes header; see `unfit` for what no name may hold."""
    return SEPARATOR.join(names)


def split_names(text: str) -> list[str]:
    """Full names that commas separate, as in an option; blank ones stay, for an error to tell."""
    edges = [-1, *_commas(text), len(text)]
    return [text[at + 1 : stop].strip() for at, stop in pairwise(edges)]


def unfit(topic: str) -> str | None:
    """Why a text can be no topic; None where it can."""
    if not topic.strip():
        return "a blank topic"
    if SEPARATOR in topic:
        return f"a topic with {SEPARATOR!r}: give each type as an item of its own"
    if "\0" in topic:
        return "a topic with a NUL character"
    return None


def _commas(text: str) -> Iterator[int]:
    """Where commas stand outside brackets."""
    depth = 0
    for found in _MARKS.finditer(text):
        if found[0] == "[":
            depth += 1
        elif found[0] == "]":
            depth = max(0, depth - 1)
        elif found[0] == "," and not depth:
            yield found.start()
