-- begin
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN TRANSACTION;
GO

-- timeouts
SET LOCK_TIMEOUT 30000;
SET CONTEXT_INFO 0x73716C7175657565;
GO

-- commit
COMMIT TRANSACTION;
GO

-- rollback
IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
GO

-- savepoint
SET XACT_ABORT OFF;
SAVE TRANSACTION attempt;
GO

-- release
SET XACT_ABORT ON;
GO

-- check_deferred
SELECT 0 AS deferred;
GO

-- clock
SELECT GETUTCDATE();
GO

-- install_lock
DECLARE @name nvarchar(255) = N'sqlq_spark install ' + @state_name,
        @got int, @number int, @said nvarchar(100);
EXEC @got = sys.sp_getapplock
     @Resource = @name, @LockMode = N'Exclusive', @LockOwner = N'Transaction';
IF @got < 0
BEGIN
    SELECT @number = 51000 - @got, @said = CONCAT(N'sp_getapplock returned ', @got);
    THROW @number, @said, 1;
END;
GO

-- state_faults
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
   AND OBJECTPROPERTY(d.referenced_id, 'IsTable') = 0;
GO

-- install_schema
IF SCHEMA_ID(N'sqlqueue') IS NULL
    EXEC (N'CREATE SCHEMA ' + N'[sqlqueue]');
GO

-- install_version
IF OBJECT_ID(N'[sqlqueue]' + N'.version', N'U') IS NULL
    CREATE TABLE [sqlqueue].version (
        version int NOT NULL PRIMARY KEY
    );
GO

-- install_version_row
INSERT INTO [sqlqueue].version (version)
SELECT @version
 WHERE NOT EXISTS (SELECT 1 FROM [sqlqueue].version WHERE version >= @version);
GO

-- install_version_only
DELETE FROM [sqlqueue].version WHERE version < @version;
GO

