"""
What can go wrong, and what mends it.

    SqlQueueError
    ├── BadInput             something given to us: nothing was changed
    │   ├── BadOption · UnknownOption · MisplacedOption · MissingOption
    │   ├── BadAddress
    │   ├── BadFrame         a DataFrame's columns do not fit
    │   └── BadMessage       one row of a DataFrame does not fit
    ├── MissingPackage · MissingDriver · UnsupportedVersion
    ├── DatabaseFailure      the server said no, or nothing
    │   ├── NotReachable · LoginRefused · DatabaseNotFound
    │   ├── ConnectionLost (and ReadOnly) · Deadlock · TimedOut (and LockTimedOut) · Cancelled
    │   ├── RightMissing
    │   ├── QueueNotFound · SchemaNotFound · NotAQueue · BodyStringMissing
    │   ├── QueueNotWritable · QueueElsewhere · QueueUnquoted · MessageChanged
    │   ├── DestinationRefused (and DestinationOfOther) · DestinationLocked · DestinationChanged
    │   ├── TimeZoneNotFound · MessageTooLarge
    │   ├── DelayedQueueNotFound · SubscriptionsNotFound · SubscriberUnreachable
    │   ├── StateNotInstalled · StateTooNew · StateOfOther
    │   ├── ServerTooOld · DatabaseTooOld · StatementPooling
    │   └── StatementFailed  and of its kind LogFull · StatementRefused
    ├── CheckpointFailure    the checkpoint and the stream's row disagree
    │   ├── CheckpointRolledBack · DatabaseRolledBack
    │   ├── StreamNotFound · StreamOfOtherQueue · StreamTakenOver · BadPlan
    │   └── StaleTask
    ├── ChunksMissing
    ├── PayloadRefused       a receipt or chunk is not as it was written
    ├── NothingToSettle
    ├── DispatchLogAhead · DispatchLogOfOther
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


def differing(server: str, *, postgresql: str, sqlserver: str) -> str:
    """What mends it, where that depends on the database at `server`, a url."""
    return sqlserver if server.startswith("sqlserver:") else postgresql


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


class MisplacedOption(BadInput):
    """An option of a write is given to a read, or the other way round; it would do nothing."""

    template = "option {0} does nothing on a {1}: give it on {2}"

    def __init__(self, option: str, given: str, home: str) -> None:
        super().__init__(option, given, home)


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


class UnsupportedVersion(SqlQueueError, ImportError):
    """Python, pyspark or pyarrow is older than this package needs."""

    def __init__(self, what: str, found: str, needed: str) -> None:
        super().__init__(what, found, needed)

    def __str__(self) -> str:
        what, found, needed = self.args
        fix = (
            f"run it with Python {needed} or newer"
            if what == "Python"
            else f"pip install '{what}>={needed}'"
        )
        if what == "pyspark":
            fix += ", and use a cluster with Spark 4 (Databricks Runtime 17.3 LTS or newer)"
        return f"sqlq_spark needs {what} {needed} or newer, and this is {found}: {fix}"


class MissingDelta(SqlQueueError):
    """A job needs Delta tables, and the Spark that runs it has none."""

    template = (
        "Delta Lake is not in this Spark: give spark-submit --properties-file "
        "conf/spark-defaults.conf, which names its jar; or, with python, "
        "pip install 'sqlq-spark[delta]'"
    )


class MissingDriver(SqlQueueError):
    """No driver for SQL Server can be used on this machine."""

    template = (
        "no driver for SQL Server can be used here ({0}): pip install 'sqlq-spark[sqlserver]' "
        "brings mssql-python, which needs the system's libltdl and libgssapi-krb5; or install "
        "unixODBC and Microsoft's ODBC Driver 18 for SQL Server for pyodbc"
    )

    def __init__(self, found: str) -> None:
        super().__init__(found)


class DatabaseFailure(SqlQueueError):
    """The database said no, or nothing at all."""


class NotReachable(DatabaseFailure):
    """No connection to the server."""

    template = "no connection to {0}: {1}; check host, port and firewall in the url"

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(server, reason)


class LoginRefused(DatabaseFailure):
    """The server does not accept this user or password."""

    template = "{0} refused the login: {1}; check user and password"

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(server, reason)


class ServerNotVerified(DatabaseFailure):
    """The server has no certificate that this machine trusts for the host's name."""

    template = (
        "{0} was not verified, so nothing was sent to it: {1}; write the host as its certificate "
        "names it, and name the file with its issuer's certificate by sslrootcert in the url, or "
        "choose a weaker sslmode there (see docs/security.md)"
    )

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


