"""The commands `sqlqueue receipts`: what streams received and have not acknowledged."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sqlq_spark.admin import inspect
from sqlq_spark.admin.formats import quantity
from sqlq_spark.cli import screen
from sqlq_spark.cli.options import (
    FOUND,
    Allow,
    AskingStateCommand,
    MaybeQueue,
    Shared,
    StateCommand,
    confirm,
    fail,
    keeps_trail,
)
from sqlq_spark.cli.screen import say, say_error
from sqlq_spark.database import transaction
from sqlq_spark.database.schema import record_action
from sqlq_spark.database.sessions import StateSession
from sqlq_spark.database.trust import SENT, find_destinations, is_allowed
from sqlq_spark.errors import ReceiptRefused, ReceiptSettled
from sqlq_spark.options.names import parse_queue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.options.connection import DatabaseOptions

app = typer.Typer(
    help="List, show, return or drop what streams received and have not acknowledged.",
    no_args_is_help=True,
)

STREAM = "The stream's id, as `receipts list` shows it."
StreamId = Annotated[str, typer.Option("--stream", help=STREAM)]
Batch = Annotated[int | None, typer.Option(help="Only this batch.")]
Task = Annotated[int | None, typer.Option(help="Only this task.")]
MESSAGE = "A row's id, or the header NServiceBus.MessageId."
Without = Annotated[
    list[str] | None,
    typer.Option(help="Delete this message instead of returning it: a row's id, or the header."),
]


@app.command("list", cls=StateCommand)
def list_(
    context: typer.Context,
    queue: MaybeQueue = None,
    *,
    stream: Annotated[str | None, typer.Option("--stream", help=STREAM)] = None,
) -> None:
    """List receipts, the oldest first."""
    shared: Shared = context.obj
    options = shared.database()
    address = None if queue is None else parse_queue("queue", queue, options.naming)
    with (
        StateSession(options, "receipts") as session,
        transaction(session.open(), timeout=options.query_timeout),
    ):
        found = inspect.receipts(session.open(), stream=stream, queue=address)
    if shared.as_json:
        for each in found:
            screen.print_json(asdict(each))
    else:
        screen.show_rows(screen.RECEIPT, found, "receipts")


@app.command(cls=StateCommand)
def show(
    context: typer.Context,
    stream: Annotated[str, typer.Argument(help=STREAM)],
    *,
    message: Annotated[str, typer.Option(help=MESSAGE)],
    batch: Batch = None,
    task: Task = None,
) -> None:
    """Show headers and body of a message that a stream has received and not acknowledged."""
    shared: Shared = context.obj
    options = shared.database()
    with StateSession(options, "receipts show") as session:
        connection = session.open()
        with transaction(connection, timeout=options.query_timeout):
            held_by = inspect.receipts(connection, stream=stream, batch=batch, task=task)
        found = list(find_message(connection, held_by, message, timeout=options.query_timeout))
    for receipt, its in found:
        if shared.as_json:
            screen.print_json({"receipt": receipt.name, **screen.message_as_json(its)})
        else:
            screen.show_received(receipt, its)
    if not found:
        fail(f"no receipt of stream {stream} holds message {message}")


@app.command("return", cls=AskingStateCommand)
def return_(
    context: typer.Context,
    *,
    stream: StreamId,
    batch: Batch = None,
    task: Task = None,
    without: Without = None,
    allow: Allow = None,
) -> None:
    """Return the messages of receipts to their queue, if the stream's checkpoint is lost."""
    shared: Shared = context.obj
    options = shared.database(allowedDestinations=", ".join(allow) if allow else None)
    with StateSession(options, "receipts return") as session:
        connection = session.open()
        with transaction(connection, timeout=options.query_timeout):
            found = choose(connection, stream, batch, task, quiet=shared.as_json)
            check_logins(connection, found, options)
        settled = [each for each in found if each.settled]
        open_ = [each for each in found if not each.settled]
        for each in settled:
            say_error(str(ReceiptSettled(stream=each.stream, batch=each.batch, task=each.task)))
        if open_:
            queues = ", ".join(sorted({each.queue for each in open_}))
            gone = f", and delete {', '.join(without)} of them" if without else ""
            confirm(
                f"return {screen.total(open_)} to {queues}{gone}. "
                "Messages that the stream has already written will be received a second time, and "
                "its checkpoint can no longer be used for these batches",
                shared,
            )
        recorded = keeps_trail(connection)
        batches = return_all(connection, open_, options, without or (), recorded=recorded)
        messages = screen.follow(
            batches, "message", held(open_), quiet=shared.as_json, done="returned"
        )
    if shared.as_json:
        names = [each.name for each in settled]
        result = {"returned": messages, "receipts": len(open_), "settled": names}
        screen.print_json(result | {"recorded": recorded})
    else:
        say(f"{quantity(messages, 'message')} returned")
    if settled:
        raise typer.Exit(FOUND)


