"""
The command line `sqlqueue`: what an operator, a DBA or a newcomer does without Spark.

Exit codes: 0; 1 something was found (a lost message, a receipt that cannot be returned); 2 usage or
bad input; 3 the database; 130 Ctrl-C. What went wrong is one sentence on standard error.
Names, headers and bodies come from strangers: they are shown without markup or control characters.
"""

from __future__ import annotations

import signal
import sys
from contextlib import closing, nullcontext
from dataclasses import asdict
from pathlib import Path  # noqa: TC003 - typer reads it at run time
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from sqlq_spark import demo, inspect, install, lines, receipts, screen, send
from sqlq_spark.demo_process import JobFailed, NoJava
from sqlq_spark.dialects import transaction
from sqlq_spark.errors import (
    BadInput,
    BadOption,
    MissingOption,
    MissingPackage,
    ReceiptSettled,
    SqlQueueError,
    StateNotInstalled,
)
from sqlq_spark.options import SinkOptions, SourceOptions, addressed
from sqlq_spark.outgoing import Sender
from sqlq_spark.screen import say, say_error
from sqlq_spark.script import Roles, script
from sqlq_spark.sessions import Session, check_state

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from sqlq_spark.dialects import Connection

FOUND, USAGE, DATABASE, STOPPED = 1, 2, 3, 130

