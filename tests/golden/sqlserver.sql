-- fence
SELECT o.acked_batch,
       (SELECT MAX(p.batch)
          FROM OPENJSON(o.plan_high_water)
               WITH (query nvarchar(36) '$.query', batch bigint '$.batch') AS p
         WHERE p.query = @query_id) AS plan_high_water,
       CAST(CASE WHEN EXISTS (
                 SELECT 1
                   FROM [sqlqueue].query_reader AS r
                  WHERE r.query_id = @query_id AND r.queue = @queue_name
                    AND r.stream = o.stream AND r.run_id = @run_id)
            THEN 1 ELSE 0 END AS bit) AS is_reader
  FROM [sqlqueue].stream AS o WITH (REPEATABLEREAD, ROWLOCK)
 WHERE o.stream = @stream AND o.version_5 IS NULL;
GO

-- receive
WITH message AS (
    SELECT TOP (CASE WHEN @messages < 2000 THEN @messages ELSE 2000 END)
           Id, Expires, Headers, Body, RowVersion
      FROM [sales].[Shop.Orders] WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
     WHERE RowVersion >= @first AND RowVersion < @stop
       AND NOT (ISNULL(DATALENGTH(CAST(Headers AS nvarchar(max))) / 2, 0) + ISNULL(DATALENGTH(Body), 0) > @largest
        OR ISNULL(DATALENGTH(Headers), 0) > @largest_headers)
     ORDER BY RowVersion
)
DELETE FROM message
OUTPUT CAST(deleted.Id AS binary(16)) AS id,
CASE WHEN deleted.Expires < '99991231' THEN deleted.Expires END AS expires,
CAST(CASE WHEN deleted.Expires <= GETUTCDATE() THEN 1 ELSE 0 END AS bit) AS expired,
CAST(CAST(deleted.Headers AS nvarchar(max)) AS varbinary(max)) AS headers,
deleted.Body AS body,
deleted.RowVersion AS seq
OPTION (MAXDOP 1);
GO

-- take
DELETE q
OUTPUT CAST(deleted.Id AS binary(16)) AS id,
CASE WHEN deleted.Expires < '99991231' THEN deleted.Expires END AS expires,
CAST(CASE WHEN deleted.Expires <= GETUTCDATE() THEN 1 ELSE 0 END AS bit) AS expired,
CAST(CAST(deleted.Headers AS nvarchar(max)) AS varbinary(max)) AS headers,
deleted.Body AS body,
deleted.RowVersion AS seq
  FROM (SELECT DISTINCT seq, row
          FROM OPENJSON(@chosen) WITH (seq bigint '$[0]', row uniqueidentifier '$[1]')) AS s
 INNER LOOP JOIN [sales].[Shop.Orders] AS q WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    ON q.RowVersion = s.seq AND q.Id = s.row
OPTION (MAXDOP 1);
GO

-- divert_large
DECLARE @gone TABLE (
    Id      uniqueidentifier NOT NULL,
    Headers nvarchar(max)    NULL,
    Body    varbinary(max)   NULL,
    seq     bigint           NOT NULL,
    expired bit              NOT NULL
);
DELETE q
OUTPUT deleted.Id, deleted.Headers, deleted.Body, deleted.RowVersion,
       CASE WHEN deleted.Expires <= GETUTCDATE() THEN 1 ELSE 0 END
  INTO @gone (Id, Headers, Body, seq, expired)
  FROM (SELECT DISTINCT seq, place
          FROM OPENJSON(@chosen) WITH (seq bigint '$[0]', place uniqueidentifier '$[1]')) AS s
 INNER LOOP JOIN [sales].[Shop.Orders] AS q WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    ON q.RowVersion = s.seq AND q.Id = s.place
OPTION (MAXDOP 1);
INSERT INTO [dbo].[error] (Id, Recoverable, Headers, Body)
SELECT CASE WHEN @renamed = 1 THEN NEWID() ELSE Id END, 1, Headers, ISNULL(Body, 0x)
  FROM @gone
 WHERE expired = 0
 ORDER BY seq;
SELECT ISNULL(SUM(CASE WHEN expired = 0 THEN CAST(1 AS bigint) END), 0) AS diverted,
       ISNULL(SUM(CASE WHEN expired = 1 THEN CAST(1 AS bigint) END), 0) AS expired
  FROM @gone;
GO

-- begin_receipt
INSERT INTO [sqlqueue].receipt_page (stream, batch, task, page, payload)
VALUES (@stream, @batch, @task, -1, 0x);
GO

