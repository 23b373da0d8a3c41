"""The command `move-due`: moves delayed messages of a queue that no endpoint receives from."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from sqlq_spark.admin.formats import quantity, span
from sqlq_spark.cli.options import (
    CTRL_C,
    STOPPED,
    TIMEOUT,
    AsJson,
    Credentials,
    EndpointTimeZone,
    Patience,
    Queue,
    Url,
    source_options,
)
from sqlq_spark.cli.screens import progress, screen
from sqlq_spark.cli.screens.screen import say
from sqlq_spark.database.sessions import Session
from sqlq_spark.send import DUE_BATCH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlq_spark.send.delayed import Moved, Mover

app = typer.Typer()


@app.command("move-due")
def move_due(
    queue: Queue,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Continue until Ctrl-C.")] = False,
    batch: Annotated[int, typer.Option(min=1, help="Messages per transaction.")] = DUE_BATCH,
    endpoint_time_zone: EndpointTimeZone = None,
    as_json: AsJson = False,
    query_timeout: Patience = TIMEOUT,
    url: Url = None,
    credentials: Credentials = None,
) -> None:
    """
    Move the delayed messages that are due into their queue. The receiver forwards them.

    With --watch the command looks again after 1 s, then 2 s, up to 60 s, and
    no later than the next due time.
    """
    from sqlq_spark.send.delayed import Moved, Mover  # noqa: PLC0415 - see cli

    options = source_options(
        url,
        queue,
        endpointTimeZone=endpoint_time_zone,
        queryTimeout=query_timeout,
        credentials=credentials,
    )
    mover = Mover(options.address, options)
    messages, moved = 0, Moved(0, None)
    with (
        stopped_by_signals() as stop,
        Session(options, "move-due") as session,
        progress.progress("message", quiet=as_json or watch) as advance,
    ):
        name = session.open().printed(options.address)
        for moved in rounds(session, mover, batch, stop, watch=watch):
            messages += moved.messages
            advance(moved.messages)
            if watch and moved.messages:
                report(name, moved, as_json=as_json, total=False)
    report(name, Moved(messages, moved.next_due), as_json=as_json, total=True)
    if stop.is_set() and not watch:
        raise typer.Exit(STOPPED)


def rounds(
    session: Session, mover: Mover, batch: int, stop: threading.Event, *, watch: bool
) -> Iterator[Moved]:
    """Move batch after batch until nothing is due, or with `watch` until it is stopped."""
    from sqlq_spark.send.delayed import pause  # noqa: PLC0415 - see cli

    slept = 0.0
    while not stop.is_set():
        try:
            moved = session.run_with_retries(lambda connection: mover.move(connection, batch))
        except CTRL_C:
            stop.set()  # the open transaction was rolled back
            return
        yield moved
        if moved.messages == batch:
            slept = 0.0
        elif watch:
            slept = pause(slept, moved)
            stop.wait(slept)
        else:
            return


def report(queue: str, moved: Moved, *, as_json: bool, total: bool) -> None:
    """Print how many messages one round, or all of them, moved, and when the next are due."""
    if as_json:
        shown = {"queue": queue, "moved": moved.messages, "nextDueSeconds": moved.next_due}
        screen.print_json(shown | {"total": total})
        return
    text = f"{quantity(moved.messages, 'message')} moved into {queue}"
    say(f"{text}{' in total' if total else ''}; {describe_next(moved.next_due)}")


def describe_next(next_due: float | None) -> str:
    """When the next message is due."""
    if next_due is None:
        return "no message waits"
    if next_due <= 0:
        return "more are due, but another process is moving them"
    return f"the next is due in {span(next_due)}"


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Give an event that Ctrl-C and SIGTERM set, so that the open transaction is committed."""
    stop = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: stop.set()) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