-- install_reader
IF OBJECT_ID(N'[sqlqueue]' + N'.reader', N'U') IS NULL
BEGIN
    CREATE TABLE [sqlqueue].reader (
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
    ALTER TABLE [sqlqueue].reader SET (LOCK_ESCALATION = DISABLE);
END;
GO

-- install_task
IF OBJECT_ID(N'[sqlqueue]' + N'.task', N'U') IS NULL
BEGIN
    CREATE TABLE [sqlqueue].task (
        reader nvarchar(36)  COLLATE Latin1_General_100_BIN2 NOT NULL,
        login  nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL DEFAULT USER_NAME(),
        task   int           NOT NULL CHECK (task >= 0),
        PRIMARY KEY (reader, task)
    );
    ALTER TABLE [sqlqueue].task SET (LOCK_ESCALATION = DISABLE);
END;
GO

-- install_receipt
IF OBJECT_ID(N'[sqlqueue]' + N'.receipt', N'U') IS NULL
BEGIN
    CREATE TABLE [sqlqueue].receipt (
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
        payload     varbinary(max) NOT NULL,
        created     datetime2(3)   NOT NULL DEFAULT SYSUTCDATETIME(),
        PRIMARY KEY (reader, batch, task),
        INDEX receipt_query (query_id, query_batch)
    );
    ALTER TABLE [sqlqueue].receipt SET (LOCK_ESCALATION = DISABLE);
END;
GO

-- install_receipt_storage
IF EXISTS (SELECT 1 FROM sys.tables
            WHERE object_id = OBJECT_ID(N'[sqlqueue]' + N'.receipt', N'U')
              AND large_value_types_out_of_row = 0)
BEGIN
    DECLARE @table nvarchar(300) = N'[sqlqueue]' + N'.receipt';
    EXEC sys.sp_tableoption @table, 'large value types out of row', '1';
END;
GO

-- install_receipt_page
IF OBJECT_ID(N'[sqlqueue]' + N'.receipt_page', N'U') IS NULL
BEGIN
    CREATE TABLE [sqlqueue].receipt_page (
        reader  nvarchar(36)   COLLATE Latin1_General_100_BIN2 NOT NULL,
        login   nvarchar(128)  COLLATE Latin1_General_100_BIN2 NOT NULL DEFAULT USER_NAME(),
        batch   bigint         NOT NULL,
        task    int            NOT NULL,
        page    int            NOT NULL,
        payload varbinary(max) NOT NULL,
        PRIMARY KEY (reader, batch, task, page)
    );
    ALTER TABLE [sqlqueue].receipt_page SET (LOCK_ESCALATION = DISABLE);
END;
GO

-- install_receipt_page_storage
IF EXISTS (SELECT 1 FROM sys.tables
            WHERE object_id = OBJECT_ID(N'[sqlqueue]' + N'.receipt_page', N'U')
              AND large_value_types_out_of_row = 0)
BEGIN
    DECLARE @table nvarchar(300) = N'[sqlqueue]' + N'.receipt_page';
    EXEC sys.sp_tableoption @table, 'large value types out of row', '1';
END;
GO

-- install_outbox
IF OBJECT_ID(N'[sqlqueue]' + N'.outbox', N'U') IS NULL
BEGIN
    CREATE TABLE [sqlqueue].outbox (
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
    ALTER TABLE [sqlqueue].outbox SET (LOCK_ESCALATION = DISABLE);
END;
GO

-- install_outbox_storage
IF EXISTS (SELECT 1 FROM sys.tables
            WHERE object_id = OBJECT_ID(N'[sqlqueue]' + N'.outbox', N'U')
              AND large_value_types_out_of_row = 0)
BEGIN
    DECLARE @table nvarchar(300) = N'[sqlqueue]' + N'.outbox';
    EXEC sys.sp_tableoption @table, 'large value types out of row', '1';
END;
GO

-- install_outbox_page
IF OBJECT_ID(N'[sqlqueue]' + N'.outbox_page', N'U') IS NULL
BEGIN
    CREATE TABLE [sqlqueue].outbox_page (
        sink    nvarchar(200)  COLLATE Latin1_General_100_BIN2 NOT NULL,
        login   nvarchar(128)  COLLATE Latin1_General_100_BIN2 NOT NULL DEFAULT USER_NAME(),
        batch   bigint         NOT NULL,
        attempt nvarchar(36)   COLLATE Latin1_General_100_BIN2 NOT NULL,
        parcel  int            NOT NULL,
        page    int            NOT NULL,
        payload varbinary(max) NOT NULL,
        PRIMARY KEY (sink, batch, attempt, parcel, page)
    );
    ALTER TABLE [sqlqueue].outbox_page SET (LOCK_ESCALATION = DISABLE);
END;
GO

-- install_outbox_page_storage
IF EXISTS (SELECT 1 FROM sys.tables
            WHERE object_id = OBJECT_ID(N'[sqlqueue]' + N'.outbox_page', N'U')
              AND large_value_types_out_of_row = 0)
BEGIN
    DECLARE @table nvarchar(300) = N'[sqlqueue]' + N'.outbox_page';
    EXEC sys.sp_tableoption @table, 'large value types out of row', '1';
END;
GO

-- install_dispatched
IF OBJECT_ID(N'[sqlqueue]' + N'.dispatched', N'U') IS NULL
BEGIN
    CREATE TABLE [sqlqueue].dispatched (
        sink       nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY,
        login      nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL DEFAULT USER_NAME(),
        batch      bigint        NULL,
        messages   bigint        NOT NULL DEFAULT 0,
        dispatched datetime2(3)  NOT NULL DEFAULT SYSUTCDATETIME()
    );
    ALTER TABLE [sqlqueue].dispatched SET (LOCK_ESCALATION = DISABLE);
END;
GO

-- install_row_security
SELECT 0 AS row_security;
GO

-- install_no_policy
SELECT 0 AS row_security;
GO

-- install_policy
SELECT 0 AS row_security;
GO

-- install_version_policy
SELECT 0 AS row_security;
GO

-- version
SELECT version FROM [sqlqueue].version;
GO

-- row_security
SELECT CAST(0 AS bit) AS active
 WHERE @state_name <> @table_name OR @state_name = @table_name;
GO

-- create_queue
IF OBJECT_ID(N'[sales].[Shop.Orders]', N'U') IS NULL
BEGIN
    DECLARE @name nvarchar(255) = LEFT(QUOTENAME(DB_NAME()) + N'.' + N'[sales].[Shop.Orders]_lock', 255),
            @got int, @number int, @said nvarchar(100);
    EXEC @got = sys.sp_getapplock
         @Resource = @name, @LockMode = N'Exclusive', @LockOwner = N'Transaction';
    IF @got < 0
    BEGIN
        SELECT @number = 51000 - @got, @said = CONCAT(N'sp_getapplock returned ', @got);
        THROW @number, @said, 1;
    END;
    BEGIN TRY
        IF OBJECT_ID(N'[sales].[Shop.Orders]', N'U') IS NULL
        BEGIN
            CREATE TABLE [sales].[Shop.Orders] (
                Id             uniqueidentifier NOT NULL,
                CorrelationId  varchar(255)     NULL,
                ReplyToAddress varchar(255)     NULL,
                Recoverable    bit              NOT NULL,
                Expires        datetime         NULL,
                Headers        nvarchar(max)    NOT NULL,
                Body           varbinary(max)   NULL,
                RowVersion     bigint           IDENTITY(1,1) NOT NULL
            );
            CREATE NONCLUSTERED INDEX Index_RowVersion ON [sales].[Shop.Orders] (RowVersion ASC);
            CREATE NONCLUSTERED INDEX Index_Expires ON [sales].[Shop.Orders] (Expires)
                   INCLUDE (Id, RowVersion) WHERE Expires IS NOT NULL;
        END;
    END TRY
    BEGIN CATCH
        IF XACT_STATE() = 1
            EXEC sys.sp_releaseapplock @Resource = @name, @LockOwner = N'Transaction';
        THROW;
    END CATCH;
    EXEC sys.sp_releaseapplock @Resource = @name, @LockOwner = N'Transaction';
END;
GO

-- add_body_string
IF COL_LENGTH(N'[sales].[Shop.Orders]', N'BodyString') IS NULL
    ALTER TABLE [sales].[Shop.Orders] ADD BodyString AS CAST(Body AS nvarchar(max));
GO

-- create_subscriptions
IF OBJECT_ID(N'[dbo].[SubscriptionRouting]', N'U') IS NULL
BEGIN
    DECLARE @name nvarchar(255) = LEFT(QUOTENAME(DB_NAME()) + N'.' + N'[dbo].[SubscriptionRouting]_lock', 255),
            @got int, @number int, @said nvarchar(100);
    EXEC @got = sys.sp_getapplock
         @Resource = @name, @LockMode = N'Exclusive', @LockOwner = N'Transaction';
    IF @got < 0
    BEGIN
        SELECT @number = 51000 - @got, @said = CONCAT(N'sp_getapplock returned ', @got);
        THROW @number, @said, 1;
    END;
    BEGIN TRY
        IF OBJECT_ID(N'[dbo].[SubscriptionRouting]', N'U') IS NULL
            CREATE TABLE [dbo].[SubscriptionRouting] (
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
END;
GO

-- create_delayed
IF OBJECT_ID(N'[sales].[Shop.Orders.Delayed]', N'U') IS NULL
BEGIN
    DECLARE @name nvarchar(255) = LEFT(QUOTENAME(DB_NAME()) + N'.' + N'[sales].[Shop.Orders.Delayed]_lock', 255),
            @got int, @number int, @said nvarchar(100);
    EXEC @got = sys.sp_getapplock
         @Resource = @name, @LockMode = N'Exclusive', @LockOwner = N'Transaction';
    IF @got < 0
    BEGIN
        SELECT @number = 51000 - @got, @said = CONCAT(N'sp_getapplock returned ', @got);
        THROW @number, @said, 1;
    END;
    BEGIN TRY
        IF OBJECT_ID(N'[sales].[Shop.Orders.Delayed]', N'U') IS NULL
        BEGIN
            CREATE TABLE [sales].[Shop.Orders.Delayed] (
                Headers    nvarchar(max)  NOT NULL,
                Body       varbinary(max) NULL,
                Due        datetime       NOT NULL,
                RowVersion bigint         IDENTITY(1,1) NOT NULL
            );
            CREATE NONCLUSTERED INDEX Index_Due ON [sales].[Shop.Orders.Delayed] (Due);
        END;
    END TRY
    BEGIN CATCH
        IF XACT_STATE() = 1
            EXEC sys.sp_releaseapplock @Resource = @name, @LockOwner = N'Transaction';
        THROW;
    END CATCH;
    EXEC sys.sp_releaseapplock @Resource = @name, @LockOwner = N'Transaction';
END;
GO

-- create_delayed_index
IF NOT EXISTS (SELECT 1
                 FROM sys.index_columns AS k
                 JOIN sys.columns AS c
                   ON c.object_id = k.object_id AND c.column_id = k.column_id
                WHERE k.object_id = OBJECT_ID(N'[sales].[Shop.Orders.Delayed]', N'U')
                  AND k.key_ordinal = 1 AND c.name = N'Due')
    CREATE NONCLUSTERED INDEX Index_Due ON [sales].[Shop.Orders.Delayed] (Due);
GO

-- queue_columns
SELECT c.name,
       CASE WHEN t.name = N'varchar'
            THEN CONCAT(N'varchar COLLATE ', c.collation_name COLLATE DATABASE_DEFAULT)
            ELSE t.name COLLATE DATABASE_DEFAULT END AS type
  FROM sys.columns AS c
  JOIN sys.types AS t ON t.user_type_id = c.user_type_id
 WHERE c.object_id = OBJECT_ID(N'[sales].[Shop.Orders]', N'U')
 ORDER BY c.column_id;
GO

-- peek
DECLARE @marks TABLE (place bigint NOT NULL PRIMARY KEY, seq bigint NOT NULL);
INSERT INTO @marks (place, seq)
SELECT place, seq
  FROM (SELECT seq,
               ROW_NUMBER() OVER (ORDER BY seq) AS place,
               LEAD(seq) OVER (ORDER BY seq) AS following
          FROM (SELECT TOP (@messages) RowVersion AS seq
                  FROM [sales].[Shop.Orders] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
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
  FROM @marks;
GO

-- sample
SELECT (SELECT AVG(CAST(bytes AS float))
          FROM (SELECT TOP (50)
                       ISNULL(DATALENGTH(CAST(Headers AS nvarchar(max))) / 2, 0)
                       + ISNULL(DATALENGTH(Body), 0) AS bytes
                  FROM [sales].[Shop.Orders] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
                 WHERE RowVersion >= @first
                 ORDER BY RowVersion) AS lowest) AS bytes,
       (SELECT TOP (1)
               CASE WHEN p.found > 0 AND e.stop - p.found - 24 BETWEEN 1 AND 40
                    THEN SUBSTRING(q.Headers, p.found + 24, e.stop - p.found - 24) END
          FROM [sales].[Shop.Orders] AS q WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
         CROSS APPLY (SELECT CHARINDEX(N'"NServiceBus.TimeSent":"', q.Headers) AS found) AS p
         CROSS APPLY (SELECT CHARINDEX(N'"', q.Headers, p.found + 24) AS stop) AS e
         WHERE q.RowVersion = @first) AS sent,
       (SELECT MAX(RowVersion)
          FROM [sales].[Shop.Orders] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)) - @first + 1 AS span;
GO

-- top
SELECT MIN(RowVersion) AS first, MAX(RowVersion) AS last
  FROM [sales].[Shop.Orders] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK);
GO

-- fence
SELECT acked_batch, login
  FROM [sqlqueue].reader WITH (REPEATABLEREAD, ROWLOCK)
 WHERE reader = @reader;
GO

-- task_lock
UPDATE [sqlqueue].task WITH (REPEATABLEREAD, ROWLOCK)
   SET task = task
OUTPUT CAST(1 AS bit)
 WHERE reader = @reader AND login = @login AND task = @task;
GO

-- new_task
INSERT INTO [sqlqueue].task (reader, login, task)
SELECT @reader, @login, @task
 WHERE NOT EXISTS (
        SELECT 1
          FROM [sqlqueue].task WITH (UPDLOCK, HOLDLOCK, ROWLOCK)
         WHERE reader = @reader AND task = @task);
GO

-- find_receipt
SELECT payload
  FROM [sqlqueue].receipt
 WHERE reader = @reader AND login = @login AND batch = @batch AND task = @task;
GO

-- receipt_pages
SELECT payload
  FROM [sqlqueue].receipt_page
 WHERE reader = @reader AND login = @login AND batch = @batch AND task = @task
 ORDER BY page;
GO

-- receive
WITH lowest AS (
    SELECT TOP (CASE WHEN @messages < 2000 THEN @messages ELSE 2000 END)
           Id, Expires, Headers, Body, RowVersion,
           ISNULL(DATALENGTH(CAST(Headers AS nvarchar(max))) / 2, 0)
           + ISNULL(DATALENGTH(Body), 0) AS bytes
      FROM [sales].[Shop.Orders] WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
     WHERE RowVersion >= @first AND RowVersion < @stop
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
OPTION (MAXDOP 1);
GO

-- receive_body_string
WITH lowest AS (
    SELECT TOP (CASE WHEN @messages < 2000 THEN @messages ELSE 2000 END)
           Id, Expires, Headers, Body, BodyString, RowVersion,
           ISNULL(DATALENGTH(CAST(Headers AS nvarchar(max))) / 2, 0)
           + ISNULL(DATALENGTH(Body), 0)
           + ISNULL(DATALENGTH(BodyString) / 2, 0) AS bytes
      FROM [sales].[Shop.Orders] WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
     WHERE RowVersion >= @first AND RowVersion < @stop
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
OPTION (MAXDOP 1);
GO

-- take
WITH message AS (
    SELECT Id, Expires, Headers, Body, RowVersion
      FROM [sales].[Shop.Orders] WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
     WHERE RowVersion IN (SELECT CAST(value AS bigint) FROM OPENJSON(@seqs))
)
DELETE FROM message
OUTPUT CAST(deleted.Id AS binary(16)) AS id,
       deleted.Expires AS expires,
       CAST(CASE WHEN deleted.Expires <= GETUTCDATE() THEN 1 ELSE 0 END AS bit) AS expired,
       CAST(CAST(deleted.Headers AS nvarchar(max)) AS varbinary(max)) AS headers,
       deleted.Body AS body,
       deleted.RowVersion AS seq
OPTION (LOOP JOIN, MAXDOP 1);
GO

-- writable
SELECT w.place
  FROM OPENJSON(@places) WITH (place bigint '$.place', name nvarchar(600) '$.name') AS w
 WHERE OBJECT_ID(w.name, N'U') IS NOT NULL
   AND HAS_PERMS_BY_NAME(w.name, N'OBJECT', N'INSERT') = 1
   AND COL_LENGTH(w.name, N'Id') IS NOT NULL
   AND COL_LENGTH(w.name, N'Expires') IS NOT NULL
   AND COL_LENGTH(w.name, N'Headers') IS NOT NULL
   AND COL_LENGTH(w.name, N'Body') IS NOT NULL
   AND COL_LENGTH(w.name, N'RowVersion') IS NOT NULL;
GO

-- divert
INSERT INTO [dbo].[error] (Id, Recoverable, Headers, Body)
VALUES (CAST(STUFF(STUFF(STUFF(STUFF(@id, 21, 0, N'-'), 17, 0, N'-'), 13, 0, N'-'), 9, 0, N'-')
             AS uniqueidentifier), 1, @headers, @body);
SELECT CAST(1 AS bit);
GO

-- save_receipt
INSERT INTO [sqlqueue].receipt
       (reader, login, batch, task, queue, messages, expired, diverted, forwarded, bytes,
        query_id, query_batch, payload)
VALUES (@reader, @login, @batch, @task, @queue_name, @messages, @expired, @diverted, @forwarded,
        @bytes,
        @query_id, @query_batch, @payload);
GO

-- new_reader
INSERT INTO [sqlqueue].reader (reader, queue, driver)
VALUES (@reader, @queue_name, @driver);
GO

-- lock_reader
UPDATE [sqlqueue].reader WITH (REPEATABLEREAD, ROWLOCK)
   SET driver = driver
OUTPUT inserted.queue, inserted.driver, inserted.acked_batch, inserted.plan_batch, inserted.[plan],
       inserted.login
 WHERE reader = @reader AND login = ISNULL(@login, login);
GO

-- claim
UPDATE [sqlqueue].reader
   SET driver = @driver, queue = @queue_name, seen = SYSUTCDATETIME()
 WHERE reader = @reader AND login = @login;
GO

-- reader_queue
SELECT queue FROM [sqlqueue].reader WHERE reader = @reader;
GO

-- outcome
SELECT queue,
       COUNT_BIG(*) AS tasks,
       CAST(SUM(CASE WHEN messages + expired + diverted + forwarded = 0 THEN 1 ELSE 0 END)
            AS bigint) AS empty,
       SUM(messages) AS messages,
       SUM(expired) AS expired,
       SUM(diverted) AS diverted,
       SUM(forwarded) AS forwarded
  FROM [sqlqueue].receipt
 WHERE reader = @reader AND login = @login AND batch BETWEEN @acked AND @batch
 GROUP BY queue;
GO

-- acknowledge
UPDATE [sqlqueue].reader
   SET acked_batch = @batch,
       plan_batch  = CASE WHEN plan_batch > @batch THEN plan_batch END,
       [plan]      = CASE WHEN plan_batch > @batch THEN [plan] END,
       messages    = messages + @messages,
       expired     = expired + @expired,
       diverted    = diverted + @diverted,
       forwarded   = forwarded + @forwarded,
       seen        = SYSUTCDATETIME()
 WHERE reader = @reader AND login = @login;
GO

-- forget_receipts
DELETE FROM [sqlqueue].receipt_page
 WHERE reader = @reader AND login = @login AND batch BETWEEN @acked AND @batch;
DELETE FROM [sqlqueue].receipt
 WHERE reader = @reader AND login = @login AND batch BETWEEN @acked AND @batch;
GO

-- store_plan
UPDATE [sqlqueue].reader
   SET plan_batch = @batch, [plan] = @plan, seen = SYSUTCDATETIME()
 WHERE reader = @reader AND login = @login;
GO

-- receipts
SELECT r.reader, r.queue, r.batch, CAST(r.task AS bigint) AS task, r.messages, r.bytes, r.settled,
       r.created AS created_utc, o.seen AS seen_utc, r.login
  FROM [sqlqueue].receipt AS r WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
  LEFT JOIN [sqlqueue].reader AS o WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK) ON o.reader = r.reader
 WHERE (@reader IS NULL OR r.reader = @reader)
   AND (@queue_name IS NULL OR r.queue = @queue_name)
 ORDER BY r.created, r.reader, r.login, r.batch, r.task;
GO

-- drop_receipt
DELETE FROM [sqlqueue].receipt_page
 WHERE reader = @reader AND login = @login AND batch = @batch AND task = @task;
DELETE FROM [sqlqueue].receipt
OUTPUT deleted.queue, deleted.messages, deleted.settled, deleted.payload
 WHERE reader = @reader AND login = @login AND batch = @batch AND task = @task;
GO

-- retire_reader
UPDATE [sqlqueue].reader
   SET acked_batch = CASE WHEN acked_batch > @batch THEN acked_batch ELSE @batch END,
       plan_batch  = CASE WHEN plan_batch > @batch THEN plan_batch END,
       [plan]      = CASE WHEN plan_batch > @batch THEN [plan] END
 WHERE reader = @reader AND login = @login;
GO

-- readers
SELECT o.reader, o.queue, o.acked_batch, o.messages, o.expired, o.diverted, o.forwarded,
       o.created AS created_utc, o.seen AS seen_utc, h.receipts, h.held
  FROM [sqlqueue].reader AS o
 CROSS APPLY (SELECT COUNT_BIG(*) AS receipts, ISNULL(SUM(r.messages), 0) AS held
                FROM [sqlqueue].receipt AS r WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
               WHERE r.reader = o.reader) AS h
 ORDER BY o.seen DESC;
GO

-- sink_open
SELECT login
  FROM [sqlqueue].dispatched WITH (REPEATABLEREAD, ROWLOCK)
 WHERE sink = @sink;
GO

-- sink_close
UPDATE [sqlqueue].dispatched WITH (REPEATABLEREAD, ROWLOCK)
   SET messages = messages
OUTPUT inserted.login, inserted.batch
 WHERE sink = @sink;
GO

-- sinks_lock
SELECT 0 AS locked;
GO

-- sink_elsewhere
SELECT login FROM [sqlqueue].dispatched WHERE sink = @sink AND 1 = 0;
GO

-- new_sink
INSERT INTO [sqlqueue].dispatched (sink)
SELECT @sink
 WHERE NOT EXISTS (
        SELECT 1 FROM [sqlqueue].dispatched WITH (UPDLOCK, HOLDLOCK, ROWLOCK) WHERE sink = @sink);
GO

-- stage
INSERT INTO [sqlqueue].outbox (sink, login, batch, attempt, parcel, messages, payload)
OUTPUT CAST(1 AS bit)
SELECT @sink, @login, @batch, @attempt, @parcel, @messages, @payload
 WHERE NOT EXISTS (
        SELECT 1 FROM [sqlqueue].dispatched WHERE sink = @sink AND batch >= @batch)
   AND NOT EXISTS (
        SELECT 1
          FROM [sqlqueue].outbox WITH (READCOMMITTEDLOCK)
         WHERE sink = @sink AND batch = @batch AND attempt = @attempt AND parcel = @parcel);
GO

-- advance
UPDATE [sqlqueue].dispatched
   SET batch = @batch, messages = @messages, dispatched = SYSUTCDATETIME()
OUTPUT inserted.batch
 WHERE sink = @sink AND login = @login AND (batch IS NULL OR batch < @batch);
GO

-- settle
DECLARE @open TABLE (
    reader nvarchar(36) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY, acked bigint NOT NULL);
INSERT INTO @open (reader, acked)
SELECT o.reader, o.acked_batch
  FROM [sqlqueue].reader AS o WITH (REPEATABLEREAD, ROWLOCK)
 WHERE o.reader IN (
        SELECT r.reader
          FROM [sqlqueue].receipt AS r
         WHERE r.query_id = @query_id AND r.query_batch = @query_batch);
UPDATE r
   SET settled = 1
OUTPUT CAST(1 AS bit)
  FROM [sqlqueue].receipt AS r
  JOIN @open AS o ON o.reader = r.reader
 WHERE r.query_id = @query_id AND r.query_batch = @query_batch AND r.batch > o.acked;
GO

-- parcels
SELECT attempt, CAST(parcel AS bigint) AS parcel
  FROM [sqlqueue].outbox
 WHERE sink = @sink AND login = @login AND batch = @batch
 ORDER BY attempt, parcel;
GO

-- parcel
SELECT payload
  FROM [sqlqueue].outbox
 WHERE sink = @sink AND login = @login AND batch = @batch
   AND attempt = @attempt AND parcel = @parcel;
GO

-- parcel_pages
SELECT payload
  FROM [sqlqueue].outbox_page
 WHERE sink = @sink AND login = @login AND batch = @batch
   AND attempt = @attempt AND parcel = @parcel
 ORDER BY page;
GO

-- discard
DELETE FROM [sqlqueue].outbox_page WHERE sink = @sink AND login = @login AND batch <= @batch;
DELETE FROM [sqlqueue].outbox WHERE sink = @sink AND login = @login AND batch <= @batch;
GO

-- discard_abandoned
DECLARE @before datetime2(3) = DATEADD(second, -@seconds, SYSUTCDATETIME());
DELETE FROM p
  FROM [sqlqueue].outbox_page AS p
  JOIN [sqlqueue].outbox AS o WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
    ON o.sink = p.sink AND o.batch = p.batch AND o.attempt = p.attempt AND o.parcel = p.parcel
 WHERE o.sink LIKE N'write:%' AND o.created < @before;
DELETE FROM o
  FROM [sqlqueue].outbox AS o WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE o.sink LIKE N'write:%' AND o.created < @before;
GO

-- forget_abandoned
DELETE FROM d
  FROM [sqlqueue].dispatched AS d WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE d.sink LIKE N'write:%'
   AND d.dispatched < DATEADD(second, -@seconds, SYSUTCDATETIME());
GO

-- subscribers
SELECT Topic, Endpoint, QueueAddress
  FROM [dbo].[SubscriptionRouting]
 WHERE @topic IS NULL OR Topic = @topic
 ORDER BY Topic, Endpoint;
GO

-- subscribe
INSERT INTO [dbo].[SubscriptionRouting] (QueueAddress, Endpoint, Topic)
SELECT @queue_address, @endpoint, @topic
 WHERE NOT EXISTS (
        SELECT 1
          FROM [dbo].[SubscriptionRouting] WITH (UPDLOCK, HOLDLOCK, ROWLOCK)
         WHERE Endpoint = @endpoint AND Topic = @topic);
IF ROWCOUNT_BIG() = 0
    UPDATE [dbo].[SubscriptionRouting]
       SET QueueAddress = @queue_address
     WHERE Endpoint = @endpoint AND Topic = @topic
       AND QueueAddress <> @queue_address COLLATE Latin1_General_100_BIN2;
GO

-- unsubscribe
DELETE FROM [dbo].[SubscriptionRouting]
OUTPUT CAST(1 AS bit)
 WHERE Endpoint = @endpoint AND Topic = @topic;
GO

-- peer_zone
SELECT N'UTC' AS zone;
GO

-- dues
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
                 FOR XML PATH('')), 1, 1, N'') AS moments_times;
GO

-- move_due
DECLARE @now datetime = GETUTCDATE();
WITH message AS (
    SELECT TOP (@messages) Headers, Body, Due
      FROM [sales].[Shop.Orders.Delayed] WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
     WHERE Due <= @now
     ORDER BY Due
)
DELETE FROM message
OUTPUT NEWID(), 1, deleted.Headers, ISNULL(deleted.Body, 0x)
  INTO [sales].[Shop.Orders] (Id, Recoverable, Headers, Body);
SELECT ROWCOUNT_BIG() AS moved, CAST(0 AS bigint) AS renamed;
GO

-- next_due
SELECT CAST(DATEDIFF_BIG(millisecond, GETUTCDATE(), MIN(Due)) AS float) / 1000 AS seconds
  FROM [sales].[Shop.Orders.Delayed] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK);
GO

-- browse
SELECT TOP (@messages)
       CAST(Id AS binary(16)) AS id,
       Expires AS expires,
       CAST(CASE WHEN Expires <= GETUTCDATE() THEN 1 ELSE 0 END AS bit) AS expired,
       CAST(CAST(Headers AS nvarchar(max)) AS varbinary(max)) AS headers,
       Body AS body,
       RowVersion AS seq
  FROM [sales].[Shop.Orders] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE RowVersion >= @first AND RowVersion < @stop
 ORDER BY RowVersion;
GO

-- browse_body_string
SELECT TOP (@messages)
       CAST(Id AS binary(16)) AS id,
       Expires AS expires,
       CAST(CASE WHEN Expires <= GETUTCDATE() THEN 1 ELSE 0 END AS bit) AS expired,
       CAST(CAST(Headers AS nvarchar(max)) AS varbinary(max)) AS headers,
       Body AS body,
       CAST(BodyString AS varbinary(max)) AS bodystring,
       RowVersion AS seq
  FROM [sales].[Shop.Orders] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE RowVersion >= @first AND RowVersion < @stop
 ORDER BY RowVersion;
GO

-- browse_seq
SELECT TOP (@messages) CAST(Id AS binary(16)) AS id, Expires AS expires, RowVersion AS seq
  FROM [sales].[Shop.Orders] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE RowVersion >= @first AND RowVersion < @stop
 ORDER BY RowVersion;
GO

-- browse_headers
SELECT TOP (@messages)
       CAST(CAST(Headers AS nvarchar(max)) AS varbinary(max)) AS headers,
       RowVersion AS seq
  FROM [sales].[Shop.Orders] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE RowVersion >= @first AND RowVersion < @stop
 ORDER BY RowVersion;
GO

-- browse_delayed
SELECT TOP (@messages) CAST(NULL AS nvarchar(36)) AS id, Due AS due, Headers AS headers, Body AS body
  FROM [sales].[Shop.Orders.Delayed] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
 ORDER BY Due;
GO

-- purge
DELETE FROM [sales].[Shop.Orders];
SELECT ROWCOUNT_BIG() AS messages;
GO

-- purge_range
DELETE FROM [sales].[Shop.Orders] WHERE RowVersion >= @first AND RowVersion < @stop;
SELECT ROWCOUNT_BIG() AS messages;
GO

-- purge_expired
DECLARE @gone bigint = 0, @taken bigint = 1;
WHILE @taken > 0 AND @gone < @messages
BEGIN
    WITH message AS (
        SELECT TOP (CASE WHEN @messages - @gone < 2000 THEN @messages - @gone ELSE 2000 END)
               RowVersion
          FROM [sales].[Shop.Orders] WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
         WHERE Expires <= GETUTCDATE()
    )
    DELETE FROM message;
    SET @taken = ROWCOUNT_BIG();
    SET @gone = @gone + @taken;
END;
SELECT @gone AS messages;
GO

-- stats
SELECT COUNT_BIG(*) AS messages,
       ISNULL(SUM(CAST(CASE WHEN Expires <= GETUTCDATE() THEN 1 ELSE 0 END AS bigint)), 0) AS expired,
       (SELECT ISNULL(SUM(a.total_pages), 0) * 8192
          FROM sys.partitions AS p
          JOIN sys.allocation_units AS a
            ON a.container_id = CASE a.type WHEN 2 THEN p.partition_id ELSE p.hobt_id END
         WHERE p.object_id = OBJECT_ID(N'[sales].[Shop.Orders]', N'U')) AS bytes,
       MIN(RowVersion) AS first,
       MAX(RowVersion) AS last
  FROM [sales].[Shop.Orders] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK);
