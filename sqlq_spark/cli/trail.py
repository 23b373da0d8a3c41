"""The command `trail`: who purged, returned, dropped or retired what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sqlq_spark.cli import screen
from sqlq_spark.cli.options import (
    TIMEOUT,
    AsJson,
    Credentials,
    MaybeQueue,
    Patience,
    State,
    Url,
    database_options,
)
from sqlq_spark.database import transaction
from sqlq_spark.database.schema import NO_TRAIL, has_trail
from sqlq_spark.database.sessions import StateSession
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.names import parse_queue

if TYPE_CHECKING:
    from sqlq_spark.database import Connection, Row

app = typer.Typer()
COLUMNS = (  # of the statement `trail`
    *("at", "login", "session_login", "action", "queue", "messages", "stream", "batch", "task"),
)


@app.command("trail")
def trail_(
    queue: MaybeQueue = None,
    *,
    last: Annotated[int, typer.Option(min=1, help="How many entries.")] = 100,
    as_json: AsJson = False,
    query_timeout: Patience = TIMEOUT,
    url: Url = None,
    credentials: Credentials = None,
    state_schema: State = DatabaseOptions.state_schema,
) -> None:
    """
    Show the audit trail, the latest entry first.

    An entry says who purged, returned, dropped or retired, when, and how many
    messages. Each transaction of a command has one.
    """
    options = database_options(
        url, state_schema, queryTimeout=query_timeout, credentials=credentials
    )
    address = None if queue is None else parse_queue("queue", queue, options.naming)
    with (
        StateSession(options, "trail") as session,
        transaction(session.open(), timeout=options.query_timeout),
    ):
        name = None if address is None else session.open().printed(address)
        found = session.open().rows("trail", queue_name=name, entries=last)
    if as_json:
        for each in found:
            screen.print_json(dict(zip(COLUMNS, each, strict=True)))
    else:
        show(found)


def show(found: list[Row]) -> None:
    """Show entries, one per row."""
    names = ("at", "login", "session login", "action", "messages", "stream", "batch", "task")
    rows = ((*each[:4], *each[5:], each[4]) for each in found)
    screen.show((*names, "queue"), rows, "entries")


def keeps_trail(connection: Connection) -> bool:
    """Whether actions are recorded; if not, print that on standard error."""
    kept = has_trail(connection)
    if not kept:
        screen.say_error(NO_TRAIL.format(connection.state, connection.server))
    return kept
