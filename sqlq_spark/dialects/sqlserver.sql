-- The statements of the SQL Server dialect: T-SQL of SQL Server 2016 and later, and of Azure SQL.
-- {queue}, {errors}, {delayed}, {subscriptions}: a quoted table. {state}: the quoted schema of the state tables.
-- {…_text}: the same as a text, N'[dbo].[orders]'. {…_name}: a bare name as a text, N'sqlqueue'.
-- {…_catalog}: `[catalog].` of a table in another database, else nothing.
-- @name is a bound value. All run under READ COMMITTED, whatever the database's default is.
--
-- Locks. READPAST passes over locked rows only under READ COMMITTED; where the database reads row
-- versions (READ_COMMITTED_SNAPSHOT, Azure's default) it is refused without READCOMMITTEDLOCK. A locked
-- page it waits for: ROWLOCK, so that no page is locked whole.
-- A statement takes 2,000 messages at most: from 5,000 locks on, SQL Server may lock the whole table,
-- and READPAST does not pass over that.

-- ---------------------------------------------------------------- transactions

-- name: begin
-- An error of any kind undoes the whole transaction; no row counts are sent between results.
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN TRANSACTION

-- name: timeouts
-- And the name that the DBA sees, in sys.dm_exec_sessions.context_info.
-- Written out, not bound: what a parameterised batch sets ends with it. The time of a statement is
-- bounded by the driver; there is no bound for a transaction that does nothing.
SET LOCK_TIMEOUT {milliseconds};
SET CONTEXT_INFO {application}

-- name: commit
COMMIT TRANSACTION

-- name: rollback
-- An error has undone the transaction already, most often.
IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION

-- name: savepoint
-- What fails from here to the release is undone by itself, and the transaction goes on. With
-- XACT_ABORT no error would leave a transaction to go on with.
SET XACT_ABORT OFF;
SAVE TRANSACTION attempt

-- name: release
SET XACT_ABORT ON

-- name: check_deferred
-- Nothing: this database leaves no check until the commit.
SELECT 0 AS deferred

-- name: clock
-- The clock that the peers compare Expires with.
-- Returns: the server's UTC time, datetime
SELECT GETUTCDATE()

-- ---------------------------------------------------------------- installation

-- name: install_lock
-- Two installers at once: the second waits.
-- Locks: application, until the transaction ends.
DECLARE @name nvarchar(255) = N'sqlq_spark install ' + @state_name,
        @got int, @number int, @said nvarchar(100);
EXEC @got = sys.sp_getapplock
     @Resource = @name, @LockMode = N'Exclusive', @LockOwner = N'Transaction';
IF @got < 0
BEGIN
    SELECT @number = 51000 - @got, @said = CONCAT(N'sp_getapplock returned ', @got);
    THROW @number, @said, 1;
END

-- name: state_faults
-- Whose the state schema is and what is in it, where that is not this user's, nor @owner's: whoever
-- owns it, or has put a trigger on a table, decides what runs where a row is written.
-- Returns: fault; a row for each thing that is wrong
SELECT CONCAT(N'schema ', QUOTENAME(s.name), N' belongs to ', QUOTENAME(USER_NAME(s.principal_id)))
       AS fault
  FROM sys.schemas AS s
 WHERE s.name = @state_name
   AND USER_NAME(s.principal_id) <> USER_NAME()
   AND USER_NAME(s.principal_id) <> ISNULL(@owner, USER_NAME())
   AND NOT (USER_NAME(s.principal_id) = N'dbo' AND IS_MEMBER(N'db_owner') = 1)
UNION ALL
SELECT CONCAT(N'table ', QUOTENAME(o.name), N' belongs to ', QUOTENAME(USER_NAME(o.principal_id)))
  FROM sys.objects AS o
 WHERE o.schema_id = SCHEMA_ID(@state_name)
   AND USER_NAME(o.principal_id) <> USER_NAME()
   AND USER_NAME(o.principal_id) <> ISNULL(@owner, USER_NAME())
UNION ALL
SELECT CONCAT(QUOTENAME(o.name), N' is no table')
  FROM sys.objects AS o
 WHERE o.schema_id = SCHEMA_ID(@state_name)
   AND o.type IN ('V', 'SN')
   AND o.name IN (N'version', N'reader', N'task', N'receipt', N'receipt_page', N'outbox',
                  N'outbox_page', N'dispatched')
UNION ALL
SELECT CONCAT(N'table ', QUOTENAME(o.name), N' has the trigger ', QUOTENAME(r.name))
  FROM sys.triggers AS r
  JOIN sys.objects AS o ON o.object_id = r.parent_id
 WHERE o.schema_id = SCHEMA_ID(@state_name)
UNION ALL
SELECT CONCAT(N'table ', QUOTENAME(OBJECT_NAME(d.referencing_id)), N' has a default, a constraint or a',
              N' column that calls ', d.referenced_entity_name)
  FROM sys.sql_expression_dependencies AS d
  JOIN sys.objects AS o ON o.object_id = d.referencing_id
 WHERE o.schema_id = SCHEMA_ID(@state_name)
   AND OBJECTPROPERTY(d.referenced_id, 'IsTable') = 0

-- name: install_schema
IF SCHEMA_ID({state_name}) IS NULL
    EXEC (N'CREATE SCHEMA ' + {state_text})

-- name: install_version
IF OBJECT_ID({state_text} + N'.version', N'U') IS NULL
    CREATE TABLE {state}.version (
        version int NOT NULL PRIMARY KEY
    )

-- name: install_version_row
INSERT INTO {state}.version (version)
SELECT @version
 WHERE NOT EXISTS (SELECT 1 FROM {state}.version WHERE version >= @version)

-- name: install_version_only
-- Older state tables were made current by what came before.
DELETE FROM {state}.version WHERE version < @version

-- name: install_reader
-- One row for each checkpoint. Names are compared byte by byte, as in Python. `login` made it: it tells
-- who, and keeps no one out, which is left to the schema: each domain has one of its own.
IF OBJECT_ID({state_text} + N'.reader', N'U') IS NULL
BEGIN
    CREATE TABLE {state}.reader (
        reader      nvarchar(36)  COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY,
        login       nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL DEFAULT USER_NAME(),
        queue       nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
        driver      nvarchar(36)  COLLATE Latin1_General_100_BIN2 NOT NULL,
        acked_batch bigint        NOT NULL DEFAULT 0 CHECK (acked_batch >= 0),
        plan_batch  bigint        NULL,
        [plan]      nvarchar(max) NULL,
        messages    bigint        NOT NULL DEFAULT 0,
        expired     bigint        NOT NULL DEFAULT 0,
        diverted    bigint        NOT NULL DEFAULT 0,
        forwarded   bigint        NOT NULL DEFAULT 0,
        created     datetime2(3)  NOT NULL DEFAULT SYSUTCDATETIME(),
        seen        datetime2(3)  NOT NULL DEFAULT SYSUTCDATETIME(),
        CHECK (plan_batch > acked_batch),
        CHECK (([plan] IS NULL AND plan_batch IS NULL)
               OR ([plan] IS NOT NULL AND plan_batch IS NOT NULL))
    );
    ALTER TABLE {state}.reader SET (LOCK_ESCALATION = DISABLE);
END

-- name: install_task
-- A row for each number that a task of a stream ever had, to be locked by who is at work on it.
IF OBJECT_ID({state_text} + N'.task', N'U') IS NULL
BEGIN
    CREATE TABLE {state}.task (
        reader nvarchar(36)  COLLATE Latin1_General_100_BIN2 NOT NULL,
        login  nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL DEFAULT USER_NAME(),
        task   int           NOT NULL CHECK (task >= 0),
        PRIMARY KEY (reader, task)
    );
    ALTER TABLE {state}.task SET (LOCK_ESCALATION = DISABLE);
END

-- name: install_receipt
-- What one task took from a queue, in one commit with the delete. Written once, read back only
-- by a replay, deleted by the ack of its batch.
IF OBJECT_ID({state_text} + N'.receipt', N'U') IS NULL
BEGIN
    CREATE TABLE {state}.receipt (
        reader      nvarchar(36)   COLLATE Latin1_General_100_BIN2 NOT NULL,
        login       nvarchar(128)  COLLATE Latin1_General_100_BIN2 NOT NULL DEFAULT USER_NAME(),
        batch       bigint         NOT NULL CHECK (batch > 0),
        task        int            NOT NULL CHECK (task >= 0),
        queue       nvarchar(1000) COLLATE Latin1_General_100_BIN2 NOT NULL,
        messages    bigint         NOT NULL CHECK (messages >= 0),
        expired     bigint         NOT NULL CHECK (expired >= 0),
        diverted    bigint         NOT NULL CHECK (diverted >= 0),
        forwarded   bigint         NOT NULL CHECK (forwarded >= 0),
        bytes       bigint         NOT NULL CHECK (bytes >= 0),
        query_id    nvarchar(36)   COLLATE Latin1_General_100_BIN2 NULL,
        query_batch bigint         NULL,
        settled     bit            NOT NULL DEFAULT 0,
        unpacked    bigint         NOT NULL CHECK (unpacked >= 0),
        payload     varbinary(max) NOT NULL,
        created     datetime2(3)   NOT NULL DEFAULT SYSUTCDATETIME(),
        PRIMARY KEY (reader, batch, task),
        INDEX receipt_query (query_id, query_batch)
    );
    ALTER TABLE {state}.receipt SET (LOCK_ESCALATION = DISABLE);
END

-- name: install_receipt_storage
-- A payload never shares the page of its row: a list of receipts is read without it.
-- Locks:   the whole table, where the option is not set yet.
IF EXISTS (SELECT 1 FROM sys.tables
            WHERE object_id = OBJECT_ID({state_text} + N'.receipt', N'U')
              AND large_value_types_out_of_row = 0)
BEGIN
    DECLARE @table nvarchar(300) = {state_text} + N'.receipt';
    EXEC sys.sp_tableoption @table, 'large value types out of row', '1';
END

-- name: install_receipt_page
-- The payload of a large receipt; in one row here, for a large value costs SQL Server no more.
IF OBJECT_ID({state_text} + N'.receipt_page', N'U') IS NULL
BEGIN
    CREATE TABLE {state}.receipt_page (
        reader  nvarchar(36)   COLLATE Latin1_General_100_BIN2 NOT NULL,
        login   nvarchar(128)  COLLATE Latin1_General_100_BIN2 NOT NULL DEFAULT USER_NAME(),
        batch   bigint         NOT NULL,
        task    int            NOT NULL,
        page    int            NOT NULL,
        payload varbinary(max) NOT NULL,
        PRIMARY KEY (reader, batch, task, page)
    );
    ALTER TABLE {state}.receipt_page SET (LOCK_ESCALATION = DISABLE);
END

-- name: install_receipt_page_storage
IF EXISTS (SELECT 1 FROM sys.tables
            WHERE object_id = OBJECT_ID({state_text} + N'.receipt_page', N'U')
              AND large_value_types_out_of_row = 0)
BEGIN
    DECLARE @table nvarchar(300) = {state_text} + N'.receipt_page';
    EXEC sys.sp_tableoption @table, 'large value types out of row', '1';
END

-- name: install_outbox
-- Messages staged by the tasks of a sink, until the driver dispatches or discards them.
IF OBJECT_ID({state_text} + N'.outbox', N'U') IS NULL
BEGIN
    CREATE TABLE {state}.outbox (
        sink     nvarchar(200)  COLLATE Latin1_General_100_BIN2 NOT NULL,
        login    nvarchar(128)  COLLATE Latin1_General_100_BIN2 NOT NULL DEFAULT USER_NAME(),
        batch    bigint         NOT NULL,
        attempt  nvarchar(36)   COLLATE Latin1_General_100_BIN2 NOT NULL,
        parcel   int            NOT NULL,
        messages bigint         NOT NULL CHECK (messages > 0),
        payload  varbinary(max) NOT NULL,
        created  datetime2(3)   NOT NULL DEFAULT SYSUTCDATETIME(),
        PRIMARY KEY (sink, batch, attempt, parcel)
    );
    ALTER TABLE {state}.outbox SET (LOCK_ESCALATION = DISABLE);
END

-- name: install_outbox_storage
IF EXISTS (SELECT 1 FROM sys.tables
            WHERE object_id = OBJECT_ID({state_text} + N'.outbox', N'U')
              AND large_value_types_out_of_row = 0)
BEGIN
    DECLARE @table nvarchar(300) = {state_text} + N'.outbox';
    EXEC sys.sp_tableoption @table, 'large value types out of row', '1';
END

-- name: install_outbox_page
-- The payload of a large parcel, in one row.
IF OBJECT_ID({state_text} + N'.outbox_page', N'U') IS NULL
BEGIN
    CREATE TABLE {state}.outbox_page (
        sink    nvarchar(200)  COLLATE Latin1_General_100_BIN2 NOT NULL,
        login   nvarchar(128)  COLLATE Latin1_General_100_BIN2 NOT NULL DEFAULT USER_NAME(),
        batch   bigint         NOT NULL,
        attempt nvarchar(36)   COLLATE Latin1_General_100_BIN2 NOT NULL,
        parcel  int            NOT NULL,
        page    int            NOT NULL,
        payload varbinary(max) NOT NULL,
        PRIMARY KEY (sink, batch, attempt, parcel, page)
    );
    ALTER TABLE {state}.outbox_page SET (LOCK_ESCALATION = DISABLE);
END

-- name: install_outbox_page_storage
IF EXISTS (SELECT 1 FROM sys.tables
            WHERE object_id = OBJECT_ID({state_text} + N'.outbox_page', N'U')
              AND large_value_types_out_of_row = 0)
BEGIN
    DECLARE @table nvarchar(300) = {state_text} + N'.outbox_page';
    EXEC sys.sp_tableoption @table, 'large value types out of row', '1';
END

-- name: install_dispatched
-- The dispatch log: the last batch that each sink has sent; null where it has sent none.
IF OBJECT_ID({state_text} + N'.dispatched', N'U') IS NULL
BEGIN
    CREATE TABLE {state}.dispatched (
        sink       nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY,
        login      nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL DEFAULT USER_NAME(),
        batch      bigint        NULL,
        messages   bigint        NOT NULL DEFAULT 0,
        dispatched datetime2(3)  NOT NULL DEFAULT SYSUTCDATETIME()
    );
    ALTER TABLE {state}.dispatched SET (LOCK_ESCALATION = DISABLE);
END

-- name: install_row_security
-- Nothing: the rows of a schema are shared by those who may use it, and each domain has a schema.
SELECT 0 AS row_security

-- name: install_no_policy
-- Nothing, as install_row_security.
SELECT 0 AS row_security

-- name: install_policy
-- Nothing, as install_row_security.
SELECT 0 AS row_security

-- name: install_version_policy
-- Nothing, as install_row_security.
SELECT 0 AS row_security

-- name: version
-- Returns: version int
SELECT version FROM {state}.version

-- name: row_security
-- Whether a table's rows are kept apart for this login: never here.
-- Returns: active bit
SELECT CAST(0 AS bit) AS active
 WHERE @state_name <> @table_name OR @state_name = @table_name

-- name: create_queue
-- As the transport makes it, under the transport's own lock, so that its installer and we wait for
-- one another.
IF OBJECT_ID({queue_text}, N'U') IS NULL
BEGIN
    DECLARE @name nvarchar(255) = {queue_lock},
            @got int, @number int, @said nvarchar(100);
    EXEC @got = sys.sp_getapplock
         @Resource = @name, @LockMode = N'Exclusive', @LockOwner = N'Transaction';
    IF @got < 0
    BEGIN
        SELECT @number = 51000 - @got, @said = CONCAT(N'sp_getapplock returned ', @got);
        THROW @number, @said, 1;
    END;
    BEGIN TRY
        IF OBJECT_ID({queue_text}, N'U') IS NULL
        BEGIN
            CREATE TABLE {queue} (
                Id             uniqueidentifier NOT NULL,
                CorrelationId  varchar(255)     NULL,
                ReplyToAddress varchar(255)     NULL,
                Recoverable    bit              NOT NULL,
                Expires        datetime         NULL,
                Headers        nvarchar(max)    NOT NULL,
                Body           varbinary(max)   NULL,
                RowVersion     bigint           IDENTITY(1,1) NOT NULL
            );
            CREATE NONCLUSTERED INDEX Index_RowVersion ON {queue} (RowVersion ASC);
            CREATE NONCLUSTERED INDEX Index_Expires ON {queue} (Expires)
                   INCLUDE (Id, RowVersion) WHERE Expires IS NOT NULL;
        END;
    END TRY
    BEGIN CATCH
        IF XACT_STATE() = 1
            EXEC sys.sp_releaseapplock @Resource = @name, @LockOwner = N'Transaction';
        THROW;
    END CATCH;
    EXEC sys.sp_releaseapplock @Resource = @name, @LockOwner = N'Transaction';
END

-- name: add_body_string
-- The body as text beside it, as the transport's CreateMessageBodyComputedColumn asks for.
-- Locks:   the whole table, for a moment: the column is computed when it is read.
IF COL_LENGTH({queue_text}, N'BodyString') IS NULL
    ALTER TABLE {queue} ADD BodyString AS CAST(Body AS nvarchar(max))

-- name: create_subscriptions
-- As the transport makes it, under its own lock.
IF OBJECT_ID({subscriptions_text}, N'U') IS NULL
BEGIN
    DECLARE @name nvarchar(255) = {subscriptions_lock},
            @got int, @number int, @said nvarchar(100);
    EXEC @got = sys.sp_getapplock
         @Resource = @name, @LockMode = N'Exclusive', @LockOwner = N'Transaction';
    IF @got < 0
    BEGIN
        SELECT @number = 51000 - @got, @said = CONCAT(N'sp_getapplock returned ', @got);
        THROW @number, @said, 1;
    END;
    BEGIN TRY
        IF OBJECT_ID({subscriptions_text}, N'U') IS NULL
            CREATE TABLE {subscriptions} (
                QueueAddress nvarchar(200) NOT NULL,
                Endpoint     nvarchar(200) NOT NULL,
                Topic        nvarchar(200) NOT NULL,
                PRIMARY KEY CLUSTERED (Endpoint, Topic)
            );
    END TRY
    BEGIN CATCH
        IF XACT_STATE() = 1
            EXEC sys.sp_releaseapplock @Resource = @name, @LockOwner = N'Transaction';
        THROW;
    END CATCH;
    EXEC sys.sp_releaseapplock @Resource = @name, @LockOwner = N'Transaction';
END

-- name: create_delayed
-- Where messages wait until they are due; as the transport makes it, under its own lock.
IF OBJECT_ID({delayed_text}, N'U') IS NULL
BEGIN
    DECLARE @name nvarchar(255) = {delayed_lock},
            @got int, @number int, @said nvarchar(100);
    EXEC @got = sys.sp_getapplock
         @Resource = @name, @LockMode = N'Exclusive', @LockOwner = N'Transaction';
    IF @got < 0
    BEGIN
        SELECT @number = 51000 - @got, @said = CONCAT(N'sp_getapplock returned ', @got);
        THROW @number, @said, 1;
    END;
    BEGIN TRY
        IF OBJECT_ID({delayed_text}, N'U') IS NULL
        BEGIN
            CREATE TABLE {delayed} (
                Headers    nvarchar(max)  NOT NULL,
                Body       varbinary(max) NULL,
                Due        datetime       NOT NULL,
                RowVersion bigint         IDENTITY(1,1) NOT NULL
            );
            CREATE NONCLUSTERED INDEX Index_Due ON {delayed} (Due);
        END;
    END TRY
    BEGIN CATCH
        IF XACT_STATE() = 1
            EXEC sys.sp_releaseapplock @Resource = @name, @LockOwner = N'Transaction';
        THROW;
    END CATCH;
    EXEC sys.sp_releaseapplock @Resource = @name, @LockOwner = N'Transaction';
END

-- name: create_delayed_index
-- Of a table that was there without it.
IF NOT EXISTS (SELECT 1
                 FROM {delayed_catalog}sys.index_columns AS k
                 JOIN {delayed_catalog}sys.columns AS c
                   ON c.object_id = k.object_id AND c.column_id = k.column_id
                WHERE k.object_id = OBJECT_ID({delayed_text}, N'U')
                  AND k.key_ordinal = 1 AND c.name = N'Due')
    CREATE NONCLUSTERED INDEX Index_Due ON {delayed} (Due)

-- name: queue_columns
-- Returns: name, type of each column of a queue, of a varchar with its collation; no row where the
--          table is absent
SELECT c.name,
       CASE WHEN t.name = N'varchar'
            THEN CONCAT(N'varchar COLLATE ', c.collation_name COLLATE DATABASE_DEFAULT)
            ELSE t.name COLLATE DATABASE_DEFAULT END AS type
  FROM {queue_catalog}sys.columns AS c
  JOIN {queue_catalog}sys.types AS t ON t.user_type_id = c.user_type_id
 WHERE c.object_id = OBJECT_ID({queue_text}, N'U')
 ORDER BY c.column_id

-- ---------------------------------------------------------------- the peek loop

-- name: peek
-- How many messages wait, counted up to a limit, and where they can be cut into ranges. What others
-- hold is not counted.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_RowVersion.
-- Returns: messages bigint, last bigint, marks: the RowVersion of every @grain-th message, the first
--          one's among them, separated by commas; null where none waits
DECLARE @marks TABLE (place bigint NOT NULL PRIMARY KEY, seq bigint NOT NULL);
INSERT INTO @marks (place, seq)
SELECT place, seq
  FROM (SELECT seq,
               ROW_NUMBER() OVER (ORDER BY seq) AS place,
               LEAD(seq) OVER (ORDER BY seq) AS following
          FROM (SELECT TOP (@messages) RowVersion AS seq
                  FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
                 WHERE RowVersion >= @first AND RowVersion <= @last
                 ORDER BY RowVersion) AS lowest) AS numbered
 WHERE (place - 1) % @grain = 0 OR following IS NULL;
SELECT MAX(place) AS messages,
       MAX(seq) AS last,
       STUFF((SELECT N',' + CAST(seq AS nvarchar(20))
                FROM @marks
               WHERE (place - 1) % @grain = 0
               ORDER BY place
                 FOR XML PATH('')), 1, 1, N'') AS marks_list
  FROM @marks

-- name: sample
-- What the lowest messages weigh, since when the lowest waits, and how far the queue reaches.
-- Of headers no more than their beginning is read.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_RowVersion.
-- Returns: bytes float, sent (the TimeSent header of the lowest), span bigint
SELECT (SELECT AVG(CAST(bytes AS float))
          FROM (SELECT TOP (50)
                       ISNULL(DATALENGTH(CAST(Headers AS nvarchar(max))) / 2, 0)
                       + ISNULL(DATALENGTH(Body), 0) AS bytes
                  FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
                 WHERE RowVersion >= @first
                 ORDER BY RowVersion) AS lowest) AS bytes,
       (SELECT TOP (1)
               CASE WHEN p.found > 0 AND e.stop - p.found - 24 BETWEEN 1 AND 40
                    THEN SUBSTRING(h.start, p.found + 24, e.stop - p.found - 24) END
          FROM {queue} AS q WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
         CROSS APPLY (SELECT LEFT(CAST(q.Headers AS nvarchar(max)), 16384) AS start) AS h
         CROSS APPLY (SELECT CHARINDEX(N'"NServiceBus.TimeSent":"', h.start) AS found) AS p
         CROSS APPLY (SELECT CHARINDEX(N'"', h.start, p.found + 24) AS stop) AS e
         WHERE q.RowVersion = @first) AS sent,
       (SELECT MAX(RowVersion)
          FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)) - @first + 1 AS span

