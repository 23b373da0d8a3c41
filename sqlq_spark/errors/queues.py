"""Errors of queues, of their tables and of the messages in them."""

from __future__ import annotations

from sqlq_spark.errors.root import DatabaseFailure


class QueueNotFound(DatabaseFailure):
    """The queue's table does not exist, or this login may not see it."""

    template = (
        "queue {0} was not found in {1}. Create it with `sqlqueue create`, or grant this login the "
        "rights that `sqlqueue script` prints. If it is in another schema, write its address in "
        "the form of {0}."
    )

    def __init__(self, queue: str, server: str) -> None:
        super().__init__(queue, server)


class SchemaNotFound(DatabaseFailure):
    """A table cannot be created because its schema does not exist. Nothing was created."""

    template = (
        "{0} cannot be created in {1}: {2}. Ask a DBA to create the schema first (CREATE SCHEMA), "
        "or name another schema."
    )

    def __init__(self, table: str, server: str, reason: str) -> None:
        super().__init__(table, server, reason)


class NotAQueue(DatabaseFailure):
    """The table exists, but is not a queue."""

    template = (
        "table {0} is not a queue: {1}. A queue has the columns id, expires, headers, body and "
        "seq, in lower case (on SQL Server RowVersion instead of seq, in any case). "
        "Run `sqlqueue create` to create a queue, or `sqlqueue doctor` to see how to fix this one."
    )

    def __init__(self, queue: str, reason: str) -> None:
        super().__init__(queue, reason)


class MoveRefused(DatabaseFailure):
    """The server moves no delayed message into the queue as its table is."""

    template = (
        "delayed messages that are due cannot be moved into queue {0}: {1}. Fix this with: {2}. "
        "Without delayedDelivery=true the stream can receive."
    )

    def __init__(self, queue: str, reason: str, fix: str) -> None:
        super().__init__(queue, reason, fix)


class SubscriptionsNotFound(DatabaseFailure):
    """The subscription table does not exist, or this login may not see it. Nothing was sent."""

    template = (
        "the subscription table {0} was not found in {1}. Name it in the option "
        "subscriptionTable, or grant this login the rights that `sqlqueue script` prints. If no "
        "endpoint has subscribed yet, run `sqlqueue subscribe`, which creates the table."
    )

    def __init__(self, table: str, server: str) -> None:
        super().__init__(table, server)


class SubscriptionsRefused(DatabaseFailure):
    """The subscription table could run code of an owner that is not trusted. It was not read."""

    template = (
        "the subscription table {0} is refused, because {1} could run code of its owner with the "
        "permissions of this login. Find out who made the table. If you trust it, make a "
        "superuser or this login its owner. Or name another table in the option subscriptionTable."
    )

    def __init__(self, table: str, danger: str) -> None:
        super().__init__(table, danger)


class SubscriberUnreachable(DatabaseFailure):
    """A message cannot be copied to one of its subscribers. Nothing of its batch was sent."""

    template = (
        "endpoint {0!r} is subscribed to topic {1!r} with the queue {2!r}, which {3}. Nothing was "
        "sent, because this subscriber would miss the message. Create the queue with "
        "`sqlqueue create`, subscribe the endpoint again, or run `sqlqueue unsubscribe`."
    )

    def __init__(self, endpoint: str, topic: str, address: str, reason: str) -> None:
        super().__init__(endpoint, topic, address, reason)


class SubscriberLost(SubscriberUnreachable):
    """A copy of a message for one subscriber went to the error queue. The others were sent."""

    template = (
        "endpoint {0!r} is subscribed to topic {1!r} with the queue {2!r}, which {3}. Create the "
        "queue with `sqlqueue create` and return this message, or run `sqlqueue unsubscribe`."
    )


