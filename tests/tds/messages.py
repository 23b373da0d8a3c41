"""
Texts of `sys.messages`, as SQL Server documents them, by the error that each one becomes.

Names and numbers are filled in. The texts are facts of the server's interface. A driver that leaves
out the number is understood only by them.
"""

from sqlq_spark import errors

MESSAGES: dict[type[errors.DatabaseFailure], dict[int, str]] = {
    errors.ConnectionLost: {
        596: "Cannot continue the execution because the session is in the kill state.",
        6005: "SHUTDOWN is in progress.",
        17142: "SQL Server service has been paused. No new connections will be allowed. To resume the service, use SQL Computer Manager or the Services application in Control Panel.",
        17187: "SQL Server is not ready to accept new client connections. Wait a few minutes before trying again. If you have access to the error log, look for the informational message that indicates that SQL Server is ready before trying to connect again.",
        17197: "Login failed due to timeout; the connection has been closed. This error may indicate heavy server load. Reduce the load on the server and retry login.",
        18401: "Login failed for user 'bo'. Reason: Server is in script upgrade mode. Only administrator can connect at this time.",
        921: "Database 'shop' has not been recovered yet. Wait and try again.",
        922: "Database 'shop' is being recovered. Waiting until recovery is finished.",
        927: "Database 'shop' cannot be opened. It is in the middle of a restore.",
        941: "Database 'shop' cannot be opened because it is not started. Retry when the database is started.",
        952: "Database 'shop' is in transition. Try the statement later.",
        983: "Unable to access availability database 'shop' because the database replica is not in the PRIMARY or SECONDARY role. Connections to an availability database is permitted only when the database replica is in the PRIMARY or SECONDARY role. Try the operation again later.",
        988: "Unable to access database 'shop' because it lacks a quorum of nodes for high availability. Try the operation again later.",
        615: "Could not find database ID 5, name 'shop'. The database may be offline. Wait a few minutes and try again.",
        4221: "Login to read-secondary failed due to long wait on 'HADR_DATABASE_WAIT_FOR_TRANSITION_TO_VERSIONING'. The replica is not available for login because row versions are missing for transactions that were in-flight when the replica was recycled.",
        40540: "Transaction was aborted as database is moved to read-only mode. This is a temporary situation and please retry the operation.",
        10928: "Resource ID: 1. The request limit for the database is 90 and has been reached. See 'http://go.microsoft.com/fwlink/?LinkId=267637' for assistance.",
        10929: "Resource ID: 1. The request minimum guarantee is 0, maximum limit is 90 and the current usage for the database is 87. However, the server is currently too busy to support requests greater than 0 for this database. See 'http://go.microsoft.com/fwlink/?LinkId=267637' for assistance.",
        10930: "The service is currently too busy. Please try again later.",
        10936: "Resource ID : 1. The request limit for the elastic pool is 200 and has been reached. See 'http://go.microsoft.com/fwlink/?LinkId=267637' for assistance.",
        40143: "The service has encountered an error processing your request. Please try again.",
        40197: "The service has encountered an error processing your request. Please try again. Error code 4815.",
        40501: "The service is currently busy. Retry the request after 10 seconds. Incident ID: 1. Code: 2.",
        40549: "Session is terminated because you have a long-running transaction. Try shortening your transaction.",
        40550: "The session has been terminated because it has acquired too many locks. Try reading or modifying fewer rows in a single transaction.",
        40551: "The session has been terminated because of excessive TEMPDB usage. Try modifying your query to reduce the temporary table space usage.",
        40552: "The session has been terminated because of excessive transaction log space usage. Try modifying fewer rows in a single transaction.",
        40553: "The session has been terminated because of excessive memory usage. Try modifying your query to process fewer rows.",
        40613: "Database 'shop' on server 'x' is not currently available. Please retry the connection later. If the problem persists, contact customer support, and provide them the session tracing ID of '1'.",
        40642: "The server is currently too busy. Please try again later.",
        49802: "Database is unavailable at the moment, please retry connection at later time.",
        42108: "Can not connect to the SQL pool since it is paused. Please resume the SQL pool and try again.",
        42109: "The SQL pool is warming up. Please try again.",
        49918: "Cannot process request. Not enough resources to process request. The service is currently busy. Please retry the request later.",
        49919: 'Cannot process create or update request. Too many create or update operations in progress for subscription "1".',
        49920: 'Cannot process request. Too many operations in progress for subscription "1".',
        3902: "The COMMIT TRANSACTION request has no corresponding BEGIN TRANSACTION.",
        51900: "the transaction is gone",
    },
    errors.ReadOnly: {
        976: "The target database, 'shop', is participating in an availability group and is currently not accessible for queries. Either data movement is suspended or the availability replica is not enabled for read access.",
        978: "The target database ('shop') is in an availability group and is currently accessible for connections when the application intent is set to read only. For more information about application intent, see SQL Server Books Online.",
        3906: 'Failed to update database "shop" because the database is read-only.',
    },
    errors.Deadlock: {
        1205: "Transaction (Process ID 61) was deadlocked on lock resources with another process and has been chosen as the deadlock victim. Rerun the transaction.",
        51003: "sp_getapplock returned -3",
    },
    errors.LockTimedOut: {
        1222: "Lock request time out period exceeded.",
        51001: "sp_getapplock returned -1",
    },
    errors.TimedOut: {
        51002: "sp_getapplock returned -2",
    },
    errors.ServerShort: {
        701: "There is insufficient system memory in resource pool 'default' to run this query.",
        802: "There is insufficient memory available in the buffer pool.",
        1101: "Could not allocate a new page for database 'shop' because of insufficient disk space in filegroup 'PRIMARY'. Create the necessary space by dropping objects in the filegroup, adding additional files to the filegroup, or setting autogrowth on for existing files in the filegroup.",
        1105: "Could not allocate space for object 'dbo.orders' in database 'shop' because the 'PRIMARY' filegroup is full. Create the necessary space by dropping objects in the filegroup, adding additional files to the filegroup, or setting autogrowth on for existing files in the filegroup.",
        1203: "Process ID 61 attempted to unlock a resource it does not own: OBJECT: 5:99:0. Retry the transaction, because this error may be caused by a timing condition. If the problem persists, contact the database administrator.",
        1204: "The instance of the SQL Server Database Engine cannot obtain a LOCK resource at this time. Rerun your statement when there are fewer active users. Ask the database administrator to check the lock and memory configuration for this instance, or to check for long-running transactions.",
        3966: "Transaction is rolled back when accessing version store. It was earlier marked as victim when the version store was shrunk due to insufficient space in tempdb.",
        8628: "A time out occurred while waiting to optimize the query. Rerun the query.",
        8645: "A timeout occurred while waiting for memory resources to execute the query in resource pool 'default' (2). Rerun the query.",
        8651: "Could not perform the operation because the requested memory grant was not available in resource pool 'default' (2). Rerun the query, reduce the query load, or check resource governor configuration setting.",
        40544: "The database has reached its size quota. Partition or delete data, drop indexes, or consult the documentation for possible resolutions.",
    },
    errors.LogFull: {
        9002: "The transaction log for database 'shop' is full due to 'LOG_BACKUP'.",
    },
    errors.DatabaseNotFound: {
        911: "Database 'shop' does not exist. Make sure that the name is entered correctly.",
        4060: 'Cannot open database "shop" requested by the login. The login failed.',
        4064: "Cannot open user default database. Login failed.",
    },
    errors.LoginRefused: {
        18452: "Login failed. The login is from an untrusted domain and cannot be used with Integrated authentication.",
        18456: "Login failed for user 'bo'.",
        18487: "Login failed for user 'bo'.  Reason: The password of the account has expired.",
        18488: "Login failed for user 'bo'.  Reason: The password of the account must be changed.",
    },
    errors.RightMissing: {
        229: "The SELECT permission was denied on the object 'orders', database 'shop', schema 'dbo'.",
        230: "The SELECT permission was denied on the column 'Body' of the object 'orders', database 'shop', schema 'dbo'.",
        262: "CREATE TABLE permission denied in database 'shop'.",
        297: "The user does not have permission to perform this action.",
        916: 'The server principal "bo" is not able to access the database "billing" under the current security context.',
        1088: 'Cannot find the object "dbo.orders" because it does not exist or you do not have permissions.',
        3701: "Cannot drop the table 'dbo.orders', because it does not exist or you do not have permission.",
        4902: 'Cannot find the object "dbo.orders" because it does not exist or you do not have permissions.',
        15151: "Cannot alter the role 'orders_reader', because it does not exist or you do not have permission.",
        15247: "User does not have permission to perform this action.",
        300: "VIEW SERVER STATE permission was denied on object 'server', database 'master'.",
    },
    errors.QueueNotFound: {
        208: "Invalid object name 'dbo.orders'.",
    },
    errors.NotAQueue: {
        207: "Invalid column name 'Headers'.",
    },
    errors.SchemaNotFound: {
        2760: 'The specified schema name "sales" either does not exist or you do not have permission to use it.',
    },
    errors.StatementRefused: {
        102: "Incorrect syntax near 'orders'.",
        331: "The target table 'dbo.orders' of the OUTPUT INTO clause cannot have any enabled triggers.",
        332: "The target table 'dbo.orders' of the OUTPUT INTO clause cannot be on either side of a (primary key, foreign key) relationship. Found reference constraint 'FK_audit'.",
        333: "The target table 'dbo.orders' of the OUTPUT INTO clause cannot have any enabled check constraints or any enabled rules. Found check constraint or rule 'CK_size'.",
        334: "The target table 'dbo.orders' of the DML statement cannot have any enabled triggers if the statement contains an OUTPUT clause without INTO clause.",
        515: "Cannot insert the value NULL into column 'Headers', table 'shop.dbo.orders'; column does not allow nulls. INSERT fails.",
        547: 'The INSERT statement conflicted with the CHECK constraint "CK_size". The conflict occurred in database "shop", table "dbo.orders", column \'Body\'.',
        2601: "Cannot insert duplicate key row in object 'dbo.orders' with unique index 'Index_Id'. The duplicate key value is (1).",
        2627: "Violation of PRIMARY KEY constraint 'PK_orders'. Cannot insert duplicate key in object 'dbo.orders'. The duplicate key value is (1).",
        2628: "String or binary data would be truncated in table 'shop.dbo.orders', column 'ReplyToAddress'. Truncated value: 'a'.",
        2714: "There is already an object named 'orders' in the database.",
        3609: "The transaction ended in the trigger. The batch has been aborted.",
        3616: "An error was raised during trigger execution. The batch has been aborted and the user transaction, if any, has been rolled back.",
        3930: "The current transaction cannot be committed and cannot support operations that write to the log file. Roll back the transaction.",
        3998: "Uncommittable transaction is detected at the end of the batch. The transaction is rolled back.",
        8622: "Query processor could not produce a query plan because of the hints defined in this query. Resubmit the query without specifying any hints and without using SET FORCEPLAN.",
        51901: "characters of Headers do not fit",
    },
}
TEXTS = {number: text for texts in MESSAGES.values() for number, text in texts.items()}
KINDS = {number: kind for kind, texts in MESSAGES.items() for number in texts}
LOGIN = {errors.DatabaseNotFound, errors.LoginRefused}
# number → class of the error: STATEMENT during a statement, OPENING while a session is opened
STATEMENT = {n: errors.StatementRefused if kind in LOGIN else kind for n, kind in KINDS.items()}
OPENED = {*LOGIN, errors.ConnectionLost, errors.ReadOnly}
OPENING = {n: kind if kind in OPENED else errors.NotReachable for n, kind in KINDS.items()}
