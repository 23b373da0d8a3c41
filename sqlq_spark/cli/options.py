"""
What the commands share: options, exit codes, the connection, the question, the answer, the error.

A command of the class `Command` has the shared options. It finds their values, as `Shared`, in its
context: `context.obj`. The context also asks and answers, on a screen or in JSON.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn, TypeAlias, TypeVar

import typer
import typer.main
from rich.console import Console
from typer import Argument, Option
from typer.core import TyperCommand

from sqlq_spark import errors
from sqlq_spark.admin.formats import part
from sqlq_spark.cli import screen
from sqlq_spark.cli.screen import say, say_error
from sqlq_spark.database.schema import NO_TRAIL, has_trail
from sqlq_spark.database.sessions import Session
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.names import EXAMPLES, parse_queue, with_password
from sqlq_spark.versions import NoJava

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlq_spark.admin.formats import Column
    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress

T = TypeVar("T")
Text: TypeAlias = "str | list[str] | None"  # a list is joined by commas

FOUND, USAGE, DATABASE, STOPPED = 1, 2, 3, 130  # exit codes

# The help of what several commands have. Another option's stands in its command's docstring.
HELP = {
    # \\[ is a bracket that is no markup
    "queue": 'A table: Shop.Orders, "schema"."table" or, on SQL Server, table@\\[schema].',
    "queues": "Queues; by default all of the database.",
    "yes": "Do not ask.",
    "as_json": "Print JSON lines, for programs.",
    "query_timeout": "Time limit of each statement, for example 10m.",
    "url": "postgresql://user@host:5432/database, or sqlserver://user@host:1433/database. "
    "Set the password in SQLQUEUE_PASSWORD.",
    "credentials": "What gives the password: azure, aws or package.module:function.",
    "state_schema": "Schema of the state tables, sqlqueue by default.",
    "subscription_table": 'A table, or "schema"."table".',
    "endpoint_time_zone": "Time zone of the .NET endpoints' database sessions.",
    "allow": "Also return to this table of another owner; * and ? are wildcards.",
    "instance": "NAME of an instance's queue QUEUE.NAME, or its address.",
    "qualifier": "NAME of a satellite's queue QUEUE.NAME, or its address.",
    "error": "The error queue, also for poison messages.",
    "audit": "The audit queue.",
    "delayed": "Also create the table QUEUE.Delayed.",
    "body_string": "Add the column BodyString: bodies as text.",
    "domain": "Separate these logins from others: the state schema is sqlqueue_NAME, the roles "
    "are NAME_reader and NAME_sender. The options of these names override them.",
    "topics": "A type's full name, for example Shop.OrderPlaced.",
    "endpoint": "The endpoint's name.",
    "stream": "The stream's id, as `receipts list` shows it.",
    "batch": "Only this batch.",
    "task": "Only this task.",
}
MaybeQueue = Annotated[str | None, Argument(help="Show only this queue.")]
Queues = Annotated[list[str] | None, Argument()]


# ---------------------------------------------------------------- shared options


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The options that commands share. A field is an option of the command line."""

    yes: bool = False
    as_json: Annotated[bool, Option("--json")] = False
    query_timeout: str = "30s"
    url: Annotated[str | None, Option(envvar="SQLQUEUE_URL")] = field(default=None, repr=False)
    credentials: Annotated[str | None, Option(envvar="SQLQUEUE_CREDENTIALS")] = None
    state_schema: str = DatabaseOptions.state_schema

    @property
    def location(self) -> str:
        """The url, with the environment's password unless something else gives one."""
        if not self.url:
            example = f"{EXAMPLES}, or set SQLQUEUE_URL"
            raise errors.MissingOption(option="--url", example=example)
        if self.credentials:
            return self.url
        return with_password(self.url, os.environ.get("SQLQUEUE_PASSWORD"))

    def database(self, **more: Text) -> DatabaseOptions:
        """Validate the options as the data source does, with `more` by their names there."""
        return DatabaseOptions.parse(self._texts(more))

    def source(self, queue: str, **more: Text) -> SourceOptions:
        """As `database`, for a command on one queue."""
        return SourceOptions.parse(self._texts(more) | {"queue": queue})

    def sink(self, **more: Text) -> SinkOptions:
        """As `database`, for a command that sends."""
        return SinkOptions.parse(self._texts(more))

    def _texts(self, more: dict[str, Text]) -> dict[str, str]:
        texts: dict[str, Text] = {
            "url": self.location,
            "credentials": self.credentials,
            "stateSchema": self.state_schema,
            "queryTimeout": self.query_timeout,
            **more,
        }
        return {
            name: text if isinstance(text, str) else ",".join(text)
            for name, text in texts.items()
            if text or text == ""
        }