-- name: top
-- The ends of a queue as they stand now, of what no one holds.
-- Returns: first bigint, last bigint; null where the queue is empty
SELECT MIN(RowVersion) AS first, MAX(RowVersion) AS last
  FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)

-- ---------------------------------------------------------------- receive

-- name: fence
-- A task of a batch that was acknowledged must not touch the queue.
-- Locks:   the reader's row, shared, until commit: the ack waits for us. REPEATABLEREAD locks also
--          where the database reads row versions.
-- Returns: acked_batch bigint, login; no row where the reader is unknown
SELECT acked_batch, login
  FROM {state}.reader WITH (REPEATABLEREAD, ROWLOCK)
 WHERE reader = @reader

-- name: task_lock
-- One attempt of a task at a time; the second waits here, then finds the first one's receipt. A row,
-- for an application lock could be taken by logins that have no right on any table. An update that
-- changes nothing, as lock_reader.
-- Locks:   the row of this number of the reader's tasks, until commit.
-- Returns: one row; none where the number is new
UPDATE {state}.task WITH (REPEATABLEREAD, ROWLOCK)
   SET task = task
OUTPUT CAST(1 AS bit)
 WHERE reader = @reader AND login = @login AND task = @task

-- name: new_task
-- Locks:   the row it writes, until commit; of two attempts the second waits.
INSERT INTO {state}.task (reader, login, task)
SELECT @reader, @login, @task
 WHERE NOT EXISTS (
        SELECT 1
          FROM {state}.task WITH (UPDLOCK, HOLDLOCK, ROWLOCK)
         WHERE reader = @reader AND task = @task)

