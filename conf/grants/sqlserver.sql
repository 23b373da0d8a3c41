-- Tables and rights by role, for the endpoint Shop.Orders. A db_owner runs it, as often as need be:
-- sqlcmd -b -d shop -i sqlserver.sql
--
--   sqlqueue_reader     receives from the queue, moves what is due, diverts to error and audit queue
--   sqlqueue_sender     sends to the queue, also delayed, and publishes
--   sqlqueue_operator   both, with all queues, and subscribes: runs the commands of `sqlqueue`
--   sqlqueue_installer  makes queues: `sqlqueue create`; the state tables are made here
--   sqlqueue_owner      owns the state tables; no login may be a member of it
--
-- For queues of your own, and for a job that reads the error or the audit queue, print another one:
-- sqlqueue script Shop.Orders --error error --audit audit --delayed --subscription-table SubscriptionRouting --operator sqlqueue_operator --installer sqlqueue_installer --dialect sqlserver

SET NOCOUNT ON;
SET XACT_ABORT ON;
SET ANSI_NULLS ON;
SET QUOTED_IDENTIFIER ON;
GO

-- Tables. The login that runs this owns them.

BEGIN TRANSACTION;
IF OBJECT_ID(N'[dbo].[Shop.Orders]', N'U') IS NULL
BEGIN
    DECLARE @name nvarchar(255) = LEFT(QUOTENAME(DB_NAME()) + N'.' + N'[dbo].[Shop.Orders]_lock', 255),
            @got int, @number int, @said nvarchar(100);
    EXEC @got = sys.sp_getapplock
         @Resource = @name, @LockMode = N'Exclusive', @LockOwner = N'Transaction';
    IF @got < 0
    BEGIN
        SELECT @number = 51000 - @got, @said = CONCAT(N'sp_getapplock returned ', @got);
        THROW @number, @said, 1;
    END;
    BEGIN TRY
        IF OBJECT_ID(N'[dbo].[Shop.Orders]', N'U') IS NULL
        BEGIN
            CREATE TABLE [dbo].[Shop.Orders] (
                Id             uniqueidentifier NOT NULL,
                CorrelationId  varchar(255)     NULL,
                ReplyToAddress varchar(255)     NULL,
                Recoverable    bit              NOT NULL,
                Expires        datetime         NULL,
                Headers        nvarchar(max)    NOT NULL,
                Body           varbinary(max)   NULL,
                RowVersion     bigint           IDENTITY(1,1) NOT NULL
            );
            CREATE NONCLUSTERED INDEX Index_RowVersion ON [dbo].[Shop.Orders] (RowVersion ASC);
            CREATE NONCLUSTERED INDEX Index_Expires ON [dbo].[Shop.Orders] (Expires)
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
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
IF OBJECT_ID(N'[dbo].[error]', N'U') IS NULL
BEGIN
    DECLARE @name nvarchar(255) = LEFT(QUOTENAME(DB_NAME()) + N'.' + N'[dbo].[error]_lock', 255),
            @got int, @number int, @said nvarchar(100);
    EXEC @got = sys.sp_getapplock
         @Resource = @name, @LockMode = N'Exclusive', @LockOwner = N'Transaction';
    IF @got < 0
    BEGIN
        SELECT @number = 51000 - @got, @said = CONCAT(N'sp_getapplock returned ', @got);
        THROW @number, @said, 1;
    END;
    BEGIN TRY
        IF OBJECT_ID(N'[dbo].[error]', N'U') IS NULL
        BEGIN
            CREATE TABLE [dbo].[error] (
                Id             uniqueidentifier NOT NULL,
                CorrelationId  varchar(255)     NULL,
                ReplyToAddress varchar(255)     NULL,
                Recoverable    bit              NOT NULL,
                Expires        datetime         NULL,
                Headers        nvarchar(max)    NOT NULL,
                Body           varbinary(max)   NULL,
                RowVersion     bigint           IDENTITY(1,1) NOT NULL
            );
            CREATE NONCLUSTERED INDEX Index_RowVersion ON [dbo].[error] (RowVersion ASC);
            CREATE NONCLUSTERED INDEX Index_Expires ON [dbo].[error] (Expires)
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
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
IF OBJECT_ID(N'[dbo].[audit]', N'U') IS NULL
BEGIN
    DECLARE @name nvarchar(255) = LEFT(QUOTENAME(DB_NAME()) + N'.' + N'[dbo].[audit]_lock', 255),
            @got int, @number int, @said nvarchar(100);
    EXEC @got = sys.sp_getapplock
         @Resource = @name, @LockMode = N'Exclusive', @LockOwner = N'Transaction';
    IF @got < 0
    BEGIN
        SELECT @number = 51000 - @got, @said = CONCAT(N'sp_getapplock returned ', @got);
        THROW @number, @said, 1;
    END;
    BEGIN TRY
        IF OBJECT_ID(N'[dbo].[audit]', N'U') IS NULL
        BEGIN
            CREATE TABLE [dbo].[audit] (
                Id             uniqueidentifier NOT NULL,
                CorrelationId  varchar(255)     NULL,
                ReplyToAddress varchar(255)     NULL,
                Recoverable    bit              NOT NULL,
                Expires        datetime         NULL,
                Headers        nvarchar(max)    NOT NULL,
                Body           varbinary(max)   NULL,
                RowVersion     bigint           IDENTITY(1,1) NOT NULL
            );
            CREATE NONCLUSTERED INDEX Index_RowVersion ON [dbo].[audit] (RowVersion ASC);
            CREATE NONCLUSTERED INDEX Index_Expires ON [dbo].[audit] (Expires)
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
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
DECLARE @found nvarchar(2000);
SELECT TOP (1) @found = N'nothing is installed: ' + f.fault
  FROM (SELECT CONCAT(N'schema ', QUOTENAME(s.name), N' belongs to ', QUOTENAME(USER_NAME(s.principal_id)))
       AS fault
  FROM sys.schemas AS s
 WHERE s.name = N'sqlqueue'
   AND USER_NAME(s.principal_id) <> USER_NAME()
   AND USER_NAME(s.principal_id) <> ISNULL(N'sqlqueue_owner', USER_NAME())
   AND NOT (USER_NAME(s.principal_id) = N'dbo' AND IS_MEMBER(N'db_owner') = 1)
UNION ALL
SELECT CONCAT(N'table ', QUOTENAME(o.name), N' belongs to ', QUOTENAME(USER_NAME(o.principal_id)))
  FROM sys.objects AS o
 WHERE o.schema_id = SCHEMA_ID(N'sqlqueue')
   AND USER_NAME(o.principal_id) <> USER_NAME()
   AND USER_NAME(o.principal_id) <> ISNULL(N'sqlqueue_owner', USER_NAME())
UNION ALL
SELECT CONCAT(QUOTENAME(o.name), N' is no table')
  FROM sys.objects AS o
 WHERE o.schema_id = SCHEMA_ID(N'sqlqueue')
   AND o.type IN ('V', 'SN')
   AND o.name IN (N'version', N'reader', N'task', N'receipt', N'receipt_page', N'outbox',
                  N'outbox_page', N'dispatched')
UNION ALL
SELECT CONCAT(N'table ', QUOTENAME(o.name), N' has the trigger ', QUOTENAME(r.name))
  FROM sys.triggers AS r
  JOIN sys.objects AS o ON o.object_id = r.parent_id
 WHERE o.schema_id = SCHEMA_ID(N'sqlqueue')
UNION ALL
SELECT CONCAT(N'table ', QUOTENAME(OBJECT_NAME(d.referencing_id)), N' has a default, a constraint or a',
              N' column that calls ', d.referenced_entity_name)
  FROM sys.sql_expression_dependencies AS d
  JOIN sys.objects AS o ON o.object_id = d.referencing_id
 WHERE o.schema_id = SCHEMA_ID(N'sqlqueue')
   AND OBJECTPROPERTY(d.referenced_id, 'IsTable') = 0) AS f;
