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
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlq_spark.errors import BadInput
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.connection import CHECKPOINT
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
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from sqlq_spark.options.connection import DatabaseOptions

S = TypeVar("S", bound="Settings")

MOST_DAYS = 36_500  # of a retention


class BadSettings(BadInput):
    """Settings of a job cannot be used; the message has one line for each."""


# ---------------------------------------------------------------- readers


def _read_texts(given: Any) -> tuple[str, ...]:  # noqa: ANN401
    """Read a list of the file, or a text with commas."""
    items = given.split(",") if isinstance(given, str) else given
    return tuple(text(as_text(each).strip()) for each in items)


def _read_pairs(given: Any) -> dict[str, str]:  # noqa: ANN401
    """Read a table of the file, or the NAME=VALUE of repeated flags."""
    if isinstance(given, list):
        given = dict(each.split("=", 1) for each in given)
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
# it has a flag, but a password in it is never printed
database_url = Reader(
    "postgresql://user@host:5432/shop or sqlserver://user@host:1433/shop", words.read
)


# ---------------------------------------------------------------- settings


def setting(
    description: str,
    read: Reader = text,
    *,
    default: Any = MISSING,  # noqa: ANN401 - as dataclasses.field
    secret: bool = False,
    environment: str = "",
) -> Any:  # noqa: ANN401
    """
    Describe one setting, as the field of a dataclass.

    Args:
        description: the help.
        read: reads a text; `texts` and `pairs` also read a list and a table of the file.
        default: the field's default; without one the setting is required.
        secret: a password: never printed, and has no flag.
        environment: variables that are read if neither flag nor file has the setting.
    """
    metadata = {
        "description": description,
        "read": read,
        "secret": secret,
        "environment": tuple(environment.split()),
    }
    if read is pairs:
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, repr=not secret and read is not database_url, metadata=metadata)


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

    url: str = setting(
        f"The database. {database_url.expected}", database_url, environment="SQLQUEUE_URL"
    )
    user: str | None = setting("The login, if it is not in the url.", default=None)
    secret_key: str | None = setting("The password's key in secret_scope.", default=None)
    credentials: str | None = setting(
        "What gives the password at each connect: azure, aws or package.module:function.",
        default=None,
        environment="SQLQUEUE_CREDENTIALS",
    )
    password: str | None = setting(
        "The password.", default=None, secret=True, environment="SQLQUEUE_PASSWORD PGPASSWORD"
    )


def with_two_databases(kind: type[S]) -> type[S]:
    """Add the settings of two databases, as `source_url` or `target_url`, to a job's own."""
    for side, name in product(("source", "target"), DatabaseSettings.__annotations__):
        one = DatabaseSettings.__dataclass_fields__[name]
        variables = [each for each in one.metadata["environment"] if each.startswith("SQLQUEUE")]
        more = {
            "description": f"Of the {side}: {one.metadata['description']}",
            "environment": tuple(each.replace("_", f"_{side.upper()}_") for each in variables),
        }
        made = field(default=one.default, repr=one.repr, metadata=one.metadata | more)
        setattr(kind, f"{side}_{name}", made)
        kind.__annotations__[f"{side}_{name}"] = one.type
    return kind


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


def load(doc: str, kind: type[S], given: Sequence[str]) -> tuple[S, bool]:
    """
    Read a job's settings: from flags, then the file, then the environment, then the secret scope.

    Args:
        doc: the job's help.
        kind: the job's dataclass.
        given: the command line.

    Returns:
        The settings, and whether this is a dry run.

    Raises:
        BadSettings: one or more settings are wrong; it has a line for each.
    """
    parser = make_parser(doc, kind)
    line, strays = parser.parse_known_args(given)
    file = {} if line.settings is None else read_file(line.settings)
    known = [each.name for each in fields(kind)]
    wrong = [
        describe_unknown(f"setting {name} in {line.settings}", name, known)
        for name in file.keys() - known
    ]
    if strays:
        word = strays[0].partition("=")[0]
        flags = [name_flag(name) for name in vars(line)]
        wrong.append(f"{describe_unknown(f'flag {word}', word, flags)} ({parser.epilog})")
    values: dict[str, Any] = {}
    for each in fields(kind):
        try:
            for found, place in list_places(each, line, file, values):
                if found is not None:
                    values[each.name] = read_value(each, found, place)
                    break
        except BadSettings as error:
            wrong.append(str(error))
    if wrong:
        raise BadSettings(reason="\n".join(sorted(wrong)))
    return kind(**values), line.dry_run


