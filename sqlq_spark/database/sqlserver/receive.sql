-- name: fence
-- A task of a batch that was acknowledged must not receive.
-- The second column is the query's high-water mark, as it was when the plan was stored: the last batch
-- of Spark's query that one of its streams had received for. @query_id may be null.
-- Locks:   the stream's row, shared, until commit; acknowledge waits for the task. REPEATABLEREAD
--          locks also where the database reads row versions.
-- Returns: acked_batch bigint, query_batch bigint or null; no row where the stream is not there
SELECT acked_batch,
       (SELECT MAX(p.batch)
          FROM OPENJSON(plan_after)
               WITH (query nvarchar(36) '$.query', batch bigint '$.batch') AS p
         WHERE p.query = @query_id) AS query_batch
  FROM {state}.stream WITH (REPEATABLEREAD, ROWLOCK)
 WHERE stream = @stream

-- name: find_receipt
-- Returns: payload varbinary; empty where it is in pages; messages, unpacked (bytes) bigint; query_id,
--          query_batch bigint, or null
SELECT payload, messages, unpacked, query_id, query_batch
  FROM {state}.receipt
 WHERE stream = @stream AND batch = @batch AND task = @task

-- name: receipt_pages
-- Returns: payload varbinary, in order
SELECT payload
  FROM {state}.receipt_page
 WHERE stream = @stream AND batch = @batch AND task = @task
 ORDER BY page

