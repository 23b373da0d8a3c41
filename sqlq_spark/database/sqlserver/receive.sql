-- part: message_bytes
-- The bytes of a message, as limits count them; other statements contain this part. A UTF-16 unit of the
-- headers (two bytes) counts as one byte.
ISNULL(DATALENGTH(CAST(Headers AS nvarchar(max))) / 2, 0) + ISNULL(DATALENGTH(Body), 0)

-- part: header_bytes
-- The bytes of the headers, as the server stores them; other statements contain this part. In an nvarchar
-- each UTF-16 unit has two bytes.
ISNULL(DATALENGTH(Headers), 0)

-- part: too_large
-- Whether a message, or its headers, are larger than allowed; other statements contain this part.
({message_bytes} > @largest
 OR {header_bytes} > @largest_headers)

-- part: received_row
-- The columns of a received message; other statements contain this part. Headers are returned as UTF-16
-- bytes. As text they could contain half of a surrogate pair, on which the driver would fail. An expiry
-- on the last day of the calendar becomes null, because a client in another time zone could not show it.
CAST(deleted.Id AS binary(16)) AS id,
CASE WHEN deleted.Expires < '99991231' THEN deleted.Expires END AS expires,
CAST(CASE WHEN deleted.Expires <= GETUTCDATE() THEN 1 ELSE 0 END AS bit) AS expired,
CAST(CAST(deleted.Headers AS nvarchar(max)) AS varbinary(max)) AS headers,
deleted.Body AS body,
deleted.RowVersion AS seq

-- name: fence
-- Reads the facts by which a task decides whether it may receive:
-- - `acked_batch`: the last batch that was acknowledged. A task of this or an earlier batch must not
--   receive.
-- - `plan_high_water`: the highest batch of Spark's query @query_id that any of the query's streams had
--   closed, or had receipts of, when the plan was stored. The plan must not be used for this or an
--   earlier batch. It is null if there is no such batch, or if @query_id is null.
-- - `is_reader`: whether this stream may receive from the queue in this run of the query. See
--   enter_query.
-- REPEATABLEREAD is needed in a database that reads row versions, where a plain read would lock nothing.
-- Locks:   the stream's row, shared, until commit. An acknowledgement waits for this task.
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
-- Enters this stream into the table query_reader: in this run of the query, it alone receives from the
-- queue. If another stream is entered for the same run, nothing changes. Two streams of one query must
-- not receive from the same queue, because each would get a part of the messages. An entry of an earlier
-- run is replaced, because its stream may belong to a checkpoint that is lost.
-- If two sessions insert the same entry, the second waits for the first, and then inserts nothing.
-- XACT_ABORT is off until the end of this statement, so that such a duplicate does not end the
-- transaction.
-- Locks:   the row it writes, until commit; waits for another session that writes it.
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
-- Reads which stream may receive from the queue in the query's run. It runs after enter_query.
-- Index:   the primary key.
-- Returns: stream
SELECT stream
  FROM {state}.query_reader
 WHERE query_id = @query_id AND queue = @queue_name

-- name: find_receipt
-- Reads the receipt of a task, if an earlier attempt of the task has left one.
-- Returns: payload varbinary, empty if it is in pages; messages bigint; unpacked bigint: the bytes of the
--          payload before compression; query_id, spark_batch bigint: Spark's query and batch for which
--          the messages were received, or null. No row if there is no receipt
SELECT payload, messages, unpacked, query_id, spark_batch
  FROM {state}.receipt
 WHERE stream = @stream AND batch = @batch AND task = @task

-- name: receipt_pages
-- Reads the payload of a large receipt, which is stored in pages.
-- Returns: payload varbinary, the pages in their order
SELECT payload
  FROM {state}.receipt_page
 WHERE stream = @stream AND batch = @batch AND task = @task
 ORDER BY page

-- name: weigh
-- Reads the lowest messages of a range and their sizes, before `receive` deletes them. The client then
-- ends the range where the messages have enough bytes for a step (see calls.py). A UTF-16 unit of headers
-- counts as one byte. Messages that are too large are returned too. `receive` locks them, although it
-- does not delete them, and the client must count all locks: above some 5,000 the server would lock the
-- whole table.
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
-- deletes none that is too large. It is a delete through a TOP with an ORDER BY, as in the transport. It
-- does not limit the bytes, because a window function that sums up sizes would send every body through
-- tempdb. Instead `weigh` has read the sizes before. Messages that other sessions commit or release after
-- `weigh` were not counted there. They can add at most @messages times @largest bytes.
-- Locks:   an update lock for each row it reads, until commit. Never waits for a row.
-- Index:   Index_RowVersion, clustered or not. FORCESEEK is needed, because with stale statistics the
--          server may choose a scan, which would lock the whole range.
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
-- Deletes the messages that @chosen lists, except those that another session holds. @chosen is a JSON
-- array of arrays [seq, id]. The id is needed because two messages may have the same RowVersion.
-- Locks:   an update lock for each row it reads, until commit. Never waits for a row.
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
-- if a task got less than was planned, and if the sizes that the driver sampled for the plan allow such a
-- message.
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
-- Moves the messages that @chosen lists to the error queue, unchanged. Those that have expired are
-- deleted instead. The messages stay on the server, because the client could not hold them. @chosen is a
-- JSON array of arrays [seq, place], where `place` is the row's Id. So another message with the same
-- RowVersion stays. If @renamed, each message gets a new id. The caller asks for this if the error queue
-- refuses the ids, which can happen if a DBA has added a unique index.
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
-- Writes an empty page of a receipt, before anything is received. The key of this page works as a lock: a
-- second attempt of the same task waits here for the first. If the first attempt commits, the second one
-- fails (2627), starts again and finds the receipt. If the first attempt is undone, the second one goes
-- on. Without the page, each attempt would skip the messages that the other one has locked, and the
-- attempt that ends first could leave an empty receipt.
-- Locks:   the row it writes, until commit; waits for another session that writes it.
INSERT INTO {state}.receipt_page (stream, batch, task, page, payload)
VALUES (@stream, @batch, @task, -1, 0x)

-- name: save_receipt
-- Writes the receipt of a task.
-- Locks:   the row that it writes, until commit; begin_receipt keeps other attempts away.
INSERT INTO {state}.receipt
       (stream, batch, task, queue, messages, expired, diverted, forwarded, bytes,
        query_id, spark_batch, query_name, unpacked, payload)
VALUES (@stream, @batch, @task, @queue_name, @messages, @expired, @diverted, @forwarded,
        @bytes, @query_id, @spark_batch, @query_name, @unpacked, @payload)
