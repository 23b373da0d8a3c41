"""
Names of .NET types, in headers and as topics.

A header lists assembly-qualified names (`Shop.Placed, Shop, Version=1.0.0.0`). A topic is a full
name (`Shop.Placed`). A generic type has its arguments, with their assemblies, in brackets. A comma
therefore ends a name only outside of brackets. A backslash escapes a character.
The text is untrusted: every function accepts any text and takes one pass. A text that is not a type
name is returned unchanged.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SEPARATOR = ";"  # of EnclosedMessageTypes; the transports split at each one

_MARKS = re.compile(r"\\.|[\[\],]", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_INTERFACE = re.compile(r"I[A-Z][a-z]")  # how .NET code names interfaces: IOrderEvent


def full_name(name: str) -> str:
    """
    The full name of a type, which is its topic; `name` may be a full name already.

    Returns:
        The part before the first comma outside brackets.
    """
    end = next(_commas(name), len(name))
    return name[:end].strip()


def split_types(header: str | None) -> list[str]:
    """The names in an EnclosedMessageTypes header, most derived first; blank ones are left out."""
    return [name for part in (header or "").split(SEPARATOR) if (name := part.strip())]


def split_names(text: str) -> list[str]:
    """Split full names at commas, as in an option; keeps blank names, which are then rejected."""
    edges = [-1, *_commas(text), len(text)]
    return [text[at + 1 : stop].strip() for at, stop in pairwise(edges)]


def unfit(topic: str) -> str | None:
    """Why a text cannot be a topic; None if it can."""
    if not topic.strip():
        return "a blank topic"
    if SEPARATOR in topic:
        return f"a topic with {SEPARATOR!r}: give each type as an item of its own"
    if "\0" in topic:
        return "a topic with a NUL character"
    return None


def unfit_types(header: str) -> str | None:
    """
    Why a text cannot be EnclosedMessageTypes; None if it can.

    An endpoint fails on a blank name between semicolons (read in NServiceBus 10).
    """
    seen: set[str] = set()
    for part in header.split(SEPARATOR):
        name = full_name(part)
        if not name:
            return "a blank name"
        if name[0] in "[]" or _CONTROL.search(part.strip()):
            return f"{part.strip()!r}, which is no type name"
        if name in seen:
            return f"{name} twice"
        seen.add(name)
    return None


def begins_with_interface(header: str) -> bool:
    """
    Whether an interface comes before a class, by the names alone.

    Only a warning may follow from it: a class can be named IPhoneOrdered.
    """
    names = [re.split(r"[.+]", full_name(each))[-1] for each in split_types(header)]
    interfaces = [bool(_INTERFACE.match(name)) for name in names]
    return bool(interfaces) and interfaces[0] and not all(interfaces)


def _commas(text: str) -> Iterator[int]:
    """The places of commas outside brackets."""
    depth = 0
    for found in _MARKS.finditer(text):
        if found[0] == "[":
            depth += 1
        elif found[0] == "]":
            depth = max(0, depth - 1)
        elif found[0] == "," and not depth:
            yield found.start()
