"""
What commands share: options, exit codes, connecting, questions, answers and errors.

A command of the class `Command` has shared options. It gets a `Context`. `context.obj` is a
`Shared`, which has the values of these options. The methods of the context connect, ask questions,
and print answers as text or as JSON.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from copy import copy
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn, TypeVar

import typer
import typer.main
from rich.console import Console
from typer import Argument, Option
from typer.core import TyperCommand, TyperGroup

from sqlq_spark import errors
from sqlq_spark.admin.formats import part, write_utf_8
from sqlq_spark.cli import screen
from sqlq_spark.cli.screen import say, say_error
from sqlq_spark.database.schema import NO_TRAIL, has_trail
from sqlq_spark.database.sessions import Session
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.fields import option_names
from sqlq_spark.options.names import EXAMPLES, parse_queue, with_password
from sqlq_spark.versions import NoJava
from sqlq_spark.wire.dialects import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlq_spark.admin.formats import ShownColumn
    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress

Kind = TypeVar("Kind", bound=DatabaseOptions)

FOUND, USAGE, DATABASE, STOPPED = 1, 2, 3, 130  # exit codes


def _address_forms() -> list[str]:
    """Return how each database writes an address. Brackets are escaped, because they are markup."""
    default, *others = DIALECTS.values()
    forms = [default.address_form, *(f"on {its.database}, {its.address_form}" for its in others)]
    return [form.replace("[", "\\[") for form in forms]


ADDRESS_FORMS = _address_forms()
QUEUE_HELP = f"A table: Shop.Orders, {' or, '.join(ADDRESS_FORMS)}."
DOMAIN_HELP = (
    "Separate these logins from others: the state schema is sqlqueue_NAME, the roles are "
    "NAME_reader and NAME_sender. The options of these names override them."
)

# Arguments and options that are parameters of several commands. A parameter of only one command is
# described where the command declares it.
QueueName = Annotated[str, Argument(help=QUEUE_HELP)]
MaybeQueue = Annotated[str | None, Argument(help="Show only this queue.")]
Queues = Annotated[list[str] | None, Argument(help="Queues; by default all of the database.")]
Domain = Annotated[str | None, Option(help=DOMAIN_HELP)]
EndpointName = Annotated[str, Option(help="The endpoint's name.")]
STREAM_HELP = "The stream's id, as `receipts list` shows it."
StreamId = Annotated[str, Option(help=STREAM_HELP)]


# ---------------------------------------------------------------- shared options


@dataclass(frozen=True, kw_only=True)
class Shared:
    """
    The options that commands share. Each field is an option of the command line.

    A flag states its name, for example "--yes". Otherwise typer would also make a flag `--no-yes`.
    """

    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False
    as_json: Annotated[bool, Option("--json", help="Print JSON lines, for programs.")] = False
    # These are options of the data source, where they are called queryTimeout and so on.
    query_timeout: Annotated[str, Option(help="Time limit of each statement, for example 10m.")] = (
        "30s"
    )
    url: Annotated[
        str | None,
        Option(
            envvar="SQLQUEUE_URL",
            help=f"{', or '.join(names.example_url for names in DIALECTS.values())}. "
            "Set the password in SQLQUEUE_PASSWORD.",
        ),
    ] = field(default=None, repr=False)
    credentials: Annotated[
        str | None,
        Option(
            envvar="SQLQUEUE_CREDENTIALS",
            help="What gives the password: azure, aws or package.module:function.",
        ),
    ] = None
    state_schema: Annotated[
        str | None, Option(help="Schema of the state tables, sqlqueue by default.")
    ] = None
    subscription_table: Annotated[
        str | None,
        Option(help=f"A table, or {ADDRESS_FORMS[0]}; SubscriptionRouting by default."),
    ] = None
    endpoint_time_zone: Annotated[
        str | None, Option(help="Time zone of the .NET endpoints' database sessions.")
    ] = None
    trusted_owners: Annotated[
        list[str] | None,
        Option(
            "--trust",
            help="A role whose tables are used, beside yours, a superuser's and the database "
            "owner's.",
        ),
    ] = None
    allowed_destinations: Annotated[
        list[str] | None,
        Option("--allow", help="Also return to this table of another owner."),
    ] = None
    topics: Annotated[
        list[str] | None,
        Option(
            "--topic",
            help="Publish to this topic; then omit QUEUE. Most derived type first.",
        ),
    ] = None
    message_type: Annotated[str | None, Option(help="The .NET type's full name.")] = None
    content_type: Annotated[
        str | None, Option(help="Content type, for example application/json.")
    ] = None
    time_to_be_received: Annotated[
        str | None, Option(help="hh:mm:ss, after which the message expires.")
    ] = None
    as_received: Annotated[
        bool,
        Option(
            "--as-received",
            help="Keep headers and the remaining time to live of lines of browse --json.",
        ),
    ] = False
    # Options of an endpoint's queues.
    instance: Annotated[
        list[str] | None,
        Option(help="NAME of an instance's queue QUEUE.NAME, or its address."),
    ] = None
    qualifier: Annotated[
        list[str] | None,
        Option(help="NAME of a satellite's queue QUEUE.NAME, or its address."),
    ] = None
    error: Annotated[str | None, Option(help="The error queue, also for poison messages.")] = None
    audit: Annotated[str | None, Option(help="The audit queue.")] = None
    delayed: Annotated[bool, Option("--delayed", help="Also create the table QUEUE.Delayed.")] = (
        False
    )
    body_string: Annotated[
        bool, Option("--body-string", help="Add the column BodyString: bodies as text.")
    ] = False
    # Options of receipts.
    batch: Annotated[int | None, Option(help="Only this batch.")] = None
    task: Annotated[int | None, Option(help="Only this task.")] = None

    @property
    def location(self) -> str:
        """Return the url. If nothing else gives a password, it has that of the environment."""
        if not self.url:
            example = f"{EXAMPLES}, or set SQLQUEUE_URL"
            raise errors.MissingOption(option="--url", example=example)
        if self.credentials:
            return self.url
        return with_password(self.url, os.environ.get("SQLQUEUE_PASSWORD"))

    def database(self) -> DatabaseOptions:
        """Validate the options as the data source does."""
        return self._parse(DatabaseOptions)

    def source(self, queue: str) -> SourceOptions:
        """Validate the options as a read does, for a command on one queue."""
        return self._parse(SourceOptions, queue)

    def sink(self, queue: str | None = None) -> SinkOptions:
        """Validate the options as a write does, for a command that sends or reads subscriptions."""
        return self._parse(SinkOptions, queue)

    def _parse(self, kind: type[Kind], queue: str | None = None) -> Kind:
        own = {public_name(name): value for name, value in vars(self).items()}
        known, texts = {*option_names(kind).values()}, own | {"url": self.location, "queue": queue}
        return kind.parse(
            {
                name: option_text(text)
                for name, text in texts.items()
                if name in known and (text or text == "")
            }
        )


class Context(typer.Context):
    """The context of a command. It has the shared options, and asks and prints as they say."""

    obj: Shared

    def connect(self, options: DatabaseOptions, session: type[Session] = Session) -> Connection:
        """Open a connection, which is closed when the command ends. Nothing is retried."""
        return self.session(options, session).open()

    def session(self, options: DatabaseOptions, session: type[Session] = Session) -> Session:
        """Give a session, which is closed when the command ends."""
        return self.with_resource(session(options, str(self.info_name)))

    def confirm(self, what: str) -> None:
        """
        Print what will be done, and ask whether to continue.

        The question goes to standard error. With --json the text before it goes there too. Ctrl-C
        ends the process with exit code 130. Any answer but yes ends it with 1.
        """
        self.note(f"This will {what}.")
        if self.obj.yes:
            return
        sys.stderr.write("Continue? [y/N]: ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            fail_command("nothing was done; --yes answers the question")

    def follow(self, batches: Iterable[int], what: str, total: int, done: str) -> int:
        """
        Do the work of batches, and return how many messages they had.

        The progress is shown on standard error, if that is a terminal. Ctrl-C prints how many
        messages were `done`, for example `deleted`.

        Args:
            batches: does one batch at each step, and yields how many messages it had.
            what: the noun of the numbers, for example `message`.
            total: the expected sum.
            done: the verb for Ctrl-C.
        """
        gone = 0
        status = Console(stderr=True, quiet=self.obj.as_json).status(part(0, total, what))
        try:
            with status:
                for each in batches:
                    gone += each
                    status.update(part(gone, total, what))
        except screen.CTRL_C:
            say_error(f"stopped: {part(gone, total, what)} {done}")
            raise
        return gone

    def note(self, text: str) -> None:
        """Print a line that is not the answer: with --json on standard error."""
        (say_error if self.obj.as_json else say)(text)

    def answer(self, value: object, text: str) -> None:
        """Print the answer: with --json the value, otherwise the text."""
        if self.obj.as_json:
            screen.print_json(value)
        else:
            say(text)

    def show(self, columns: Sequence[ShownColumn], rows: Sequence[Any], title: str) -> None:
        """Print rows, which are dataclasses: with --json as lines, otherwise as a table."""
        if not self.obj.as_json:
            screen.out().print(screen.draw_rows(columns, rows, title))
            return
        for row in rows:
            screen.print_json(asdict(row))


def option_text(value: str | list[str] | bool) -> str:  # noqa: FBT001 - of a flag
    """Return a value as the data source reads it."""
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
    return ",".join(value)


def public_name(name: str) -> str:
    """Return the data source's name of an option: `stateSchema` for `state_schema`."""
    return re.sub("_(.)", lambda found: found[1].upper(), name)


