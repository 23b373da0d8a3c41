"""The screen of the demo: its progress, and what was counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress, SpinnerColumn
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from sqlq_spark.admin.formats import quantity
from sqlq_spark.cli.screen import PROGRESS, out, say_error, show, type_and_time

if TYPE_CHECKING:
    from sqlq_spark.demo import Result

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


def make_bars(*, quiet: bool) -> Progress:
    """What shows the demo's progress."""
    console = Console(quiet=True) if quiet else out()
    return Progress(SpinnerColumn(finished_text="[green]✓"), *PROGRESS, console=console)


def show_result(result: Result) -> None:
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
        (f"{result.sent_each_second:,.0f}", "messages/s sent, by one write", ""),
        (
            f"{result.received_each_second:,.0f}",
            "messages/s received by the last process, from the start of its stream",
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
