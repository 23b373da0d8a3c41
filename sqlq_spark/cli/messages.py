"""
The commands on messages: `send`, `browse`, `retry`, and those of `receipts`.

Receipts hold what streams received and have not acknowledged.
"""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option, Typer

from sqlq_spark.admin import inspect
from sqlq_spark.admin.formats import Column, ago, byte_size, quantity
from sqlq_spark.cli import options as cli
from sqlq_spark.cli import screen
from sqlq_spark.cli.options import (
    AskingStateCommand,
    Command,
    Context,
    StateCommand,
    require,
)
from sqlq_spark.cli.screen import say, say_error
from sqlq_spark.database import transaction
from sqlq_spark.database.schema import record_action
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.database.trust import SENT, find_destinations, is_allowed
from sqlq_spark.errors import MissingOption, ReceiptRefused, ReceiptSettled
from sqlq_spark.options.names import parse_queue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlq_spark.admin.inspect import Receipt
    from sqlq_spark.options.connection import DatabaseOptions

app = Typer()

SHOWN_IDS = 5  # of messages that stay
GROUP = ("messages", "failedQueue", "exception")  # of failed messages


@app.command(cls=Command)
def send(
    context: Context,
    queue: Annotated[str | None, Argument()] = None,
    source: Annotated[
        Path | None, Argument(help="A file of JSON lines; default: standard input.")
    ] = None,
    *,
    topic: list[str] | None = None,
    file: Path | None = None,
    message_type: str | None = None,
    content_type: str | None = None,
    time_to_be_received: str | None = None,
    header: list[str] | None = None,
    subscription_table: str | None = None,
) -> None:
    """
    Send messages in one transaction: each line is a JSON object with the field body.

    A text body is sent unchanged. Another JSON value is serialised.
    Use bodyBase64 instead of body to send bytes.
    Optional fields: headers, id, timeToBeReceived (hh:mm:ss), delay
    (hh:mm:ss), deliverAt (a time with its zone), correlationId,
    replyToAddress, queue (another destination for this line), and topics
    (to publish this line). Omit QUEUE if each line of standard input has
    queue or topics.

    {"body": {"OrderId": 7}, "headers": {"tenant": "blue"}}
    {"body": "later", "delay": "00:30:00"}
    {"body": "then", "deliverAt": "2026-06-30T17:05:09Z"}
    {"body": "published", "topics": ["Shop.OrderPlaced", "Shop.IEvent"]}

    Options:
        topic: Publish to this topic; then omit QUEUE. Most derived type first.
        file: Send one message with this file as its body.
        message_type: The .NET type's full name.
        content_type: Content type, for example application/json.
        time_to_be_received: hh:mm:ss, after which the message expires.
        header: KEY=VALUE, added to each message.
        subscription_table: The subscription table: a table, or "schema"."table".
    """
    from sqlq_spark.cli import sending  # noqa: PLC0415 - see cli

    if topic:  # there is no queue, and the first argument is the file
        expected = "a file of lines, but no QUEUE, with it"
        require(source is None, "--topic", ", ".join(topic), expected)
        source = None if queue is None else Path(queue)
        queue = None
    elif queue is None and file is not None:
        example = "a queue's name, or publish with --topic"
        raise MissingOption(option="QUEUE", example=example)
    expected = "a file of JSON lines or --file, not both"
    require(source is None or file is None, "--file", file, expected)
    headers = {}
    for text in header or ():
        key, equals, headers[key] = text.partition("=")
        require(key and equals, "--header", text, "KEY=VALUE")
    options = context.obj.sink(
        queue=queue,
        topics=topic,
        subscriptionTable=subscription_table,
        messageType=message_type,
        contentType=content_type,
        timeToBeReceived=time_to_be_received,
    )
    session = context.with_resource(Session(options, "send"))
    chunks = sending.read(session, options, source, file, headers)
    sending.insert(context, session.open(), options, chunks)


