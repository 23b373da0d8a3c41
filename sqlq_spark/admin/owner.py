"""
Finds signs that a queue belongs to an NServiceBus endpoint.

Two instances of an endpoint run the same handlers, so they can share a queue. Spark does not run
them. A message that Spark receives never reaches its handler or saga.

Reads only, and locks nothing. Only the lowest rows are read, and only the beginning of headers. A
table that is missing, or that this login may not read, gives no sign.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sqlq_spark.admin import queue_tables
from sqlq_spark.database import attempt
from sqlq_spark.database.schema import delayed_of
from sqlq_spark.errors import (
    BadAddress,
    NotAQueue,
    QueueNotFound,
    RightMissing,
    SubscriptionsNotFound,
    SubscriptionsRefused,
    TimedOut,
)
from sqlq_spark.options.sink import SUBSCRIPTION_TABLE
from sqlq_spark.send.subscriptions import list_subscriptions
from sqlq_spark.wire.address import QueueAddress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlq_spark.database import Connection, Row, Tables
    from sqlq_spark.database.statements import StatementName
    from sqlq_spark.send.subscriptions import Subscription

NAMED = 3  # endpoints in a finding
UNREADABLE = (NotAQueue, QueueNotFound, RightMissing, TimedOut)


def find_signs(connection: Connection, queue: QueueAddress) -> list[str]:
    """
    Find signs of an owner, in the open transaction.

    Returns:
        A clause for each sign, as "1 of the first messages is a saga timeout"; none if nothing was
        found.
    """
    delayed = find_delayed(connection, queue)
    return [
        *signs_of_messages(connection, queue),
        *signs_of_delayed(connection, delayed),
        *signs_of_subscriptions(connection, queue, installed=delayed is not None),
    ]


def signs_of_messages(connection: Connection, queue: QueueAddress) -> Iterator[str]:
    """Count the first messages that only their endpoint can handle."""
    for timeouts, replies, control in read(connection, "check_owner", {"queue": queue}):
        if timeouts:
            yield f"saga timeouts among the first messages: {timeouts}"
        if replies:
            yield f"messages for a saga among the first messages: {replies}"
        if control:
            yield f"control messages among the first messages: {control}"


def signs_of_delayed(connection: Connection, table: QueueAddress | None) -> Iterator[str]:
    """Count delayed messages that an endpoint stored, because it stores them in its own table."""
    if table is None or runs_code(connection, table):
        return
    for (messages,) in read(connection, "check_owner_delayed", {"delayed": table}):
        if messages:
            name = connection.printed(table)
            yield f"delayed messages of an endpoint in {name}: {messages}"


def signs_of_subscriptions(
    connection: Connection, queue: QueueAddress, *, installed: bool
) -> Iterator[str]:
    """
    Name the endpoints that are subscribed with the queue.

    `sqlqueue subscribe` usually gives Spark's queue and its endpoint one name, as the transport
    does. A subscription under the queue's own name counts only if the queue has a table of delayed
    messages, which the transport's installer creates, and `sqlqueue create` only with --delayed.

    Args:
        connection: in a transaction.
        queue: the queue.
        installed: whether it has a table of delayed messages.
    """
    found = dict.fromkeys(
        each.endpoint
        for each in subscriptions_with(connection, queue)
        if installed or each.endpoint.lower() != queue.table.lower()
    )
    if found:
        names = ", ".join(map(repr, list(found)[:NAMED]))
        yield f"subscribed endpoints: {names}" + (" and others" if len(found) > NAMED else "")


def subscriptions_with(connection: Connection, queue: QueueAddress) -> list[Subscription]:
    """Return the subscriptions whose address is the queue; addresses are untrusted."""
    found = []
    for table in subscription_tables(connection, queue):
        for each in list_readable(connection, table):
            try:
                address = connection.names.parse_address(each.address)
            except BadAddress:
                continue
            if address.table.lower() == queue.table.lower():
                found.append((address, each))
    if not found:
        return []
    own, *others = connection.identities([queue, *(address for address, _ in found)])
    return [each for (_, each), other in zip(found, others, strict=True) if other == own]


def subscription_tables(connection: Connection, queue: QueueAddress) -> list[QueueAddress]:
    """Return the tables of subscriptions that exist, in the queue's schema and in the default."""
    both = [replace(queue, table=SUBSCRIPTION_TABLE), QueueAddress(SUBSCRIPTION_TABLE)]
    tables = {connection.printed(each): each for each in both}
    return [each for each in tables.values() if connection.columns(each)]


def list_readable(connection: Connection, table: QueueAddress) -> list[Subscription]:
    """Return the subscriptions of a table; none if this login may not read it, or must not."""
    try:
        with attempt(connection):
            return list_subscriptions(connection, table)
    except (SubscriptionsNotFound, SubscriptionsRefused, *UNREADABLE):
        return []


def runs_code(connection: Connection, table: QueueAddress) -> bool:
    """Whether to read delayed messages could run code of another owner."""
    if table.catalog is not None:
        return False  # of SQL Server, whose catalogue shows only this database
    found = queue_tables.delayed(connection, table)
    return found is None or found.danger is not None


def find_delayed(connection: Connection, queue: QueueAddress) -> QueueAddress | None:
    """Return the queue's table of delayed messages; None if there is none."""
    table = delayed_of(queue)
    try:
        return table if "due" in connection.columns(table) else None
    except BadAddress:
        return None


def read(connection: Connection, statement: StatementName, tables: Tables) -> list[Row]:
    """Return the rows of a statement; none if this login may not read the table."""
    try:
        with attempt(connection):
            return connection.rows(statement, tables=tables)
    except UNREADABLE:
        return []