-- save_receipt
INSERT INTO [sqlqueue].receipt
       (stream, batch, task, queue, messages, expired, diverted, forwarded, bytes,
        query_id, spark_batch, query_name, unpacked, payload)
VALUES (@stream, @batch, @task, @queue_name, @messages, @expired, @diverted, @forwarded,
        @bytes, @query_id, @spark_batch, @query_name, @unpacked, @payload);
GO

-- lock_stream
UPDATE [sqlqueue].stream WITH (REPEATABLEREAD, ROWLOCK)
   SET driver = driver
OUTPUT inserted.queue, inserted.driver, inserted.acked_batch, inserted.plan_batch,
       inserted.stored_plan
 WHERE stream = @stream AND version_5 IS NULL;
GO

-- acknowledge
UPDATE [sqlqueue].stream
   SET acked_batch = @batch,
       plan_batch  = CASE WHEN plan_batch > @batch THEN plan_batch END,
       stored_plan = CASE WHEN plan_batch > @batch THEN stored_plan END,
       plan_high_water = CASE WHEN plan_batch > @batch THEN plan_high_water END,
       query_id    = ISNULL(@query_id, query_id),
       spark_batch = CASE WHEN @query_id IS NULL THEN spark_batch
                          WHEN query_id = @query_id AND spark_batch > @spark_batch THEN spark_batch
                          ELSE @spark_batch END,
       messages    = messages + @messages,
       expired     = expired + @expired,
       diverted    = diverted + @diverted,
       forwarded   = forwarded + @forwarded,
       query_name  = ISNULL(@query_name, query_name),
       seen        = SYSUTCDATETIME()
 WHERE stream = @stream;
GO

-- delete_receipts
DELETE FROM [sqlqueue].receipt_page
 WHERE stream = @stream AND batch BETWEEN @first AND @batch;
DELETE FROM [sqlqueue].receipt
 WHERE stream = @stream AND batch BETWEEN @first AND @batch;
GO

-- table_owners
SELECT t.place, CAST(t.id AS bigint) AS [identity], t.catalog, CAST(t.here AS bit) AS here,
       ISNULL(CASE WHEN t.here = 1 THEN OBJECT_SCHEMA_NAME(t.id) END, PARSENAME(t.name, 2)) AS [schema],
       ISNULL(CASE WHEN t.here = 1 THEN OBJECT_NAME(t.id) END, PARSENAME(t.name, 1)) AS [table],
       (SELECT MIN(w.fault)
         FROM (SELECT CASE WHEN COL_LENGTH(t.name, j.name) IS NULL
                           THEN CONCAT(N'it has no column ', j.name)
                           WHEN t.here = 1 AND NOT EXISTS (
                                   SELECT 1
                                     FROM sys.columns AS c
                                     JOIN sys.types AS y ON y.user_type_id = c.system_type_id
                                     JOIN (SELECT types.name, types.kind, types.wanted
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
                                                    (N'Due', N'datetime2', N'datetime')) AS types (name, kind, wanted)) AS k
                                       ON k.name = j.name AND k.kind = y.name COLLATE DATABASE_DEFAULT
                                    WHERE c.object_id = t.id AND c.name = j.name COLLATE DATABASE_DEFAULT)
                           THEN CONCAT(N'column ', j.name, N' has another type than that of a queue')
                           END AS fault
                 FROM (SELECT CAST(CASE value WHEN N'Seq' THEN N'RowVersion' ELSE value END AS sysname) AS name
                         FROM OPENJSON(t.columns)) AS j) AS w) AS missing,
       CAST(ISNULL(HAS_PERMS_BY_NAME(t.name, N'OBJECT', N'INSERT'), 1) * t.is_table AS bit) AS may_insert,
       ISNULL(USER_NAME(t.owner_id), N'an owner that cannot be seen') AS owner,
       CASE WHEN t.here = 0 THEN N'it is in another database, whose owners cannot be seen'
            WHEN t.is_table = 0 THEN N'it is no ordinary table'
            WHEN u.found IS NOT NULL
            THEN N'it belongs to ' + ISNULL(USER_NAME(t.owner_id), N'an owner that cannot be seen')
       END AS fault,
       CASE WHEN t.here = 1 AND t.is_table = 1 AND u.found IS NOT NULL THEN USER_NAME(t.owner_id) END AS role,
       CAST(ISNULL(IS_SRVROLEMEMBER(N'sysadmin'), 0) AS bit) AS is_super
  FROM (SELECT a.*,
               NULLIF(CASE WHEN a.here = 1 THEN OBJECTPROPERTY(a.id, N'OwnerId') END, 0) AS owner_id,
               CASE WHEN a.here = 0 OR EXISTS (SELECT * FROM sys.tables AS s
                                                WHERE s.object_id = a.id AND s.is_external = 0)
                    THEN 1 ELSE 0 END AS is_table
          FROM (SELECT w.place, w.name, w.columns, OBJECT_ID(w.name) AS id,
                       COALESCE(DB_NAME(DB_ID(w.catalog)), w.catalog, DB_NAME()) AS catalog,
                       CASE WHEN w.catalog IS NULL OR ISNULL(DB_ID(w.catalog), 0) = DB_ID()
                            THEN 1 ELSE 0 END AS here
                  FROM OPENJSON(@places) WITH (place bigint '$.place', name nvarchar(776) '$.name',
                                               catalog nvarchar(128) '$.catalog',
                                               columns nvarchar(max) '$.columns' AS JSON) AS w) AS a
         WHERE a.id IS NOT NULL) AS t
  LEFT JOIN (SELECT 1 AS found) AS u ON ISNULL(t.owner_id, 0) NOT IN (
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
       );
