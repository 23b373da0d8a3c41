"""
Texts of `sys.messages`, as SQL Server documents them, and the error that each one becomes.

Names and numbers are filled in. The texts are facts of the server's interface. A driver that leaves
out the number is understood only by them.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlq_spark import errors

from .tokens import Message


@dataclass(frozen=True, kw_only=True)
class Row:
    """An error of the server."""

    message: Message
    statement: type[errors.DatabaseFailure]  # what it becomes during a statement
    login: type[errors.DatabaseFailure]  # what it becomes while a session is opened

    @property
    def number(self) -> int:
        """Its number."""
        return self.message.number


def rows(
    statement: type[errors.DatabaseFailure],
    login: type[errors.DatabaseFailure],
    *found: tuple[int, int, str],
) -> list[Row]:
    """Return rows of one kind; each has its number, severity and text."""
    return [
        Row(message=Message(number, text, severity), statement=statement, login=login)
        for number, severity, text in found
    ]


LOST, FAILED = errors.ConnectionLost, errors.NotReachable
AZURE = "The service has encountered an error processing your request. Please try again."
LIMITS = "See 'http://go.microsoft.com/fwlink/?LinkId=267637' for assistance."
SPACE = (
    "Create the necessary space by dropping objects in the filegroup, adding additional files to "
    "the filegroup, or setting autogrowth on for existing files in the filegroup."
)
INTENT = "For more information about application intent, see SQL Server Books Online."

# fmt: off
MESSAGES = [
    # the server starts, stops or is paused
    *rows(
        LOST, LOST,
        (596, 21, "Cannot continue the execution because the session is in the kill state."),
        (6005, 10 + 4, "SHUTDOWN is in progress."),
        (17142, 14, "SQL Server service has been paused. No new connections will be allowed. To resume the service, use SQL Computer Manager or the Services application in Control Panel."),
        (17187, 16, "SQL Server is not ready to accept new client connections. Wait a few minutes before trying again. If you have access to the error log, look for the informational message that indicates that SQL Server is ready before trying to connect again."),
        (17197, 16, "Login failed due to timeout; the connection has been closed. This error may indicate heavy server load. Reduce the load on the server and retry login."),
        (18401, 14, "Login failed for user 'bo'. Reason: Server is in script upgrade mode. Only administrator can connect at this time."),
    ),
    # the database starts, recovers or moves to another replica
    *rows(
        LOST, LOST,
        (921, 14, "Database 'shop' has not been recovered yet. Wait and try again."),
        (922, 14, "Database 'shop' is being recovered. Waiting until recovery is finished."),
        (927, 14, "Database 'shop' cannot be opened. It is in the middle of a restore."),
        (941, 14, "Database 'shop' cannot be opened because it is not started. Retry when the database is started."),
        (952, 16, "Database 'shop' is in transition. Try the statement later."),
        (983, 14, "Unable to access availability database 'shop' because the database replica is not in the PRIMARY or SECONDARY role. Connections to an availability database is permitted only when the database replica is in the PRIMARY or SECONDARY role. Try the operation again later."),
        (988, 14, "Unable to access database 'shop' because it lacks a quorum of nodes for high availability. Try the operation again later."),
        (4221, 16, "Login to read-secondary failed due to long wait on 'HADR_DATABASE_WAIT_FOR_TRANSITION_TO_VERSIONING'. The replica is not available for login because row versions are missing for transactions that were in-flight when the replica was recycled."),
        (40540, 16, "Transaction was aborted as database is moved to read-only mode. This is a temporary situation and please retry the operation."),
    ),
    # a replica that takes no writes
    *rows(
        errors.ReadOnly, errors.ReadOnly,
        (976, 14, "The target database, 'shop', is participating in an availability group and is currently not accessible for queries. Either data movement is suspended or the availability replica is not enabled for read access."),
        (978, 14, f"The target database ('shop') is in an availability group and is currently accessible for connections when the application intent is set to read only. {INTENT}"),
        (3906, 16, 'Failed to update database "shop" because the database is read-only.'),
    ),
    # Azure moves the database, or limits sessions
    *rows(
        LOST, LOST,
        (10928, 16, f"Resource ID: 1. The request limit for the database is 90 and has been reached. {LIMITS}"),
        (10929, 16, f"Resource ID: 1. The request minimum guarantee is 0, maximum limit is 90 and the current usage for the database is 87. However, the server is currently too busy to support requests greater than 0 for this database. {LIMITS}"),
        (10930, 16, "The service is currently too busy. Please try again later."),
        (10936, 16, f"Resource ID : 1. The request limit for the elastic pool is 200 and has been reached. {LIMITS}"),
        (40143, 16, AZURE),
        (40197, 17, f"{AZURE} Error code 4815."),
        (40501, 20, "The service is currently busy. Retry the request after 10 seconds. Incident ID: 1. Code: 2."),
        (40549, 16, "Session is terminated because you have a long-running transaction. Try shortening your transaction."),
        (40550, 16, "The session has been terminated because it has acquired too many locks. Try reading or modifying fewer rows in a single transaction."),
        (40551, 16, "The session has been terminated because of excessive TEMPDB usage. Try modifying your query to reduce the temporary table space usage."),
        (40552, 16, "The session has been terminated because of excessive transaction log space usage. Try modifying fewer rows in a single transaction."),
        (40553, 16, "The session has been terminated because of excessive memory usage. Try modifying your query to process fewer rows."),
        (40613, 17, "Database 'shop' on server 'x' is not currently available. Please retry the connection later. If the problem persists, contact customer support, and provide them the session tracing ID of '1'."),
        (40642, 17, "The server is currently too busy. Please try again later."),
        (49802, 16, "Database is unavailable at the moment, please retry connection at later time."),
        (49918, 16, "Cannot process request. Not enough resources to process request. The service is currently busy. Please retry the request later."),
        (49919, 16, 'Cannot process create or update request. Too many create or update operations in progress for subscription "1".'),
        (49920, 16, 'Cannot process request. Too many operations in progress for subscription "1".'),
    ),
    # the transaction is gone, and the server had reported no error
    *rows(
        LOST, LOST,
        (3902, 16, "The COMMIT TRANSACTION request has no corresponding BEGIN TRANSACTION."),
        (51900, 16, "the transaction is gone"),
    ),
    # other sessions are in the way: the transaction runs again
    *rows(
        errors.Deadlock, FAILED,
        (1205, 13, "Transaction (Process ID 61) was deadlocked on lock resources with another process and has been chosen as the deadlock victim. Rerun the transaction."),
        (51003, 16, "sp_getapplock returned -3"),
    ),
    *rows(
        errors.LockTimedOut, FAILED,
        (1222, 16, "Lock request time out period exceeded."),
        (51001, 16, "sp_getapplock returned -1"),
    ),
    *rows(errors.TimedOut, FAILED, (51002, 16, "sp_getapplock returned -2")),
    # the server is short of something: the transaction runs again
    *rows(
        errors.ServerShort, FAILED,
        (701, 17, "There is insufficient system memory in resource pool 'default' to run this query."),
        (802, 17, "There is insufficient memory available in the buffer pool."),
        (1101, 17, f"Could not allocate a new page for database 'shop' because of insufficient disk space in filegroup 'PRIMARY'. {SPACE}"),
        (1105, 17, f"Could not allocate space for object 'dbo.orders' in database 'shop' because the 'PRIMARY' filegroup is full. {SPACE}"),
        (1204, 19, "The instance of the SQL Server Database Engine cannot obtain a LOCK resource at this time. Rerun your statement when there are fewer active users. Ask the database administrator to check the lock and memory configuration for this instance, or to check for long-running transactions."),
        (3966, 17, "Transaction is rolled back when accessing version store. It was earlier marked as victim when the version store was shrunk due to insufficient space in tempdb."),
        (8628, 17, "A time out occurred while waiting to optimize the query. Rerun the query."),
        (8645, 17, "A timeout occurred while waiting for memory resources to execute the query in resource pool 'default' (2). Rerun the query."),
        (8651, 17, "Could not perform the operation because the requested memory grant was not available in resource pool 'default' (2). Rerun the query, reduce the query load, or check resource governor configuration setting."),
        (40544, 17, "The database has reached its size quota. Partition or delete data, drop indexes, or consult the documentation for possible resolutions."),
    ),
    *rows(errors.LogFull, FAILED, (9002, 17, "The transaction log for database 'shop' is full due to 'LOG_BACKUP'.")),
    # the login; a database that was reached before is waited for
    *rows(
        errors.StatementRefused, errors.DatabaseNotFound,
        (911, 16, "Database 'shop' does not exist. Make sure that the name is entered correctly."),
        (4060, 11, 'Cannot open database "shop" requested by the login. The login failed.'),
    ),
    *rows(
        errors.StatementRefused, errors.LoginRefused,
        (18452, 14, "Login failed. The login is from an untrusted domain and cannot be used with Integrated authentication."),
        (18456, 14, "Login failed for user 'bo'."),
        (18487, 14, "Login failed for user 'bo'.  Reason: The password of the account has expired."),
        (18488, 14, "Login failed for user 'bo'.  Reason: The password of the account must be changed."),
    ),
    # permissions
    *rows(
        errors.RightMissing, FAILED,
        (229, 14, "The SELECT permission was denied on the object 'orders', database 'shop', schema 'dbo'."),
        (230, 14, "The SELECT permission was denied on the column 'Body' of the object 'orders', database 'shop', schema 'dbo'."),
        (262, 14, "CREATE TABLE permission denied in database 'shop'."),
        (297, 16, "The user does not have permission to perform this action."),
        (300, 14, "VIEW SERVER STATE permission was denied on object 'server', database 'master'."),
    ),
    # the message or the table: another attempt would fail as well
    *rows(errors.QueueNotFound, FAILED, (208, 16, "Invalid object name 'dbo.orders'.")),
    *rows(errors.NotAQueue, FAILED, (207, 16, "Invalid column name 'Headers'.")),
    *rows(errors.SchemaNotFound, FAILED, (2760, 16, 'The specified schema name "sales" either does not exist or you do not have permission to use it.')),
    *rows(
        errors.StatementRefused, FAILED,
        (102, 15, "Incorrect syntax near 'orders'."),
        (331, 15, "The target table 'dbo.orders' of the OUTPUT INTO clause cannot have any enabled triggers."),
        (332, 15, "The target table 'dbo.orders' of the OUTPUT INTO clause cannot be on either side of a (primary key, foreign key) relationship. Found reference constraint 'FK_audit'."),
        (333, 15, "The target table 'dbo.orders' of the OUTPUT INTO clause cannot have any enabled check constraints or any enabled rules. Found check constraint or rule 'CK_size'."),
        (334, 16, "The target table 'dbo.orders' of the DML statement cannot have any enabled triggers if the statement contains an OUTPUT clause without INTO clause."),
        (515, 16, "Cannot insert the value NULL into column 'Headers', table 'shop.dbo.orders'; column does not allow nulls. INSERT fails."),
        (547, 16, 'The INSERT statement conflicted with the CHECK constraint "CK_size". The conflict occurred in database "shop", table "dbo.orders", column \'Body\'.'),
        (2601, 14, "Cannot insert duplicate key row in object 'dbo.orders' with unique index 'Index_Id'. The duplicate key value is (1)."),
        (2627, 14, "Violation of PRIMARY KEY constraint 'PK_orders'. Cannot insert duplicate key in object 'dbo.orders'. The duplicate key value is (1)."),
        (2628, 16, "String or binary data would be truncated in table 'shop.dbo.orders', column 'ReplyToAddress'. Truncated value: 'a'."),
        (2714, 16, "There is already an object named 'orders' in the database."),
        (8622, 16, "Query processor could not produce a query plan because of the hints defined in this query. Resubmit the query without specifying any hints and without using SET FORCEPLAN."),
        (51901, 16, "characters of Headers do not fit"),
    ),
]
# fmt: on
