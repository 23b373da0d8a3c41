"""
The command line `sqlqueue`: operates queues without Spark.

Exit codes:

- 0: The command is done. Ctrl-C of a command with --watch gives this code too.
- 1: The command found something, for example a lost message or a receipt that cannot be returned.
  Or the user answered its question with no.
- 2: The usage or an input is wrong.
- 3: The database failed or refused.
- 130: Ctrl-C ended the command.

Errors go to standard error. With --json standard output holds only JSON, in UTF-8, and questions go
to standard error. Without --json the output has its own encoding, for example the terminal's, with
escapes for characters that the encoding lacks.
Names, headers and bodies are untrusted: they are shown without markup or control characters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sqlq_spark import __version__
from sqlq_spark.admin.formats import escape_unencodable
from sqlq_spark.cli import demo, endpoints, messages, queues, selftest, streams
from sqlq_spark.cli.options import Group, end_by
from sqlq_spark.cli.screen import say
from sqlq_spark.errors import SqlQueueError
from sqlq_spark.log import set_up
from sqlq_spark.wire.dialects import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer(
    name="sqlqueue",
    cls=Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # pretty exceptions would print local variables
)
for module in (endpoints, messages, queues, selftest, demo):
    app.add_typer(module.app)
app.add_typer(messages.receipts_app, name="receipts")
app.add_typer(streams.streams_app, name="streams")


def main(words: Sequence[str] | None = None) -> None:
    """Run one command, and end the process with its exit code."""
    escape_unencodable()
    set_up()
    try:
        app(words)
    except SqlQueueError as error:
        end_by(error)


def print_version(show: bool) -> None:  # noqa: FBT001 - typer calls it
    if show:
        say(f"sqlqueue {__version__}")
        raise typer.Exit


DATABASES = " or ".join(names.database for names in DIALECTS.values())


@app.callback(help=f"Operate NServiceBus queues in {DATABASES} tables, without Spark.")
def options(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Read the options that precede a command."""
