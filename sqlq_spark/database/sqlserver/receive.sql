-- part: message_bytes
-- The size of a message in bytes, as limits count it; other statements contain this part. A UTF-16 unit
-- of headers counts as one byte.
ISNULL(DATALENGTH(CAST(Headers AS nvarchar(max))) / 2, 0) + ISNULL(DATALENGTH(Body), 0)

-- part: header_bytes
-- The size of headers in bytes, as the server stores them; other statements contain this part. A UTF-16
-- unit of an nvarchar has two bytes.
ISNULL(DATALENGTH(Headers), 0)

-- part: too_large
-- Whether a message, or its headers, are larger than allowed; other statements contain this part.
({message_bytes} > @largest
 OR {header_bytes} > @largest_headers)

-- part: received_row
-- The columns of a received message; other statements contain this part. Headers are returned as UTF-16
-- bytes, so that the driver does not fail on a lone surrogate. An expiry on the last day of the calendar
-- becomes null, because a client in another time zone could not show it.
CAST(deleted.Id AS binary(16)) AS id,
CASE WHEN deleted.Expires < '99991231' THEN deleted.Expires END AS expires,
CAST(CASE WHEN deleted.Expires <= GETUTCDATE() THEN 1 ELSE 0 END AS bit) AS expired,
CAST(CAST(deleted.Headers AS nvarchar(max)) AS varbinary(max)) AS headers,
deleted.Body AS body,
deleted.RowVersion AS seq

-- name: fence
-- Reads what decides whether a task may receive. @query_id may be null. The columns are:
-- - `acked_batch`: the task must not receive if its batch was acknowledged.
-- - `plan_high_water`: the plan must not be used for this batch of Spark's query, or for an earlier one.
--   It is the highest batch that any stream of the query had closed, or had receipts of, when the plan was
--   stored.
-- - `is_reader`: whether this stream is the one that may receive from this queue in this run of the query.
--   The statement enter_query decides that.
-- Locks:   the stream's row, shared, until commit; acknowledge waits for the task. REPEATABLEREAD
--          locks also where the database reads row versions.
-- Index:   the primary keys of stream and query_reader.
-- Returns: acked_batch bigint, plan_high_water bigint or null, is_reader bit; no row if the stream is not
--          there
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
 WHERE o.stream = @stream AND o.version_5 IS NULL

-- name: enter_query
-- Two streams of one query must not share the messages of a queue, because each would get a part of them.
-- So the first stream that receives from a queue in a run of the query enters itself into the table
-- query_reader. It replaces an entry of an earlier run, because that entry's stream may belong to a
-- checkpoint that is lost. If another stream has entered itself for the same run, its entry stays. If two
-- sessions insert the same entry, the second waits for the first, and then inserts nothing. XACT_ABORT is
-- off until the end of this statement, so that a duplicate does not end the transaction.
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
-- Reads, after enter_query, which stream may receive from the queue for the query's run.
-- Index:   the primary key.
-- Returns: stream
SELECT stream
  FROM {state}.query_reader
 WHERE query_id = @query_id AND queue = @queue_name

-- name: find_receipt
-- Returns: payload varbinary, empty if it is in pages; messages bigint; unpacked bigint: the bytes of the
--          payload before compression; query_id, spark_batch bigint: Spark's names, or null
SELECT payload, messages, unpacked, query_id, spark_batch
  FROM {state}.receipt
 WHERE stream = @stream AND batch = @batch AND task = @task

-- name: receipt_pages
-- Returns: payload varbinary, the pages in their order
SELECT payload
  FROM {state}.receipt_page
 WHERE stream = @stream AND batch = @batch AND task = @task
 ORDER BY page

-- name: weigh
-- Reads the lowest messages of a range and their sizes, before `receive` deletes them. The client ends the
-- range where the messages have enough bytes for a step (see calls.py). A UTF-16 unit of headers counts as
-- one byte. Messages that are too large are among the rows too. `receive` does not delete them, but it
-- locks them. The client must count these locks, because above some 5,000 the server would lock the table.
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
-- Deletes the lowest messages of a range that no other session holds, up to a number of messages. It
-- deletes none that is too large. The statement has the form that the transport uses too: a delete through
-- a TOP with an ORDER BY. It does not sum up sizes, because a window function would send every body
-- through tempdb. So `weigh` has read the sizes before. After `weigh`, other sessions may commit messages
-- in the range or release their locks. Such messages have not been weighed. They can add at most @messages
-- times @largest bytes.
-- Locks:   an update lock for each row it reads, until commit. Never waits for a row.
-- Index:   Index_RowVersion, clustered or not. Without FORCESEEK, because of stale statistics, the server
--          may choose a scan that locks the whole range.
-- Returns: id binary in SQL Server's byte order, expires datetime, expired bit, headers as UTF-16
--          bytes, body, seq bigint; no order promised
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
-- Deletes those of the @chosen messages that no other session holds. @chosen is a JSON array of arrays
-- [seq, id]. The id distinguishes a message from another message with the same RowVersion.
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
-- Finds the lowest messages of a range that are too large and that no other session holds. It runs only
-- if the task got less than was planned, and the plan's sample does not rule out such sizes.
-- Locks:   an update lock for each row it reads, until commit. Never waits for a row.
-- Index:   Index_RowVersion.
-- Returns: seq bigint; bytes bigint: the size of the message; headers bigint: the size of its headers;
--          place: the row's Id as text
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
-- Moves the @chosen messages to the error queue, unchanged. The client does not get them. Expired
-- messages are dropped instead. @chosen is a JSON array of arrays [seq, place]. Another message with the
-- same RowVersion stays. If @renamed, each message gets a new id. A queue may hold an id twice, unless a
-- DBA added a unique index.
-- {recoverable}, {one}: the column Recoverable and its value, if the table has this column.
-- {fits}: raises an error for headers that a varchar would store with question marks.
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
-- Writes an empty page of a receipt, before anything is received. The page's key works as a lock: a second
-- attempt of the same task waits here for the first. If the first attempt commits, the second one fails
-- (2627), starts again and finds the receipt. If the first one fails, the second one goes on. Without this
-- page, each attempt would skip the messages that the other has locked, and the faster one could leave an
-- empty receipt.
-- Locks:   the row it writes, until commit; waits for another attempt.
INSERT INTO {state}.receipt_page (stream, batch, task, page, payload)
VALUES (@stream, @batch, @task, -1, 0x)

-- name: save_receipt
-- Locks:   the row it writes, until commit; begin_receipt has kept other attempts away.
INSERT INTO {state}.receipt
       (stream, batch, task, queue, messages, expired, diverted, forwarded, bytes,
        query_id, spark_batch, query_name, unpacked, payload)
VALUES (@stream, @batch, @task, @queue_name, @messages, @expired, @diverted, @forwarded,
        @bytes, @query_id, @spark_batch, @query_name, @unpacked, @payload)
