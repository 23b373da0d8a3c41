"""
Which addresses name the same queue.

On SQL Server one queue has several spellings: with and without its database, and in any case where
the database's collation ignores case. Only the server can compare them. Text that is equal to a
queue's own address is not looked up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark.errors import BadAddress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress


def find_same(connection: Connection, queue: QueueAddress, texts: Iterable[str]) -> set[str]:
    """
    Return the addresses that name a queue; all are looked up together.

    Args:
        connection: to the queue's database.
        queue: the queue.
        texts: addresses out of messages, which are untrusted.
    """
    parsed: dict[str, QueueAddress] = {}
    for text in texts:
        try:
            parsed[text] = connection.names.parse_address(text)
        except BadAddress:
            continue
    own, *others = connection.identities([queue, *parsed.values()])
    return {text for text, each in zip(parsed, others, strict=True) if each == own}


def unite(
    connection: Connection, addresses: Iterable[QueueAddress]
) -> dict[QueueAddress, QueueAddress]:
    """Return for each address the first one that names the same queue, with its schema."""
    distinct = list(dict.fromkeys(addresses))
    first: dict[object, QueueAddress] = {}
    return {
        each: first.setdefault(identity, connection.names.qualify(each))
        for each, identity in zip(distinct, connection.identities(distinct), strict=True)
    }
