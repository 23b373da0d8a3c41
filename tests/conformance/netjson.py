r"""
Header text as .NET endpoints read and write it; the endpoint's own, not the package's.

Written from WIRE.md part 2 alone, so that a mistake of the package's is not made twice.
Headers are a flat object, which is a regular language: the stream is one expression.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

Headers = dict[str, str | None]

_SPACE = r"[ \t\n\r]*"
_STRING = r'"((?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9A-Fa-f]{4})*)"'
_PAIR = rf"{_STRING}{_SPACE}:{_SPACE}(?:{_STRING}|null)"
_BARE = _PAIR.replace("((?:", "(?:(?:")  # the same, keeping nothing
_OBJECT = re.compile(
    rf"{_SPACE}\{{{_SPACE}(?:{_BARE}{_SPACE}(?:,{_SPACE}{_BARE}{_SPACE})*)?\}}{_SPACE}"
)
_MEMBER = re.compile(_PAIR)
_ESCAPE = re.compile(r'\\(["\\/bfnrt])|((?:\\u[0-9A-Fa-f]{4})+)')

_SHORT = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\t": "t", "\n": "n", "\f": "f", "\r": "r"}
_LONG = {short: character for character, short in _SHORT.items()}
_ESCAPED = {"Cc", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}
_BYTE_ORDER_MARK = "\ufeff"


class Poison(ValueError):
    """Text that no endpoint can read as headers."""


def loads(text: str | None) -> Headers:
    """
    Read headers; the last of two values of a name counts.

    Raises:
        Poison: for all but a flat object of strings and nulls, and for half a surrogate pair.
    """
    if not text:
        return {}
    if not _OBJECT.fullmatch(text):
        raise Poison(text[:80])
    return {
        _read(found[1]): None if found[2] is None else _read(found[2])
        for found in _MEMBER.finditer(text)
    }


def _read(inside: str) -> str:
    try:
        return _ESCAPE.sub(_unescaped, inside)
    except UnicodeDecodeError as error:
        raise Poison(inside[:80]) from error


def _unescaped(found: re.Match[str]) -> str:
    if found[1]:
        return _LONG[found[1]]
    return bytes.fromhex(found[2].replace("\\u", "")).decode("utf-16-be")


def dumps(headers: Mapping[str, str | None], *, older: bool = False) -> str:
    """
    Write headers as 9.1 does, or as writers before it may.

    Args:
        headers: in their order.
        older: with lower-case hex, the slash plain, and all that is not ASCII escaped.
    """
    write = _older if older else _newer
    members = (
        f'"{write(name)}":' + ("null" if value is None else f'"{write(value)}"')
        for name, value in headers.items()
    )
    return "{" + ",".join(members) + "}"


def _newer(text: str) -> str:
    return "".join(map(_one, text))


def _one(character: str) -> str:
    if character in _SHORT:
        return "\\" + _SHORT[character]
    category = unicodedata.category(character)
    if category == "Cs":
        return "\\uFFFD"
    escaped = category in _ESCAPED or character == _BYTE_ORDER_MARK
    if ord(character) > 0xFFFF or (escaped and character != " "):
        digits = character.encode("utf-16-be").hex().upper()
        return "".join(f"\\u{digits[at : at + 4]}" for at in range(0, len(digits), 4))
    return character


def _older(text: str) -> str:
    plain = set(map(chr, range(32, 127))) - set("\"\\<>&'+")
    units = text.encode("utf-16-be", "surrogatepass")
    pairs = [chr(int.from_bytes(units[at : at + 2])) for at in range(0, len(units), 2)]
    return "".join(unit if unit in plain else f"\\u{ord(unit):04x}" for unit in pairs)
