"""
A job's settings: a frozen dataclass, read from flags, a TOML file and the environment.

`setting` describes a field by its help and its Reader (options/fields.py). A flag overrides the
file. All errors are reported together, each with the setting's name, what was found and what was
expected. Secrets have no flag, because other users can see a command line.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlq_spark.errors import BadInput
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.fields import (
    Reader,
    duration,
    find_near,
    flag,
    one_of,
    option_names,
    require,
    words,
)
from sqlq_spark.options.names import HIDDEN, hide_secrets, other_password_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from sqlq_spark.options.connection import DatabaseOptions

MOST_DAYS = 36_500  # of a retention


class BadSettings(BadInput):
    """Settings of a job cannot be used; the message has one line for each."""


# ---------------------------------------------------------------- readers


def _read_texts(given: Any) -> tuple[str, ...]:  # noqa: ANN401
    """Read a list of the file, or a text with commas."""
    if isinstance(given, str):
        given = [each.strip() for each in given.split(",")]
    return tuple(text(as_text(each)) for each in given)


def _read_pairs(given: Any) -> dict[str, str]:  # noqa: ANN401
    """Read a table of the file, or the NAME=VALUE of repeated flags."""
    if isinstance(given, list):
        parts = [each.partition("=") for each in given]
        require(all(name and equals for name, equals, _ in parts))
        return {name: value for name, _, value in parts}
    return {name: text(as_text(each)) for name, each in given.items()}


def _read_trigger(given: str) -> str:
    return "availableNow" if given.lower() == "availablenow" else keep_text(duration(0))(given)


def keep_text(read: Reader) -> Reader:
    """Return a reader that checks a text and keeps it as it was written."""

    def check(given: str) -> str:
        read(given)
        return given

    return Reader(read.expected, check)


def number(expected: str, least: float, most: float = float("inf")) -> Reader:
    def read(given: str) -> float:
        require(least <= float(given) <= most)
        return float(given)

    return Reader(expected, read)


def as_text(given: Any) -> str:  # noqa: ANN401
    """The text of a value of TOML."""
    if not isinstance(given, (str, int, float)):
        raise TypeError
    return str(given).lower() if isinstance(given, bool) else str(given)


text = Reader("text", words.read)
texts = Reader("a list of texts", _read_texts)
pairs = Reader("a table of NAME = value", _read_pairs)
days = number(f"a number of days above 0, at most {MOST_DAYS}", 1e-9, MOST_DAYS)


# ---------------------------------------------------------------- settings


def setting(
    description: str,
    read: Reader = text,
    *,
    default: Any = MISSING,  # noqa: ANN401 - as dataclasses.field
    secret: bool = False,
    shown: bool = True,
    environment: Sequence[str] = (),
    key: str | None = None,
) -> Any:  # noqa: ANN401
    """
    Describe one setting, as the field of a dataclass.

    Args:
        description: the help.
        read: reads a text; `texts` and `pairs` also read a list and a table of the file.
        default: the field's default; without one the setting is required.
        secret: never printed, and has no flag.
        shown: whether `repr` has it.
        environment: variables that are read if neither flag nor file has the setting.
        key: for a secret: the setting that names its key in the `secret_scope`.
    """
    metadata = {
        "description": description,
        "read": read,
        "secret": secret,
        "environment": tuple(environment),
        "key": key,
    }
    if read is pairs:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, repr=shown and not secret, metadata=metadata)


def url_setting(description: str, environment: str) -> Any:  # noqa: ANN401
    """Describe a url: it has a flag, but a password in it is never printed."""
    forms = "postgresql://user@host:5432/shop or sqlserver://user@host:1433/shop"
    read = Reader(forms, text.read)
    return setting(f"{description} {forms}", read, shown=False, environment=[environment])


def password_setting(*environment: str, key: str) -> Any:  # noqa: ANN401
    return setting("The password.", default=None, secret=True, environment=environment, key=key)


def credentials_setting(environment: str) -> Any:  # noqa: ANN401
    return setting(
        "What gives the password at each connect: azure, aws or package.module:function.",
        default=None,
        environment=[environment],
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of every job."""

    secret_scope: str | None = setting(
        "On Databricks, the secret scope that holds the password.", default=None
    )
    log_level: str = setting(
        "Level of Spark's log: OFF, FATAL, ERROR, WARN, INFO or DEBUG. All but OFF and FATAL print "
        "stack traces.",
        one_of("OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG"),
        default="FATAL",
    )

    def login(self, side: str = "") -> dict[str, str | None]:
        """The options of the connection, from settings whose names begin with `side`."""
        names = ("url", "user", "password", "credentials")
        return {name: getattr(self, side + name) for name in names}

    def options(self) -> list[SourceOptions | SinkOptions]:
        """The options of what the job will open, validated before Spark starts."""
        return []

    def tables(self) -> dict[str, bool]:
        """The Delta tables that the job uses, and whether each must exist."""
        return {}

    def needs_delta(self) -> bool:
        """Whether Spark must have Delta."""
        return bool(self.tables())

    def frame(self, spark: SparkSession) -> DataFrame | None:  # noqa: ARG002
        """What the job will write, not yet computed; a dry run prints its columns."""
        return None


