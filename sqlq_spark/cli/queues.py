"""The commands `install`, `create`, `script`, `purge`, `purge-expired` and `doctor`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sqlq_spark.admin import checks, find, inspect, purge, subscribers
from sqlq_spark.admin.endpoint import endpoint
from sqlq_spark.admin.formats import quantity
from sqlq_spark.admin.script import Domain, Roles, script
from sqlq_spark.cli.options import (
    FOUND,
    TIMEOUT,
    AsJson,
    Credentials,
    Patience,
    Queue,
    Queues,
    State,
    SubscriptionTable,
    Url,
    Yes,
    answerable,
    confirm,
    database_options,
    location,
    source_options,
)
from sqlq_spark.cli.screens import progress
from sqlq_spark.cli.screens import queues as screen_queues
from sqlq_spark.cli.screens.screen import NO_QUEUES, print_json, say
from sqlq_spark.cli.trail import keeps_trail
from sqlq_spark.database import schema, transaction
from sqlq_spark.database.names import DIALECTS
from sqlq_spark.database.sessions import Session, check_state
from sqlq_spark.errors import BadOption, RightMissing
from sqlq_spark.options.addresses import parse_queue, parse_table
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.sink import SUBSCRIPTION_TABLE

if TYPE_CHECKING:
    from sqlq_spark.database import Connection
    from sqlq_spark.options import SourceOptions
    from sqlq_spark.wire.address import QueueAddress

app = typer.Typer()

Instances = Annotated[
    list[str] | None,
    typer.Option("--instance", help="NAME of an instance's queue QUEUE.NAME, or its address."),
]
Qualifiers = Annotated[
    list[str] | None,
    typer.Option("--qualifier", help="NAME of a satellite's queue QUEUE.NAME, or its address."),
]
Error = Annotated[
    str | None, typer.Option("--error", help="The error queue, also for poison messages.")
]
Audit = Annotated[str | None, typer.Option("--audit", help="The audit queue.")]
Delayed = Annotated[bool, typer.Option("--delayed", help="Also create the table QUEUE.Delayed.")]
BodyString = Annotated[
    bool,
    typer.Option("--body-string", help="Add the column BodyString: bodies as text."),
]


DomainName = Annotated[
    str | None,
    typer.Option(
        "--domain",
        help="Separate these logins from others: the state schema is sqlqueue_NAME, the roles "
        "are NAME_reader and NAME_sender. The options of these names override them.",
    ),
]

MORE = {"allow_extra_args": True}  # one_endpoint rejects them with a message


@app.command("install")
def install_(
    *,
    domain: DomainName = None,
    as_json: AsJson = False,
    query_timeout: Patience = TIMEOUT,
    url: Url = None,
    credentials: Credentials = None,
    state_schema: State = Domain.state,
) -> None:
    """Create missing state tables. Streams and writers with exactlyOnce need them."""
    state_schema = either(state_schema, Domain.state, Domain.of(domain).state)
    options = database_options(
        url, state_schema, queryTimeout=query_timeout, credentials=credentials
    )
    with Session(options, "install", state=False) as session:
        connection = session.open()
        schema.install(connection, timeout=options.query_timeout)
        check_state(connection, state_schema)
        if as_json:
            print_json({"stateSchema": state_schema, "server": connection.server})
        else:
            say(f"the state tables are in schema {state_schema} of {connection.server}")


@app.command(context_settings=MORE)
def create(
    context: typer.Context,
    queue: Queue,
    *,
    instance: Instances = None,
    qualifier: Qualifiers = None,
    error: Error = None,
    audit: Audit = None,
    delayed: Delayed = False,
    body_string: BodyString = False,
    as_json: AsJson = False,
    query_timeout: Patience = TIMEOUT,
    url: Url = None,
    credentials: Credentials = None,
) -> None:
    """
    Create an endpoint's missing queues, with the tables that the transport creates.

    QUEUE is the endpoint's name, or the address of its queue.
    A name without a schema is in the default schema. The queues of instances
    and satellites are in the schema of QUEUE.
    """
    one_endpoint(context)
    made = endpoint(
        location(url, credentials),
        queue,
        instances=instance or (),
        qualifiers=qualifier or (),
        error=error,
        audit=audit,
        delayed=delayed,
    )
    options = source_options(url, queue, queryTimeout=query_timeout, credentials=credentials)
    with Session(options, "create", state=False) as session:
        connection = session.open()
        waiting: str | None = None
        for each in made.queues:
            schema.create_queue(
                connection, each, timeout=options.query_timeout, body_string=body_string
            )
            if not as_json:
                say(f"queue {connection.printed(each)} is in {connection.server}")
        if delayed:
            schema.create_delayed(connection, made.primary, timeout=options.query_timeout)
            waiting = connection.printed(schema.delayed_of(made.primary))
            if not as_json:
                say(f"table {waiting} is in {connection.server}")
        if as_json:
            names = [connection.printed(each) for each in made.queues]
            its = {"queues": names, "delayed": waiting, "server": connection.server}
            print_json(its)


@app.command("script", context_settings=MORE)
def script_(
    context: typer.Context,
    queue: Queue,
    *,
    dialect: Annotated[str, typer.Option(help="postgresql or sqlserver")] = "postgresql",
    instance: Instances = None,
    qualifier: Qualifiers = None,
    error: Error = None,
    audit: Audit = None,
    delayed: Delayed = False,
    body_string: BodyString = False,
    domain: DomainName = None,
    reader: Annotated[str, typer.Option(help="The role that receives.")] = Roles.reader,
    sender: Annotated[str, typer.Option(help="The role that sends.")] = Roles.sender,
    operator: Annotated[
        str | None, typer.Option(help="Also create a role that may run these commands.")
    ] = None,
    installer: Annotated[
        str | None, typer.Option(help="Also create a role that may create queues.")
    ] = None,
    owner: Annotated[
        str,
        typer.Option(
            help="With --installer: the role that owns the state tables. No login may be a member."
        ),
    ] = Roles.owner,
    subscription_table: Annotated[
        str | None,
        typer.Option(help="Also create this table, and let the sender publish with it."),
    ] = None,
    as_json: AsJson = False,
    state_schema: State = Domain.state,
) -> None:
    """Print DDL and GRANTs for queues and state tables, for a DBA. Does not connect."""
    one_endpoint(context)
    its = Domain.of(domain)
    state_schema = either(state_schema, Domain.state, its.state)
    roles = Roles(
        reader=either(reader, Roles.reader, its.reader),
        sender=either(sender, Roles.sender, its.sender),
        operator=operator,
        installer=installer,
        owner=owner,
    )
    if dialect not in DIALECTS:
        raise BadOption("--dialect", dialect, " or ".join(DIALECTS))
    made = endpoint(
        f"{dialect}://",
        queue,
        instances=instance or (),
        qualifiers=qualifier or (),
        error=error,
        audit=audit,
        delayed=delayed,
    )
    options = source_options(f"{dialect}://", queue, state_schema)
    text = script(
        made,
        state=options.state_schema,
        subscriptions=None
        if subscription_table is None
        else parse_queue("--subscription-table", subscription_table, options.naming),
        roles=roles,
        delayed=delayed,
        body_string=body_string,
        dialect=dialect,
    )
    if as_json:
        print_json({"dialect": dialect, "script": text})
    else:
        sys.stdout.write(text)


def either(given: str, default: str, other: str) -> str:
    """The value of an option, or `other` if it has its default."""
    return other if given == default else given


def one_endpoint(context: typer.Context) -> None:
    """Reject a second QUEUE, and say how to name an endpoint's other queues."""
    if context.args:
        expected = (
            "one QUEUE; name the endpoint's other queues with --error, --audit, --instance or "
            "--qualifier, and run the command again for another endpoint"
        )
        raise BadOption("QUEUE", " ".join(context.args), expected)


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
    with Session(options, "purge", state=False) as session:
        connection = session.open()
        depth = measure(connection, options)
        what = f"delete {quantity(depth.messages, 'message')} of {depth.queue} permanently"
        if depth.messages:
            confirm(what, yes=yes, as_json=as_json)
        recorded = depth.messages > 0 and keeps_trail(connection)
        batches = purge.purge_parts(
            connection, options.address, depth, timeout=options.query_timeout, recorded=recorded
        )
        gone = progress.follow(batches, "message", depth.messages, quiet=as_json, done="deleted")
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
    with Session(options, "purge", state=False) as session:
        connection = session.open()
        depth = measure(connection, options)
        batches = purge.purge_expired(connection, options.address, timeout=options.query_timeout)
        gone = progress.follow(
            batches, "expired message", depth.expired or 0, quiet=as_json, done="deleted"
        )
    if as_json:
        print_json({"queue": depth.queue, "deleted": gone})
    else:
        say(f"{quantity(gone, 'expired message')} deleted from {depth.queue}")