app = typer.Typer(
    name="sqlqueue",
    help="Queues in SQL tables, as NServiceBus keeps them, for Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # it would print local variables
)
under = typer.Typer(help="What readers received and have not acknowledged.", no_args_is_help=True)
app.add_typer(under, name="receipts")

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="SQLQUEUE_URL",
        help="postgresql://user@host:5432/database; better in the environment, with the password",
    ),
]
State = Annotated[str, typer.Option("--state-schema", help="Schema of the state tables.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON lines, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Queue = Annotated[str, typer.Argument(help='A table, as Shop.Orders, or "schema"."table".')]
MaybeQueue = Annotated[str | None, typer.Argument(help="Of this queue only.")]


def main(words: Sequence[str] | None = None) -> None:
    """Run one command; ends the process with its exit code."""
    try:
        app(words)
    except SqlQueueError as error:
        say_error(str(error))
        bad = isinstance(error, (BadInput, MissingPackage, NoJava))
        sys.exit(USAGE if bad else FOUND if isinstance(error, JobFailed) else DATABASE)


# ---------------------------------------------------------------- tables


@app.command("install")
def install_(url: Url = None, state_schema: State = "sqlqueue") -> None:
    """Create the state tables where they are absent; readers and exactlyOnce writers need them."""
    options = given(url, state_schema)
    with Session(options, "install", state=False) as session:
        connection = session.open()
        install.install(connection, state=state_schema, timeout=options.query_timeout)
        check_state(connection, state_schema)
        say(f"the state tables are in schema {state_schema} of {connection.server}")


@app.command()
def create(queue: Queue, url: Url = None) -> None:
    """Create a queue's table where it is absent, as the transport makes it."""
    options = given(url, queue=queue)
    with Session(options, "create", state=False) as session:
        connection = session.open()
        install.create_queue(connection, options.address, timeout=options.query_timeout)
        say(f"queue {connection.printed(options.address)} is in {connection.server}")


@app.command("script")
def script_(
    queue: Queue,
    *,
    dialect: Annotated[str, typer.Option(help="postgresql")] = "postgresql",
    error_queue: Annotated[str | None, typer.Option(help="Where readers put poison.")] = None,
    reader: Annotated[str, typer.Option(help="The role that receives.")] = Roles.reader,
    sender: Annotated[str, typer.Option(help="The role that sends.")] = Roles.sender,
    state_schema: State = "sqlqueue",
) -> None:
    """Print the DDL and the GRANTs for a DBA: the queue, the state tables; connects to nothing."""
    if dialect != "postgresql":
        raise BadOption("--dialect", dialect, "postgresql")
    options = given(f"{dialect}://", state_schema, queue=queue, errorQueue=error_queue)
    text = script(
        options.address,
        state=options.state_schema,
        errors=options.error_address,
        roles=Roles(reader=reader, sender=sender),
        dialect=dialect,
    )
    sys.stdout.write(text)


# ---------------------------------------------------------------- messages


@app.command("send")
def send_(
    queue: Queue,
    source: Annotated[
        Path | None, typer.Argument(help="A file of JSON lines; standard input without it.")
    ] = None,
    *,
    file: Annotated[Path | None, typer.Option(help="One message; the file is its body.")] = None,
    message_type: Annotated[str | None, typer.Option(help="The .NET type's full name.")] = None,
    content_type: Annotated[str | None, typer.Option(help="As application/json.")] = None,
    time_to_be_received: Annotated[str | None, typer.Option(help="hh:mm:ss, then gone.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="KEY=VALUE, for each message.")] = None,
    url: Url = None,
) -> None:
    """
    Send messages: each line an object with body, and headers, id, timeToBeReceived … if you like.

    All of them are sent in one transaction, or none.
    A body that is text is sent as it is, another JSON value is serialised.
    """
    if source is not None and file is not None:
        raise BadOption("--file", str(file), "either a file of JSON lines or --file, not both")
    raw = {
        "url": location(url),
        "queue": queue,
        "messageType": message_type,
        "contentType": content_type,
        "timeToBeReceived": time_to_be_received,
    }
    options = SinkOptions.parse({name: text for name, text in raw.items() if text is not None})
    headers = dict(pair(text) for text in header or ())
    sender = Sender(options=options, partition=0)
    if file is not None:
        parcels = list(sender.parcels([lines.whole(contents(file), headers)]))
    else:
        with opened(source) as stream:
            parcels = list(lines.parcels(stream, sender, headers))
    with Session(options, "send", state=False) as session:
        connection = session.open()  # once: a commit whose answer is lost must not be done again
        with transaction(connection, timeout=options.query_timeout):
            for parcel in parcels:
                send.insert(connection, parcel, options, set())
        count = sum(parcel.num_rows for parcel in parcels)
        say(f"{screen.counted(count, 'message')} sent to {options.queue}")


@app.command()
def browse(
    queue: Queue,
    *,
    limit: Annotated[int, typer.Option(min=1, help="Messages to show.")] = 20,
    as_json: AsJson = False,
    url: Url = None,
) -> None:
    """Show the messages that wait, lowest seq first; deletes and locks nothing."""
    options = given(url, queue=queue)
    with Session(options, "browse", state=False) as session:
        found = inspect.messages(
            session.open(), options.address, limit=limit, timeout=options.query_timeout
        )
        if as_json:
            for message in found:
                screen.print_json(screen.whole(message))
        else:
            screen.show_messages(found)


@app.command()
def stats(
    queue: MaybeQueue = None,
    *,
    as_json: AsJson = False,
    url: Url = None,
    state_schema: State = "sqlqueue",
) -> None:
    """Show how deep a queue is, and its readers; without a queue, those of all readers."""
    options = given(url, state_schema, queue=queue or "all")
    with Session(options, "stats", state=False) as session:
        connection = session.open()
        readers = inspect.readers(connection) if has_state(connection, state_schema) else None
        if queue is not None:
            mine = connection.printed(options.address)
            readers = readers and [each for each in readers if each.queue == mine]
        names = [queue] if queue is not None else sorted({each.queue for each in readers or ()})
        depths = [
            inspect.depth(connection, addressed("queue", options.url, name)) for name in names
        ]
    if as_json:
        screen.print_json(
            {"queues": [*map(asdict, depths)], "readers": [*map(asdict, readers or ())]}
        )
        return
    screen.show_depths(depths)
    if readers is None:
        say(f"no state tables in schema {state_schema}: so no readers (`sqlqueue install`)")
    else:
        screen.show_readers(readers)
    for each in depths:
        if each.seq_used >= inspect.SEQ_WARNING:
            say_error(
                f"{each.queue}: {each.seq_used:.0%} of an integer's seqs are used up; at the end "
                "every INSERT fails: ALTER the column seq and its sequence to bigint"
            )


# ---------------------------------------------------------------- receipts

ReaderOption = Annotated[str | None, typer.Option("--reader", help="As `list` shows it.")]
ReaderId = Annotated[str, typer.Option("--reader", help="As `list` shows it.")]
Batch = Annotated[int | None, typer.Option(help="One batch only.")]
Task = Annotated[int | None, typer.Option(help="One task only.")]


@under.command("list")
def list_(
    queue: MaybeQueue = None,
    *,
    reader: ReaderOption = None,
    as_json: AsJson = False,
    url: Url = None,
    state_schema: State = "sqlqueue",
) -> None:
    """List receipts, the oldest first."""
    options = given(url, state_schema, queue=queue or "all")
    with Session(options, "receipts") as session:
        found = inspect.receipts(session.open(), reader=reader)
    if queue is not None:
        found = [
            each for each in found if addressed("queue", options.url, each.queue) == options.address
        ]
    if as_json:
        for each in found:
            screen.print_json(asdict(each))
    else:
        screen.show_receipts(found)


@under.command("return")
def return_(
    *,
    reader: ReaderId,
    batch: Batch = None,
    task: Task = None,
    yes: Yes = False,
    url: Url = None,
    state_schema: State = "sqlqueue",
) -> None:
    """Put the messages of a reader whose checkpoint is gone back into their queue."""
    options = given(url, state_schema, queue="all")
    with Session(options, "receipts return") as session:
        found = chosen(session.open(), reader, batch, task)
        settled = [each for each in found if each.settled]
        back = [each for each in found if not each.settled]
        for each in settled:
            say_error(str(ReceiptSettled(each.reader, each.batch, each.task)))
        if back:
            queues = ", ".join(sorted({each.queue for each in back}))
            confirm(
                f"put {screen.total(back)} back into {queues}. "
                "What the stream has written already will come a second time, and its checkpoint "
                "can no longer be used for these batches",
                yes=yes,
            )
        messages = 0
        for each in back:
            queue = addressed("queue", options.url, each.queue)
            with transaction(session.open(), timeout=options.query_timeout):
                messages += receipts.return_(
                    session.open(), each.reader, each.batch, each.task, queue
                )
        say(f"{screen.counted(messages, 'message')} returned")
    if settled:
        raise typer.Exit(FOUND)


@under.command()
def drop(
    *,
    reader: ReaderId,
    batch: Batch = None,
    task: Task = None,
    yes: Yes = False,
    url: Url = None,
    state_schema: State = "sqlqueue",
) -> None:
    """Delete receipts with their messages, for good."""
    options = given(url, state_schema, queue="all")
    with Session(options, "receipts drop") as session:
        found = chosen(session.open(), reader, batch, task)
        confirm(f"delete {screen.total(found)} for good", yes=yes)
        messages = 0
        for each in found:
            with transaction(session.open(), timeout=options.query_timeout):
                messages += receipts.drop(session.open(), each.reader, each.batch, each.task)
        say(f"{screen.counted(messages, 'message')} dropped")


def chosen(
    connection: Connection, reader: str, batch: int | None, task: int | None
) -> list[inspect.Receipt]:
    """The receipts that the options name, shown; ends the command where there are none."""
    found = inspect.receipts(connection, reader=reader, batch=batch, task=task)
    if not found:
        say_error(f"reader {reader} has no such receipt; `sqlqueue receipts list` shows all")
        raise typer.Exit(FOUND)
    screen.show_receipts(found)
    return found


def confirm(what: str, *, yes: bool) -> None:
    """Say what will be done, and ask."""
    say(f"This will {what}.")
    if not yes:
        typer.confirm("Do it?", abort=True)


# ---------------------------------------------------------------- the demo


@app.command("demo")
def demo_(
    *,
    messages: Annotated[int, typer.Option(min=1, help="How many to send.")] = 200_000,
    keep: Annotated[Path | None, typer.Option(help="A new folder that stays.")] = None,
    delta: Annotated[bool, typer.Option("--delta", help="A Delta table, not Parquet.")] = False,
) -> None:
    """Send, receive, kill the stream twice in mid-batch, and count what came; needs Java."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)  # clean up, as after Ctrl-C
    table = "delta" if delta else "parquet"
    with closing(demo.run(messages=messages, table=table, keep=keep)) as events:
        result = screen.follow(events)
    screen.show_result(result)
    if keep is not None:
        say(f"kept in {keep}: table, checkpoint, spark.log, postgresql")
    if not result.good:
        raise typer.Exit(FOUND)


# ---------------------------------------------------------------- in


def location(url: str | None) -> str:
    """The url, from the option or the environment."""
    if not url:
        raise MissingOption("--url", "postgresql://user@host:5432/database, or set SQLQUEUE_URL")
    return url


def given(url: str | None, state_schema: str = "sqlqueue", **raw: str | None) -> SourceOptions:
    """Validate as the data source does."""
    named = {name: text for name, text in raw.items() if text is not None}
    return SourceOptions.parse(
        {"url": location(url), "stateSchema": state_schema, "queue": "all", **named}
    )


def has_state(connection: Connection, schema: str) -> bool:
    """Whether the state tables are there."""
    try:
        check_state(connection, schema)
    except StateNotInstalled:
        return False
    return True


def pair(text: str) -> tuple[str, str]:
    """Read KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise BadOption("--header", text, "KEY=VALUE")
    return key, value


def contents(path: Path) -> bytes:
    """Read a file whole."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadOption("--file", str(path), f"a file to read ({error.strerror})") from None


def opened(path: Path | None) -> AbstractContextManager[BinaryIO]:
    """Open a file of lines, or standard input."""
    if path is None or str(path) == "-":
        if sys.stdin.isatty():
            say_error("reading JSON lines from the terminal; end with Ctrl-D")
        return nullcontext(sys.stdin.buffer)
    try:
        return path.open("rb")
    except OSError as error:
        raise BadOption("SOURCE", str(path), f"a file to read ({error.strerror})") from None