class ReadOnly(ConnectionLost):
    """The server takes no writes: a standby, or a primary no more; another may be found instead."""

    template = (
        "{0} was refused: {1}; that is a standby, or the database is kept read-only, as some "
        "services do when a disk is full. A url of several hosts with "
        "target_session_attrs=read-write finds the primary among them"
    )


class Deadlock(DatabaseFailure):
    """The database ended this transaction to let another go on; it may be tried again."""

    template = "{0} was chosen to end a deadlock: {1}"

    def __init__(self, statement: str, reason: str) -> None:
        super().__init__(statement, reason)


class TimedOut(DatabaseFailure):
    """A statement, or the wait for a lock, took longer than queryTimeout."""

    template = "{0} took longer than {1:g} s: {2}; raise the option queryTimeout"

    def __init__(self, statement: str, seconds: float, reason: str) -> None:
        super().__init__(statement, seconds, reason)


class LockTimedOut(TimedOut):
    """The same of a wait for a lock alone, which may be over soon; it may be tried again."""


class Cancelled(DatabaseFailure):
    """A statement was ended before its time, by Ctrl-C or a DBA; what it did is undone."""

    template = "{0} was cancelled, by Ctrl-C or by a DBA (pg_cancel_backend): {1}"

    def __init__(self, statement: str, reason: str) -> None:
        super().__init__(statement, reason)


class RightMissing(DatabaseFailure):
    """The login lacks a right."""

    template = "{1} (statement {0}); a DBA can mend it with: {2}"

    def __init__(self, statement: str, reason: str, grant: str) -> None:
        super().__init__(statement, reason, grant)


def visible(server: str) -> str:
    """The right without which a table is not seen."""
    return differing(server, postgresql="USAGE on its schema", sqlserver="this login a right on it")


class QueueNotFound(DatabaseFailure):
    """The queue's table is absent, or this login may not see it."""

    template = "queue {0} was not found in {1}: create it with `sqlqueue create`, or grant {2}"

    def __init__(self, queue: str, server: str) -> None:
        super().__init__(queue, server)

    def __str__(self) -> str:
        queue, server = self.args
        mend = differing(
            server,
            postgresql='USAGE on its schema; a table of another schema is written "schema"."table"',
            sqlserver="this login a right on it; a table of another schema is written "
            "table@[schema], one of another database table@[schema]@[database]",
        )
        return self.template.format(queue, server, mend)


class SchemaNotFound(DatabaseFailure):
    """A table cannot be made, for its schema is absent; nothing was made."""

    template = (
        "{0} cannot be made in {1}: {2}; let a DBA make the schema first (CREATE SCHEMA), or name "
        "another"
    )

    def __init__(self, table: str, server: str, reason: str) -> None:
        super().__init__(table, server, reason)


class NotAQueue(DatabaseFailure):
    """The table is there, but lacks a column of a queue."""

    template = (
        "{0} is no queue's table: {1}; a queue has id, expires, headers, body and seq, in lower "
        "case (on SQL Server RowVersion, in any). `sqlqueue create` makes one, `sqlqueue doctor` "
        "tells what mends this one"
    )

    def __init__(self, queue: str, reason: str) -> None:
        super().__init__(queue, reason)