@dataclass(frozen=True, kw_only=True)
class DatabaseSettings(Settings):
    """The settings of a job on one database."""

    url: str = url_setting("The database.", "SQLQUEUE_URL")
    user: str | None = setting("The login, if it is not in the url.", default=None)
    password: str | None = password_setting("SQLQUEUE_PASSWORD", "PGPASSWORD", key="secret_key")
    secret_key: str | None = setting("The password's key in secret_scope.", default=None)
    credentials: str | None = credentials_setting("SQLQUEUE_CREDENTIALS")


@dataclass(frozen=True, kw_only=True)
class StreamSettings(Settings):
    """The settings of a job that runs a stream."""

    checkpoint: str = setting("The folder of the stream's checkpoint; each job needs its own.")
    trigger: str = setting(
        "availableNow: receive what waits now, and end. A time, for example 10s: run continuously, "
        "with one batch in each interval.",
        Reader("availableNow, or a time, for example 10s", _read_trigger),
        default="availableNow",
    )

    def read(self) -> dict[str, str]:
        """Options of the data source, of a job that receives."""
        raise NotImplementedError


# ---------------------------------------------------------------- reading

S = TypeVar("S", bound=Settings)


def parse_words(doc: str, kind: type[Settings], given: Sequence[str]) -> argparse.Namespace:
    """Read the command line: texts or lists of texts, and flags that nobody knows as `rest`."""
    made = argparse.ArgumentParser(
        usage="%(prog)s [--settings FILE.toml] [--dry-run] [--NAME VALUE ...]",
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
    # those of the job before those of every job
    order = [name for cls in kind.__mro__[:-1] for name in cls.__annotations__]
    for each in sorted(fields(kind), key=lambda each: order.index(each.name)):
        if not each.metadata["secret"]:
            _add(made, each)
    if secrets := [each.name for each in fields(kind) if each.metadata["secret"]]:
        made.epilog = (
            f"Set only in the file, the environment or a secret scope: {', '.join(secrets)}."
        )
    found, found_not = made.parse_known_args(given)
    found.rest = found_not
    return found


def _add(made: argparse.ArgumentParser, each: Field[Any]) -> None:
    described, read, many = each.metadata["description"], each.metadata["read"], dict[str, Any]()
    if each.default not in {MISSING, None, ()}:
        described += f" Default: {as_text(each.default)}."
    if read is pairs:
        many = {"action": "append", "metavar": "NAME=VALUE"}
    elif read is flag:
        many = {"nargs": "?", "const": "true", "metavar": "true|false"}
    made.add_argument(
        name_flag(each.name), dest=each.name, help=described.replace("%", "%%"), **many
    )


def name_flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def load(kind: type[S], found: argparse.Namespace, secret: Callable[[str, str], str]) -> S:
    """
    Fill a job's settings: from flags, then the file, then the environment, then the secret scope.

    Args:
        kind: the job's dataclass.
        found: the result of `parse_words`.
        secret: reads a secret by scope and key.

    Raises:
        BadSettings: one or more settings are wrong; it has a line for each.
    """
    contents = {} if found.settings is None else read_file(found.settings)
    known = [each.name for each in fields(kind)]
    wrong = [
        describe_unknown(f"setting {name} in {found.settings}", name, known)
        for name in contents.keys() - known
    ]
    wrong += [_describe_stray(kind, word) for word in found.rest[:1]]
    values: dict[str, Any] = {}
    for each in fields(kind):
        try:
            if (given := _find(each, found, contents)) is not None:
                values[each.name] = read_value(each, *given)
        except BadSettings as error:
            wrong.append(str(error))
    if wrong:
        raise BadSettings(reason="\n".join(sorted(wrong)))
    for each in fields(kind):
        if each.metadata["secret"] and each.name not in values:
            values[each.name] = _find_secret(each, values, secret)
    return kind(**values)


def read_file(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable("flag --settings", path, error) from None
    except tomllib.TOMLDecodeError as error:
        raise BadSettings(reason=f"{path} is not TOML: {error}") from None


def unreadable(what: str, path: str, error: OSError | UnicodeDecodeError) -> BadSettings:
    """The error for a file that cannot be read."""
    reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
    return BadSettings(reason=f"{what} is {path!r}: expected a file to read ({reason})")


def _find(
    each: Field[Any], found: argparse.Namespace, contents: Mapping[str, Any]
) -> tuple[Any, str] | None:
    """
    The given value of a setting, and where it stands, for an error; None if it has a default.

    Raises:
        BadSettings: it is required, and not given.
    """
    name, variables = each.name, each.metadata["environment"]
    if (given := getattr(found, name, None)) is not None:
        return given, f"flag {name_flag(name)}"
    if name in contents:
        return contents[name], f"setting {name} in {found.settings}"
    for variable in () if each.metadata["secret"] else variables:
        if os.environ.get(variable):
            return os.environ[variable], f"environment variable {variable}"
    if each.default is not MISSING or each.default_factory is not MISSING:
        return None
    read = each.metadata["read"]
    expected = each.metadata["description"] if read is text else read.expected
    other = "".join(f", or environment variable {variable}" for variable in variables)
    raise BadSettings(
        reason=f"setting {name} is missing: give {name_flag(name)}{other}: {expected}"
    )


def read_value(each: Field[Any], given: Any, source: str) -> Any:  # noqa: ANN401
    """Read one value of the file, a flag or the environment."""
    read = each.metadata["read"]
    try:
        if read is texts or read is pairs:
            return read(given)
        require(read is flag or not isinstance(given, bool))
        return read(as_text(given))
    except (ValueError, TypeError, AttributeError):
        shown = HIDDEN if each.metadata["secret"] else repr(blank(each.name, given))
        raise BadSettings(reason=f"{source} is {shown}: expected {read.expected}") from None


def _describe_stray(kind: type[Settings], word: str) -> str:
    """The error text for a flag that is not known, or that is none because it is a secret."""
    flags = {name_flag(each.name): each for each in fields(kind)}
    word = word.partition("=")[0]
    if word in flags:
        places = ", ".join(["the file", *flags[word].metadata["environment"]])
        return (
            f"there is no flag {word}, because other users can see a command line: set it in "
            f"{places} or a secret scope"
        )
    known = [name for name, each in flags.items() if not each.metadata["secret"]]
    return describe_unknown(f"flag {word}", word, [*known, "--settings", "--dry-run"])


def _find_secret(
    each: Field[Any], values: Mapping[str, Any], secret: Callable[[str, str], str]
) -> str | None:
    """
    Read a secret from the environment, or else from the secret scope.

    A password in the url takes precedence, and so does the setting `credentials`. PGPASSWORD
    is used only for PostgreSQL.
    """
    url = values[each.name.replace("password", "url")]
    if values.get(each.name.replace("password", "credentials")) or hide_secrets(url) != url:
        return None
    others = other_password_variables(url)
    for variable in each.metadata["environment"]:
        if os.environ.get(variable) and variable not in others:
            return os.environ[variable]
    scope, key = values.get("secret_scope"), values.get(each.metadata["key"])
    return secret(scope, key) if scope and key else None


# ---------------------------------------------------------------- printing


def without_secrets(settings: Settings) -> dict[str, Any]:
    """All settings, with secrets blanked."""
    return {each.name: blank(each.name, getattr(settings, each.name)) for each in fields(settings)}


def blank(name: str, given: Any) -> Any:  # noqa: ANN401
    """Blank a password in a value: in a url, or in a table."""
    if isinstance(given, dict):
        return {key: blank(key, each) for key, each in given.items()}
    if isinstance(given, (list, tuple)):
        return type(given)(blank(name, each) for each in given)
    if given is not None and "password" in name.lower():
        return HIDDEN
    return hide_secrets(given) if isinstance(given, str) and "://" in given else given


def describe_unknown(what: str, name: str, known: Sequence[str]) -> str:
    """The error text for a name that is not known."""
    near = find_near(name, known, likely=0.6)
    return f"{what} is not known: " + (
        f"did you mean {near}?" if near else f"expected one of {', '.join(known)}"
    )


# ---------------------------------------------------------------- the data source's options


def raw_options(
    kind: type[DatabaseOptions], given: Mapping[str, str], **own: str | bool | None
) -> dict[str, str]:
    """
    The options of the data source: those of the job, and those of its table `[source]` or `[sink]`.

    Args:
        kind: whose options.
        given: the table; it may set any option that the job does not set.
        own: by public name; None is left out.

    Returns:
        Texts for Spark's `.options(…)` and for `kind.parse`.

    Raises:
        BadInput: an option is not known, is set by the job, or has a bad value.
    """
    title = "sink" if kind is SinkOptions else "source"
    known = option_names(kind)
    known.pop("checkpointlocation", None)
    ours = {name.lower() for name in own} | {"url", "user", "password", "credentials"}
    for name in given:
        if name.lower() in ours:
            raise BadSettings(
                reason=f"setting {name} in [{title}] is set by the job: use the job's own settings "
                "instead"
            )
        if name.lower() not in known:
            free = sorted(known[lower] for lower in known.keys() - ours)
            raise BadSettings(reason=describe_unknown(f"setting {name} in [{title}]", name, free))
    raw = {name: as_text(each) for name, each in own.items() if each is not None}
    raw |= {known[name.lower()]: each for name, each in given.items()}
    kind.parse(raw)
    return raw
