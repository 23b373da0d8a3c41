"""
The commands that make what an endpoint needs, and end it.

`install`, `create` and `script` make tables. `subscribe`, `unsubscribe` and `subscribers` are about
subscriptions. `retire` drops a queue that is no longer used.

`retire` loses no message that arrives meanwhile. First the queue is unsubscribed. Endpoints keep
the subscribers that they have read for a moment, so the command waits for PATIENCE. Then one
transaction locks the tables, counts again, and drops them. A sender that waits for the lock fails
when the table is gone, so its message is not lost.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

from typer import Argument, Option, Typer

from sqlq_spark import errors
from sqlq_spark.admin import inspect
from sqlq_spark.admin import script as scripts
from sqlq_spark.admin.checks import subscriptions_of
from sqlq_spark.admin.formats import Column, quantity
from sqlq_spark.cli import options as cli
from sqlq_spark.cli.options import AskingCommand, Command, Context
from sqlq_spark.cli.screen import print_json, say_error
from sqlq_spark.database import schema, transaction
from sqlq_spark.database.trust import RETURNED, Destinations
from sqlq_spark.options.names import DIALECTS, parse_queue, parse_table
from sqlq_spark.options.sink import SUBSCRIPTION_TABLE
from sqlq_spark.send import subscriptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.admin.inspect import Receipt
    from sqlq_spark.database import Connection
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.subscriptions import Subscription
    from sqlq_spark.wire.address import QueueAddress

app = Typer()


@app.command(cls=Command)
def install(
    context: Context, *, domain: str | None = None, state_schema: str | None = None
) -> None:
    """Create the state tables, if they are missing. Streams and exactlyOnce writes need them."""
    state_schema = state_schema or scripts.of_domain(domain)[0]
    options = context.obj.database(stateSchema=state_schema)
    connection = context.connect(options, "install")
    schema.install(connection, timeout=options.query_timeout)
    result = {"stateSchema": state_schema, "server": connection.server}
    place = f"schema {state_schema} of {connection.server}"
    context.answer(result, f"the state tables are in {place}")


@app.command(cls=Command)
def create(
    context: Context,
    queue: str,
    *,
    instance: list[str] | None = None,
    qualifier: list[str] | None = None,
    error: str | None = None,
    audit: str | None = None,
    delayed: bool = False,
    body_string: bool = False,
) -> None:
    """
    Create an endpoint's missing queues, with the tables that the transport creates.

    QUEUE is the endpoint's name, or the address of its queue.
    A name without a schema is in the default schema. The queues of instances
    and satellites are in the schema of QUEUE.
    """
    made = scripts.endpoint(
        context.obj.location,
        queue,
        instances=instance or (),
        qualifiers=qualifier or (),
        error=error,
        audit=audit,
        delayed=delayed,
    )
    options = context.obj.source(queue)
    timeout, waiting = options.query_timeout, None
    connection = context.connect(options, "create")
    for each in made.queues:
        schema.create_queue(connection, each, timeout=timeout, body_string=body_string)
    names = [connection.printed(each) for each in made.queues]
    places = f"in {connection.server}: {', '.join(names)}"
    if delayed:
        schema.create_delayed(connection, made.primary, timeout=timeout)
        waiting = connection.printed(schema.delayed_of(made.primary))
        places += f", {waiting}"
    result = {"queues": names, "delayed": waiting, "server": connection.server}
    context.answer(result, places)


@app.command(cls=cli.OfflineCommand)
def script(
    context: Context,
    queues: Annotated[
        list[str], Argument(help=f"{cli.HELP['queue']} Several have the same roles.")
    ],
    *,
    dialect: str = "postgresql",
    instance: list[str] | None = None,
    qualifier: list[str] | None = None,
    error: str | None = None,
    audit: str | None = None,
    delayed: bool = False,
    body_string: bool = False,
    domain: str | None = None,
    reader: str | None = None,
    sender: str | None = None,
    no_sender: bool = False,
    operator: str | None = None,
    producer: str | None = None,
    subscription_table: str | None = None,
    state_schema: str | None = None,
) -> None:
    """
    Print DDL and GRANTs for queues and state tables, for a DBA. Does not connect.

    Options:
        dialect: postgresql or sqlserver
        reader: The role that receives. Needs --domain or --state-schema.
        sender: The role that sends. Needs --domain or --state-schema.
        no_sender: No role that sends, for a team that only reads.
        operator: Also create a role that may run these commands.
        producer: Also create a role that only sends, for endpoints and ServiceControl.
        subscription_table: Also create this table, and let the sender publish with it.
    """
    for option, names in (("--instance", instance), ("--qualifier", qualifier)):
        cli.require(not names or len(queues) == 1, option, names, "one QUEUE with it")
    for option, role in (("--reader", reader), ("--sender", sender)):
        cli.require(
            role is None or domain or state_schema,
            option,
            role,
            "--domain or --state-schema with it, because all roles of one state schema are one "
            "team",
        )
    cli.require(not no_sender or sender is None, "--sender", sender, "no --no-sender with it")
    cli.require(dialect in DIALECTS, "--dialect", dialect, " or ".join(DIALECTS))
    state, own_reader, own_sender = scripts.of_domain(domain)
    url = f"{dialect}://"
    options = replace(context.obj, url=url).database(stateSchema=state_schema or state)
    text = scripts.script(
        *(
            scripts.endpoint(
                url,
                queue,
                instances=instance or (),
                qualifiers=qualifier or (),
                error=error,
                audit=audit,
                delayed=delayed,
            )
            for queue in queues
        ),
        state=options.state_schema,
        subscriptions=cli.queue_or_none("--subscription-table", subscription_table, options),
        roles=scripts.Roles(
            reader=reader or own_reader,
            sender=None if no_sender else sender or own_sender,
            operator=operator,
            producer=producer,
        ),
        delayed=delayed,
        body_string=body_string,
        dialect=dialect,
    )
    if context.obj.as_json:
        print_json({"dialect": dialect, "script": text})
    else:
        sys.stdout.write(text)


# ---------------------------------------------------------------- subscriptions

PATIENCE = 5  # seconds for which an endpoint keeps the subscribers that it has read
COLUMNS = (Column("topic"), Column("endpoint"), Column("queue", "address"))
Topics = Annotated[list[str], Argument(metavar="TOPIC...")]


@app.command(cls=Command)
def subscribe(
    context: Context,
    topics: Topics,
    *,
    endpoint: Annotated[str, Option()],
    queue: Annotated[str, Option()],
    subscription_table: str = SUBSCRIPTION_TABLE,
) -> None:
    """
    Subscribe an endpoint to topics. Creates the subscription table if it is missing.

    Options:
        queue: The endpoint's queue, which must exist.
    """
    options = context.obj.sink(subscriptionTable=subscription_table)
    address = parse_queue("--queue", queue, options.naming)
    connection = context.connect(options, "subscribe")
    made = subscriptions.subscribe(
        connection,
        options.subscription_address,
        topics=topics,
        endpoint=endpoint,
        queue=address,
        timeout=options.query_timeout,
    )
    for its in made:
        text = f"{its.endpoint} is subscribed to {its.topic} with {its.address}"
        context.answer(asdict(its), text)


@app.command(cls=AskingCommand)
def unsubscribe(
    context: Context,
    topics: Topics,
    *,
    endpoint: Annotated[str, Option()],
    subscription_table: str = SUBSCRIPTION_TABLE,
) -> None:
    """End an endpoint's subscriptions to topics. Asks first."""
    options = context.obj.sink(subscriptionTable=subscription_table)
    table, timeout = options.subscription_address, options.query_timeout
    connection = context.connect(options, "unsubscribe")
    with transaction(connection):
        listed = subscriptions.list_subscriptions(connection, table)
    found = [each for each in listed if each.endpoint == endpoint and each.topic in topics]
    if found:
        names = ", ".join(each.topic for each in found)
        queues = ", ".join(sorted({each.address for each in found}))
        context.confirm(f"end the subscription of {endpoint} with {queues} to {names}")
    for each in found:
        subscriptions.unsubscribe(connection, table, each.topic, endpoint, timeout=timeout)
    ended = {each.topic for each in found}
    stop = f"publishers stop within {quantity(PATIENCE, 'second')}"
    for topic in topics:
        was = topic in ended
        if was or context.obj.as_json:
            result = {"topic": topic, "endpoint": endpoint, "unsubscribed": was}
            context.answer(result, f"{endpoint} is no longer subscribed to {topic}; {stop}")
        if not was:
            lists = "`sqlqueue subscribers` lists who is"
            say_error(f"{endpoint} is not subscribed to {topic}; {lists}")
    if not ended.issuperset(topics):
        context.exit(cli.FOUND)