@app.command(cls=AskingStateCommand)
def drop(
    context: typer.Context,
    *,
    stream: StreamId,
    batch: Batch = None,
    task: Task = None,
) -> None:
    """Delete receipts with their messages. They cannot be restored."""
    shared: Shared = context.obj
    options = shared.database()
    with StateSession(options, "receipts drop") as session:
        connection = session.open()
        with transaction(connection, timeout=options.query_timeout):
            found = choose(connection, stream, batch, task, quiet=shared.as_json)
        confirm(f"delete {screen.total(found)} permanently", shared)
        recorded = keeps_trail(connection)
        batches = drop_all(connection, found, options, recorded=recorded)
        messages = screen.follow(
            batches, "message", held(found), quiet=shared.as_json, done="dropped"
        )
    if shared.as_json:
        screen.print_json({"dropped": messages, "receipts": len(found), "recorded": recorded})
    else:
        say(f"{quantity(messages, 'message')} dropped")


# ---------------------------------------------------------------- steps


def choose(
    connection: Connection, stream: str, batch: int | None, task: int | None, *, quiet: bool
) -> list[inspect.Receipt]:
    """Find the receipts that the options name, and show them unless quiet; exits if none."""
    found = inspect.receipts(connection, stream=stream, batch=batch, task=task)
    if not found:
        fail(f"stream {stream} has no such receipt; `sqlqueue receipts list` lists all")
    if not quiet:
        screen.show_rows(screen.RECEIPT, found, "receipts")
    return found


def held(found: Sequence[inspect.Receipt]) -> int:
    """The number of messages in receipts."""
    return sum(each.messages for each in found)


def check_logins(
    connection: Connection, found: Sequence[inspect.Receipt], options: DatabaseOptions
) -> None:
    """
    Refuse receipts whose login may not receive from their queue, unless the options allow it.

    Raises:
        ReceiptRefused.
    """
    for each in found:
        if each.entitled:
            continue
        queue = parse_queue("queue", each.queue, options.naming)
        table = find_destinations(connection, [queue], SENT).get(queue)
        if table is not None and not is_allowed(table, options.allowed):
            raise ReceiptRefused(receipt=each.name, login=each.login, queue=each.queue)


def find_message(
    connection: Connection, found: Sequence[inspect.Receipt], name: str, *, timeout: float
) -> Iterator[tuple[inspect.Receipt, inspect.Message]]:
    """
    Look for a message in receipts; changes and locks nothing, no transaction is open.

    Args:
        connection: no transaction open.
        found: the receipts.
        name: the id of the row, or the header NServiceBus.MessageId.
        timeout: seconds for each statement.

    Yields:
        Each row that has the id. Ids are not unique: a message may have been sent twice.

    Raises:
        PayloadRefused: someone has changed a receipt.
    """
    from sqlq_spark.receive.receipts import find_receipt  # noqa: PLC0415 - see cli
    from sqlq_spark.wire.header_columns import has_id  # noqa: PLC0415 - see cli
    from sqlq_spark.wire.rows import without_odd_expiries  # noqa: PLC0415 - see cli

    for each in found:
        with transaction(connection, timeout=timeout):
            stored = find_receipt(connection, each.key)
        if stored is not None:
            rows = stored.unpack(each.key)
            for row in without_odd_expiries(rows.filter(has_id(rows, [name]))).to_pylist():
                yield each, inspect.message(row)


def return_all(
    connection: Connection,
    found: Sequence[inspect.Receipt],
    options: DatabaseOptions,
    without: Sequence[str],
    *,
    recorded: bool,
) -> Iterator[int]:
    """Return receipts, each in its own transaction. Yields the number of messages of each."""
    from sqlq_spark.receive import receipts  # noqa: PLC0415 - see cli

    for each in found:
        queue = parse_queue("queue", each.queue, options.naming)
        with transaction(connection, timeout=options.query_timeout):
            messages = receipts.return_(
                connection, each.key, queue, without=without, allowed=options.allowed
            )
            if recorded:
                record_action(connection, "return", each.queue, messages, each.key)
                if messages < each.messages:  # --without
                    dropped = each.messages - messages
                    record_action(connection, "drop", each.queue, dropped, each.key)
        yield messages


def drop_all(
    connection: Connection,
    found: Sequence[inspect.Receipt],
    options: DatabaseOptions,
    *,
    recorded: bool,
) -> Iterator[int]:
    """Drop receipts, each in its own transaction. Yields the number of messages of each."""
    from sqlq_spark.receive import receipts  # noqa: PLC0415 - see cli

    for each in found:
        with transaction(connection, timeout=options.query_timeout):
            messages = receipts.drop(connection, each.key)
            if recorded:
                record_action(connection, "drop", each.queue, messages, each.key)
        yield messages
