-- name: install_lock
-- The second of two installers waits for the first.
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
-- Finds what this user, or @owner, does not own in the state schema: the owner of a table or of its
-- trigger decides what code runs when a row is written.
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
   AND o.name IN (N'version', N'stream', N'task', N'receipt', N'receipt_page', N'staging',
                  N'staging_page', N'dispatch_log', N'trail')
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

-- name: install_done
-- Finds nothing: each statement looks first, and changes only what is absent.
-- Returns: part, of_table, role; no row
SELECT N'' AS part, N'' AS of_table, N'' AS role
 WHERE @state_name IS NULL

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
-- The statements before have updated older state tables.
DELETE FROM {state}.version WHERE version < @version

-- name: install_stream
-- One row for each checkpoint. Names are compared byte by byte, as in Python. `login` made the row.
-- `query_id` and `query_batch` are Spark's names for the last acknowledged batch. The plan may only be
-- used for batches above those in `plan_after`.
IF OBJECT_ID({state_text} + N'.stream', N'U') IS NULL
BEGIN
    CREATE TABLE {state}.stream (
        stream      nvarchar(36)  COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY,
        login       nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL DEFAULT USER_NAME(),
        queue       nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
        driver      nvarchar(36)  COLLATE Latin1_General_100_BIN2 NOT NULL,
        acked_batch bigint        NOT NULL DEFAULT 0 CHECK (acked_batch >= 0),
        plan_batch  bigint        NULL,
        [plan]      nvarchar(max) NULL,
        plan_after  nvarchar(max) NULL,
        query_id    nvarchar(36)  COLLATE Latin1_General_100_BIN2 NULL,
        query_batch bigint        NULL,
        messages    bigint        NOT NULL DEFAULT 0,
        expired     bigint        NOT NULL DEFAULT 0,
        diverted    bigint        NOT NULL DEFAULT 0,
        forwarded   bigint        NOT NULL DEFAULT 0,
        created     datetime2(3)  NOT NULL DEFAULT SYSUTCDATETIME(),
        seen        datetime2(3)  NOT NULL DEFAULT SYSUTCDATETIME(),
        CHECK (plan_batch > acked_batch),
        CHECK (([plan] IS NULL AND plan_batch IS NULL)
               OR ([plan] IS NOT NULL AND plan_batch IS NOT NULL)),
        CHECK ((query_id IS NULL AND query_batch IS NULL)
               OR (query_id IS NOT NULL AND query_batch IS NOT NULL))
    );
    ALTER TABLE {state}.stream SET (LOCK_ESCALATION = DISABLE);
END

-- name: install_stream_query
-- The streams of a query. No update of a row changes its key, except the first acknowledgement.
IF NOT EXISTS (SELECT 1 FROM sys.indexes
                WHERE object_id = OBJECT_ID({state_text} + N'.stream', N'U') AND name = N'stream_query')
    CREATE INDEX stream_query ON {state}.stream (query_id)

-- name: install_task
-- A row for each task number of a stream. An attempt of the task locks it.
IF OBJECT_ID({state_text} + N'.task', N'U') IS NULL
BEGIN
    CREATE TABLE {state}.task (
        stream nvarchar(36)  COLLATE Latin1_General_100_BIN2 NOT NULL,
        task   int           NOT NULL CHECK (task >= 0),
        PRIMARY KEY (stream, task)
    );
    ALTER TABLE {state}.task SET (LOCK_ESCALATION = DISABLE);
END

-- name: install_receipt
-- What one task received from a queue, in one commit with the delete. It is written once, read only by
-- a replay, and deleted when its batch is acknowledged.
IF OBJECT_ID({state_text} + N'.receipt', N'U') IS NULL
BEGIN
    CREATE TABLE {state}.receipt (
        stream      nvarchar(36)   COLLATE Latin1_General_100_BIN2 NOT NULL,
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
        PRIMARY KEY (stream, batch, task)
    );
    ALTER TABLE {state}.receipt SET (LOCK_ESCALATION = DISABLE);
END

-- name: install_receipt_query
IF NOT EXISTS (SELECT 1 FROM sys.indexes
                WHERE object_id = OBJECT_ID({state_text} + N'.receipt', N'U') AND name = N'receipt_query')
    CREATE INDEX receipt_query ON {state}.receipt (query_id, query_batch)

-- name: install_receipt_storage
-- A payload never shares the page of its row, so a list of receipts is read without it.
-- Locks:   the whole table, where the option is not set yet.
IF EXISTS (SELECT 1 FROM sys.tables
            WHERE object_id = OBJECT_ID({state_text} + N'.receipt', N'U')
              AND large_value_types_out_of_row = 0)
BEGIN
    DECLARE @table nvarchar(300) = {state_text} + N'.receipt';
    EXEC sys.sp_tableoption @table, 'large value types out of row', '1';
END

