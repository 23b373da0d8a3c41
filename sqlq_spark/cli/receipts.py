"""The commands `sqlqueue receipts`: what streams received and have not acknowledged."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sqlq_spark.admin import inspect
from sqlq_spark.admin.formats import quantity
from sqlq_spark.cli.options import (
    FOUND,
    TIMEOUT,
    AsJson,
    Credentials,
    MaybeQueue,
    Patience,
    State,
    Url,
    Yes,
    answerable,
    confirm,
    database_options,
)
from sqlq_spark.cli.screens import progress, screen
from sqlq_spark.cli.screens.screen import say, say_error
from sqlq_spark.cli.trail import keeps_trail
from sqlq_spark.database import transaction
from sqlq_spark.database.schema import record_action
from sqlq_spark.database.sessions import StateSession
from sqlq_spark.database.trust import SENT, find_destinations, is_allowed
from sqlq_spark.errors import ReceiptRefused, ReceiptSettled
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.names import parse_queue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlq_spark.database import Connection

app = typer.Typer(
    help="List, show, return or drop what streams received and have not acknowledged.",
    no_args_is_help=True,
)

StreamOption = Annotated[
    str | None, typer.Option("--stream", help="The stream's id, as `receipts list` shows it.")
]
StreamId = Annotated[
    str, typer.Option("--stream", help="The stream's id, as `receipts list` shows it.")
]
Batch = Annotated[int | None, typer.Option(help="Only this batch.")]
Task = Annotated[int | None, typer.Option(help="Only this task.")]
MESSAGE = "A row's id, or the header NServiceBus.MessageId."
Allow = Annotated[
    list[str] | None,
    typer.Option(help="Also return to this table of another owner; * and ? are wildcards."),
]
Without = Annotated[
    list[str] | None,
    typer.Option(help="Delete this message instead of returning it: a row's id, or the header."),
]


@app.command("list")
def list_(
    queue: MaybeQueue = None,
    *,
    stream: StreamOption = None,
    as_json: AsJson = False,
    query_timeout: Patience = TIMEOUT,
    url: Url = None,
    credentials: Credentials = None,
    state_schema: State = DatabaseOptions.state_schema,
) -> None:
    """List receipts, the oldest first."""
    options = database_options(
        url, state_schema, queryTimeout=query_timeout, credentials=credentials
    )
    address = None if queue is None else parse_queue("queue", queue, options.naming)
    with (
        StateSession(options, "receipts") as session,
        transaction(session.open(), timeout=options.query_timeout),
    ):
        found = inspect.receipts(session.open(), stream=stream, queue=address)
    if as_json:
        for each in found:
            screen.print_json(asdict(each))
    else:
        screen.show_receipts(found)


@app.command()
def show(
    stream: Annotated[str, typer.Argument(help="The stream's id, as `receipts list` shows it.")],
    *,
    message: Annotated[str, typer.Option(help=MESSAGE)],
    batch: Batch = None,
    task: Task = None,
    as_json: AsJson = False,
    query_timeout: Patience = TIMEOUT,
    url: Url = None,
    credentials: Credentials = None,
    state_schema: State = DatabaseOptions.state_schema,
) -> None:
    """Show headers and body of a message that a stream has received and not acknowledged."""
    from sqlq_spark.admin import receipt_messages  # noqa: PLC0415 - see cli

    options = database_options(
        url, state_schema, queryTimeout=query_timeout, credentials=credentials
    )
    timeout = options.query_timeout
    with StateSession(options, "receipts show") as session:
        connection = session.open()
        with transaction(connection, timeout=timeout):
            held_by = inspect.receipts(connection, stream=stream, batch=batch, task=task)
        found = list(receipt_messages.find(connection, held_by, message, timeout=timeout))
    for each in found:
        if as_json:
            screen.print_json({"receipt": each.receipt.name, **screen.whole(each.message)})
        else:
            screen.show_received(each.receipt, each.message)
    if not found:
        say_error(f"no receipt of stream {stream} holds message {message}")
        raise typer.Exit(FOUND)


@app.command("return")
def return_(
    *,
    stream: StreamId,
    batch: Batch = None,
    task: Task = None,
    without: Without = None,
    allow: Allow = None,
    yes: Yes = False,
    as_json: AsJson = False,
    query_timeout: Patience = TIMEOUT,
    url: Url = None,
    credentials: Credentials = None,
    state_schema: State = DatabaseOptions.state_schema,
) -> None:
    """Return the messages of receipts to their queue, if the stream's checkpoint is lost."""
    answerable(yes=yes, as_json=as_json)
    options = database_options(
        url,
        state_schema,
        queryTimeout=query_timeout,
        allowedDestinations=", ".join(allow) if allow else None,
        credentials=credentials,
    )
    with StateSession(options, "receipts return") as session:
        with transaction(session.open(), timeout=options.query_timeout):
            found = choose(session.open(), stream, batch, task, quiet=as_json)
            check_logins(session.open(), found, options)
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
                yes=yes,
                as_json=as_json,
            )
        recorded = keeps_trail(session.open())
        batches = return_all(session.open(), open_, options, without or (), recorded=recorded)
        messages = progress.follow(batches, "message", held(open_), quiet=as_json, done="returned")
    if as_json:
        names = [each.name for each in settled]
        result = {"returned": messages, "receipts": len(open_), "settled": names}
        screen.print_json(result | {"recorded": recorded})
    else:
        say(f"{quantity(messages, 'message')} returned")
    if settled:
        raise typer.Exit(FOUND)


@app.command()
def drop(
    *,
    stream: StreamId,
    batch: Batch = None,
    task: Task = None,
    yes: Yes = False,
    as_json: AsJson = False,
    query_timeout: Patience = TIMEOUT,
    url: Url = None,
    credentials: Credentials = None,
    state_schema: State = DatabaseOptions.state_schema,
) -> None:
    """Delete receipts with their messages. They cannot be restored."""
    answerable(yes=yes, as_json=as_json)
    options = database_options(
        url, state_schema, queryTimeout=query_timeout, credentials=credentials
    )
    with StateSession(options, "receipts drop") as session:
        with transaction(session.open(), timeout=options.query_timeout):
            found = choose(session.open(), stream, batch, task, quiet=as_json)
        confirm(f"delete {screen.total(found)} permanently", yes=yes, as_json=as_json)
        recorded = keeps_trail(session.open())
        batches = drop_all(session.open(), found, options, recorded=recorded)
        messages = progress.follow(batches, "message", held(found), quiet=as_json, done="dropped")
    if as_json:
        screen.print_json({"dropped": messages, "receipts": len(found), "recorded": recorded})
    else:
        say(f"{quantity(messages, 'message')} dropped")


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


def choose(
    connection: Connection, stream: str, batch: int | None, task: int | None, *, quiet: bool
) -> list[inspect.Receipt]:
    """Find the receipts that the options name, and show them unless quiet; exits if none."""
    found = inspect.receipts(connection, stream=stream, batch=batch, task=task)
    if not found:
        say_error(f"stream {stream} has no such receipt; `sqlqueue receipts list` lists all")
        raise typer.Exit(FOUND)
    if not quiet:
        screen.show_receipts(found)
    return found
