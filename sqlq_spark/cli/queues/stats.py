"""The command `stats`: depth of queues and their streams, once or live."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from sqlq_spark.admin import watch
from sqlq_spark.cli.options import (
    CTRL_C,
    FLAGS,
    EndpointTimeZone,
    Queues,
    Shared,
    StateCommand,
)
from sqlq_spark.cli.screens import queues as screen_queues
from sqlq_spark.cli.screens import screen
from sqlq_spark.cli.screens import watch as watch_screen
from sqlq_spark.cli.screens.screen import say, say_error
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import (
    BadOption,
    ConnectionLost,
    CredentialsFailed,
    Deadlock,
    NotReachable,
    SqlQueueError,
    TimedOut,
)
from sqlq_spark.options.names import parse_queue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlq_spark.admin.watch import Look
    from sqlq_spark.cli.screens.watch import Shower
    from sqlq_spark.database import Connection
    from sqlq_spark.options.connection import DatabaseOptions

app = typer.Typer()

SHARE = 4.0  # --watch pauses at least so many times as long as a look took, which counts rows
# --watch continues after these
PASSING = (ConnectionLost, CredentialsFailed, Deadlock, NotReachable, TimedOut)


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
    endpoint_time_zone: EndpointTimeZone = None,
) -> None:
    """
    Show the depth of queues, delayed messages and streams, and what is wrong.

    Without a name it shows all queues that this login may read.
    A number with ~ is an estimate: tables of more than 256 MiB are not counted.
    --watch shows a live screen on a terminal, and prints lines elsewhere.
    in/s is the growth of the highest seq. out/s is in/s less the change of the
    backlog.
    """
    shared: Shared = context.obj
    options = shared.database(endpointTimeZone=endpoint_time_zone)
    names = queues or []
    for name in names:
        parse_queue("QUEUE", name, options.naming)  # before anything is connected
    if count is not None and not watch_:
        raise BadOption(option="--count", found=str(count), expected="--watch with it")
    with Session(options, "stats") as session:
        if watch_:
            shower = choose_shower(interval, as_json=shared.as_json)
            with until_stopped(), shower:
                follow(session, names, options, shower, interval=interval, count=count)
        else:
            once(session.open(), names, options, as_json=shared.as_json)


def choose_shower(interval: float, *, as_json: bool) -> Shower:
    """How looks are shown: as JSON, on a live screen, or as lines."""
    if as_json:
        return watch_screen.JsonLines()
    return watch_screen.Screen(interval) if live() else watch_screen.Lines()


def live() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def once(
    connection: Connection, names: list[str], options: DatabaseOptions, *, as_json: bool
) -> None:
    """Show one look, and on standard error what is wrong and how to fix it."""
    now = watch.look(connection, names, options)
    if as_json:
        screen.print_json(watch.to_json(None, now))
        return
    screen_queues.show_queues(now.queues)
    if now.streams is None:
        say(
            f"no streams: this login sees no state tables in schema {options.state_schema} "
            "(`sqlqueue install` creates them)"
        )
    else:
        screen.show_streams(now.streams)
    for each in now.problems:
        say_error(f"{each.where}: {each.found}. Fix: {' '.join(each.fix.splitlines())}")


def follow(
    session: Session,
    names: list[str],
    options: DatabaseOptions,
    shower: Shower,
    *,
    interval: float,
    count: int | None,
) -> None:
    """Show look after look, until `count` were shown."""
    before: Look | None = None
    done = 0
    for found in looks(session, names, options, interval):
        if isinstance(found, SqlQueueError):
            shower.fail(found.describe(FLAGS))
            continue
        shower.show(before, found)
        before, done = found, done + 1
        if done == count:
            return


def looks(
    session: Session, names: list[str], options: DatabaseOptions, interval: float
) -> Iterator[Look | SqlQueueError]:
    """Look and pause. Yields a temporary error too, but raises one of the first look."""
    reached = False
    while True:
        began = time.monotonic()
        try:
            found: Look | SqlQueueError = watch.look(session.open(), names, options)
        except PASSING as error:
            if not reached:
                raise
            session.close()
            found = error
        reached = True
        took = time.monotonic() - began
        yield found
        time.sleep(max(interval, SHARE * took))


@contextmanager
def until_stopped() -> Iterator[None]:
    """End the block at Ctrl-C and SIGTERM, without an error."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except CTRL_C:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