def make_parser(doc: str, kind: type[Settings]) -> argparse.ArgumentParser:
    """Make a parser that reads texts, or lists of texts of repeated flags."""
    secrets = ", ".join(each.name for each in fields(kind) if each.metadata["secret"])
    parser = argparse.ArgumentParser(
        usage="%(prog)s [--settings FILE.toml] [--dry-run] [--NAME VALUE ...]",
        description=doc.strip(),
        epilog=f"Set only in the file, the environment or a secret scope: {secrets}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--settings", metavar="FILE.toml", help="Settings; a flag overrides the file."
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="Print what would be done, and check it; change nothing.",
    )
    # those of the job before those of every job
    order = [name for cls in kind.__mro__[:-1] for name in cls.__annotations__]
    for each in sorted(fields(kind), key=lambda each: order.index(each.name)):
        read, described = each.metadata["read"], each.metadata["description"]
        if each.default not in {MISSING, None, (), ""}:
            described += f" Default: {as_text(each.default)}."
        more: dict[str, Any] = {"help": described.replace("%", "%%")}
        if read is pairs:
            more |= {"action": "append", "metavar": "NAME=VALUE"}
        elif read is flag:
            more |= {"nargs": "?", "const": "true", "metavar": "true|false"}
        if not each.metadata["secret"]:
            parser.add_argument(name_flag(each.name), **more)
    return parser


def name_flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def read_file(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # not there, not UTF-8, not TOML
        reason = f"flag --settings is {path!r}: expected a TOML file ({error})"
        raise BadSettings(reason=reason) from None


def list_places(
    each: Field[Any],
    line: argparse.Namespace,
    file: Mapping[str, Any],
    values: Mapping[str, Any],
) -> Iterator[tuple[Any, str]]:
    """
    List where a setting may be given, with its value there or None. The first value counts.

    A password in the url takes precedence over the environment and the secret scope, and so does
    the setting `credentials`. PGPASSWORD is used only for PostgreSQL.

    Raises:
        BadSettings: a setting without a default has no value.
    """
    name, read, variables = each.name, each.metadata["read"], each.metadata["environment"]
    yield getattr(line, name, None), f"flag {name_flag(name)}"
    yield file.get(name), f"setting {name} in {line.settings}"
    # of the same login, if this setting is a password; else there are none yet
    url, credentials, key = (
        values.get(name.replace("password", other), "")
        for other in ("url", "credentials", "secret_key")
    )
    if credentials or hide_secrets(url) != url:
        return
    for variable in variables:
        if variable not in other_password_variables(url):
            yield os.environ.get(variable) or None, f"environment variable {variable}"
    if key and "secret_scope" in values:
        yield secret(values["secret_scope"], key), f"secret {key}"
    if each.default is MISSING and each.default_factory is MISSING:
        other = "".join(f", or environment variable {variable}" for variable in variables)
        expected = each.metadata["description"] if read is text else read.expected
        raise BadSettings(
            reason=f"setting {name} is missing: give {name_flag(name)}{other}: {expected}"
        )


def secret(scope: str, key: str) -> str:
    """
    Read a secret of Databricks.

    Raises:
        BadSettings: this is not Databricks.
    """
    try:
        from pyspark.dbutils import DBUtils  # type: ignore[import-not-found]  # noqa: PLC0415
    except ImportError:
        raise BadSettings(
            reason=f"setting secret_scope is {scope!r}: expected none outside Databricks; "
            "set the password in the environment variable SQLQUEUE_PASSWORD"
        ) from None
    from pyspark.sql import SparkSession  # noqa: PLC0415

    found: str = DBUtils(SparkSession.builder.getOrCreate()).secrets.get(scope=scope, key=key)
    return found


def read_value(each: Field[Any], given: Any, place: str) -> Any:  # noqa: ANN401
    """Read one value of the file, a flag or the environment."""
    read = each.metadata["read"]
    try:
        return read(given if isinstance(given, (list, dict)) else as_text(given))
    except (ValueError, TypeError, AttributeError):
        reason = f"{place} is {blank(each.name, given)!r}: expected {read.expected}"
        raise BadSettings(reason=reason) from None


def blank(name: str, given: Any) -> Any:  # noqa: ANN401
    """Blank passwords in a value: in a url, in a list, in a table."""
    if given is not None and "password" in name.lower():
        return HIDDEN
    if isinstance(given, dict):
        return {key: blank(key, each) for key, each in given.items()}
    if isinstance(given, (list, tuple)):
        return [blank(name, each) for each in given]
    return hide_secrets(given) if isinstance(given, str) and "://" in given else given


def describe_unknown(what: str, name: str, known: Sequence[str]) -> str:
    """The error text for a name that is not known."""
    near = find_near(name, known, likely=0.6)
    expected = f"did you mean {near}?" if near else f"expected one of {', '.join(known)}"
    return f"{what} is not known: {expected}"


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
    ours = {CHECKPOINT, *map(str.lower, own)}
    free = {lower: name for lower, name in option_names(kind).items() if lower not in ours}
    for name in given:
        what = f"setting {name} in [{title}]"
        if name.lower() in ours:
            raise BadSettings(
                reason=f"{what} is set by the job: use the job's own settings instead"
            )
        if name.lower() not in free:
            raise BadSettings(reason=describe_unknown(what, name, sorted(free.values())))
    raw = {name: as_text(each) for name, each in own.items() if each is not None}
    raw |= {free[name.lower()]: each for name, each in given.items()}
    kind.parse(raw)
    return raw
