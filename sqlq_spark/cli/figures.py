"""The commands `stats` and `report`: the figures of queues and streams."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from sqlq_spark.admin import watch
from sqlq_spark.admin.formats import clean, quantity, view
from sqlq_spark.cli import screen
from sqlq_spark.cli.options import FLAGS, EndpointTimeZone, Queues, Shared, StateCommand
from sqlq_spark.cli.screen import say, say_error
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import (
    BadOption,
    ConnectionLost,
    CredentialsFailed,
    Deadlock,
    MissingOption,
    NotReachable,
    SqlQueueError,
    TimedOut,
)
from sqlq_spark.options.names import parse_queue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlq_spark.admin.watch import Look
    from sqlq_spark.options.connection import DatabaseOptions

app = typer.Typer()

SHARE = 4.0  # --watch pauses at least so many times as long as a look took, which counts rows
# --watch continues after these
PASSING = (ConnectionLost, CredentialsFailed, Deadlock, NotReachable, TimedOut)
SHOWN = 6  # problems of a live screen
LEGEND = (
    "in/s: growth of the highest seq. out/s: in/s less the change of the backlog. "
    "lag: waiting and held messages. Press Ctrl-C to end."
)


# ---------------------------------------------------------------- stats


@app.command(cls=StateCommand)
def stats(
    context: typer.Context,
    queues: Queues = None,
    *,
    watch_: Annotated[bool, typer.Option("--watch", help="Continue until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two looks of --watch.")
    ] = 2.0,
    count: Annotated[
        int | None, typer.Option(min=1, help="End --watch after so many looks.")
    ] = None,
    openmetrics: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write gauges for Prometheus; - is the standard output."),
    ] = None,
    endpoint_time_zone: EndpointTimeZone = None,
) -> None:
    """
    Show the depth of queues, delayed messages and streams, and what is wrong.

    Without a name it shows all queues that this login may read.
    A number with ~ is an estimate: tables of more than 256 MiB are not counted.
    --watch shows a live screen on a terminal, and prints lines elsewhere.
    in/s is the growth of the highest seq. out/s is in/s less the change of the
    backlog.
    --openmetrics replaces the file at once, also at each look of --watch.
    """
    shared: Shared = context.obj
    options = shared.database(endpointTimeZone=endpoint_time_zone)
    names = queues or []
    for name in names:
        parse_queue("QUEUE", name, options.naming)  # before anything is connected
    if count is not None and not watch_:
        raise BadOption(option="--count", found=str(count), expected="--watch with it")
    if openmetrics is not None and shared.as_json:
        raise BadOption(option="--openmetrics", found=openmetrics, expected="no --json with it")
    on_screen = watch_ and openmetrics is None and not shared.as_json and sys.stdout.isatty()
    live = Live(console=screen.out(), screen=True, auto_refresh=False) if on_screen else None
    with (
        Session(options, "stats") as session,
        until_stopped() if watch_ else nullcontext(),
        live or nullcontext(),
    ):
        for done, now in enumerate(looks(session, names, options, interval, live), 1):
            if live is not None:
                live.update(draw(now, interval), refresh=True)
            elif openmetrics is not None:
                write_metrics(openmetrics, watch.to_metrics(now, shared.state_schema))
            elif shared.as_json:
                screen.print_json(watch.to_json(now))
            else:
                print_look(now, shared.state_schema, as_lines=watch_)
            sys.stdout.flush()
            if not watch_ or done == count:
                return


def looks(
    session: Session,
    names: Sequence[str],
    options: DatabaseOptions,
    interval: float,
    live: Live | None = None,
) -> Iterator[Look]:
    """Look and pause. Says that it tries again after a temporary error, but not of the first."""
    before: Look | None = None
    while True:
        began = time.monotonic()
        now: Look | None = None
        try:
            now = watch.look(session.open(), names, options)
        except PASSING as error:
            if before is None:
                raise
            session.close()
            say_again(error, live)
        took = time.monotonic() - began
        if now is not None:
            before = watch.add_rates(before, now)
            yield before
        time.sleep(max(interval, SHARE * took))


def say_again(error: SqlQueueError, live: Live | None) -> None:
    """Show an error until the next look."""
    text = error.describe(FLAGS)
    text = f"{text} Trying again." if text.endswith(".") else f"{text}. Trying again."
    if live is None:
        say_error(text)
    else:
        live.update(Text(f"{clean(text)} Press Ctrl-C to end.", "red"), refresh=True)


@contextmanager
def until_stopped() -> Iterator[None]:
    """End the block at Ctrl-C and SIGTERM, without an error."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except screen.CTRL_C:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def write_metrics(name: str, text: str) -> None:
    """Write them to the standard output or to a file, which the collector's login may read."""
    if name == "-":
        sys.stdout.write(text)
    else:
        write(name, text, "--openmetrics", 0o644)


