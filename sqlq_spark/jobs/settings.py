"""
Reads the settings of a job from flags, a TOML file and the environment into a frozen dataclass.

`setting` describes a field by its help and its Reader (options/fields.py). A flag overrides the
file. All errors are reported together, each with the setting's name, what was found and what was
expected. Secrets have no flag, because other users can see a command line.

For a job with two databases, users write flat names, for example `source_url` and `target_url`. The
job's dataclass has two fields of the type DatabaseSettings instead.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlq_spark.errors import BadInput, clean
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.connection import CHECKPOINT
from sqlq_spark.options.fields import (
    Reader,
    duration,
    find_near,
    one_of,
    option_names,
    require,
    size,
    words,
)
from sqlq_spark.options.names import (
    EXAMPLES,
    HIDDEN,
    PASSWORD_VARIABLES,
    describe_url,
    hide_secrets,
    other_password_variables,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

S = TypeVar("S", bound="Settings")
Opened = list[SourceOptions | SinkOptions]

MOST_DAYS = 36_500  # the longest retention
ALL_BODIES = 2**31 - 1  # no body of a message is larger
LOGIN_OPTIONS = ("url", "user", "password", "credentials")


class BadSettings(BadInput):
    """Settings of a job cannot be used. The message has one line for each wrong setting."""

    reason: str

    def describe(self, spelled: Mapping[str, str]) -> str:  # noqa: ARG002 - it names no option
        """Return the text. Its line breaks are this package's own, so they stay."""
        return "\n".join(map(clean, str(self.reason).splitlines()))


# ---------------------------------------------------------------- readers


def _read_texts(given: str) -> tuple[str, ...]:
    return tuple(text(each.strip()) for each in given.split(","))


def _read_pairs(given: Any) -> dict[str, str]:  # noqa: ANN401
    """Read pairs: a table of the file, or a list of NAME=VALUE from repeated flags."""
    if isinstance(given, list):
        given = dict(each.split("=", 1) for each in given)
    return {name: text(as_text(each)) for name, each in given.items()}


def _read_trigger(given: str) -> str:
    """Return a trigger as Spark spells it."""
    if given.lower() == "availablenow":
        return "availableNow"
    return f"{round(duration(0)(given) * 1000)} milliseconds"


def _read_days(given: str) -> float:
    require(0 < float(given) <= MOST_DAYS)
    return float(given)


def _read_body_limit(given: str) -> int:
    limits = {"all": ALL_BODIES, "none": 0}
    found = limits.get(given.lower())
    return int(size(given)) if found is None else found


def as_text(given: Any) -> str:  # noqa: ANN401
    """Return a value of TOML as text."""
    if not isinstance(given, (str, int, float)):
        raise TypeError
    return str(given).lower() if isinstance(given, bool) else str(given)


text = Reader("text", words.read)
texts = Reader("texts, separated by commas", _read_texts)
pairs = Reader("a table of NAME = value", _read_pairs)
body_limits = Reader("all, none, or a size in bytes, for example 64k", _read_body_limit)
days = Reader(f"a number of days above 0, at most {MOST_DAYS}", _read_days)


# ---------------------------------------------------------------- settings


