-- part: message_bytes
-- The size of a message, as limits count it; other statements contain it. A UTF-16 unit of headers
-- counts as one byte.
ISNULL(DATALENGTH(CAST(Headers AS nvarchar(max))) / 2, 0) + ISNULL(DATALENGTH(Body), 0)

-- part: header_bytes
-- The size of headers, as the server stores them: two bytes for a UTF-16 unit of an nvarchar; other
-- statements contain it.
ISNULL(DATALENGTH(Headers), 0)

-- part: too_large
-- Whether a message, or its headers, are larger than allowed; other statements contain it.
({message_bytes} > @largest
 OR {header_bytes} > @largest_headers)

-- part: received_row
-- A message that was received; other statements contain it. Headers come as UTF-16 bytes, because a
-- lone surrogate must not stop the driver. An expiry on the last day of the calendar means never: a
-- client in another time zone could not show it.
CAST(deleted.Id AS binary(16)) AS id,
CASE WHEN deleted.Expires < '99991231' THEN deleted.Expires END AS expires,
CAST(CASE WHEN deleted.Expires <= GETUTCDATE() THEN 1 ELSE 0 END AS bit) AS expired,
CAST(CAST(deleted.Headers AS nvarchar(max)) AS varbinary(max)) AS headers,
deleted.Body AS body,
deleted.RowVersion AS seq

-- name: fence
-- A task of a batch that was acknowledged must not receive.
-- `plan_high_water` is the highest batch of Spark's query that one of its streams had closed or had
-- receipts of, when the plan was stored. `is_reader` says whether the stream is the one that may receive
-- from this queue for the query's run, see enter_query. @query_id may be null.
-- Locks:   the stream's row, shared, until commit; acknowledge waits for the task. REPEATABLEREAD
--          locks also where the database reads row versions.
-- Index:   the primary keys of stream and query_reader.
-- Returns: acked_batch bigint, plan_high_water bigint or null, is_reader bit; no row where the stream is
--          not there
SELECT o.acked_batch,
       (SELECT MAX(p.batch)
          FROM OPENJSON(o.plan_high_water)
               WITH (query nvarchar(36) '$.query', batch bigint '$.batch') AS p
         WHERE p.query = @query_id) AS plan_high_water,
       CAST(CASE WHEN EXISTS (
                 SELECT 1
                   FROM {state}.query_reader AS r
                  WHERE r.query_id = @query_id AND r.queue = @queue_name
                    AND r.stream = o.stream AND r.run_id = @run_id)
            THEN 1 ELSE 0 END AS bit) AS is_reader
  FROM {state}.stream AS o WITH (REPEATABLEREAD, ROWLOCK)
 WHERE o.stream = @stream AND o.version_4 IS NULL

-- name: enter_query
-- Two streams of one query must not share the messages of a queue, because each would get a part of them.
-- So the first stream that receives from a queue for a run of the query enters itself here. An entry of an
-- earlier run is replaced, because its stream may belong to a checkpoint that is lost. An entry of another
-- stream for the same run stays, see query_reader.
-- Two sessions may insert the same entry. The second waits for the first, and then inserts nothing.
-- XACT_ABORT is off until the end of this statement, so that a duplicate does not end the transaction.
-- Locks:   the row, until commit; waits for another stream that enters itself.
-- Index:   the primary key.
SET XACT_ABORT OFF;
UPDATE {state}.query_reader WITH (REPEATABLEREAD, ROWLOCK)
   SET stream = @stream, run_id = @run_id
 WHERE query_id = @query_id AND queue = @queue_name AND run_id <> @run_id;
BEGIN TRY
    INSERT INTO {state}.query_reader (query_id, queue, stream, run_id)
    SELECT @query_id, @queue_name, @stream, @run_id
     WHERE NOT EXISTS (
            SELECT 1 FROM {state}.query_reader WHERE query_id = @query_id AND queue = @queue_name);
END TRY
BEGIN CATCH
    IF ERROR_NUMBER() <> 2627
    BEGIN;
        THROW;
    END;
END CATCH

-- name: query_reader
-- After enter_query: which stream may receive from the queue for the query's run.
-- Index:   the primary key.
-- Returns: stream
SELECT stream
  FROM {state}.query_reader
 WHERE query_id = @query_id AND queue = @queue_name

