"""
The server's error numbers that this package knows: what each one means for a session.

A driver may leave the number out, so each row also has the beginning of the server's sentence. Our
sessions ask for English. Statements of this package throw the numbers from 51000.

The rows were compared with the transient errors of Entity Framework Core. Left out are those of
features that a table queue does not use, such as snapshots, tables in memory, replication, full
text, external scripts and the management of availability groups.
"""

from __future__ import annotations

import re
from enum import Enum, auto


class Kind(Enum):
    """What an error means for a session."""

    LOST = auto()  # the session has ended, or the server takes none now: connect again
    READ_ONLY = auto()  # connected to a replica that takes no writes: connect again
    NO_DATABASE = auto()  # lasting, unless the server was reached before
    REFUSED = auto()  # the login is wrong: lasting
    DEADLOCK = auto()  # run the transaction again
    LOCK_TIMEOUT = auto()  # run the transaction again
    TIMEOUT = auto()  # the statement took longer than queryTimeout: lasting
    SHORTAGE = auto()  # of memory, locks, threads or space: run the transaction again
    LOG_FULL = auto()  # a shortage with a fix of its own
    DUPLICATE = auto()  # of a receipt: run the transaction again; else lasting
    RIGHT = auto()  # a permission is missing: lasting
    NO_TABLE = auto()
    NO_COLUMN = auto()
    NO_SCHEMA = auto()
    LASTING = auto()  # the message or the table is wrong: another attempt would fail as well


OLD_LEVEL = 102  # a syntax that the database's compatibility level does not know
NO_MESSAGE = r"(?!)"  # matches nothing: an error of the network, which drivers report in own words