@app.command(cls=Command)
def subscribers(
    context: Context,
    topic: Annotated[str | None, Argument(help="Show only this topic.")] = None,
    *,
    subscription_table: str = SUBSCRIPTION_TABLE,
) -> None:
    """List who is subscribed, to one topic or to any."""
    options = context.obj.sink(subscriptionTable=subscription_table)
    connection = context.connect(options, "subscribers")
    with transaction(connection):
        found = subscriptions.list_subscriptions(connection, options.subscription_address, topic)
    context.show(COLUMNS, found, "subscriptions")


# ---------------------------------------------------------------- retire


class StillUsed(errors.SqlQueueError):
    """The queue cannot be dropped. Neither it nor its table of delayed messages was dropped."""

    template = "queue {queue} was not dropped: {reason}"


@app.command(cls=AskingCommand)
def retire(
    context: Context,
    queue: str,
    *,
    discard_messages: bool = False,
    subscription_table: str = SUBSCRIPTION_TABLE,
    state_schema: str | None = None,
) -> None:
    """
    Unsubscribe a queue from all topics, then drop it with its table of delayed messages.

    Asks before each of the two steps. Between them it waits for 5 seconds,
    because endpoints keep the subscribers that they have read for so long.
    Drops nothing while a stream has receipts of the queue, or while messages
    are left. Stop the endpoint first. Use a login that owns the tables.

    Options:
        discard_messages: Also delete the messages that are left.
        state_schema: Look at this schema only; by default at all that you may enter.
    """
    options = context.obj.sink(stateSchema=state_schema, subscriptionTable=subscription_table)
    address = parse_table("QUEUE", queue, options.naming)
    dropped: list[str] = []
    trails: list[str] = []
    connection = context.connect(options, "retire")
    # code that an INSERT would run does not matter here
    known = Destinations(connection, [connection.names.qualify(address)])
    known.check([address], RETURNED)
    name = connection.printed(address)
    states, unread = find_schemas(connection, state_schema)
    for state, why in unread.items():
        say_error(f"receipts in state schema {state} are not looked for: {why}")
    look = partial(look_at, connection, address, options.subscription_address, states)
    with transaction(connection):
        ended = look().subscriptions
    if ended:
        end_subscriptions(context, options, ended, name)
    with transaction(connection):
        left = look()
    expected = left if discard_messages else None
    reasons = find_reasons(left, expected)
    if not reasons:
        tables = " and ".join(map(connection.printed, reversed(left.tables)))
        lost = f" with {quantity(left.total, 'message')}" if left.total else ""
        context.confirm(f"drop {tables}{lost} permanently")
        trails = [each for each in states if schema.has_trail(connection, each)]
        if not trails:
            say_error(schema.NO_TRAIL.format(options.state_schema, connection.server))
        with transaction(connection):
            for table in left.tables:
                connection.rows("lock_queue", tables={"queue": table})
            last = look()
            reasons = find_reasons(last, expected)
            if not reasons:
                drop_tables(connection, name, last, trails)
                dropped = [*map(connection.printed, last.tables)]
    result = {
        "queue": name,
        "unsubscribed": [asdict(each) for each in ended],
        "messages": left.messages,
        "delayed": left.delayed,
        "receipts": len(left.receipts),
        "dropped": dropped,
        "recorded": bool(trails and dropped),
        "unread": [*unread],
    }
    if dropped or context.obj.as_json:
        context.answer(result, f"{' and '.join(dropped)} dropped")
    if reasons:
        cli.fail(str(StillUsed(queue=name, reason="; ".join(reasons))))


