"""
Turn texts into typed values: for options, for settings of jobs, and for flags of commands.

An option is a field of a dataclass, whose default is the option's default. The field's metadata has
the option's name, its reader, and the words in which an error says what is expected.
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

LIKELY_TYPO = 0.8  # a name that is at least this similar to an option's is taken for a typo
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
INT64 = 2**63 - 1
DEFAULT_MESSAGE_SIZE = 256 << 20  # default of maxMessageBytes; a larger message is not fetched
LARGEST_MESSAGE = max(names.largest_message for names in DIALECTS.values())  # bytes, any database
DEFAULT_HEADER_SIZE = 1 << 20  # default of maxHeaderBytes; usual headers have a few kilobytes
LONGEST_NAME = 63  # bytes
LONGEST_SHORT_TEXT = 200  # characters, as columns of the state tables


@dataclass(frozen=True, slots=True)
class Reader:
    """Turns a text into a value, or raises a ValueError. `expected` is for the error's text."""

    expected: str
    read: Callable[[str], Any]

    def __call__(self, text: str) -> Any:  # noqa: ANN401
        return self.read(text)


def option(
    public: str,
    read: Reader | Callable[[str, str, Names], Any],
    expected: str | None = None,
    *,
    default: Any = None,  # noqa: ANN401 - as in dataclasses.field
    secret: bool = False,
) -> Any:  # noqa: ANN401
    """
    Return the dataclass field of an option.

    Args:
        public: the option's name.
        read: reads the option's text. For an option that names queues or tables, it is a function
            of names.py.
        expected: what an error says is expected. If it is None, `read.expected` is used.
        default: the field's default. If it is MISSING, the option is required.
        secret: whether `repr` leaves the value out.
    """
    expected = expected or (read.expected if isinstance(read, Reader) else None)
    metadata = {"option": public, "read": read, "expected": expected}
    return field(default=default, repr=not secret, metadata=metadata)


def option_fields(cls: type) -> list[Field[Any]]:
    """Return the fields of a dataclass that are options."""
    return [member for member in fields(cls) if "option" in member.metadata]


def option_names(*classes: type) -> dict[str, str]:
    """Return the names of all options of some classes: name in lower case → as users write it."""
    names = (member.metadata["option"] for cls in classes for member in option_fields(cls))
    return {public.lower(): public for public in names}


def read_option(member: Field[Any], text: str, naming: Names) -> Any:  # noqa: ANN401
    """Read the text of one option. If it cannot be read, BadOption says what is expected."""
    public = member.metadata["option"]
    read = member.metadata["read"]
    try:
        return read(text) if isinstance(read, Reader) else read(public, words(text), naming)
    except ValueError:
        raise BadOption(option=public, found=text, expected=member.metadata["expected"]) from None


def read_options(cls: type, given: Mapping[str, str], naming: Names) -> dict[str, Any]:
    """
    Read those options of a dataclass that the user has set. Return field's name → value.

    `given` is option's name in lower case → text. The errors BadOption and MissingOption say what
    is expected.
    """
    values = {}
    for member in option_fields(cls):
        public = member.metadata["option"]
        text = given.get(public.lower())
        if text is not None:
            values[member.name] = read_option(member, text, naming)
        elif member.default is MISSING:
            raise MissingOption(option=public, example=member.metadata["expected"])
    return values


def find_near(name: str, known: Iterable[str], *, likely: float = LIKELY_TYPO) -> str | None:
    """Return the known name that is most similar to `name`, or None if none is similar enough."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=likely)), None)


# ----- readers -------------------------------------------------------------------------------


def require(fine: object) -> None:
    """Raise the ValueError of a reader, unless the condition holds."""
    if not fine:
        raise ValueError


def duration(least: float, most: float = math.inf, expected: str = "a time, as 15m") -> Reader:
    """Return a reader of times as `250ms`, `1s`, `15m`, `2 hours`. The value is in seconds."""
    units = r"ms|millis\w*|s|sec\w*|m|min\w*|h|hours?|d|days?"

    def read(text: str) -> float:
        parts = re.fullmatch(rf"(\d+(?:\.\d+)?)\s*({units})", text)
        if parts is None:
            raise ValueError
        unit = "ms" if parts[2].startswith(("ms", "mil")) else parts[2][0]
        seconds = float(parts[1]) * SECONDS[unit]
        require(least <= seconds <= most)
        return seconds

    return Reader(expected, read)


def whole_number(least: int) -> Reader:
    def read(text: str) -> int:
        require(re.fullmatch(r"\d{1,18}", text) and int(text) >= least)
        return int(text)

    return Reader(f"a whole number of at least {least}", read)


def one_of(*known: str) -> Reader:
    """Return a reader that accepts a few words, in upper or lower case."""
    *others, last = known
    words_by_case = {word.lower(): word for word in known}

    def read(text: str) -> str:
        require(text.lower() in words_by_case)
        return words_by_case[text.lower()]

    return Reader(f"{', '.join(others)} or {last}", read)


def _read_size(text: str) -> int:
    """Read a size as `1048576`, `64m` or `1GiB`. Return the number of bytes."""
    parts = re.fullmatch(r"(\d{1,15})\s*([kmg]?)(?:i?b)?", text.lower())
    if parts is None or int(parts[1]) < 1:
        raise ValueError
    return min(int(parts[1]) * BYTES[parts[2]], INT64)


def read_message_size(option: str, text: str, naming: Names) -> int:
    """Read a limit of a message's size. Return bytes. BadOption names the database's limit."""
    most = naming.largest_message
    try:
        size = _read_size(text)
        require(size <= most)
    except ValueError:
        expected = f"bytes, at least 1 and at most {most >> 20}m, as 268435456 or 256m"
        raise BadOption(option=option, found=text, expected=expected) from None
    return size


def _read_name(text: str) -> str:
    require(text and len(text.encode()) <= LONGEST_NAME and "\0" not in text)
    return text


def _read_words(text: str) -> str:
    require(text.strip())
    text.encode()  # this raises a ValueError if the text has half of a surrogate pair
    return text


def _read_short_text(text: str) -> str:
    require(len(_read_words(text)) <= LONGEST_SHORT_TEXT and text.isprintable())
    return text


count = whole_number(1)
size = Reader("bytes, at least 1, as 67108864 or 64m", _read_size)
true_or_false = one_of("true", "false")
flag = Reader(true_or_false.expected, lambda text: true_or_false(text) == "true")
name = Reader(f"a name of 1 to {LONGEST_NAME} bytes", _read_name)
words = Reader("a text that a driver can send", _read_words)
short_text = Reader(
    f"a text of at most {LONGEST_SHORT_TEXT} characters in one line", _read_short_text
)
