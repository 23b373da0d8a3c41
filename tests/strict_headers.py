"""
A strict reader of header text, one text at a time: what a .NET endpoint cannot read is poison.

The package reads headers in columns. Tests compare it with this reader.
"""

import json
import re
from typing import NoReturn

_SURROGATE = re.compile("[\ud800-\udfff]")


class PoisonHeaders(ValueError):
    """An endpoint could not read the header text of a row."""


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
    except (json.JSONDecodeError, RecursionError):
        raise PoisonHeaders("not JSON") from None
    if not isinstance(found, dict):
        raise PoisonHeaders("not an object")
    return found


def _object(members: list[tuple[str, object]]) -> dict[str, str | None]:
    headers: dict[str, str | None] = {}
    for name, value in members:
        if value is not None and not isinstance(value, str):
            raise PoisonHeaders("a value is not a string")
        if _SURROGATE.search(name) or (value is not None and _SURROGATE.search(value)):
            raise PoisonHeaders("half of a surrogate pair")
        headers[name] = value
    return headers


def _refuse(text: str) -> NoReturn:
    raise PoisonHeaders(f"a number where a string was expected, or not JSON: {text}")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_refuse, parse_int=_refuse, parse_constant=_refuse
)
