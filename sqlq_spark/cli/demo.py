"""The screen of the demo: its progress, and what was counted."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from sqlq_spark import demo
from sqlq_spark.admin.formats import part, quantity
from sqlq_spark.cli.screen import out, say_error, show, type_and_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.progress import TaskID

TEN_LINES = """\
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
stream = spark.readStream.format("sqlqueue").option("url", os.environ["SQLQUEUE_URL"])
query = (stream.load("Shop.Orders")
    .writeStream.format("parquet")
    .option("checkpointLocation", "orders/checkpoint")
    .trigger(availableNow=True))
query.start("orders/table").awaitTermination()
"""


def follow(events: Iterable[demo.Event], *, quiet: bool = False) -> demo.Result:
    """Show the demo's progress, unless quiet, and return its result."""
    columns = (
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
    )
    events = iter(events)
    first = next(events)  # an error before the first step is raised before the screen changes
    with Progress(*columns, console=out(), disable=quiet) as progress:
        doing: str | None = None
        bar: TaskID | None = None
        for event in chain([first], events):
            match event:
                case demo.Result():
                    finish(progress, bar)
                    return event
                case demo.Kill() if not quiet:
                    progress.console.print(
                        f"[red]✗[/] SIGKILL to {event.processes} processes within batch "
                        f"{event.batch}; {quantity(event.held, 'message')} had left the queue"
                    )
                case demo.Step():
                    if event.doing != doing:
                        finish(progress, bar)
                        doing = event.doing
                        bar = progress.add_task(doing, total=None, count="")
                    if bar is not None:
                        advance(progress, bar, event)
    raise AssertionError  # pragma: no cover - the demo ends with its result


def finish(progress: Progress, bar: TaskID | None) -> None:
    """Mark a step as done."""
    if bar is not None:
        progress.update(bar, total=1, completed=1, count="")


def advance(progress: Progress, bar: TaskID, step: demo.Step) -> None:
    """Show the progress of a step, if it is known."""
    if step.messages is None:
        progress.update(bar, count=step.note)
    else:
        count = step.note or part(step.messages, step.total or 0, "message")
        progress.update(bar, total=step.total, completed=step.messages, count=count)


def show_result(result: demo.Result) -> None:
    """Show the counts, three rows, and how to receive from your own queue."""
    good, bad = "bold green", "bold red"
    console = out()
    table = Table(box=None, show_header=False, title="Counted by message id", title_justify="left")
    table.add_column(justify="right")
    table.add_column()
    figures = [
        (f"{result.sent:,}", "sent", ""),
        (f"{result.received:,}", f"received, over {quantity(result.kills, 'kill')}", ""),
        (f"{result.lost:,}", "lost", bad if result.lost else good),
        (f"{result.repeated:,}", "repeated", bad if result.repeated else good),
        (
            f"{result.sent_each_second:,.0f}",
            "messages/s sent, including the start of the JVM",
            "",
        ),
        (
            f"{result.received_each_second:,.0f}" if result.received_each_second else "-",
            "messages/s received in micro-batches, without the first of each process",
            "",
        ),
    ]
    for number, what, style in figures:
        table.add_row(Text(number, style), what)
    console.print(table)
    if result.strange or result.left:
        say_error(f"{result.strange} ids that were never sent, {result.left} still in the queue")
    rows = ((row["seq"], *type_and_time(row["headers"]), row["body"]) for row in result.rows)
    console.print()
    show(("seq", "type", "sent", "body"), rows, "three of its rows")
    console.print(
        "\nTo receive from your own queue, run [bold]export SQLQUEUE_URL=postgresql://… "
        "PGPASSWORD=…[/] and [bold]sqlqueue install[/], then:\n"
    )
    console.print(Syntax(TEN_LINES, "python", background_color="default"))
