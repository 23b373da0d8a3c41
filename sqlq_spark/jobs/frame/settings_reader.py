"""
Reads a job's settings: flags, then a TOML file, then the environment, then a secret scope.

A flag is text, and a value of the file has a type. Both are converted to the field's annotation,
then by its `read`. All errors are reported together.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from sqlq_spark.jobs.frame.settings import BadSettings, Settings, blank, unknown
from sqlq_spark.options.fields import flag as option_flag
from sqlq_spark.options.names import HIDDEN, other_password_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

S = TypeVar("S", bound=Settings)

EXPECTED = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list of texts",
    dict: "a table of NAME = value",
}


def parser(doc: str, kind: type[Settings]) -> argparse.ArgumentParser:
    """The command line parser of a job; all values are texts or lists of texts."""
    made = argparse.ArgumentParser(
        description=doc.strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "--settings", metavar="FILE.toml", help="Settings; a flag overrides the file."
    )
    made.add_argument(
        "--dry-run",
        action="store_true",
        help="Print what would be done, and check it; change nothing.",
    )
    for each in fields(kind):
        if not each.metadata["secret"]:
            _add(made, each, type_of(kind, each))
    secrets = [each.name for each in fields(kind) if each.metadata["secret"]]
    if secrets:
        made.epilog = (
            f"Set only in the file, the environment or a secret scope: {', '.join(secrets)}."
        )
    return made


def _add(made: argparse.ArgumentParser, each: Field[Any], kind: type) -> None:
    text, default = each.metadata["description"], each.default
    if default not in {MISSING, None, ()}:
        text += f" Default: {as_flag(default)}."
    many = {"action": "append", "metavar": "NAME=VALUE"} if kind is dict else {}
    if kind is bool:
        many = {"nargs": "?", "const": "true", "metavar": "true|false"}
    made.add_argument(flag(each.name), dest=each.name, help=text.replace("%", "%%"), **many)  # type: ignore[arg-type]


def as_flag(default: Any) -> str:  # noqa: ANN401
    """A default in the notation of a flag."""
    if isinstance(default, bool):
        return str(default).lower()
    return ",".join(default) if isinstance(default, tuple) else str(default)


def flag(name: str) -> str:
    """A setting's flag."""
    return f"--{name.replace('_', '-')}"


def type_of(kind: type[Settings], each: Field[Any]) -> type:
    """A field's type without `None`; `tuple` or `dict` without its parameters."""
    hint = get_type_hints(kind)[each.name]
    if isinstance(hint, UnionType):
        (hint,) = (one for one in get_args(hint) if one is not NoneType)
    found: type = get_origin(hint) or hint
    return found


def parse_words(doc: str, kind: type[Settings], words: Sequence[str]) -> argparse.Namespace:
    """
    Read the command line.

    Raises:
        BadSettings: a flag is not known.
    """
    made = parser(doc, kind)
    found, rest = made.parse_known_args(words)
    if rest:
        flags = {flag(each.name): each for each in fields(kind)}
        word = rest[0].partition("=")[0]
        if word in flags:
            places = ", ".join(["the file", *flags[word].metadata["environment"]])
            raise BadSettings(
                reason=f"there is no flag {word}, because other users can see a command line: set "
                f"it in {places} or a secret scope"
            )
        known = [name for name, each in flags.items() if not each.metadata["secret"]]
        raise BadSettings(reason=unknown(f"flag {word}", word, [*known, "--settings", "--dry-run"]))
    return found


def load(kind: type[S], found: argparse.Namespace, secret: Callable[[str, str], str]) -> S:
    """
    Fill a job's settings.

    Args:
        kind: the job's dataclass.
        found: the result of `parse_words`.
        secret: reads a secret by scope and key.

    Raises:
        BadSettings: one or more settings are wrong; it has a line for each.
    """
    path, wrong = found.settings, []
    table = {} if path is None else contents(path)
    known = [each.name for each in fields(kind)]
    wrong += [unknown(f"setting {each} in {path}", each, known) for each in table.keys() - known]
    values: dict[str, Any] = {}
    for each in fields(kind):
        try:
            given, source = _given_value(each, found, table)
            if given is not None:
                values[each.name] = value(each, type_of(kind, each), given, source)
            elif each.default is MISSING and each.default_factory is MISSING:
                wrong.append(_missing(each))
        except BadSettings as error:
            wrong.append(str(error))
    if wrong:
        raise BadSettings(reason="\n".join(sorted(wrong)))
    for each in fields(kind):
        if each.name not in values and (found_there := _secret(each, values, secret)):
            values[each.name] = found_there
    return kind(**values)


