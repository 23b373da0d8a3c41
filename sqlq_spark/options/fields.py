"""
Typed settings: how a text becomes a value, for options, for settings of jobs and for flags.

An option is a field of a dataclass. The field's metadata holds the option's name, its reader and
what the option expects. The field's default is the option's default.
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from sqlq_spark.errors import BadOption, MissingOption
from sqlq_spark.wire.dialects import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sqlq_spark.wire.address import Names

LIKELY_TYPO = 0.8  # from this similarity on, a name is taken for a misspelt option
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
INT64 = 2**63 - 1
DEFAULT_MESSAGE_SIZE = 256 << 20  # of maxMessageBytes; a larger message is not fetched
LARGEST_MESSAGE = max(names.largest_message for names in DIALECTS.values())  # of any database
DEFAULT_HEADER_SIZE = 1 << 20  # of maxHeaderBytes; endpoints write kilobytes
LONGEST_NAME = 63  # bytes


@dataclass(frozen=True, slots=True)
class Reader:
    """Makes a value of a text, or raises a ValueError; an error says what was `expected`."""

    expected: str
    read: Callable[[str], Any]

    def __call__(self, text: str) -> Any:  # noqa: ANN401
        return self.read(text)


def option(
    public: str,
    read: Reader | Callable[[str, str, Names], Any],
    expected: str | None = None,
    *,
    default: Any = None,  # noqa: ANN401 - as dataclasses.field
    secret: bool = False,
) -> Any:  # noqa: ANN401
    """
    Describe an option.

    Args:
        public: its name.
        read: reads its text. An option that names queues or tables has a function of names.py.
        expected: what an error says was expected; a Reader knows it.
        default: the field's default; MISSING: the option is required.
        secret: `repr` leaves it out.
    """
    expected = expected or (read.expected if isinstance(read, Reader) else None)
    metadata = {"option": public, "read": read, "expected": expected}
    return field(default=default, repr=not secret, metadata=metadata)


def option_fields(cls: type) -> list[Field[Any]]:
    """Return the fields of a dataclass that are options."""
    return [each for each in fields(cls) if "option" in each.metadata]


def option_names(*classes: type) -> dict[str, str]:
    """Return the names of all options by their lower case."""
    names = (each.metadata["option"] for cls in classes for each in option_fields(cls))
    return {public.lower(): public for public in names}


def read_option(each: Field[Any], text: str, naming: Names) -> Any:  # noqa: ANN401
    """Read the text of one option; BadOption says what it expects."""
    public, read = each.metadata["option"], each.metadata["read"]
    try:
        return read(text) if isinstance(read, Reader) else read(public, words(text), naming)
    except ValueError:
        raise BadOption(option=public, found=text, expected=each.metadata["expected"]) from None


def read_options(cls: type, given: Mapping[str, str], naming: Names) -> dict[str, Any]:
    """
    Read the options of a dataclass that are given, as the fields' names → values.

    `given` has the texts by the options' names in lower case. BadOption and MissingOption say what
    is expected.
    """
    values = {}
    for each in option_fields(cls):
        public = each.metadata["option"]
        if (text := given.get(public.lower())) is not None:
            values[each.name] = read_option(each, text, naming)
        elif each.default is MISSING:
            raise MissingOption(option=public, example=each.metadata["expected"])
    return values


def find_near(name: str, known: Iterable[str], *, likely: float = LIKELY_TYPO) -> str | None:
    """Return the known name for which another one is likely meant."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=likely)), None)


# ----- readers -------------------------------------------------------------------------------


def require(fine: object) -> None:
    """Raise the ValueError of a reader, unless it takes the text."""
    if not fine:
        raise ValueError


def duration(least: float, most: float = math.inf, expected: str = "a time, as 15m") -> Reader:
    """Return a reader of `250ms`, `1s`, `15m`, `2 hours` as seconds between two bounds."""
    units = r"ms|millis\w*|s|sec\w*|m|min\w*|h|hours?|d|days?"

    def read(text: str) -> float:
        found = re.fullmatch(rf"(\d+(?:\.\d+)?)\s*({units})", text)
        if found is None:
            raise ValueError
        unit = "ms" if found[2].startswith(("ms", "mil")) else found[2][0]
        seconds = float(found[1]) * SECONDS[unit]
        require(least <= seconds <= most)
        return seconds

    return Reader(expected, read)


def whole_number(least: int) -> Reader:
    def read(text: str) -> int:
        require(re.fullmatch(r"\d{1,18}", text) and int(text) >= least)
        return int(text)

    return Reader(f"a whole number of at least {least}", read)


def one_of(*known: str) -> Reader:
    """Return a reader of one of a few words, in any case."""
    *others, last = known
    words_by_case = {word.lower(): word for word in known}

    def read(text: str) -> str:
        require(text.lower() in words_by_case)
        return words_by_case[text.lower()]

    return Reader(f"{', '.join(others)} or {last}", read)


def _read_size(text: str) -> int:
    """Read `1048576`, `64m`, `1GiB` as bytes."""
    found = re.fullmatch(r"(\d{1,15})\s*([kmg]?)(?:i?b)?", text.lower())
    if found is None or int(found[1]) < 1:
        raise ValueError
    return min(int(found[1]) * BYTES[found[2]], INT64)


def read_message_size(option: str, text: str, naming: Names) -> int:
    """Read the bytes of one message; BadOption names the most that the database can hold."""
    most = naming.largest_message
    try:
        found = _read_size(text)
        require(found <= most)
    except ValueError:
        expected = f"bytes, at least 1 and at most {most >> 20}m, as 268435456 or 256m"
        raise BadOption(option=option, found=text, expected=expected) from None
    return found


def _read_name(text: str) -> str:
    require(text and len(text.encode()) <= LONGEST_NAME and "\0" not in text)
    return text


def _read_words(text: str) -> str:
    require(text.strip())
    text.encode()  # raises a ValueError for half of a surrogate pair
    return text


count = whole_number(1)
size = Reader("bytes, at least 1, as 67108864 or 64m", _read_size)
true_or_false = one_of("true", "false")
flag = Reader(true_or_false.expected, lambda text: true_or_false(text) == "true")
name = Reader(f"a name of 1 to {LONGEST_NAME} bytes", _read_name)
words = Reader("a text that a driver can send", _read_words)
