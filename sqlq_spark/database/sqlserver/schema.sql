-- part: take_lock
-- Takes the application lock @name; other statements contain this part. If it fails, the statement throws
-- the error number 51000 minus the result of sp_getapplock.
DECLARE @got int, @number int, @said nvarchar(100);
EXEC @got = sys.sp_getapplock
     @Resource = @name, @LockMode = N'Exclusive', @LockOwner = N'Transaction';
IF @got < 0
BEGIN
    SELECT @number = 51000 - @got, @said = CONCAT(N'sp_getapplock returned ', @got);
    THROW @number, @said, 1;
END

-- name: install_lock
-- Makes the second of two installers wait for the first.
-- Locks:   an application lock, until the transaction ends.
DECLARE @name nvarchar(255) = N'sqlq_spark install ' + @state_name;
{take_lock}

-- name: install_schema
-- Creates the state schema if it is missing. This runs before the check of the schema's owner, so that no
-- other user can create the schema after the check.
IF SCHEMA_ID({state_name}) IS NULL
    EXEC (N'CREATE SCHEMA {state_escaped}')

-- name: install_state
-- Notes on the tables, for maintainers:
-- - Names are compared byte by byte, as in Python.
-- - Only the first acknowledgement changes the key of an index of `stream`. `query_id` and `spark_batch`
--   are Spark's names for the last acknowledged batch. The plan may only be used for batches above those
--   in `plan_high_water`. `removed` is set while the stream is in no list.
-- - `stream` of `heartbeat` is null until the process knows its stream.
-- - A row of `receipt` is inserted in the transaction that deletes its messages from the queue. Only a
--   replay reads it. It is deleted when its batch is acknowledged. Its payload is never in the page of
--   its row, so that receipts can be listed without reading payloads. A large payload is one row, because
--   the server stores it in pages.
-- - `batch` of `dispatch_log` is null for a sink that has sent no batch. `destination` is set only by a
--   write that has a name, and belongs to its last batch.
-- - A login may only insert into `trail`. `session_login` is the login that connected.
-- Locks:   the tables that it creates, until commit; nothing that exists already.

