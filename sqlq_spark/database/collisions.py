"""
Inserts into a queue where other rows may already have the next ids or seqs.

A login that may insert into a queue chooses the ids of its rows, and on PostgreSQL also their seqs.
If a committed row has the id or seq that our insert would use next, our insert fails. If the row's
transaction is still open, our insert waits for it. Neither may stop a stream that moves messages
into an error queue which others use too.

So an insert waits at most HELD_WAIT seconds for each row. If it fails or waits longer, it is undone
and tried again under new ids. It also gets new seqs, because the failed attempt has used up its
seqs. After a failure the sequence is also moved past the seqs that are taken, by at most
MOST_SKIPPED seqs.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from sqlq_spark.database import attempt
from sqlq_spark.errors import RightMissing, RowsHeld, StatementRefused, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress

T = TypeVar("T")

HELD_WAIT = 0.5  # seconds that an attempt waits for each row that another session holds
ATTEMPTS = 4  # how often an insert is tried; the first attempt keeps the ids of the messages
MOST_SKIPPED = 100_000  # how many seqs one transaction skips


def insert_past_taken(
    connection: Connection, queue: QueueAddress, insert: Callable[[bool], T], *, rows: int
) -> T:
    """
    Insert rows in the open transaction, and try again under new ids if ids or seqs are taken.

    The caller has locked and checked the queue's table. `insert` inserts all rows. Its argument
    says whether it inserts them under new ids. `rows` is how many rows there are.

    Raises:
        RowsHeld: in every attempt open transactions held an id or a seq.
        StatementRefused: the table refuses the rows under new ids too.
        DatabaseFailure: the last attempt failed, or any attempt failed for a reason that has
            nothing to do with ids and seqs.
    """
    began = time.monotonic()
    connection.set_lock_timeout(HELD_WAIT)
    for number in range(1, ATTEMPTS + 1):
        try:
            with attempt(connection):
                inserted = insert(number > 1)
            break
        except TimedOut as error:
            if time.monotonic() - began >= connection.timeout:
                raise  # the statement itself took too long, and not the wait for a row
            if number == ATTEMPTS:
                name = connection.printed(queue)
                raise RowsHeld(queue=name, attempts=number, reason=error.reason) from None
        except StatementRefused:
            if number == ATTEMPTS:
                raise
            skip_taken(connection, queue, rows=rows)
    connection.set_lock_timeout(None)
    return inserted


def skip_taken(connection: Connection, queue: QueueAddress, *, rows: int) -> None:
    """
    Move a queue's sequence past seqs that are taken, so that the next `rows` seqs are free.

    Only a login that may read `seq` can do this. Without this right nothing is changed here. Each
    failed attempt to insert then uses up some of the taken seqs, so a later attempt may succeed.
    """
    most = MOST_SKIPPED - connection.seqs_skipped
    if "skip_taken" in connection.lacks or most <= 0:
        return
    with suppress(RightMissing), attempt(connection):
        connection.seqs_skipped += connection.value(
            "skip_taken",
            tables={"queue": queue},
            table_name=connection.names.quote_address(queue),
            rows=rows,
            most=most,
        )
