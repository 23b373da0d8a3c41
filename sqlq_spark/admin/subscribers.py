"""
Finds subscriptions by their queues: those whose queue is gone, and those of one queue.

A publisher of NServiceBus fails if the queue of any subscriber is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from shlex import quote
from typing import TYPE_CHECKING

from sqlq_spark.admin.finding import Finding, of_error
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
from sqlq_spark.send.subscriptions import list_subscriptions, refuse_code
from sqlq_spark.wire.address import QueueAddress

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlq_spark.database import Connection
    from sqlq_spark.send.subscriptions import Subscription


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreachable:
    """A subscriber to which nothing can be published."""

    endpoint: str
    address: str  # untrusted
    topics: tuple[str, ...]
    reason: str  # follows `the queue …, which `
    absent: str | None  # the queue that `sqlqueue create` would create; None: none can be


def find_unreachable(connection: Connection, table: QueueAddress) -> list[Unreachable]:
    """
    Find subscribers whose queue is not there; in the open transaction.

    Args:
        connection: in a transaction.
        table: the subscription table, which may be absent.
    """
    if not connection.columns(table):
        return []
    topics: dict[tuple[str, str], list[str]] = {}
    for each in list_subscriptions(connection, table):
        topics.setdefault((each.endpoint, each.address), []).append(each.topic)
    reasons = _reasons(connection, {address for _, address in topics})
    return [
        Unreachable(
            endpoint=endpoint,
            address=address,
            topics=tuple(them),
            reason=reasons[address][0],
            absent=reasons[address][1],
        )
        for (endpoint, address), them in topics.items()
        if address in reasons
    ]


def _reasons(connection: Connection, texts: set[str]) -> dict[str, tuple[str, str | None]]:
    """Return why addresses name no queue, and those that can be created; not for queues."""
    parsed: dict[str, QueueAddress] = {}
    reasons: dict[str, tuple[str, str | None]] = {}
    for text in texts:
        try:
            parsed[text] = connection.names.parse_address(text)
        except BadAddress as error:
            reasons[text] = f"is no address ({error.reason})", None
    refused = Destinations(connection).find_refused(parsed.values())
    for text, queue in parsed.items():
        reason = refused.get(queue)
        if isinstance(reason, QueueNotFound):
            reasons[text] = f"was not found in {connection.server}", connection.printed(queue)
        elif isinstance(reason, NotAQueue):
            reasons[text] = f"is not a queue ({reason.reason})", None
    return reasons


def subscriptions_of(
    connection: Connection, table: QueueAddress, queue: QueueAddress
) -> list[Subscription]:
    """Return the subscriptions of a queue, in any spelling; in the open transaction."""
    if not connection.columns(table):
        return []
    found = list_subscriptions(connection, table)
    same = find_same(connection, queue, {each.address for each in found})
    return [each for each in found if each.address in same]


# ---------------------------------------------------------------- findings of `sqlqueue doctor`


def check(connection: Connection, table: QueueAddress, *, timeout: float) -> list[Finding]:
    """Check subscriptions, which not every login may read; no transaction is open."""
    try:
        with transaction(connection, timeout=timeout):
            return of_subscriptions(connection, table)
    except RightMissing as error:
        found = of_error(connection.printed(table), "subscribers_right", error, error.fix)
        return [replace(found, severity="note")]
    except SubscriptionsRefused as error:
        return [refused(connection, table, error)]


def of_refused(connection: Connection, tables: Iterable[QueueAddress]) -> list[Finding]:
    """Find tables of subscriptions that are not read; in the open transaction."""
    found = []
    for table in tables:
        try:
            refuse_code(connection, table)
        except SubscriptionsRefused as error:
            found.append(refused(connection, table, error))
    return found


def refused(connection: Connection, table: QueueAddress, error: SubscriptionsRefused) -> Finding:
    """The finding for a table of subscriptions that is not read."""
    fix = "drop it; or make a superuser its owner, if you trust it"
    found = of_error(connection.printed(table), "subscribers_refused", error, fix)
    return replace(found, severity="warning")


def of_subscriptions(connection: Connection, table: QueueAddress) -> list[Finding]:
    """Find subscribers whose queue is gone; in the open transaction. The table may be absent."""
    where = connection.printed(table)
    return [
        Finding(
            where=where,
            name="subscriber",
            severity="error",
            found=f"endpoint {each.endpoint} is subscribed to {', '.join(each.topics)} with the "
            f"queue {each.address}, which {each.reason}; every publisher of this fails"
            + (
                f". If the endpoint is in use, run `sqlqueue create {quote(each.absent)}` instead"
                if each.absent
                else ""
            ),
            fix=unsubscribe_command(connection, each.endpoint, each.topics, table),
        )
        for each in find_unreachable(connection, table)
    ]


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