GO

-- stats_delayed
SELECT COUNT_BIG(*) AS messages,
       ISNULL(SUM(CAST(CASE WHEN Due <= GETUTCDATE() THEN 1 ELSE 0 END AS bigint)), 0) AS due,
       (SELECT ISNULL(SUM(a.total_pages), 0) * 8192
          FROM sys.partitions AS p
          JOIN sys.allocation_units AS a
            ON a.container_id = CASE a.type WHEN 2 THEN p.partition_id ELSE p.hobt_id END
         WHERE p.object_id = OBJECT_ID(N'[sales].[Shop.Orders.Delayed]', N'U')) AS bytes
  FROM [sales].[Shop.Orders.Delayed] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK);
GO

-- seq_given
SELECT CAST(c.last_value AS bigint) AS given
  FROM sys.identity_columns AS c
 WHERE c.object_id = OBJECT_ID(N'[sales].[Shop.Orders]', N'U');
GO

-- table_sizes
SELECT ISNULL(SUM(CASE WHEN p.index_id < 2 AND a.type <> 2 THEN a.total_pages END), 0) * 8192
       AS table_bytes,
       ISNULL(SUM(CASE WHEN p.index_id > 1 AND a.type <> 2 THEN a.total_pages END), 0) * 8192
       AS index_bytes,
       ISNULL(SUM(CASE WHEN a.type = 2 THEN a.total_pages END), 0) * 8192 AS large_bytes,
       SUM(CASE WHEN p.index_id < 2 AND a.type = 1 THEN p.rows END) AS live,
       CAST(NULL AS bigint) AS dead,
       CAST(NULL AS datetime) AS cleaned_utc
  FROM sys.partitions AS p
  JOIN sys.allocation_units AS a
    ON a.container_id = CASE a.type WHEN 2 THEN p.partition_id ELSE p.hobt_id END
 WHERE p.object_id = OBJECT_ID(N'[sales].[Shop.Orders]', N'U');