class BodyStringMissing(DatabaseFailure):
    """The column that includeBodyString=true reads is absent."""

    template = (
        "queue {0} has no column BodyString, which includeBodyString=true reads: add it with "
        "`sqlqueue create '{0}' --body-string`, or by {1}; on PostgreSQL it writes every row anew"
    )

    def __init__(self, queue: str, alter: str) -> None:
        super().__init__(queue, alter)


class SubscriptionsNotFound(DatabaseFailure):
    """The table of subscriptions is absent, or this login may not see it; nothing was sent."""

    template = (
        "the table of subscriptions {0} was not found in {1}: name it in the option "
        "subscriptionTable, grant {2}, or, where no endpoint has subscribed yet, "
        "let the first one do so with `sqlqueue subscribe`, which makes it"
    )

    def __init__(self, table: str, server: str) -> None:
        super().__init__(table, server)

    def __str__(self) -> str:
        return self.template.format(*self.args, visible(self.args[1]))


class SubscriberUnreachable(DatabaseFailure):
    """A message cannot be copied to one of its subscribers; nothing of its batch was sent."""

    template = (
        "endpoint {0!r} is subscribed to topic {1!r} with the queue {2!r}, which {3}: nothing was "
        "sent, or this subscriber alone would have missed it. Make the queue with `sqlqueue "
        "create`, let the endpoint subscribe anew, or take it out with `sqlqueue unsubscribe`"
    )

    def __init__(self, endpoint: str, topic: str, address: str, reason: str) -> None:
        super().__init__(endpoint, topic, address, reason)


class QueueNotWritable(DatabaseFailure):
    """A message cannot be forwarded: its destination is no queue that this login may send to."""

    template = (
        "{0} is no queue in {1} that this login may insert into: create it with `sqlqueue create`, "
        "or grant {2}"
    )

    def __init__(self, queue: str, server: str) -> None:
        super().__init__(queue, server)

    def __str__(self) -> str:
        queue, server = self.args
        mend = differing(
            server,
            postgresql="USAGE on its schema, INSERT on it and USAGE on its sequence",
            sqlserver="INSERT on it",
        )
        return self.template.format(queue, server, mend)


class DestinationRefused(DatabaseFailure):
    """A table runs code of an owner that is not trusted; nothing was inserted."""

    template = (
        "{0} of owner {1} is refused as a destination: {2}. What an INSERT into it runs has the "
        "rights of this login. To trust the table, list it in the option allowedDestinations"
    )

    def __init__(self, queue: str, owner: str, found: str) -> None:
        super().__init__(queue, owner, found)


class DestinationOfOther(DestinationRefused):
    """A message's header directs it to a table of another owner; nothing was inserted."""

    template = (
        "{0} is refused as a destination: it belongs to {1}, and {2} to another owner. A header "
        "alone directs messages only to tables of the same owner. To allow the table, list it in "
        "the option allowedDestinations"
    )


class DestinationLocked(DatabaseFailure):
    """Another session locks a destination, so that messages cannot be forwarded to it now."""

    template = (
        "{0} was locked by another session, and all destinations together are waited for no longer "
        "than {1:g} s. Return the message with `sqlqueue retry` when the lock is gone"
    )

    def __init__(self, queue: str, seconds: float) -> None:
        super().__init__(queue, seconds)


class DestinationChanged(DatabaseFailure):
    """A destination became another table while it was inserted into; nothing was sent."""

    template = (
        "{0} was replaced or altered while messages were sent to it: nothing was sent. Find out "
        "who renames its schema or alters it"
    )

    def __init__(self, queue: str) -> None:
        super().__init__(queue)


class TimeZoneNotFound(DatabaseFailure):
    """The server knows no time zone of this name."""

    template = "{0} failed: {1}"

    def __init__(self, statement: str, reason: str) -> None:
        super().__init__(statement, reason)