-- name: find_receipt
-- Returns: payload varbinary; empty where it is in pages; messages, unpacked (bytes) bigint
SELECT payload, messages, unpacked
  FROM {state}.receipt
 WHERE reader = @reader AND login = @login AND batch = @batch AND task = @task

-- name: receipt_pages
-- Returns: payload varbinary, in order
SELECT payload
  FROM {state}.receipt_page
 WHERE reader = @reader AND login = @login AND batch = @batch AND task = @task
 ORDER BY page

-- name: receive
-- Take the lowest messages of a range that no one else holds, up to a count and a weight;
-- at least one, however heavy, but none larger than @largest. Headers are weighed by their UTF-16 units: a byte each, mostly.
-- Locks:   an update lock for each looked at, until commit. Never waits for a row.
-- Index:   Index_RowVersion, clustered or not; FORCESEEK, or stale statistics may choose a scan that
--          locks the whole range.
-- Returns: id binary in SQL Server's byte order, expires datetime, expired bit, headers as UTF-16
--          bytes (a lone surrogate must not stop the driver), body, seq bigint; no order promised
WITH lowest AS (
    SELECT TOP (CASE WHEN @messages < 2000 THEN @messages ELSE 2000 END)
           Id, Expires, Headers, Body, RowVersion,
           ISNULL(DATALENGTH(CAST(Headers AS nvarchar(max))) / 2, 0)
           + ISNULL(DATALENGTH(Body), 0) AS bytes
      FROM {queue} WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
     WHERE RowVersion >= @first AND RowVersion < @stop
       AND ISNULL(DATALENGTH(CAST(Headers AS nvarchar(max))) / 2, 0)
           + ISNULL(DATALENGTH(Body), 0) <= @largest
     ORDER BY RowVersion
), message AS (
    SELECT Id, Expires, Headers, Body, RowVersion,
           SUM(bytes) OVER (ORDER BY RowVersion ROWS UNBOUNDED PRECEDING) - bytes AS before
      FROM lowest
)
DELETE FROM message
OUTPUT CAST(deleted.Id AS binary(16)) AS id,
       deleted.Expires AS expires,
       CAST(CASE WHEN deleted.Expires <= GETUTCDATE() THEN 1 ELSE 0 END AS bit) AS expired,
       CAST(CAST(deleted.Headers AS nvarchar(max)) AS varbinary(max)) AS headers,
       deleted.Body AS body,
       deleted.RowVersion AS seq
 WHERE before < @bytes
OPTION (MAXDOP 1)

-- name: receive_body_string
-- As receive, from a table that has the column, which is weighed too.
-- Returns: also bodystring as UTF-16 bytes
WITH lowest AS (
    SELECT TOP (CASE WHEN @messages < 2000 THEN @messages ELSE 2000 END)
           Id, Expires, Headers, Body, BodyString, RowVersion,
           ISNULL(DATALENGTH(CAST(Headers AS nvarchar(max))) / 2, 0)
           + ISNULL(DATALENGTH(Body), 0)
           + ISNULL(DATALENGTH(BodyString) / 2, 0) AS bytes
      FROM {queue} WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
     WHERE RowVersion >= @first AND RowVersion < @stop
       AND ISNULL(DATALENGTH(CAST(Headers AS nvarchar(max))) / 2, 0)
           + ISNULL(DATALENGTH(Body), 0)
           + ISNULL(DATALENGTH(BodyString) / 2, 0) <= @largest
     ORDER BY RowVersion
), message AS (
    SELECT Id, Expires, Headers, Body, BodyString, RowVersion,
           SUM(bytes) OVER (ORDER BY RowVersion ROWS UNBOUNDED PRECEDING) - bytes AS before
      FROM lowest
)
DELETE FROM message
OUTPUT CAST(deleted.Id AS binary(16)) AS id,
       deleted.Expires AS expires,
       CAST(CASE WHEN deleted.Expires <= GETUTCDATE() THEN 1 ELSE 0 END AS bit) AS expired,
       CAST(CAST(deleted.Headers AS nvarchar(max)) AS varbinary(max)) AS headers,
       deleted.Body AS body,
       CAST(deleted.BodyString AS varbinary(max)) AS bodystring,
       deleted.RowVersion AS seq
 WHERE before < @bytes
OPTION (MAXDOP 1)

-- name: take
-- Take chosen messages, those of them that no one else holds; @seqs is a list, as JSON.
-- Locks:   an update lock for each, until commit. Never waits for a row.
-- Index:   Index_RowVersion, a seek for each.
-- Returns: as receive; no order promised
WITH message AS (
    SELECT Id, Expires, Headers, Body, RowVersion
      FROM {queue} WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
     WHERE RowVersion IN (SELECT CAST(value AS bigint) FROM OPENJSON(@seqs))
)
DELETE FROM message
OUTPUT CAST(deleted.Id AS binary(16)) AS id,
       deleted.Expires AS expires,
       CAST(CASE WHEN deleted.Expires <= GETUTCDATE() THEN 1 ELSE 0 END AS bit) AS expired,
       CAST(CAST(deleted.Headers AS nvarchar(max)) AS varbinary(max)) AS headers,
       deleted.Body AS body,
       deleted.RowVersion AS seq
OPTION (LOOP JOIN, MAXDOP 1)

-- name: patience
-- How long a destination that others lock is waited for, from here to the end of the transaction.
-- Written out, as in timeouts.
SET LOCK_TIMEOUT {milliseconds}

-- name: lock_destination
-- SQL Server has no lock of a table that the right to INSERT gives: what an INSERT would run is looked
-- at before it and after it.
SET NOCOUNT ON

