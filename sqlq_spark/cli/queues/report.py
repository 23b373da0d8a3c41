"""The command `report`: queues, their messages and failures, on one HTML page."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from sqlq_spark.admin.formats import quantity
from sqlq_spark.cli.options import EndpointTimeZone, Queues, Shared, StateCommand
from sqlq_spark.cli.screens.screen import print_json, say
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import BadOption, MissingOption
from sqlq_spark.options.names import parse_queue

app = typer.Typer()


@app.command("report", cls=StateCommand)
def report_(
    context: typer.Context,
    queues: Queues = None,
    *,
    html: Annotated[Path | None, typer.Option(help="Write the page to this file.")] = None,
    error_queue: Annotated[
        str | None, typer.Option(help="Also report the failures in this queue, by exception.")
    ] = None,
    sample: Annotated[
        int, typer.Option(min=100, help="Read the headers of at most so many messages per queue.")
    ] = 20_000,
    endpoint_time_zone: EndpointTimeZone = None,
) -> None:
    """
    Write one page with charts: message types, ages, failures, bloat.

    The page has no script and loads nothing.
    With --json the command prints the figures, with or without a page.
    It reads headers, not bodies, and deletes and locks nothing.
    """
    from sqlq_spark.admin import report  # noqa: PLC0415 - see cli
    from sqlq_spark.admin.page import report as report_page  # noqa: PLC0415 - see cli

    shared: Shared = context.obj
    if html is None and not shared.as_json:
        raise MissingOption(
            option="--html", example="a file for the page, or use --json to print the figures"
        )
    options = shared.database(endpointTimeZone=endpoint_time_zone)
    for name in queues or ():
        parse_queue("QUEUE", name, options.naming)  # before anything is connected
    errors = (
        None if error_queue is None else parse_queue("--error-queue", error_queue, options.naming)
    )
    with Session(options, "report") as session:
        found = report.report(session.open(), queues or (), options, errors=errors, most=sample)
    if html is not None:
        write(html, report_page.write_page(found))
    if shared.as_json:
        print_json(report.to_json(found))
    else:
        say(f"the report of {quantity(len(found.queues), 'queue')} is in {html}")


def write(path: Path, text: str) -> None:
    """
    Replace a file by a complete new one that only its owner may read.

    The page names queues, logins and failures, and other users may be able to read the folder.
    """
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="replace", dir=path.parent, delete=False
        ) as file:
            file.write(text)
        Path(file.name).replace(path)
    except OSError as error:
        raise BadOption(
            option="--html", found=str(path), expected=f"a file to write ({error.strerror})"
        ) from None