@app.command()
def doctor(
    queues: Queues = None,
    *,
    body_string: Annotated[
        bool, typer.Option("--body-string", help="Also require the column BodyString.")
    ] = False,
    warn_if_shared: Annotated[
        bool, typer.Option(help="Warn if an endpoint seems to own the queue of a stream.")
    ] = True,
    subscription_table: SubscriptionTable = SUBSCRIPTION_TABLE,
    as_json: AsJson = False,
    query_timeout: Patience = TIMEOUT,
    url: Url = None,
    credentials: Credentials = None,
    state_schema: State = DatabaseOptions.state_schema,
) -> None:
    """
    Check queues, subscriptions, streams and the server, and print the fix of each problem.

    Without a name it checks all queues that this login may read.
    Changes nothing. The exit code is 1 if there is an error or a warning.
    """
    options = database_options(
        url, state_schema, queryTimeout=query_timeout, credentials=credentials
    )
    table = parse_queue("--subscription-table", subscription_table, options.naming)
    with Session(options, "doctor", state=False) as session:
        connection = session.open()
        asked = [parse_table("QUEUE", name, options.naming) for name in queues or ()]
        unnamed = [] if queues else all_queues(connection, options)
        found = checks.everything(
            connection,
            [*asked, *unnamed],
            timeout=options.query_timeout,
            body_string=body_string,
            warn_if_shared=warn_if_shared,
            unnamed=unnamed,
        )
        found += subscribers.check(connection, table, timeout=options.query_timeout)
    if as_json:
        for each in found:
            print_json(asdict(each))
    else:
        if not (asked or unnamed):
            say(f"no queue was checked: {NO_QUEUES.partition(': ')[2]}")
        screen_queues.show_findings(found)
    if any(each.is_problem for each in found):
        raise typer.Exit(FOUND)


def measure(connection: Connection, options: SourceOptions) -> inspect.Depth:
    """Measure the depth of the queue."""
    with transaction(connection, timeout=options.query_timeout):
        return inspect.depth(connection, options.address)


def all_queues(connection: Connection, options: DatabaseOptions) -> list[QueueAddress]:
    """The queues of the database, and those that streams read."""
    found = [each.address for each in find.queues(find.tables(connection))]
    known = {connection.printed(each) for each in found}
    names = names_of_streams(connection, options.query_timeout)
    more = [parse_table("QUEUE", name, options.naming) for name in names if name not in known]
    return [*found, *more]


def names_of_streams(connection: Connection, timeout: float) -> list[str]:
    """The queues that have streams."""
    if checks.of_state(connection):
        return []
    try:
        with transaction(connection, timeout=timeout):
            return sorted({name for each in inspect.streams(connection) for name in each.queues})
    except RightMissing:
        return []  # reported by the checks
