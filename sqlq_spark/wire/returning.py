"""
Return to source: decide which failed messages go back to their queues, with which headers.

The rule: A message goes to the queue that its header FailedQ names, if that queue may be used.
Headers whose names begin with one of FAULT_PREFIXES are removed. If a message has no header
MessageId, the message gets the id of its row as MessageId, which becomes the first header.

The command `retry`, the job error_triage and the function `return_to_source` all follow this rule.
The command applies it to rows, with the functions of this module. The job and the function apply it
to columns of Spark, with the constants of this module. For them the sink adds the header MessageId.
A test compares the results of all three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark.wire.headers import (
    EXCEPTION_INFO,
    FAILED_Q,
    FAULT_PREFIXES,
    MESSAGE_ID,
    POISON_TYPE,
    dumps,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

EXCEPTION_TYPE = f"{EXCEPTION_INFO}ExceptionType"

# reasons why a message stays in the error queue
NO_SOURCE = f"no header {FAILED_Q}, or corrupt headers"
POISON = (
    f"its ExceptionType is {POISON_TYPE}, because its own headers could not be read. Put it back "
    'with correct headers by the statement in docs/operations.md, "Poison messages"'
)
ITS_OWN = f"the header {FAILED_Q} names the error queue itself"


def find_refusal(failed_queue: str | None, exception: str | None) -> str | None:
    """
    Return why a message stays in the error queue, or None if it may go back.

    This looks only at the headers FailedQ and ExceptionType. The queue that FailedQ names may still
    be refused later.
    """
    if exception == POISON_TYPE:
        return POISON
    return None if failed_queue else NO_SOURCE


def write_headers(headers: Mapping[str, str | None], row: str) -> str:
    """Write the headers of a returned message. `row` is the id of its row in the error queue."""
    kept = {name: text for name, text in headers.items() if not name.startswith(FAULT_PREFIXES)}
    return dumps(kept if MESSAGE_ID in kept else {MESSAGE_ID: row, **kept})


def is_copy(table: str) -> bool:
    """Return whether a queue has the name of a forwarding log. Its messages are only copies."""
    return table.lower().endswith(".log")