@app.command(cls=Command)
def browse(
    context: Context,
    queue: str,
    *,
    limit: Annotated[int, Option(min=1)] = 20,
) -> None:
    """
    Show the messages that wait, lowest seq first. Deletes and locks nothing.

    Options:
        limit: Messages to show.
    """
    options = context.obj.source(queue)
    connection = context.connect(options, "browse")
    found = inspect.messages(connection, options.address, limit=limit)
    if context.obj.as_json:
        for each in found:
            screen.print_json(screen.message_as_json(each))
    else:
        screen.show_messages(found)


# ---------------------------------------------------------------- retry


@app.command(cls=cli.AskingCommand)
def retry(
    context: Context,
    queue: str,
    ids: Annotated[list[str] | None, Argument(help="Messages, by message id or row id.")] = None,
    *,
    everything: Annotated[bool, Option("--all")] = False,
    exception: list[str] | None = None,
    failed_queue: str | None = None,
    since: str | None = None,
    until: str | None = None,
    limit: Annotated[int | None, Option(min=1)] = None,
    batch: Annotated[int, Option(min=1)] = 1000,
    allow: list[str] | None = None,
) -> None:
    """
    Return failed messages from an error queue to the queues in which they failed.

    Name messages, or choose them by exception, queue and time (all conditions
    must match), or use --all. With --limit the oldest of them are returned.
    A message that cannot be returned stays in the error queue. The command
    reports it and exits with 1.

    Options:
        everything: Return all messages of the error queue.
        exception: Only failures of this exception type: its full name or its last part.
        failed_queue: Only messages that failed in this queue.
        since: Only messages that failed at this time or later.
        until: Only messages that failed before this time.
        limit: Only the oldest so many of them, to try a fix before the rest.
        batch: Messages per transaction.
    """
    from sqlq_spark.admin.failed_messages import Choice, give_back, plan  # noqa: PLC0415 - see cli

    options = context.obj.source(queue, allowedDestinations=allow)
    choice = Choice(
        ids=frozenset(ids or ()),
        exceptions=frozenset(exception or ()),
        failed_queue=cli.queue_or_none("--failed-queue", failed_queue, options),
        since=cli.read_moment("--since", since),
        until=cli.read_moment("--until", until),
    )
    chooses = choice != Choice()
    require(not (everything and chooses), "--all", "true", "no other choice of messages with it")
    if not everything and not chooses:
        example = "the messages to return, or --exception, --failed-queue, or --all"
        raise MissingOption(option="ID", example=example)
    session = context.with_resource(Session(options, "retry"))
    connection = session.open()
    name = connection.printed(options.address)
    planned = plan(connection, options.address, choice, options, limit=limit)
    groups = [(messages, *failures) for *failures, messages in planned.groups]
    if not context.obj.as_json:
        screen.show(("messages", "failed queue", "exception"), groups, "messages to return")
        for reason, some in planned.staying.items():
            stay, first = quantity(len(some), "message"), [its.id for its in some[:SHOWN_IDS]]
            say_error(f"{stay} cannot be returned: {reason} ({', '.join(first)})")
        if planned.missing:
            say_error(f"not in the error queue: {', '.join(planned.missing)}")
    if planned.messages:
        queues = quantity(len(planned.returning), "queue")
        messages = quantity(planned.messages, "message")
        context.confirm(f"return {messages} of {name} to {queues}")
    batches = give_back(session, options.address, planned, batch=batch)
    count = attrgetter("messages")
    done = context.follow(batches, "message", planned.messages, "returned", count)
    staying = Counter({reason: len(some) for reason, some in planned.staying.items()})
    for each in done:
        if each.reason is not None:
            staying[str(each.reason)] += each.left
            stay, where = quantity(each.left, "message"), connection.printed(each.destination)
            say_error(f"{stay} of {where} cannot be returned: {each.reason}")
    returned, skipped = sum(map(count, done)), sum(each.skipped for each in done)
    if skipped:
        text = "skipped: another session has locked or received them"
        say_error(f"{quantity(skipped, 'message')} {text}")
    result = {
        "queue": name,
        "returned": returned,
        "skipped": skipped,
        "chosen": [dict(zip(GROUP, each, strict=True)) for each in groups],
        "staying": staying,
        "missing": planned.missing,
    }
    context.answer(result, f"{quantity(returned, 'message')} returned")
    if staying or planned.missing or skipped:
        context.exit(cli.FOUND)


