"""
What the commands share: options, exit codes, how an error is printed, the question before a change.

A command of the class `Command` has the shared options. It finds their values, as `Shared`, in the
context: `shared: Shared = context.obj`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn

import typer
import typer.main
from typer.core import TyperCommand

from sqlq_spark.cli.screen import CTRL_C, say, say_error
from sqlq_spark.database.schema import NO_TRAIL, has_trail
from sqlq_spark.errors import (
    BadInput,
    BadOption,
    MissingOption,
    MissingPackage,
    SqlQueueError,
)
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.names import EXAMPLES, with_password
from sqlq_spark.versions import NoJava

if TYPE_CHECKING:
    from sqlq_spark.database import Connection

FOUND, USAGE, DATABASE, STOPPED = 1, 2, 3, 130  # exit codes

# \\[ is a bracket that is no markup
TABLE = 'A table: Shop.Orders, "schema"."table" or, on SQL Server, table@\\[schema].'
Queue = Annotated[str, typer.Argument(help=TABLE)]
MaybeQueue = Annotated[str | None, typer.Argument(help="Show only this queue.")]
Queues = Annotated[list[str] | None, typer.Argument(help="Queues; by default all of the database.")]
States = Annotated[
    str | None,
    typer.Option(
        "--state-schema", help="Look at this schema only; by default at all that you may enter."
    ),
]
SubscriptionTable = Annotated[
    str, typer.Option("--subscription-table", help='A table, or "schema"."table".')
]
EndpointTimeZone = Annotated[
    str | None,
    typer.Option(
        "--endpoint-time-zone", help="Time zone of the .NET endpoints' database sessions."
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(help="Also return to this table of another owner; * and ? are wildcards."),
]


# ---------------------------------------------------------------- shared options


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The options that commands share. A field is an option of the command line."""

    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines, for programs.")] = False
    query_timeout: Annotated[
        str, typer.Option(help="Time limit of each statement, for example 10m.")
    ] = "30s"
    url: Annotated[
        str | None,
        typer.Option(
            envvar="SQLQUEUE_URL",
            help="postgresql://user@host:5432/database, or sqlserver://user@host:1433/database. "
            "Set the password in SQLQUEUE_PASSWORD.",
        ),
    ] = field(default=None, repr=False)
    credentials: Annotated[
        str | None,
        typer.Option(
            envvar="SQLQUEUE_CREDENTIALS",
            help="What gives the password: azure, aws or package.module:function.",
        ),
    ] = None
    state_schema: Annotated[str, typer.Option(help="Schema of the state tables.")] = (
        DatabaseOptions.state_schema
    )

    @property
    def location(self) -> str:
        """The url, with the environment's password unless something else gives one."""
        if not self.url:
            raise MissingOption(option="--url", example=f"{EXAMPLES}, or set SQLQUEUE_URL")
        if self.credentials:
            return self.url
        return with_password(self.url, os.environ.get("SQLQUEUE_PASSWORD"))

    def database(self, **more: str | None) -> DatabaseOptions:
        """Validate the options as the data source does, with `more` by their names there."""
        return DatabaseOptions.parse(self._texts(more))

    def source(self, queue: str, **more: str | None) -> SourceOptions:
        """As `database`, for a command on one queue."""
        return SourceOptions.parse(self._texts(more) | {"queue": queue})

    def sink(self, **more: str | None) -> SinkOptions:
        """As `database`, for a command that sends."""
        return SinkOptions.parse(self._texts(more))

    def _texts(self, more: dict[str, str | None]) -> dict[str, str]:
        texts = {
            "url": self.location,
            "credentials": self.credentials,
            "stateSchema": self.state_schema,
            "queryTimeout": self.query_timeout,
            **more,
        }
        return {name: text for name, text in texts.items() if text is not None}


def _parameters() -> dict[str | None, Any]:
    """Let typer read the fields of `Shared` as it reads the parameters of a command."""
    app = typer.Typer(add_completion=False)
    app.command()(Shared)
    return {each.name: each for each in typer.main.get_command(app).params}


PARAMETERS = _parameters()


class Command(TyperCommand):
    """A command that connects: it has the shared options but --state-schema."""

    shared: ClassVar[tuple[str, ...]] = ("as_json", "query_timeout", "url", "credentials")

    def __init__(self, *args: Any, **settings: Any) -> None:  # noqa: ANN401 - typer passes them
        super().__init__(*args, **settings)
        self.params += [PARAMETERS[name] for name in self.shared]

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - as in click
        """Put the values of the shared options into the context, and run the command."""
        ctx.obj = Shared(**{name: ctx.params.pop(name) for name in self.shared})
        return super().invoke(ctx)


class StateCommand(Command):
    """A command on the state tables."""

    shared = (*Command.shared, "state_schema")


class AskingCommand(Command):
    """A command that asks before it changes something, unless --yes is given."""

    shared = ("yes", *Command.shared)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - as in click
        """Reject --json without --yes before connecting, because a program cannot be asked."""
        if ctx.params["as_json"] and not ctx.params["yes"]:
            expected = "--yes with it, because a program cannot be asked"
            raise BadOption(option="--json", found="true", expected=expected)
        return super().invoke(ctx)


class AskingStateCommand(AskingCommand):
    """Both."""

    shared = (*AskingCommand.shared, "state_schema")


class OfflineCommand(Command):
    """A command that connects to no database that the user names."""

    shared = ("as_json",)


# ---------------------------------------------------------------- errors

# how the commands spell options of the data source
FLAGS = {
    "url": "--url",
    "credentials": "--credentials",
    "stateSchema": "--state-schema",
    "queryTimeout": "--query-timeout",
    "subscriptionTable": "--subscription-table",
    "endpointTimeZone": "--endpoint-time-zone",
    "messageType": "--message-type",
    "contentType": "--content-type",
    "timeToBeReceived": "--time-to-be-received",
}


def end_by(error: SqlQueueError) -> NoReturn:
    """Print an error, and end the process with its exit code."""
    if isinstance(error, CTRL_C):
        sys.exit(STOPPED)
    say_error(error.describe(FLAGS))
    bad = isinstance(error, (BadInput, MissingPackage, NoJava))
    sys.exit(USAGE if bad else DATABASE)


def fail(text: str) -> NoReturn:
    """Print what the command found, or why it did nothing, and end with FOUND."""
    say_error(text)
    raise typer.Exit(FOUND)


# ---------------------------------------------------------------- before a change


def confirm(what: str, shared: Shared) -> None:
    """
    Print what will be done, and ask on standard error. With --json both go to standard error.

    Ctrl-C ends the process with exit code 130. Any answer but yes ends it with 1.
    """
    (say_error if shared.as_json else say)(f"This will {what}.")
    if shared.yes:
        return
    sys.stderr.write("Continue? [y/N]: ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if answer.strip().lower() not in {"y", "yes"}:
        hint = "" if answer else " (standard input gives no answer: use --yes)"
        fail(f"nothing was done{hint}")


def keeps_trail(connection: Connection) -> bool:
    """Whether actions are recorded; if not, print that on standard error."""
    kept = has_trail(connection)
    if not kept:
        say_error(NO_TRAIL.format(connection.state, connection.server))
    return kept