def print_look(now: Look, state_schema: str, *, as_lines: bool) -> None:
    """Print a line for each queue; or tables, and on standard error what is wrong."""
    if not now.queues:
        say(f"{now.at:%Y-%m-%d %H:%M:%S} {screen.NO_QUEUES}" if as_lines else screen.NO_QUEUES)
    if as_lines:
        columns = view(watch.QUEUE, "watch")[:-1]
        for each in now.queues:
            figures = ", ".join(f"{column.name} {column.cell(each).text}" for column in columns)
            say(f"{now.at:%Y-%m-%d %H:%M:%S} {each.queue}: {figures}")
        return
    if now.queues:
        screen.show_rows(view(watch.QUEUE, "once"), now.queues, "queues")
    if now.streams is None:
        say(
            f"no streams: this login sees no state tables in schema {state_schema} "
            "(`sqlqueue install` creates them)"
        )
    else:
        screen.show_rows(view(watch.STREAM, "once"), now.streams, "streams")
    for its in now.problems:
        say_error(f"{its.where}: {its.found}. Fix: {' '.join(its.fix.splitlines())}")


def draw(now: Look, interval: float) -> Group:
    head = Text.assemble((f"{now.at:%H:%M:%S} UTC", "bold"), f"  every {interval:g} s")
    queues = screen.draw_rows(view(watch.QUEUE, "watch"), now.queues, "queues")
    streams = (
        Text("no streams: this login sees no state tables", "dim")
        if now.streams is None
        else screen.draw_rows(view(watch.STREAM, "watch"), now.streams, "streams")
    )
    wrong = [line for each in now.problems[:SHOWN] for line in screen.finding_lines(each)]
    if (rest := len(now.problems) - SHOWN) > 0:
        wrong.append(Text(f"{quantity(rest, 'more problem')}: run `sqlqueue doctor`", "dim"))
    parts = [head, queues if now.queues else Text(screen.NO_QUEUES), *wrong, streams]
    return Group(*parts, Text(LEGEND, "dim"))


# ---------------------------------------------------------------- report


@app.command(cls=StateCommand)
def report(
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
    Write one page: what waits, what failed, what is wrong; types, ages, bloat.

    The page has no script and loads nothing.
    With --json the command prints the figures, with or without a page.
    It reads headers, not bodies, and deletes and locks nothing.
    """
    from sqlq_spark.admin import report as its  # noqa: PLC0415 - see cli

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
        found = its.report(session.open(), queues or (), options, errors=errors, most=sample)
    if html is not None:
        # the page names queues, logins and failures, and others may be able to read the folder
        write(str(html), its.write_page(found), "--html", 0o600)
    if shared.as_json:
        screen.print_json(its.to_json(found))
    else:
        say(f"the report of {quantity(len(found.queues), 'queue')} is in {html}")


def write(name: str, text: str, option: str, mode: int) -> None:
    """Replace a file by a complete new one of this mode."""
    path = Path(name)
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="replace", dir=path.parent, delete=False
        ) as file:
            new = Path(file.name)
            try:
                file.write(text)
                file.flush()
                new.chmod(mode)
                new.replace(path)
            except BaseException:
                new.unlink()
                raise
    except OSError as error:
        raise BadOption(
            option=option, found=name, expected=f"a file to write ({error.strerror})"
        ) from None