-- All state tables, once.
IF OBJECT_ID(N'{state_escaped}.version', N'U') IS NULL
BEGIN
    -- a row for each checkpoint, updated twice in a batch
    CREATE TABLE {state}.stream (
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
    ALTER TABLE {state}.stream SET (LOCK_ESCALATION = DISABLE);
    CREATE INDEX stream_query ON {state}.stream (query_id);

    -- the one stream of a query that may receive from a queue, and the run in which it began;
    -- two spellings of a queue are equal if the database ignores case
    CREATE TABLE {state}.query_reader (
        query_id nvarchar(36)  COLLATE Latin1_General_100_BIN2 NOT NULL,
        queue    nvarchar(800) COLLATE DATABASE_DEFAULT NOT NULL,
        stream   nvarchar(36)  COLLATE Latin1_General_100_BIN2 NOT NULL,
        run_id   nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        PRIMARY KEY NONCLUSTERED (query_id, queue)
    );
    ALTER TABLE {state}.query_reader SET (LOCK_ESCALATION = DISABLE);

    -- the process that runs a stream, and when it last wrote that it does
    CREATE TABLE {state}.heartbeat (
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
    ALTER TABLE {state}.heartbeat SET (LOCK_ESCALATION = DISABLE);

    -- what one task received, until its batch is acknowledged
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
        spark_batch bigint         NULL,
        query_name  nvarchar(200)  COLLATE Latin1_General_100_BIN2 NULL,
        settled     bit            NOT NULL DEFAULT 0,
        unpacked    bigint         NOT NULL CHECK (unpacked >= 0),
        payload     varbinary(max) NOT NULL,
        created     datetime2(3)   NOT NULL DEFAULT SYSUTCDATETIME(),
        PRIMARY KEY (stream, batch, task)
    );
    ALTER TABLE {state}.receipt SET (LOCK_ESCALATION = DISABLE);
    CREATE INDEX receipt_query ON {state}.receipt (query_id, spark_batch);
    EXEC sys.sp_tableoption N'{state_escaped}.receipt', 'large value types out of row', '1';

    -- the payload of a large receipt, in one row
    CREATE TABLE {state}.receipt_page (
        stream  nvarchar(36)   COLLATE Latin1_General_100_BIN2 NOT NULL,
        batch   bigint         NOT NULL,
        task    int            NOT NULL,
        page    int            NOT NULL,
        payload varbinary(max) NOT NULL,
        PRIMARY KEY (stream, batch, task, page)
    );
    ALTER TABLE {state}.receipt_page SET (LOCK_ESCALATION = DISABLE);
    EXEC sys.sp_tableoption N'{state_escaped}.receipt_page', 'large value types out of row', '1';

    -- messages that tasks stage for a sink, until the driver dispatches or discards them
    CREATE TABLE {state}.staging (
        sink     nvarchar(200)  COLLATE Latin1_General_100_BIN2 NOT NULL,
        sink_batch bigint       NOT NULL,
        attempt  nvarchar(36)   COLLATE Latin1_General_100_BIN2 NOT NULL,
        chunk    int            NOT NULL,
        messages bigint         NOT NULL CHECK (messages > 0),
        payload  varbinary(max) NOT NULL,
        created  datetime2(3)   NOT NULL DEFAULT SYSUTCDATETIME(),
        PRIMARY KEY (sink, sink_batch, attempt, chunk)
    );
    ALTER TABLE {state}.staging SET (LOCK_ESCALATION = DISABLE);
    EXEC sys.sp_tableoption N'{state_escaped}.staging', 'large value types out of row', '1';

    -- the payload of a large chunk, in one row
    CREATE TABLE {state}.staging_page (
        sink    nvarchar(200)  COLLATE Latin1_General_100_BIN2 NOT NULL,
        sink_batch bigint      NOT NULL,
        attempt nvarchar(36)   COLLATE Latin1_General_100_BIN2 NOT NULL,
        chunk   int            NOT NULL,
        page    int            NOT NULL,
        payload varbinary(max) NOT NULL,
        PRIMARY KEY (sink, sink_batch, attempt, chunk, page)
    );
    ALTER TABLE {state}.staging_page SET (LOCK_ESCALATION = DISABLE);
    EXEC sys.sp_tableoption N'{state_escaped}.staging_page', 'large value types out of row', '1';

    -- the last batch that each sink has sent
    CREATE TABLE {state}.dispatch_log (
        sink        nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY,
        login       nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL DEFAULT USER_NAME(),
        sink_batch  bigint        NULL,
        messages    bigint        NOT NULL DEFAULT 0,
        dispatched  datetime2(3)  NOT NULL DEFAULT SYSUTCDATETIME(),
        destination nvarchar(max) NULL,
        version_5   bit           NULL
    );
    ALTER TABLE {state}.dispatch_log SET (LOCK_ESCALATION = DISABLE);

    -- the audit trail: who purged, returned, dropped or retired messages
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

    CREATE TABLE {state}.version (version int NOT NULL PRIMARY KEY);
    INSERT INTO {state}.version (version) VALUES (5);
END

-- name: state_parts
-- Lists the tables and indexes of the state schema.
-- Returns: name; no row if this login may not see all of them
SELECT part.name
  FROM sys.tables AS t
 CROSS APPLY (SELECT t.name COLLATE DATABASE_DEFAULT AS name
              UNION ALL
              SELECT i.name COLLATE DATABASE_DEFAULT FROM sys.indexes AS i WHERE i.object_id = t.object_id) AS part
 WHERE t.schema_id = SCHEMA_ID({state_name})
   AND HAS_PERMS_BY_NAME(N'{state_escaped}', N'SCHEMA', N'VIEW DEFINITION') = 1

-- name: state_faults
-- Finds out why the state schema must not be used. It runs before anything in the schema is read. The
-- script for a DBA contains this statement.
-- Returns: fault, role, is_super bit
SELECT f.what COLLATE DATABASE_DEFAULT
       + CASE WHEN f.is_fault = 1 THEN N'' ELSE N' belongs to '
                     + ISNULL(USER_NAME(NULLIF(f.owner_id, 0)), N'an owner that cannot be seen') END AS fault,
       CASE WHEN f.is_fault = 0 THEN USER_NAME(NULLIF(f.owner_id, 0)) END AS role,
       CAST(ISNULL(IS_SRVROLEMEMBER(N'sysadmin'), 0) AS bit) AS is_super
  FROM (SELECT N'the schema' AS what, 0 AS is_fault, ISNULL(s.principal_id, 0) AS owner_id
          FROM sys.schemas AS s
         WHERE s.name = {state_name}
        UNION ALL
        SELECT CONCAT(N'table ', QUOTENAME(o.name COLLATE DATABASE_DEFAULT),
                      CASE WHEN o.type <> N'U' THEN N' is no table' WHEN p.policies > 0 THEN N' has a policy' END),
               CASE WHEN o.type <> N'U' OR p.policies > 0 THEN 1 ELSE 0 END,
               ISNULL(OBJECTPROPERTY(o.object_id, N'OwnerId'), 0)
          FROM sys.objects AS o
         CROSS APPLY (SELECT COUNT(*) AS policies FROM sys.security_predicates AS s
                       WHERE s.target_object_id = o.object_id) AS p
         WHERE o.schema_id = SCHEMA_ID({state_name}) AND o.type IN (N'U', N'V', N'SN')) AS f
 WHERE f.is_fault = 1
    OR f.owner_id NOT IN (
       {trusted}
       )

-- name: version
-- Reads the version of the state tables.
-- Returns: version int
SELECT version FROM {state}.version

-- name: create_lock
-- Makes the transport's installer and this one wait for each other before they create a table.
-- Locks:   the application lock of the transport's installer, until the transaction ends.
DECLARE @name nvarchar(255) = {table_lock};
{take_lock}

-- name: create_queue
-- Creates a queue's table as the transport does.
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
END

-- name: add_body_string
-- Adds a column with the body as text, as the transport's CreateMessageBodyComputedColumn does. The
-- server computes it only when it is read.
-- Locks:   the whole table, for a moment.
IF COL_LENGTH({queue_text}, N'BodyString') IS NULL
    ALTER TABLE {queue} ADD BodyString AS CAST(Body AS nvarchar(max))

-- name: create_subscriptions
-- Creates the table of subscriptions as the transport does.
IF OBJECT_ID({subscriptions_text}, N'U') IS NULL
    CREATE TABLE {subscriptions} (
        QueueAddress nvarchar(200) NOT NULL,
        Endpoint     nvarchar(200) NOT NULL,
        Topic        nvarchar(200) NOT NULL,
        PRIMARY KEY CLUSTERED (Endpoint, Topic)
    )

-- name: create_delayed
-- Creates the table in which messages wait until they are due, as the transport does.
IF OBJECT_ID({delayed_text}, N'U') IS NULL
    CREATE TABLE {delayed} (
        Headers    nvarchar(max)  NOT NULL,
        Body       varbinary(max) NULL,
        Due        datetime       NOT NULL,
        RowVersion bigint         IDENTITY(1,1) NOT NULL
    );
IF NOT EXISTS (SELECT 1
                 FROM {delayed_catalog}sys.index_columns AS k
                 JOIN {delayed_catalog}sys.columns AS c
                   ON c.object_id = k.object_id AND c.column_id = k.column_id
                WHERE k.object_id = OBJECT_ID({delayed_text}, N'U')
                  AND k.key_ordinal = 1 AND c.name = N'Due')
    CREATE NONCLUSTERED INDEX Index_Due ON {delayed} (Due)

-- name: queue_columns
-- Lists the columns of a queue.
-- Returns: name, type (with the collation, if it is a varchar); no row if the table is absent
SELECT c.name,
       CASE WHEN t.name = N'varchar'
            THEN CONCAT(N'varchar COLLATE ', c.collation_name COLLATE DATABASE_DEFAULT)
            ELSE t.name COLLATE DATABASE_DEFAULT END AS type
  FROM {queue_catalog}sys.columns AS c
  JOIN {queue_catalog}sys.types AS t ON t.user_type_id = c.user_type_id
 WHERE c.object_id = OBJECT_ID({queue_text}, N'U')
 ORDER BY c.column_id

-- part: queue_types
-- The columns of a queue and of a table of delayed messages, and the types that they may have; other
-- statements contain this part. A datetimeoffset is not allowed for Expires, because it would mean
-- another instant than the transport's type. A varchar is allowed for Headers, because `fits` checks each
-- text before it is stored there.
SELECT types.name, types.kind, types.wanted
  FROM (VALUES (N'Id', N'uniqueidentifier', N'uniqueidentifier'),
               (N'Expires', N'datetime', N'datetime'),
               (N'Expires', N'datetime2', N'datetime'),
               (N'Expires', N'smalldatetime', N'datetime'),
               (N'Expires', N'date', N'datetime'),
               (N'Headers', N'nvarchar', N'nvarchar(max)'),
               (N'Headers', N'varchar', N'nvarchar(max)'),
               (N'Body', N'varbinary', N'varbinary(max)'),
               (N'RowVersion', N'bigint', N'bigint'),
               (N'RowVersion', N'int', N'bigint'),
               (N'RowVersion', N'numeric', N'bigint'),
               (N'RowVersion', N'decimal', N'bigint'),
               (N'Due', N'datetime', N'datetime'),
               (N'Due', N'datetime2', N'datetime')) AS types (name, kind, wanted)

-- part: wrong_column
-- What is wrong with the first wrong column among t.columns, or null if all are right; other statements
-- contain this part. The caller defines t, a table as table_owners has it. If the table is in another
-- database, the types of its columns are not looked up.
SELECT MIN(w.fault)
  FROM (SELECT CASE WHEN COL_LENGTH(t.name, j.name) IS NULL
                    THEN CONCAT(N'it has no column ', j.name)
                    WHEN t.here = 1 AND NOT EXISTS (
                            SELECT 1
                              FROM sys.columns AS c
                              JOIN sys.types AS y ON y.user_type_id = c.system_type_id
                              JOIN ({queue_types}) AS k
                                ON k.name = j.name AND k.kind = y.name COLLATE DATABASE_DEFAULT
                             WHERE c.object_id = t.id AND c.name = j.name COLLATE DATABASE_DEFAULT)
                    THEN CONCAT(N'column ', j.name, N' has another type than that of a queue')
                    END AS fault
          FROM (SELECT CAST(CASE value WHEN N'Seq' THEN N'RowVersion' ELSE value END AS sysname) AS name
                  FROM OPENJSON(t.columns)) AS j) AS w

-- name: wrong_types
-- Finds the columns of a queue that are absent, or have another type than the transport's.
-- Returns: fault; no row if all are right, or if the table is absent
SELECT CASE WHEN a.type IS NULL THEN CONCAT(N'it has no column ', k.name)
            ELSE CONCAT(N'column ', k.name, N' is ', a.type, N': expected ', k.wanted) END AS fault
  FROM ({queue_types}) AS k
  LEFT JOIN (SELECT c.name COLLATE DATABASE_DEFAULT AS name, t.name COLLATE DATABASE_DEFAULT AS type,
                    c.column_id
               FROM {queue_catalog}sys.columns AS c
               JOIN {queue_catalog}sys.types AS t ON t.user_type_id = c.system_type_id
              WHERE c.object_id = OBJECT_ID({queue_text}, N'U')) AS a ON a.name = k.name
 WHERE k.name <> N'Due' AND OBJECT_ID({queue_text}, N'U') IS NOT NULL
 GROUP BY k.name, k.wanted, a.type, a.column_id
HAVING MAX(CASE WHEN k.kind = a.type THEN 1 ELSE 0 END) = 0
 ORDER BY a.column_id

-- name: lock_queue
-- Locks a queue, or a table of delayed messages, before it is dropped. So nobody can send to it after the
-- caller has counted its messages.
-- Locks:   the whole table, until commit; waits for all transactions that use it.
-- Returns: one row if the table has rows, else none
SELECT TOP (1) 1 AS locked
  FROM {queue} WITH (TABLOCKX, HOLDLOCK)

-- name: drop_queue
-- Drops a table after lock_queue. Sessions that wait for the table fail then, because the table is gone.
-- Locks:   the whole table, until commit; waits for all transactions that use it.
DROP TABLE {queue}