-- name: install_receipt_page
-- The payload of a large receipt, in one row: SQL Server stores a large value in pages.
IF OBJECT_ID({state_text} + N'.receipt_page', N'U') IS NULL
BEGIN
    CREATE TABLE {state}.receipt_page (
        stream  nvarchar(36)   COLLATE Latin1_General_100_BIN2 NOT NULL,
        batch   bigint         NOT NULL,
        task    int            NOT NULL,
        page    int            NOT NULL,
        payload varbinary(max) NOT NULL,
        PRIMARY KEY (stream, batch, task, page)
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

-- name: install_staging
-- Messages staged by the tasks of a sink, until the driver dispatches or discards them.
IF OBJECT_ID({state_text} + N'.staging', N'U') IS NULL
BEGIN
    CREATE TABLE {state}.staging (
        sink     nvarchar(200)  COLLATE Latin1_General_100_BIN2 NOT NULL,
        batch    bigint         NOT NULL,
        attempt  nvarchar(36)   COLLATE Latin1_General_100_BIN2 NOT NULL,
        chunk   int            NOT NULL,
        messages bigint         NOT NULL CHECK (messages > 0),
        payload  varbinary(max) NOT NULL,
        created  datetime2(3)   NOT NULL DEFAULT SYSUTCDATETIME(),
        PRIMARY KEY (sink, batch, attempt, chunk)
    );
    ALTER TABLE {state}.staging SET (LOCK_ESCALATION = DISABLE);
END

-- name: install_staging_storage
IF EXISTS (SELECT 1 FROM sys.tables
            WHERE object_id = OBJECT_ID({state_text} + N'.staging', N'U')
              AND large_value_types_out_of_row = 0)
BEGIN
    DECLARE @table nvarchar(300) = {state_text} + N'.staging';
    EXEC sys.sp_tableoption @table, 'large value types out of row', '1';
END

-- name: install_staging_page
-- The payload of a large chunk, in one row.
IF OBJECT_ID({state_text} + N'.staging_page', N'U') IS NULL
BEGIN
    CREATE TABLE {state}.staging_page (
        sink    nvarchar(200)  COLLATE Latin1_General_100_BIN2 NOT NULL,
        batch   bigint         NOT NULL,
        attempt nvarchar(36)   COLLATE Latin1_General_100_BIN2 NOT NULL,
        chunk  int            NOT NULL,
        page    int            NOT NULL,
        payload varbinary(max) NOT NULL,
        PRIMARY KEY (sink, batch, attempt, chunk, page)
    );
    ALTER TABLE {state}.staging_page SET (LOCK_ESCALATION = DISABLE);
END

-- name: install_staging_page_storage
IF EXISTS (SELECT 1 FROM sys.tables
            WHERE object_id = OBJECT_ID({state_text} + N'.staging_page', N'U')
              AND large_value_types_out_of_row = 0)
BEGIN
    DECLARE @table nvarchar(300) = {state_text} + N'.staging_page';
    EXEC sys.sp_tableoption @table, 'large value types out of row', '1';
END

-- name: install_dispatch_log
-- The dispatch log: the last batch that each sink has sent; null where it has sent none.
IF OBJECT_ID({state_text} + N'.dispatch_log', N'U') IS NULL
BEGIN
    CREATE TABLE {state}.dispatch_log (
        sink       nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY,
        login      nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL DEFAULT USER_NAME(),
        batch      bigint        NULL,
        messages   bigint        NOT NULL DEFAULT 0,
        dispatched datetime2(3)  NOT NULL DEFAULT SYSUTCDATETIME()
    );
    ALTER TABLE {state}.dispatch_log SET (LOCK_ESCALATION = DISABLE);
END

-- name: install_trail
-- The audit trail: who purged, returned, dropped or retired what. A login only inserts.
-- `session_login` is the one that connected.
IF OBJECT_ID({state_text} + N'.trail', N'U') IS NULL
BEGIN
    CREATE TABLE {state}.trail (
        entry         bigint         IDENTITY(1,1) NOT NULL PRIMARY KEY,
        at            datetime2(3)   NOT NULL DEFAULT SYSUTCDATETIME(),
        login         nvarchar(128)  COLLATE Latin1_General_100_BIN2 NOT NULL DEFAULT USER_NAME(),
        session_login nvarchar(128)  COLLATE Latin1_General_100_BIN2 NOT NULL
                      DEFAULT ORIGINAL_LOGIN(),
        action        nvarchar(20)   COLLATE Latin1_General_100_BIN2 NOT NULL
                      CHECK (action IN (N'purge', N'return', N'drop', N'retire')),
        queue         nvarchar(1000) COLLATE Latin1_General_100_BIN2 NOT NULL,
        messages      bigint         NOT NULL CHECK (messages >= 0),
        stream        nvarchar(36)   COLLATE Latin1_General_100_BIN2 NULL,
        batch         bigint         NULL,
        task          int            NULL
    );
    ALTER TABLE {state}.trail SET (LOCK_ESCALATION = DISABLE);
END

-- name: version
-- Returns: version int
SELECT version FROM {state}.version

-- name: create_queue
-- As the transport creates it, under the transport's own lock, so that its installer and this one wait
-- for each other.
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
-- A column with the body as text, as the transport's CreateMessageBodyComputedColumn adds it.
-- Locks:   the whole table, for a moment: the column is computed when it is read.
IF COL_LENGTH({queue_text}, N'BodyString') IS NULL
    ALTER TABLE {queue} ADD BodyString AS CAST(Body AS nvarchar(max))

-- name: create_subscriptions
-- As the transport creates it, under its own lock.
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
-- The table where messages wait until they are due, as the transport creates it, under its own lock.
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
-- For a table that was created without it.
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

-- name: lock_queue
-- For a queue, or a table of delayed messages, that is to be dropped. What was sent to it is counted
-- after this, and nothing more can be sent.
-- Locks:   the whole table, until commit; waits for all transactions that use it.
-- Returns: a row if it has any
SELECT TOP (1) 1 AS locked
  FROM {queue} WITH (TABLOCKX, HOLDLOCK)

-- name: drop_queue
-- After lock_queue. Who waits for the table then fails, because it is gone.
-- Locks:   the whole table, until commit.
DROP TABLE {queue}