# typer makes an option of each field of Shared, as it does of each parameter of a command.
shared_options = typer.Typer(add_completion=False)
shared_options.command()(Shared)
PARAMETERS: dict[str, Any] = {
    str(each.name): each for each in typer.main.get_command(shared_options).params
}
# How the commands spell the options of the data source.
FLAGS = {public_name(name): each.opts[0] for name, each in PARAMETERS.items()}


# What `--help` shows for the types as typer names them. A flag has no value, and so no type.
TYPE_WORDS: dict[str, str | None] = {
    "<str>": "text",
    "<list[str]>": "text, repeatable",
    "<int>": "number",
    "<int range>": "number",
    "<float range>": "number",
    "<FileBinaryRead>": "file",
    "<file>": "file",
    "<path>": "file",
    "<bool>": None,
}


def type_words(parameter: Any, ctx: Any) -> str | None:  # noqa: ANN401 - typer's own classes
    """Return how `--help` shows a parameter's type. Older typer shows words, and does not call."""
    shown: str | None = type(parameter).display_type_rich(parameter, ctx=ctx)
    return shown if shown is None else TYPE_WORDS.get(shown, shown)


def show_words(parameters: list[Any]) -> list[Any]:
    for each in parameters:
        each.display_type_rich = partial(type_words, each)
    return parameters