# ---------------------------------------------------------------- receipts

receipts = Typer(
    help="List, show, return or drop what streams received and have not acknowledged.",
    no_args_is_help=True,
)

AGAIN = (
    "Messages that the stream has already written will be received a second time, and its "
    "checkpoint can no longer be used for these batches"
)
COLUMNS = (
    *map(Column, ("stream", "batch", "task", "messages")),
    Column("size", "bytes", byte_size),
    Column("settled"),
    Column("created", form=ago),
    Column("stream seen", "seen", ago),
    *map(Column, ("login", "queue")),
)


@receipts.command("list", cls=StateCommand)
def list_(
    context: Context,
    queue: cli.MaybeQueue = None,
    *,
    stream: str | None = None,
) -> None:
    """List receipts, the oldest first."""
    options = context.obj.database()
    address = cli.queue_or_none("queue", queue, options)
    connection = context.connect(options, "receipts", StateSession)
    with transaction(connection):
        found = inspect.receipts(connection, stream=stream, queue=address)
    context.show(COLUMNS, found, "receipts")


@receipts.command(cls=StateCommand)
def show(
    context: Context,
    stream: str,
    *,
    message: Annotated[str, Option()],
    batch: int | None = None,
    task: int | None = None,
) -> None:
    """
    Show headers and body of a message that a stream has received and not acknowledged.

    Options:
        message: A row's id, or the header NServiceBus.MessageId.
    """
    from sqlq_spark.receive.receipts import find_receipt  # noqa: PLC0415 - see cli
    from sqlq_spark.wire.header_columns import has_id  # noqa: PLC0415 - see cli
    from sqlq_spark.wire.rows import without_odd_expiries  # noqa: PLC0415 - see cli

    options, found = context.obj.database(), 0
    connection = context.connect(options, "receipts show", StateSession)
    with transaction(connection):
        receipts = inspect.receipts(connection, stream=stream, batch=batch, task=task)
    for each in receipts:
        with transaction(connection):
            stored = find_receipt(connection, each.key)
        if stored is None:  # acknowledged meanwhile
            continue
        rows = stored.unpack(each.key)
        # ids are not unique: a message may have been sent twice
        for row in without_odd_expiries(rows.filter(has_id(rows, [message]))).to_pylist():
            found += 1
            show_message(context, each, screen.message_as_json(inspect.message(row)))
    if not found:
        cli.fail(f"no receipt of stream {stream} holds message {message}")


def show_message(context: Context, receipt: Receipt, shown: dict[str, object]) -> None:
    """Show a message of a receipt: the receipt, each header, and the whole body."""
    if context.obj.as_json:
        screen.print_json({"receipt": receipt.name, **shown})
        return
    say(f"receipt {receipt.name} of {receipt.queue}, login {receipt.login}")
    for name, value in shown.items():
        for key, text in value.items() if isinstance(value, dict) else [(name, value)]:
            say(f"{key}: {text}")


@receipts.command("return", cls=AskingStateCommand)
def return_(
    context: Context,
    *,
    stream: Annotated[str, Option()],
    batch: int | None = None,
    task: int | None = None,
    without: list[str] | None = None,
    allow: list[str] | None = None,
) -> None:
    """
    Return the messages of receipts to their queue, if the stream's checkpoint is lost.

    Options:
        without: Delete this message instead of returning it: a row's id, or the header.
    """
    options = context.obj.database(allowedDestinations=allow)
    chosen = {"stream": stream, "batch": batch, "task": task}
    end(context, options, "return", chosen, without or ())