def find_schemas(connection: Connection, state: str | None) -> tuple[list[str], dict[str, str]]:
    """
    Find the state schemas in which receipts are looked for, and why others are not read.

    No transaction is open. Without `state` all schemas are looked into.
    """
    states, unread = schema.find_states(connection) if state is None else ([state], {})
    readable = []
    for each in states:
        try:
            with schema.use_state(connection, each):
                schema.check_state(connection)
                inspect.receipts(connection, stream="")
        except errors.DatabaseFailure as error:
            if state is not None and not isinstance(error, errors.StateNotInstalled):
                raise
            unread[each] = str(error)
        else:
            readable.append(each)
    return readable, unread


def end_subscriptions(
    context: Context, options: SinkOptions, found: Sequence[Subscription], queue: str
) -> None:
    """Ask, unsubscribe a queue, and wait until no endpoint publishes to it."""
    if not context.obj.as_json:
        context.show(COLUMNS, found, "subscriptions")
    context.confirm(f"end {quantity(len(found), 'subscription')} of {queue}")
    table, timeout = options.subscription_address, options.query_timeout
    for each in found:
        subscriptions.unsubscribe(
            context.connection, table, each.topic, each.endpoint, timeout=timeout
        )
    keep = "endpoints keep the subscribers that they have read for so long"
    context.note(f"waiting {quantity(PATIENCE, 'second')}: {keep}")
    time.sleep(PATIENCE)