class MessageTooLarge(DatabaseFailure):
    """A message is larger than maxMessageBytes, there is no error queue."""

    template = (
        "queue {0}: the message with seq {1} has {2} bytes, more than maxMessageBytes ({3}): set "
        "the option errorQueue, where the server moves it unread; or raise maxMessageBytes, "
        "at most to 1000m, which a task must hold in memory several times; or delete the message. "
        "Nothing was received"
    )

    def __init__(self, queue: str, seq: int, size: int, largest: int) -> None:
        super().__init__(queue, seq, size, largest)


class QueueElsewhere(DatabaseFailure):
    """A message cannot be returned: it failed in another database."""

    template = (
        "{0!r} names a queue elsewhere, or in the notation of another database than {1}: return "
        "its messages there"
    )

    def __init__(self, queue: str, errors: str) -> None:
        super().__init__(queue, errors)


class QueueUnquoted(DatabaseFailure):
    """A message cannot be returned: someone wrote a dotted name without quotes."""

    template = (
        "{0!r} is read as {1}, its schema and its table, which is no queue in {3} that this login "
        "may insert into: a table whose name has a dot is written {2}, with its schema"
    )

    def __init__(self, text: str, read: str, meant: str, server: str) -> None:
        super().__init__(text, read, meant, server)


class MessageChanged(DatabaseFailure):
    """A message is not the one that was looked at; nothing of its batch was returned."""

    template = (
        "message {0} of {1} was changed since it was looked at: nothing of its batch was returned; "
        "look again"
    )

    def __init__(self, row: str, queue: str) -> None:
        super().__init__(row, queue)


class DelayedQueueNotFound(DatabaseFailure):
    """The table in which delayed messages wait is absent, or is none."""

    template = (
        "delayed messages of {1} wait in {0}, which is no such table in {2}: create it with "
        "`sqlqueue create QUEUE --delayed`, grant {3}, or, to send, name another "
        "in the option delayedQueue"
    )

    def __init__(self, table: str, queue: str, server: str) -> None:
        super().__init__(table, queue, server)

    def __str__(self) -> str:
        return self.template.format(*self.args, visible(self.args[2]))


class StateNotInstalled(DatabaseFailure):
    """The state tables are absent, or this login may not see them."""

    template = (
        "the state tables were not found in schema {0} of {1}: run `sqlqueue install` once, "
        "name their schema in the option stateSchema, or grant {2}"
    )

    def __init__(self, schema: str, server: str) -> None:
        super().__init__(schema, server)

    def __str__(self) -> str:
        schema, server = self.args
        mend = differing(
            server, postgresql="USAGE on it", sqlserver="this login the rights on its tables"
        )
        return self.template.format(schema, server, mend)


class StateTooNew(DatabaseFailure):
    """The state tables were made by a newer release."""

    template = (
        "the state tables in schema {0} are of version {1}, this release knows {2}: "
        "upgrade sqlq-spark here"
    )

    def __init__(self, schema: str, found: int, known: int) -> None:
        super().__init__(schema, found, known)


class StateOfOther(DatabaseFailure):
    """The state schema or a table in it is another's, who could run code as this login."""

    template = (
        "nothing is installed in schema {0} of {1}: {2}. Whoever owns a state table, or has put a "
        "trigger on it, can run code as the logins that use it. If a DBA's script made these "
        "tables, nothing is left to install. Otherwise let a DBA drop or rename what is there, or "
        "name another schema in the option stateSchema"
    )

    def __init__(self, schema: str, server: str, found: str) -> None:
        super().__init__(schema, server, found)


class ServerTooOld(DatabaseFailure):
    """A server of a version that lacks what the statements use; nothing was changed."""

    template = "{0} is PostgreSQL {1}, and {2} or later is needed: let a DBA upgrade it"

    def __init__(self, server: str, found: str, needed: int) -> None:
        super().__init__(server, found, needed)


