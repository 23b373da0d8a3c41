"""The commands `subscribe`, `unsubscribe` and `subscribers`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sqlq_spark.admin.formats import quantity
from sqlq_spark.cli import screen
from sqlq_spark.cli.options import (
    FOUND,
    AskingCommand,
    Command,
    Shared,
    SubscriptionTable,
    confirm,
)
from sqlq_spark.cli.screen import say, say_error
from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.options.names import parse_queue
from sqlq_spark.options.sink import SUBSCRIPTION_TABLE
from sqlq_spark.send import subscriptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.send.subscriptions import Subscription

app = typer.Typer()

PATIENCE = 5  # seconds for which an endpoint keeps the subscribers that it has read
TOPIC = "A type's full name, for example Shop.OrderPlaced."
Topics = Annotated[list[str], typer.Argument(metavar="TOPIC...", help=TOPIC)]
Endpoint = Annotated[str, typer.Option(help="The endpoint's name.")]


@app.command(cls=Command)
def subscribe(
    context: typer.Context,
    topics: Topics,
    *,
    endpoint: Endpoint,
    queue: Annotated[str, typer.Option(help="The endpoint's queue, which must exist.")],
    subscription_table: SubscriptionTable = SUBSCRIPTION_TABLE,
) -> None:
    """Subscribe an endpoint to topics. Creates the subscription table if it is missing."""
    shared: Shared = context.obj
    options = shared.sink(subscriptionTable=subscription_table)
    address = parse_queue("--queue", queue, options.naming)
    with Session(options, "subscribe") as session:
        made = subscriptions.subscribe(
            session.open(),
            options.subscription_address,
            topics=topics,
            endpoint=endpoint,
            queue=address,
            timeout=options.query_timeout,
        )
    for each in made:
        if shared.as_json:
            screen.print_json(asdict(each))
        else:
            say(f"{each.endpoint} is subscribed to {each.topic} with {each.address}")


@app.command(cls=AskingCommand)
def unsubscribe(
    context: typer.Context,
    topics: Topics,
    *,
    endpoint: Endpoint,
    subscription_table: SubscriptionTable = SUBSCRIPTION_TABLE,
) -> None:
    """End an endpoint's subscriptions to topics. Asks first."""
    shared: Shared = context.obj
    options = shared.sink(subscriptionTable=subscription_table)
    table, timeout = options.subscription_address, options.query_timeout
    with Session(options, "unsubscribe") as session:
        connection = session.open()
        with transaction(connection, timeout=timeout):
            listed = subscriptions.list_subscriptions(connection, table)
        found = [each for each in listed if each.endpoint == endpoint and each.topic in topics]
        if found:
            names = ", ".join(each.topic for each in found)
            queues = ", ".join(sorted({each.address for each in found}))
            what = f"end the subscription of {endpoint} with {queues} to {names}"
            confirm(what, shared)
        ended = {
            each.topic: subscriptions.unsubscribe(
                connection, table, each.topic, endpoint, timeout=timeout
            )
            for each in found
        }
    for topic in topics:
        report_end(topic, endpoint, was=ended.get(topic, False), as_json=shared.as_json)
    if not all(ended.get(topic, False) for topic in topics):
        raise typer.Exit(FOUND)


def report_end(topic: str, endpoint: str, *, was: bool, as_json: bool) -> None:
    """Print whether a subscription was ended."""
    if as_json:
        screen.print_json({"topic": topic, "endpoint": endpoint, "unsubscribed": was})
    if not was:
        say_error(f"{endpoint} is not subscribed to {topic}; `sqlqueue subscribers` lists who is")
    elif not as_json:
        seconds = quantity(PATIENCE, "second")
        say(f"{endpoint} is no longer subscribed to {topic}; publishers stop within {seconds}")


@app.command(cls=Command)
def subscribers(
    context: typer.Context,
    topic: Annotated[str | None, typer.Argument(help="Show only this topic.")] = None,
    *,
    subscription_table: SubscriptionTable = SUBSCRIPTION_TABLE,
) -> None:
    """List who is subscribed, to one topic or to any."""
    shared: Shared = context.obj
    options = shared.sink(subscriptionTable=subscription_table)
    table = options.subscription_address
    with (
        Session(options, "subscribers") as session,
        transaction(session.open(), timeout=options.query_timeout),
    ):
        found = subscriptions.list_subscriptions(session.open(), table, topic)
    if shared.as_json:
        for each in found:
            screen.print_json(asdict(each))
    else:
        show_subscriptions(found)


def show_subscriptions(found: Sequence[Subscription]) -> None:
    rows = ((each.topic, each.endpoint, each.address) for each in found)
    screen.show(("topic", "endpoint", "queue"), rows, "subscriptions")