class QueueNotWritable(DatabaseFailure):
    """A message cannot be forwarded: this login cannot send to its destination."""

    template = (
        "this login cannot insert into a queue {0} in {1}. Create it with `sqlqueue create`, "
        "or grant this login the rights of a sender, which `sqlqueue script` prints."
    )

    def __init__(self, queue: str, server: str) -> None:
        super().__init__(queue, server)


class DestinationRefused(DatabaseFailure):
    """A table runs code of an owner that is not trusted. Nothing was inserted."""

    template = (
        "table {0} of owner {1} is refused as a destination: {2}. An INSERT would run that code "
        "with the permissions of this login. If you trust the table, list it in the option "
        "allowedDestinations."
    )

    def __init__(self, queue: str, owner: str, found: str) -> None:
        super().__init__(queue, owner, found)


class DestinationOfOther(DestinationRefused):
    """A message's header names a table of another owner. Nothing was inserted."""

    template = (
        "table {0} is refused as a destination: it belongs to {1}, and {2} to another owner. A "
        "header can direct messages only to tables of the same owner. To allow the table, list it "
        "in the option allowedDestinations."
    )


class DestinationLocked(DatabaseFailure):
    """Another session locks a destination, so messages cannot be forwarded to it now."""

    template = (
        "table {0} was locked by another session. The driver waits at most {1:g} s for all "
        "destinations together. Return the message with `sqlqueue retry` when the lock is released."
    )

    def __init__(self, queue: str, seconds: float) -> None:
        super().__init__(queue, seconds)


class DestinationChanged(DatabaseFailure):
    """A destination was replaced by another table during the insert. Nothing was sent."""

    template = (
        "table {0} was replaced or altered while messages were sent to it. Nothing was sent. "
        "Find out who alters the table or renames its schema."
    )

    def __init__(self, queue: str) -> None:
        super().__init__(queue)


class MessageTooLarge(DatabaseFailure):
    """A message is larger than maxMessageBytes, and there is no error queue."""

    template = (
        "queue {0}: the message with seq {1} has {2} bytes, more than maxMessageBytes ({3}). "
        "Nothing was received. Set the option errorQueue, so that the server moves the message "
        "there. Or raise maxMessageBytes, at most to 1000m: a task holds a message in memory "
        "several times. Or delete the message."
    )

    def __init__(self, queue: str, seq: int, size: int, largest: int) -> None:
        super().__init__(queue, seq, size, largest)


class QueueElsewhere(DatabaseFailure):
    """A message cannot be returned: it failed in another database."""

    template = (
        "{0!r} names a queue in another database than {1}, or uses the notation of another "
        "database. Return its messages there."
    )

    def __init__(self, queue: str, errors: str) -> None:
        super().__init__(queue, errors)


class QueueUnquoted(DatabaseFailure):
    """A message cannot be returned: its header has a dotted name without quotes."""

    template = (
        "{0!r} is read as schema and table {1}. This login cannot insert into such a queue in {3}. "
        "If the table's name contains a dot, write {2}, with its schema."
    )

    def __init__(self, text: str, read: str, meant: str, server: str) -> None:
        super().__init__(text, read, meant, server)


class MessageChanged(DatabaseFailure):
    """A message changed after it was looked at. Nothing of its batch was returned."""

    template = (
        "message {0} of {1} has changed since it was looked at. Nothing of its batch was returned. "
        "Run the command again."
    )

    def __init__(self, row: str, queue: str) -> None:
        super().__init__(row, queue)


class DelayedQueueNotFound(DatabaseFailure):
    """The table of delayed messages does not exist, or is another kind of table."""

    template = (
        "the table {0} for delayed messages of {1} was not found in {2}. Create it with "
        "`sqlqueue create QUEUE --delayed`, or grant this login the rights that "
        "`sqlqueue script QUEUE --delayed` prints. To send, you can also name another table in the "
        "option delayedQueue."
    )

    def __init__(self, table: str, queue: str, server: str) -> None:
        super().__init__(table, queue, server)
