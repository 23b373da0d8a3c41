-- sqlqueue script Shop.Orders --domain orders --instance web1 --error error --audit audit --delayed --body-string --subscription-table SubscriptionRouting --operator clerk --producer endpoints --login spark_orders --database shop --dialect sqlserver
-- printed by release 0.2.0, with state tables of version 5
-- Run this by `sqlcmd -b -I -f 65001 -d shop` as a member of db_owner.
-- Members of the roles below are one team: each can read, change and return what the others received.
-- Print another script with --domain for another team. It waits 3 s for a lock, and then ends with error
-- 1222. After an error nothing has changed, except rights. Then run it again. A second run changes nothing
-- that is in place.
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET ANSI_NULLS ON;
SET QUOTED_IDENTIFIER ON;
SET LOCK_TIMEOUT 3000;
-- In the wrong database nothing runs before SET NOEXEC OFF, even if the tool sends more batches.
DECLARE @here sysname = DB_NAME(), @wanted sysname = N'shop';
IF @wanted = N'' AND @here IN (N'master', N'tempdb', N'model', N'msdb')
   OR @wanted <> N'' AND ISNULL(DB_ID(@wanted), 0) <> DB_ID()
BEGIN
    IF @wanted = N''
        SET @wanted = N'that of the queues';
    RAISERROR (N'nothing is installed: the database is %s, expected %s', 16, 1, @here, @wanted);
    SET NOEXEC ON;
END
GO
BEGIN TRANSACTION;
IF SCHEMA_ID(N'sqlqueue_orders') IS NULL
    EXEC (N'CREATE SCHEMA [sqlqueue_orders]');

-- The owner of the state schema, or of a table that exists in it or in the list below, can run code with
-- the rights of those who use it. The owner of a role can add members. Trusted are dbo, this user and the
-- principals of --trust. After a fault nothing runs before SET NOEXEC OFF, even if the tool sends more
-- batches. Rights are granted one by one, because each grant waits for the sessions that use the table.
DECLARE @fault nvarchar(2000), @known int, @owners nvarchar(max) = N'[]',
        @named nvarchar(max) = N'[]';
