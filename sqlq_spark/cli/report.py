"""The command `report`: queues, their messages and failures, on one page to keep or to send on."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sqlq_spark.admin import history, report
from sqlq_spark.admin.formats import counted
from sqlq_spark.admin.page import report as report_page
from sqlq_spark.cli.options import AsJson, Patience, Queues, State, Url, given
from sqlq_spark.cli.screens.screen import print_json, say
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import BadOption, MissingOption
from sqlq_spark.options.addresses import parse_queue

if TYPE_CHECKING:
    from sqlq_spark.admin.history import Point

app = typer.Typer()


@app.command("report")
def report_(
    queues: Queues = None,
    *,
    html: Annotated[Path | None, typer.Option(help="Write a page into this file.")] = None,
    error_queue: Annotated[
        str | None, typer.Option(help="Also the failures in this queue, by exception.")
    ] = None,
    history_: Annotated[
        Path | None,
        typer.Option("--history", help="What `stats --watch --json` wrote: backlog and flow."),
    ] = None,
    sample: Annotated[
        int, typer.Option(min=100, help="Messages of each queue whose headers are read.")
    ] = 20_000,
    endpoint_time_zone: Annotated[
        str | None, typer.Option(help="In which the .NET endpoints' sessions work.")
    ] = None,
    as_json: AsJson = False,
    query_timeout: Patience = "30s",
    url: Url = None,
    state_schema: State = "sqlqueue",
) -> None:
    """
    Write one page with charts: backlog and flow, message types, ages, failures, bloat.

    The page stands alone: no script, nothing that is fetched.
    With --json also, or only, the figures.
    Reads headers, not bodies; deletes and locks nothing.
    """
    if html is None and not as_json:
        raise MissingOption("--html", "a file for the page, or --json for the figures")
    options = given(
        url,
        state_schema,
        endpointTimeZone=endpoint_time_zone,
        queryTimeout=query_timeout,
    )
    for name in queues or ():
        parse_queue("QUEUE", name, options.naming)  # before anything is connected
    errors = (
        None if error_queue is None else parse_queue("--error-queue", error_queue, options.naming)
    )
    points = {} if history_ is None else kept(history_)
    with Session(options, "report", state=False) as session:
        found = report.report(session.open(), queues or (), options, errors=errors, most=sample)
    if html is not None:
        write(html, report_page.written(found, points))
    if as_json:
        print_json(report.shown(found))
    else:
        say(f"the report of {counted(len(found.queues), 'queue')} is in {html}")


def kept(path: Path) -> dict[str, list[Point]]:
    """Read a history."""
    try:
        with path.open("rb") as lines:
            return history.read(lines)
    except OSError as error:
        raise BadOption("--history", str(path), f"a file to read ({error.strerror})") from None


def write(path: Path, text: str) -> None:
    """
    Write a file whole, or leave what was there; only its owner may read it.

    The page names queues, logins and what failed, and the folder may be one that all may read.
    """
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="replace", dir=path.parent, delete=False
        ) as file:
            file.write(text)
        Path(file.name).replace(path)
    except OSError as error:
        raise BadOption("--html", str(path), f"a file to write ({error.strerror})") from None
