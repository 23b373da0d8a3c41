"""
What can go wrong, and what mends it.

    SqlQueueError
    ├── BadInput             something given to us: nothing was changed
    │   ├── BadOption · UnknownOption · MissingOption
    │   ├── BadAddress
    │   ├── BadFrame         a DataFrame's columns do not fit
    │   └── BadMessage       one row of a DataFrame does not fit
    ├── MissingPackage
    ├── DatabaseFailure      the server said no, or nothing
    │   ├── NotReachable · LoginRefused · DatabaseNotFound
    │   ├── ConnectionLost · Deadlock · TimedOut · RightMissing
    │   ├── QueueNotFound · StateNotInstalled · StateTooNew
    │   └── StatementFailed
    ├── CheckpointFailure    the checkpoint and the reader's row disagree
    │   ├── CheckpointRolledBack · ReaderNotFound · ReaderOfOtherQueue · ReaderTakenOver
    │   └── StaleTask
    ├── ParcelsMissing
    └── ReceiptSettled

Every message says what was found, where, and what would do.
The arguments stay in `args`, so that an error survives the pickling between Spark's processes.
No argument may hold a password: addresses of servers come in already redacted.
"""

from __future__ import annotations

from typing import ClassVar


class SqlQueueError(Exception):
    """The root of all errors of this package; `template` is filled with `args`."""

    template: ClassVar[str] = "{0}"

    def __str__(self) -> str:
        return self.template.format(*self.args)


class BadInput(SqlQueueError):
    """Something given to us is wrong; nothing was changed."""


class BadOption(BadInput):
    """An option has a value that cannot be used."""

    template = "option {0} is {1!r}: expected {2}"

    def __init__(self, option: str, found: str, expected: str) -> None:
        super().__init__(option, found, expected)


class UnknownOption(BadInput):
    """An option is not known, but looks like one that is."""

    template = "option {0} is not known: did you mean {1}?"

    def __init__(self, option: str, near: str) -> None:
        super().__init__(option, near)


class MissingOption(BadInput):
    """An option without a default was not given."""

    template = "option {0} is missing: give {1}"

    def __init__(self, option: str, example: str) -> None:
        super().__init__(option, example)


class BadAddress(BadInput):
    """A queue's name or address cannot be read."""

    template = "queue address {0!r} cannot be used: {1}"

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text, reason)


class BadFrame(BadInput):
    """The columns of a DataFrame do not fit."""

    template = "the DataFrame cannot be {1}: {0}"

    def __init__(self, reason: str, done: str = "sent") -> None:
        super().__init__(reason, done)


class BadMessage(BadInput):
    """One row of a DataFrame cannot become a message; nothing of its batch was sent."""

    template = "row {1} of partition {0} cannot be sent: {2}"

    def __init__(self, partition: int, row: int, reason: str) -> None:
        super().__init__(partition, row, reason)


class MissingPackage(SqlQueueError):
    """A package of an extra is not installed."""

    template = "package {0} is not installed: pip install 'sqlq-spark[{1}]'"

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(package, extra)


class DatabaseFailure(SqlQueueError):
    """The database said no, or nothing at all."""


class NotReachable(DatabaseFailure):
    """No connection to the server."""

    template = "no connection to {0}: {1}; check host, port and firewall in the url"

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(server, reason)


class LoginRefused(DatabaseFailure):
    """The server does not accept this user or password."""

    template = "{0} refused the login: {1}; check the options user and password"

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(server, reason)


class DatabaseNotFound(DatabaseFailure):
    """The server has no database of this name."""

    template = "{0}: {1}; create it, or name another at the end of the url"

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(server, reason)


class ConnectionLost(DatabaseFailure):
    """The connection broke; whether a commit under way has arrived is not known."""

    template = "the connection was lost during {0}: {1}"

    def __init__(self, statement: str, reason: str) -> None:
        super().__init__(statement, reason)


class Deadlock(DatabaseFailure):
    """The database ended this transaction to let another go on; it may be tried again."""

    template = "{0} was chosen to end a deadlock: {1}"

    def __init__(self, statement: str, reason: str) -> None:
        super().__init__(statement, reason)


class TimedOut(DatabaseFailure):
    """A statement, or the wait for a lock, took longer than queryTimeout."""

    template = "{0} took longer than queryTimeout ({1:g} s): {2}; raise the option queryTimeout"

    def __init__(self, statement: str, seconds: float, reason: str) -> None:
        super().__init__(statement, seconds, reason)


