"""The command `retire`: drops a queue that is no longer used."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqlq_spark.admin import retire
from sqlq_spark.admin.formats import quantity
from sqlq_spark.cli import screen
from sqlq_spark.cli.options import (
    FOUND,
    TIMEOUT,
    AsJson,
    Credentials,
    Patience,
    Queue,
    States,
    SubscriptionTable,
    Url,
    Yes,
    answerable,
    confirm,
    sink_options,
)
from sqlq_spark.cli.screen import say, say_error
from sqlq_spark.cli.subscriptions import show_subscriptions
from sqlq_spark.database.schema import NO_TRAIL, has_trail
from sqlq_spark.database.sessions import Session
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.names import parse_table
from sqlq_spark.options.sink import SUBSCRIPTION_TABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.admin.retire import Remains, Retirement
    from sqlq_spark.database import Connection
    from sqlq_spark.send.subscriptions import Subscription

app = typer.Typer()


@app.command("retire")
def retire_(
    queue: Queue,
    *,
    discard_messages: Annotated[
        bool, typer.Option("--discard-messages", help="Also delete the messages that are left.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
    subscription_table: SubscriptionTable = SUBSCRIPTION_TABLE,
    query_timeout: Patience = TIMEOUT,
    url: Url = None,
    credentials: Credentials = None,
    state_schema: States = None,
) -> None:
    """
    Unsubscribe a queue from all topics, then drop it with its table of delayed messages.

    Asks before each of the two steps. Between them it waits for 5 seconds,
    because endpoints keep the subscribers that they have read for so long.
    Drops nothing while a stream has receipts of the queue, or while messages
    are left. Stop the endpoint first. Use a login that owns the tables.
    """
    answerable(yes=yes, as_json=as_json)
    options = sink_options(
        url,
        state_schema or DatabaseOptions.state_schema,
        subscriptionTable=subscription_table,
        queryTimeout=query_timeout,
        credentials=credentials,
    )
    address = parse_table("QUEUE", queue, options.naming)
    with Session(options, "retire") as session:
        connection = session.open()
        its = retire.Retirement.of(
            connection,
            address,
            options.subscription_address,
            state=state_schema,
            timeout=options.query_timeout,
        )
        for state, why in its.unread.items():
            say_error(f"receipts in state schema {state} are not looked for: {why}")
        ended = end_subscriptions(connection, its, yes=yes, as_json=as_json)
        left = its.look(connection)
        expected = left if discard_messages else retire.Remains()
        dropped: list[str] = []
        reason: str | None = None
        trails: list[str] = []
        try:
            its.check(connection, left, expected)
            ask_to_drop(connection, its, left, yes=yes, as_json=as_json)
            trails = [each for each in its.states if has_trail(connection, each)]
            if not trails:
                say_error(NO_TRAIL.format(options.state_schema, connection.server))
            dropped = its.drop(connection, expected, trails=trails)
        except retire.StillUsed as error:
            reason = str(error)
        name = connection.printed(address)
    recorded = bool(trails and dropped)
    report_retirement(name, its, ended, left, dropped, recorded=recorded, as_json=as_json)
    if reason is not None:
        say_error(reason)
        raise typer.Exit(FOUND)


def end_subscriptions(
    connection: Connection, its: Retirement, *, yes: bool, as_json: bool
) -> Sequence[Subscription]:
    """Ask, unsubscribe the queue, and wait until no endpoint publishes to it."""
    found = its.look(connection).subscriptions
    if not found:
        return found
    if not as_json:
        show_subscriptions(found)
    name = connection.printed(its.queue)
    what = f"end {quantity(len(found), 'subscription')} of {name}"
    confirm(what, yes=yes, as_json=as_json)
    its.unsubscribe(connection, found)
    seconds = quantity(retire.PATIENCE, "second")
    text = f"waiting {seconds}: endpoints keep the subscribers that they have read for so long"
    (say_error if as_json else say)(text)
    time.sleep(retire.PATIENCE)
    return found


def ask_to_drop(
    connection: Connection, its: Retirement, left: Remains, *, yes: bool, as_json: bool
) -> None:
    """Ask before the tables are dropped."""
    names = " and ".join(map(connection.printed, reversed(its.tables(connection))))
    lost = f" with {quantity(left.total, 'message')}" if left.total else ""
    confirm(f"drop {names}{lost} permanently", yes=yes, as_json=as_json)


def report_retirement(
    queue: str,
    its: Retirement,
    ended: Sequence[Subscription],
    left: Remains,
    dropped: Sequence[str],
    *,
    recorded: bool,
    as_json: bool,
) -> None:
    """Print what was ended and dropped, and what is or was left."""
    if as_json:
        found: dict[str, Any] = {
            "queue": queue,
            "unsubscribed": [asdict(each) for each in ended],
            "messages": left.messages,
            "delayed": left.delayed,
            "receipts": len(left.receipts),
            "dropped": list(dropped),
            "recorded": recorded,
            "unread": list(its.unread),
        }
        screen.print_json(found)
        return
    if not dropped:
        say(
            f"{queue} has {quantity(left.messages, 'message')}, "
            f"{quantity(left.delayed or 0, 'delayed message')} and "
            f"{quantity(len(left.receipts), 'open receipt')}"
        )
    for each in dropped:
        say(f"{each} was dropped")
