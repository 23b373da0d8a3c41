"""
The commands on messages: `send`, `browse`, `retry`, and those of `receipts`.

Receipts hold what streams received and have not acknowledged.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, FileBinaryRead, Option, Typer

from sqlq_spark.admin import state_tables
from sqlq_spark.admin.formats import ShownColumn, ago, byte_size, quantity, view
from sqlq_spark.admin.messages import list_messages, to_message
from sqlq_spark.cli import options as cli
from sqlq_spark.cli import screen
from sqlq_spark.cli.options import Command, Context, require_option
from sqlq_spark.cli.screen import say, say_error
from sqlq_spark.database import transaction
from sqlq_spark.database.schema import record_action
from sqlq_spark.database.sessions import StateSession
from sqlq_spark.database.trust import INSERT, look_at_tables
from sqlq_spark.errors import ReceiptRefused, ReceiptSettled
from sqlq_spark.options.names import parse_queue
from sqlq_spark.wire.headers import FAILED_Q, PROCESSING_ENDPOINT, full_name, has_blank
from sqlq_spark.wire.returning import EXCEPTION_TYPE, is_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from sqlq_spark.admin.messages import StoredMessage
    from sqlq_spark.admin.return_to_source import ReturnPlan
    from sqlq_spark.database import Connection
    from sqlq_spark.database.sessions import Session
    from sqlq_spark.database.state_rows import HeldReceipt
    from sqlq_spark.options.connection import DatabaseOptions
    from sqlq_spark.wire.address import QueueAddress

app = Typer()

GROUP = ("messages", "failed queue", "exception")  # columns of the table of groups
# What an error says is expected if a queue *.log is refused.
COPIES = (
    "an error queue. The messages of a queue *.log are copies, which ServiceControl forwarded, and "
    "an endpoint would handle a message twice. If they are originals, add --copies"
)
GONE = "another session has locked or received them"
ONE_TOPIC = (
    "a type's full name, as Shop.OrderPlaced. Give each type a --topic of its own. A name with its "
    "assembly, as 'Shop.OrderPlaced, Shop', is for --message-type"
)
# How many bytes of a body `browse` shows. The width of the terminal may cut the text further.
LONGEST_SHOWN_BODY = 200


class SendCommand(Command):
    """The options of `send`."""

    shared = (
        "topics",
        "message_type",
        "content_type",
        "time_to_be_received",
        "as_received",
        "subscription_table",
        *Command.shared,
    )


@app.command("send", cls=SendCommand)
def send_command(
    context: Context,
    queue: Annotated[str | None, Argument(help=cli.QUEUE_HELP)] = None,
    source: Annotated[
        FileBinaryRead | None,
        Argument(metavar="FILE", help="A file of JSON lines; default: standard input."),
    ] = None,
    *,
    file: Annotated[
        FileBinaryRead | None,
        Option(metavar="FILE", help="Send one message with this file as its body."),
    ] = None,
    header: Annotated[list[str] | None, Option(help="KEY=VALUE, added to each message.")] = None,
) -> None:
    """
    Send messages in one transaction: each line is a JSON object with the field body.

    The text of a JSON string is sent, and any other value as the line has it,
    byte for byte. Use bodyBase64 instead of body to send bytes.
    The lines are UTF-8. browse --json prints lines that can be sent.
    Optional fields: headers, id, timeToBeReceived (hh:mm:ss), delay
    (hh:mm:ss), deliverAt (a time with its zone), correlationId,
    replyToAddress, queue (another destination for this line), and topics
    (to publish this line). Omit QUEUE if each line of standard input has
    queue or topics.

    {"body": {"OrderId": 7}, "headers": {"tenant": "blue"}}
    {"body": "later", "delay": "00:30:00"}
    {"body": "then", "deliverAt": "2026-06-30T17:05:09Z"}
    {"body": "published", "topics": ["Shop.OrderPlaced", "Shop.IEvent"]}
    """
    from sqlq_spark.cli import sending  # noqa: PLC0415 - see cli

    fits = file is None or source is None
    require_option(fits, "--file", file and file.name, "no file of JSON lines with it")
    headers = {}
    for text in header or ():
        key, equals, headers[key] = text.partition("=")
        is_utf_8 = text.encode(errors="replace").decode() == text
        require_option(key and equals and is_utf_8, "--header", text, "KEY=VALUE, in UTF-8")
    for topic in context.obj.topics or ():
        require_option(
            full_name(topic) == topic and not has_blank(topic), "--topic", topic, ONE_TOPIC
        )
    alone = "no --as-received with it, which adds no header"
    require_option(not (header and context.obj.as_received), "--header", header, alone)
    options = context.obj.sink(queue)
    session = context.session(options)
    stream = file or source or sys.stdin.buffer
    chunks = sending.read_lines(session, options, stream, headers, is_body=file is not None)
    sending.insert(context, session.open(), options, chunks)


class BrowseCommand(Command):
    """The options of `browse`."""

    shared = ("endpoint_time_zone", *Command.shared)


@app.command("browse", cls=BrowseCommand)
def browse_command(
    context: Context,
    queue: cli.QueueName,
    *,
    limit: Annotated[int, Option(min=1, help="Messages to show.")] = 20,
) -> None:
    """
    Show the messages that wait, lowest seq first. Deletes and locks nothing.

    For messages that failed, it also shows the exception and the endpoint.
    """
    options = context.obj.source(queue)
    connection = context.connect(options)
    found = list_messages(connection, options.address, limit=limit)
    if context.obj.as_json:
        for message in found:
            screen.print_json(screen.message_as_json(message))
        return
    rows = [*map(summarize, found)]
    columns = view(MESSAGE_COLUMNS, "failed" if any(row.is_failed for row in rows) else "")
    screen.out().print(screen.draw_rows(columns, rows, "messages"))


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """A row of the table of `browse`."""

    seq: int
    type: str | None
    sent: str | None
    is_failed: bool  # whether it came into an error queue
    exception: str | None  # the last part of the type's name, which `retry --exception` takes
    endpoint: str | None  # which endpoint failed
    expires: datetime | None
    size: int  # bytes of the body
    body: str | None  # its beginning


MESSAGE_COLUMNS = (
    *map(ShownColumn, ("seq", "type", "sent")),
    ShownColumn("exception", only="failed"),
    ShownColumn("endpoint", only="failed"),
    ShownColumn("expires"),
    ShownColumn("size", form=byte_size),
    ShownColumn("body"),
)


def summarize(message: StoredMessage) -> ShownMessage:
    headers = message.headers or {}
    kind, sent = screen.type_and_time(message.headers)
    exception = headers.get(EXCEPTION_TYPE) or ""
    return ShownMessage(
        seq=message.seq,
        type=kind,
        sent=sent,
        is_failed=FAILED_Q in headers,
        exception=exception.rpartition(".")[2] or None,
        endpoint=headers.get(PROCESSING_ENDPOINT) or None,
        expires=message.expires,
        size=len(message.body or b""),
        body=show_body(message.body),
    )


def show_body(body: bytes | None) -> str | None:
    """Return the beginning of a body as text; None for a body that is null."""
    return None if body is None else body[:LONGEST_SHOWN_BODY].decode(errors="replace")


# ---------------------------------------------------------------- retry


MessageIds = Annotated[list[str] | None, Argument(help="Messages, by message id or row id.")]
Everything = Annotated[bool, Option("--all", help="Return all messages of the error queue.")]
ExceptionTypes = Annotated[
    list[str] | None,
    Option(help="Only failures of this exception type: its full name or its last part."),
]
FailedQueue = Annotated[str | None, Option(help="Only messages that failed in this queue.")]
Since = Annotated[str | None, Option(help="Only messages that failed at this time or later.")]
Until = Annotated[str | None, Option(help="Only messages that failed before this time.")]
OldestOnly = Annotated[
    int | None,
    Option(
        min=1,
        help="Only the oldest so many of them, to try a fix before the rest.",
    ),
]
Copies = Annotated[
    bool,
    Option("--copies", help="Return messages of a queue whose name ends in .log."),
]
PerTransaction = Annotated[int, Option(min=1, help="Messages per transaction.")]


class RetryCommand(cli.AskingCommand):
    """The options of `retry`."""

    shared = ("allowed_destinations", *cli.AskingCommand.shared)


@app.command("retry", cls=RetryCommand)
def retry_command(
    context: Context,
    queue: cli.QueueName,
    ids: MessageIds = None,
    *,
    everything: Everything = False,
    exception: ExceptionTypes = None,
    failed_queue: FailedQueue = None,
    since: Since = None,
    until: Until = None,
    limit: OldestOnly = None,
    copies: Copies = False,
    batch: PerTransaction = 1000,
) -> None:
    """
    Return failed messages from an error queue to the queues in which they failed.

    Name messages, or choose them by exception, queue and time (all conditions
    must match), or use --all. With --limit the oldest of them are returned.
    A message that cannot be returned stays in the error queue. The command
    reports it and exits with 1.
    """
    from sqlq_spark.admin.return_to_source import Choice, plan_return  # noqa: PLC0415 - see cli

    options = context.obj.source(queue)
    require_option(copies or not is_copy(options.address.table), "QUEUE", queue, COPIES)
    choice = Choice(
        ids=frozenset(ids or ()),
        exceptions=frozenset(exception or ()),
        failed_queue=cli.queue_or_none("--failed-queue", failed_queue, options),
        since=cli.read_moment("--since", since),
        until=cli.read_moment("--until", until),
    )
    expected = "either this, or the messages by ID, --exception, --failed-queue or time"
    require_option(everything == (choice == Choice()), "--all", str(everything).lower(), expected)
    session = context.session(options)
    connection = session.open()
    name = connection.printed(options.address)
    plan = plan_return(connection, options.address, choice, limit=limit)
    chosen = describe_groups(plan)
    if not context.obj.as_json:
        show_plan(plan, chosen)
    if plan.messages:
        queues = quantity(plan.queues, "queue")
        context.confirm(f"return {quantity(plan.messages, 'message')} of {name} to {queues}")
    returned, staying = return_planned(context, session, options.address, plan, batch)
    result = {"queue": name, "returned": returned, "chosen": chosen, "staying": staying}
    context.answer({**result, "missing": plan.missing}, f"{quantity(returned, 'message')} returned")
    if staying or plan.missing:
        context.exit(cli.FOUND)


def describe_groups(plan: ReturnPlan) -> list[dict[str, object]]:
    """Return the groups of messages to return, as JSON has them."""
    return [
        {"messages": messages, "failedQueue": failed, "exception": kind}
        for failed, kind, messages in plan.groups
    ]


def show_plan(plan: ReturnPlan, groups: Sequence[Mapping[str, object]]) -> None:
    """Print which of the chosen messages can be returned, which cannot, and which are missing."""
    screen.show_table(GROUP, (group.values() for group in groups), "messages to return")
    for reason, some in plan.staying.items():
        stay = quantity(some.messages, "message")
        say_error(f"{stay} cannot be returned: {reason} ({', '.join(some.ids)})")
    if plan.missing:
        say_error(f"not in the error queue: {', '.join(plan.missing)}")


def return_planned(
    context: Context, session: Session, source: QueueAddress, plan: ReturnPlan, batch: int
) -> tuple[int, Counter[str]]:
    """
    Return the planned messages, and print why some of them stay.

    Returns:
        How many messages were returned. And by the reason, how many of the chosen messages stay.
    """
    from sqlq_spark.admin.return_to_source import give_back  # noqa: PLC0415 - see cli

    connection = session.open()
    refused: Counter[str] = Counter()

    def give() -> Iterator[int]:
        for done in give_back(session, source, plan, batch=batch):
            refused[f"{done.reason} ({connection.printed(done.destination)})"] += done.left
            yield done.messages

    returned = context.follow(give(), "message", plan.messages, "returned")
    refused[GONE] = plan.messages - returned - refused.total()
    staying = Counter({reason: some.messages for reason, some in plan.staying.items()})
    for reason, count in (+refused).items():  # without zeros
        say_error(f"{quantity(count, 'message')} cannot be returned: {reason}")
        staying[reason] = count
    return returned, staying


# ---------------------------------------------------------------- receipts

receipts_app = Typer(
    cls=cli.Group,
    help="List, show, return or drop what streams received and have not acknowledged.",
    no_args_is_help=True,
)

AGAIN = (
    "Messages that the stream has already written will be received a second time, and its "
    "checkpoint can no longer be used for these batches"
)
RECEIPT_COLUMNS = (
    *map(ShownColumn, ("stream", "batch", "task", "query_id", "spark_batch", "messages")),
    ShownColumn("size", "bytes", byte_size),
    ShownColumn("settled"),
    ShownColumn("created", form=ago),
    ShownColumn("stream seen", "seen", ago),
    *map(ShownColumn, ("login", "queue")),
)


class OneStreamCommand(cli.StateCommand):
    """The options of a command on the receipts of one stream."""

    shared = ("batch", "task", *cli.StateCommand.shared)


class DropReceiptsCommand(OneStreamCommand):
    """The options of `receipts drop`."""

    shared = ("yes", *OneStreamCommand.shared)


class ReturnReceiptsCommand(OneStreamCommand):
    """The options of `receipts return`."""

    shared = ("yes", "allowed_destinations", *OneStreamCommand.shared)


@receipts_app.command("list", cls=cli.StateCommand)
def receipts_list_command(
    context: Context,
    queue: cli.MaybeQueue = None,
    *,
    stream: Annotated[str | None, Option(help=cli.STREAM_HELP)] = None,
) -> None:
    """List receipts, the oldest first."""
    options = context.obj.database()
    address = cli.queue_or_none("queue", queue, options)
    connection = context.connect(options, StateSession)
    with transaction(connection):
        found = state_tables.list_receipts(connection, stream=stream, queue=address)
    context.show(RECEIPT_COLUMNS, found, "receipts")


@receipts_app.command("show", cls=OneStreamCommand)
def receipts_show_command(
    context: Context,
    stream: Annotated[str, Argument(help=cli.STREAM_HELP)],
    *,
    message: Annotated[
        str | None,
        Option(help="Only this one: a row's id, or the header NServiceBus.MessageId."),
    ] = None,
) -> None:
    """Show headers and bodies of messages that a stream has received and not acknowledged."""
    from sqlq_spark.receive.receipts import find_receipt  # noqa: PLC0415 - see cli
    from sqlq_spark.wire.header_columns import has_id  # noqa: PLC0415 - see cli

    found = 0
    shared = context.obj
    connection = context.connect(shared.database(), StateSession)
    with transaction(connection):
        receipts = state_tables.list_receipts(
            connection, stream=stream, batch=shared.batch, task=shared.task
        )
    for receipt in receipts:
        with transaction(connection):
            stored = find_receipt(connection, receipt.key)
        if stored is None:  # acknowledged meanwhile
            continue
        rows = stored.unpack(receipt.key)
        if message is not None:  # several rows may have the id, if a message was sent twice
            rows = rows.filter(has_id(rows, [message]))
        for row in rows.to_pylist():
            found += 1
            shown = {"receipt": receipt.name, **screen.message_as_json(to_message(row))}
            if shared.as_json:
                screen.print_json(shown)
                continue
            for name, value in shown.items():
                for key, text in value.items() if isinstance(value, dict) else [(name, value)]:
                    say(f"{key}: {text}")
    if not found:
        which = "a message" if message is None else f"message {message}"
        cli.fail_command(f"no receipt of stream {stream} holds {which}")


@receipts_app.command("return", cls=ReturnReceiptsCommand)
def receipts_return_command(
    context: Context,
    *,
    stream: cli.StreamId,
    without: Annotated[
        list[str] | None,
        Option(help="Delete this message instead of returning it: a row's id, or the header."),
    ] = None,
) -> None:
    """Return the messages of receipts to their queue, if the stream's checkpoint is lost."""
    from sqlq_spark.admin.receipts import return_receipt  # noqa: PLC0415 - see cli

    options = context.obj.database()
    connection, found = choose(context, options, stream)
    check_logins(connection, options, found)
    settled = [receipt for receipt in found if receipt.settled]
    for receipt in settled:
        error = ReceiptSettled(stream=receipt.stream, batch=receipt.batch, task=receipt.task)
        say_error(str(error))
    left = [receipt for receipt in found if not receipt.settled]
    if left:
        queues = ", ".join(sorted({receipt.queue for receipt in left}))
        gone = f", and delete {', '.join(without)} of them" if without else ""
        context.confirm(f"return {describe(left)} to {queues}{gone}. {AGAIN}")

    def give(receipt: HeldReceipt) -> int:
        queue = parse_queue("queue", receipt.queue, options.naming)
        return return_receipt(connection, receipt.key, queue, without=without or ())

    names = [receipt.name for receipt in settled]
    end(context, connection, left, "return", give, without=without, settled=names)
    if settled:
        context.exit(cli.FOUND)


