"""
The server's error numbers that this package knows, and what each one means for a session.

A driver may leave the number out. So each number here also has the beginning of the server's
sentence, which is English in our sessions. The numbers from 51000 on are thrown by statements of
this package.

The numbers were compared with the transient errors of Entity Framework Core. Some numbers of that
framework are left out, because they belong to features that a table queue does not use: snapshots,
tables in memory, replication, full text, external scripts and the management of availability
groups.
"""

from __future__ import annotations

import re

from sqlq_spark import errors

# A pattern that matches nothing. Errors of the network have it, because each driver reports them in
# its own words and not in those of the server.
NO_MESSAGE = r"(?!)"

# Class of the error → number → beginning of the sentence. The first match counts, so 18401 stands
# before 18456. The class decides whether another attempt is made: see sessions.py.
KNOWN: dict[type[errors.DatabaseFailure], dict[int, str]] = {
    errors.ConnectionLost: {
        # the network
        64: NO_MESSAGE,
        121: NO_MESSAGE,
        233: NO_MESSAGE,
        10053: NO_MESSAGE,
        10054: NO_MESSAGE,
        10060: NO_MESSAGE,
        # the server starts, stops or is paused
        596: r"Cannot continue the execution because the session is in the kill state",
        6005: r"SHUTDOWN is in progress",
        17142: r"SQL Server service has been paused",
        17187: r"SQL Server is not ready to accept new client connections",
        17197: r"Login failed due to timeout",
        18401: r"Login failed for user '.*'\. +Reason: Server is in script upgrade mode",
        # the database starts, recovers or moves to another replica
        615: r"Could not find database ID \d+, name",
        921: r"Database '.*' has not been recovered yet",
        922: r"Database '.*' is being recovered",
        927: r"Database '.*' cannot be opened\. It is in the middle of a restore",
        941: r"Database '.*' cannot be opened because it is not started",
        952: r"Database '.*' is in transition",
        983: r"Unable to access availability database '.*' because the database replica",
        988: r"Unable to access database '.*' because it lacks a quorum",
        4221: r"Login to read-secondary failed due to long wait",
        40540: r"Transaction was aborted as database is moved to read-only mode",
        # Azure moves the database, or limits sessions
        10928: r"Resource ID ?: ?\d+\. The .* limit for the database is",
        10929: r"Resource ID ?: ?\d+\. The .* minimum guarantee is",
        10930: r"The service is currently too busy",
        10936: r"Resource ID ?: ?\d+\. The request limit for the elastic pool is",
        40143: r"The service has encountered an error processing your request",
        40197: r"The service has encountered an error processing your request",
        40501: r"The service is currently busy",
        40549: r"Session is terminated because you have a long-running transaction",
        40550: r"The session has been terminated because it has acquired too many locks",
        40551: r"The session has been terminated because of excessive TEMPDB usage",
        40552: r"The session has been terminated because of excessive transaction log",
        40553: r"The session has been terminated because of excessive memory usage",
        40613: r"Database '.*' on server '.*' is not currently available",
        40642: r"The server is currently too busy",
        42108: r"Can not connect to the SQL pool since it is paused",
        42109: r"The SQL pool is warming up",
        49802: r"Database is unavailable at the moment",
        49918: r"(?:Cannot process request\. )?Not enough resources to process request",
        49919: r"Cannot process create or update request",
        49920: r"Cannot process request\. Too many operations in progress",
        # the transaction is gone, but the server has reported no error
        3902: r"The COMMIT TRANSACTION request has no corresponding",
        51900: r"the transaction is gone",
    },
    errors.ReadOnly: {
        976: r"The target database, '.*', is participating in an availability group",
        978: r"The target database \('.*'\) is in an availability group",
        3906: r"Failed to update database \".*\" because the database is read-only",
    },
    errors.Deadlock: {
        1205: r"Transaction \(Process ID \d+\) was deadlocked",
        51003: r"sp_getapplock returned -3$",
    },
    errors.LockTimedOut: {
        1222: r"Lock request time out period exceeded",
        51001: r"sp_getapplock returned -1$",
    },
    errors.TimedOut: {
        51002: r"sp_getapplock returned -2$",
        -2: NO_MESSAGE,
    },
    errors.ServerShort: {
        701: r"There is insufficient system memory",
        802: r"There is insufficient memory available in the buffer pool",
        1101: r"Could not allocate a new page for database",
        1105: r"Could not allocate space for object",
        1203: r"Process ID \d+ attempted to unlock a resource it does not own",
        1204: r"The instance of the SQL Server Database Engine cannot obtain a LOCK",
        3966: r"Transaction is rolled back when accessing version store",
        8628: r"A time ?out occurred while waiting to optimize the query",
        8645: r"A time ?out occurred while waiting for memory resources",
        8651: r"Could not perform the operation because the requested memory grant",
        40544: r"The database has reached its size quota",
    },
    errors.LogFull: {9002: r"The transaction log for database '.*' is full"},
    errors.DatabaseNotFound: {
        911: r"Database '.*' does not exist\. Make sure",
        4060: r"Cannot open database \".*\" requested by the login",
        4064: r"Cannot open user default database",
    },
    errors.LoginRefused: {
        18452: r"Login failed\. The login is from an untrusted domain",
        18487: r"Login failed for user '.*'\. +Reason: The password .* has expired",
        18488: r"Login failed for user '.*'\. +Reason: The password .* must be changed",
        18456: r"Login failed for user",
    },
    errors.RightMissing: {
        229: r"The [A-Z ]+ permission was denied on the object",
        230: r"The [A-Z ]+ permission was denied on the column",
        262: r"[A-Z ]+ permission denied in database",
        297: r"The user does not have permission to perform this action",
        300: r"[A-Z ]+ permission was denied on object 'server'",
        916: r"The server principal \".*\" is not able to access the database",
        # errors of DDL, which may also mean that the object does not exist
        1088: r"Cannot find the object \".*\" because it does not exist or you do not have",
        3701: r"Cannot drop the .* '.*', because it does not exist or you do not have",
        4902: r"Cannot find the object \".*\" because it does not exist or you do not have",
        15151: r"Cannot \w+ the .* '.*', because it does not exist or you do not have",
        15247: r"User does not have permission to perform this action",
    },
    errors.StatementRefused: {
        102: r"Incorrect syntax near",
        331: r"The target table '.*' of the OUTPUT INTO .* any enabled triggers",
        332: r"The target table '.*' of the OUTPUT INTO .* on either side",
        333: r"The target table '.*' of the OUTPUT INTO .* any enabled check",
        334: r"The target table '.*' of the DML statement .* any enabled triggers",
        515: r"Cannot insert the value NULL into column",
        547: r"The [A-Z ]+ statement conflicted with the",
        2628: r"String or binary data would be truncated",
        2714: r"There is already an object named",
        # a trigger, or a statement in a trigger, has ended the transaction
        3609: r"The transaction ended in the trigger",
        3616: r"An error was raised during trigger execution",
        3930: r"The current transaction cannot be committed and cannot support",
        3998: r"Uncommittable transaction is detected at the end of the batch",
        8622: r"Query processor could not produce a query plan because of the hints",
        51901: r"characters of Headers do not fit",
    },
    errors.NotAQueue: {207: r"Invalid column name"},
    errors.QueueNotFound: {208: r"Invalid object name"},
    errors.SchemaNotFound: {2760: r"The specified schema name .* either does not exist or"},
    errors.ReceiptExists: {
        2601: r"Cannot insert duplicate key row",
        2627: r"Violation of (?:PRIMARY|UNIQUE) KEY constraint",
    },
}
ERRORS_BY_NUMBER: dict[int | None, type[errors.DatabaseFailure]] = {
    number: kind for kind, rows in KNOWN.items() for number in rows
}
SENTENCES = {number: words for rows in KNOWN.values() for number, words in rows.items()}


def number_of(text: str) -> int | None:
    """Return the error number of an English sentence of the server, or None if not known."""
    return next((number for number, words in SENTENCES.items() if re.match(words, text)), None)