class Group(TyperGroup):
    """A group of commands, whose help shows types in words."""

    def get_params(self, ctx: Any) -> Any:  # noqa: ANN401 - as in click
        return show_words(super().get_params(ctx))


class Command(TyperCommand):
    """A command that connects. A subclass names the shared options that it has."""

    context_class = Context
    shared: ClassVar[tuple[str, ...]] = (
        "as_json",
        "query_timeout",
        "url",
        "credentials",
        "trusted_owners",
    )
    # The help of shared options that mean something else for this command.
    meanings: ClassVar[dict[str, str]] = {}

    def __init__(self, *args: Any, **settings: Any) -> None:  # noqa: ANN401 - typer passes them
        """Add the shared options after the command's own options."""
        super().__init__(*args, **settings)
        for name in self.shared:
            option = copy(PARAMETERS[name])
            option.help = self.meanings.get(name, option.help)
            self.params.append(option)

    def get_params(self, ctx: Any) -> Any:  # noqa: ANN401 - as in click
        return show_words(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - as in click
        """Put the values of the shared options into the context, and run the command."""
        values = Shared(**{name: ctx.params.pop(name) for name in self.shared})
        ctx.obj = values
        if values.as_json:
            write_utf_8()
        may_ask = "yes" not in self.shared or values.yes or not values.as_json
        require_option(
            may_ask, "--json", "true", "--yes with it, because a program cannot be asked"
        )
        return super().invoke(ctx)


class OfflineCommand(Command):
    """A command that connects to no database that the user names."""

    shared: ClassVar[tuple[str, ...]] = ("as_json",)


class AskingCommand(Command):
    """A command that asks before it changes something."""

    shared = ("yes", *Command.shared)


class StateCommand(Command):
    """A command on the state tables of one schema."""

    shared = ("state_schema", *Command.shared)


# Options of `create` and `script`. They say what to make beside an endpoint's queue.
ENDPOINT_QUEUES = ("instance", "qualifier", "error", "audit", "delayed", "body_string")
ALL_STATES = "Look at this schema only; by default at all that you may enter."


# ---------------------------------------------------------------- options of one command


def require_option(fits: object, option: str, found: object, expected: str) -> None:
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
    """Return whether actions are recorded. If not, print that on standard error."""
    kept = has_trail(connection)
    if not kept:
        say_error(NO_TRAIL.format(connection.state, connection.server))
    return kept


# ---------------------------------------------------------------- errors


def end_by(error: errors.SqlQueueError) -> NoReturn:
    """Print an error, and end the process with its exit code."""
    if isinstance(error, screen.CTRL_C):
        sys.exit(STOPPED)
    say_error(error.describe(FLAGS))
    bad = isinstance(error, (errors.BadInput, errors.MissingPackage, NoJava))
    sys.exit(USAGE if bad else DATABASE)


def fail_command(text: str) -> NoReturn:
    """Print what the command found, or why it did nothing, and end with FOUND."""
    say_error(text)
    raise typer.Exit(FOUND)