-- name: find_receipt
-- Returns: payload varbinary; empty where it is in pages; messages, unpacked (bytes) bigint; query_id,
--          spark_batch bigint, or null
SELECT payload, messages, unpacked, query_id, spark_batch
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
-- range where the size of a step ends (see calls.py). A UTF-16 unit of headers counts as one byte. A
-- message that is too large counts too, because `receive` locks it: above some 5,000 locks the server
-- would lock the table.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_RowVersion, a seek.
-- Returns: seq bigint, bytes bigint, is_large bit; by seq
SELECT TOP (CASE WHEN @messages < 2000 THEN @messages ELSE 2000 END)
       RowVersion AS seq,
       {message_bytes} AS bytes,
       CAST(CASE WHEN {too_large} THEN 1 ELSE 0 END AS bit) AS is_large
  FROM {queue} WITH (FORCESEEK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE RowVersion >= @first AND RowVersion < @stop
 ORDER BY RowVersion
OPTION (MAXDOP 1)

-- name: receive
-- Deletes the lowest messages of a range that no other session holds, up to a count; none that is
-- too large. The statement is in the form that the transport and other queues use: a delete through a
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
       AND NOT {too_large}
     ORDER BY RowVersion
)
DELETE FROM message
OUTPUT {received_row}
OPTION (MAXDOP 1)

-- name: take
-- Deletes given messages that no other session holds; @chosen is a JSON array of arrays [seq, id]. The
-- id distinguishes a message from another one of the same RowVersion.
-- Locks:   an update lock for each, until commit. Never waits for a row.
-- Index:   Index_RowVersion, a seek for each.
-- Returns: as receive; no order promised
DELETE q
OUTPUT {received_row}
  FROM (SELECT DISTINCT seq, row
          FROM OPENJSON(@chosen) WITH (seq bigint '$[0]', row uniqueidentifier '$[1]')) AS s
 INNER LOOP JOIN {queue} AS q WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    ON q.RowVersion = s.seq AND q.Id = s.row
OPTION (MAXDOP 1)


-- name: find_large
-- The lowest messages of a range that are too large and that no other session holds. It runs only if the
-- sample of the plan may have had such sizes, and the task got less than was planned.
-- Locks:   an update lock for each row it reads, until commit. Never waits for a row.
-- Index:   Index_RowVersion.
-- Returns: seq bigint, bytes bigint, headers bigint: their bytes; place: the row's Id as text
SELECT TOP (@messages) RowVersion AS seq,
       {message_bytes} AS bytes,
       {header_bytes} AS headers,
       CAST(Id AS nvarchar(36)) AS place
  FROM {queue} WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE RowVersion >= @first AND RowVersion < @stop
   AND {too_large}
 ORDER BY RowVersion
OPTION (MAXDOP 1)

-- name: divert_large
-- Moves given messages to the error queue, unchanged, without the client. Drops expired ones. @chosen
-- is a JSON array of arrays [seq, place]. Another message of the same RowVersion stays. @renamed: all get
-- new ids. A queue may hold an id twice, unless a DBA added a unique index.
-- {recoverable}, {one}: the column Recoverable and its value, where the table has it.
-- {fits}: refuses headers that a varchar would store with question marks.
-- Locks:   an update lock for each, until commit; find_large has them already.
-- Index:   Index_RowVersion, a seek for each.
-- Returns: diverted bigint, expired bigint: how many were moved, and how many were dropped
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
 INNER LOOP JOIN {queue} AS q WITH (FORCESEEK, UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)
    ON q.RowVersion = s.seq AND q.Id = s.place
OPTION (MAXDOP 1);
{fits}INSERT INTO {errors} (Id, {recoverable}Headers, Body)
SELECT CASE WHEN @renamed = 1 THEN NEWID() ELSE Id END, {one}Headers, ISNULL(Body, 0x)
  FROM @gone
 WHERE expired = 0
 ORDER BY seq;
SELECT ISNULL(SUM(CASE WHEN expired = 0 THEN CAST(1 AS bigint) END), 0) AS diverted,
       ISNULL(SUM(CASE WHEN expired = 1 THEN CAST(1 AS bigint) END), 0) AS expired
  FROM @gone

-- name: begin_receipt
-- Writes an empty page, before the others. Its key is the lock of an attempt. A second attempt of the task
-- waits here. If the first one commits, the second one fails (2627), starts again and finds the receipt. If
-- the first one fails, the second one goes on. Without this page both would skip each other's messages, and
-- the faster one could leave an empty receipt.
-- Locks:   the row it writes, until commit; waits for another attempt.
INSERT INTO {state}.receipt_page (stream, batch, task, page, payload)
VALUES (@stream, @batch, @task, -1, 0x)

-- name: save_receipt
-- Locks:   the row it writes, until commit; begin_receipt has kept other attempts away.
INSERT INTO {state}.receipt
       (stream, batch, task, queue, messages, expired, diverted, forwarded, bytes,
        query_id, spark_batch, unpacked, payload)
VALUES (@stream, @batch, @task, @queue_name, @messages, @expired, @diverted, @forwarded,
        @bytes, @query_id, @spark_batch, @unpacked, @payload)