def setting(
    description: str,
    read: Reader = text,
    *,
    default: Any = MISSING,  # noqa: ANN401 - as dataclasses.field
    environment: str = "",
    former: str = "",
) -> Any:  # noqa: ANN401
    """
    Describe one setting, as the field of a dataclass.

    Args:
        description: the help text.
        read: makes the value of a text. Only `pairs` reads a table of the file.
        default: the field's default. If it is not given, the setting is required.
        environment: names of variables, separated by spaces. They are read if neither a flag nor
            the file has the setting.
        former: the setting's name in earlier versions. An error for this name says the new one.
    """
    metadata = {
        "description": description,
        "read": read,
        "environment": tuple(environment.split()),
        "former": former,
    }
    if read is pairs:
        return field(default_factory=dict, metadata=metadata)
    # A setting with variables is a url or a password, so the repr must not have it.
    return field(default=default, repr=not environment, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class DatabaseSettings:
    """The settings of one database: its url and the login."""

    url: str = setting(f"The database: {EXAMPLES}.", environment="SQLQUEUE_URL")
    user: str | None = setting("The login, if it is not in the url.", default=None)
    secret_key: str | None = setting("The password's key in secret_scope.", default=None)
    credentials: str | None = setting(
        "What gives the password at each connect: azure, aws or package.module:function.",
        default=None,
        environment="SQLQUEUE_CREDENTIALS",
    )
    trusted_owners: str | None = setting(
        "Roles whose tables are used, separated by commas.", default=None
    )
    password: str | None = setting(
        "The password.",
        default=None,
        environment=" ".join(["SQLQUEUE_PASSWORD", *PASSWORD_VARIABLES]),
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

    def raw_options(
        self, title: str, database: DatabaseSettings, **own: str | bool | None
    ) -> dict[str, str]:
        """
        Return options of the data source: of the login, of the job, and of a table of the file.

        Args:
            title: the name of the table of the file, `source` or `sink`. The table may set any
                option that the job does not set.
            database: the settings of the database that is read or written.
            own: options that the job sets, by public name. An option that is None is left out.

        Returns:
            Texts for Spark's `.options(…)` and for `parse`.

        Raises:
            BadSettings: an option is not known, or is set by the job.
        """
        own |= {name: getattr(database, name) for name in LOGIN_OPTIONS}
        own["trustedOwners"] = database.trusted_owners
        ours = {CHECKPOINT, *map(str.lower, own)}
        raw: dict[str, str] = {}
        known = option_names(SinkOptions if title == "sink" else SourceOptions)
        for name, text in getattr(self, title).items():
            what = f"setting {name} in [{title}]"
            if name.lower() in ours:
                raise BadSettings(
                    reason=f"{what} is set by the job: use the job's own settings instead"
                )
            if name.lower() not in known:
                raise BadSettings(reason=describe_unknown(what, name, sorted(known.values())))
            raw[known[name.lower()]] = text
        return raw | {name: as_text(each) for name, each in own.items() if each is not None}

    def options(self) -> Opened:
        """Return the options of each read and write. They are validated before Spark starts."""
        return []

    def needs_table(self) -> bool:
        """Return whether the setting `table` names a table that must exist."""
        return False

    def needs_delta(self) -> bool:
        """Return whether Spark must have Delta."""
        return True

    def frame(self, spark: SparkSession) -> DataFrame | None:  # noqa: ARG002
        """Return what the job will write, not yet computed. A dry run prints its columns."""
        return None


@dataclass(frozen=True, kw_only=True)
class OneDatabaseSettings(DatabaseSettings, Settings):
    """The settings of a job on one database."""


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
        """Return options of the data source, for a job that receives."""
        raise NotImplementedError

    def options(self) -> Opened:
        return [SourceOptions.parse(self.read())]


# ---------------------------------------------------------------- settings as users write them


@dataclass(frozen=True, kw_only=True)
class NamedSetting:
    """A setting as a user writes it, and the field that holds its value."""

    name: str
    description: str
    read: Reader
    environment: tuple[str, ...]
    default: Any
    is_required: bool
    field: str
    former: str = ""  # its name in earlier versions
    holder: str = ""  # the field of the type DatabaseSettings that has `field`; "" if there is none


def settings_of(kind: type[Settings]) -> list[NamedSetting]:
    """
    List a job's settings by the names that users write.

    A field `source_database` of the type DatabaseSettings holds the settings `source_…`.
    """
    named = []
    for one in fields(kind):
        if one.type != DatabaseSettings.__name__:
            named.append(name_setting(one))
        else:
            side = one.name.removesuffix("_database")
            named += [
                name_setting(inner, side=side, holder=one.name)
                for inner in fields(DatabaseSettings)
            ]
    return named


def name_setting(one: Field[Any], *, side: str = "", holder: str = "") -> NamedSetting:
    """
    Return the setting of a field. `side` is `source` or `target` if the job has two databases.

    Variables of a database's own tools, for example PGPASSWORD, do not say which of two databases
    they mean. So a job with two databases reads only variables of this package, for example
    SQLQUEUE_SOURCE_URL.
    """
    description = one.metadata["description"]
    environment = one.metadata["environment"]
    if side:
        description = f"Of the {side}: {description}"
        ours = [variable for variable in environment if variable.startswith("SQLQUEUE")]
        environment = tuple(variable.replace("_", f"_{side.upper()}_") for variable in ours)
    return NamedSetting(
        name=f"{side}_{one.name}" if side else one.name,
        description=description,
        read=one.metadata["read"],
        environment=environment,
        default=one.default,
        is_required=one.default is MISSING and one.default_factory is MISSING,
        field=one.name,
        former=one.metadata["former"],
        holder=holder,
    )


def make_settings(kind: type[S], values: Mapping[str, Any]) -> S:
    """Make the settings of a job. `values` has their values by the names that users write."""
    own: dict[str, Any] = dict(values)
    databases: dict[str, dict[str, Any]] = {}
    for named in settings_of(kind):
        if named.holder:
            given = databases.setdefault(named.holder, {})
            if named.name in own:
                given[named.field] = own.pop(named.name)
    for holder, given in databases.items():
        own[holder] = DatabaseSettings(**given)
    return kind(**own)


def values_of(settings: Settings) -> dict[str, Any]:
    """Return the values of a job's settings by the names that users write."""
    values = {}
    for named in settings_of(type(settings)):
        holder = getattr(settings, named.holder) if named.holder else settings
        values[named.name] = getattr(holder, named.field)
    return values


# ---------------------------------------------------------------- reading


def load_settings(doc: str | None, kind: type[S], given: Sequence[str]) -> tuple[S, bool]:
    """
    Read a job's settings from flags, the file, the environment or the secret scope, in this order.

    Args:
        doc: the job's help.
        kind: the job's dataclass.
        given: the command line.

    Returns:
        The settings, and whether this is a dry run.

    Raises:
        BadSettings: one or more settings are wrong. The error has a line for each.
    """
    parser = make_parser(doc, kind)
    file: dict[str, Any] = {}
    line, strays = parser.parse_known_args(given)
    if line.settings is not None:
        try:
            file = tomllib.loads(Path(line.settings).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:  # missing, or not UTF-8, or not TOML
            reason = f"flag --settings is {line.settings!r}: expected a TOML file ({error})"
            raise BadSettings(reason=reason) from None
    settings = settings_of(kind)
    known = [named.name for named in settings]
    former = {named.former: named.name for named in settings if named.former}
    wrong = [
        describe_unknown(f"setting {name} in {line.settings}", name, known, former)
        for name in file.keys() - known
    ]
    if strays:
        word = strays[0].partition("=")[0]
        flags = [flag_of(name) for name in vars(line)]
        renamed = {flag_of(old): flag_of(new) for old, new in former.items()}
        unknown = describe_unknown(f"flag {word}", word, flags, renamed)
        wrong.append(f"{unknown} ({parser.epilog})")
    values: dict[str, Any] = {}
    for named in settings:
        try:
            values |= find_value(named, line, file, values)
        except BadSettings as error:
            wrong.append(str(error))
    if wrong:
        raise BadSettings(reason="\n".join(sorted(wrong)))
    return make_settings(kind, values), line.dry_run


def make_parser(doc: str | None, kind: type[Settings]) -> argparse.ArgumentParser:
    """Make a parser of flags. A value is a text, or a list of texts if a flag may be repeated."""
    settings = settings_of(kind)
    secrets = [named.name for named in settings if named.name.endswith("password")]
    parser = argparse.ArgumentParser(
        usage="%(prog)s [--settings FILE.toml] [--dry-run] [--NAME VALUE ...]",
        description=doc,
        epilog=f"Set only in the file, the environment or a secret scope: {', '.join(secrets)}.",
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
    for named in settings:
        described = named.description
        if named.default not in {MISSING, None, ()}:
            described += f" Default: {as_text(named.default)}."
        if named.name not in secrets:
            parser.add_argument(
                flag_of(named.name),
                action="append" if named.read is pairs else "store",  # NAME=VALUE
                help=described.replace("%", "%%"),
            )
    return parser


def find_value(
    setting: NamedSetting,
    line: argparse.Namespace,
    file: Mapping[str, Any],
    values: Mapping[str, Any],
) -> dict[str, Any]:
    """
    Find a setting in the first place that has it, and read it.

    A password in the url takes precedence over the environment and the secret scope, and so does
    the setting `credentials`. A variable of one database's tools, for example PGPASSWORD, is used
    only for that database.

    Returns:
        The value by the setting's name; {} if no place has the setting, so that its default holds.

    Raises:
        BadSettings: the text cannot be read. Or no place has the setting, and it has no default.
    """
    name = setting.name
    flag = flag_of(name)
    # What else may give the password: for the setting `source_password`, the values of source_url,
    # source_credentials and source_secret_key. For a setting without `password` in its name these
    # are empty: `replace` then returns the same name, and `values` does not have this setting yet.
    url, credentials, key = (
        values.get(name.replace("password", other), "")
        for other in ("url", "credentials", "secret_key")
    )
    has_password = bool(credentials or hide_secrets(url) != url)
    others = other_password_variables(url)
    variables = [
        variable for variable in setting.environment if not has_password and variable not in others
    ]
    places = [
        (getattr(line, name, None), f"flag {flag}"),
        (file.get(name), f"setting {name} in {line.settings}"),
        *((os.environ.get(each) or None, f"environment variable {each}") for each in variables),
    ]
    for given, place in places:
        if given is not None:
            return {name: read_value(setting, given, place)}
    if key and not has_password and "secret_scope" in values:
        return {name: secret(values["secret_scope"], key)}
    if setting.is_required:
        other = "".join(f", or environment variable {variable}" for variable in variables)
        expected = setting.description if setting.read is text else setting.read.expected
        raise BadSettings(reason=f"setting {name} is missing: give {flag}{other}: {expected}")
    return {}


def read_value(setting: NamedSetting, given: Any, place: str) -> Any:  # noqa: ANN401
    """Read the value that a place has for a setting. Raises BadSettings."""
    try:
        readable: Any = given if isinstance(given, (list, dict)) else as_text(given)
        return setting.read(readable)
    except (ValueError, TypeError, AttributeError):
        shown = show_value(setting.name, given)
        reason = f"{place} is {shown}: expected {setting.read.expected}"
        raise BadSettings(reason=reason) from None


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


def show_value(name: str, given: Any) -> str:  # noqa: ANN401
    """Return a value as text without passwords. They may be in a url, a list or a table."""
    shown = repr(_without_urls(name, given))
    hidden = given is not None and ("password" in name or "password':" in shown.lower())
    return HIDDEN if hidden else hide_secrets(shown)


def _without_urls(name: str, given: Any) -> Any:  # noqa: ANN401
    """Return a value in which `describe_url` has replaced each url, so that no password is left."""
    match given:
        case str() if name.lower() == "url" or "://" in given:
            return describe_url(given)
        case dict():
            return {key: _without_urls(str(key), value) for key, value in given.items()}
        case list() | tuple():
            return [_without_urls(name, each) for each in given]
    return given


def flag_of(name: str) -> str:
    """Return the flag of a setting."""
    return f"--{name.replace('_', '-')}"


def describe_unknown(
    what: str, name: str, known: Sequence[str], former: Mapping[str, str] | None = None
) -> str:
    """Return the error's text for a name that is not known. `former` is old name → new name."""
    if former and name in former:
        return f"{what} is not known: it is now called {former[name]}"
    near = find_near(name, known, likely=0.6)
    expected = f"did you mean {near}?" if near else f"expected one of {', '.join(known)}"
    return f"{what} is not known: {expected}"
