"""
The audit trail: who purged, returned, dropped or retired what, and how many messages.

The caller records an action in the transaction that does it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from datetime import datetime

    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress

Action: TypeAlias = Literal["purge", "return", "drop", "retire"]

NOT_KEPT = (
    "no entry in the audit trail: schema {0} of {1} has no table `trail` that this login may use. "
    "`sqlqueue install` creates it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One transaction of an action."""

    at: datetime
    login: str  # whose rights were used
    session_login: str  # who connected
    action: Action
    queue: str
    messages: int
    stream: str | None
    batch: int | None
    task: int | None


def is_kept(connection: Connection, state: str | None = None) -> bool:
    """
    Whether actions are recorded: there is a trail, in a schema that this login may use.

    A login that may use the schema and may not insert there fails when it records an action.
    """
    return bool(connection.rows("trail_kept", state_name=state or connection.state))


def record(
    connection: Connection,
    action: Action,
    queue: str,
    messages: int,
    *,
    stream: str | None = None,
    batch: int | None = None,
    task: int | None = None,
) -> None:
    """
    Write an entry, in the open transaction.

    Raises:
        RightMissing: the login may not insert. The action is undone with the transaction.
    """
    connection.run(
        "record_action",
        action=action,
        queue_name=queue,
        messages=messages,
        stream=stream,
        batch=batch,
        task=task,
    )


def entries(connection: Connection, queue: QueueAddress | None = None, *, last: int) -> list[Entry]:
    """Read the last entries of all queues or of one, the latest first, in the open transaction."""
    name = None if queue is None else connection.printed(queue)
    return [
        Entry(
            at=at,
            login=login,
            session_login=session_login,
            action=action,
            queue=name_,
            messages=messages,
            stream=stream,
            batch=batch,
            task=task,
        )
        for at, login, session_login, action, name_, messages, stream, batch, task in (
            connection.rows("trail", queue_name=name, entries=last)
        )
    ]
