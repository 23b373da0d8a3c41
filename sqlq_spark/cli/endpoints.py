"""
The commands that make what an endpoint needs, and that remove it.

`install`, `create` and `script` make tables. `subscribe`, `unsubscribe` and `subscribers` are about
subscriptions. `retire` drops a queue that is no longer used.

`retire` loses no message that arrives while it runs. First it unsubscribes the queue. For some
seconds endpoints still use the subscribers that they have read before, so the command waits. Then
one transaction locks the tables, counts the messages again, and drops the tables. A sender that
waits for the lock gets an error when the table is gone. So the sender knows that its message was
not sent.
"""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict, replace
from functools import partial
from operator import gt
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from typer import Argument, Option, Typer

from sqlq_spark.admin import queue_sizes, state_tables
from sqlq_spark.admin import script as scripts
from sqlq_spark.admin.doctor import subscriptions_of
from sqlq_spark.admin.formats import ShownColumn, quantity
from sqlq_spark.cli import options as cli
from sqlq_spark.cli import screen
from sqlq_spark.cli.options import AskingCommand, Command, Context
from sqlq_spark.cli.screen import print_json, say_error
from sqlq_spark.database import find_same, schema, transaction
from sqlq_spark.database.destinations import RETURNED_COLUMNS, Destinations
from sqlq_spark.database.migrations import OLDEST_STATE_VERSION, STATE_VERSION, steps_back_to
from sqlq_spark.database.trust import READ, use_delayed
from sqlq_spark.options.names import parse_queue, parse_table
from sqlq_spark.send import subscriptions
from sqlq_spark.wire.address import delayed_of
from sqlq_spark.wire.dialects import DEFAULT_DIALECT, DIALECTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlq_spark.cli.options import Shared
    from sqlq_spark.database import Connection
    from sqlq_spark.send.subscriptions import Subscription
    from sqlq_spark.wire.address import QueueAddress

app = Typer()


@app.command("install", cls=cli.StateCommand)
def install_command(
    context: Context,
    *,
    domain: cli.Domain = None,
    back_to: Annotated[
        int | None, Option(help="Make the tables those of this older version instead.")
    ] = None,
) -> None:
    """
    Create the state tables, or make those of an older release this release's.

    Streams and exactlyOnce writes need them. What is in flight is kept.
    """
    own = context.obj.state_schema or (domain and scripts.of_domain(domain)[0])
    options = replace(context.obj, state_schema=own).database()
    connection = context.connect(options)
    state = options.state_schema
    place = f"the state tables in schema {state} of {connection.server}"
    if back_to is not None:
        expected = f"a version from {OLDEST_STATE_VERSION} to {STATE_VERSION - 1}"
        cli.require_option(
            OLDEST_STATE_VERSION <= back_to < STATE_VERSION, "--back-to", back_to, expected
        )
        for step in steps_back_to(back_to):
            context.note(f"Taken back: {step.describe()}.")
        done = schema.step_back(connection, back_to)
    else:
        for step in schema.pending_steps(connection):
            context.note(f"Taken: {step.describe()}.")
        done = schema.install(connection)
    result = {"stateSchema": state, "server": connection.server, **asdict(done)}
    if done.before is None:
        text = f"{place} were created, version {done.after}"
    elif done.before == done.after:
        text = f"{place} are there already, version {done.after}"
    else:
        text = f"{place} were changed from version {done.before} to version {done.after}"
    context.answer(result, text)


def name_queues(shared: Shared, queue: str) -> scripts.Endpoint:
    return scripts.endpoint(
        shared.location,
        queue,
        instances=shared.instance or (),
        qualifiers=shared.qualifier or (),
        error=shared.error,
        audit=shared.audit,
        delayed=shared.delayed,
    )


class CreateCommand(Command):
    """The options of `create`."""

    shared = (*cli.ENDPOINT_QUEUES, *Command.shared)