GO

-- state_faults
SELECT f.what COLLATE DATABASE_DEFAULT
       + CASE WHEN f.is_fault = 1 THEN N'' ELSE N' belongs to '
                     + ISNULL(USER_NAME(NULLIF(f.owner_id, 0)), N'an owner that cannot be seen') END AS fault,
       CASE WHEN f.is_fault = 0 THEN USER_NAME(NULLIF(f.owner_id, 0)) END AS role,
       CAST(ISNULL(IS_SRVROLEMEMBER(N'sysadmin'), 0) AS bit) AS is_super
  FROM (SELECT N'the schema' AS what, 0 AS is_fault, ISNULL(s.principal_id, 0) AS owner_id
          FROM sys.schemas AS s
         WHERE s.name = N'sqlqueue'
        UNION ALL
        SELECT CONCAT(N'table ', QUOTENAME(o.name COLLATE DATABASE_DEFAULT),
                      CASE WHEN o.type <> N'U' THEN N' is no table' WHEN p.policies > 0 THEN N' has a policy' END),
               CASE WHEN o.type <> N'U' OR p.policies > 0 THEN 1 ELSE 0 END,
               ISNULL(OBJECTPROPERTY(o.object_id, N'OwnerId'), 0)
          FROM sys.objects AS o
         CROSS APPLY (SELECT COUNT(*) AS policies FROM sys.security_predicates AS s
                       WHERE s.target_object_id = o.object_id) AS p
         WHERE o.schema_id = SCHEMA_ID(N'sqlqueue') AND o.type IN (N'U', N'V', N'SN')) AS f
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
       );
GO

-- sink_close
UPDATE [sqlqueue].dispatch_log WITH (REPEATABLEREAD, ROWLOCK)
   SET messages = messages
OUTPUT inserted.login, inserted.sink_batch, inserted.destination
 WHERE sink = @sink AND version_5 IS NULL;
GO

-- advance
UPDATE [sqlqueue].dispatch_log
   SET sink_batch = @sink_batch, messages = @messages, dispatched = SYSUTCDATETIME(),
       destination = @destination
OUTPUT inserted.sink_batch
 WHERE sink = @sink AND version_5 IS NULL AND (sink_batch IS NULL OR sink_batch < @sink_batch);
GO

-- settle
DECLARE @open TABLE (
    stream nvarchar(36) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY, acked bigint NOT NULL);
INSERT INTO @open (stream, acked)
SELECT o.stream, o.acked_batch
  FROM [sqlqueue].stream AS o WITH (REPEATABLEREAD, ROWLOCK)
 WHERE o.stream IN (
        SELECT r.stream
          FROM [sqlqueue].receipt AS r WITH (INDEX (receipt_query), FORCESEEK)
         WHERE r.query_id = @query_id AND r.spark_batch = @spark_batch);
UPDATE r
   SET settled = 1
OUTPUT CAST(1 AS bit) AS settled
  FROM [sqlqueue].receipt AS r WITH (INDEX (receipt_query), FORCESEEK)
  JOIN @open AS o ON o.stream = r.stream
 WHERE r.query_id = @query_id AND r.spark_batch = @spark_batch AND r.batch > o.acked;
GO

-- load
INSERT INTO [sales].[Shop.Orders] (Headers, Body, Expires, Id, Recoverable) SELECT TOP (@messages) Headers, ISNULL(Body, 0x), Expires, Id, 1 FROM OPENJSON(@rows) WITH (place int '$[0]', Headers nvarchar(max) '$[1]', Body varbinary(max) '$[2]', Expires datetime2(6) '$[3]', Id uniqueidentifier '$[4]') AS sent ORDER BY place OPTION (MAXDOP 1);
GO