@receipts_app.command("drop", cls=DropReceiptsCommand)
def receipts_drop_command(context: Context, *, stream: cli.StreamId) -> None:
    """Delete receipts with their messages. They cannot be restored."""
    from sqlq_spark.admin.receipts import drop_receipt  # noqa: PLC0415 - see cli

    connection, found = choose(context, context.obj.database(), stream)
    context.confirm(f"delete {describe(found)} permanently")
    end(context, connection, found, "drop", lambda its: drop_receipt(connection, its.key))


def choose(
    context: Context, options: DatabaseOptions, stream: str
) -> tuple[Connection, list[HeldReceipt]]:
    """Find and show the receipts that the options choose. The command ends if there are none."""
    connection, shared = context.connect(options, StateSession), context.obj
    with transaction(connection):
        found = state_tables.list_receipts(
            connection, stream=stream, batch=shared.batch, task=shared.task
        )
    if not found:
        cli.fail_command(f"stream {stream} has no such receipt; `sqlqueue receipts list` lists all")
    if not shared.as_json:
        context.show(RECEIPT_COLUMNS, found, "receipts")
    return connection, found


def describe(found: Sequence[HeldReceipt]) -> str:
    messages = quantity(sum(receipt.messages for receipt in found), "message")
    return f"{messages} of {quantity(len(found), 'receipt')}"