-- name: weigh
-- The lowest messages of a range and their sizes, before `receive` deletes them. The client cuts the
-- range where the size of a step ends (see weigh.py). A UTF-16 unit of headers counts as one byte. A
-- message larger than @largest is left out.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_RowVersion, a seek.
-- Returns: seq bigint, bytes bigint; by seq
SELECT TOP (CASE WHEN @messages < 2000 THEN @messages ELSE 2000 END)
       RowVersion AS seq,
       ISNULL(DATALENGTH(CAST(Headers AS nvarchar(max))) / 2, 0)
       + ISNULL(DATALENGTH(Body), 0) AS bytes
  FROM {queue} WITH (FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE RowVersion >= @first AND RowVersion < @stop
   AND ISNULL(DATALENGTH(CAST(Headers AS nvarchar(max))) / 2, 0)
       + ISNULL(DATALENGTH(Body), 0) <= @largest
 ORDER BY RowVersion
OPTION (MAXDOP 1)

-- name: receive
-- Deletes the lowest messages of a range that no other session holds, up to a count; none larger than
-- @largest. The statement is in the form that the transport and other queues use: a delete through a
-- TOP with an ORDER BY. A window function would send every body through tempdb, so the sizes were read
-- before, by `weigh`. A message that is committed late into the range, or that another session gives
-- back, comes unweighed. @messages times @largest limits what such messages can add.
-- Locks:   an update lock for each row it reads, until commit. Never waits for a row.
-- Index:   Index_RowVersion, clustered or not; without FORCESEEK stale statistics may choose a scan
--          that locks the whole range.
-- Returns: id binary in SQL Server's byte order, expires datetime, expired bit, headers as UTF-16
--          bytes (a lone surrogate must not stop the driver), body, seq bigint; no order promised
WITH message AS (
    SELECT TOP (CASE WHEN @messages < 2000 THEN @messages ELSE 2000 END)
           Id, Expires, Headers, Body, RowVersion
      FROM {queue} WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
     WHERE RowVersion >= @first AND RowVersion < @stop
       AND ISNULL(DATALENGTH(CAST(Headers AS nvarchar(max))) / 2, 0)
           + ISNULL(DATALENGTH(Body), 0) <= @largest
     ORDER BY RowVersion
)
DELETE FROM message
OUTPUT CAST(deleted.Id AS binary(16)) AS id,
       deleted.Expires AS expires,
       CAST(CASE WHEN deleted.Expires <= GETUTCDATE() THEN 1 ELSE 0 END AS bit) AS expired,
       CAST(CAST(deleted.Headers AS nvarchar(max)) AS varbinary(max)) AS headers,
       deleted.Body AS body,
       deleted.RowVersion AS seq
OPTION (MAXDOP 1)

-- name: take
-- Deletes given messages that no other session holds; @seqs is a JSON array.
-- Locks:   an update lock for each, until commit. Never waits for a row.
-- Index:   Index_RowVersion, a seek for each.
-- Returns: as receive; no order promised
DELETE q
OUTPUT CAST(deleted.Id AS binary(16)) AS id,
       deleted.Expires AS expires,
       CAST(CASE WHEN deleted.Expires <= GETUTCDATE() THEN 1 ELSE 0 END AS bit) AS expired,
       CAST(CAST(deleted.Headers AS nvarchar(max)) AS varbinary(max)) AS headers,
       deleted.Body AS body,
       deleted.RowVersion AS seq
  FROM (SELECT DISTINCT CAST(value AS bigint) AS seq FROM OPENJSON(@seqs)) AS s
 INNER LOOP JOIN {queue} AS q WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    ON q.RowVersion = s.seq
OPTION (MAXDOP 1)

-- name: patience
-- Sets how long the transaction waits for a destination that others lock, from here to its end. The
-- value is written into the text, as in timeouts.
SET LOCK_TIMEOUT {milliseconds}

-- name: destinations
-- For tables that messages are to go to: whether they are queues, and their owners. It runs before the
-- INSERT and after it, because no right of a sender locks a table against a change.
-- Trusted are this login, dbo, and the owner of the queue that is read, if any. A right that cannot be
-- looked up, because the name has more than 128 characters, counts as granted: the INSERT decides.
-- Returns: for each table that is there: place bigint, in the list that was given; identity bigint;
--          catalog, here bit (in this database), schema and table; missing, the first column that it
--          lacks, or null; may_insert bit; owner; same_owner bit, as the queue that is read; settled
--          bit: never; plain bit: its owner is trusted, and so are its triggers
WITH asked AS (
    SELECT w.place, w.name, w.columns,
           OBJECT_ID(w.name, N'U') AS id,
           CASE WHEN w.catalog IS NULL OR DB_ID(w.catalog) = DB_ID() THEN NULL
                WHEN DB_ID(w.catalog) IS NULL THEN w.catalog
                ELSE COALESCE(DB_NAME(DB_ID(w.catalog)), w.catalog) END AS catalog,
           CASE WHEN w.catalog IS NULL OR DB_ID(w.catalog) = DB_ID()
                THEN OBJECTPROPERTY(OBJECT_ID(w.name, N'U'), N'OwnerId') END AS owner_id,
           OBJECTPROPERTY(OBJECT_ID(@source_table, N'U'), N'OwnerId') AS source_owner
      FROM OPENJSON(@places) WITH (place bigint '$.place', name nvarchar(776) '$.name',
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
       CAST(COALESCE(HAS_PERMS_BY_NAME(a.name, N'OBJECT', N'INSERT'), 1) AS bit) AS may_insert,
       COALESCE(USER_NAME(a.owner_id), N'an owner that cannot be seen') AS owner,
       CAST(CASE WHEN a.owner_id = a.source_owner THEN 1 ELSE 0 END AS bit) AS same_owner,
       CAST(0 AS bit) AS settled,
       CAST(CASE WHEN a.owner_id IN (1, DATABASE_PRINCIPAL_ID(), COALESCE(a.source_owner, 1))
                 THEN 1 ELSE 0 END AS bit) AS plain
  FROM asked AS a

-- name: destination_code
-- The first code that an INSERT into a table of an owner who is not trusted would run. Such a table
-- must show its definition and run no code, except expressions of the server's own functions. @places
-- are names; a table of another database is reported as such. Whether a definition is shown cannot be
-- looked up for a name of more than 128 characters, which counts as not shown.
-- Returns: identity bigint, code; no row where nothing was found
WITH part AS (
    SELECT CAST(OBJECT_ID(w.name, N'U') AS bigint) AS place,
           OBJECT_ID(w.name, N'U') AS id,
           w.name,
           CASE WHEN w.catalog IS NULL OR DB_ID(w.catalog) = DB_ID() THEN 1 ELSE 0 END AS here,
           OBJECTPROPERTY(OBJECT_ID(w.name, N'U'), N'OwnerId') AS owner_id
      FROM OPENJSON(@places) WITH (name nvarchar(776) '$.name',
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

-- name: find_large
-- The lowest messages of a range that are larger than a limit and that no other session holds. It runs
-- only where the sample had such sizes and the task got less than was planned.
-- Locks:   an update lock for each row it reads, until commit. Never waits for a row.
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

-- name: divert_large
-- Moves given messages to the error queue, unchanged, without the client. Drops expired ones. @seqs is
-- a JSON array. @renamed: a queue may hold an id twice, unless a DBA added a unique index.
-- {recoverable}, {one}: the column Recoverable and its value, where the table has it.
-- {fits}: refuses headers that a varchar would store with question marks.
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
DELETE q
OUTPUT deleted.Id, deleted.Headers, deleted.Body, deleted.RowVersion,
       CASE WHEN deleted.Expires <= GETUTCDATE() THEN 1 ELSE 0 END
  INTO @gone (Id, Headers, Body, seq, expired)
  FROM (SELECT DISTINCT CAST(value AS bigint) AS seq FROM OPENJSON(@seqs)) AS s
 INNER LOOP JOIN {queue} AS q WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    ON q.RowVersion = s.seq
OPTION (MAXDOP 1);
{fits}INSERT INTO {errors} (Id, {recoverable}Headers, Body)
SELECT CASE WHEN @renamed = 1 THEN NEWID() ELSE Id END, {one}Headers, ISNULL(Body, 0x)
  FROM @gone
 WHERE expired = 0
 ORDER BY seq;
SELECT ISNULL(SUM(CASE WHEN expired = 0 THEN CAST(1 AS bigint) END), 0) AS moved,
       ISNULL(SUM(CASE WHEN expired = 1 THEN CAST(1 AS bigint) END), 0) AS expired
  FROM @gone

-- name: save_receipt
-- The key is the lock of an attempt: of two attempts of one task, the second fails (2627), starts again
-- and then finds the first one's receipt.
-- Locks:   the row it writes, until commit; waits for another attempt that has written it.
INSERT INTO {state}.receipt
       (stream, batch, task, queue, messages, expired, diverted, forwarded, bytes,
        query_id, query_batch, unpacked, payload)
VALUES (@stream, @batch, @task, @queue_name, @messages, @expired, @diverted, @forwarded,
        @bytes, @query_id, @query_batch, @unpacked, @payload)