SELECT TOP (1) @fault = CONCAT(N'nothing is installed in schema [sqlqueue_orders]: ', f.fault)
  FROM (
        SELECT f.what COLLATE DATABASE_DEFAULT
               + CASE WHEN f.is_fault = 1 THEN N'' ELSE N' belongs to '
                             + ISNULL(USER_NAME(NULLIF(f.owner_id, 0)), N'an owner that cannot be seen') END AS fault,
               CASE WHEN f.is_fault = 0 THEN USER_NAME(NULLIF(f.owner_id, 0)) END AS role,
               CAST(ISNULL(IS_SRVROLEMEMBER(N'sysadmin'), 0) AS bit) AS is_super
          FROM (SELECT N'the schema' AS what, 0 AS is_fault, ISNULL(s.principal_id, 0) AS owner_id
                  FROM sys.schemas AS s
                 WHERE s.name = N'sqlqueue_orders'
                UNION ALL
                SELECT CONCAT(N'table ', QUOTENAME(o.name COLLATE DATABASE_DEFAULT),
                              CASE WHEN o.type <> N'U' THEN N' is no table' WHEN p.policies > 0 THEN N' has a policy' END),
                       CASE WHEN o.type <> N'U' OR p.policies > 0 THEN 1 ELSE 0 END,
                       ISNULL(OBJECTPROPERTY(o.object_id, N'OwnerId'), 0)
                  FROM sys.objects AS o
                 CROSS APPLY (SELECT COUNT(*) AS policies FROM sys.security_predicates AS s
                               WHERE s.target_object_id = o.object_id) AS p
                 WHERE o.schema_id = SCHEMA_ID(N'sqlqueue_orders') AND o.type IN (N'U', N'V', N'SN')) AS f
         WHERE f.is_fault = 1
            OR f.owner_id NOT IN (
               SELECT t.id
                 FROM (SELECT ISNULL(DATABASE_PRINCIPAL_ID(N'dbo'), 1) AS id
                       UNION ALL
                       SELECT DATABASE_PRINCIPAL_ID(CAST(o.value AS nvarchar(128))) FROM OPENJSON(@owners) AS o
                       UNION ALL
                       SELECT o.id
                         FROM (SELECT DATABASE_PRINCIPAL_ID()
                               UNION ALL
                               SELECT n.id
                                 FROM OPENJSON(@named) WITH (schema_name nvarchar(128) '$.schema_name',
                                                             name nvarchar(776) '$.name',
                                                             catalog nvarchar(128) '$.catalog') AS w
                                CROSS APPLY (SELECT OBJECTPROPERTY(OBJECT_ID(w.name, N'U'), N'OwnerId')
                                             UNION ALL
                                             SELECT principal_id FROM sys.schemas WHERE name = w.schema_name) AS n (id)
                                WHERE w.catalog IS NULL OR ISNULL(DB_ID(w.catalog), 0) = DB_ID()) AS o (id)
                        WHERE ISNULL(IS_SRVROLEMEMBER(N'sysadmin'), 0) = 0) AS t
                WHERE ISNULL(t.id, 0) > 0
               )
        UNION ALL
        SELECT CONCAT(N'table ', m.value COLLATE DATABASE_DEFAULT, N' belongs to ', QUOTENAME(USER_NAME(o.id))),
               NULL, NULL
          FROM OPENJSON(N'["[dbo].[Shop.Orders]", "[dbo].[Shop.Orders.web1]", "[dbo].[error]", "[dbo].[audit]", "[dbo].[Shop.Orders]", "[dbo].[Shop.Orders.Delayed]", "[dbo].[SubscriptionRouting]"]') AS m
         CROSS APPLY (SELECT ISNULL(OBJECTPROPERTY(OBJECT_ID(m.value), N'OwnerId'), 0) AS id) AS o
         WHERE OBJECT_ID(m.value) IS NOT NULL
           AND o.id NOT IN (
               SELECT t.id
                 FROM (SELECT ISNULL(DATABASE_PRINCIPAL_ID(N'dbo'), 1) AS id
                       UNION ALL
                       SELECT DATABASE_PRINCIPAL_ID(CAST(o.value AS nvarchar(128))) FROM OPENJSON(@owners) AS o
                       UNION ALL
                       SELECT o.id
                         FROM (SELECT DATABASE_PRINCIPAL_ID()
                               UNION ALL
                               SELECT n.id
                                 FROM OPENJSON(@named) WITH (schema_name nvarchar(128) '$.schema_name',
                                                             name nvarchar(776) '$.name',
                                                             catalog nvarchar(128) '$.catalog') AS w
                                CROSS APPLY (SELECT OBJECTPROPERTY(OBJECT_ID(w.name, N'U'), N'OwnerId')
                                             UNION ALL
                                             SELECT principal_id FROM sys.schemas WHERE name = w.schema_name) AS n (id)
                                WHERE w.catalog IS NULL OR ISNULL(DB_ID(w.catalog), 0) = DB_ID()) AS o (id)
                        WHERE ISNULL(IS_SRVROLEMEMBER(N'sysadmin'), 0) = 0) AS t
                WHERE ISNULL(t.id, 0) > 0
               )
        UNION ALL
        SELECT CONCAT(N'user or role ', QUOTENAME(p.name COLLATE DATABASE_DEFAULT),
                      CASE WHEN p.type <> N'R' THEN N' is no role' ELSE N' belongs to '
                           + ISNULL(QUOTENAME(USER_NAME(p.owning_principal_id)), N'an owner that cannot be seen') END),
               NULL, NULL
          FROM sys.database_principals AS p
         WHERE p.name IN (SELECT r.value COLLATE DATABASE_DEFAULT FROM OPENJSON(N'["orders_reader", "orders_sender", "clerk", "endpoints"]') AS r)
           AND (p.type <> N'R' OR ISNULL(p.owning_principal_id, 0) NOT IN (
                SELECT t.id
                  FROM (SELECT ISNULL(DATABASE_PRINCIPAL_ID(N'dbo'), 1) AS id
                        UNION ALL
                        SELECT DATABASE_PRINCIPAL_ID(CAST(o.value AS nvarchar(128))) FROM OPENJSON(@owners) AS o
                        UNION ALL
                        SELECT o.id
                          FROM (SELECT DATABASE_PRINCIPAL_ID()
                                UNION ALL
                                SELECT n.id
                                  FROM OPENJSON(@named) WITH (schema_name nvarchar(128) '$.schema_name',
                                                              name nvarchar(776) '$.name',
                                                              catalog nvarchar(128) '$.catalog') AS w
                                 CROSS APPLY (SELECT OBJECTPROPERTY(OBJECT_ID(w.name, N'U'), N'OwnerId')
                                              UNION ALL
                                              SELECT principal_id FROM sys.schemas WHERE name = w.schema_name) AS n (id)
                                 WHERE w.catalog IS NULL OR ISNULL(DB_ID(w.catalog), 0) = DB_ID()) AS o (id)
                         WHERE ISNULL(IS_SRVROLEMEMBER(N'sysadmin'), 0) = 0) AS t
                 WHERE ISNULL(t.id, 0) > 0
                ))
       ) AS f;
