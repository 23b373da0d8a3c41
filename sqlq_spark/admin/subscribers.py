"""
Finds subscriptions by their queues: those whose queue is gone, and those of one queue.

A publisher of NServiceBus fails if the queue of any subscriber is gone.
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from sqlq_spark.admin.problems import Finding, of_error
from sqlq_spark.database import find_same, transaction
from sqlq_spark.database.trust import Destinations
from sqlq_spark.errors import (
    BadAddress,
    NotAQueue,
    QueueNotFound,
    RightMissing,
    SubscriptionsRefused,
)
from sqlq_spark.options.sink import SUBSCRIPTION_TABLE
from sqlq_spark.send.subscriptions import list_subscriptions
from sqlq_spark.wire.address import QueueAddress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.send.subscriptions import Subscription


def subscriptions_of(
    connection: Connection, table: QueueAddress, queue: QueueAddress
) -> list[Subscription]:
    """Return the subscriptions of a queue, in any spelling; in the open transaction."""
    if not connection.columns(table):
        return []
    found = list_subscriptions(connection, table)
    same = find_same(connection, queue, {each.address for each in found})
    return [each for each in found if each.address in same]


def check(connection: Connection, table: QueueAddress, *, timeout: float) -> list[Finding]:
    """Check subscriptions, which not every login may read; no transaction is open."""
    where = connection.printed(table)
    try:
        with transaction(connection, timeout=timeout):
            return of_subscriptions(connection, table)
    except RightMissing as error:
        return [of_error(where, "subscribers_right", error, error.fix, "note")]
    except SubscriptionsRefused as error:
        fix = "drop it; or make a superuser its owner, if you trust it"
        return [of_error(where, "subscribers_refused", error, fix, "warning")]


def of_subscriptions(connection: Connection, table: QueueAddress) -> list[Finding]:
    """Find subscribers whose queue is gone; in the open transaction. The table may be absent."""
    if not connection.columns(table):
        return []
    topics: dict[tuple[str, str], list[str]] = {}
    for each in list_subscriptions(connection, table):
        topics.setdefault((each.endpoint, each.address), []).append(each.topic)
    reasons = _reasons(connection, {address for _, address in topics})
    return [
        Finding(
            where=connection.printed(table),
            name="subscriber",
            severity="error",
            found=f"endpoint {endpoint} is subscribed to {', '.join(its)} with the queue "
            f"{address}, which {reasons[address]}",
            fix=unsubscribe_command(connection, endpoint, its, table),
        )
        for (endpoint, address), its in topics.items()
        if address in reasons
    ]


def _reasons(connection: Connection, texts: set[str]) -> dict[str, str]:
    """Return why addresses name no queue, and how a queue is created; not for queues."""
    fails = "every publisher of this fails"
    parsed: dict[str, QueueAddress] = {}
    reasons: dict[str, str] = {}
    for text in texts:
        try:
            parsed[text] = connection.names.parse_address(text)
        except BadAddress as error:
            reasons[text] = f"is no address ({error.reason}); {fails}"
    refused = Destinations(connection).find_refused(parsed.values())
    for text, queue in parsed.items():
        reason = refused.get(queue)
        if isinstance(reason, QueueNotFound):
            create = f"sqlqueue create {quote(connection.printed(queue))}"
            reasons[text] = (
                f"was not found in {connection.server}; {fails}. If the endpoint is in use, run "
                f"`{create}` instead"
            )
        elif isinstance(reason, NotAQueue):
            reasons[text] = f"is not a queue ({reason.reason}); {fails}"
    return reasons


def unsubscribe_command(
    connection: Connection, endpoint: str, topics: Sequence[str], table: QueueAddress
) -> str:
    """The command that ends subscriptions; what is in the table is untrusted."""
    default = connection.names.qualify(QueueAddress(SUBSCRIPTION_TABLE))
    words = ["--endpoint", endpoint]
    if connection.names.qualify(table) != default:
        words += ["--subscription-table", connection.printed(table)]
    words += ["--"] if any(each.startswith("-") for each in topics) else []
    return "sqlqueue unsubscribe " + " ".join(map(quote, [*words, *topics]))