@app.command("create", cls=CreateCommand)
def create_command(context: Context, queue: cli.QueueName) -> None:
    """
    Create an endpoint's missing queues, with the tables that the transport creates.

    QUEUE is the endpoint's name, or the address of its queue.
    A name without a schema is in the default schema. The queues of instances
    and satellites are in the schema of QUEUE.
    """
    shared = context.obj
    endpoint = name_queues(shared, queue)
    connection = context.connect(shared.database())
    was_absent: dict[str, bool] = {}
    for address in endpoint.queues:
        name = connection.printed(address)
        made = schema.create_queue(connection, address, body_string=shared.body_string)
        was_absent.setdefault(name, made)  # an endpoint may name one queue twice
    names, waiting = [*was_absent], None
    if shared.delayed:
        waiting = connection.printed(delayed_of(endpoint.primary))
        was_absent[waiting] = schema.create_delayed(connection, endpoint.primary)
    created = [name for name, absent in was_absent.items() if absent]
    found = [name for name, absent in was_absent.items() if not absent]
    result = {"queues": names, "delayed": waiting, "created": created, "server": connection.server}
    if created:
        text = f"created in {connection.server}: {', '.join(created)}"
        text += f"; already there: {', '.join(found)}" if found else ""
    else:
        text = f"already there in {connection.server}: {', '.join(found)}"
    context.answer(result, text)


ScriptQueues = Annotated[list[str], Argument(help=f"{cli.QUEUE_HELP} Several have the same roles.")]
DialectName = Annotated[str, Option(help=" or ".join(DIALECTS))]
ReaderRole = Annotated[
    str | None, Option(help="The role that receives. Needs --domain or --state-schema.")
]
SenderRole = Annotated[
    str | None, Option(help="The role that sends. Needs --domain or --state-schema.")
]
NoSender = Annotated[
    bool, Option("--no-sender", help="No role that sends, for a team that only reads.")
]
OperatorRole = Annotated[str | None, Option(help="Also create a role that may run these commands.")]
ProducerRole = Annotated[
    str | None,
    Option(help="Also create a role that only sends, for endpoints and ServiceControl."),
]
NewSubscriptionTable = Annotated[
    str | None,
    Option(help="Also create this table, and let the sender publish with it."),
]
SparkLogin = Annotated[
    str | None,
    Option(
        "--login",
        help="Also give the rights of reader and sender to this login, which must exist.",
    ),
]
OnlyDatabase = Annotated[
    str | None,
    Option(help="The database it is for. In another one the script does nothing."),
]


COMMAND_LINE = "sqlq_spark.command_line"  # the key in the context of `script`


class ScriptCommand(cli.OfflineCommand):
    """The options of `script`."""

    shared = (
        *cli.ENDPOINT_QUEUES,
        "state_schema",
        "trusted_owners",
        *cli.OfflineCommand.shared,
    )

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - as in click
        """Keep the command line, which the script names."""
        ctx.meta[COMMAND_LINE] = shlex.join(["sqlqueue", "script", *args])
        return super().parse_args(ctx, args)


@app.command("script", cls=ScriptCommand)
def script_command(
    context: Context,
    queues: ScriptQueues,
    *,
    dialect: DialectName = DEFAULT_DIALECT,
    domain: cli.Domain = None,
    reader: ReaderRole = None,
    sender: SenderRole = None,
    no_sender: NoSender = False,
    operator: OperatorRole = None,
    producer: ProducerRole = None,
    login: SparkLogin = None,
    subscription_table: NewSubscriptionTable = None,
    database: OnlyDatabase = None,
) -> None:
    """Print DDL and GRANTs for queues and state tables, for a DBA. Does not connect."""
    cli.require_option(dialect in DIALECTS, "--dialect", dialect, " or ".join(DIALECTS))
    state, own_reader, own_sender = scripts.of_domain(domain)
    own = context.obj.state_schema
    shared = replace(
        context.obj, url=f"{DIALECTS[dialect].schemes[0]}://", state_schema=own or state
    )
    is_one = len(queues) == 1 or not (shared.instance or shared.qualifier)
    cli.require_option(is_one, "QUEUE", ", ".join(queues), "one with --instance or --qualifier")
    require_team(domain or own, reader, sender, no_sender=no_sender)
    options = shared.database()
    text = scripts.write_script(
        *(name_queues(shared, queue) for queue in queues),
        state=options.state_schema,
        subscriptions=cli.queue_or_none("--subscription-table", subscription_table, options),
        roles=scripts.Roles(
            reader=reader or own_reader,
            sender=None if no_sender else sender or own_sender,
            operator=operator,
            producer=producer,
        ),
        login=login,
        delayed=shared.delayed,
        body_string=shared.body_string,
        trusted=options.trusted_owners,
        database=database,
        command=context.meta[COMMAND_LINE],
        dialect=dialect,
    )
    print_script(text, dialect, as_json=shared.as_json)


