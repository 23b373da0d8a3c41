"""What the commands have in common: their options, how they are read, and how to ask."""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated

import typer

from sqlq_spark.cli.completion import queues
from sqlq_spark.cli.screens.screen import say, say_error
from sqlq_spark.database.names import EXAMPLES
from sqlq_spark.errors import BadOption, Cancelled, MissingOption
from sqlq_spark.options import SourceOptions
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.login import with_password

FOUND, USAGE, DATABASE, STOPPED = 1, 2, 3, 130  # exit codes

# what Ctrl-C becomes; while a statement runs the driver takes it for itself, and cancels
CTRL_C = (KeyboardInterrupt, Cancelled)

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="SQLQUEUE_URL",
        help="postgresql://user@host:5432/database, or sqlserver://user@host:1433/database; "
        "a password is better in the environment, there or as SQLQUEUE_PASSWORD.",
    ),
]
Patience = Annotated[
    str, typer.Option("--query-timeout", help="For each statement and wait, as 10m.")
]
State = Annotated[str, typer.Option("--state-schema", help="Schema of the state tables.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON lines, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
TABLE = 'A table, as Shop.Orders; or "schema"."table", table@\\[schema].'  # \\[: no markup
Queue = Annotated[str, typer.Argument(help=TABLE, autocompletion=queues)]
QueueToSend = Annotated[str | None, typer.Argument(help=TABLE, autocompletion=queues)]
MaybeQueue = Annotated[
    str | None, typer.Argument(help="Of this queue only.", autocompletion=queues)
]
Queues = Annotated[
    list[str] | None,
    typer.Argument(help="Queues; without any, those of all streams.", autocompletion=queues),
]


# the data source's options that commands have too
SHARED = (
    "url|stateSchema|queryTimeout|subscriptionTable|endpointTimeZone"
    "|messageType|contentType|timeToBeReceived"
)


def spelt(text: str) -> str:
    """What the data source's errors call `option queryTimeout` is --query-timeout here."""

    def dashed(match: re.Match[str]) -> str:
        return "--" + re.sub("[A-Z]", lambda letter: f"-{letter[0].lower()}", match[0])

    return re.sub(rf"(?<=option )(?:{SHARED})\b", dashed, text)


def location(url: str | None) -> str:
    """The url, from the option or the environment, with the password of the environment."""
    if not url:
        raise MissingOption("--url", f"{EXAMPLES}, or set SQLQUEUE_URL")
    return with_password(url, os.environ.get("SQLQUEUE_PASSWORD"))


def given(url: str | None, state_schema: str = "sqlqueue", **raw: str | None) -> DatabaseOptions:
    """Validate the options of a command, as the data source does."""
    return DatabaseOptions.parse(_texts(url, state_schema, raw))


def given_queue(
    url: str | None, queue: str, state_schema: str = "sqlqueue", **raw: str | None
) -> SourceOptions:
    """Validate the options of a command on one queue, as the data source does."""
    return SourceOptions.parse({**_texts(url, state_schema, raw), "queue": queue})


def _texts(url: str | None, state_schema: str, raw: dict[str, str | None]) -> dict[str, str]:
    """Name the options that were given."""
    named = {name: text for name, text in raw.items() if text is not None}
    return {"url": location(url), "stateSchema": state_schema, **named}


def answerable(*, yes: bool, as_json: bool) -> None:
    """Refuse --json without --yes, before anything is connected: a program cannot be asked."""
    if as_json and not yes:
        raise BadOption("--json", "true", "--yes beside it: a program cannot be asked")


def confirm(what: str, *, yes: bool, as_json: bool = False) -> None:
    """
    Say what will be done, and ask, on standard error; with --json all of it is there.

    Ctrl-C is the process's, so that its exit code is 130; any other answer than yes ends with 1.
    """
    (say_error if as_json else say)(f"This will {what}.")
    if yes:
        return
    sys.stderr.write("Do it? [y/N]: ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if answer.strip().lower() not in {"y", "yes"}:
        hint = "" if answer else " (no answer can be read here: --yes does not ask)"
        say_error(f"nothing was done{hint}")
        raise typer.Exit(FOUND)
