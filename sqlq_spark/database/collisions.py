"""
Inserts into a queue where other rows may already have the next ids or seqs.

Whoever may insert into a queue chooses the ids of its rows, and on PostgreSQL also their seqs. A
row that has the next id or seq makes our insert fail. If the transaction of that row is still open,
our insert waits for it. Neither may stop a stream that moves messages into a shared error queue.

So an insert waits at most HELD_WAIT for each row. If it fails, or would wait for longer, it is
undone and tried again under new ids. The failed attempt has used up its seqs, so the next one also
gets new seqs. After an error the sequence is moved past the seqs that are taken, by at most
MOST_SKIPPED.
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
ATTEMPTS = 4  # the first one keeps the ids of the messages
MOST_SKIPPED = 100_000  # seqs in one transaction


def insert_past_taken(
    connection: Connection, queue: QueueAddress, insert: Callable[[bool], T], *, rows: int
) -> T:
    """
    Insert rows in the open transaction, and try again under new ids if ids or seqs are taken.

    The caller has locked and checked the queue's table. `insert` inserts all `rows` rows. Its
    argument says whether it inserts them under new ids.

    Raises:
        RowsHeld: in every attempt open transactions held an id or a seq.
        StatementRefused: the table refuses the rows under new ids too.
        DatabaseFailure: the last attempt failed, or an attempt failed for another reason than ids
            and seqs.
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
                raise  # the statement itself took too long, not the wait for a row
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
    Move a queue's sequence past seqs that are taken, until there are free ones for `rows` rows.

    A login that may not read `seq` cannot do this. Its attempts use up the seqs instead.
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