def print_script(text: str, dialect: str, *, as_json: bool) -> None:
    """Print a script as it is, or as a JSON object."""
    if as_json:
        print_json({"dialect": dialect, "script": text})
    else:
        screen.print_unchanged(text)


def require_team(
    state: str | None, reader: str | None, sender: str | None, *, no_sender: bool
) -> None:
    """Refuse names of roles without a domain or a state schema, and a sender with --no-sender."""
    named = "--reader" if reader else "--sender"
    team = "--domain or --state-schema with it, because all roles of one state schema are one team"
    cli.require_option(state or not (reader or sender), named, reader or sender, team)
    cli.require_option(
        not no_sender or sender is None, "--sender", sender, "no --no-sender with it"
    )


# ---------------------------------------------------------------- subscriptions

# By default an endpoint uses the subscribers that it has read for this long.
SUBSCRIBERS_KEPT = 5  # seconds
SUBSCRIPTION_COLUMNS = (
    ShownColumn("topic"),
    ShownColumn("endpoint"),
    ShownColumn("queue", "address"),
)
Topics = Annotated[
    list[str],
    Argument(metavar="TOPIC...", help="A type's full name, for example Shop.OrderPlaced."),
]


class SubscriptionCommand(Command):
    """A command on the subscription table."""

    shared = ("subscription_table", *Command.shared)


class UnsubscribeCommand(AskingCommand):
    """The options of `unsubscribe`."""

    shared = ("subscription_table", *AskingCommand.shared)


@app.command("subscribe", cls=SubscriptionCommand)
def subscribe_command(
    context: Context,
    topics: Topics,
    *,
    endpoint: cli.EndpointName,
    queue: Annotated[str, Option(help="The endpoint's queue, which must exist.")],
) -> None:
    """
    Subscribe an endpoint to topics. Creates the subscription table if it is missing.

    An endpoint has one queue for each topic. If it had another one, the answer
    shows it as replaced: that queue gets no copy any more.
    """
    options = context.obj.sink()
    address = parse_queue("--queue", queue, options.naming)
    made = subscriptions.subscribe(
        context.connect(options),
        options.subscription_address,
        topics=topics,
        endpoint=endpoint,
        queue=address,
    )
    context.show((*SUBSCRIPTION_COLUMNS, ShownColumn("replaced")), made, "subscriptions")
    for subscription in made:
        if subscription.replaced is not None:
            say_error(
                f"queue {subscription.replaced} gets no {subscription.topic} any more: "
                f"{endpoint} had it, and an "
                "endpoint has one queue for a topic. If it is of another endpoint of this name, "
                "give one of them another name, and subscribe both again"
            )


