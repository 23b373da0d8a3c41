"""The command `demo`: runs the demo, shows its progress, and prints the counts."""

from __future__ import annotations

import signal
from dataclasses import asdict
from pathlib import Path  # noqa: TC003 - typer reads it at run time
from typing import Annotated

from rich.progress import Progress, TextColumn
from typer import Option, Typer

from sqlq_spark.cli import screen
from sqlq_spark.cli.options import FOUND, Context, OfflineCommand, fail_command

app = Typer()


@app.command("demo", cls=OfflineCommand)
def demo_command(
    context: Context,
    *,
    messages: Annotated[int, Option(min=1, help="Messages to send.")] = 200_000,
    keep: Annotated[
        Path | None, Option(help="Keep table, checkpoint and logs in this new folder.")
    ] = None,
) -> None:
    """
    Send messages, receive them, kill Spark twice within a batch, and count.

    Takes one to five minutes. Needs Java, and 900 MB for the packages of its extra.
    """
    from sqlq_spark import demo  # noqa: PLC0415 - other commands need neither it nor pyarrow

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # clean up, as after Ctrl-C
    columns = *Progress.get_default_columns(), TextColumn("{task.fields[count]}")
    bars = Progress(*columns, console=screen.out(quiet=context.obj.as_json))
    try:
        result = demo.run_demo(bars, messages=messages, keep=keep)
    except demo.JobFailed as error:
        fail_command(str(error))
    if context.obj.as_json:
        screen.print_json(asdict(result) | {"good": result.good})
    else:
        screen.show_table(("", "", "counted by message id"), result.rows(), "figures")
        if keep is not None:
            screen.say(f"{keep} contains: table, checkpoint, spark.log, postgresql")
    if not result.good:
        context.exit(FOUND)
