"""
The errors of this package, grouped by their subjects; SqlQueueError is the root of all.

Every message says what failed, where, what was found, and how to fix it. The facts of an error are
the values in its text. No fact may contain a password: callers remove passwords from urls first.
Some facts contain names and texts of untrusted people, so the text of an error shows them without
control characters.
"""

from __future__ import annotations

from inspect import get_annotations
from string import Formatter
from typing import TYPE_CHECKING, Any, Self, dataclass_transform

if TYPE_CHECKING:
    from collections.abc import Mapping

# Options whose names are in braces in some templates. `describe` fills in the option or the flag.
NAMED_OPTIONS = (
    "queryTimeout",
    "stateSchema",
    "trustedOwners",
    "allowedDestinations",
)


def clean(text: str) -> str:
    """Replace control characters, which could change a terminal or begin a new line of a log."""
    return "".join(letter if letter.isprintable() else "·" for letter in text)


class _CleanFormatter(Formatter):
    """Fills templates with facts, and replaces control characters in the facts."""

    def format_field(self, value: Any, format_spec: str) -> str:  # noqa: ANN401 - as Formatter
        return clean(format(value, format_spec))


_FORMATTER = _CleanFormatter()


@dataclass_transform(kw_only_default=True)
class SqlQueueError(Exception):
    """
    The root of all errors of this package. Its text is `template`, filled with its facts.

    A class declares its facts as fields. Callers give the facts as keywords, and read them as
    attributes:

        error = QueueNotFound(queue="public.Orders", server="db")
        error.queue  # "public.Orders"

    A text names options as users of Spark write them. Commands name their flags instead:

        str(MissingOption(option="queryTimeout", example="30s"))  # "option queryTimeout is …"
        MissingOption(…).describe({"queryTimeout": "--timeout"})  # "option --timeout is …"

    Type checkers treat the fields as those of a dataclass. At run time no error is a dataclass: a
    frozen one would fail when it passes a context manager, which sets its traceback. All facts
    survive pickling between Spark's processes.
    """

    template = "{reason}"

    if TYPE_CHECKING:
        # For type checkers: the arguments of this class, and of subclasses without fields.
        def __init__(self, *, reason: str = "") -> None: ...

    else:

        def __init__(self, **facts: object) -> None:
            super().__init__()
            vars(self).update(facts)

    @classmethod
    def fields(cls) -> list[str]:
        """Return the names of the facts that the class and its bases declare."""
        classes = [kind for kind in reversed(cls.__mro__) if issubclass(kind, SqlQueueError)]
        return [name for kind in classes for name in get_annotations(kind)]

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """
        Return an error of this class. Facts that are no fields of the class are ignored.

        Raises:
            KeyError: a field of the class is not among the facts.
        """
        return cls(**{name: facts[name] for name in cls.fields()})

    def __str__(self) -> str:
        return self.describe({})

    def describe(self, spelled: Mapping[str, str]) -> str:
        """Return the text. `spelled` maps the name of an option to the flag of a command."""
        facts = {name: spelled.get(name, name) for name in NAMED_OPTIONS} | vars(self)
        if "option" in facts:
            facts["option"] = spelled.get(facts["option"], facts["option"])
        return _FORMATTER.vformat(self.template, (), facts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


# ---------------------------------------------------------------- inputs


class BadInput(SqlQueueError):
    """An input cannot be used. Nothing was changed."""


class BadOption(BadInput):
    """An option has a value that cannot be used."""

    option: str
    found: str
    expected: str
    template = "option {option} is {found!r}: expected {expected}"


class UnknownOption(BadInput):
    """An option is not known, but its name is similar to the name of a known option."""

    option: str
    near: str
    template = "option {option} is not known: did you mean {near}?"


class MisplacedOption(BadInput):
    """An option of a write was set on a read, or an option of a read on a write."""

    option: str
    given: str
    home: str
    template = "option {option} has no effect on a {given}: set it on {home}"


class OptionOfOtherSource(BadInput):
    """An option of Spark's Kafka, JDBC or Pub/Sub connector was set. It would have no effect."""

    option: str
    instead: str
    template = "option {option} is of another source, and has no effect here: {instead}"


class MissingOption(BadInput):
    """An option without a default was not set."""

    option: str
    example: str
    template = "option {option} is missing: give {example}"


class OptionsOfTable(BadInput):
    """CREATE TABLE has OPTIONS. Spark stores these, but passes them to no read or write."""

    options: str
    template = (
        "a table in a catalog cannot have the options {options}: Spark stores them, and passes "
        "them to no read or write. Use CREATE TEMPORARY VIEW. Or name the columns and give no "
        "OPTIONS, as in CREATE TABLE t (seq BIGINT, body BINARY) USING sqlqueue, and write WITH "
        "(url '…', …) after the name of the table in each statement"
    )


class BadAddress(BadInput):
    """A queue's name or address cannot be read."""

    text: str
    reason: str
    template = "queue address {text!r} cannot be used: {reason}"


class BadFrame(BadInput):
    """The columns of a DataFrame cannot be read or written."""

    done: str
    reason: str
    template = "the DataFrame cannot be {done}: {reason}"


class BadMessage(BadInput):
    """One row of a DataFrame cannot become a message. Nothing of its batch was sent."""

    row: int
    partition: int
    reason: str
    template = "row {row} of partition {partition} cannot be sent: {reason}"


# ---------------------------------------------------------------- this machine


class MissingPackage(SqlQueueError):
    """An optional package is not installed. An extra of sqlq-spark installs it."""

    package: str
    extra: str
    template = (
        "package {package} is not installed. Run in the folder of the clone: "
        "pip install '.[{extra}]'. From a wheel: pip install '<file of the wheel>[{extra}]'"
    )


class UnsupportedVersion(SqlQueueError, ImportError):
    """Python, pyspark or pyarrow is older than this package needs."""

    what: str
    needed: str
    found: str
    fix: str
    template = "sqlq_spark needs {what} {needed} or newer, but found {found}. {fix}"


class MissingDelta(SqlQueueError):
    """A job needs Delta tables, but its Spark has no Delta Lake."""

    template = (
        "Delta Lake is not available in this Spark. With spark-submit, add --properties-file "
        "conf/spark-defaults.conf, which names the jar. With python, run in the folder of the "
        "clone: pip install '.[delta]'. From a wheel: pip install '<file of the wheel>[delta]'"
    )


class MissingDriver(SqlQueueError):
    """This machine has no usable driver for the database."""

    database: str
    found: str
    fix: str
    template = "no driver for {database} can be used here ({found}). {fix}"


# ---------------------------------------------------------------- connections and statements


class DatabaseFailure(SqlQueueError):
    """The database rejected a statement, or did not answer."""


class NotReachable(DatabaseFailure):
    """No connection to the server could be opened."""

    server: str
    reason: str
    template = "no connection to {server}: {reason}. Check host, port and firewall in the url."


class ConnectionUnclear(NotReachable):
    """
    No connection could be opened, and the reason is unclear.

    The server's error text is not known, for example because it is in another language.
    """

    template = (
        "no connection to {server}: {reason}. The login, the database or the host may be the "
        "cause: check user, password, database, host and port in the url."
    )


class LoginRefused(DatabaseFailure):
    """The server does not accept this user or password."""

    server: str
    reason: str
    template = "{server} refused the login: {reason}. Check user and password."


class LoginUnclear(LoginRefused):
    """
    The server refused the login, the database or the token. The driver does not say which.

    Another attempt may succeed, because the cause may be a failover.
    """

    template = "{server} refused the login: {reason}. Check user, password and the database's name."


class PasswordMissing(LoginRefused):
    """The server asks for a password, and none was given."""

    template = (
        "{server} refused the login, because no password was given: {reason}. Set it in the "
        "environment variable SQLQUEUE_PASSWORD for commands and jobs (the job relay has two "
        "variables), in the option password for Spark (see docs/security.md)."
    )


class CertificateRefused(LoginRefused):
    """The server refused the client's certificate, or this machine cannot read it."""

    template = (
        "{server} refused the login: {reason}. Check the client's certificate and its key, which "
        "the url's parameters sslcert and sslkey name (see docs/security.md)."
    )


class CredentialsFailed(DatabaseFailure):
    """The function or the service of the option `credentials` raised an error."""

    option: str
    credentials: str
    reason: str
    template = "option {option} is {credentials!r}, but it gave no password: {reason}"


class ServerNotVerified(DatabaseFailure):
    """The server's certificate is not for the host's name, or this machine does not trust it."""

    server: str
    reason: str
    template = (
        "{server} could not be verified, so nothing was sent to it: {reason}. Write the host in "
        "the url as its certificate names it. Name the file with the issuer's certificate in the "
        "url's parameter sslrootcert, or set a weaker sslmode (see docs/security.md)."
    )


class DatabaseNotFound(DatabaseFailure):
    """The server has no database of this name."""

    server: str
    reason: str
    template = "{server}: {reason}. Create the database, or name another one at the end of the url."


class ConnectionLost(DatabaseFailure):
    """The connection broke. It is unknown whether a commit in progress was carried out."""

    statement: str
    reason: str
    template = "the connection was lost during {statement}: {reason}"


class ReadOnly(ConnectionLost):
    """The server accepts no writes. It may be a standby, while another host is the primary."""

    fix: str
    template = "{statement} was refused: {reason}. {fix}"


class Deadlock(DatabaseFailure):
    """The database undid this transaction to end a deadlock. The transaction may run again."""

    statement: str
    reason: str
    template = "{statement} was rolled back to end a deadlock: {reason}"


class ReceiptExists(DatabaseFailure):
    """Another attempt of the same task has written the task's receipt. The task may run again."""

    statement: str
    reason: str
    template = "another attempt of the same task has finished meanwhile ({statement}: {reason})"


class TimedOut(DatabaseFailure):
    """A statement, or the wait for a lock, took longer than queryTimeout."""

    statement: str
    seconds: float
    reason: str
    template = (
        "{statement} took longer than {seconds:g} s: {reason}. Raise the option {queryTimeout}."
    )


class LockTimedOut(TimedOut):
    """The wait for a lock took longer than queryTimeout. The transaction may run again."""


class StatementLimited(TimedOut):
    """A statement took longer than the login's statement_timeout, which is below queryTimeout."""

    template = (
        "{statement} was ended by the server: this login has statement_timeout = {seconds:g} s, "
        "which is shorter than the option {queryTimeout}, and the statement took longer: {reason}. "
        "A DBA can fix this with: ALTER ROLE the_user SET statement_timeout = 0, or a longer time."
    )


class TransactionLimited(DatabaseFailure):
    """A time limit of the login ended a transaction and its session. Another attempt would fail."""

    statement: str
    setting: str
    found: str
    template = (
        "{statement} was ended by the server: this login has {setting} = {found}, and its "
        "transaction took longer. It is not tried again. A DBA can fix this with: ALTER ROLE "
        "the_user SET {setting} = 0, or a time above the option {queryTimeout}."
    )


class Cancelled(DatabaseFailure):
    """Ctrl-C or a DBA cancelled a statement. Its transaction was rolled back."""

    statement: str
    reason: str
    template = "{statement} was cancelled by Ctrl-C or by a DBA (pg_cancel_backend): {reason}"


class RightMissing(DatabaseFailure):
    """The login lacks a permission."""

    reason: str
    statement: str
    fix: str
    template = "{reason} (statement {statement}). A DBA can fix this with: {fix}"


class StateRightMissing(RightMissing):
    """The login may not use a state schema. It is another team's, or the login lacks a role."""

    template = (
        "{reason} (statement {statement}). The state schema is another team's, or this login lacks "
        "a role of its team. {fix}"
    )

    @staticmethod
    def fix_of(schema: str, roles: str) -> str:
        """
        Return what the user should do. `roles` names roles of the schema's team, or is empty.

        The text proposes no GRANT, because a GRANT would give access to all state of another team.
        """
        return (
            f"Set the option stateSchema to your team's schema instead of {clean(schema)}, or ask "
            f"for membership in a role of its team{f' ({clean(roles)})' if roles else ''}."
        )


class TimeZoneNotFound(DatabaseFailure):
    """The server knows no time zone of this name."""

    statement: str
    reason: str
    template = "{statement} failed: {reason}"


class ServerTooOld(DatabaseFailure):
    """The server's version is too old for the package's statements. Nothing was changed."""

    server: str
    database: str
    found: str
    needed: int
    template = "{server} is {database} {found}, but {needed} or later is needed. Upgrade it."


class DatabaseTooOld(DatabaseFailure):
    """The compatibility level of a database is too low for the package's statements."""

    server: str
    found: int
    needed: int
    reason: str
    fix: str
    template = (
        "the database of {server} has compatibility level {found}, but {needed} is needed, because "
        "{reason}. A DBA can fix this {fix}"
    )


class StatementPooling(DatabaseFailure):
    """A pooler gives each statement another session of the server. Nothing was changed."""

    server: str
    reason: str
    template = (
        "a pooler in front of {server} assigns a session for one statement only ({reason}), but "
        "transactions are needed. Set pool_mode=transaction or pool_mode=session for this database "
        "in the pooler, or use a url that bypasses the pooler."
    )


class NamesQuoted(DatabaseFailure):
    """The driver cannot read types, because of a setting of the login. Nothing was changed."""

    server: str
    template = (
        "the driver cannot read the types of {server}, because this login has "
        "quote_all_identifiers = on, and a pooler there rejects the option that turns it off. "
        "A DBA can fix this with: ALTER ROLE the_user SET quote_all_identifiers = off. Then let "
        "the pooler connect again."
    )


class StatementFailed(DatabaseFailure):
    """A statement failed with an error that has no class of its own."""

    statement: str
    code: str
    reason: str
    template = "{statement} failed with error {code}: {reason}"


class ServerShort(StatementFailed):
    """The server lacks memory, locks, space or connections. The transaction may run again."""


class LogFull(ServerShort):
    """The transaction log is full. The transaction may run again."""


class StatementRefused(StatementFailed):
    """A message or a table causes the error, so another attempt would fail too."""


# ---------------------------------------------------------------- queues and messages


class QueueNotFound(DatabaseFailure):
    """The queue's table does not exist, or this login may not see it."""

    queue: str
    server: str
    template = (
        "queue {queue} was not found in {server}. Create it with `sqlqueue create`, or grant this "
        "login the rights that `sqlqueue script` prints. If it is in another schema, write its "
        "address in the form of {queue}."
    )


class QueueInOtherCase(QueueNotFound):
    """A queue was not found, but one exists whose name differs only in upper and lower case."""

    other: str
    template = (
        "queue {queue} was not found in {server}. There is {other}, which differs only in upper "
        "and lower case. Write that name, or create {queue} with `sqlqueue create`."
    )


class SchemaNotFound(DatabaseFailure):
    """A table cannot be created because its schema does not exist. Nothing was created."""

    table: str
    server: str
    reason: str
    template = (
        "{table} cannot be created in {server}: {reason}. Ask a DBA to create the schema first "
        "(CREATE SCHEMA), or name another schema."
    )


class NotAQueue(DatabaseFailure):
    """The table exists, but is not a queue: a column is missing, or has another type."""

    queue: str
    reason: str
    columns: str
    template = (
        "table {queue} is not a queue: {reason}. A queue has the columns {columns}. They have the "
        "transport's types. Run `sqlqueue create` to create a queue, or `sqlqueue doctor` to see "
        "how to fix this one."
    )


class MoveRefused(DatabaseFailure):
    """The server refuses to move delayed messages into the queue, because of its table."""

    queue: str
    reason: str
    fix: str
    template = (
        "delayed messages that are due cannot be moved into queue {queue}: {reason}. Fix this "
        "with: {fix}. Without delayedDelivery=true the stream can receive."
    )


class SubscriptionsNotFound(DatabaseFailure):
    """The subscription table does not exist, or this login may not see it. Nothing was sent."""

    table: str
    server: str
    template = (
        "the subscription table {table} was not found in {server}. Name it in the option "
        "subscriptionTable, or grant this login the rights that `sqlqueue script` prints. If no "
        "endpoint has subscribed yet, run `sqlqueue subscribe`, which creates the table."
    )


class TooManySubscriptions(DatabaseFailure):
    """The subscription table has too many rows for the topics of a batch. Nothing was sent."""

    table: str
    most: int
    template = (
        "the subscription table {table} has more than {most} rows for the topics that were asked "
        "for. Find out which endpoint has filled it, delete these rows, and revoke its right to "
        "insert there."
    )


class SubscriberUnreachable(DatabaseFailure):
    """A message cannot be copied to one of its subscribers. Nothing of its batch was sent."""

    endpoint: str
    topic: str
    address: str
    reason: str
    template = (
        "endpoint {endpoint!r} is subscribed to topic {topic!r} with the queue {address!r}, which "
        "{reason}. Nothing was sent, because this subscriber would miss the message. Create the "
        "queue with `sqlqueue create`, subscribe the endpoint again, or run `sqlqueue unsubscribe`."
    )


class SubscriberLost(SubscriberUnreachable):
    """One subscriber's copy of a message went to the error queue. The other copies were sent."""

    template = (
        "endpoint {endpoint!r} is subscribed to topic {topic!r} with the queue {address!r}, which "
        "{reason}. Create the queue with `sqlqueue create` and return this message, or run "
        "`sqlqueue unsubscribe`."
    )


class QueueNotWritable(DatabaseFailure):
    """A message cannot be forwarded, because this login cannot insert into its destination."""

    queue: str
    server: str
    template = (
        "this login cannot insert into a queue {queue} in {server}. Create it with `sqlqueue "
        "create`, or grant this login the rights of a sender, which `sqlqueue script` prints."
    )


# the advice if the session has the rights of a superuser
USE_AN_ORDINARY_LOGIN = (
    "This login has the rights of a superuser, so it trusts only superusers and the roles of that "
    "setting. Use an ordinary login with the operator's role. "
)


class TableRefused(DatabaseFailure):
    """A table is not an ordinary table, or others can add code to it. It was not used."""

    table: str
    found: str
    template = (
        "table {table} is not used: {found}. It must be an ordinary table without such triggers. "
        "If you trust this one table, list it in {allowedDestinations}."
    )


class OwnerNotTrusted(TableRefused):
    """The owner of a table, of its schema, or of a trigger or foreign key on it is not trusted."""

    owner: str
    advice: str
    value: str
    template = (
        "table {table} is not used: {found}, who is not trusted. {advice}The owner could add code "
        "that runs with the rights of this login. If you trust {owner}, set {trustedOwners} to "
        "{value}"
    )


class TableOfOther(TableRefused):
    """A table of delayed messages, or one named by a header, has another owner than its queue."""

    owner: str
    template = (
        "table {table} is not used: it belongs to {owner}, and {found} to another owner. What only "
        "a header names, and a table of delayed messages, must have the owner of its queue. Change "
        "its owner, or list the table in {allowedDestinations}."
    )


class DestinationLocked(DatabaseFailure):
    """Another session locks a destination, so messages cannot be forwarded to it now."""

    queue: str
    seconds: float
    template = (
        "table {queue} was locked by another session. The driver waits at most {seconds:g} s for "
        "all destinations. Return the message with `sqlqueue retry` when the lock is released."
    )


class DestinationChanged(DatabaseFailure):
    """A table was replaced or altered while this session used it. Nothing was done."""

    queue: str
    template = (
        "table {queue} was replaced or altered while it was used. Nothing was done. Find out who "
        "alters the table."
    )


class RowsHeld(DatabaseFailure):
    """Open transactions of other sessions hold ids or seqs of the rows to insert."""

    queue: str
    attempts: int
    reason: str
    template = (
        "nothing can be inserted into {queue} now: in {attempts} attempts other sessions held the "
        "ids or seqs of the rows ({reason}). `sqlqueue doctor` names sessions that keep rows "
        "locked. End them, or give each team an error queue of its own."
    )


class MessageTooLarge(DatabaseFailure):
    """A message or its headers are larger than allowed, and there is no error queue."""

    queue: str
    seq: int
    size: int  # bytes
    counted: str  # the parts whose bytes are counted: "headers and body", or "headers"
    option: str  # the option that sets the limit
    largest: int  # bytes
    template = (
        "queue {queue}: the message with seq {seq} has {size} bytes of {counted}, more than "
        "{option} ({largest}). Nothing was received. Set the option errorQueue, so that the server "
        "moves the message there. Or raise {option}: a task holds a message in memory several "
        "times. Or delete the message."
    )


class QueueElsewhere(DatabaseFailure):
    """A message cannot be returned: it failed in another database."""

    queue: str
    errors: str
    template = (
        "{queue!r} names a queue in another database than {errors}, or uses the notation of "
        "another database. Return its messages there."
    )


class QueueUnquoted(DatabaseFailure):
    """A message cannot be returned: its header has a dotted name without quotes."""

    text: str
    read: str
    server: str
    meant: str
    template = (
        "{text!r} is read as schema and table {read}. This login cannot insert into such a queue "
        "in {server}. If the table's name contains a dot, write {meant}, with its schema."
    )


class MessageChanged(DatabaseFailure):
    """A message changed after the command had read it. Its batch was not returned."""

    row: int
    queue: str
    template = (
        "message {row} of {queue} has changed since it was looked at. Nothing of its batch was "
        "returned. Run the command again."
    )


class DelayedQueueNotFound(DatabaseFailure):
    """The table of delayed messages does not exist, or is another kind of table."""

    table: str
    queue: str
    server: str
    template = (
        "the table {table} for delayed messages of {queue} was not found in {server}. Create it "
        "with `sqlqueue create QUEUE --delayed`, or grant this login the rights that `sqlqueue "
        "script QUEUE --delayed` prints. To send, you can also name another table in the option "
        "delayedQueue."
    )


# ---------------------------------------------------------------- state tables, receipts and chunks


class StateNotInstalled(DatabaseFailure):
    """The state tables do not exist, or this login may not see them."""

    schema: str
    server: str
    template = (
        "the state tables were not found in schema {schema} of {server}. Run `sqlqueue install` "
        "once, set the option {stateSchema} to your team's schema, or ask for membership in a role "
        "that may use it."
    )


class StateTooOld(DatabaseFailure):
    """An older release created the state tables. Nothing was received or sent."""

    schema: str
    found: int
    known: int
    fix: str
    template = (
        "the state tables in schema {schema} have version {found}, but this release supports "
        "{known}. {fix}"
    )


class StateTooNew(DatabaseFailure):
    """A newer release created the state tables. Nothing was received or sent."""

    schema: str
    found: int
    known: int
    template = (
        "the state tables in schema {schema} have version {found}, but this release supports "
        "{known}. Upgrade sqlq-spark here."
    )


class StateOfOther(DatabaseFailure):
    """The owner of the state schema, or of a table in it, is not trusted. Nothing was read."""

    schema: str
    server: str
    found: str
    advice: str
    value: str
    template = (
        "the state tables in schema {schema} of {server} are not used: {found}. {advice}The owner "
        "of a state table could run code with the rights of the logins that use it. Trusted are "
        "this login, superusers and the owner of the database. Ask a DBA to drop or rename what is "
        "there, name another schema in {stateSchema}, or, if you trust the owners, set "
        "{trustedOwners} to {value}."
    )


class StateChanged(StatementRefused):
    """A column of the state tables is missing, because another release changed the tables."""

    template = (
        "{statement} failed with error {code}: {reason}. The state tables lack a column of their "
        "version. Run `sqlqueue doctor`, which compares them with the version's"
    )


class InstallBlocked(DatabaseFailure):
    """Another session creates or changes the state tables for longer than an install waits."""

    schema: str
    server: str
    seconds: float
    reason: str
    sessions: str
    template = (
        "nothing was installed in schema {schema} of {server}: another session creates the state "
        "tables, or holds a lock on one, for longer than {seconds:g} s ({reason}). Stop the "
        "streams and writes that use them, and run the install again. {sessions}"
    )


class PayloadRefused(SqlQueueError):
    """The content of a receipt or chunk differs from what was written. None of it was used."""

    where: str
    reason: str
    template = (
        "the payload of {where} in the state tables cannot be used: {reason}. None of it was "
        "delivered or sent. A login that may write the state tables changed it, or the database is "
        "damaged. Restore that row from a backup. Or run `sqlqueue receipts drop`, which loses the "
        "messages of a receipt. If maxMessageBytes was larger when it was written, set that again."
    )


class ReceiptSettled(SqlQueueError):
    """A receipt's messages were already sent on. They cannot be returned to the queue."""

    stream: str
    batch: int
    task: int
    template = (
        "receipt {stream}/{batch}/{task} is settled: its messages were processed and sent on in "
        "one transaction. Drop it with `sqlqueue receipts drop`."
    )


class ReceiptRefused(SqlQueueError):
    """The login that wrote a receipt may not receive from its queue. Nothing was returned."""

    receipt: str
    login: str
    queue: str
    template = (
        "receipt {receipt} of login {login} names queue {queue}, from which that login may not "
        "receive, so the receipt may be forged. If you trust it, name the queue in --allow."
    )


# ---------------------------------------------------------------- checkpoints


class CheckpointFailure(SqlQueueError):
    """The checkpoint and the stream's row in the database do not match."""


class CheckpointRolledBack(CheckpointFailure):
    """The checkpoint is at an earlier batch than the last one that was acknowledged."""

    stream: str
    start: int
    acked: int
    template = (
        "the checkpoint of stream {stream} is at batch {start}, but batch {acked} was "
        "acknowledged. The checkpoint was rolled back or copied, and the messages between are gone "
        "from the queue. Restore the newer checkpoint, or start with a new one. "
        "failOnDataLoss=false continues with this one. Then as many batches receive nothing, and "
        "new messages come after them."
    )


class DatabaseRolledBack(CheckpointFailure):
    """The stream's row is at an earlier batch than Spark's commit log."""

    stream: str
    start: int
    server: str
    acked: int
    template = (
        "the checkpoint of stream {stream} is at batch {start}, but {server} has acknowledged only "
        "up to batch {acked}. The database went back in time: a standby that lagged took over, or "
        "a backup was restored. Messages received since then are in the queue again. Messages sent "
        "since then may be lost. failOnDataLoss=false continues and delivers the messages in the "
        "queue a second time. Compare them with the sink's tables and transaction log."
    )


class ReceiptsMissing(CheckpointFailure):
    """A batch that Spark has committed left fewer receipts than it had tasks."""

    batch: int
    stream: str | None
    tasks: int
    found: int
    next_start: str
    template = (
        "batch {batch} of stream {stream} had {tasks} tasks and left {found} receipts. Either the "
        "other tasks never ran: foreachBatch returned before it read its DataFrame, a join had an "
        "empty side, or the sink skipped a batch that it has. Then the messages are in the queue, "
        "and nothing is lost. Or the database has lost commits: a standby that lagged took over, "
        "or a backup was restored. Then the sink may have messages that are in the queue again: "
        "compare them, and delete those that it has. {next_start}"
    )


class StreamNotFound(CheckpointFailure):
    """The checkpoint names a stream that the state tables do not have."""

    stream: str
    schema: str
    server: str
    template = (
        "stream {stream} of this checkpoint is not in schema {schema} of {server}. Either this is "
        "another database, or the state tables were created again. Set url and stateSchema to "
        "where this checkpoint began. Or start with a new checkpoint."
    )


class StreamKept(BadInput):
    """A stream cannot be removed from the lists."""

    stream: str
    reason: str
    template = "stream {stream} was not removed: {reason}"


class StreamOfOtherQueue(CheckpointFailure):
    """A stream on another queue created the checkpoint."""

    found: str
    asked: str
    template = (
        "this checkpoint belongs to a stream of queue {found}, not of {asked}. Set a "
        "checkpointLocation of its own for this stream."
    )


class StreamTakenOver(CheckpointFailure):
    """A second driver runs on the same checkpoint, or on a copy of it."""

    stream: str
    template = (
        "stream {stream} was taken over by another driver: two queries run on one checkpoint or on "
        "copies of it. Stop one of them, and set a checkpointLocation of its own for it."
    )


class BadOffset(CheckpointFailure):
    """An offset of the checkpoint cannot be read. Nothing was received."""

    reason: str
    template = (
        "the offset of this checkpoint cannot be used: {reason}. Run the query with the release of "
        "sqlq_spark that wrote the checkpoint, or restore the checkpoint, or start with a new one."
    )


class BadPlan(CheckpointFailure):
    """A stored plan cannot be used. Nothing was received."""

    batch: int
    stream: str | None
    reason: str
    template = (
        "the plan of batch {batch} of stream {stream} cannot be used: {reason}. Someone changed it "
        "in the table stream of the state schema, or in the checkpoint. Find out who may write "
        "there. Restore the plan, or start with a new checkpoint."
    )


class StaleTask(CheckpointFailure):
    """A task belongs to a batch that was acknowledged or returned, so it received nothing."""

    task: int
    batch: int
    stream: str
    acked: int
    template = (
        "task {task} of batch {batch} of stream {stream} ran after the batch was acknowledged (up "
        "to {acked}). It is an earlier attempt that was abandoned, or the checkpoint was rolled "
        "back or copied."
    )


class CheckpointIncomplete(CheckpointFailure):
    """Spark uses the number of a batch again for other messages. Nothing was received for it."""

    spark_batch: int
    query: str | None
    task: str
    files: str
    received: int
    template = (
        "Spark runs batch {spark_batch} of query {query} with other messages than before (task "
        "{task}): the checkpoint has lost files of batch {files} in its folders offsets and "
        "commits. Nothing was received. Restore the files. Or start with a new checkpoint, and "
        "return or drop what `sqlqueue receipts list` shows. Only if it shows none, "
        "failOnDataLoss=false may continue: nothing is received up to batch {received}, the "
        "messages come later."
    )


class QueueReadTwice(SqlQueueError):
    """Two streams of one Spark query read the same queue. The second one received nothing."""

    query: str | None
    queue: str
    reader: str
    stream: str
    template = (
        "query {query} reads queue {queue} by two streams, {reader} and {stream}. Each would get a "
        "part of the messages, so stream {stream} received nothing. Spark makes two streams of one "
        "DataFrame that is joined with itself, or of two reads of one queue. For a join with "
        "itself, first rename the columns of both sides: then Spark keeps one stream. Or write the "
        "queue to a table, and join that. Then start with a new checkpoint. The batch that failed "
        "left its messages in receipts: `sqlqueue receipts return` puts them back into the queue."
    )


# ---------------------------------------------------------------- sending


class ChunksMissing(SqlQueueError):
    """Staged chunks disappeared before they were sent. Nothing was sent."""

    sink_batch: int
    sink: str
    staged: int
    found: int
    template = (
        "batch {sink_batch} of sink {sink} staged {staged} chunks, but {found} were found. Nothing "
        "of it was sent. Check whether chunks were dropped, or whether the driver uses another "
        "database or stateSchema than the tasks."
    )


class NothingToSettle(SqlQueueError):
    """A batch has no receipts to settle in the transaction that sends. Nothing was sent."""

    query: str | None
    schema: str
    server: str
    spark_batch: int | None
    template = (
        "query {query} has no stream and no receipt in schema {schema} of {server}, so nothing of "
        "its micro-batch {spark_batch} was sent. transactionMode=sendsAtomicWithReceive needs a "
        "sqlqueue source in the same database: give read and write the same url and stateSchema. "
        "If the queue was empty at the first batch, start the query once without transactionMode."
    )


class BatchClosed(NothingToSettle):
    """Receipts of a batch were returned or dropped before its sends. Nothing was sent."""

    template = (
        "micro-batch {spark_batch} of query {query} is closed in schema {schema} of {server}, so "
        "nothing of it was sent: receipts of it were returned or dropped, and its messages may be "
        "in their queue again. Start the query with a new checkpoint."
    )


class OtherDestination(SqlQueueError):
    """A write to another destination has used this txnAppId and txnVersion. Nothing was sent."""

    application: str
    sink_batch: int
    found: str
    asked: str
    template = (
        "txnAppId {application!r} and txnVersion {sink_batch} were used for a write to '{found}', "
        "and now for one to '{asked}'. Nothing was sent now, because a second write of one name is "
        "skipped as a repeated one. Give each write a txnAppId of its own. If an option changed, "
        "run the batch once with the old one."
    )


class DispatchLogAhead(SqlQueueError):
    """The dispatch log has a batch that the sink cannot have reached. Nothing was sent."""

    sink: str
    sink_batch: int
    schema: str
    server: str
    found: int
    template = (
        "sink {sink} is at batch {sink_batch}, but the dispatch log in schema {schema} of {server} "
        "says that batch {found} was sent. Nothing was sent, because a new batch would be skipped "
        "as one already sent. Either the checkpoint was rolled back by several batches, or "
        "txnVersion is not the next number, or the log was changed. Restore the newer checkpoint, "
        "or give the stream a new one. If batch {sink_batch} was not sent yet, ask a DBA to set "
        "the column sink_batch of the sink's row in the table dispatch_log to the last batch that "
        "was sent."
    )
