"""
Insert into a queue that others fill too, although some ids or seqs are taken.

Every login that may insert into a queue chooses the ids of its rows. On PostgreSQL it can choose
their seqs too. If a row already has the next seq or the same id, our insert fails. If an open
transaction has inserted that row, our insert waits for it. Neither may stop a stream that moves
messages into a shared error queue.

So an insert waits HELD_WAIT for each row. If it fails, or waits for longer, it is undone and tried
again under new ids. The failed attempt has used up its seqs, so the next one also gets new seqs.
After an error the sequence is moved past the taken seqs, but by no more than MOST_SKIPPED.
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
ATTEMPTS = 4  # the first attempt uses the messages' own ids, the others use new ids
MOST_SKIPPED = 100_000  # seqs that one transaction skips at most


def insert_past_taken(
    connection: Connection, queue: QueueAddress, insert: Callable[[bool], T], *, rows: int
) -> T:
    """
    Insert rows in the open transaction, and try again under new ids if ids or seqs are taken.

    The caller has locked and checked the queue's table.

    Args:
        connection: the session with the open transaction.
        queue: where the rows go.
        insert: inserts all rows. Its argument says whether it must use new ids.
        rows: how many rows it inserts.

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
    Move a queue's sequence past taken seqs, to a place where `rows` free seqs follow.

    A login that may not read `seq` cannot do this. Each failed attempt still uses up some seqs.
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