-- name: destinations
-- Tables that messages are to go to: whether they are queues, and whose. Asked before the INSERT and
-- after it: no right of a sender locks a table against a change.
-- Trusted are this login, dbo, and the owner of the queue that is read, if one is.
-- Returns: for each table that is there: place bigint, in the list that was given; identity bigint;
--          catalog, here bit (in this database), schema and table; missing, the first column that it
--          lacks, or null; may_insert bit; owner; same_owner bit, as the queue that is read; settled
--          bit: never; plain bit: its owner is trusted, and so are its triggers
WITH asked AS (
    SELECT w.place, w.name, w.columns,
           OBJECT_ID(w.name, N'U') AS id,
           CASE WHEN w.catalog = DB_NAME() THEN NULL ELSE w.catalog END AS catalog,
           CASE WHEN w.catalog IS NULL OR w.catalog = DB_NAME()
                THEN OBJECTPROPERTY(OBJECT_ID(w.name, N'U'), N'OwnerId') END AS owner_id,
           OBJECTPROPERTY(OBJECT_ID(@source_table, N'U'), N'OwnerId') AS source_owner
      FROM OPENJSON(@places) WITH (place bigint '$.place', name nvarchar(600) '$.name',
                                   catalog nvarchar(128) '$.catalog',
                                   columns nvarchar(max) '$.columns' AS JSON) AS w
     WHERE OBJECT_ID(w.name, N'U') IS NOT NULL
)
SELECT a.place,
       CAST(a.id AS bigint) AS [identity],
       COALESCE(a.catalog, DB_NAME()) AS catalog,
       CAST(CASE WHEN a.catalog IS NULL THEN 1 ELSE 0 END AS bit) AS here,
       COALESCE(CASE WHEN a.catalog IS NULL THEN OBJECT_SCHEMA_NAME(a.id) END, PARSENAME(a.name, 2))
       AS [schema],
       COALESCE(CASE WHEN a.catalog IS NULL THEN OBJECT_NAME(a.id) END, PARSENAME(a.name, 1))
       AS [table],
       (SELECT MIN(w.value)
          FROM OPENJSON(a.columns) AS w
         WHERE COL_LENGTH(a.name, w.value) IS NULL) AS missing,
       CAST(COALESCE(HAS_PERMS_BY_NAME(a.name, N'OBJECT', N'INSERT'), 0) AS bit) AS may_insert,
       COALESCE(USER_NAME(a.owner_id), N'an owner that cannot be seen') AS owner,
       CAST(CASE WHEN a.owner_id = a.source_owner THEN 1 ELSE 0 END AS bit) AS same_owner,
       CAST(0 AS bit) AS settled,
       CAST(CASE WHEN a.owner_id IN (1, DATABASE_PRINCIPAL_ID(), COALESCE(a.source_owner, 1))
                 THEN 1 ELSE 0 END AS bit) AS plain
  FROM asked AS a

-- name: destination_code
-- The first thing that an INSERT into a table of an owner who is not trusted would run. Such a table
-- must show its definition, and must not run code at all: only expressions of the server's own
-- functions. @places are names; a table of another database is told as such.
-- Returns: identity bigint, code; no row where nothing was found
WITH part AS (
    SELECT CAST(OBJECT_ID(w.name, N'U') AS bigint) AS place,
           OBJECT_ID(w.name, N'U') AS id,
           w.name,
           CASE WHEN w.catalog IS NULL OR w.catalog = DB_NAME() THEN 1 ELSE 0 END AS here,
           OBJECTPROPERTY(OBJECT_ID(w.name, N'U'), N'OwnerId') AS owner_id
      FROM OPENJSON(@places) WITH (name nvarchar(600) '$.name',
                                   catalog nvarchar(128) '$.catalog') AS w
     WHERE OBJECT_ID(w.name, N'U') IS NOT NULL
), found AS (
    SELECT place, 1 AS rank, NULL AS owner_id,
           CAST(N'it is in another database, whose triggers cannot be seen from here' AS nvarchar(400))
           AS what
      FROM part
     WHERE here = 0
    UNION ALL
    SELECT p.place, 2, p.owner_id,
           N'its triggers cannot be seen without VIEW DEFINITION on it'
      FROM part AS p
     WHERE COALESCE(HAS_PERMS_BY_NAME(p.name, N'OBJECT', N'VIEW DEFINITION'), 0) = 0
    UNION ALL
    SELECT p.place, 3, p.owner_id, CONCAT(N'trigger ', QUOTENAME(t.name))
      FROM part AS p
      JOIN sys.triggers AS t ON t.parent_id = p.id
     WHERE t.is_disabled = 0 AND t.is_ms_shipped = 0
       AND EXISTS (SELECT 1 FROM sys.trigger_events AS e WHERE e.object_id = t.object_id)
    UNION ALL
    SELECT p.place, 4, p.owner_id, CONCAT(N'security policy ', QUOTENAME(o.name))
      FROM part AS p
      JOIN sys.security_predicates AS s ON s.target_object_id = p.id
      JOIN sys.objects AS o ON o.object_id = s.object_id
    UNION ALL
    SELECT p.place, 5, p.owner_id, CONCAT(N'foreign key ', QUOTENAME(k.name))
      FROM part AS p
      JOIN sys.foreign_keys AS k ON k.parent_object_id = p.id
    UNION ALL
    SELECT p.place, 6, p.owner_id,
           CONCAT(N'column ', QUOTENAME(c.name), N' has type ', QUOTENAME(t.name))
      FROM part AS p
      JOIN sys.columns AS c ON c.object_id = p.id
      JOIN sys.types AS t ON t.user_type_id = c.user_type_id
     WHERE t.is_user_defined = 1 OR c.rule_object_id <> 0
    UNION ALL
    SELECT p.place, 7, p.owner_id, CONCAT(N'check constraint ', QUOTENAME(k.name))
      FROM part AS p
      JOIN sys.check_constraints AS k ON k.parent_object_id = p.id
     WHERE EXISTS (SELECT 1
                     FROM sys.sql_expression_dependencies AS d
                    WHERE d.referencing_id = k.object_id
                      AND (d.referenced_id IS NULL OR d.referenced_id <> p.id))
    UNION ALL
    SELECT p.place, 8, p.owner_id, CONCAT(N'default ', QUOTENAME(k.name))
      FROM part AS p
      JOIN sys.default_constraints AS k ON k.parent_object_id = p.id
     WHERE EXISTS (SELECT 1
                     FROM sys.sql_expression_dependencies AS d
                    WHERE d.referencing_id = k.object_id)
    UNION ALL
    SELECT p.place, 9, p.owner_id, CONCAT(N'computed column ', QUOTENAME(c.name))
      FROM part AS p
      JOIN sys.computed_columns AS c ON c.object_id = p.id
     WHERE EXISTS (SELECT 1
                     FROM sys.sql_expression_dependencies AS d
                    WHERE d.referencing_id = p.id
                      AND d.referencing_minor_id = c.column_id
                      AND (d.referenced_id IS NULL OR d.referenced_id <> p.id))
)
SELECT f.place, CONCAT(f.what, N', of ' + QUOTENAME(USER_NAME(f.owner_id))) AS code
  FROM (SELECT place, owner_id, what, ROW_NUMBER() OVER (PARTITION BY place ORDER BY rank, what) AS at
          FROM found) AS f
 WHERE f.at = 1

-- name: destination_locks
-- SQL Server gives a sender no lock to look at: the tables themselves are looked at again.
-- Returns: no row
SELECT CAST(0 AS bigint) AS [identity], CAST(1 AS bit) AS kept, N'' AS locks
 WHERE 1 = 0

-- name: find_large
-- The lowest messages of a range that are larger than a limit and that no one else holds. Asked only
-- where the sample weighed so much, and the task got less than was planned.
-- Locks:   an update lock for each looked at, until commit. Never waits for a row.
-- Index:   Index_RowVersion.
-- Returns: seq bigint, bytes bigint
SELECT TOP (@messages)
       RowVersion AS seq,
       ISNULL(DATALENGTH(CAST(Headers AS nvarchar(max))) / 2, 0)
       + ISNULL(DATALENGTH(Body), 0) AS bytes
  FROM {queue} WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE RowVersion >= @first AND RowVersion < @stop
   AND ISNULL(DATALENGTH(CAST(Headers AS nvarchar(max))) / 2, 0)
       + ISNULL(DATALENGTH(Body), 0)
       > @largest
 ORDER BY RowVersion
OPTION (MAXDOP 1)

-- name: find_large_body_string
-- As find_large, from a table that has the column, which is weighed too.
SELECT TOP (@messages)
       RowVersion AS seq,
       ISNULL(DATALENGTH(CAST(Headers AS nvarchar(max))) / 2, 0)
       + ISNULL(DATALENGTH(Body), 0)
       + ISNULL(DATALENGTH(BodyString) / 2, 0) AS bytes
  FROM {queue} WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE RowVersion >= @first AND RowVersion < @stop
   AND ISNULL(DATALENGTH(CAST(Headers AS nvarchar(max))) / 2, 0)
       + ISNULL(DATALENGTH(Body), 0)
       + ISNULL(DATALENGTH(BodyString) / 2, 0)
       > @largest
 ORDER BY RowVersion
OPTION (MAXDOP 1)

-- name: divert_large
-- Chosen messages into the error queue, as they are, without going through the client. Expired ones
-- are dropped. @seqs is a list, as JSON. @renamed: a queue may hold an id twice, but not one to which
-- a DBA gave a unique index.
-- {recoverable}, {one}: the column Recoverable and its value, where the table has it.
-- {fits}: refuses headers that a varchar would keep with question marks.
-- Locks:   an update lock for each, until commit; find_large has them already.
-- Index:   Index_RowVersion, a seek for each.
-- Returns: moved bigint, expired bigint
DECLARE @gone TABLE (
    Id      uniqueidentifier NOT NULL,
    Headers nvarchar(max)    NULL,
    Body    varbinary(max)   NULL,
    seq     bigint           NOT NULL,
    expired bit              NOT NULL
);
WITH message AS (
    SELECT Id, Expires, Headers, Body, RowVersion
      FROM {queue} WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
     WHERE RowVersion IN (SELECT CAST(value AS bigint) FROM OPENJSON(@seqs))
)
DELETE FROM message
OUTPUT deleted.Id, deleted.Headers, deleted.Body, deleted.RowVersion,
       CASE WHEN deleted.Expires <= GETUTCDATE() THEN 1 ELSE 0 END
  INTO @gone (Id, Headers, Body, seq, expired)
OPTION (LOOP JOIN, MAXDOP 1);
{fits}INSERT INTO {errors} (Id, {recoverable}Headers, Body)
SELECT CASE WHEN @renamed = 1 THEN NEWID() ELSE Id END, {one}Headers, ISNULL(Body, 0x)
  FROM @gone
 WHERE expired = 0
 ORDER BY seq;
SELECT ISNULL(SUM(CASE WHEN expired = 0 THEN CAST(1 AS bigint) END), 0) AS moved,
       ISNULL(SUM(CASE WHEN expired = 1 THEN CAST(1 AS bigint) END), 0) AS expired
  FROM @gone

