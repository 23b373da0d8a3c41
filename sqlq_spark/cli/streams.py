"""The commands `streams list` and `streams remove`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Typer

from sqlq_spark.admin import state_tables, stats
from sqlq_spark.admin.formats import view
from sqlq_spark.cli import options as cli
from sqlq_spark.cli.options import Context, StateCommand
from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import StateSession

if TYPE_CHECKING:
    from sqlq_spark.admin.state_tables import Stream

streams_app = Typer(
    cls=cli.Group,
    help="List the streams of the state tables, or remove one from the lists.",
    no_args_is_help=True,
)


# those of `stats` without the lag, which needs a look at the queues
COLUMNS = [column for column in view(stats.STREAM_COLUMNS, "once") if column.name != "lag"]


class RemoveStreamCommand(StateCommand):
    """The options of `streams remove`."""

    shared = ("yes", *StateCommand.shared)


@streams_app.command("list", cls=StateCommand)
def streams_list_command(context: Context, queue: cli.MaybeQueue = None) -> None:
    """
    List streams: name, host, what each does now, and its last batch.

    A stream is running while a batch is open, idle while none is, and gone if it
    was silent for 40 s. The name is that of Spark's query, else the option
    streamName, else the application, else host and process.
    """
    options = context.obj.database()
    address = cli.queue_or_none("queue", queue, options)
    connection = context.connect(options, StateSession)
    with transaction(connection):
        found = state_tables.list_streams(connection)
    if address is not None:
        name = connection.printed(address)
        found = [stream for stream in found if name in stream.queues]
    context.show(COLUMNS, found, "streams")


@streams_app.command("remove", cls=RemoveStreamCommand)
def streams_remove_command(
    context: Context,
    stream: Annotated[str, Argument(help="The stream's id, or its name if only one has it.")],
) -> None:
    """
    Take a stream that has ended out of all lists.

    Its high-water mark stays, so that its query's sink never drops new messages.
    If the stream starts again, it is listed again. A stream that holds receipts, or
    that runs, is not removed.
    """
    from sqlq_spark.admin.streams import find_stream, remove_stream  # noqa: PLC0415 - see cli

    connection = context.connect(context.obj.database(), StateSession)
    with transaction(connection):
        found = find_stream(connection, stream)
    context.confirm(f"remove {describe(found)} from all lists")
    with transaction(connection):
        remove_stream(connection, found.stream)
    context.answer({"removed": found.stream}, f"{describe(found)} is in no list any more")


def describe(stream: Stream) -> str:
    named = f"stream {stream.stream}"
    return named if stream.name is None else f"{named} ({stream.name})"
