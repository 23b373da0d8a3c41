"""The commands `install`, `create` and `script`."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

import typer

from sqlq_spark.admin.script import Roles, endpoint, of_domain, script
from sqlq_spark.cli.options import TABLE, Command, OfflineCommand, Queue, Shared
from sqlq_spark.cli.screen import print_json, say
from sqlq_spark.database import schema
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import BadOption
from sqlq_spark.options.names import DIALECTS, parse_queue

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
State = Annotated[
    str | None,
    typer.Option("--state-schema", help="Schema of the state tables, sqlqueue by default."),
]

MORE = {"allow_extra_args": True}  # `create` rejects them with a message


@app.command("install", cls=Command)
def install_(
    context: typer.Context, *, domain: DomainName = None, state_schema: State = None
) -> None:
    """Create the state tables, if they are missing. Streams and exactlyOnce writes need them."""
    shared: Shared = context.obj
    state_schema = state_schema or of_domain(domain)[0]
    options = shared.database(stateSchema=state_schema)
    with Session(options, "install") as session:
        connection = session.open()
        schema.install(connection, timeout=options.query_timeout)
        if shared.as_json:
            print_json({"stateSchema": state_schema, "server": connection.server})
        else:
            say(f"the state tables are in schema {state_schema} of {connection.server}")


@app.command(cls=Command, context_settings=MORE)
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
) -> None:
    """
    Create an endpoint's missing queues, with the tables that the transport creates.

    QUEUE is the endpoint's name, or the address of its queue.
    A name without a schema is in the default schema. The queues of instances
    and satellites are in the schema of QUEUE.
    """
    if context.args:
        expected = (
            "one QUEUE; name the endpoint's other queues with --error, --audit, --instance or "
            "--qualifier, and run the command again for another endpoint"
        )
        raise BadOption(option="QUEUE", found=" ".join(context.args), expected=expected)
    shared: Shared = context.obj
    made = endpoint(
        shared.location,
        queue,
        instances=instance or (),
        qualifiers=qualifier or (),
        error=error,
        audit=audit,
        delayed=delayed,
    )
    options = shared.source(queue)
    with Session(options, "create") as session:
        connection = session.open()
        waiting: str | None = None
        for each in made.queues:
            schema.create_queue(
                connection, each, timeout=options.query_timeout, body_string=body_string
            )
            if not shared.as_json:
                say(f"queue {connection.printed(each)} is in {connection.server}")
        if delayed:
            schema.create_delayed(connection, made.primary, timeout=options.query_timeout)
            waiting = connection.printed(schema.delayed_of(made.primary))
            if not shared.as_json:
                say(f"table {waiting} is in {connection.server}")
        if shared.as_json:
            names = [connection.printed(each) for each in made.queues]
            its = {"queues": names, "delayed": waiting, "server": connection.server}
            print_json(its)


@app.command("script", cls=OfflineCommand)
def script_(
    context: typer.Context,
    queues: Annotated[list[str], typer.Argument(help=f"{TABLE} Several have the same roles.")],
    *,
    dialect: Annotated[str, typer.Option(help="postgresql or sqlserver")] = "postgresql",
    instance: Instances = None,
    qualifier: Qualifiers = None,
    error: Error = None,
    audit: Audit = None,
    delayed: Delayed = False,
    body_string: BodyString = False,
    domain: DomainName = None,
    reader: Annotated[
        str | None,
        typer.Option(help="The role that receives. Needs --domain or --state-schema."),
    ] = None,
    sender: Annotated[
        str | None,
        typer.Option(help="The role that sends. Needs --domain or --state-schema."),
    ] = None,
    no_sender: Annotated[
        bool, typer.Option("--no-sender", help="No role that sends, for a team that only reads.")
    ] = False,
    operator: Annotated[
        str | None, typer.Option(help="Also create a role that may run these commands.")
    ] = None,
    producer: Annotated[
        str | None,
        typer.Option(help="Also create a role that only sends, for endpoints and ServiceControl."),
    ] = None,
    subscription_table: Annotated[
        str | None,
        typer.Option(help="Also create this table, and let the sender publish with it."),
    ] = None,
    state_schema: State = None,
) -> None:
    """Print DDL and GRANTs for queues and state tables, for a DBA. Does not connect."""
    for option, given in (("--instance", instance), ("--qualifier", qualifier)):
        if given and len(queues) > 1:
            raise BadOption(option=option, found=given[0], expected="one QUEUE with it")
    if no_sender and sender is not None:
        raise BadOption(option="--sender", found=sender, expected="no --no-sender with it")
    for option, role in (("--reader", reader), ("--sender", sender)):
        if role is not None and domain is None and state_schema is None:
            expected = (
                "--domain or --state-schema with it, because all roles of one state schema are one "
                "team"
            )
            raise BadOption(option=option, found=role, expected=expected)
    state, own_reader, own_sender = of_domain(domain)
    state_schema = state_schema or state
    roles = Roles(
        reader=reader or own_reader,
        sender=None if no_sender else sender or own_sender,
        operator=operator,
        producer=producer,
    )
    if dialect not in DIALECTS:
        raise BadOption(option="--dialect", found=dialect, expected=" or ".join(DIALECTS))
    made = [
        endpoint(
            f"{dialect}://",
            queue,
            instances=instance or (),
            qualifiers=qualifier or (),
            error=error,
            audit=audit,
            delayed=delayed,
        )
        for queue in queues
    ]
    shared: Shared = context.obj
    options = replace(shared, url=f"{dialect}://").source(queues[0], stateSchema=state_schema)
    text = script(
        *made,
        state=options.state_schema,
        subscriptions=None
        if subscription_table is None
        else parse_queue("--subscription-table", subscription_table, options.naming),
        roles=roles,
        delayed=delayed,
        body_string=body_string,
        dialect=dialect,
    )
    if shared.as_json:
        print_json({"dialect": dialect, "script": text})
    else:
        sys.stdout.write(text)