@app.command("unsubscribe", cls=UnsubscribeCommand)
def unsubscribe_command(context: Context, topics: Topics, *, endpoint: cli.EndpointName) -> None:
    """End an endpoint's subscriptions to topics. Asks first."""
    options = context.obj.sink()
    table, connection = options.subscription_address, context.connect(options)
    with transaction(connection):
        listed = subscriptions.list_subscriptions(connection, table, topics)
    queues = {
        each.topic: each.address
        for each in listed
        if each.endpoint == endpoint and each.topic in topics
    }
    if queues:
        names = ", ".join(sorted({*queues.values()}))
        context.confirm(f"end the subscription of {endpoint} with {names} to {', '.join(queues)}")
    stop = f"publishers stop within {quantity(SUBSCRIBERS_KEPT, 'second')}"
    for topic in queues:
        subscriptions.unsubscribe(connection, table, topic, endpoint)
        result = {"topic": topic, "endpoint": endpoint, "unsubscribed": True}
        context.answer(result, f"{endpoint} is no longer subscribed to {topic}; {stop}")
    if missing := ", ".join(sorted({*topics} - {*queues})):
        lists = "`sqlqueue subscribers` lists who is"
        cli.fail_command(f"{endpoint} is not subscribed to {missing}; {lists}")


@app.command("subscribers", cls=SubscriptionCommand)
def subscribers_command(
    context: Context,
    topic: Annotated[str | None, Argument(help="Show only this topic.")] = None,
) -> None:
    """List who is subscribed, to one topic or to any."""
    options = context.obj.sink()
    connection = context.connect(options)
    with transaction(connection):
        found = subscriptions.list_subscriptions(
            connection, options.subscription_address, None if topic is None else [topic]
        )
    context.show(SUBSCRIPTION_COLUMNS, found, "subscriptions")


# ---------------------------------------------------------------- retire


class RetireCommand(AskingCommand):
    """The options of `retire`."""

    shared = ("subscription_table", "state_schema", *AskingCommand.shared)
    meanings: ClassVar[dict[str, str]] = {"state_schema": cli.ALL_STATES}


@app.command("retire", cls=RetireCommand)
def retire_command(
    context: Context,
    queue: cli.QueueName,
    *,
    discard_messages: Annotated[
        bool, Option("--discard-messages", help="Also delete the messages that are left.")
    ] = False,
) -> None:
    """
    Unsubscribe a queue from all topics, then drop it with its table of delayed messages.

    Asks before each of the two steps. Between them it waits for 5 seconds:
    by default endpoints keep the subscribers that they have read for so long.
    If CacheInvalidationPeriod is longer, unsubscribe and wait first.
    Drops nothing while a stream has receipts of the queue, or while messages
    are left. Stop the endpoint first. Use a login that owns the tables.
    """
    options = context.obj.sink()
    state_schema = context.obj.state_schema
    address = parse_table("QUEUE", queue, options.naming)
    connection = context.connect(options)
    connection.trusted = options.trusted.with_named([address])
    Destinations(connection).check([address], RETURNED_COLUMNS)
    table = options.subscription_address
    ended = end_subscriptions(context, connection, address, table)
    states, unread = ([state_schema], {}) if state_schema else schema.find_states(connection)
    for state, why in unread.items():
        say_error(f"receipts in state schema {state} are not looked for: {why}")
    look = partial(look_at_remains, connection, address, table, states)
    with transaction(connection):
        left = look(None if discard_messages else Remains([], 0, 0, 0))
    tables = [*map(connection.printed, left.tables)]
    lost = f" with {quantity(left.total, 'message')}" if left.total else ""
    context.confirm(f"drop {' and '.join(reversed(tables))}{lost} permanently")
    recorded = cli.keeps_trail(connection)
    last = drop_tables(connection, address, left.tables, partial(look, left), recorded=recorded)
    result = {
        "queue": connection.printed(address),
        "unsubscribed": [asdict(subscription) for subscription in ended],
        "messages": last.messages,
        "delayed": last.delayed,
        "dropped": tables,
        "recorded": recorded,
        "unread": [*unread],
    }
    context.answer(result, f"{' and '.join(tables)} dropped")


