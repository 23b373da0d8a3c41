"""
A strict reader of header text, one text at a time: what a .NET endpoint cannot read is poison.

The package reads headers in columns. Tests compare it with this reader.
"""

import json
import re
from typing import NoReturn

_SURROGATE = re.compile("[\ud800-\udfff]")


class PoisonHeaders(ValueError):
    """An endpoint could not read the header text of a row. The reason quotes no value."""


def loads(text: str | None) -> dict[str, str | None]:
    """
    Read the header text of a row.

    Args:
        text: a JSON object of strings and nulls, by any writer; empty or None is no headers.

    Returns:
        The headers in their order; if a name is there twice, the last value counts.

    Raises:
        PoisonHeaders: any other text, also one with half a surrogate pair.
    """
    if not text:
        return {}
    try:
        found = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise PoisonHeaders(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise PoisonHeaders("nested too deeply") from None
    if not isinstance(found, dict):
        raise PoisonHeaders(f"{_kind(found)} where an object was expected")
    return found


def _object(members: list[tuple[str, object]]) -> dict[str, str | None]:
    headers: dict[str, str | None] = {}
    for name, value in members:
        if value is not None and not isinstance(value, str):
            raise PoisonHeaders(f"header {_shown(name)} holds {_kind(value)}, not a string")
        if _halved(name) or (value is not None and _halved(value)):
            raise PoisonHeaders(f"header {_shown(name)} holds half of a surrogate pair")
        headers[name] = value
    return headers


def _number(_text: str) -> NoReturn:
    raise PoisonHeaders("a number where a string was expected")


def _constant(text: str) -> NoReturn:
    raise PoisonHeaders(f"not JSON: {text}")


def _halved(text: str) -> bool:
    return not text.isascii() and _SURROGATE.search(text) is not None


def _kind(value: object) -> str:
    kinds = {type(None): "null", bool: "true or false", str: "a string", list: "an array"}
    return kinds.get(type(value), "an object")


def _shown(name: str) -> str:
    return ascii(name if len(name) <= 64 else name[:64] + "…")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_number, parse_int=_number, parse_constant=_constant
)