def contents(path: str) -> dict[str, Any]:
    """Read a TOML file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadSettings(
            reason=f"flag --settings is {path!r}: expected a file to read ({reason})"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise BadSettings(reason=f"{path} is not TOML: {error}") from None


def _given_value(
    each: Field[Any], found: argparse.Namespace, table: Mapping[str, Any]
) -> tuple[Any, str]:
    """The given value of a setting, and its name for an error."""
    words = getattr(found, each.name, None)
    if words is not None:
        return words, f"flag {flag(each.name)}"
    if each.name in table:
        return table[each.name], f"setting {each.name} in {found.settings}"
    for variable in () if each.metadata["secret"] else each.metadata["environment"]:
        if os.environ.get(variable):
            return os.environ[variable], f"environment variable {variable}"
    return None, ""


def value(each: Field[Any], kind: type, given: Any, source: str) -> Any:  # noqa: ANN401
    """Read one value, from the file or from text."""
    read, expected = each.metadata["read"], each.metadata["expected"] or EXPECTED[kind]
    try:
        made = READ[kind](given)
        return made if read is None else read(str(made))
    except (ValueError, TypeError):
        shown = HIDDEN if each.metadata["secret"] else repr(blank(each.name, given))
        raise BadSettings(reason=f"{source} is {shown}: expected {expected}") from None


def _text(given: Any) -> str:  # noqa: ANN401
    if not isinstance(given, (str, int, float)) or isinstance(given, bool):
        raise TypeError
    if not str(given).strip():
        raise ValueError
    return str(given)


def _integer(given: Any) -> int:  # noqa: ANN401
    if isinstance(given, (bool, float)):
        raise TypeError
    return int(given)


def _number(given: Any) -> float:  # noqa: ANN401
    if isinstance(given, bool):
        raise TypeError
    return float(given)


def _truth(given: Any) -> bool:  # noqa: ANN401
    return given if isinstance(given, bool) else option_flag(_text(given))


def _texts(given: Any) -> tuple[str, ...]:  # noqa: ANN401
    if isinstance(given, str):
        given = [each.strip() for each in given.split(",")]
    return tuple(_text(each) for each in given)


def _table(given: Any) -> dict[str, str]:  # noqa: ANN401
    if isinstance(given, list):  # of flags
        pairs = [each.partition("=") for each in given]
        if not all(name and equals for name, equals, _ in pairs):
            raise ValueError
        return {name: text for name, _, text in pairs}
    return {
        name: str(each).lower() if isinstance(each, bool) else _text(each)
        for name, each in given.items()
    }


READ: dict[type, Callable[[Any], Any]] = {
    str: _text,
    int: _integer,
    float: _number,
    bool: _truth,
    tuple: _texts,
    dict: _table,
}


def _missing(each: Field[Any]) -> str:
    other = "".join(f", or environment variable {one}" for one in each.metadata["environment"])
    expected = each.metadata["expected"] or each.metadata["description"]
    return f"setting {each.name} is missing: give {flag(each.name)}{other}: {expected}"


def _secret(
    each: Field[Any], values: Mapping[str, Any], secret: Callable[[str, str], str]
) -> str | None:
    """
    Read a secret from the environment, or else from the secret scope.

    A password in the url takes precedence, and so does the setting `credentials`. PGPASSWORD
    is used only for PostgreSQL.
    """
    url = str(values.get(each.name.replace("password", "url"), ""))
    credentials = values.get(each.name.replace("password", "credentials"))
    if not each.metadata["secret"] or credentials or blank("url", url) != url:
        return None
    others = other_password_variables(url)
    for variable in each.metadata["environment"]:
        if os.environ.get(variable) and variable not in others:
            return os.environ[variable]
    scope, key = values.get("secret_scope"), values.get(each.metadata["key"] or "")
    return secret(scope, key) if scope and key else None
