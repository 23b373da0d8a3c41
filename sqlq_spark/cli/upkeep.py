"""The commands `purge`, `purge-expired`, `move-due` and `doctor`."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sqlq_spark.admin import checks, inspect, purge, queue_tables, subscribers
from sqlq_spark.admin.formats import quantity, span
from sqlq_spark.admin.problems import state_unread
from sqlq_spark.cli import screen
from sqlq_spark.cli.options import (
    FOUND,
    STOPPED,
    AskingStateCommand,
    Command,
    EndpointTimeZone,
    Queue,
    Queues,
    Shared,
    States,
    SubscriptionTable,
    confirm,
    keeps_trail,
)
from sqlq_spark.cli.screen import CTRL_C, NO_QUEUES, print_json, say
from sqlq_spark.database import transaction
from sqlq_spark.database.schema import find_states
from sqlq_spark.database.sessions import Session
from sqlq_spark.options.names import parse_queue, parse_table
from sqlq_spark.options.sink import SUBSCRIPTION_TABLE
from sqlq_spark.send import DUE_BATCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlq_spark.admin.problems import Finding
    from sqlq_spark.database import Connection
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.options.connection import DatabaseOptions
    from sqlq_spark.send.delayed import Moved, Mover
    from sqlq_spark.wire.address import QueueAddress

app = typer.Typer()


# ---------------------------------------------------------------- purge


@app.command("purge", cls=AskingStateCommand)
def purge_(context: typer.Context, queue: Queue) -> None:
    """
    Delete every message that waits in a queue, in batches, the lowest seq first. Asks first.

    Waits for messages that a consumer has locked. Messages sent meanwhile
    stay. A deleted message cannot be restored.
    """
    shared: Shared = context.obj
    options = shared.source(queue)
    with Session(options, "purge") as session:
        connection = session.open()
        depth = measure(connection, options)
        what = f"delete {quantity(depth.messages, 'message')} of {depth.queue} permanently"
        if depth.messages:
            confirm(what, shared)
        recorded = depth.messages > 0 and keeps_trail(connection)
        batches = purge.purge_parts(
            connection, options.address, depth, timeout=options.query_timeout, recorded=recorded
        )
        gone = screen.follow(
            batches, "message", depth.messages, quiet=shared.as_json, done="deleted"
        )
    if shared.as_json:
        print_json({"queue": depth.queue, "deleted": gone, "recorded": recorded})
    else:
        say(f"{quantity(gone, 'message')} deleted")


@app.command("purge-expired", cls=Command)
def purge_expired(context: typer.Context, queue: Queue) -> None:
    """Delete expired messages, in batches. Skips messages that others have locked."""
    shared: Shared = context.obj
    options = shared.source(queue)
    with Session(options, "purge") as session:
        connection = session.open()
        depth = measure(connection, options)
        batches = purge.purge_expired(connection, options.address, timeout=options.query_timeout)
        gone = screen.follow(
            batches, "expired message", depth.expired or 0, quiet=shared.as_json, done="deleted"
        )
    if shared.as_json:
        print_json({"queue": depth.queue, "deleted": gone})
    else:
        say(f"{quantity(gone, 'expired message')} deleted from {depth.queue}")


def measure(connection: Connection, options: SourceOptions) -> inspect.Depth:
    with transaction(connection, timeout=options.query_timeout):
        return inspect.depth(connection, options.address)


# ---------------------------------------------------------------- move-due


@app.command("move-due", cls=Command)
def move_due(
    context: typer.Context,
    queue: Queue,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Continue until Ctrl-C.")] = False,
    batch: Annotated[int, typer.Option(min=1, help="Messages per transaction.")] = DUE_BATCH,
    endpoint_time_zone: EndpointTimeZone = None,
) -> None:
    """
    Move the delayed messages that are due into their queue. The receiver forwards them.

    With --watch the command looks again after 1 s, then 2 s, up to 60 s, and
    no later than the next due time.
    """
    from sqlq_spark.send.delayed import Moved, Mover  # noqa: PLC0415 - see cli

    shared: Shared = context.obj
    options = shared.source(queue, endpointTimeZone=endpoint_time_zone)
    mover = Mover(options.address, options)
    messages, moved = 0, Moved(0, None)
    with (
        stopped_by_signals() as stop,
        Session(options, "move-due") as session,
        screen.progress("message", quiet=shared.as_json or watch) as advance,
    ):
        name = session.open().printed(options.address)
        for moved in rounds(session, mover, batch, stop, watch=watch):
            messages += moved.messages
            advance(moved.messages)
            if watch and moved.messages:
                report(name, moved, as_json=shared.as_json, total=False)
    report(name, Moved(messages, moved.next_due), as_json=shared.as_json, total=True)
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
        print_json(shown | {"total": total})
        return
    if moved.next_due is None:
        then = "no message waits"
    elif moved.next_due <= 0:
        then = "more are due, but another process is moving them"
    else:
        then = f"the next is due in {span(moved.next_due)}"
    text = f"{quantity(moved.messages, 'message')} moved into {queue}"
    say(f"{text}{' in total' if total else ''}; {then}")


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


# ---------------------------------------------------------------- doctor


@app.command(cls=Command)
def doctor(
    context: typer.Context,
    queues: Queues = None,
    *,
    warn_if_shared: Annotated[
        bool, typer.Option(help="Warn if an endpoint seems to own the queue of a stream.")
    ] = True,
    subscription_table: SubscriptionTable = SUBSCRIPTION_TABLE,
    state_schema: States = None,
) -> None:
    """
    Check queues, subscriptions, streams and the server, and print the fix of each problem.

    Without a name it checks all queues that this login may read. Without
    --state-schema it names the state schemas that it did not look into.
    Changes nothing. The exit code is 1 if there is an error or a warning.
    """
    shared: Shared = context.obj
    options = shared.database(stateSchema=state_schema)
    table = parse_queue("--subscription-table", subscription_table, options.naming)
    with Session(options, "doctor") as session:
        connection = session.open()
        asked = [parse_table("QUEUE", name, options.naming) for name in queues or ()]
        states, unread = find_states(connection) if state_schema is None else ([], {})
        if not unread:
            states = states or [options.state_schema]
        unnamed, unfit = ([], []) if queues else all_queues(connection, options, states)
        found = [state_unread(connection.server, *each) for each in unread.items()]
        found += unfit
        found += checks.run_all_checks(
            connection,
            [*asked, *unnamed],
            timeout=options.query_timeout,
            warn_if_shared=warn_if_shared,
            unnamed=unnamed,
            states=states,
        )
        found += subscribers.check(connection, table, timeout=options.query_timeout)
    if shared.as_json:
        for each in found:
            print_json(asdict(each))
    else:
        if not (asked or unnamed):
            say(f"no queue was checked: {NO_QUEUES.partition(': ')[2]}")
        screen.show_findings(found)
    if any(each.is_problem for each in found):
        raise typer.Exit(FOUND)


def all_queues(
    connection: Connection, options: DatabaseOptions, states: Sequence[str]
) -> tuple[list[QueueAddress], list[Finding]]:
    """The queues of the database, and those that streams read; and a finding for no address."""
    found = [each.address for each in queue_tables.queues(queue_tables.tables(connection))]
    known = {connection.printed(each) for each in found}
    read, unfit = checks.queues_of_streams(connection, states, options)
    return found + [each for each in read if connection.printed(each) not in known], unfit