-- name: save_receipt
INSERT INTO {state}.receipt
       (reader, login, batch, task, queue, messages, expired, diverted, forwarded, bytes,
        query_id, query_batch, unpacked, payload)
VALUES (@reader, @login, @batch, @task, @queue_name, @messages, @expired, @diverted, @forwarded,
        @bytes, @query_id, @query_batch, @unpacked, @payload)

-- ---------------------------------------------------------------- receipts

-- name: new_reader
INSERT INTO {state}.reader (reader, queue, driver)
VALUES (@reader, @queue_name, @driver)

-- name: lock_reader
-- An update that changes nothing: a lock that is only hinted may be passed over by others.
-- REPEATABLEREAD keeps it where locking is optimized (Azure, 2025) and may end with the statement.
-- Locks:   the reader's row; waits for running tasks.
-- Returns: queue, driver, acked_batch bigint, plan_batch bigint, plan, login
UPDATE {state}.reader WITH (REPEATABLEREAD, ROWLOCK)
   SET driver = driver
OUTPUT inserted.queue, inserted.driver, inserted.acked_batch, inserted.plan_batch, inserted.[plan],
       inserted.login
 WHERE reader = @reader AND login = ISNULL(@login, login)

-- name: claim
-- This driver speaks for the reader from now on; the queues are those that it reads.
UPDATE {state}.reader
   SET driver = @driver, queue = @queue_name, seen = SYSUTCDATETIME()
 WHERE reader = @reader AND login = @login

-- name: reader_queue
-- Returns: queue
SELECT queue FROM {state}.reader WHERE reader = @reader

-- name: outcome
-- What the tasks of the batches up to this one got, a row for each queue.
-- Returns: queue; tasks, empty (tasks that took nothing), messages, expired, diverted,
--          forwarded; bigint
SELECT queue,
       COUNT_BIG(*) AS tasks,
       CAST(SUM(CASE WHEN messages + expired + diverted + forwarded = 0 THEN 1 ELSE 0 END)
            AS bigint) AS empty,
       SUM(messages) AS messages,
       SUM(expired) AS expired,
       SUM(diverted) AS diverted,
       SUM(forwarded) AS forwarded
  FROM {state}.receipt
 WHERE reader = @reader AND login = @login AND batch BETWEEN @acked AND @batch
 GROUP BY queue

-- name: acknowledge
UPDATE {state}.reader
   SET acked_batch = @batch,
       plan_batch  = CASE WHEN plan_batch > @batch THEN plan_batch END,
       [plan]      = CASE WHEN plan_batch > @batch THEN [plan] END,
       messages    = messages + @messages,
       expired     = expired + @expired,
       diverted    = diverted + @diverted,
       forwarded   = forwarded + @forwarded,
       seen        = SYSUTCDATETIME()
 WHERE reader = @reader AND login = @login

-- name: forget_receipts
DELETE FROM {state}.receipt_page
 WHERE reader = @reader AND login = @login AND batch BETWEEN @acked AND @batch;
DELETE FROM {state}.receipt
 WHERE reader = @reader AND login = @login AND batch BETWEEN @acked AND @batch

-- name: store_plan
UPDATE {state}.reader
   SET plan_batch = @batch, [plan] = @plan, seen = SYSUTCDATETIME()
 WHERE reader = @reader AND login = @login

-- name: receipts
-- Without their payloads, oldest first; those that a task is writing now are passed over.
-- Returns: reader, queue, batch, task, messages, bytes, settled, created, seen, login
SELECT r.reader, r.queue, r.batch, CAST(r.task AS bigint) AS task, r.messages, r.bytes, r.settled,
       r.created AS created_utc, o.seen AS seen_utc, r.login
  FROM {state}.receipt AS r WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
  LEFT JOIN {state}.reader AS o WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK) ON o.reader = r.reader
 WHERE (@reader IS NULL OR r.reader = @reader)
   AND (@queue_name IS NULL OR r.queue = @queue_name)
 ORDER BY r.created, r.reader, r.login, r.batch, r.task

-- name: drop_receipt
-- Returns: queue, messages, settled, payload, unpacked of the receipt dropped
DELETE FROM {state}.receipt_page
 WHERE reader = @reader AND login = @login AND batch = @batch AND task = @task;
DELETE FROM {state}.receipt
OUTPUT deleted.queue, deleted.messages, deleted.settled, deleted.payload, deleted.unpacked
 WHERE reader = @reader AND login = @login AND batch = @batch AND task = @task

-- name: retire_reader
-- Its receipts were returned or dropped: a checkpoint that comes back must not receive again.
UPDATE {state}.reader
   SET acked_batch = CASE WHEN acked_batch > @batch THEN acked_batch ELSE @batch END,
       plan_batch  = CASE WHEN plan_batch > @batch THEN plan_batch END,
       [plan]      = CASE WHEN plan_batch > @batch THEN [plan] END
 WHERE reader = @reader AND login = @login

-- name: readers
-- Returns: reader, queue, acked_batch, messages, expired, diverted, forwarded, created, seen,
--          receipts, held
SELECT o.reader, o.queue, o.acked_batch, o.messages, o.expired, o.diverted, o.forwarded,
       o.created AS created_utc, o.seen AS seen_utc, h.receipts, h.held
  FROM {state}.reader AS o
 CROSS APPLY (SELECT COUNT_BIG(*) AS receipts, ISNULL(SUM(r.messages), 0) AS held
                FROM {state}.receipt AS r WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
               WHERE r.reader = o.reader) AS h
 ORDER BY o.seen DESC

-- ---------------------------------------------------------------- send

-- name: sink_open
-- Many tasks of a sink stage at once; a driver that dispatches or discards waits for them.
-- REPEATABLEREAD locks also where the database reads row versions.
-- Locks:   the sink's row, shared, until commit.
-- Returns: login; no row where the sink is new
SELECT login
  FROM {state}.dispatched WITH (REPEATABLEREAD, ROWLOCK)
 WHERE sink = @sink

-- name: sink_close
-- An update that changes nothing, as lock_reader.
-- Locks:   the sink's row, until commit: waits for tasks that stage, and they for us; of two drivers
--          the second waits.
-- Returns: login, batch bigint; no row where the sink is new
UPDATE {state}.dispatched WITH (REPEATABLEREAD, ROWLOCK)
   SET messages = messages
OUTPUT inserted.login, inserted.batch
 WHERE sink = @sink

-- name: sinks_lock
-- Nothing: a sink has one row here, by the table's key.
-- Locks:   nothing.
SELECT 0 AS locked

-- name: sink_elsewhere
-- No row: who may use the schema shares all its rows.
-- Returns: login
SELECT login FROM {state}.dispatched WHERE sink = @sink AND 1 = 0

-- name: new_sink
-- Locks:   the row it writes, or the gap where it will be, until commit.
INSERT INTO {state}.dispatched (sink)
SELECT @sink
 WHERE NOT EXISTS (
        SELECT 1 FROM {state}.dispatched WITH (UPDLOCK, HOLDLOCK, ROWLOCK) WHERE sink = @sink)

-- name: stage
-- Nothing where the batch is done or given up, or, after a lost answer, where it is there already;
-- where the session whose answer was lost still works on it, its row is waited for.
-- Returns: one row where it was inserted
INSERT INTO {state}.outbox (sink, login, batch, attempt, parcel, messages, payload)
OUTPUT CAST(1 AS bit)
SELECT @sink, @login, @batch, @attempt, @parcel, @messages, @payload
 WHERE NOT EXISTS (
        SELECT 1 FROM {state}.dispatched WHERE sink = @sink AND batch >= @batch)
   AND NOT EXISTS (
        SELECT 1
          FROM {state}.outbox WITH (READCOMMITTEDLOCK)
         WHERE sink = @sink AND batch = @batch AND attempt = @attempt AND parcel = @parcel)

-- name: advance
-- Enter a batch into the dispatch log, whose row `sink_close` has locked, unless it, or a later one,
-- is there.
-- Returns: batch bigint; no row where it was sent before
UPDATE {state}.dispatched
   SET batch = @batch, messages = @messages, dispatched = SYSUTCDATETIME()
OUTPUT inserted.batch
 WHERE sink = @sink AND login = @login AND (batch IS NULL OR batch < @batch)

-- name: settle
-- What a micro-batch received is sent on in this transaction. A batch that was closed, because its
-- receipts were returned or dropped, has none to settle.
-- Locks:   the reader's row, shared, as its tasks do, and before the receipts, as the ack does;
--          the receipts until commit.
-- Index:   receipt_query.
-- Returns: a row for each receipt
DECLARE @open TABLE (
    reader nvarchar(36) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY, acked bigint NOT NULL);
INSERT INTO @open (reader, acked)
SELECT o.reader, o.acked_batch
  FROM {state}.reader AS o WITH (REPEATABLEREAD, ROWLOCK)
 WHERE o.reader IN (
        SELECT r.reader
          FROM {state}.receipt AS r
         WHERE r.query_id = @query_id AND r.query_batch = @query_batch);
UPDATE r
   SET settled = 1
OUTPUT CAST(1 AS bit)
  FROM {state}.receipt AS r
  JOIN @open AS o ON o.reader = r.reader
 WHERE r.query_id = @query_id AND r.query_batch = @query_batch AND r.batch > o.acked

-- name: parcels
-- Returns: attempt, parcel bigint
SELECT attempt, CAST(parcel AS bigint) AS parcel
  FROM {state}.outbox
 WHERE sink = @sink AND login = @login AND batch = @batch
 ORDER BY attempt, parcel

-- name: parcel
-- Returns: payload varbinary; empty where it is in pages
SELECT payload
  FROM {state}.outbox
 WHERE sink = @sink AND login = @login AND batch = @batch
   AND attempt = @attempt AND parcel = @parcel

-- name: parcel_pages
-- Returns: payload varbinary, in order
SELECT payload
  FROM {state}.outbox_page
 WHERE sink = @sink AND login = @login AND batch = @batch
   AND attempt = @attempt AND parcel = @parcel
 ORDER BY page

-- name: discard
-- What a sink staged up to a batch: sent by now, or never to be sent.
DELETE FROM {state}.outbox_page WHERE sink = @sink AND login = @login AND batch <= @batch;
DELETE FROM {state}.outbox WHERE sink = @sink AND login = @login AND batch <= @batch