-- move_due
DECLARE @now datetime = GETUTCDATE(), @moved bigint;
WITH message AS (
    SELECT TOP (@messages) Headers, Body, Due
      FROM [sales].[Shop.Orders.Delayed] WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
     WHERE Due <= @now AND 1 = 1
     ORDER BY Due
)
DELETE FROM message
OUTPUT NEWID(), 1, deleted.Headers, ISNULL(deleted.Body, 0x)
  INTO [sales].[Shop.Orders] (Id, Recoverable, Headers, Body);
SET @moved = ROWCOUNT_BIG();
SELECT @moved AS moved, CAST(0 AS bigint) AS renamed,
       (SELECT COUNT_BIG(*)
          FROM [sales].[Shop.Orders.Delayed] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
         WHERE Due <= @now AND NOT (1 = 1)) AS unfit;
GO

-- purge_expired
DECLARE @found TABLE (seq bigint NOT NULL);
DECLARE @gone bigint = 0, @taken bigint = 1;
WHILE @taken > 0 AND @gone < @messages
BEGIN
    DELETE FROM @found;
    INSERT INTO @found (seq)
    SELECT TOP (CASE WHEN @messages - @gone < 2000 THEN @messages - @gone ELSE 2000 END)
           RowVersion
      FROM [sales].[Shop.Orders] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
     WHERE Expires <= GETUTCDATE();
    DELETE q
      FROM @found AS f
     INNER LOOP JOIN [sales].[Shop.Orders] AS q WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
        ON q.RowVersion = f.seq AND q.Expires <= GETUTCDATE()
    OPTION (MAXDOP 1);
    SET @taken = ROWCOUNT_BIG();
    SET @gone = @gone + @taken;
END;
SELECT @gone AS messages;
GO

-- load of an old table, with bodies that are null
IF EXISTS (SELECT 1 FROM OPENJSON(@rows) WITH (Headers nvarchar(max) '$[1]') WHERE NOT (CAST(CAST(Headers COLLATE Latin1_General_CI_AS AS varchar(max)) AS nvarchar(max)) COLLATE Latin1_General_100_BIN2 = Headers)) BEGIN; THROW 51901, N'characters of Headers do not fit', 1; END;
INSERT INTO [sales].[Shop.Orders] (Headers, Body, Id) SELECT TOP (@messages) Headers, Body, Id FROM OPENJSON(@rows) WITH (place int '$[0]', Headers nvarchar(max) '$[1]', Body varbinary(max) '$[2]', Id uniqueidentifier '$[4]') AS sent ORDER BY place OPTION (MAXDOP 1);
GO

-- load with columns of version 1
INSERT INTO [sales].[Shop.Orders] (Headers, CorrelationId, ReplyToAddress, Id, Recoverable) SELECT TOP (@messages) Headers, CorrelationId, ReplyToAddress, Id, 1 FROM OPENJSON(@rows) WITH (place int '$[0]', Headers nvarchar(max) '$[1]', CorrelationId varchar(256) '$[2]', ReplyToAddress varchar(256) '$[3]', Id uniqueidentifier '$[4]') AS sent ORDER BY place OPTION (MAXDOP 1);
GO

-- move_due into an old table
DECLARE @now datetime = GETUTCDATE(), @moved bigint;
WITH message AS (
    SELECT TOP (@messages) Headers, Body, Due
      FROM [sales].[Shop.Orders.Delayed] WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
     WHERE Due <= @now AND CAST(CAST(Headers COLLATE Latin1_General_CI_AS AS varchar(max)) AS nvarchar(max)) COLLATE Latin1_General_100_BIN2 = Headers
     ORDER BY Due
)
DELETE FROM message
OUTPUT NEWID(), 1, deleted.Headers, ISNULL(deleted.Body, 0x)
  INTO [sales].[Shop.Orders] (Id, Recoverable, Headers, Body);
SET @moved = ROWCOUNT_BIG();
SELECT @moved AS moved, CAST(0 AS bigint) AS renamed,
       (SELECT COUNT_BIG(*)
          FROM [sales].[Shop.Orders.Delayed] WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
         WHERE Due <= @now AND NOT (CAST(CAST(Headers COLLATE Latin1_General_CI_AS AS varchar(max)) AS nvarchar(max)) COLLATE Latin1_General_100_BIN2 = Headers)) AS unfit;
GO