@receipts.command(cls=AskingStateCommand)
def drop(
    context: Context,
    *,
    stream: Annotated[str, Option()],
    batch: int | None = None,
    task: int | None = None,
) -> None:
    """Delete receipts with their messages. They cannot be restored."""
    chosen = {"stream": stream, "batch": batch, "task": task}
    end(context, context.obj.database(), "drop", chosen)


def end(
    context: Context,
    options: DatabaseOptions,
    action: Literal["return", "drop"],
    chosen: dict[str, Any],
    without: Sequence[str] = (),
) -> None:
    """Ask, and return or drop the chosen receipts, each in its own transaction."""
    returns, done = action == "return", {"return": "returned", "drop": "dropped"}[action]
    connection = context.connect(options, f"receipts {action}", StateSession)
    with transaction(connection):
        found = inspect.receipts(connection, **chosen)
        if returns:
            check_logins(context, found)
    if not found:
        stream = chosen["stream"]
        cli.fail(f"stream {stream} has no such receipt; `sqlqueue receipts list` lists all")
    if not context.obj.as_json:
        context.show(COLUMNS, found, "receipts")
    settled = [each for each in found if returns and each.settled]
    for each in settled:
        error = ReceiptSettled(stream=each.stream, batch=each.batch, task=each.task)
        say_error(str(error))
    left = [each for each in found if each not in settled]
    messages = sum(each.messages for each in left)
    what = f"{quantity(messages, 'message')} of {quantity(len(left), 'receipt')}"
    if left and returns:
        queues = ", ".join(sorted({each.queue for each in left}))
        gone = f", and delete {', '.join(without)} of them" if without else ""
        context.confirm(f"return {what} to {queues}{gone}. {AGAIN}")
    elif left:
        context.confirm(f"delete {what} permanently")
    recorded = cli.keeps_trail(connection)
    batches = end_each(context, action, left, without, recorded=recorded)
    ended = sum(context.follow(batches, "message", messages, done))
    result: dict[str, object] = {done: ended, "receipts": len(left), "recorded": recorded}
    if returns:
        result["settled"] = [each.name for each in settled]
    context.answer(result, f"{quantity(ended, 'message')} {done}")
    if settled:
        context.exit(cli.FOUND)


def check_logins(context: Context, found: Sequence[Receipt]) -> None:
    """Refuse receipts whose login may not receive from their queue, unless the options allow it."""
    options = context.options
    foreign = {
        parse_queue("queue", each.queue, options.naming): each
        for each in found
        if not each.entitled
    }
    for queue, table in find_destinations(context.connection, [*foreign], SENT).items():
        its = foreign[queue]
        if not is_allowed(table, options.allowed):
            raise ReceiptRefused(receipt=its.name, login=its.login, queue=its.queue)


def end_each(
    context: Context,
    action: Literal["return", "drop"],
    found: Sequence[Receipt],
    without: Sequence[str],
    *,
    recorded: bool,
) -> Iterator[int]:
    """Return or drop receipts, each in its own transaction; the number of messages of each."""
    from sqlq_spark.receive import receipts as stored  # noqa: PLC0415 - see cli

    connection, options = context.connection, context.options
    for each in found:
        with transaction(connection):
            if action == "return":
                queue = parse_queue("queue", each.queue, options.naming)
                ended = stored.return_(
                    connection, each.key, queue, without=without, allowed=options.allowed
                )
            else:
                ended = stored.drop(connection, each.key)
            if recorded:
                record_action(connection, action, each.queue, ended, each.key)
                if without and ended < each.messages:
                    dropped = each.messages - ended
                    record_action(connection, "drop", each.queue, dropped, each.key)
        yield ended
