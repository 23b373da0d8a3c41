"""
Entries in the dispatch log that record how far a job's request has come.

    OPEN       entered before the job decides what to send. A dispatch log without it belongs to
               another database or stateSchema, and does not show what was sent.
    SENT       entered by the transaction of the write
    GIVEN_UP   entered for an operator; a write that is still running can no longer send the request

Each state is a batch number of the same sink. It only increases. Each function is one transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark.database import transaction
from sqlq_spark.send import dispatch_log

if TYPE_CHECKING:
    from sqlq_spark.database import Connection

UNKNOWN, OPEN, SENT, GIVEN_UP = -2, -1, 0, 1  # batches; SENT is the txnVersion of the write


def enter(sink: str, timeout: float, batch: int, connection: Connection) -> int:
    """Enter a batch, unless the dispatch log has it or a later one."""
    with transaction(connection, timeout=timeout):
        dispatch_log.enter(connection, sink, batch)
    return batch


def last(sink: str, timeout: float, connection: Connection) -> int:
    """Read the last batch of a sink; changes nothing."""
    with transaction(connection, timeout=timeout):
        found = dispatch_log.read(connection, sink)
    return UNKNOWN if found is None else found


def close(sink: str, timeout: float, connection: Connection) -> int:
    """Give up a request, if it is open, and delete what it staged."""
    with transaction(connection, timeout=timeout):
        login, last = dispatch_log.lock(connection, sink)
        if last is None or last < SENT:
            dispatch_log.advance(connection, sink, login, GIVEN_UP)
            connection.run("discard", sink=sink, login=login, batch=GIVEN_UP)
    return GIVEN_UP