IF @found IS NOT NULL
BEGIN;
    THROW 51902, @found, 1;
END;
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
IF SCHEMA_ID(N'sqlqueue') IS NULL
    EXEC (N'CREATE SCHEMA ' + N'[sqlqueue]');
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
IF OBJECT_ID(N'[sqlqueue]' + N'.version', N'U') IS NULL
    CREATE TABLE [sqlqueue].version (
        version int NOT NULL PRIMARY KEY
    );
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
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
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
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
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
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
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
IF EXISTS (SELECT 1 FROM sys.tables
            WHERE object_id = OBJECT_ID(N'[sqlqueue]' + N'.receipt', N'U')
              AND large_value_types_out_of_row = 0)
BEGIN
    DECLARE @table nvarchar(300) = N'[sqlqueue]' + N'.receipt';
    EXEC sys.sp_tableoption @table, 'large value types out of row', '1';
END;
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
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
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
IF EXISTS (SELECT 1 FROM sys.tables
            WHERE object_id = OBJECT_ID(N'[sqlqueue]' + N'.receipt_page', N'U')
              AND large_value_types_out_of_row = 0)
BEGIN
    DECLARE @table nvarchar(300) = N'[sqlqueue]' + N'.receipt_page';
    EXEC sys.sp_tableoption @table, 'large value types out of row', '1';