-- name: discard_abandoned
-- What writes without a name left behind when their job was killed. A row that someone holds is not
-- abandoned.
DECLARE @before datetime2(3) = DATEADD(second, -@seconds, SYSUTCDATETIME());
DELETE FROM p
  FROM {state}.outbox_page AS p
  JOIN {state}.outbox AS o WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
    ON o.sink = p.sink AND o.batch = p.batch AND o.attempt = p.attempt AND o.parcel = p.parcel
 WHERE o.sink LIKE N'write:%' AND o.created < @before;
DELETE FROM o
  FROM {state}.outbox AS o WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE o.sink LIKE N'write:%' AND o.created < @before

-- name: forget_abandoned
-- The ledger's rows of writes without a name: kept for a while, so that a task which comes back late
-- stages nothing.
DELETE FROM d
  FROM {state}.dispatched AS d WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE d.sink LIKE N'write:%'
   AND d.dispatched < DATEADD(second, -@seconds, SYSUTCDATETIME())

-- ---------------------------------------------------------------- publish and subscribe

-- name: subscribers
-- The whole table, or one topic of it: it is small, and its key begins with the endpoint.
-- Returns: topic, endpoint, queueaddress
SELECT Topic, Endpoint, QueueAddress
  FROM {subscriptions}
 WHERE @topic IS NULL OR Topic = @topic
 ORDER BY Topic, Endpoint

-- name: subscribe
-- One address for an endpoint and topic, the last one given; no write for the same.
-- Locks:   the endpoint's row for the topic, or the gap where it will be, until commit.
INSERT INTO {subscriptions} (QueueAddress, Endpoint, Topic)
SELECT @queue_address, @endpoint, @topic
 WHERE NOT EXISTS (
        SELECT 1
          FROM {subscriptions} WITH (UPDLOCK, HOLDLOCK, ROWLOCK)
         WHERE Endpoint = @endpoint AND Topic = @topic);
IF ROWCOUNT_BIG() = 0
    UPDATE {subscriptions}
       SET QueueAddress = @queue_address
     WHERE Endpoint = @endpoint AND Topic = @topic
       AND QueueAddress <> @queue_address COLLATE Latin1_General_100_BIN2

-- name: unsubscribe
-- Index:   the primary key.
-- Returns: one row where the endpoint was subscribed
DELETE FROM {subscriptions}
OUTPUT CAST(1 AS bit)
 WHERE Endpoint = @endpoint AND Topic = @topic

-- ---------------------------------------------------------------- delayed delivery

-- name: peer_zone
-- Due is a datetime, in UTC for everyone: no session's zone has a part in it.
-- Returns: zone
SELECT N'UTC' AS zone

-- name: dues
-- When messages are due that wait for some milliseconds, or until some moments in UTC; each list is
-- a JSON array of texts. More milliseconds than 24 days do not fit DATEADD: days go by themselves.
-- Returns: one row: the times of the delays, the times of the moments, in their order
SELECT STUFF((SELECT N',' + CONVERT(nvarchar(30), DATEADD(
                        millisecond, CAST(CAST(j.value AS bigint) % 86400000 AS int),
                        DATEADD(day, CAST(CAST(j.value AS bigint) / 86400000 AS int),
                                GETUTCDATE())), 126)
                FROM OPENJSON(@delays) AS j
               ORDER BY CAST(j.[key] AS int)
                 FOR XML PATH('')), 1, 1, N'') AS delays_times,
       STUFF((SELECT N',' + j.value
                FROM OPENJSON(@moments) AS j
               ORDER BY CAST(j.[key] AS int)
                 FOR XML PATH('')), 1, 1, N'') AS moments_times

-- name: move_due
-- Move the messages that have been due for longest into the queue, under new ids, as the transport
-- does. A message is in one of the tables at any time.
-- Locks:   the delayed rows, until commit; those that others hold are passed over. Never waits for
--          a row.
-- Index:   Index_Due.
-- Returns: one row: moved bigint, and 0, for no id here can be there already
DECLARE @now datetime = GETUTCDATE();
WITH message AS (
    SELECT TOP (@messages) Headers, Body, Due
      FROM {delayed} WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
     WHERE Due <= @now
     ORDER BY Due
)
DELETE FROM message
OUTPUT NEWID(), {one}deleted.Headers, ISNULL(deleted.Body, 0x)
  INTO {queue} (Id, {recoverable}Headers, Body);
SELECT ROWCOUNT_BIG() AS moved, CAST(0 AS bigint) AS renamed

-- name: next_due
-- Locks:   keeps none, waits for no row.
-- Index:   Index_Due.
-- Returns: seconds until the next message is due float, null where none waits; below 0 where it is
--          due, and a full batch left it
SELECT CAST(DATEDIFF_BIG(millisecond, GETUTCDATE(), MIN(Due)) AS float) / 1000 AS seconds
  FROM {delayed} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)

-- ---------------------------------------------------------------- inspection

-- name: browse
-- A page of a range, deleting nothing and keeping no lock; what others hold is passed over. Up to a
-- count and a weight, at least one message. Of one that is larger than @largest nothing is read but
-- its weight.
-- Index:   Index_RowVersion.
-- Returns: as receive, by seq; and large bigint, the bytes of a message that is too large, whose
--          headers and body are null
WITH lowest AS (
    SELECT TOP (@messages)
           Id, Expires, Headers, Body, RowVersion,
           ISNULL(DATALENGTH(CAST(Headers AS nvarchar(max))) / 2, 0)
           + ISNULL(DATALENGTH(Body), 0) AS bytes
      FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
     WHERE RowVersion >= @first AND RowVersion < @stop
     ORDER BY RowVersion
), weighed AS (
    SELECT *,
           SUM(CASE WHEN bytes <= @largest THEN bytes ELSE 0 END)
               OVER (ORDER BY RowVersion ROWS UNBOUNDED PRECEDING) AS up_to
      FROM lowest
)
SELECT CAST(Id AS binary(16)) AS id,
       Expires AS expires,
       CAST(CASE WHEN Expires <= GETUTCDATE() THEN 1 ELSE 0 END AS bit) AS expired,
       CAST(CASE WHEN bytes <= @largest THEN CAST(Headers AS nvarchar(max)) END AS varbinary(max))
           AS headers,
       CASE WHEN bytes <= @largest THEN Body END AS body,
       RowVersion AS seq,
       CASE WHEN bytes > @largest THEN bytes END AS large
  FROM weighed
 WHERE up_to - bytes < @bytes
 ORDER BY RowVersion

-- name: browse_body_string
-- As browse, from a table that has the column.
-- Returns: also bodystring as UTF-16 bytes
WITH lowest AS (
    SELECT TOP (@messages)
           Id, Expires, Headers, Body, BodyString, RowVersion,
           ISNULL(DATALENGTH(CAST(Headers AS nvarchar(max))) / 2, 0)
           + ISNULL(DATALENGTH(Body), 0)
           + ISNULL(DATALENGTH(BodyString) / 2, 0) AS bytes
      FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
     WHERE RowVersion >= @first AND RowVersion < @stop
     ORDER BY RowVersion
), weighed AS (
    SELECT *,
           SUM(CASE WHEN bytes <= @largest THEN bytes ELSE 0 END)
               OVER (ORDER BY RowVersion ROWS UNBOUNDED PRECEDING) AS up_to
      FROM lowest
)
SELECT CAST(Id AS binary(16)) AS id,
       Expires AS expires,
       CAST(CASE WHEN Expires <= GETUTCDATE() THEN 1 ELSE 0 END AS bit) AS expired,
       CAST(CASE WHEN bytes <= @largest THEN CAST(Headers AS nvarchar(max)) END AS varbinary(max))
           AS headers,
       CASE WHEN bytes <= @largest THEN Body END AS body,
       CAST(CASE WHEN bytes <= @largest THEN BodyString END AS varbinary(max)) AS bodystring,
       RowVersion AS seq,
       CASE WHEN bytes > @largest THEN bytes END AS large
  FROM weighed
 WHERE up_to - bytes < @bytes
 ORDER BY RowVersion

-- name: browse_seq
-- The same page without headers and bodies.
SELECT TOP (@messages) CAST(Id AS binary(16)) AS id, Expires AS expires, RowVersion AS seq
  FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE RowVersion >= @first AND RowVersion < @stop
 ORDER BY RowVersion

-- name: browse_headers
-- A page of a range without bodies, for what headers tell: the beginning of each; what others hold
-- is passed over.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_RowVersion.
-- Returns: headers as UTF-16 bytes, seq bigint; by seq
SELECT TOP (@messages)
       CAST(LEFT(CAST(Headers AS nvarchar(max)), 65536) AS varbinary(max)) AS headers,
       RowVersion AS seq
  FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE RowVersion >= @first AND RowVersion < @stop
 ORDER BY RowVersion

-- name: browse_delayed
-- The delayed messages that are due first, deleting nothing; what others hold is passed over.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_Due.
-- Returns: id, which this table does not have; due datetime (UTC), headers, body
SELECT TOP (@messages) CAST(NULL AS nvarchar(36)) AS id, Due AS due, Headers AS headers, Body AS body
  FROM {delayed} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
 ORDER BY Due

-- name: purge
-- Everything, as the transport does at a start when asked to.
-- Locks:   each row until commit, or the whole table; waits for those that others hold.
-- Returns: messages bigint
DELETE FROM {queue};
SELECT ROWCOUNT_BIG() AS messages

-- name: purge_range
-- Part of a queue: each message in a range of seqs.
-- Locks:   each row until commit, or the whole table; waits for those that others hold.
-- Index:   Index_RowVersion.
-- Returns: messages bigint
DELETE FROM {queue} WHERE RowVersion >= @first AND RowVersion < @stop;
SELECT ROWCOUNT_BIG() AS messages

-- name: purge_expired
-- A batch of messages that have expired and that no one else holds.
-- Locks:   an update lock for each, until commit. Never waits for a row.
-- Index:   Index_Expires, where it is there. Without it the whole table is read.
-- Returns: messages bigint
DECLARE @gone bigint = 0, @taken bigint = 1;
WHILE @taken > 0 AND @gone < @messages
BEGIN
    WITH message AS (
        SELECT TOP (CASE WHEN @messages - @gone < 2000 THEN @messages - @gone ELSE 2000 END)
               RowVersion
          FROM {queue} WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
         WHERE Expires <= GETUTCDATE()
    )
    DELETE FROM message;
    SET @taken = ROWCOUNT_BIG();
    SET @gone = @gone + @taken;
END;
SELECT @gone AS messages

