"""The command `demo`: its progress, and what was counted."""

from __future__ import annotations

import signal
from dataclasses import asdict
from pathlib import Path  # noqa: TC003 - typer reads it at run time
from typing import Annotated

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from typer import Option, Typer

from sqlq_spark.cli import screen
from sqlq_spark.cli.options import FOUND, Context, OfflineCommand, fail

app = Typer()


@app.command("demo", cls=OfflineCommand)
def demo_(
    context: Context,
    *,
    messages: Annotated[int, Option(min=1)] = 200_000,
    keep: Path | None = None,
) -> None:
    """
    Send messages, receive them, kill the stream twice within a batch, and count; needs Java.

    Options:
        messages: Messages to send.
        keep: Keep table, checkpoint and logs in this new folder.
    """
    from sqlq_spark import demo  # noqa: PLC0415 - other commands need neither it nor pyarrow

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # clean up, as after Ctrl-C
    bars = Progress(
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
        console=screen.out(quiet=context.obj.as_json),
    )
    try:
        result = demo.run(bars, messages=messages, keep=keep)
    except demo.JobFailed as error:
        fail(str(error))
    figures = asdict(result) | {"good": result.good}
    rows = figures.pop("rows")
    if context.obj.as_json:
        screen.print_json(figures)
    else:
        counted = [(value, name.replace("_", " ")) for name, value in figures.items()]
        screen.show(("", "counted by message id"), counted, "figures")
        some = [(row["seq"], *screen.type_and_time(row["headers"]), row["body"]) for row in rows]
        screen.show(("seq", "type", "sent", "body"), some, "three of the table's rows")
        if keep is not None:
            screen.say(f"{keep} contains: table, checkpoint, spark.log, postgresql")
    if not result.good:
        context.exit(FOUND)