class RightMissing(DatabaseFailure):
    """The login lacks a right."""

    template = "{0} is not allowed: {1}; a DBA can mend it with: {2}"

    def __init__(self, statement: str, reason: str, grant: str) -> None:
        super().__init__(statement, reason, grant)


class QueueNotFound(DatabaseFailure):
    """The queue's table is absent, or this login may not see it."""

    template = (
        "queue {0} was not found in {1}: create it with `sqlqueue create`, or grant USAGE "
        'on its schema; a table of another schema is written "schema"."table"'
    )

    def __init__(self, queue: str, server: str) -> None:
        super().__init__(queue, server)


class StateNotInstalled(DatabaseFailure):
    """The state tables are absent, or this login may not see them."""

    template = (
        "the state tables were not found in schema {0} of {1}: run `sqlqueue install` once, "
        "name their schema in the option stateSchema, or grant USAGE on it"
    )

    def __init__(self, schema: str, server: str) -> None:
        super().__init__(schema, server)


class StateTooNew(DatabaseFailure):
    """The state tables were made by a newer release."""

    template = (
        "the state tables in schema {0} are of version {1}, this release knows {2}: "
        "upgrade sqlq-spark here"
    )

    def __init__(self, schema: str, found: int, known: int) -> None:
        super().__init__(schema, found, known)


class StatementFailed(DatabaseFailure):
    """Any other answer of the database."""

    template = "{0} failed with SQLSTATE {1}: {2}"

    def __init__(self, statement: str, sqlstate: str, reason: str) -> None:
        super().__init__(statement, sqlstate, reason)


class CheckpointFailure(SqlQueueError):
    """The checkpoint and the reader's row in the database disagree."""


class CheckpointRolledBack(CheckpointFailure):
    """The checkpoint stands before a batch that was acknowledged already."""

    template = (
        "the checkpoint of reader {0} stands at batch {1}, but batch {2} was acknowledged: it was "
        "rolled back or copied, and the messages between are gone from the queue. Restore the "
        "newer checkpoint, or go on without them with failOnDataLoss=false"
    )

    def __init__(self, reader: str, start: int, acked: int) -> None:
        super().__init__(reader, start, acked)


class ReaderNotFound(CheckpointFailure):
    """The checkpoint names a reader that the state tables do not know."""

    template = (
        "reader {0} of this checkpoint is not in schema {1} of {2}: is it another database, or "
        "were the state tables made anew? Point url and stateSchema to where this checkpoint "
        "began, or begin with a new checkpoint"
    )

    def __init__(self, reader: str, schema: str, server: str) -> None:
        super().__init__(reader, schema, server)


class ReaderOfOtherQueue(CheckpointFailure):
    """The checkpoint was made by a stream on another queue."""

    template = (
        "this checkpoint belongs to a reader of queue {0}, not of {1}: "
        "give this stream a checkpointLocation of its own"
    )

    def __init__(self, found: str, asked: str) -> None:
        super().__init__(found, asked)


class ReaderTakenOver(CheckpointFailure):
    """A second driver runs on a copy of, or on the same, checkpoint."""

    template = (
        "reader {0} was taken over by another driver: two queries run on one checkpoint or on "
        "copies of it. Stop one, and give it a checkpointLocation of its own"
    )

    def __init__(self, reader: str) -> None:
        super().__init__(reader)


class StaleTask(CheckpointFailure):
    """A task of a batch that was acknowledged or returned; it must not touch the queue."""

    template = (
        "task {2} of batch {1} of reader {0} came after the batch was acknowledged (up to {3}): "
        "an earlier attempt that was given up, or a checkpoint that was rolled back or copied"
    )

    def __init__(self, reader: str, batch: int, task: int, acked: int) -> None:
        super().__init__(reader, batch, task, acked)


class ParcelsMissing(SqlQueueError):
    """Staged messages are gone from the outbox before they were sent; nothing was sent."""

    template = (
        "batch {1} of sink {0} staged {2} parcels but {3} were found: nothing of it was sent; "
        "were parcels dropped, or does the driver use another database or stateSchema?"
    )

    def __init__(self, sink: str, batch: int, staged: int, found: int) -> None:
        super().__init__(sink, batch, staged, found)


class ReceiptSettled(SqlQueueError):
    """A receipt whose messages were already sent on cannot be returned to the queue."""

    template = (
        "receipt {0}/{1}/{2} is settled: what was received was sent on in the same transaction; "
        "drop it with `sqlqueue receipts drop`"
    )

    def __init__(self, reader: str, batch: int, task: int) -> None:
        super().__init__(reader, batch, task)