END;
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
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
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
IF EXISTS (SELECT 1 FROM sys.tables
            WHERE object_id = OBJECT_ID(N'[sqlqueue]' + N'.outbox', N'U')
              AND large_value_types_out_of_row = 0)
BEGIN
    DECLARE @table nvarchar(300) = N'[sqlqueue]' + N'.outbox';
    EXEC sys.sp_tableoption @table, 'large value types out of row', '1';
END;
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
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
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
IF EXISTS (SELECT 1 FROM sys.tables
            WHERE object_id = OBJECT_ID(N'[sqlqueue]' + N'.outbox_page', N'U')
              AND large_value_types_out_of_row = 0)
BEGIN
    DECLARE @table nvarchar(300) = N'[sqlqueue]' + N'.outbox_page';
    EXEC sys.sp_tableoption @table, 'large value types out of row', '1';
END;
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
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
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
DECLARE @found nvarchar(2000);
SELECT TOP (1) @found = N'nothing is installed: ' + f.fault
  FROM (SELECT CONCAT(N'schema ', QUOTENAME(s.name), N' belongs to ', QUOTENAME(USER_NAME(s.principal_id)))
       AS fault
  FROM sys.schemas AS s
 WHERE s.name = N'sqlqueue'
   AND USER_NAME(s.principal_id) <> USER_NAME()
   AND USER_NAME(s.principal_id) <> ISNULL(N'sqlqueue_owner', USER_NAME())
   AND NOT (USER_NAME(s.principal_id) = N'dbo' AND IS_MEMBER(N'db_owner') = 1)
UNION ALL
SELECT CONCAT(N'table ', QUOTENAME(o.name), N' belongs to ', QUOTENAME(USER_NAME(o.principal_id)))
  FROM sys.objects AS o
 WHERE o.schema_id = SCHEMA_ID(N'sqlqueue')
   AND USER_NAME(o.principal_id) <> USER_NAME()
   AND USER_NAME(o.principal_id) <> ISNULL(N'sqlqueue_owner', USER_NAME())
UNION ALL
SELECT CONCAT(QUOTENAME(o.name), N' is no table')
  FROM sys.objects AS o
 WHERE o.schema_id = SCHEMA_ID(N'sqlqueue')
   AND o.type IN ('V', 'SN')
   AND o.name IN (N'version', N'reader', N'task', N'receipt', N'receipt_page', N'outbox',
                  N'outbox_page', N'dispatched')
UNION ALL
SELECT CONCAT(N'table ', QUOTENAME(o.name), N' has the trigger ', QUOTENAME(r.name))
  FROM sys.triggers AS r
  JOIN sys.objects AS o ON o.object_id = r.parent_id
 WHERE o.schema_id = SCHEMA_ID(N'sqlqueue')
UNION ALL
SELECT CONCAT(N'table ', QUOTENAME(OBJECT_NAME(d.referencing_id)), N' has a default, a constraint or a',
              N' column that calls ', d.referenced_entity_name)
  FROM sys.sql_expression_dependencies AS d
  JOIN sys.objects AS o ON o.object_id = d.referencing_id
 WHERE o.schema_id = SCHEMA_ID(N'sqlqueue')
   AND OBJECTPROPERTY(d.referenced_id, 'IsTable') = 0) AS f;
IF @found IS NOT NULL
BEGIN;
    THROW 51902, @found, 1;
END;
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
INSERT INTO [sqlqueue].version (version)
SELECT 3
 WHERE NOT EXISTS (SELECT 1 FROM [sqlqueue].version WHERE version >= 3);
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
DELETE FROM [sqlqueue].version WHERE version < 3;
COMMIT TRANSACTION;
GO

-- Rights of a reader: ALTER ROLE [sqlqueue_reader] ADD MEMBER the login of its Spark job.