def check_logins(
    connection: Connection, options: DatabaseOptions, found: Sequence[HeldReceipt]
) -> None:
    """
    Refuse a receipt if the login that wrote it may not receive from the receipt's queue.

    A receipt of a queue that the option allowedDestinations lists is not refused.
    """
    foreign = {
        parse_queue("queue", receipt.queue, options.naming): receipt
        for receipt in found
        if not receipt.entitled
    }
    with transaction(connection):
        tables, _ = look_at_tables(connection, [*foreign], INSERT)
    for queue, table in tables.items():
        receipt = foreign[queue]
        if not options.trusted.allows(table.catalog, table.schema, table.table, here=table.here):
            raise ReceiptRefused(receipt=receipt.name, login=receipt.login, queue=receipt.queue)


def end(
    context: Context,
    connection: Connection,
    found: Sequence[HeldReceipt],
    action: Literal["return", "drop"],
    end_one: Callable[[HeldReceipt], int],
    *,
    without: Sequence[str] | None = None,
    **more: object,
) -> None:
    """Return or drop receipts, each in its own transaction, which also writes the audit trail."""
    done = {"return": "returned", "drop": "dropped"}[action]
    recorded = cli.keeps_trail(connection)

    def batches() -> Iterator[int]:
        for receipt in found:
            with transaction(connection):
                messages = end_one(receipt)
                if recorded:
                    record_action(connection, action, receipt.queue, messages, receipt.key)
                if recorded and without and messages < receipt.messages:
                    dropped = receipt.messages - messages
                    record_action(connection, "drop", receipt.queue, dropped, receipt.key)
            yield messages

    total = sum(receipt.messages for receipt in found)
    ended = context.follow(batches(), "message", total, done)
    result = {done: ended, "receipts": len(found), "recorded": recorded, **more}
    context.answer(result, f"{quantity(ended, 'message')} {done}")
