"""
A job's settings: a frozen dataclass, filled from a TOML file, flags and the environment.

`setting` describes a field: its help, how to read it, and what is expected. The annotation is the
type: `str`, `int`, `float`, `bool`, each also `| None`, `tuple[str, ...]`, and `dict[str, str]`,
which is a table of the file. A flag overrides the file. All errors are reported together, each with
the setting's name, what was found and what was expected. Secrets have no flag, because other users
can see a command line.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from sqlq_spark.errors import BadInput
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.fields import duration, find_near, one_of, option_fields
from sqlq_spark.options.names import HIDDEN, hide_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from sqlq_spark.options.connection import DatabaseOptions

LEVELS = ("OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG")


class BadSettings(BadInput):
    """Settings of a job cannot be used; the message has one line for each."""


def setting(
    description: str,
    *,
    default: Any = MISSING,  # noqa: ANN401 - as dataclasses.field
    read: Callable[[str], Any] | None = None,
    expected: str | None = None,
    secret: bool = False,
    shown: bool = True,
    environment: Sequence[str] = (),
    key: str | None = None,
) -> Any:  # noqa: ANN401
    """
    Describe one setting, as the field of a dataclass.

    Args:
        description: the help.
        default: the field's default; without one the setting is required.
        read: parses a text, and raises ValueError; for example a reader of options/fields.py.
        expected: what an error says was expected.
        secret: never printed, and has no flag.
        shown: whether `repr` has it.
        environment: variables that are read if neither flag nor file has the setting.
        key: for a secret: the setting that names its key in the `secret_scope`.
    """
    metadata = {
        "description": description,
        "read": read,
        "expected": expected,
        "secret": secret,
        "environment": tuple(environment),
        "key": key,
    }
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, repr=shown and not secret, metadata=metadata)


def database_url(description: str = "The database.", *, environment: str = "SQLQUEUE_URL") -> Any:  # noqa: ANN401
    """Describe a url: it has a flag, but a password in it is never printed."""
    forms = "postgresql://user@host:5432/shop or sqlserver://user@host:1433/shop"
    return setting(f"{description} {forms}", expected=forms, shown=False, environment=[environment])


def credentials_setting(*, environment: str = "SQLQUEUE_CREDENTIALS") -> Any:  # noqa: ANN401
    """Describe what gives the password at each connect, instead of a password."""
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
        default="FATAL",
        read=one_of(*LEVELS),
        expected=", ".join(LEVELS),
    )

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

    url: str = database_url()
    user: str | None = setting("The login, if it is not in the url.", default=None)
    password: str | None = setting(
        "The password; better set in SQLQUEUE_PASSWORD, PGPASSWORD or a secret scope.",
        default=None,
        secret=True,
        environment=("SQLQUEUE_PASSWORD", "PGPASSWORD"),
        key="secret_key",
    )
    secret_key: str | None = setting("The password's key in secret_scope.", default=None)
    credentials: str | None = credentials_setting()

    @property
    def login(self) -> dict[str, str | None]:
        """The options of the connection."""
        return {
            "url": self.url,
            "user": self.user,
            "password": self.password,
            "credentials": self.credentials,
        }


# settings of a stream


def trigger() -> Any:  # noqa: ANN401
    """Describe when a stream's micro-batches run."""

    def read(text: str) -> str:
        if text.lower() != "availablenow":
            duration(0)(text)
            return text
        return "availableNow"

    return setting(
        "availableNow: receive what waits now, and end. A time, for example 10s: run continuously, "
        "with one batch in each interval.",
        default="availableNow",
        read=read,
        expected="availableNow, or a time, for example 10s",
    )


def checkpoint() -> Any:  # noqa: ANN401
    """Describe the folder of a stream's checkpoint."""
    return setting("The folder of the stream's checkpoint; each job needs its own.")


# ---------------------------------------------------------------- printing


def without_secrets(settings: Settings) -> dict[str, Any]:
    """All settings, with secrets blanked."""
    return {
        each.name: HIDDEN
        if each.metadata["secret"] and getattr(settings, each.name) is not None
        else blank(each.name, getattr(settings, each.name))
        for each in fields(settings)
    }


def blank(name: str, given: Any) -> Any:  # noqa: ANN401
    """Blank a password in a value: in a url, or in a table."""
    if isinstance(given, dict):
        return {key: blank(key, each) for key, each in given.items()}
    if isinstance(given, (list, tuple)):
        return type(given)(blank(name, each) for each in given)
    if given is not None and ("password" in name.lower() or "secret_value" in name.lower()):
        return HIDDEN
    if isinstance(given, str) and "://" in given:
        return hide_secrets(given)
    return given


# ---------------------------------------------------------------- the data source's options

Options = TypeVar("Options", SourceOptions, SinkOptions)


def raw_options(
    kind: type[DatabaseOptions], table: Mapping[str, str], **own: str | float | None
) -> dict[str, str]:
    """
    The options of the data source: those of the job, and those of its table `[source]` or `[sink]`.

    Args:
        kind: whose options.
        table: as in the file; it may set any option that the job does not set.
        own: by public name; None is left out.

    Returns:
        Texts for Spark's `.options(…)` and for `kind.parse`.

    Raises:
        BadInput: an option is not known, is set by the job, or has a bad value.
    """
    title = "sink" if kind is SinkOptions else "source"
    known = {each.metadata["option"] for each in option_fields(kind)} - {"checkpointLocation"}
    lower = {each.lower(): each for each in known}
    ours = {name.lower() for name in own} | {"url", "user", "password", "credentials"}
    free = sorted(name for name in known if name.lower() not in ours)
    for name in table:
        if name.lower() in ours:
            raise BadSettings(
                reason=f"setting {name} in [{title}] is set by the job: use the job's own settings "
                "instead"
            )
        if name.lower() not in lower:
            raise BadSettings(reason=unknown(f"setting {name} in [{title}]", name, free))
    given = {name: _as_text(each) for name, each in own.items() if each is not None}
    raw = given | {lower[name.lower()]: text for name, text in table.items()}
    kind.parse(raw)
    return raw


def _as_text(each: str | float) -> str:
    return str(each).lower() if isinstance(each, bool) else str(each)


def unknown(what: str, name: str, known: Sequence[str]) -> str:
    """The error text for a name that is not known."""
    near = find_near(name, known, likely=0.6)
    return f"{what} is not known: " + (
        f"did you mean {near}?" if near else f"expected one of {', '.join(known)}"
    )