BEGIN TRANSACTION;
IF DATABASE_PRINCIPAL_ID(N'sqlqueue_reader') IS NULL
    CREATE ROLE [sqlqueue_reader];
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
GRANT SELECT ON [sqlqueue].version TO [sqlqueue_reader];
GRANT SELECT, INSERT, UPDATE ON [sqlqueue].reader TO [sqlqueue_reader];
GRANT SELECT, INSERT, UPDATE ON [sqlqueue].task TO [sqlqueue_reader];
GRANT SELECT, INSERT, UPDATE, DELETE ON [sqlqueue].receipt TO [sqlqueue_reader];
GRANT SELECT, INSERT, DELETE ON [sqlqueue].receipt_page TO [sqlqueue_reader];
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
GRANT SELECT, DELETE ON [dbo].[Shop.Orders] TO [sqlqueue_reader];
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
GRANT INSERT ON [dbo].[error] TO [sqlqueue_reader];
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
GRANT INSERT ON [dbo].[audit] TO [sqlqueue_reader];
COMMIT TRANSACTION;
GO

-- Rights of a sender: ALTER ROLE [sqlqueue_sender] ADD MEMBER the login of its Spark job.

BEGIN TRANSACTION;
IF DATABASE_PRINCIPAL_ID(N'sqlqueue_sender') IS NULL
    CREATE ROLE [sqlqueue_sender];
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
GRANT SELECT ON [sqlqueue].version TO [sqlqueue_sender];
GRANT SELECT, INSERT, DELETE ON [sqlqueue].outbox TO [sqlqueue_sender];
GRANT SELECT, INSERT, DELETE ON [sqlqueue].outbox_page TO [sqlqueue_sender];
GRANT SELECT, INSERT, UPDATE, DELETE ON [sqlqueue].dispatched TO [sqlqueue_sender];
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
GRANT INSERT ON [dbo].[Shop.Orders] TO [sqlqueue_sender];
COMMIT TRANSACTION;
GO

-- Who hears of which topic.

BEGIN TRANSACTION;
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
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
GRANT SELECT ON [dbo].[SubscriptionRouting] TO [sqlqueue_sender];
COMMIT TRANSACTION;
GO

-- Delayed messages.

BEGIN TRANSACTION;
IF OBJECT_ID(N'[dbo].[Shop.Orders.Delayed]', N'U') IS NULL
BEGIN
    DECLARE @name nvarchar(255) = LEFT(QUOTENAME(DB_NAME()) + N'.' + N'[dbo].[Shop.Orders.Delayed]_lock', 255),
            @got int, @number int, @said nvarchar(100);
    EXEC @got = sys.sp_getapplock
         @Resource = @name, @LockMode = N'Exclusive', @LockOwner = N'Transaction';
    IF @got < 0
    BEGIN
        SELECT @number = 51000 - @got, @said = CONCAT(N'sp_getapplock returned ', @got);
        THROW @number, @said, 1;
    END;
    BEGIN TRY
        IF OBJECT_ID(N'[dbo].[Shop.Orders.Delayed]', N'U') IS NULL
        BEGIN
            CREATE TABLE [dbo].[Shop.Orders.Delayed] (
                Headers    nvarchar(max)  NOT NULL,
                Body       varbinary(max) NULL,
                Due        datetime       NOT NULL,
                RowVersion bigint         IDENTITY(1,1) NOT NULL
            );
            CREATE NONCLUSTERED INDEX Index_Due ON [dbo].[Shop.Orders.Delayed] (Due);
        END;
    END TRY
    BEGIN CATCH
        IF XACT_STATE() = 1
            EXEC sys.sp_releaseapplock @Resource = @name, @LockOwner = N'Transaction';
        THROW;
    END CATCH;
    EXEC sys.sp_releaseapplock @Resource = @name, @LockOwner = N'Transaction';
END;
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
IF NOT EXISTS (SELECT 1
                 FROM sys.index_columns AS k
                 JOIN sys.columns AS c
                   ON c.object_id = k.object_id AND c.column_id = k.column_id
                WHERE k.object_id = OBJECT_ID(N'[dbo].[Shop.Orders.Delayed]', N'U')
                  AND k.key_ordinal = 1 AND c.name = N'Due')
    CREATE NONCLUSTERED INDEX Index_Due ON [dbo].[Shop.Orders.Delayed] (Due);
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
GRANT SELECT, DELETE ON [dbo].[Shop.Orders.Delayed] TO [sqlqueue_reader];
GRANT INSERT ON [dbo].[Shop.Orders] TO [sqlqueue_reader];
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
GRANT INSERT ON [dbo].[Shop.Orders.Delayed] TO [sqlqueue_sender];
COMMIT TRANSACTION;
GO

