"""
The commands `retire`, which drops a queue that is no longer used, and `trail`, which shows who did.

`retire` loses no message that arrives meanwhile. First the queue is unsubscribed. Endpoints keep
the subscribers that they have read for a moment, so the command waits for PATIENCE. Then one
transaction locks the tables, counts again, and drops them. A sender that waits for the lock fails
when the table is gone, so its message is not lost.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from sqlq_spark.admin import inspect
from sqlq_spark.admin.checks import subscriptions_of
from sqlq_spark.admin.formats import quantity
from sqlq_spark.cli import screen
from sqlq_spark.cli.options import (
    AskingCommand,
    MaybeQueue,
    Queue,
    Shared,
    StateCommand,
    States,
    SubscriptionTable,
    confirm,
    fail,
)
from sqlq_spark.cli.screen import say, say_error
from sqlq_spark.cli.subscriptions import PATIENCE, show_subscriptions
from sqlq_spark.database import transaction
from sqlq_spark.database.schema import (
    NO_TRAIL,
    check_state,
    delayed_of,
    find_states,
    has_trail,
    record_action,
    use_state,
)
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.database.trust import RETURNED, find_destinations
from sqlq_spark.errors import (
    BadAddress,
    ConnectionLost,
    DatabaseFailure,
    NotAQueue,
    QueueNotFound,
    SqlQueueError,
    StateNotInstalled,
)
from sqlq_spark.options.names import parse_queue, parse_table
from sqlq_spark.options.sink import SUBSCRIPTION_TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlq_spark.admin.inspect import Receipt
    from sqlq_spark.database import Connection
    from sqlq_spark.options import SinkOptions
    from sqlq_spark.send.subscriptions import Subscription
    from sqlq_spark.wire.address import QueueAddress

app = typer.Typer()


class StillUsed(SqlQueueError):
    """The queue cannot be dropped. Neither it nor its table of delayed messages was dropped."""

    template = "queue {queue} was not dropped: {reason}"


@app.command("retire", cls=AskingCommand)
def retire_(
    context: typer.Context,
    queue: Queue,
    *,
    discard_messages: Annotated[
        bool, typer.Option("--discard-messages", help="Also delete the messages that are left.")
    ] = False,
    subscription_table: SubscriptionTable = SUBSCRIPTION_TABLE,
    state_schema: States = None,
) -> None:
    """
    Unsubscribe a queue from all topics, then drop it with its table of delayed messages.

    Asks before each of the two steps. Between them it waits for 5 seconds,
    because endpoints keep the subscribers that they have read for so long.
    Drops nothing while a stream has receipts of the queue, or while messages
    are left. Stop the endpoint first. Use a login that owns the tables.
    """
    shared: Shared = context.obj
    as_json = shared.as_json
    options = shared.sink(stateSchema=state_schema, subscriptionTable=subscription_table)
    address = parse_table("QUEUE", queue, options.naming)
    with Session(options, "retire") as session:
        connection = session.open()
        check_queue(connection, address)
        states, unread = find_schemas(connection, state_schema)
        for state, why in unread.items():
            say_error(f"receipts in state schema {state} are not looked for: {why}")
        retirement = Retirement(connection, address, options, states)
        ended = retirement.look().subscriptions
        if ended:
            end_subscriptions(retirement, ended, shared)
        left = retirement.look()
        expected = left if discard_messages else Remains()
        dropped: list[str] = []
        reason: str | None = None
        trails: list[str] = []
        name = connection.printed(address)
        try:
            left.check(name, expected)
            tables = " and ".join(map(connection.printed, reversed(retirement.tables())))
            lost = f" with {quantity(left.total, 'message')}" if left.total else ""
            confirm(f"drop {tables}{lost} permanently", shared)
            trails = [each for each in states if has_trail(connection, each)]
            if not trails:
                say_error(NO_TRAIL.format(options.state_schema, connection.server))
            dropped = retirement.drop(expected, trails)
        except StillUsed as error:
            reason = str(error)
    if as_json:
        screen.print_json(
            {
                "queue": name,
                "unsubscribed": [asdict(each) for each in ended],
                "messages": left.messages,
                "delayed": left.delayed,
                "receipts": len(left.receipts),
                "dropped": dropped,
                "recorded": bool(trails and dropped),
                "unread": list(unread),
            }
        )
    elif not dropped:
        say(
            f"{name} has {quantity(left.messages, 'message')}, "
            f"{quantity(left.delayed or 0, 'delayed message')} and "
            f"{quantity(len(left.receipts), 'open receipt')}"
        )
    else:
        for each in dropped:
            say(f"{each} was dropped")
    if reason is not None:
        fail(reason)


def end_subscriptions(
    retirement: Retirement, found: tuple[Subscription, ...], shared: Shared
) -> None:
    """Ask, unsubscribe the queue, and wait until no endpoint publishes to it."""
    if not shared.as_json:
        show_subscriptions(found)
    name = retirement.connection.printed(retirement.queue)
    what = f"end {quantity(len(found), 'subscription')} of {name}"
    confirm(what, shared)
    retirement.unsubscribe(found)
    seconds = quantity(PATIENCE, "second")
    text = f"waiting {seconds}: endpoints keep the subscribers that they have read for so long"
    (say_error if shared.as_json else say)(text)
    time.sleep(PATIENCE)


# ---------------------------------------------------------------- what is left of a queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """What is left of a queue."""

    messages: int = 0
    last: int = 0  # the highest seq; 0 where no message waits
    delayed: int | None = None  # messages; None: there is no table of delayed messages
    receipts: tuple[Receipt, ...] = ()
    subscriptions: tuple[Subscription, ...] = ()

    @property
    def total(self) -> int:
        """Messages in both tables."""
        return self.messages + (self.delayed or 0)

    def check(self, queue: str, expected: Remains) -> None:
        """
        Make sure that the queue can be dropped, if only the expected messages are lost.

        Raises:
            StillUsed.
        """
        if reasons := list(self._reasons(expected)):
            raise StillUsed(queue=queue, reason="; ".join(reasons))

    def _reasons(self, expected: Remains) -> Iterator[str]:
        if self.subscriptions:
            endpoint = self.subscriptions[0].endpoint
            yield f"endpoint {endpoint} has subscribed again; stop it first"
        if self.receipts:
            held = quantity(sum(each.messages for each in self.receipts), "message")
            streams = ", ".join(sorted({each.stream for each in self.receipts}))
            yield (
                f"{quantity(len(self.receipts), 'receipt')} with {held} of it are open (stream "
                f"{streams}); let the stream acknowledge them, or see `sqlqueue receipts`"
            )
        if self.total and not expected.total:
            yield (
                f"{quantity(self.total, 'message')} would be lost; receive or move them, or use "
                "--discard-messages"
            )
        elif (
            self.last > expected.last
            or self.messages > expected.messages
            or (self.delayed or 0) > (expected.delayed or 0)
        ):
            yield "messages have arrived meanwhile; run the command again"


@dataclass(frozen=True)
class Retirement:
    """A queue that is to be dropped, and where its traces are; its methods open transactions."""

    connection: Connection
    queue: QueueAddress
    options: SinkOptions
    states: list[str]  # schemas of state tables in which receipts are looked for

    def tables(self) -> list[QueueAddress]:
        """Return the tables to drop, in the order in which a mover of delayed messages locks."""
        delayed = delayed_of(self.queue)
        try:
            there = "due" in self.connection.columns(delayed)
        except BadAddress:  # its name would be too long
            there = False
        return [delayed, self.queue] if there else [self.queue]

    def look(self) -> Remains:
        """Count what is left."""
        with transaction(self.connection, timeout=self.options.query_timeout):
            return self._look()

    def _look(self) -> Remains:
        connection = self.connection
        depth = inspect.depth(connection, self.queue)
        *delayed, _ = self.tables()
        table = self.options.subscription_address
        return Remains(
            messages=depth.messages,
            last=depth.last or 0,
            delayed=self._count(delayed[0]) if delayed else None,
            receipts=tuple(self._receipts()),
            subscriptions=tuple(subscriptions_of(connection, table, self.queue)),
        )

    def _count(self, delayed: QueueAddress) -> int:
        """Return how many messages a table of delayed messages holds."""
        values = {"table_name": self.connection.printed(delayed), "zone": None, "largest": None}
        rows = self.connection.rows("stats_delayed", tables={"queue": delayed}, **values)
        return int(rows[0][0])

    def _receipts(self) -> list[Receipt]:
        """Return the receipts with messages of the queue, which this login may see."""
        connection = self.connection
        found: list[Receipt] = []
        for state in self.states:
            with use_state(connection, state):
                found += inspect.receipts(connection)
        names: dict[str, QueueAddress] = {}
        for each in found:
            with suppress(BadAddress):
                names[each.queue] = connection.names.parse_table(each.queue)
        own, *others = connection.identities([self.queue, *names.values()])
        same = {name for name, other in zip(names, others, strict=True) if other == own}
        return [each for each in found if each.queue in same]

    def unsubscribe(self, found: tuple[Subscription, ...]) -> None:
        """End subscriptions, all or none."""
        tables = {"subscriptions": self.options.subscription_address}
        with transaction(self.connection, timeout=self.options.query_timeout):
            for each in found:
                self.connection.rows(
                    "unsubscribe", tables=tables, topic=each.topic, endpoint=each.endpoint
                )

    def drop(self, expected: Remains, trails: list[str]) -> list[str]:
        """
        Drop the tables if nothing else than expected is in them; the login must own them.

        Args:
            expected: the messages that may be lost.
            trails: the state schemas into whose audit trail an entry is written.

        Returns:
            The tables that were dropped.

        Raises:
            StillUsed: something else is left. Nothing was dropped.
        """
        connection, name = self.connection, self.connection.printed(self.queue)
        with transaction(connection, timeout=self.options.query_timeout):
            tables = self.tables()
            for table in tables:
                connection.rows("lock_queue", tables={"queue": table})
            left = self._look()
            left.check(name, expected)
            for table in tables:
                connection.rows("drop_queue", tables={"queue": table})
            for state in trails:
                with use_state(connection, state):
                    record_action(connection, "retire", name, left.total)
        return [connection.printed(table) for table in tables]


def check_queue(connection: Connection, queue: QueueAddress) -> None:
    """
    Make sure that a queue can be retired; no transaction is open.

    Raises:
        QueueNotFound, NotAQueue: the table is not there, or is another one.
    """
    name = connection.printed(queue)
    found = find_destinations(connection, [queue], RETURNED).get(queue)
    if found is None:
        raise QueueNotFound(queue=name, server=connection.server)
    if found.missing is not None:
        raise NotAQueue(queue=name, reason=f"it has no column {found.missing}")


def find_schemas(connection: Connection, state: str | None) -> tuple[list[str], dict[str, str]]:
    """
    Find the state schemas in which receipts are looked for, and why others are not read.

    No transaction is open. Without `state` all schemas are looked into.
    """
    if state is not None:
        try:
            check_state(connection)
        except StateNotInstalled:
            return [], {}
        return [state], {}
    readable = []
    states, unread = find_states(connection)
    for each in states:
        try:
            with use_state(connection, each):
                check_state(connection)
                inspect.receipts(connection, stream="")
        except ConnectionLost:
            raise
        except DatabaseFailure as error:
            unread = {**unread, each: str(error)}
        else:
            readable.append(each)
    return readable, unread


# ---------------------------------------------------------------- trail


@app.command("trail", cls=StateCommand)
def trail_(
    context: typer.Context,
    queue: MaybeQueue = None,
    *,
    last: Annotated[int, typer.Option(min=1, help="How many entries.")] = 100,
) -> None:
    """
    Show the audit trail, the latest entry first.

    An entry says who purged, returned, dropped or retired, when, and how many
    messages. Each transaction of a command has one.
    """
    shared: Shared = context.obj
    options = shared.database()
    address = None if queue is None else parse_queue("queue", queue, options.naming)
    with (
        StateSession(options, "trail") as session,
        transaction(session.open(), timeout=options.query_timeout),
    ):
        name = None if address is None else session.open().printed(address)
        found = session.open().rows("trail", queue_name=name, entries=last)
    if shared.as_json:
        names = "at", "login", "session_login", "action", "queue", "messages"
        for each in found:
            columns = (*names, "stream", "batch", "task")
            screen.print_json(dict(zip(columns, each, strict=True)))
        return
    shown = ("at", "login", "session login", "action", "messages", "stream", "batch", "task")
    rows = ((*each[:4], *each[5:], each[4]) for each in found)
    screen.show((*shown, "queue"), rows, "entries")
