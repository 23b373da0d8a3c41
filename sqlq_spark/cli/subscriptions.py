"""The commands `subscribe`, `unsubscribe` and `subscribers`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from sqlq_spark.cli.options import FOUND, AsJson, Patience, Url, location
from sqlq_spark.cli.screens import screen
from sqlq_spark.cli.screens.screen import say, say_error
from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.options import SinkOptions
from sqlq_spark.options.addresses import parse_queue
from sqlq_spark.options.sink import SUBSCRIPTION_TABLE
from sqlq_spark.send import subscriptions

app = typer.Typer()

Topic = Annotated[str, typer.Argument(help="A type's full name, for example Shop.OrderPlaced.")]
Endpoint = Annotated[str, typer.Option(help="The endpoint's name.")]
Table = Annotated[str, typer.Option("--subscription-table", help='A table, or "schema"."table".')]


def sink_options(url: str | None, table: str, query_timeout: str) -> SinkOptions:
    """Parse and validate options as the data source does."""
    return SinkOptions.parse(
        {"url": location(url), "subscriptionTable": table, "queryTimeout": query_timeout}
    )


@app.command()
def subscribe(
    topic: Topic,
    *,
    endpoint: Endpoint,
    queue: Annotated[str, typer.Option(help="The endpoint's queue, which must exist.")],
    as_json: AsJson = False,
    subscription_table: Table = SUBSCRIPTION_TABLE,
    query_timeout: Patience = "30s",
    url: Url = None,
) -> None:
    """Subscribe an endpoint to a topic. Creates the subscription table if it is missing."""
    options = sink_options(url, subscription_table, query_timeout)
    address = parse_queue("--queue", queue, options.naming)
    with Session(options, "subscribe", state=False) as session:
        made = subscriptions.subscribe(
            session.open(),
            options.subscription_address,
            topic=topic,
            endpoint=endpoint,
            queue=address,
            timeout=options.query_timeout,
        )
    if as_json:
        screen.print_json(asdict(made))
    else:
        say(f"{made.endpoint} is subscribed to {made.topic} with {made.address}")


@app.command()
def unsubscribe(
    topic: Topic,
    *,
    endpoint: Endpoint,
    as_json: AsJson = False,
    subscription_table: Table = SUBSCRIPTION_TABLE,
    query_timeout: Patience = "30s",
    url: Url = None,
) -> None:
    """End an endpoint's subscription to a topic."""
    options = sink_options(url, subscription_table, query_timeout)
    with Session(options, "unsubscribe", state=False) as session:
        was = subscriptions.unsubscribe(
            session.open(),
            options.subscription_address,
            topic,
            endpoint,
            timeout=options.query_timeout,
        )
    if as_json:
        screen.print_json({"topic": topic, "endpoint": endpoint, "unsubscribed": was})
    if not was:
        say_error(f"{endpoint} is not subscribed to {topic}; `sqlqueue subscribers` lists who is")
        raise typer.Exit(FOUND)
    if not as_json:
        say(f"{endpoint} is no longer subscribed to {topic}; publishers stop within 5 seconds")


@app.command()
def subscribers(
    topic: Annotated[str | None, typer.Argument(help="Show only this topic.")] = None,
    *,
    as_json: AsJson = False,
    subscription_table: Table = SUBSCRIPTION_TABLE,
    query_timeout: Patience = "30s",
    url: Url = None,
) -> None:
    """List who is subscribed, to one topic or to any."""
    options = sink_options(url, subscription_table, query_timeout)
    table = options.subscription_address
    with (
        Session(options, "subscribers", state=False) as session,
        transaction(session.open(), timeout=options.query_timeout),
    ):
        found = subscriptions.list_subscriptions(session.open(), table, topic)
    if as_json:
        for each in found:
            screen.print_json(asdict(each))
    else:
        rows = ((each.topic, each.endpoint, each.address) for each in found)
        screen.show(("topic", "endpoint", "queue"), rows, "subscriptions")