-- name: stats
-- Returns: messages, expired, bytes of table and indexes, first and last seq; bigint
SELECT COUNT_BIG(*) AS messages,
       ISNULL(SUM(CAST(CASE WHEN Expires <= GETUTCDATE() THEN 1 ELSE 0 END AS bigint)), 0) AS expired,
       (SELECT ISNULL(SUM(a.total_pages), 0) * 8192
          FROM {queue_catalog}sys.partitions AS p
          JOIN {queue_catalog}sys.allocation_units AS a
            ON a.container_id = CASE a.type WHEN 2 THEN p.partition_id ELSE p.hobt_id END
         WHERE p.object_id = OBJECT_ID({queue_text}, N'U')) AS bytes,
       MIN(RowVersion) AS first,
       MAX(RowVersion) AS last
  FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)

-- name: stats_delayed
-- How many messages wait until they are due, and how many are due.
-- Returns: messages, due, bytes of table and indexes; bigint
SELECT COUNT_BIG(*) AS messages,
       ISNULL(SUM(CAST(CASE WHEN Due <= GETUTCDATE() THEN 1 ELSE 0 END AS bigint)), 0) AS due,
       (SELECT ISNULL(SUM(a.total_pages), 0) * 8192
          FROM {delayed_catalog}sys.partitions AS p
          JOIN {delayed_catalog}sys.allocation_units AS a
            ON a.container_id = CASE a.type WHEN 2 THEN p.partition_id ELSE p.hobt_id END
         WHERE p.object_id = OBJECT_ID({delayed_text}, N'U')) AS bytes
  FROM {delayed} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)

-- name: seq_given
-- The highest RowVersion that was ever handed out, those of sends that were undone among them.
-- Returns: given bigint; null where none was
SELECT CAST(c.last_value AS bigint) AS given
  FROM {queue_catalog}sys.identity_columns AS c
 WHERE c.object_id = OBJECT_ID({queue_text}, N'U')

-- name: table_sizes
-- What a table takes on disk, and how many rows the catalogue counts. Ghost records are not counted
-- without a walk over the table.
-- Returns: table, indexes, large values (bytes bigint); live bigint, dead and cleaned null
SELECT ISNULL(SUM(CASE WHEN p.index_id < 2 AND a.type <> 2 THEN a.total_pages END), 0) * 8192
       AS table_bytes,
       ISNULL(SUM(CASE WHEN p.index_id > 1 AND a.type <> 2 THEN a.total_pages END), 0) * 8192
       AS index_bytes,
       ISNULL(SUM(CASE WHEN a.type = 2 THEN a.total_pages END), 0) * 8192 AS large_bytes,
       SUM(CASE WHEN p.index_id < 2 AND a.type = 1 THEN p.rows END) AS live,
       CAST(NULL AS bigint) AS dead,
       CAST(NULL AS datetime) AS cleaned_utc
  FROM {queue_catalog}sys.partitions AS p
  JOIN {queue_catalog}sys.allocation_units AS a
    ON a.container_id = CASE a.type WHEN 2 THEN p.partition_id ELSE p.hobt_id END
 WHERE p.object_id = OBJECT_ID({queue_text}, N'U')

-- name: queue_tables
-- The tables of the default schema that have the columns of a queue, for a shell to complete.
-- Returns: name
SELECT TOP (1000) t.name
  FROM sys.tables AS t
 WHERE t.schema_id = SCHEMA_ID(N'dbo')
   AND 5 = (SELECT COUNT(*)
              FROM sys.columns AS c
             WHERE c.object_id = t.object_id
               AND c.name IN (N'Id', N'Expires', N'Headers', N'Body', N'RowVersion'))
 ORDER BY t.name

-- ---------------------------------------------------------------- checks

-- name: check_rows
-- What the lowest messages tell: how long they live, how large headers are, and how far RowVersion
-- has come. Of headers only the beginning is read.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_RowVersion.
-- Returns: last bigint (null where the queue is empty), and of each of the lowest 50 that expires:
--          expires datetime, sent, lives (its headers, null where absent); in each row the
--          RowVersion and the size of the largest headers among the lowest 50, bigint
WITH lowest AS (
    SELECT TOP (50) RowVersion, Expires,
           LEFT(CAST(Headers AS nvarchar(max)), 16384) AS Headers,
           DATALENGTH(CAST(Headers AS nvarchar(max))) / 2 AS bytes
      FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
     ORDER BY RowVersion
), expiring AS (
    SELECT q.Expires AS expires,
           CASE WHEN s.found > 0 AND f.stop - s.found - 24 BETWEEN 1 AND 40
                THEN SUBSTRING(q.Headers, s.found + 24, f.stop - s.found - 24) END AS sent,
           CASE WHEN l.found > 0 AND t.stop - l.found - 32 BETWEEN 1 AND 40
                THEN SUBSTRING(q.Headers, l.found + 32, t.stop - l.found - 32) END AS lives
      FROM lowest AS q
     CROSS APPLY (SELECT CHARINDEX(N'"NServiceBus.TimeSent":"', q.Headers) AS found) AS s
     CROSS APPLY (SELECT CHARINDEX(N'"', q.Headers, s.found + 24) AS stop) AS f
     CROSS APPLY (SELECT CHARINDEX(N'"NServiceBus.TimeToBeReceived":"', q.Headers) AS found) AS l
     CROSS APPLY (SELECT CHARINDEX(N'"', q.Headers, l.found + 32) AS stop) AS t
     WHERE q.Expires IS NOT NULL
)
SELECT ends.last, e.expires, e.sent, e.lives, heaviest.seq, heaviest.bytes
  FROM (SELECT MAX(RowVersion) AS last
          FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)) AS ends
  LEFT JOIN (SELECT TOP (1) RowVersion AS seq, bytes FROM lowest ORDER BY bytes DESC) AS heaviest
    ON 1 = 1
  LEFT JOIN expiring AS e ON 1 = 1

-- name: check_queue
-- What is wrong with a queue's table, from the catalogue alone; who has any right on it may read that.
-- @last is the highest RowVersion, null where it is not known; @expiring, whether messages expire;
-- @body_string, whether the column is asked for.
-- Returns: name, severity (error, warning, note), found, mend; a row for each finding
DECLARE @table int = OBJECT_ID({queue_text}, N'U'), @login nvarchar(258) = QUOTENAME(USER_NAME());
DECLARE @named nvarchar(600) = {queue_text}, @delayed bit = 0;
DECLARE @columns TABLE (name sysname COLLATE DATABASE_DEFAULT, type sysname COLLATE DATABASE_DEFAULT);
DECLARE @indexed TABLE (first_column sysname COLLATE DATABASE_DEFAULT);
INSERT INTO @columns (name, type)
SELECT c.name, t.name
  FROM {queue_catalog}sys.columns AS c
  JOIN {queue_catalog}sys.types AS t ON t.user_type_id = c.user_type_id
 WHERE c.object_id = @table;
INSERT INTO @indexed (first_column)
SELECT c.name
  FROM {queue_catalog}sys.indexes AS i
  JOIN {queue_catalog}sys.index_columns AS k
    ON k.object_id = i.object_id AND k.index_id = i.index_id AND k.key_ordinal = 1
  JOIN {queue_catalog}sys.columns AS c ON c.object_id = k.object_id AND c.column_id = k.column_id
 WHERE i.object_id = @table AND i.is_disabled = 0
   AND (i.has_filter = 0 OR c.name = N'Expires');
IF EXISTS (SELECT 1 FROM @columns WHERE name = N'Due')
   AND NOT EXISTS (SELECT 1 FROM @columns WHERE name = N'Id')
    SET @delayed = 1;
SELECT N'column' AS name, N'error' AS severity,
       CONCAT(N'column ', wanted.name, N' is missing: a peer and a reader name it') AS found,
       CONCAT(N'ALTER TABLE ', @named, N' ADD ', wanted.name, N' ', wanted.type) AS mend
  FROM (VALUES (N'Id', N'uniqueidentifier NOT NULL DEFAULT NEWID()'),
               (N'Expires', N'datetime NULL'),
               (N'Headers', N'nvarchar(max) NOT NULL DEFAULT N''{}'''),
               (N'Body', N'varbinary(max) NULL'),
               (N'RowVersion', N'bigint IDENTITY(1,1) NOT NULL')) AS wanted (name, type)
 WHERE @table IS NOT NULL AND @delayed = 0
   AND NOT EXISTS (SELECT 1 FROM @columns AS c WHERE c.name = wanted.name COLLATE DATABASE_DEFAULT)
UNION ALL
SELECT law.name, law.severity, law.found, law.mend
  FROM (SELECT HAS_PERMS_BY_NAME({queue_text}, N'OBJECT', N'SELECT')
               * HAS_PERMS_BY_NAME({queue_text}, N'OBJECT', N'DELETE') AS may_receive,
               HAS_PERMS_BY_NAME({queue_text}, N'OBJECT', N'INSERT') AS may_send,
               (SELECT MAX(c.type) FROM @columns AS c WHERE c.name = N'Headers') AS headers,
               (SELECT MAX(c.type) FROM @columns AS c WHERE c.name = N'RowVersion') AS seq
       ) AS f
 CROSS APPLY (VALUES
    (N'delayed_table', N'error',
     CASE WHEN @delayed = 1 THEN 1 END,
     N'a table of delayed messages, and no queue',
     N'name its queue; `sqlqueue move-due` moves what is due into that'),
    (N'trigger', CASE WHEN f.may_receive = 1 THEN N'error' ELSE N'note' END,
     CASE WHEN @delayed = 0 AND EXISTS (SELECT 1
                                          FROM {queue_catalog}sys.triggers AS g
                                         WHERE g.parent_id = @table AND g.is_disabled = 0)
          THEN 1 END,
     N'it has a trigger, with which nothing can be received, by the peers neither',
     CONCAT(N'DISABLE TRIGGER ALL ON ', @named)),
    (N'expires_index', N'warning',
     CASE WHEN @expiring = 1 AND NOT EXISTS (
                    SELECT 1 FROM @indexed AS i WHERE i.first_column = N'Expires')
          THEN 1 END,
     N'messages expire, and no index on Expires finds them: a purge reads the whole table',
     CONCAT(N'CREATE NONCLUSTERED INDEX Index_Expires ON ', @named,
            N' (Expires) INCLUDE (Id, RowVersion) WHERE Expires IS NOT NULL')),
    (N'headers_type', N'warning',
     CASE WHEN f.headers <> N'nvarchar' THEN 1 END,
     CONCAT(N'column Headers is ', f.headers, N': characters beyond its code page are lost'),
     CONCAT(N'ALTER TABLE ', @named, N' ALTER COLUMN Headers nvarchar(max) NOT NULL')),
    (N'seq_index', N'error',
     CASE WHEN f.seq IS NOT NULL AND @delayed = 0 AND NOT EXISTS (
                    SELECT 1 FROM @indexed AS i WHERE i.first_column = N'RowVersion')
          THEN 1 END,
     N'RowVersion has no index: nothing can be received, and every peek reads the whole table',
     CONCAT(N'CREATE NONCLUSTERED INDEX Index_RowVersion ON ', @named, N' (RowVersion)')),
    (N'seq_end', N'warning',
     CASE WHEN f.seq = N'int' AND @last >= 0.8 * 2147483647 THEN 1 END,
     CONCAT(N'RowVersion has come to ', @last, N' of 2147483647: at the end every INSERT fails'),
     CONCAT(N'ALTER TABLE ', @named, N' ALTER COLUMN RowVersion bigint NOT NULL')),
    (N'body_string', N'error',
     CASE WHEN @body_string = 1 AND @delayed = 0 AND NOT EXISTS (
                    SELECT 1 FROM @columns AS c WHERE c.name = N'BodyString')
          THEN 1 END,
     N'includeBodyString is asked for, and there is no column BodyString',
     CONCAT(N'ALTER TABLE ', @named, N' ADD BodyString AS CAST(Body AS nvarchar(max))')),
    (N'receive_right', CASE WHEN f.may_send = 1 THEN N'note' ELSE N'error' END,
     CASE WHEN f.may_receive = 0 AND @delayed = 0 THEN 1 END,
     CONCAT(N'login ', @login, N' may not receive from it'),
     CONCAT(N'GRANT SELECT, DELETE ON ', @named, N' TO ', @login)),
    (N'send_right', CASE WHEN f.may_receive = 1 THEN N'note' ELSE N'error' END,
     CASE WHEN f.may_send = 0 AND @delayed = 0 THEN 1 END,
     CONCAT(N'login ', @login, N' may not send to it'),
     CONCAT(N'GRANT INSERT ON ', @named, N' TO ', @login))
    ) AS law (name, severity, broken, found, mend)
 WHERE @table IS NOT NULL AND law.broken = 1

