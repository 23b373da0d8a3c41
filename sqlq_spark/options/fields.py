"""
An option is a field of a dataclass.

The field's metadata holds the option's name, its reader and what the option expects.
The field's default is the option's default.
"""

from __future__ import annotations

import difflib
from dataclasses import MISSING, Field, field, fields
from typing import TYPE_CHECKING, Any

from sqlq_spark.errors import BadOption, MissingOption, UnknownOption
from sqlq_spark.options.parse import words

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from sqlq_spark.wire.address import Names

LOGIN = {"user": "user", "password": "password"}  # options that become part of the url
LIKELY_TYPO = 0.8  # from this similarity on, a name is taken for a misspelt option


def option(
    public: str,
    read: Callable[[str], Any],
    expected: str,
    *,
    default: Any = MISSING,  # noqa: ANN401 - as dataclasses.field
    secret: bool = False,
) -> Any:  # noqa: ANN401
    """Describe an option whose text means the same for every database."""

    def read_alone(_: str, text: str, __: Names) -> Any:  # noqa: ANN401
        return read(text)

    metadata = {"option": public, "read": read_alone, "expected": expected}
    return field(default=default, repr=not secret, metadata=metadata)


def address_option(
    public: str,
    read: Callable[[str, str, Names], Any],
    expected: str,
    *,
    default: Any = None,  # noqa: ANN401 - as dataclasses.field
) -> Any:  # noqa: ANN401
    """Describe an option that names queues or tables; `read` is a function of `addresses.py`."""

    def read_words(name: str, text: str, naming: Names) -> Any:  # noqa: ANN401
        return read(name, words(text), naming)

    metadata = {"option": public, "read": read_words, "expected": expected}
    return field(default=default, metadata=metadata)


def computed(*, shown: bool = True) -> Any:  # noqa: ANN401
    """Describe a field that `__post_init__` computes from the options; it is no option."""
    return field(init=False, compare=False, repr=shown)


def option_fields(cls: type) -> list[Field[Any]]:
    """Return the fields of a dataclass that are options."""
    return [each for each in fields(cls) if "option" in each.metadata]


def option_names(*classes: type) -> dict[str, str]:
    """Return the names of all options by their lower case."""
    names = (each.metadata["option"] for cls in classes for each in option_fields(cls))
    return {public.lower(): public for public in names}


def read_option(each: Field[Any], text: str, naming: Names) -> Any:  # noqa: ANN401
    """
    Read the text of one option.

    Raises:
        BadOption: with the text and what the option expects.
    """
    public = each.metadata["option"]
    try:
        return each.metadata["read"](public, text, naming)
    except ValueError:
        raise BadOption(option=public, found=text, expected=each.metadata["expected"]) from None


def read_options(cls: type, given: Mapping[str, str], naming: Names) -> dict[str, Any]:
    """
    Read all options of a dataclass that are given.

    Args:
        cls: its fields say which options there are.
        given: option names in lower case → text.
        naming: of the database.

    Returns:
        The fields' names → values.

    Raises:
        BadOption, MissingOption: with what was found and what is expected.
    """
    values = {}
    for each in option_fields(cls):
        public = each.metadata["option"]
        text = given.get(public.lower())
        if text is not None:
            values[each.name] = read_option(each, text, naming)
        elif each.default is MISSING:
            raise MissingOption(option=public, example=each.metadata["expected"])
    return values


def refuse_typos(given: Collection[str], known: Mapping[str, str]) -> None:
    """
    Refuse names that are likely typos of a known option, in lower case.

    A misspelt limit would set no limit. Other names belong to Spark and are left alone.

    Raises:
        UnknownOption.
    """
    for key in set(given) - known.keys():
        near = difflib.get_close_matches(key, known, n=1, cutoff=LIKELY_TYPO)
        if near:
            raise UnknownOption(option=key, near=known[near[0]])