class DatabaseTooOld(DatabaseFailure):
    """A database of SQL Server is kept at a level that has no JSON."""

    template = (
        "the database of {0} has compatibility level {1}, and messages are sent as JSON, which "
        "needs {2}: a DBA can mend it with ALTER DATABASE CURRENT SET COMPATIBILITY_LEVEL = {2}, "
        "on SQL Server 2016 or later"
    )

    def __init__(self, server: str, found: int, needed: int) -> None:
        super().__init__(server, found, needed)


class StatementPooling(DatabaseFailure):
    """A pooler lends its sessions for one statement at a time; nothing was changed."""

    template = (
        "a pooler in front of {0} lends a session for one statement only ({1}), and everything "
        "here works in transactions: give this database pool_mode=transaction or session there, or "
        "a url that goes past the pooler"
    )

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(server, reason)


class StatementFailed(DatabaseFailure):
    """Any other answer of the database."""

    template = "{0} failed with error {1}: {2}"

    def __init__(self, statement: str, code: str, reason: str) -> None:
        super().__init__(statement, code, reason)


class LogFull(StatementFailed):
    """The transaction log takes no more for now; it may be tried again."""


class StatementRefused(StatementFailed):
    """The message or the table is at fault: another attempt would fail as well."""


class CheckpointFailure(SqlQueueError):
    """The checkpoint and the stream's row in the database disagree."""


class CheckpointRolledBack(CheckpointFailure):
    """The checkpoint stands before a batch that was acknowledged already."""

    template = (
        "the checkpoint of stream {0} stands at batch {1}, but batch {2} was acknowledged: it was "
        "rolled back or copied, and the messages between are gone from the queue. Restore the "
        "newer checkpoint, or begin with a new one; failOnDataLoss=false goes on with this one, "
        "but a sink that knows batches again (Delta, files, this one) skips as many new ones"
    )

    def __init__(self, stream: str, start: int, acked: int) -> None:
        super().__init__(stream, start, acked)


class DatabaseRolledBack(CheckpointFailure):
    """The stream's row stands before a batch that Spark has in its commit log."""

    template = (
        "the checkpoint of stream {0} stands at batch {1}, but {3} has acknowledged {2} and knows "
        "nothing of what followed: it went back in time, by a standby that was behind when it took "
        "over, or by a backup that was restored. What was received since is in the queue again, "
        "and what was sent since may be gone. failOnDataLoss=false goes on, and hands those "
        "messages out a second time; the sink's own ledger and tables tell which they are"
    )

    def __init__(self, stream: str, start: int, acked: int, server: str) -> None:
        super().__init__(stream, start, acked, server)


class StreamNotFound(CheckpointFailure):
    """The checkpoint names a stream that the state tables do not know."""

    template = (
        "stream {0} of this checkpoint is not in schema {1} of {2}: is it another database, were "
        "the state tables made anew, or did a login make it whose roles this one has not? Point "
        "url and stateSchema to where this checkpoint began, let a DBA grant the role of "
        "`sqlqueue script` to both logins, or begin with a new checkpoint"
    )

    def __init__(self, stream: str, schema: str, server: str) -> None:
        super().__init__(stream, schema, server)


class StreamOfOtherQueue(CheckpointFailure):
    """The checkpoint was made by a stream on another queue."""

    template = (
        "this checkpoint belongs to a stream of queue {0}, not of {1}: "
        "give this stream a checkpointLocation of its own"
    )

    def __init__(self, found: str, asked: str) -> None:
        super().__init__(found, asked)


class StreamTakenOver(CheckpointFailure):
    """A second driver runs on a copy of, or on the same, checkpoint."""

    template = (
        "stream {0} was taken over by another driver: two queries run on one checkpoint or on "
        "copies of it. Stop one, and give it a checkpointLocation of its own"
    )

    def __init__(self, stream: str) -> None:
        super().__init__(stream)


class BadPlan(CheckpointFailure):
    """A stored plan is none of ours; nothing was received by it."""

    template = (
        "the plan of batch {1} of stream {0} cannot be used: {2}. It was changed in the table "
        "stream of the state schema, or in the checkpoint: find out who may write there; "
        "restore it, or begin with a new checkpoint"
    )

    def __init__(self, stream: str | None, batch: int, reason: str) -> None:
        super().__init__(stream, batch, reason)


