"""
The command line `sqlqueue`: operates queues without Spark.

Exit codes:

- 0: done; also Ctrl-C in a command that ends this way (--watch)
- 1: the command found something (a lost message, a receipt that cannot be returned), or the answer
  was no
- 2: usage or bad input
- 3: the database
- 130: Ctrl-C

Errors go to standard error. With --json standard output holds only JSON, and questions and progress
bars go to standard error.
Names, headers and bodies are untrusted: they are shown without markup or control characters.
"""

from __future__ import annotations

import signal
from dataclasses import asdict
from pathlib import Path  # noqa: TC003 - typer reads it at run time
from typing import TYPE_CHECKING, Annotated

import typer

from sqlq_spark import __version__
from sqlq_spark.cli import figures, receipts, retire, retry, screen, setup, subscriptions, upkeep
from sqlq_spark.cli import messages as cli_messages
from sqlq_spark.cli.options import FOUND, OfflineCommand, Shared, end_by, fail
from sqlq_spark.cli.screen import say
from sqlq_spark.errors import SqlQueueError

if TYPE_CHECKING:
    from collections.abc import Sequence

HELP = "Operate NServiceBus queues in PostgreSQL or SQL Server tables, without Spark."

app = typer.Typer(
    name="sqlqueue",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # it would print local variables
)
app.add_typer(setup.app)
app.add_typer(cli_messages.app)
app.add_typer(figures.app)
app.add_typer(upkeep.app)
app.add_typer(retry.app)
app.add_typer(receipts.app, name="receipts")
app.add_typer(subscriptions.app)
app.add_typer(retire.app)


def main(words: Sequence[str] | None = None) -> None:
    """Run one command, and end the process with its exit code."""
    try:
        app(words)
    except SqlQueueError as error:
        end_by(error)


def print_version(show: bool) -> None:  # noqa: FBT001 - typer calls it
    if show:
        say(f"sqlqueue {__version__}")
        raise typer.Exit


@app.callback(help=HELP)
def options(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Read the options that precede a command."""


# ---------------------------------------------------------------- the demo


@app.command("demo", cls=OfflineCommand)
def demo_(
    context: typer.Context,
    *,
    messages: Annotated[int, typer.Option(min=1, help="Messages to send.")] = 200_000,
    keep: Annotated[
        Path | None, typer.Option(help="Keep table, checkpoint and logs in this new folder.")
    ] = None,
    delta: Annotated[
        bool, typer.Option("--delta", help="Write a Delta table instead of Parquet files.")
    ] = False,
) -> None:
    """Send messages, receive them, kill the stream twice within a batch, and count; needs Java."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # clean up, as after Ctrl-C
    from sqlq_spark import demo  # noqa: PLC0415 - other commands need neither it nor pyarrow
    from sqlq_spark.cli import demo as demo_screen  # noqa: PLC0415 - as above

    shared: Shared = context.obj
    bars = demo_screen.make_bars(quiet=shared.as_json)
    table = "delta" if delta else "parquet"
    try:
        result = demo.run(bars, messages=messages, table=table, keep=keep)
    except demo.JobFailed as error:
        fail(str(error))
    if shared.as_json:
        figures = {name: value for name, value in asdict(result).items() if name != "rows"}
        screen.print_json(figures | {"good": result.good})
    else:
        demo_screen.show_result(result)
        if keep is not None:
            say(f"{keep} contains: table, checkpoint, spark.log, postgresql")
    if not result.good:
        raise typer.Exit(FOUND)