-- name: check_delayed
-- What is wrong with a table of delayed messages, from the catalogue alone; nothing where it is absent.
-- Who has no right there may do without.
-- Returns: as check_queue
DECLARE @table int = OBJECT_ID({delayed_text}, N'U'), @login nvarchar(258) = QUOTENAME(USER_NAME());
DECLARE @named nvarchar(600) = {delayed_text};
SELECT N'delayed_column' AS name, N'error' AS severity,
       CONCAT(N'column ', wanted.name, N' is missing: messages cannot be delayed or moved') AS found,
       CONCAT(N'ALTER TABLE ', @named, N' ADD ', wanted.name, N' ', wanted.type) AS mend
  FROM (VALUES (N'Headers', N'nvarchar(max) NOT NULL DEFAULT N''{}'''),
               (N'Body', N'varbinary(max) NULL'),
               (N'Due', N'datetime NOT NULL DEFAULT GETUTCDATE()')) AS wanted (name, type)
 WHERE @table IS NOT NULL
   AND NOT EXISTS (SELECT 1
                     FROM {delayed_catalog}sys.columns AS c
                    WHERE c.object_id = @table
                      AND c.name = wanted.name COLLATE DATABASE_DEFAULT)
UNION ALL
SELECT law.name, law.severity, law.found, law.mend
  FROM (SELECT HAS_PERMS_BY_NAME({delayed_text}, N'OBJECT', N'SELECT') AS may_select,
               HAS_PERMS_BY_NAME({delayed_text}, N'OBJECT', N'DELETE') AS may_delete,
               HAS_PERMS_BY_NAME({delayed_text}, N'OBJECT', N'INSERT') AS may_insert) AS f
 CROSS APPLY (VALUES
    (N'due_index', N'warning',
     CASE WHEN NOT EXISTS (
                    SELECT 1
                      FROM {delayed_catalog}sys.indexes AS i
                      JOIN {delayed_catalog}sys.index_columns AS k
                        ON k.object_id = i.object_id AND k.index_id = i.index_id
                       AND k.key_ordinal = 1
                      JOIN {delayed_catalog}sys.columns AS c
                        ON c.object_id = k.object_id AND c.column_id = k.column_id
                     WHERE i.object_id = @table AND i.is_disabled = 0 AND c.name = N'Due')
          THEN 1 END,
     N'Due has no index: every look for what is due reads the whole table',
     CONCAT(N'CREATE NONCLUSTERED INDEX Index_Due ON ', @named, N' (Due)')),
    (N'move_right', CASE WHEN f.may_delete = 1 THEN N'error' ELSE N'note' END,
     CASE WHEN f.may_select * f.may_delete = 0 THEN 1 END,
     CONCAT(N'login ', @login, N' may not move what is due'),
     CONCAT(N'GRANT SELECT, DELETE ON ', @named, N' TO ', @login)),
    (N'delay_right', N'note',
     CASE WHEN f.may_insert = 0 THEN 1 END,
     CONCAT(N'login ', @login, N' may not delay messages'),
     CONCAT(N'GRANT INSERT ON ', @named, N' TO ', @login))
    ) AS law (name, severity, broken, found, mend)
 WHERE @table IS NOT NULL AND law.broken = 1

-- name: check_server
-- What holds messages of any queue of this database: old transactions elsewhere; and whether the
-- database knows JSON. On Azure the rights are those of the database.
-- Returns: as check_queue
DECLARE @azure bit = CASE WHEN SERVERPROPERTY(N'EngineEdition') = 5 THEN 1 ELSE 0 END;
SELECT N'level' AS name, N'error' AS severity,
       CONCAT(N'compatibility level ', d.compatibility_level,
              N': messages are sent as JSON, which needs 130') AS found,
       N'ALTER DATABASE CURRENT SET COMPATIBILITY_LEVEL = 130' AS mend
  FROM sys.databases AS d
 WHERE d.database_id = DB_ID() AND d.compatibility_level < 130;
IF HAS_PERMS_BY_NAME(NULL, NULL, N'VIEW SERVER STATE') = 1
   OR (@azure = 1 AND HAS_PERMS_BY_NAME(QUOTENAME(DB_NAME()), N'DATABASE', N'VIEW DATABASE STATE') = 1)
    SELECT N'old_transaction' AS name, N'warning' AS severity,
           CONCAT(N'session ', s.session_id, N' (', s.status, N', application ', s.program_name,
                  N') has had a transaction open for ',
                  DATEDIFF(second, t.transaction_begin_time, GETDATE()),
                  N' s: what it has locked no one receives') AS found,
           CONCAT(N'KILL ', s.session_id) AS mend
      FROM sys.dm_tran_active_transactions AS t
      JOIN sys.dm_tran_session_transactions AS x ON x.transaction_id = t.transaction_id
      JOIN sys.dm_exec_sessions AS s ON s.session_id = x.session_id
     WHERE x.is_user_transaction = 1
       AND s.database_id = DB_ID()
       AND s.session_id <> @@SPID
       AND t.transaction_begin_time < DATEADD(second, -@seconds, GETDATE())
ELSE
    SELECT N'sessions_right' AS name, N'note' AS severity,
           CONCAT(N'login ', QUOTENAME(SUSER_SNAME()),
                  N' may not see how old the transactions of other logins are') AS found,
           CASE WHEN @azure = 1
                THEN CONCAT(N'GRANT VIEW DATABASE STATE TO ', QUOTENAME(USER_NAME()))
                ELSE CONCAT(N'GRANT VIEW SERVER STATE TO ', QUOTENAME(SUSER_SNAME())) END AS mend

-- ---------------------------------------------------------------- rights, for a DBA's script

-- name: script_state_check
-- {faults} is the statement state_faults.
DECLARE @found nvarchar(2000);
SELECT TOP (1) @found = N'nothing is installed: ' + f.fault
  FROM ({faults}) AS f;
IF @found IS NOT NULL
BEGIN;
    THROW 51902, @found, 1;
END

-- name: script_role
-- {role_name} is the role's name as text, {role} quoted.
IF DATABASE_PRINCIPAL_ID({role_name}) IS NULL
    CREATE ROLE {role}

-- name: script_owner
-- The state tables belong to a role that no user is a member of: nobody but a member of db_owner can
-- put code or other columns into them.
IF EXISTS (SELECT 1
             FROM sys.database_role_members AS m
            WHERE m.role_principal_id = DATABASE_PRINCIPAL_ID({role_name}))
BEGIN;
    THROW 51902, N'the owner of the state tables has members: take them out, or name another', 1;
END;
IF USER_NAME((SELECT s.principal_id FROM sys.schemas AS s WHERE s.name = {state_name})) <> {role_name}
    ALTER AUTHORIZATION ON SCHEMA::{state} TO {role}

-- name: script_reader
GRANT SELECT, DELETE ON {queue} TO {role}

-- name: script_reader_state
GRANT SELECT ON {state}.version TO {role};
GRANT SELECT, INSERT, UPDATE ON {state}.reader TO {role};
GRANT SELECT, INSERT, UPDATE ON {state}.task TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON {state}.receipt TO {role};
GRANT SELECT, INSERT, DELETE ON {state}.receipt_page TO {role}

-- name: script_sender
GRANT INSERT ON {queue} TO {role}

-- name: script_sender_state
GRANT SELECT ON {state}.version TO {role};
GRANT SELECT, INSERT, DELETE ON {state}.outbox TO {role};
GRANT SELECT, INSERT, DELETE ON {state}.outbox_page TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON {state}.dispatched TO {role}

-- name: script_share
-- Nothing: who may use the schema shares its rows.
SELECT 0 AS row_security

-- name: script_all_rows
-- Nothing, as script_share.
SELECT 0 AS row_security

-- name: script_mover
-- A reader that also moves what is due into its queue.
GRANT SELECT, DELETE ON {delayed} TO {role};
GRANT INSERT ON {queue} TO {role}

-- name: script_delayer
GRANT INSERT ON {delayed} TO {role}

-- name: script_errors
GRANT INSERT ON {queue} TO {role}

-- name: script_publisher
-- Who subscribes needs INSERT, UPDATE and DELETE too, and decides where events go.
GRANT SELECT ON {subscriptions} TO {role}

-- name: script_subscriber
GRANT INSERT, UPDATE, DELETE ON {subscriptions} TO {role}

-- name: script_creator
-- To create queues; they belong to the owner of their schema. VIEW DEFINITION, as the transport's
-- installer has it: to see whether a table is there.
GRANT ALTER ON SCHEMA::{schema} TO {role};
GRANT CREATE TABLE, VIEW DEFINITION TO {role}
