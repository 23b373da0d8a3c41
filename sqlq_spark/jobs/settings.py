"""
A job's settings: a frozen dataclass, filled from a TOML file, flags and the environment.

A field says its help, how to read it and what would do, by `setting`; its annotation is its type:
`str`, `int`, `float`, `bool`, each also `| None`, `tuple[str, ...]`, and `dict[str, str]`, which is
a table of the file. A flag wins over the file. All that is wrong is told at once, each with its
name, what was found and what would do. No secret has a flag, for everyone sees a command line.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from sqlq_spark.errors import BadInput
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.fields import option_fields
from sqlq_spark.options.login import encoded
from sqlq_spark.options.parse import duration, one_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from sqlq_spark.options.connection import DatabaseOptions

LEVELS = ("OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG")
BLANK = "***"
# parameters of a url whose values are secrets, as they are and as part of a longer name
SECRET = "|".join(map(encoded, ("password", "pwd", "secret", "scram_client_key")))
SECRETS = re.compile(rf"(?i)((?:{SECRET})\s*=)[^&]*")


class BadSettings(BadInput):
    """Settings of a job cannot be used; one line for each."""


def setting(
    told: str,
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
        told: the help.
        default: as it is in the dataclass; without one the setting must be given.
        read: text → value, raises ValueError; the readers of `options.parse` fit.
        expected: what would do, for an error.
        secret: never printed, and no flag.
        shown: whether `repr` has it.
        environment: variables that hold it where neither flag nor file does.
        key: of a secret: the name of the setting that holds its key in the `secret_scope`.
    """
    metadata = {
        "told": told,
        "read": read,
        "expected": expected,
        "secret": secret,
        "environment": tuple(environment),
        "key": key,
    }
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, repr=shown and not secret, metadata=metadata)


def database_url(told: str = "The database.", *, environment: str = "SQLQUEUE_URL") -> Any:  # noqa: ANN401
    """Describe a url: a flag, but blanked where it is shown, for it may hold a password."""
    forms = "postgresql://user@host:5432/shop or sqlserver://user@host:1433/shop"
    return setting(f"{told} {forms}", expected=forms, shown=False, environment=[environment])


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every job takes."""

    secret_scope: str | None = setting(
        "On Databricks, the secret scope that holds the password.", default=None
    )
    log_level: str = setting(
        "Of Spark's log: OFF, FATAL, ERROR, WARN, INFO or DEBUG; from ERROR on with stack traces.",
        default="FATAL",
        read=one_of(*LEVELS),
        expected=", ".join(LEVELS),
    )

    def options(self) -> list[SourceOptions | SinkOptions]:
        """What the job will open, validated; asked before Spark starts, and by a dry run."""
        return []

    def tables(self) -> dict[str, bool]:
        """The Delta tables that the job uses, and which of them must be there."""
        return {}

    def needs_delta(self) -> bool:
        """Whether Spark must have Delta."""
        return bool(self.tables())

    def frame(self, spark: SparkSession) -> DataFrame | None:  # noqa: ARG002
        """What the job will write, not yet computed; a dry run tells its columns."""
        return None


@dataclass(frozen=True, kw_only=True)
class DatabaseSettings(Settings):
    """What a job on one database takes."""

    url: str = database_url()
    user: str | None = setting("Beside the url.", default=None)
    password: str | None = setting(
        "Beside the url; better in SQLQUEUE_PASSWORD, PGPASSWORD or a secret scope.",
        default=None,
        secret=True,
        environment=("SQLQUEUE_PASSWORD", "PGPASSWORD"),
        key="secret_key",
    )
    secret_key: str | None = setting("The password's key in secret_scope.", default=None)

    @property
    def login(self) -> dict[str, str | None]:
        """The options that lead to the database."""
        return {"url": self.url, "user": self.user, "password": self.password}


# how a stream is driven, as fields of a job's dataclass


def trigger() -> Any:  # noqa: ANN401
    """Describe when a stream's micro-batches run."""

    def read(text: str) -> str:
        if text.lower() != "availablenow":
            duration(0)(text)
            return text
        return "availableNow"

    return setting(
        "availableNow: end when what waits now is through; or run on, a batch each 10s.",
        default="availableNow",
        read=read,
        expected="availableNow, or a time as 10s",
    )


def checkpoint() -> Any:  # noqa: ANN401
    """Describe where a stream remembers what is done."""
    return setting("The folder in which the stream remembers what is done; one for each job.")


# ---------------------------------------------------------------- showing


def shown(settings: Settings) -> dict[str, Any]:
    """All settings, secrets blanked, for people."""
    return {
        each.name: BLANK
        if each.metadata["secret"] and getattr(settings, each.name) is not None
        else blanked(each.name, getattr(settings, each.name))
        for each in fields(settings)
    }


def blanked(name: str, given: Any) -> Any:  # noqa: ANN401
    """A value without a password that it may hold: a url, or one in a table."""
    if isinstance(given, dict):
        return {key: blanked(key, each) for key, each in given.items()}
    if isinstance(given, (list, tuple)):
        return type(given)(blanked(name, each) for each in given)
    if given is not None and ("password" in name.lower() or "secret_value" in name.lower()):
        return BLANK
    if isinstance(given, str) and "://" in given:
        without = re.sub(r"(?s)(?<=://)([^/@:?]*):.*@", rf"\1:{BLANK}@", given)
        return SECRETS.sub(rf"\1{BLANK}", without)
    return given


# ---------------------------------------------------------------- the data source's options

Options = TypeVar("Options", SourceOptions, SinkOptions)


def passed(
    kind: type[DatabaseOptions], table: Mapping[str, str], **own: str | float | None
) -> dict[str, str]:
    """
    The options of the data source: a job's own, and those of its table `[source]` or `[sink]`.

    Args:
        kind: whose options.
        table: as in the file; it may name any option that the job does not set by itself.
        own: by public name; None is left out.

    Returns:
        Texts for Spark's `.options(…)`; `kind.parse` takes them.

    Raises:
        BadInput: an option is not known, is the job's own, or has a bad value.
    """
    title = "sink" if kind is SinkOptions else "source"
    known = {each.metadata["option"] for each in option_fields(kind)} - {"checkpointLocation"}
    lower = {each.lower(): each for each in known}
    ours = {name.lower() for name in own} | {"url", "user", "password"}
    free = sorted(name for name in known if name.lower() not in ours)
    for name in table:
        if name.lower() in ours:
            raise BadSettings(
                f"setting {name} in [{title}] is the job's own: give it outside of it"
            )
        if name.lower() not in lower:
            raise BadSettings(unknown(f"setting {name} in [{title}]", name, free))
    given = {name: _spoken(each) for name, each in own.items() if each is not None}
    raw = given | {lower[name.lower()]: text for name, text in table.items()}
    kind.parse(raw)
    return raw


def _spoken(each: str | float) -> str:
    return str(each).lower() if isinstance(each, bool) else str(each)


def unknown(what: str, name: str, known: Sequence[str]) -> str:
    """What to say of a name that is not known."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"{what} is not known: " + (
        f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
    )