class Context(typer.Context):
    """The context of a command: the shared options, and how it asks and answers by them."""

    obj: Shared
    options: DatabaseOptions
    connection: Connection

    def connect(
        self, options: DatabaseOptions, application: str, session: type[Session] = Session
    ) -> Connection:
        """Open a connection until the command ends; nothing is retried."""
        self.options = options
        self.connection = self.with_resource(session(options, application)).open()
        return self.connection

    def confirm(self, what: str) -> None:
        """
        Print what will be done, and ask on standard error. With --json both go to standard error.

        Ctrl-C ends the process with exit code 130. Any answer but yes ends it with 1.
        """
        self.note(f"This will {what}.")
        if self.obj.yes:
            return
        sys.stderr.write("Continue? [y/N]: ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            fail("nothing was done; --yes answers the question")

    def follow(
        self,
        batches: Iterable[T],
        what: str,
        total: int,
        done: str,
        count: Callable[[T], int] = int,  # type: ignore[assignment]
    ) -> list[T]:
        """
        Show the progress of batches on standard error, on a terminal only; return them.

        They are done one by one as they are read, and `count` says how many each has: of `what`, in
        all `total`. Ctrl-C prints how many were `done`, for example `deleted`.
        """
        gone, finished = 0, []
        status = Console(stderr=True, quiet=self.obj.as_json).status(part(0, total, what))
        try:
            with status:
                for each in batches:
                    finished.append(each)
                    gone += count(each)
                    status.update(part(gone, total, what))
        except screen.CTRL_C:
            say_error(f"stopped: {part(gone, total, what)} {done}")
            raise
        return finished

    def note(self, text: str) -> None:
        """Print a line beside the answer."""
        (say_error if self.obj.as_json else say)(text)

    def answer(self, value: object, text: str) -> None:
        """Print a result: a value as JSON, or a line of text."""
        if self.obj.as_json:
            screen.print_json(value)
        else:
            say(text)

    def show(
        self,
        columns: Sequence[Column],
        rows: Iterable[Any],
        title: str,
        as_json: Callable[[Any], object] = asdict,
    ) -> None:
        """Print rows as JSON lines, or as a table of some columns."""
        if not self.obj.as_json:
            screen.out().print(screen.draw_rows(columns, [*rows], title))
            return
        for row in rows:
            screen.print_json(as_json(row))


def _parameters() -> dict[str | None, Any]:
    """Let typer read the fields of `Shared` as it reads the parameters of a command."""
    app = typer.Typer(add_completion=False)
    app.command()(Shared)
    return {each.name: each for each in typer.main.get_command(app).params}


PARAMETERS = _parameters()


class Command(TyperCommand):
    """A command that connects: it has the shared options but --state-schema."""

    context_class = Context
    shared: ClassVar[tuple[str, ...]] = ("as_json", "query_timeout", "url", "credentials")

    def __init__(self, *args: Any, **settings: Any) -> None:  # noqa: ANN401 - typer passes them
        """Add the shared options, and the help of each option."""
        settings["help"], _, texts = settings["help"].partition("\n\nOptions:\n")
        own = dict(re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", texts, re.MULTILINE))
        super().__init__(*args, **settings)
        self.params += [PARAMETERS[name] for name in self.shared]
        each: Any
        for each in self.params:
            each.help = each.help or " ".join((HELP | own).get(each.name, "").split())
            if each.default is False:  # without `--no-…`
                each.secondary_opts = []

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - as in click
        """Put the values of the shared options into the context, and run the command."""
        its = ctx.obj = Shared(**{name: ctx.params.pop(name) for name in self.shared})
        may_ask = "yes" not in self.shared or its.yes or not its.as_json
        require(may_ask, "--json", "true", "--yes with it, because a program cannot be asked")
        return super().invoke(ctx)


class StateCommand(Command):
    """A command on the state tables."""

    shared = (*Command.shared, "state_schema")


class AskingCommand(Command):
    """A command that asks before it changes something, unless --yes is given."""

    shared = ("yes", *Command.shared)


class AskingStateCommand(AskingCommand):
    """Both."""

    shared = (*AskingCommand.shared, "state_schema")


class OfflineCommand(Command):
    """A command that connects to no database that the user names."""

    shared = ("as_json",)


# ---------------------------------------------------------------- options of one command


def require(fits: object, option: str, found: object, expected: str) -> None:
    """Raise BadOption for an option that does not fit the others."""
    if not fits:
        raise errors.BadOption(option=option, found=str(found), expected=expected)


def queue_or_none(option: str, text: str | None, options: DatabaseOptions) -> QueueAddress | None:
    return None if text is None else parse_queue(option, text, options.naming)


def read_moment(option: str, text: str | None) -> datetime | None:
    """Read a time with its zone."""
    if text is None:
        return None
    with suppress(TypeError, ValueError):
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment
    expected = "a time with its zone, for example 2026-06-30T17:05:09Z"
    raise errors.BadOption(option=option, found=str(text), expected=expected)


def keeps_trail(connection: Connection) -> bool:
    """Whether actions are recorded; if not, print that on standard error."""
    kept = has_trail(connection)
    if not kept:
        say_error(NO_TRAIL.format(connection.state, connection.server))
    return kept


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


def end_by(error: errors.SqlQueueError) -> NoReturn:
    """Print an error, and end the process with its exit code."""
    if isinstance(error, screen.CTRL_C):
        sys.exit(STOPPED)
    say_error(error.describe(FLAGS))
    bad = isinstance(error, (errors.BadInput, errors.MissingPackage, NoJava))
    sys.exit(USAGE if bad else DATABASE)


def fail(text: str) -> NoReturn:
    """Print what the command found, or why it did nothing, and end with FOUND."""
    say_error(text)
    raise typer.Exit(FOUND)