def end_subscriptions(
    context: Context, connection: Connection, queue: QueueAddress, table: QueueAddress
) -> list[Subscription]:
    """Unsubscribe a queue from all topics, and wait until publishers have noticed it."""
    with transaction(connection):
        ended = subscriptions_of(connection, table, queue)
    if ended:
        if not context.obj.as_json:
            context.show(SUBSCRIPTION_COLUMNS, ended, "subscriptions")
        count = quantity(len(ended), "subscription")
        context.confirm(f"end {count} of {connection.printed(queue)}")
        for subscription in ended:
            subscriptions.unsubscribe(connection, table, subscription.topic, subscription.endpoint)
        keep = "endpoints keep the subscribers that they have read for so long"
        context.note(f"waiting {quantity(SUBSCRIBERS_KEPT, 'second')}: {keep}")
        time.sleep(SUBSCRIBERS_KEPT)
    return ended


def drop_tables(
    connection: Connection,
    queue: QueueAddress,
    tables: Sequence[QueueAddress],
    look_again: Callable[[], Remains],
    *,
    recorded: bool,
) -> Remains:
    """Lock the tables of a queue, look at them again, and drop them, in one transaction."""
    with transaction(connection):
        for locked in tables:
            connection.run("lock_queue", tables={"queue": locked})
        last = look_again()
        for unused in tables:
            connection.run("drop_queue", tables={"queue": unused})
        if recorded:
            schema.record_action(connection, "retire", connection.printed(queue), last.total)
    return last


class Remains(NamedTuple):
    """What is left of a queue."""

    tables: list[QueueAddress]  # in the order in which a mover of delayed messages locks them
    messages: int
    delayed: int  # messages
    last: int  # the highest seq; 0: no message waits

    @property
    def total(self) -> int:
        """Return the number of messages in both tables."""
        return self.messages + self.delayed


def look_at_remains(
    connection: Connection,
    queue: QueueAddress,
    table: QueueAddress,
    states: Sequence[str],
    expected: Remains | None,
) -> Remains:
    """
    Count what is left of a queue, in the open transaction.

    It ends the command if the queue is used, or if more messages than `expected` would be lost. If
    `expected` is None, the number of messages does not matter.
    """
    left = count_remains(connection, queue)
    reasons = [*find_uses(connection, queue, table, states)]
    if expected is not None and any(map(gt, left[1:], expected[1:])):
        reasons.append(
            f"{quantity(left.total, 'message')} would be lost; receive or move them, or run this "
            "again with --discard-messages"
        )
    if reasons:
        printed = connection.printed(queue)
        cli.fail_command(f"queue {printed} was not dropped: {'; '.join(reasons)}")
    return left


def count_remains(connection: Connection, queue: QueueAddress) -> Remains:
    """Count the messages of a queue and of its table of delayed messages, if it has one."""
    depth = queue_sizes.measure_queue(connection, queue)
    last = depth.last or 0
    name = queue_sizes.delayed_name(connection, queue)
    if name is None or "due" not in connection.columns(delayed_of(queue)):
        return Remains([queue], depth.messages, 0, last)
    table = use_delayed(connection, queue, READ)
    (delayed,) = connection.rows(
        "stats_delayed",
        queue_sizes.Delayed,
        tables={"queue": table},
        table_name=connection.names.quote_address(table),
        zone=None,
        largest=None,
    )
    return Remains([table, queue], depth.messages, delayed.messages, last)


def find_uses(
    connection: Connection, queue: QueueAddress, table: QueueAddress, states: Sequence[str]
) -> Iterator[str]:
    """Give the reasons why a queue is still used: its subscriptions, and receipts of streams."""
    for subscription in subscriptions_of(connection, table, queue):
        yield (
            f"endpoint {subscription.endpoint} has subscribed to {subscription.topic} again; "
            "stop it first"
        )
    for state in states:
        with schema.use_state(connection, state):
            schema.check_state_owners(connection)
            receipts = state_tables.list_receipts(connection)
        same = find_same(connection, queue, {receipt.queue for receipt in receipts})
        for receipt in receipts:
            if receipt.queue in same:
                yield (
                    f"receipt {receipt.name} with {quantity(receipt.messages, 'message')} of it is "
                    "open; let the stream acknowledge it, or see `sqlqueue receipts`"
                )
