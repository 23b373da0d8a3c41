"""The command `doctor`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sqlq_spark.admin import checks, queue_tables, subscribers
from sqlq_spark.admin.finding import no_address, state_unread
from sqlq_spark.cli import screen
from sqlq_spark.cli.options import (
    FOUND,
    TIMEOUT,
    AsJson,
    Credentials,
    Patience,
    Queues,
    States,
    SubscriptionTable,
    Url,
    database_options,
)
from sqlq_spark.cli.screen import NO_QUEUES, print_json, say
from sqlq_spark.database.schema import find_states
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import BadOption
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.names import parse_queue, parse_table
from sqlq_spark.options.sink import SUBSCRIPTION_TABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.admin.finding import Finding
    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress

app = typer.Typer()


@app.command()
def doctor(
    queues: Queues = None,
    *,
    warn_if_shared: Annotated[
        bool, typer.Option(help="Warn if an endpoint seems to own the queue of a stream.")
    ] = True,
    subscription_table: SubscriptionTable = SUBSCRIPTION_TABLE,
    as_json: AsJson = False,
    query_timeout: Patience = TIMEOUT,
    url: Url = None,
    credentials: Credentials = None,
    state_schema: States = None,
) -> None:
    """
    Check queues, subscriptions, streams and the server, and print the fix of each problem.

    Without a name it checks all queues that this login may read. Without
    --state-schema it names the state schemas that it did not look into.
    Changes nothing. The exit code is 1 if there is an error or a warning.
    """
    options = database_options(
        url,
        state_schema or DatabaseOptions.state_schema,
        queryTimeout=query_timeout,
        credentials=credentials,
    )
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
        found += checks.everything(
            connection,
            [*asked, *unnamed],
            timeout=options.query_timeout,
            warn_if_shared=warn_if_shared,
            unnamed=unnamed,
            states=states,
        )
        more = subscribers.check(connection, table, timeout=options.query_timeout)
        found += [each for each in more if each not in found]
    if as_json:
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
    names = checks.names_of_streams(connection, states, timeout=options.query_timeout)
    unfit = []
    for name in sorted(names):
        if name in known:
            continue
        try:
            found.append(parse_table("QUEUE", name, options.naming))
        except BadOption as error:
            unfit.append(no_address(error, names[name]))
    return found, unfit