IF @fault IS NULL AND OBJECT_ID(N'[sqlqueue_orders].version', N'U') IS NOT NULL
BEGIN
    SELECT @known = MAX(version) FROM [sqlqueue_orders].version;
    IF ISNULL(@known, 0) NOT BETWEEN 3 AND 5
        SET @fault = CONCAT(
            N'schema [sqlqueue_orders] has state tables of version ', @known, N', expected 3 to 5. Newer tables need ',
            N'the script of their release. Of older ones, stop the queries, see that receipt and staging ',
            N'are empty, or their messages would be lost, then drop the schema and run this again.');
END;
IF @fault IS NOT NULL
BEGIN
    ROLLBACK TRANSACTION;
    RAISERROR (N'%s', 16, 1, @fault);
    SET NOEXEC ON;
    RETURN;
END;

-- State tables of version 3 become those of version 4. Tables of another version are left alone. Columns
-- get the words of the code: `plan` is `stored_plan`, `plan_after` is `plan_high_water`, Spark's number
-- of a batch is `spark_batch`, and a sink's is `sink_batch`. The release of version 3 reads the old
-- names, so its streams and sinks end at their next statement. All rows stay as they are. `version_4` is
-- a column that is always null. The statements of the release of version 4 name it, so they fail when a
-- later step has renamed it. A login that may write `stream` gets the right to use `query_reader`.
-- Each statement is executed as text, because a batch that names a column which does not exist yet does
-- not compile. A column that a constraint names cannot be renamed, so constraints of `stream` are made
-- again.
-- Locks:   stream, receipt, staging, staging_page and dispatch_log as a whole, until commit. Waits for
--          tasks and drivers that run.
DECLARE @before_4 int, @text_4 nvarchar(max) = N'';
IF OBJECT_ID(N'[sqlqueue_orders].version', N'U') IS NOT NULL
    SELECT @before_4 = MAX(version) FROM [sqlqueue_orders].version;