GO

-- queue_tables
SELECT TOP (1000) t.name
  FROM sys.tables AS t
 WHERE t.schema_id = SCHEMA_ID(N'dbo')
   AND 5 = (SELECT COUNT(*)
              FROM sys.columns AS c
             WHERE c.object_id = t.object_id
               AND c.name IN (N'Id', N'Expires', N'Headers', N'Body', N'RowVersion'))
 ORDER BY t.name;
GO

-- check_rows
WITH lowest AS (
    SELECT TOP (50) RowVersion, Expires, CAST(Headers AS nvarchar(max)) AS Headers
      FROM [sales].[Shop.Orders] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
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
SELECT ends.last, e.expires, e.sent, e.lives
  FROM (SELECT MAX(RowVersion) AS last
          FROM [sales].[Shop.Orders] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)) AS ends
  LEFT JOIN expiring AS e ON 1 = 1;
GO

-- check_queue
DECLARE @table int = OBJECT_ID(N'[sales].[Shop.Orders]', N'U'), @login nvarchar(258) = QUOTENAME(USER_NAME());
DECLARE @named nvarchar(600) = N'[sales].[Shop.Orders]', @delayed bit = 0;
DECLARE @columns TABLE (name sysname COLLATE DATABASE_DEFAULT, type sysname COLLATE DATABASE_DEFAULT);
DECLARE @indexed TABLE (first_column sysname COLLATE DATABASE_DEFAULT);
INSERT INTO @columns (name, type)
SELECT c.name, t.name
  FROM sys.columns AS c
  JOIN sys.types AS t ON t.user_type_id = c.user_type_id
 WHERE c.object_id = @table;
