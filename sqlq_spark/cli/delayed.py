"""The command `move-due`: an endpoint's satellite, for a queue whose owner is no endpoint."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from sqlq_spark.admin.formats import counted, span
from sqlq_spark.cli.options import CTRL_C, STOPPED, AsJson, Patience, Queue, Url, given_queue
from sqlq_spark.cli.screens import screen
from sqlq_spark.cli.screens.progress import progress
from sqlq_spark.cli.screens.screen import say
from sqlq_spark.database.sessions import Session
from sqlq_spark.receive.delayed import BATCH, Moved, Mover, pause

if TYPE_CHECKING:
    from collections.abc import Iterator

app = typer.Typer()


@app.command("move-due")
def move_due(
    queue: Queue,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C.")] = False,
    batch: Annotated[int, typer.Option(min=1, help="Messages in a transaction.")] = BATCH,
    endpoint_time_zone: Annotated[
        str | None, typer.Option(help="In which the .NET endpoints' sessions work.")
    ] = None,
    as_json: AsJson = False,
    query_timeout: Patience = "30s",
    url: Url = None,
) -> None:
    """
    Move the delayed messages that are due into their queue; from there their receiver forwards.

    With --watch it looks again after 1 s, then 2, up to 60, but at the next
    due time at the latest.
    """
    options = given_queue(
        url, queue, endpointTimeZone=endpoint_time_zone, queryTimeout=query_timeout
    )
    mover = Mover(options.address, zone=options.endpoint_time_zone, timeout=options.query_timeout)
    name, messages, moved = options.names[0], 0, Moved(0, None)
    with (
        stopped_by_signals() as stop,
        Session(options, "move-due", state=False) as session,
        progress("message", quiet=as_json or watch) as advance,
    ):
        for moved in rounds(session, mover, batch, stop, watch=watch):
            messages += moved.messages
            advance(moved.messages)
            if watch and moved.messages:
                tell(name, moved, as_json=as_json, total=False)
    tell(name, Moved(messages, moved.next_due), as_json=as_json, total=True)
    if stop.is_set() and not watch:
        raise typer.Exit(STOPPED)


def rounds(
    session: Session, mover: Mover, batch: int, stop: threading.Event, *, watch: bool
) -> Iterator[Moved]:
    """Move batch after batch until nothing is due, or, on a watch, until it is stopped."""
    slept = 0.0
    while not stop.is_set():
        try:
            moved = session.do(lambda connection: mover.move(connection, batch))
        except CTRL_C:
            stop.set()  # what was under way is undone
            return
        yield moved
        if moved.messages == batch:
            slept = 0.0
        elif watch:
            slept = pause(slept, moved)
            stop.wait(slept)
        else:
            return


def tell(queue: str, moved: Moved, *, as_json: bool, total: bool) -> None:
    """Say what was moved, in one round of --watch or in all, and when there is more."""
    if as_json:
        shown = {"queue": queue, "moved": moved.messages, "nextDueSeconds": moved.next_due}
        screen.print_json(shown | {"total": total})
        return
    said = f"{counted(moved.messages, 'message')} moved into {queue}"
    say(f"{said}{' in all' if total else ''}; {more(moved.next_due)}")


def more(next_due: float | None) -> str:
    """When there is more to move."""
    if next_due is None:
        return "none waits"
    if next_due <= 0:
        return "more are due, and in the hands of another mover"
    return f"the next is due in {span(next_due)}"


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Give an event that Ctrl-C and SIGTERM set, so that what is under way ends with its commit."""
    stop = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: stop.set()) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
