"""The commands `purge` and `purge-expired`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from sqlq_spark.admin import inspect, purge
from sqlq_spark.admin.formats import quantity
from sqlq_spark.cli import screen
from sqlq_spark.cli.options import (
    TIMEOUT,
    AsJson,
    Credentials,
    Patience,
    Queue,
    State,
    Url,
    Yes,
    answerable,
    confirm,
    source_options,
)
from sqlq_spark.cli.screen import print_json, say
from sqlq_spark.cli.trail import keeps_trail
from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.options.connection import DatabaseOptions

if TYPE_CHECKING:
    from sqlq_spark.database import Connection
    from sqlq_spark.options import SourceOptions

app = typer.Typer()


@app.command("purge")
def purge_(
    queue: Queue,
    *,
    yes: Yes = False,
    as_json: AsJson = False,
    query_timeout: Patience = TIMEOUT,
    url: Url = None,
    credentials: Credentials = None,
    state_schema: State = DatabaseOptions.state_schema,
) -> None:
    """
    Delete every message that waits in a queue, in batches, the lowest seq first. Asks first.

    Waits for messages that a consumer has locked. Messages sent meanwhile
    stay. A deleted message cannot be restored.
    """
    answerable(yes=yes, as_json=as_json)
    options = source_options(
        url, queue, state_schema, queryTimeout=query_timeout, credentials=credentials
    )
    with Session(options, "purge") as session:
        connection = session.open()
        depth = measure(connection, options)
        what = f"delete {quantity(depth.messages, 'message')} of {depth.queue} permanently"
        if depth.messages:
            confirm(what, yes=yes, as_json=as_json)
        recorded = depth.messages > 0 and keeps_trail(connection)
        batches = purge.purge_parts(
            connection, options.address, depth, timeout=options.query_timeout, recorded=recorded
        )
        gone = screen.follow(batches, "message", depth.messages, quiet=as_json, done="deleted")
    if as_json:
        print_json({"queue": depth.queue, "deleted": gone, "recorded": recorded})
    else:
        say(f"{quantity(gone, 'message')} deleted")


@app.command("purge-expired")
def purge_expired(
    queue: Queue,
    *,
    as_json: AsJson = False,
    query_timeout: Patience = TIMEOUT,
    url: Url = None,
    credentials: Credentials = None,
) -> None:
    """Delete expired messages, in batches. Skips messages that others have locked."""
    options = source_options(url, queue, queryTimeout=query_timeout, credentials=credentials)
    with Session(options, "purge") as session:
        connection = session.open()
        depth = measure(connection, options)
        batches = purge.purge_expired(connection, options.address, timeout=options.query_timeout)
        gone = screen.follow(
            batches, "expired message", depth.expired or 0, quiet=as_json, done="deleted"
        )
    if as_json:
        print_json({"queue": depth.queue, "deleted": gone})
    else:
        say(f"{quantity(gone, 'expired message')} deleted from {depth.queue}")


def measure(connection: Connection, options: SourceOptions) -> inspect.Depth:
    """Measure the depth of the queue."""
    with transaction(connection, timeout=options.query_timeout):
        return inspect.depth(connection, options.address)
