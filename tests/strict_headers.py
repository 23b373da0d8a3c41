"""A strict reader of one header text. What a .NET endpoint cannot read is poison."""

import json
import re
from typing import NoReturn

_SURROGATE = re.compile("[\ud800-\udfff]")


def loads(text: str | None) -> dict[str, str | None]:
    """Read a JSON object of strings and nulls, by any writer. Any other text is a ValueError."""
    found = _DECODER.decode(text) if text else {}
    if not isinstance(found, dict):
        raise ValueError("not an object")  # noqa: TRY004 - of the text
    return found


def read_strictly(text: str | None) -> dict[str, str | None] | None:
    """Read headers, or return None for poison."""
    try:
        return loads(text)
    except (ValueError, RecursionError):
        return None


def _object(members: list[tuple[str, object]]) -> dict[str, str | None]:
    headers: dict[str, str | None] = {}
    for name, value in members:
        if value is not None and not isinstance(value, str):
            raise ValueError("a value is not a string")
        if _SURROGATE.search(name + (value or "")):
            raise ValueError("half of a surrogate pair")
        headers[name] = value
    return headers


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"a number where a string was expected: {text}")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_refuse, parse_int=_refuse, parse_constant=_refuse
)