IF @before_4 = 3
BEGIN
    SELECT @text_4 = @text_4 + N'ALTER TABLE [sqlqueue_orders].stream DROP CONSTRAINT ' + QUOTENAME(c.name) + N';'
      FROM sys.check_constraints AS c
     WHERE c.parent_object_id = OBJECT_ID(N'[sqlqueue_orders].stream')
       AND (CHARINDEX(N'[plan]', c.[definition]) > 0 OR CHARINDEX(N'[query_batch]', c.[definition]) > 0);
    EXEC (@text_4);
    EXEC sys.sp_rename N'[sqlqueue_orders].stream.[plan]', N'stored_plan', N'COLUMN';
    EXEC sys.sp_rename N'[sqlqueue_orders].stream.plan_after', N'plan_high_water', N'COLUMN';
    EXEC sys.sp_rename N'[sqlqueue_orders].stream.query_batch', N'spark_batch', N'COLUMN';
    EXEC (N'ALTER TABLE [sqlqueue_orders].stream ADD version_4 bit NULL;');
    EXEC (N'ALTER TABLE [sqlqueue_orders].stream ADD
                CHECK ((stored_plan IS NULL AND plan_batch IS NULL)
                       OR (stored_plan IS NOT NULL AND plan_batch IS NOT NULL)),
                CHECK ((query_id IS NULL AND spark_batch IS NULL)
                       OR (query_id IS NOT NULL AND spark_batch IS NOT NULL));');
    EXEC sys.sp_rename N'[sqlqueue_orders].receipt.query_batch', N'spark_batch', N'COLUMN';
    EXEC sys.sp_rename N'[sqlqueue_orders].staging.batch', N'sink_batch', N'COLUMN';
    EXEC sys.sp_rename N'[sqlqueue_orders].staging_page.batch', N'sink_batch', N'COLUMN';
    EXEC sys.sp_rename N'[sqlqueue_orders].dispatch_log.batch', N'sink_batch', N'COLUMN';
    EXEC (N'ALTER TABLE [sqlqueue_orders].dispatch_log ADD destination nvarchar(max) NULL, version_4 bit NULL;');
    EXEC (N'CREATE TABLE [sqlqueue_orders].query_reader (
                query_id nvarchar(36)  COLLATE Latin1_General_100_BIN2 NOT NULL,
                queue    nvarchar(800) COLLATE DATABASE_DEFAULT NOT NULL,
                stream   nvarchar(36)  COLLATE Latin1_General_100_BIN2 NOT NULL,
                run_id   nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
                PRIMARY KEY NONCLUSTERED (query_id, queue)
            );
            ALTER TABLE [sqlqueue_orders].query_reader SET (LOCK_ESCALATION = DISABLE);');
    SET @text_4 = N'';
    SELECT @text_4 = @text_4 + N'GRANT SELECT, INSERT, UPDATE ON [sqlqueue_orders].query_reader TO '
                   + QUOTENAME(USER_NAME(grantee_principal_id)) + N';'
      FROM sys.database_permissions
     WHERE class = 1 AND major_id = OBJECT_ID(N'[sqlqueue_orders].stream') AND minor_id = 0
       AND permission_name = N'UPDATE' AND state IN (N'G', N'W');
    EXEC (@text_4);
    EXEC (N'UPDATE [sqlqueue_orders].version SET version = 4;');
END;

-- State tables of version 4 become those of version 5. Tables of another version are left alone.
-- Adds the table `heartbeat`, the names of queries, and `stream.removed`. All rows stay as they are.
-- It renames `version_4` to `version_5`. The statements of the old release name `version_4`, so they fail
-- after this step. A login that may write `stream` may use `heartbeat`. Each statement is executed as
-- text, as in migrate_4.
-- Locks:   stream, receipt and dispatch_log as a whole, until commit. Waits for tasks and drivers that run.
DECLARE @before_5 int, @text_5 nvarchar(max) = N'';
IF OBJECT_ID(N'[sqlqueue_orders].version', N'U') IS NOT NULL
    SELECT @before_5 = MAX(version) FROM [sqlqueue_orders].version;
IF @before_5 = 4
BEGIN
    EXEC sys.sp_rename N'[sqlqueue_orders].stream.version_4', N'version_5', N'COLUMN';
    EXEC (N'ALTER TABLE [sqlqueue_orders].stream ADD
                query_name nvarchar(200) COLLATE Latin1_General_100_BIN2 NULL, removed datetime2(3) NULL;');
    EXEC (N'ALTER TABLE [sqlqueue_orders].receipt ADD
                query_name nvarchar(200) COLLATE Latin1_General_100_BIN2 NULL;');
    EXEC sys.sp_rename N'[sqlqueue_orders].dispatch_log.version_4', N'version_5', N'COLUMN';
    EXEC (N'CREATE TABLE [sqlqueue_orders].heartbeat (
                driver  nvarchar(36)  COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY,
                stream  nvarchar(36)  COLLATE Latin1_General_100_BIN2 NULL,
                login   nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL DEFAULT USER_NAME(),
                name    nvarchar(200) COLLATE Latin1_General_100_BIN2 NULL,
                queue   nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
                host    nvarchar(255) COLLATE Latin1_General_100_BIN2 NOT NULL,
                process bigint        NOT NULL,
                shared  bit           NOT NULL,
                started datetime2(3)  NOT NULL DEFAULT SYSUTCDATETIME(),
                beat    datetime2(3)  NOT NULL DEFAULT SYSUTCDATETIME()
            );
            ALTER TABLE [sqlqueue_orders].heartbeat SET (LOCK_ESCALATION = DISABLE);');
    SELECT @text_5 = @text_5 + N'GRANT SELECT, INSERT, UPDATE, DELETE ON [sqlqueue_orders].heartbeat TO '
                   + QUOTENAME(USER_NAME(grantee_principal_id)) + N';'
      FROM sys.database_permissions
     WHERE class = 1 AND major_id = OBJECT_ID(N'[sqlqueue_orders].stream') AND minor_id = 0
       AND permission_name = N'UPDATE' AND state IN (N'G', N'W');
    EXEC (@text_5);
    EXEC (N'UPDATE [sqlqueue_orders].version SET version = 5;');
END;

-- All state tables, once.
IF OBJECT_ID(N'[sqlqueue_orders].version', N'U') IS NULL
BEGIN
    -- a row for each checkpoint, updated twice in a batch
    CREATE TABLE [sqlqueue_orders].stream (
        stream      nvarchar(36)  COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY,
        login       nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL DEFAULT USER_NAME(),
        queue       nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
        driver      nvarchar(36)  COLLATE Latin1_General_100_BIN2 NOT NULL,
        acked_batch bigint        NOT NULL DEFAULT 0 CHECK (acked_batch >= 0),
        plan_batch  bigint        NULL,
        stored_plan nvarchar(max) NULL,
        plan_high_water nvarchar(max) NULL,
        query_id    nvarchar(36)  COLLATE Latin1_General_100_BIN2 NULL,
        spark_batch bigint        NULL,
        query_name  nvarchar(200) COLLATE Latin1_General_100_BIN2 NULL,
        removed     datetime2(3)  NULL,
        messages    bigint        NOT NULL DEFAULT 0,
        expired     bigint        NOT NULL DEFAULT 0,
        diverted    bigint        NOT NULL DEFAULT 0,
        forwarded   bigint        NOT NULL DEFAULT 0,
        created     datetime2(3)  NOT NULL DEFAULT SYSUTCDATETIME(),
        seen        datetime2(3)  NOT NULL DEFAULT SYSUTCDATETIME(),
        version_5   bit           NULL,
        CHECK (plan_batch > acked_batch),
        CHECK ((stored_plan IS NULL AND plan_batch IS NULL)
               OR (stored_plan IS NOT NULL AND plan_batch IS NOT NULL)),
        CHECK ((query_id IS NULL AND spark_batch IS NULL)
               OR (query_id IS NOT NULL AND spark_batch IS NOT NULL))
    );
    ALTER TABLE [sqlqueue_orders].stream SET (LOCK_ESCALATION = DISABLE);
    CREATE INDEX stream_query ON [sqlqueue_orders].stream (query_id);

    -- the one stream of a query that may receive from a queue, and the run in which it began;
    -- two spellings of a queue are equal if the database ignores case
    CREATE TABLE [sqlqueue_orders].query_reader (
        query_id nvarchar(36)  COLLATE Latin1_General_100_BIN2 NOT NULL,
        queue    nvarchar(800) COLLATE DATABASE_DEFAULT NOT NULL,
        stream   nvarchar(36)  COLLATE Latin1_General_100_BIN2 NOT NULL,
        run_id   nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        PRIMARY KEY NONCLUSTERED (query_id, queue)
    );
    ALTER TABLE [sqlqueue_orders].query_reader SET (LOCK_ESCALATION = DISABLE);

    -- the process that runs a stream, and when it last wrote that it does
    CREATE TABLE [sqlqueue_orders].heartbeat (
        driver  nvarchar(36)  COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY,
        stream  nvarchar(36)  COLLATE Latin1_General_100_BIN2 NULL,
        login   nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL DEFAULT USER_NAME(),
        name    nvarchar(200) COLLATE Latin1_General_100_BIN2 NULL,
        queue   nvarchar(max) COLLATE Latin1_General_100_BIN2 NOT NULL,
        host    nvarchar(255) COLLATE Latin1_General_100_BIN2 NOT NULL,
        process bigint        NOT NULL,
        shared  bit           NOT NULL,
        started datetime2(3)  NOT NULL DEFAULT SYSUTCDATETIME(),
        beat    datetime2(3)  NOT NULL DEFAULT SYSUTCDATETIME()
    );
    ALTER TABLE [sqlqueue_orders].heartbeat SET (LOCK_ESCALATION = DISABLE);

    -- what one task received, until its batch is acknowledged
    CREATE TABLE [sqlqueue_orders].receipt (
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
        spark_batch bigint         NULL,
        query_name  nvarchar(200)  COLLATE Latin1_General_100_BIN2 NULL,
        settled     bit            NOT NULL DEFAULT 0,
        unpacked    bigint         NOT NULL CHECK (unpacked >= 0),
        payload     varbinary(max) NOT NULL,
        created     datetime2(3)   NOT NULL DEFAULT SYSUTCDATETIME(),
        PRIMARY KEY (stream, batch, task)
    );
    ALTER TABLE [sqlqueue_orders].receipt SET (LOCK_ESCALATION = DISABLE);
    CREATE INDEX receipt_query ON [sqlqueue_orders].receipt (query_id, spark_batch);
    EXEC sys.sp_tableoption N'[sqlqueue_orders].receipt', 'large value types out of row', '1';

    -- the payload of a large receipt, in one row
    CREATE TABLE [sqlqueue_orders].receipt_page (
        stream  nvarchar(36)   COLLATE Latin1_General_100_BIN2 NOT NULL,
        batch   bigint         NOT NULL,
        task    int            NOT NULL,
        page    int            NOT NULL,
        payload varbinary(max) NOT NULL,
        PRIMARY KEY (stream, batch, task, page)
    );
    ALTER TABLE [sqlqueue_orders].receipt_page SET (LOCK_ESCALATION = DISABLE);
    EXEC sys.sp_tableoption N'[sqlqueue_orders].receipt_page', 'large value types out of row', '1';

    -- messages that tasks stage for a sink, until the driver dispatches or discards them
    CREATE TABLE [sqlqueue_orders].staging (
        sink     nvarchar(200)  COLLATE Latin1_General_100_BIN2 NOT NULL,
        sink_batch bigint       NOT NULL,
        attempt  nvarchar(36)   COLLATE Latin1_General_100_BIN2 NOT NULL,
        chunk    int            NOT NULL,
        messages bigint         NOT NULL CHECK (messages > 0),
        payload  varbinary(max) NOT NULL,
        created  datetime2(3)   NOT NULL DEFAULT SYSUTCDATETIME(),
        PRIMARY KEY (sink, sink_batch, attempt, chunk)
    );
    ALTER TABLE [sqlqueue_orders].staging SET (LOCK_ESCALATION = DISABLE);
    EXEC sys.sp_tableoption N'[sqlqueue_orders].staging', 'large value types out of row', '1';

    -- the payload of a large chunk, in one row
    CREATE TABLE [sqlqueue_orders].staging_page (
        sink    nvarchar(200)  COLLATE Latin1_General_100_BIN2 NOT NULL,
        sink_batch bigint      NOT NULL,
        attempt nvarchar(36)   COLLATE Latin1_General_100_BIN2 NOT NULL,
        chunk   int            NOT NULL,
        page    int            NOT NULL,
        payload varbinary(max) NOT NULL,
        PRIMARY KEY (sink, sink_batch, attempt, chunk, page)
    );
    ALTER TABLE [sqlqueue_orders].staging_page SET (LOCK_ESCALATION = DISABLE);
    EXEC sys.sp_tableoption N'[sqlqueue_orders].staging_page', 'large value types out of row', '1';

    -- the last batch that each sink has sent
    CREATE TABLE [sqlqueue_orders].dispatch_log (
        sink        nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY,
        login       nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL DEFAULT USER_NAME(),
        sink_batch  bigint        NULL,
        messages    bigint        NOT NULL DEFAULT 0,
        dispatched  datetime2(3)  NOT NULL DEFAULT SYSUTCDATETIME(),
        destination nvarchar(max) NULL,
        version_5   bit           NULL
    );
    ALTER TABLE [sqlqueue_orders].dispatch_log SET (LOCK_ESCALATION = DISABLE);

    -- the audit trail: who purged, returned, dropped or retired messages
    CREATE TABLE [sqlqueue_orders].trail (
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
    ALTER TABLE [sqlqueue_orders].trail SET (LOCK_ESCALATION = DISABLE);

    CREATE TABLE [sqlqueue_orders].version (version int NOT NULL PRIMARY KEY);
    INSERT INTO [sqlqueue_orders].version (version) VALUES (5);
END;

-- Queues, as the transport creates them.
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
IF COL_LENGTH(N'[dbo].[Shop.Orders]', N'BodyString') IS NULL
    ALTER TABLE [dbo].[Shop.Orders] ADD BodyString AS CAST(Body AS nvarchar(max));
IF OBJECT_ID(N'[dbo].[Shop.Orders.web1]', N'U') IS NULL
BEGIN
    CREATE TABLE [dbo].[Shop.Orders.web1] (
        Id             uniqueidentifier NOT NULL,
        CorrelationId  varchar(255)     NULL,
        ReplyToAddress varchar(255)     NULL,
        Recoverable    bit              NOT NULL,
        Expires        datetime         NULL,
        Headers        nvarchar(max)    NOT NULL,
        Body           varbinary(max)   NULL,
        RowVersion     bigint           IDENTITY(1,1) NOT NULL
    );
    CREATE NONCLUSTERED INDEX Index_RowVersion ON [dbo].[Shop.Orders.web1] (RowVersion ASC);
    CREATE NONCLUSTERED INDEX Index_Expires ON [dbo].[Shop.Orders.web1] (Expires)
           INCLUDE (Id, RowVersion) WHERE Expires IS NOT NULL;
END;
IF COL_LENGTH(N'[dbo].[Shop.Orders.web1]', N'BodyString') IS NULL
    ALTER TABLE [dbo].[Shop.Orders.web1] ADD BodyString AS CAST(Body AS nvarchar(max));
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
IF COL_LENGTH(N'[dbo].[error]', N'BodyString') IS NULL
    ALTER TABLE [dbo].[error] ADD BodyString AS CAST(Body AS nvarchar(max));
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
IF COL_LENGTH(N'[dbo].[audit]', N'BodyString') IS NULL
    ALTER TABLE [dbo].[audit] ADD BodyString AS CAST(Body AS nvarchar(max));
IF OBJECT_ID(N'[dbo].[Shop.Orders.Delayed]', N'U') IS NULL
    CREATE TABLE [dbo].[Shop.Orders.Delayed] (
        Headers    nvarchar(max)  NOT NULL,
        Body       varbinary(max) NULL,
        Due        datetime       NOT NULL,
        RowVersion bigint         IDENTITY(1,1) NOT NULL
    );
IF NOT EXISTS (SELECT 1
                 FROM sys.index_columns AS k
                 JOIN sys.columns AS c
                   ON c.object_id = k.object_id AND c.column_id = k.column_id
                WHERE k.object_id = OBJECT_ID(N'[dbo].[Shop.Orders.Delayed]', N'U')
                  AND k.key_ordinal = 1 AND c.name = N'Due')
    CREATE NONCLUSTERED INDEX Index_Due ON [dbo].[Shop.Orders.Delayed] (Due);
IF OBJECT_ID(N'[dbo].[SubscriptionRouting]', N'U') IS NULL
    CREATE TABLE [dbo].[SubscriptionRouting] (
        QueueAddress nvarchar(200) NOT NULL,
        Endpoint     nvarchar(200) NOT NULL,
        Topic        nvarchar(200) NOT NULL,
        PRIMARY KEY CLUSTERED (Endpoint, Topic)
    );

IF DATABASE_PRINCIPAL_ID(N'orders_reader') IS NULL
    CREATE ROLE [orders_reader];
IF DATABASE_PRINCIPAL_ID(N'orders_sender') IS NULL
    CREATE ROLE [orders_sender];
IF DATABASE_PRINCIPAL_ID(N'clerk') IS NULL
    CREATE ROLE [clerk];
IF DATABASE_PRINCIPAL_ID(N'endpoints') IS NULL
    CREATE ROLE [endpoints];
COMMIT TRANSACTION;

-- Rights of a reader. To give them to the login of its Spark job: ALTER ROLE [orders_reader] ADD MEMBER [login].
GRANT SELECT ON [sqlqueue_orders].version TO [orders_reader];
GRANT SELECT, INSERT, UPDATE ON [sqlqueue_orders].stream TO [orders_reader];
GRANT SELECT, INSERT, UPDATE ON [sqlqueue_orders].query_reader TO [orders_reader];
GRANT SELECT, INSERT, UPDATE, DELETE ON [sqlqueue_orders].heartbeat TO [orders_reader];
GRANT SELECT, INSERT, UPDATE, DELETE ON [sqlqueue_orders].receipt TO [orders_reader];
GRANT SELECT, INSERT, DELETE ON [sqlqueue_orders].receipt_page TO [orders_reader];
GRANT INSERT ON [sqlqueue_orders].trail TO [orders_reader];
GRANT SELECT, DELETE ON [dbo].[Shop.Orders] TO [orders_reader];
GRANT SELECT, DELETE ON [dbo].[Shop.Orders.web1] TO [orders_reader];
GRANT INSERT ON [dbo].[error] TO [orders_reader];
GRANT INSERT ON [dbo].[audit] TO [orders_reader];
GRANT SELECT, DELETE ON [dbo].[Shop.Orders.Delayed] TO [orders_reader];
GRANT INSERT ON [dbo].[Shop.Orders] TO [orders_reader];

-- Rights of a sender. To give them to the login of its Spark job: ALTER ROLE [orders_sender] ADD MEMBER [login].
GRANT SELECT ON [sqlqueue_orders].version TO [orders_sender];
GRANT SELECT, INSERT, DELETE ON [sqlqueue_orders].staging TO [orders_sender];
GRANT SELECT, INSERT, DELETE ON [sqlqueue_orders].staging_page TO [orders_sender];
GRANT SELECT, INSERT, UPDATE, DELETE ON [sqlqueue_orders].dispatch_log TO [orders_sender];
GRANT INSERT, SELECT (RowVersion) ON [dbo].[Shop.Orders] TO [orders_sender];
GRANT INSERT, SELECT (RowVersion) ON [dbo].[Shop.Orders.web1] TO [orders_sender];
GRANT INSERT ON [dbo].[Shop.Orders.Delayed] TO [orders_sender];
GRANT SELECT ON [dbo].[SubscriptionRouting] TO [orders_sender];

-- Rights of an operator, who also reads the audit trail. To give them to a login that runs
-- `sqlqueue`: ALTER ROLE [clerk] ADD MEMBER [login]. No role may change or delete an entry of the trail.
GRANT SELECT ON [sqlqueue_orders].trail TO [clerk];
GRANT SELECT ON [sqlqueue_orders].version TO [clerk];
GRANT SELECT, INSERT, UPDATE ON [sqlqueue_orders].stream TO [clerk];
GRANT SELECT, INSERT, UPDATE ON [sqlqueue_orders].query_reader TO [clerk];
GRANT SELECT, INSERT, UPDATE, DELETE ON [sqlqueue_orders].heartbeat TO [clerk];
GRANT SELECT, INSERT, UPDATE, DELETE ON [sqlqueue_orders].receipt TO [clerk];
GRANT SELECT, INSERT, DELETE ON [sqlqueue_orders].receipt_page TO [clerk];
GRANT INSERT ON [sqlqueue_orders].trail TO [clerk];
GRANT SELECT, INSERT, DELETE ON [sqlqueue_orders].staging TO [clerk];
GRANT SELECT, INSERT, DELETE ON [sqlqueue_orders].staging_page TO [clerk];
GRANT SELECT, INSERT, UPDATE, DELETE ON [sqlqueue_orders].dispatch_log TO [clerk];
GRANT SELECT, DELETE ON [dbo].[Shop.Orders] TO [clerk];
GRANT INSERT ON [dbo].[Shop.Orders] TO [clerk];
GRANT SELECT, DELETE ON [dbo].[Shop.Orders.web1] TO [clerk];
GRANT INSERT ON [dbo].[Shop.Orders.web1] TO [clerk];
GRANT SELECT, DELETE ON [dbo].[error] TO [clerk];
GRANT INSERT ON [dbo].[error] TO [clerk];
GRANT SELECT, DELETE ON [dbo].[audit] TO [clerk];
GRANT INSERT ON [dbo].[audit] TO [clerk];
GRANT SELECT, DELETE ON [dbo].[Shop.Orders.Delayed] TO [clerk];
GRANT INSERT ON [dbo].[Shop.Orders.Delayed] TO [clerk];
GRANT SELECT ON [dbo].[SubscriptionRouting] TO [clerk];
GRANT INSERT, UPDATE, DELETE ON [dbo].[SubscriptionRouting] TO [clerk];

-- Rights of a producer: an endpoint or ServiceControl, which only sends and is in no team. To give them
-- to its login: ALTER ROLE [endpoints] ADD MEMBER [login].
GRANT INSERT ON [dbo].[Shop.Orders] TO [endpoints];
GRANT INSERT ON [dbo].[Shop.Orders.web1] TO [endpoints];

-- Gives the rights to the login of the Spark job, which must exist already.
ALTER ROLE [orders_reader] ADD MEMBER [spark_orders];
ALTER ROLE [orders_sender] ADD MEMBER [spark_orders];

GO
-- After an error the transaction may still be open, if the tool keeps the session.
SET NOEXEC OFF;
IF @@TRANCOUNT > 0
    ROLLBACK TRANSACTION;
GO
