"""The commands `send` and `browse`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqlq_spark.admin import inspect
from sqlq_spark.cli import screen
from sqlq_spark.cli.options import TABLE, Command, EndpointTimeZone, Queue, Shared
from sqlq_spark.cli.screen import say, say_error
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import BadOption, MissingOption

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

app = typer.Typer()


@app.command("send", cls=Command)
def send_(
    context: typer.Context,
    queue: Annotated[str | None, typer.Argument(help=TABLE)] = None,
    source: Annotated[
        Path | None, typer.Argument(help="A file of JSON lines; default: standard input.")
    ] = None,
    *,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="Publish to this topic; then omit QUEUE. Most derived type first."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Send one message with this file as its body.")
    ] = None,
    message_type: Annotated[str | None, typer.Option(help="The .NET type's full name.")] = None,
    content_type: Annotated[
        str | None, typer.Option(help="Content type, for example application/json.")
    ] = None,
    time_to_be_received: Annotated[
        str | None, typer.Option(help="hh:mm:ss, after which the message expires.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE, added to each message.")
    ] = None,
    subscription_table: Annotated[
        str | None, typer.Option(help='The subscription table: a table, or "schema"."table".')
    ] = None,
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
    """
    from sqlq_spark.cli import sending  # noqa: PLC0415 - see cli

    shared: Shared = context.obj
    queue, source = queue_and_file(queue, source, topic, file)
    if source is not None and file is not None:
        raise BadOption(
            option="--file", found=str(file), expected="a file of JSON lines or --file, not both"
        )
    options = shared.sink(
        queue=queue,
        topics=",".join(topic) if topic else None,
        subscriptionTable=subscription_table,
        messageType=message_type,
        contentType=content_type,
        timeToBeReceived=time_to_be_received,
    )
    headers = dict(pair(text) for text in header or ())
    with Session(options, "send") as session:
        sender = sending.make_sender(session, options)
        chunks = sending.read(source, file, sender, headers, quiet=shared.as_json)
        sent = sending.Sent(chunks, options)
        sending.insert(session, chunks, options, sent, quiet=shared.as_json)
    if shared.as_json:
        screen.print_json(sent.as_json())
    else:
        say(sent.as_text())
    if warning := sent.describe_without_subscriber():
        say_error(warning)


@app.command(cls=Command)
def browse(
    context: typer.Context,
    queue: Queue,
    *,
    limit: Annotated[int, typer.Option(min=1, help="Messages to show.")] = 20,
    delayed_: Annotated[
        bool, typer.Option("--delayed", help="Show delayed messages, in the order of due times.")
    ] = False,
    endpoint_time_zone: EndpointTimeZone = None,
) -> None:
    """Show the messages that wait, lowest seq first. Deletes and locks nothing."""
    shared: Shared = context.obj
    options = shared.source(queue, endpointTimeZone=endpoint_time_zone)
    with Session(options, "browse") as session:
        connection, address = session.open(), options.address
        show: Callable[[Any], None] = screen.show_delayed if delayed_ else screen.show_messages
        if shared.as_json:
            show = show_json
        if delayed_:
            zone = options.endpoint_time_zone
            show(inspect.delayed_messages(connection, address, zone=zone, limit=limit))
        else:
            show(inspect.messages(connection, address, limit=limit))


def show_json(messages: Iterable[inspect.Message]) -> None:
    """Print one line of JSON for each message."""
    for each in messages:
        screen.print_json(screen.message_as_json(each))


def queue_and_file(
    queue: str | None, source: Path | None, topic: list[str] | None, file: Path | None
) -> tuple[str | None, Path | None]:
    """
    Read the arguments: with --topic there is no queue, and the first argument is the file.

    Without both, each line of standard input must have a destination of its own.
    """
    if not topic:
        if queue is None and file is not None:
            raise MissingOption(option="QUEUE", example="a queue's name, or publish with --topic")
        return queue, source
    if source is not None:
        raise BadOption(
            option="--topic",
            found=", ".join(topic),
            expected="a file of lines, but no QUEUE, with it",
        )
    return None, None if queue is None else Path(queue)


def pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise BadOption(option="--header", found=text, expected="KEY=VALUE")
    return key, value