class Remains(NamedTuple):
    """What is left of a queue."""

    tables: list[QueueAddress]  # in the order in which a mover of delayed messages locks
    messages: int
    last: int  # the highest seq; 0 where no message waits
    delayed: int | None  # messages; None: there is no table of delayed messages
    receipts: list[Receipt]
    subscriptions: list[Subscription]

    @property
    def total(self) -> int:
        """Messages in both tables."""
        return self.messages + (self.delayed or 0)


def look_at(
    connection: Connection, queue: QueueAddress, table: QueueAddress, states: Sequence[str]
) -> Remains:
    """Count what is left of a queue, in the open transaction."""
    delayed, name = schema.delayed_of(queue), inspect.delayed_name(connection, queue)
    tables, waiting = [queue], None
    if name is not None and "due" in connection.columns(delayed):
        values = {"table_name": name, "zone": None, "largest": None}
        waiting = connection.rows("stats_delayed", tables={"queue": delayed}, **values)[0][0]
        tables = [delayed, queue]
    found: list[Receipt] = []
    for state in states:
        with schema.use_state(connection, state):
            found += inspect.receipts(connection)
    names: dict[str, QueueAddress] = {}
    for each in found:
        with suppress(errors.BadAddress):
            names[each.queue] = connection.names.parse_table(each.queue)
    own, *others = connection.identities([queue, *names.values()])
    same = {name for name, other in zip(names, others, strict=True) if other == own}
    receipts = [each for each in found if each.queue in same]
    depth, ended = inspect.depth(connection, queue), subscriptions_of(connection, table, queue)
    return Remains(tables, depth.messages, depth.last or 0, waiting, receipts, ended)


def find_reasons(left: Remains, expected: Remains | None) -> list[str]:
    """Say why a queue cannot be dropped, if only the expected messages may be lost."""
    reasons = []
    if left.subscriptions:
        endpoint = left.subscriptions[0].endpoint
        reasons.append(f"endpoint {endpoint} has subscribed again; stop it first")
    if left.receipts:
        held = quantity(sum(each.messages for each in left.receipts), "message")
        streams = ", ".join(sorted({each.stream for each in left.receipts}))
        reasons.append(
            f"{quantity(len(left.receipts), 'receipt')} with {held} of it are open (stream "
            f"{streams}); let the stream acknowledge them, or see `sqlqueue receipts`"
        )
    if expected is None and left.total:
        lost = f"{quantity(left.total, 'message')} would be lost"
        reasons.append(f"{lost}; receive or move them, or use --discard-messages")
    if expected is not None and (
        left.last > expected.last
        or left.messages > expected.messages
        or (left.delayed or 0) > (expected.delayed or 0)
    ):
        reasons.append("messages have arrived meanwhile; run the command again")
    return reasons


def drop_tables(connection: Connection, name: str, last: Remains, trails: Sequence[str]) -> None:
    for table in last.tables:
        connection.rows("drop_queue", tables={"queue": table})
    for state in trails:
        with schema.use_state(connection, state):
            schema.record_action(connection, "retire", name, last.total)