INSERT INTO @indexed (first_column)
SELECT c.name
  FROM sys.indexes AS i
  JOIN sys.index_columns AS k
    ON k.object_id = i.object_id AND k.index_id = i.index_id AND k.key_ordinal = 1
  JOIN sys.columns AS c ON c.object_id = k.object_id AND c.column_id = k.column_id
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
  FROM (SELECT HAS_PERMS_BY_NAME(N'[sales].[Shop.Orders]', N'OBJECT', N'SELECT')
               * HAS_PERMS_BY_NAME(N'[sales].[Shop.Orders]', N'OBJECT', N'DELETE') AS may_receive,
               HAS_PERMS_BY_NAME(N'[sales].[Shop.Orders]', N'OBJECT', N'INSERT') AS may_send,
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
                                          FROM sys.triggers AS g
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
 WHERE @table IS NOT NULL AND law.broken = 1;
GO

-- check_delayed
DECLARE @table int = OBJECT_ID(N'[sales].[Shop.Orders.Delayed]', N'U'), @login nvarchar(258) = QUOTENAME(USER_NAME());
DECLARE @named nvarchar(600) = N'[sales].[Shop.Orders.Delayed]';
SELECT N'delayed_column' AS name, N'error' AS severity,
       CONCAT(N'column ', wanted.name, N' is missing: messages cannot be delayed or moved') AS found,
       CONCAT(N'ALTER TABLE ', @named, N' ADD ', wanted.name, N' ', wanted.type) AS mend
  FROM (VALUES (N'Headers', N'nvarchar(max) NOT NULL DEFAULT N''{}'''),
               (N'Body', N'varbinary(max) NULL'),
               (N'Due', N'datetime NOT NULL DEFAULT GETUTCDATE()')) AS wanted (name, type)
 WHERE @table IS NOT NULL
   AND NOT EXISTS (SELECT 1
                     FROM sys.columns AS c
                    WHERE c.object_id = @table
                      AND c.name = wanted.name COLLATE DATABASE_DEFAULT)
UNION ALL
SELECT law.name, law.severity, law.found, law.mend
  FROM (SELECT HAS_PERMS_BY_NAME(N'[sales].[Shop.Orders.Delayed]', N'OBJECT', N'SELECT') AS may_select,
               HAS_PERMS_BY_NAME(N'[sales].[Shop.Orders.Delayed]', N'OBJECT', N'DELETE') AS may_delete,
               HAS_PERMS_BY_NAME(N'[sales].[Shop.Orders.Delayed]', N'OBJECT', N'INSERT') AS may_insert) AS f
 CROSS APPLY (VALUES
    (N'due_index', N'warning',
     CASE WHEN NOT EXISTS (
                    SELECT 1
                      FROM sys.indexes AS i
                      JOIN sys.index_columns AS k
                        ON k.object_id = i.object_id AND k.index_id = i.index_id
                       AND k.key_ordinal = 1
                      JOIN sys.columns AS c
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
 WHERE @table IS NOT NULL AND law.broken = 1;
GO

-- check_server
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
                ELSE CONCAT(N'GRANT VIEW SERVER STATE TO ', QUOTENAME(SUSER_SNAME())) END AS mend;
GO

-- script_state_check
DECLARE @found nvarchar(2000);
SELECT TOP (1) @found = N'nothing is installed: ' + f.fault
  FROM (SELECT N'of state_faults' AS fault) AS f;
IF @found IS NOT NULL
BEGIN;
    THROW 51902, @found, 1;
END;
GO

-- script_role
IF DATABASE_PRINCIPAL_ID(N'sqlqueue_reader') IS NULL
    CREATE ROLE [sqlqueue_reader];
GO

-- script_owner
IF EXISTS (SELECT 1
             FROM sys.database_role_members AS m
            WHERE m.role_principal_id = DATABASE_PRINCIPAL_ID(N'sqlqueue_reader'))
BEGIN;
    THROW 51902, N'the owner of the state tables has members: take them out, or name another', 1;
END;
IF USER_NAME((SELECT s.principal_id FROM sys.schemas AS s WHERE s.name = N'sqlqueue')) <> N'sqlqueue_reader'
    ALTER AUTHORIZATION ON SCHEMA::[sqlqueue] TO [sqlqueue_reader];
GO

-- script_reader
GRANT SELECT, DELETE ON [sales].[Shop.Orders] TO [sqlqueue_reader];
GO

-- script_reader_state
GRANT SELECT ON [sqlqueue].version TO [sqlqueue_reader];
GRANT SELECT, INSERT, UPDATE ON [sqlqueue].reader TO [sqlqueue_reader];
GRANT SELECT, INSERT, UPDATE ON [sqlqueue].task TO [sqlqueue_reader];
GRANT SELECT, INSERT, UPDATE, DELETE ON [sqlqueue].receipt TO [sqlqueue_reader];
GRANT SELECT, INSERT, DELETE ON [sqlqueue].receipt_page TO [sqlqueue_reader];
GO

-- script_sender
GRANT INSERT ON [sales].[Shop.Orders] TO [sqlqueue_reader];
GO

-- script_sender_state
GRANT SELECT ON [sqlqueue].version TO [sqlqueue_reader];
GRANT SELECT, INSERT, DELETE ON [sqlqueue].outbox TO [sqlqueue_reader];
GRANT SELECT, INSERT, DELETE ON [sqlqueue].outbox_page TO [sqlqueue_reader];
GRANT SELECT, INSERT, UPDATE, DELETE ON [sqlqueue].dispatched TO [sqlqueue_reader];
GO

-- script_share
SELECT 0 AS row_security;
GO

-- script_all_rows
SELECT 0 AS row_security;
GO

-- script_mover
GRANT SELECT, DELETE ON [sales].[Shop.Orders.Delayed] TO [sqlqueue_reader];
GRANT INSERT ON [sales].[Shop.Orders] TO [sqlqueue_reader];
GO

-- script_delayer
GRANT INSERT ON [sales].[Shop.Orders.Delayed] TO [sqlqueue_reader];
GO

-- script_errors
GRANT INSERT ON [sales].[Shop.Orders] TO [sqlqueue_reader];
GO

-- script_publisher
GRANT SELECT ON [dbo].[SubscriptionRouting] TO [sqlqueue_reader];
GO

-- script_subscriber
GRANT INSERT, UPDATE, DELETE ON [dbo].[SubscriptionRouting] TO [sqlqueue_reader];
GO

-- script_creator
GRANT ALTER ON SCHEMA::[sales] TO [sqlqueue_reader];
GRANT CREATE TABLE, VIEW DEFINITION TO [sqlqueue_reader];
GO

-- load
INSERT INTO [sales].[Shop.Orders] (Headers, Body, Expires, Id, Recoverable) SELECT Headers, Body, Expires, Id, 1 FROM OPENJSON(@rows) WITH (place int '$[0]', Headers nvarchar(max) '$[1]', Body varbinary(max) '$[2]', Expires datetime2(6) '$[3]', Id uniqueidentifier '$[4]') AS sent ORDER BY place;
GO