# number → kind, beginning of the sentence. The first match counts: 18401 comes before 18456.
# fmt: off
KNOWN: dict[int, tuple[Kind, str]] = {
    # the network
    64: (Kind.LOST, NO_MESSAGE),
    121: (Kind.LOST, NO_MESSAGE),
    233: (Kind.LOST, NO_MESSAGE),
    10053: (Kind.LOST, NO_MESSAGE),
    10054: (Kind.LOST, NO_MESSAGE),
    10060: (Kind.LOST, NO_MESSAGE),
    # the server starts, stops or is paused
    596: (Kind.LOST, r"Cannot continue the execution because the session is in the kill state"),
    6005: (Kind.LOST, r"SHUTDOWN is in progress"),
    17142: (Kind.LOST, r"SQL Server service has been paused"),
    17187: (Kind.LOST, r"SQL Server is not ready to accept new client connections"),
    17197: (Kind.LOST, r"Login failed due to timeout"),
    18401: (Kind.LOST, r"Login failed for user '.*'\. +Reason: Server is in script upgrade mode"),
    # the database starts, recovers or moves to another replica
    921: (Kind.LOST, r"Database '.*' has not been recovered yet"),
    922: (Kind.LOST, r"Database '.*' is being recovered"),
    927: (Kind.LOST, r"Database '.*' cannot be opened\. It is in the middle of a restore"),
    941: (Kind.LOST, r"Database '.*' cannot be opened because it is not started"),
    952: (Kind.LOST, r"Database '.*' is in transition"),
    983: (Kind.LOST, r"Unable to access availability database '.*' because the database replica"),
    988: (Kind.LOST, r"Unable to access database '.*' because it lacks a quorum"),
    4221: (Kind.LOST, r"Login to read-secondary failed due to long wait"),
    40540: (Kind.LOST, r"Transaction was aborted as database is moved to read-only mode"),
    # a replica that takes no writes
    976: (Kind.READ_ONLY, r"The target database, '.*', is participating in an availability group"),
    978: (Kind.READ_ONLY, r"The target database \('.*'\) is in an availability group"),
    3906: (Kind.READ_ONLY, r"Failed to update database \".*\" because the database is read-only"),
    # Azure moves the database, or limits sessions
    10928: (Kind.LOST, r"Resource ID ?: ?\d+\. The .* limit for the database is"),
    10929: (Kind.LOST, r"Resource ID ?: ?\d+\. The .* minimum guarantee is"),
    10930: (Kind.LOST, r"The service is currently too busy"),
    10936: (Kind.LOST, r"Resource ID ?: ?\d+\. The request limit for the elastic pool is"),
    40143: (Kind.LOST, r"The service has encountered an error processing your request"),
    40197: (Kind.LOST, r"The service has encountered an error processing your request"),
    40501: (Kind.LOST, r"The service is currently busy"),
    40549: (Kind.LOST, r"Session is terminated because you have a long-running transaction"),
    40550: (Kind.LOST, r"The session has been terminated because it has acquired too many locks"),
    40551: (Kind.LOST, r"The session has been terminated because of excessive TEMPDB usage"),
    40552: (Kind.LOST, r"The session has been terminated because of excessive transaction log"),
    40553: (Kind.LOST, r"The session has been terminated because of excessive memory usage"),
    40613: (Kind.LOST, r"Database '.*' on server '.*' is not currently available"),
    40642: (Kind.LOST, r"The server is currently too busy"),
    49802: (Kind.LOST, r"Database is unavailable at the moment"),
    49918: (Kind.LOST, r"(?:Cannot process request\. )?Not enough resources to process request"),
    49919: (Kind.LOST, r"Cannot process create or update request"),
    49920: (Kind.LOST, r"Cannot process request\. Too many operations in progress"),
    # the transaction is gone, and the server had reported no error
    3902: (Kind.LOST, r"The COMMIT TRANSACTION request has no corresponding"),
    51900: (Kind.LOST, r"the transaction is gone"),
    # other sessions are in the way
    1205: (Kind.DEADLOCK, r"Transaction \(Process ID \d+\) was deadlocked"),
    51003: (Kind.DEADLOCK, r"sp_getapplock returned -3$"),
    1222: (Kind.LOCK_TIMEOUT, r"Lock request time out period exceeded"),
    51001: (Kind.LOCK_TIMEOUT, r"sp_getapplock returned -1$"),
    51002: (Kind.TIMEOUT, r"sp_getapplock returned -2$"),
    -2: (Kind.TIMEOUT, NO_MESSAGE),
    # the server is short of something
    701: (Kind.SHORTAGE, r"There is insufficient system memory"),
    802: (Kind.SHORTAGE, r"There is insufficient memory available in the buffer pool"),
    1101: (Kind.SHORTAGE, r"Could not allocate a new page for database"),
    1105: (Kind.SHORTAGE, r"Could not allocate space for object"),
    1204: (Kind.SHORTAGE, r"The instance of the SQL Server Database Engine cannot obtain a LOCK"),
    3966: (Kind.SHORTAGE, r"Transaction is rolled back when accessing version store"),
    8628: (Kind.SHORTAGE, r"A time ?out occurred while waiting to optimize the query"),
    8645: (Kind.SHORTAGE, r"A time ?out occurred while waiting for memory resources"),
    8651: (Kind.SHORTAGE, r"Could not perform the operation because the requested memory grant"),
    9002: (Kind.LOG_FULL, r"The transaction log for database '.*' is full"),
    40544: (Kind.SHORTAGE, r"The database has reached its size quota"),
    # the login
    911: (Kind.NO_DATABASE, r"Database '.*' does not exist\. Make sure"),
    4060: (Kind.NO_DATABASE, r"Cannot open database \".*\" requested by the login"),
    18452: (Kind.REFUSED, r"Login failed\. The login is from an untrusted domain"),
    18487: (Kind.REFUSED, r"Login failed for user '.*'\. +Reason: The password .* has expired"),
    18488: (Kind.REFUSED, r"Login failed for user '.*'\. +Reason: The password .* must be changed"),
    18456: (Kind.REFUSED, r"Login failed for user"),
    # permissions
    229: (Kind.RIGHT, r"The [A-Z ]+ permission was denied on the object"),
    230: (Kind.RIGHT, r"The [A-Z ]+ permission was denied on the column"),
    262: (Kind.RIGHT, r"[A-Z ]+ permission denied in database"),
    297: (Kind.RIGHT, r"The user does not have permission to perform this action"),
    300: (Kind.RIGHT, r"[A-Z ]+ permission was denied on object 'server'"),
    # the message or the table
    OLD_LEVEL: (Kind.LASTING, r"Incorrect syntax near"),
    207: (Kind.NO_COLUMN, r"Invalid column name"),
    208: (Kind.NO_TABLE, r"Invalid object name"),
    2760: (Kind.NO_SCHEMA, r"The specified schema name .* either does not exist or"),
    331: (Kind.LASTING, r"The target table '.*' of the OUTPUT INTO .* any enabled triggers"),
    332: (Kind.LASTING, r"The target table '.*' of the OUTPUT INTO .* on either side"),
    333: (Kind.LASTING, r"The target table '.*' of the OUTPUT INTO .* any enabled check"),
    334: (Kind.LASTING, r"The target table '.*' of the DML statement .* any enabled triggers"),
    515: (Kind.LASTING, r"Cannot insert the value NULL into column"),
    547: (Kind.LASTING, r"The [A-Z ]+ statement conflicted with the"),
    2601: (Kind.DUPLICATE, r"Cannot insert duplicate key row"),
    2627: (Kind.DUPLICATE, r"Violation of (?:PRIMARY|UNIQUE) KEY constraint"),
    2628: (Kind.LASTING, r"String or binary data would be truncated"),
    2714: (Kind.LASTING, r"There is already an object named"),
    8622: (Kind.LASTING, r"Query processor could not produce a query plan because of the hints"),
    51901: (Kind.LASTING, r"characters of Headers do not fit"),
}
# fmt: on


def number_of(text: str) -> int | None:
    """Return the number of an English sentence of the server; None for one that is not known."""
    return next((number for number, (_, words) in KNOWN.items() if re.match(words, text)), None)


def kind_of(number: int | None) -> Kind | None:
    """Return what an error means; None for a number that is not known."""
    known = None if number is None else KNOWN.get(number)
    return None if known is None else known[0]