-- Rights of an operator: ALTER ROLE [sqlqueue_operator] ADD MEMBER whoever runs `sqlqueue`.

BEGIN TRANSACTION;
IF DATABASE_PRINCIPAL_ID(N'sqlqueue_operator') IS NULL
    CREATE ROLE [sqlqueue_operator];
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
GRANT SELECT ON [sqlqueue].version TO [sqlqueue_operator];
GRANT SELECT, INSERT, UPDATE ON [sqlqueue].reader TO [sqlqueue_operator];
GRANT SELECT, INSERT, UPDATE ON [sqlqueue].task TO [sqlqueue_operator];
GRANT SELECT, INSERT, UPDATE, DELETE ON [sqlqueue].receipt TO [sqlqueue_operator];
GRANT SELECT, INSERT, DELETE ON [sqlqueue].receipt_page TO [sqlqueue_operator];
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
GRANT SELECT ON [sqlqueue].version TO [sqlqueue_operator];
GRANT SELECT, INSERT, DELETE ON [sqlqueue].outbox TO [sqlqueue_operator];
GRANT SELECT, INSERT, DELETE ON [sqlqueue].outbox_page TO [sqlqueue_operator];
GRANT SELECT, INSERT, UPDATE, DELETE ON [sqlqueue].dispatched TO [sqlqueue_operator];
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
GRANT SELECT, DELETE ON [dbo].[Shop.Orders] TO [sqlqueue_operator];
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
GRANT INSERT ON [dbo].[Shop.Orders] TO [sqlqueue_operator];
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
GRANT SELECT, DELETE ON [dbo].[error] TO [sqlqueue_operator];
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
GRANT INSERT ON [dbo].[error] TO [sqlqueue_operator];
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
GRANT SELECT, DELETE ON [dbo].[audit] TO [sqlqueue_operator];
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
GRANT INSERT ON [dbo].[audit] TO [sqlqueue_operator];
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
GRANT SELECT, DELETE ON [dbo].[Shop.Orders.Delayed] TO [sqlqueue_operator];
GRANT INSERT ON [dbo].[Shop.Orders] TO [sqlqueue_operator];
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
GRANT INSERT ON [dbo].[Shop.Orders.Delayed] TO [sqlqueue_operator];
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
GRANT SELECT ON [dbo].[SubscriptionRouting] TO [sqlqueue_operator];
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
GRANT INSERT, UPDATE, DELETE ON [dbo].[SubscriptionRouting] TO [sqlqueue_operator];
COMMIT TRANSACTION;
GO

-- Owner of the state tables: no login may be a member of it.

BEGIN TRANSACTION;
IF DATABASE_PRINCIPAL_ID(N'sqlqueue_owner') IS NULL
    CREATE ROLE [sqlqueue_owner];
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
IF EXISTS (SELECT 1
             FROM sys.database_role_members AS m
            WHERE m.role_principal_id = DATABASE_PRINCIPAL_ID(N'sqlqueue_owner'))
BEGIN;
    THROW 51902, N'the owner of the state tables has members: take them out, or name another', 1;
END;
IF USER_NAME((SELECT s.principal_id FROM sys.schemas AS s WHERE s.name = N'sqlqueue')) <> N'sqlqueue_owner'
    ALTER AUTHORIZATION ON SCHEMA::[sqlqueue] TO [sqlqueue_owner];
COMMIT TRANSACTION;
GO

-- Rights of an installer: ALTER ROLE [sqlqueue_installer] ADD MEMBER whoever makes queues.

BEGIN TRANSACTION;
IF DATABASE_PRINCIPAL_ID(N'sqlqueue_installer') IS NULL
    CREATE ROLE [sqlqueue_installer];
COMMIT TRANSACTION;
GO

BEGIN TRANSACTION;
GRANT ALTER ON SCHEMA::[dbo] TO [sqlqueue_installer];
GRANT CREATE TABLE, VIEW DEFINITION TO [sqlqueue_installer];
COMMIT TRANSACTION;
GO