class StaleTask(CheckpointFailure):
    """A task of a batch that was acknowledged or returned; it must not touch the queue."""

    template = (
        "task {2} of batch {1} of stream {0} came after the batch was acknowledged (up to {3}): "
        "an earlier attempt that was given up, or a checkpoint that was rolled back or copied"
    )

    def __init__(self, stream: str, batch: int, task: int, acked: int) -> None:
        super().__init__(stream, batch, task, acked)


class ChunksMissing(SqlQueueError):
    """Staged messages are gone from the staging before they were sent; nothing was sent."""

    template = (
        "batch {1} of sink {0} staged {2} chunks but {3} were found: nothing of it was sent; "
        "were chunks dropped, or does the driver use another database or stateSchema?"
    )

    def __init__(self, sink: str, batch: int, staged: int, found: int) -> None:
        super().__init__(sink, batch, staged, found)


class PayloadRefused(SqlQueueError):
    """What lies in a receipt or a chunk is not as it was written; none of it was used."""

    template = (
        "the payload of {0} in the state tables cannot be used: {1}. None of it was delivered or "
        "sent. A login that may write the state tables has changed it, or the database is damaged: "
        "restore that row from a backup, or drop a receipt with `sqlqueue receipts drop` and lose "
        "its messages. A receipt that was written with a larger maxMessageBytes needs that again"
    )

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)


class NothingToSettle(SqlQueueError):
    """A batch has no open receipt that its sends could commit with; nothing was sent."""

    template = (
        "micro-batch {1} of query {0} has no open receipts in schema {2} of {3}: nothing of it was "
        "sent. transactionMode=sendsAtomicWithReceive needs a sqlqueue source with receipts in the "
        "same database and stateSchema; receipts that were returned or dropped end their batch; "
        "a batch without data has none (spark.sql.streaming.noDataMicroBatches.enabled=false)"
    )

    def __init__(self, query: str | None, batch: int | None, schema: str, server: str) -> None:
        super().__init__(query, batch, schema, server)


class DispatchLogAhead(SqlQueueError):
    """The dispatch log has a batch that the sink cannot have reached; nothing was sent."""

    template = (
        "sink {0} is at batch {1}, but the dispatch log in schema {3} of {4} says that it has sent "
        "batch {2}: nothing was sent, for a batch that is new would be taken for one that was sent "
        "before. The checkpoint was rolled back by several batches, a txnVersion was used that is "
        "not the next one, or the log was changed. Restore the newer checkpoint, give the stream a "
        "new one, or, if batch {1} was not sent yet, let a DBA set the column batch of the sink's "
        "row in the table dispatch_log to the last batch that was"
    )

    def __init__(self, sink: str, batch: int, found: int, schema: str, server: str) -> None:
        super().__init__(sink, batch, found, schema, server)


class DispatchLogOfOther(SqlQueueError):
    """A login with all rights goes on with a sink that another one of that kind began."""

    template = (
        "sink {0} belongs to login {1} in the table dispatch_log of schema {2} of {3}, and this "
        "login sees its row only because it sees all rows: nothing was sent, for a batch might be "
        "sent twice. Run this as {1}; or, to go on as this login, let a DBA set the column login "
        "of the sink's rows in dispatch_log, staging and staging_page"
    )

    def __init__(self, sink: str, login: str, schema: str, server: str) -> None:
        super().__init__(sink, login, schema, server)


class ReceiptSettled(SqlQueueError):
    """A receipt whose messages were already sent on cannot be returned to the queue."""

    template = (
        "receipt {0}/{1}/{2} is settled: what was received was sent on in the same transaction; "
        "drop it with `sqlqueue receipts drop`"
    )

    def __init__(self, stream: str, batch: int, task: int) -> None:
        super().__init__(stream, batch, task)
