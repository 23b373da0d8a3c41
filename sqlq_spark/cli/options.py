"""What the commands share: options, how they are read, and the question before a change."""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated

import typer

from sqlq_spark.cli.screen import say, say_error
from sqlq_spark.errors import BadOption, MissingOption
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.names import EXAMPLES, with_password

FOUND, USAGE, DATABASE, STOPPED = 1, 2, 3, 130  # exit codes
TIMEOUT = "30s"  # default of --query-timeout

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="SQLQUEUE_URL",
        help="postgresql://user@host:5432/database, or sqlserver://user@host:1433/database. "
        "Set the password in SQLQUEUE_PASSWORD.",
    ),
]
Credentials = Annotated[
    str | None,
    typer.Option(
        "--credentials",
        envvar="SQLQUEUE_CREDENTIALS",
        help="What gives the password: azure, aws or package.module:function.",
    ),
]
Patience = Annotated[
    str,
    typer.Option("--query-timeout", help="Time limit of each statement, for example 10m."),
]
State = Annotated[str, typer.Option("--state-schema", help="Schema of the state tables.")]
States = Annotated[
    str | None,
    typer.Option(
        "--state-schema", help="Look at this schema only; by default at all that you may enter."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
SubscriptionTable = Annotated[
    str, typer.Option("--subscription-table", help='A table, or "schema"."table".')
]
EndpointTimeZone = Annotated[
    str | None,
    typer.Option(
        "--endpoint-time-zone", help="Time zone of the .NET endpoints' database sessions."
    ),
]
# \\[ is a bracket that is no markup
TABLE = 'A table: Shop.Orders, "schema"."table" or, on SQL Server, table@\\[schema].'
Queue = Annotated[str, typer.Argument(help=TABLE)]
QueueToSend = Annotated[str | None, typer.Argument(help=TABLE)]
MaybeQueue = Annotated[str | None, typer.Argument(help="Show only this queue.")]
Queues = Annotated[list[str] | None, typer.Argument(help="Queues; by default all of the database.")]


# options of the data source that the commands also have
SHARED = (
    "url|credentials|stateSchema|queryTimeout|subscriptionTable|endpointTimeZone"
    "|messageType|contentType|timeToBeReceived"
)


def use_flags(text: str) -> str:
    """Replace `option queryTimeout` in the data source's errors by --query-timeout."""

    def dashed(match: re.Match[str]) -> str:
        return "--" + re.sub("[A-Z]", lambda letter: f"-{letter[0].lower()}", match[0])

    return re.sub(rf"(?<=option )(?:{SHARED})\b", dashed, text)


def location(url: str | None, credentials: str | None) -> str:
    """
    Read the url from the option or the environment, and add the environment's password.

    With `credentials` that password is not used.
    """
    if not url:
        raise MissingOption(option="--url", example=f"{EXAMPLES}, or set SQLQUEUE_URL")
    return url if credentials else with_password(url, os.environ.get("SQLQUEUE_PASSWORD"))


def database_options(
    url: str | None, state_schema: str = DatabaseOptions.state_schema, **raw: str | None
) -> DatabaseOptions:
    """Parse and validate the options of a command, as the data source does."""
    return DatabaseOptions.parse(_texts(url, state_schema, raw))


def source_options(
    url: str | None, queue: str, state_schema: str = DatabaseOptions.state_schema, **raw: str | None
) -> SourceOptions:
    """Parse and validate the options of a command on one queue, as the data source does."""
    return SourceOptions.parse({**_texts(url, state_schema, raw), "queue": queue})


def sink_options(
    url: str | None, state_schema: str = DatabaseOptions.state_schema, **raw: str | None
) -> SinkOptions:
    """Parse and validate the options of a command, as a write of the data source does."""
    return SinkOptions.parse(_texts(url, state_schema, raw))


def _texts(url: str | None, state_schema: str, raw: dict[str, str | None]) -> dict[str, str]:
    """Return the options that have a value, by name."""
    named = {name: text for name, text in raw.items() if text is not None}
    return {"url": location(url, raw.get("credentials")), "stateSchema": state_schema, **named}


def answerable(*, yes: bool, as_json: bool) -> None:
    """Reject --json without --yes before connecting, because a program cannot be asked."""
    if as_json and not yes:
        raise BadOption(
            option="--json",
            found="true",
            expected="--yes with it, because a program cannot be asked",
        )


def confirm(what: str, *, yes: bool, as_json: bool = False) -> None:
    """
    Print what will be done, and ask on standard error. With --json both go to standard error.

    Ctrl-C ends the process with exit code 130. Any answer but yes ends it with 1.
    """
    (say_error if as_json else say)(f"This will {what}.")
    if yes:
        return
    sys.stderr.write("Continue? [y/N]: ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if answer.strip().lower() not in {"y", "yes"}:
        hint = "" if answer else " (standard input gives no answer: use --yes)"
        say_error(f"nothing was done{hint}")
        raise typer.Exit(FOUND)
