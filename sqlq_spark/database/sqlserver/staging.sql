-- name: sink_open
-- Locks a sink for a task that stages. Several tasks can hold this lock at the same time. A driver that
-- dispatches or discards waits for all of them. REPEATABLEREAD is needed in a database that reads row
-- versions, where a plain read would lock nothing.
-- Locks:   the sink's row, shared, until commit.
-- Returns: sink_batch bigint: the batch of the last dispatch, null if there was none; messages bigint:
--          how many messages it sent; seconds float: how long ago it began. No row if the sink is new
SELECT sink_batch, messages,
       CAST(DATEDIFF_BIG(millisecond, dispatched, SYSUTCDATETIME()) AS float) / 1000 AS seconds
  FROM {state}.dispatch_log WITH (REPEATABLEREAD, ROWLOCK)
 WHERE sink = @sink AND version_5 IS NULL

-- name: sink_close
-- Locks a sink for a driver that dispatches or discards. As in lock_stream, the lock is taken by an
-- update that changes nothing.
-- Locks:   the sink's row, until commit. Waits for tasks that stage, and for another driver.
-- Returns: login, sink_batch bigint, destination; no row if the sink is new
UPDATE {state}.dispatch_log WITH (REPEATABLEREAD, ROWLOCK)
   SET messages = messages
OUTPUT inserted.login, inserted.sink_batch, inserted.destination
 WHERE sink = @sink AND version_5 IS NULL

-- name: new_sink
-- Enters a sink into the dispatch log. If two sessions insert the same sink, the second waits for the
-- first, and then inserts nothing. XACT_ABORT is off until the end of this statement, so that such a
-- duplicate does not end the transaction. The statement does not lock the gap between sinks, because all
-- other new sinks would wait for that lock.
-- Locks:   the row it writes, until commit.
SET XACT_ABORT OFF;
BEGIN TRY
    INSERT INTO {state}.dispatch_log (sink) VALUES (@sink);
END TRY
BEGIN CATCH
    IF ERROR_NUMBER() <> 2627
    BEGIN;
        THROW;
    END;
END CATCH

-- name: stage
-- Inserts a chunk, unless its batch was sent or given up. It inserts nothing if the chunk is there
-- already, because an earlier insert whose answer was lost may have been committed. If the session of
-- that insert is still at work, this statement waits for its row.
-- Returns: staged, 1, if the chunk was inserted, else no row
INSERT INTO {state}.staging (sink, sink_batch, attempt, chunk, messages, payload)
OUTPUT CAST(1 AS bit) AS staged
SELECT @sink, @sink_batch, @attempt, @chunk, @messages, @payload
 WHERE NOT EXISTS (
        SELECT 1 FROM {state}.dispatch_log WHERE sink = @sink AND sink_batch >= @sink_batch)
   AND NOT EXISTS (
        SELECT 1
          FROM {state}.staging WITH (READCOMMITTEDLOCK)
         WHERE sink = @sink AND sink_batch = @sink_batch AND attempt = @attempt AND chunk = @chunk)

-- name: advance
-- Enters a batch into the dispatch log, unless this batch or a later one is in it. `sink_close` has
-- locked the row.
-- Returns: sink_batch bigint; no row if the batch was sent before
UPDATE {state}.dispatch_log
   SET sink_batch = @sink_batch, messages = @messages, dispatched = SYSUTCDATETIME(),
       destination = @destination
OUTPUT inserted.sink_batch
 WHERE sink = @sink AND version_5 IS NULL AND (sink_batch IS NULL OR sink_batch < @sink_batch)

-- name: settle
-- Marks the receipts of a micro-batch as settled, because this transaction sends their messages on. If an
-- operator has returned or dropped a receipt of the batch, this statement does not find it. But that has
-- closed the batch, and the statement closed_high_water shows it.
-- An acknowledgement locks in the same order.
-- Locks:   first the stream's row, shared, and then the receipts, until commit.
-- Index:   receipt_query, a seek; a scan would wait for receipts that tasks write now.
-- Returns: settled, 1, for each receipt
DECLARE @open TABLE (
    stream nvarchar(36) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY, acked bigint NOT NULL);
INSERT INTO @open (stream, acked)
SELECT o.stream, o.acked_batch
  FROM {state}.stream AS o WITH (REPEATABLEREAD, ROWLOCK)
 WHERE o.stream IN (
        SELECT r.stream
          FROM {state}.receipt AS r WITH (INDEX (receipt_query), FORCESEEK)
         WHERE r.query_id = @query_id AND r.spark_batch = @spark_batch);
UPDATE r
   SET settled = 1
OUTPUT CAST(1 AS bit) AS settled
  FROM {state}.receipt AS r WITH (INDEX (receipt_query), FORCESEEK)
  JOIN @open AS o ON o.stream = r.stream
 WHERE r.query_id = @query_id AND r.spark_batch = @spark_batch AND r.batch > o.acked

-- name: closed_high_water
-- Reads the highest batch that is closed, so that the caller can refuse to send a closed batch. It runs
-- after `settle`. No session can close the batch before the commit, because for that it must lock the
-- stream's row, which `settle` has locked.
-- Index:   stream_query.
-- Returns: one row. closed_high_water bigint: the highest batch of Spark's query that any of its streams
--          has closed. It is null if the query has no stream here, or if none of them has closed a batch
SELECT MAX(spark_batch) AS closed_high_water FROM {state}.stream WHERE query_id = @query_id

-- name: query_queues
-- Lists the queues of which a query of Spark has receipts now.
-- Index:   receipt_query.
-- Returns: queue
SELECT DISTINCT queue FROM {state}.receipt WHERE query_id = @query_id

-- name: chunks
-- Returns: attempt, chunk bigint
SELECT attempt, CAST(chunk AS bigint) AS chunk
  FROM {state}.staging
 WHERE sink = @sink AND sink_batch = @sink_batch
 ORDER BY attempt, chunk

-- name: chunk
-- Reads the payload of one chunk.
-- Returns: payload varbinary, empty if it is in pages
SELECT payload
  FROM {state}.staging
 WHERE sink = @sink AND sink_batch = @sink_batch AND attempt = @attempt AND chunk = @chunk

-- name: chunk_pages
-- Reads the payload of a large chunk, which is stored in pages.
-- Returns: payload varbinary, the pages in their order
SELECT payload
  FROM {state}.staging_page
 WHERE sink = @sink AND sink_batch = @sink_batch AND attempt = @attempt AND chunk = @chunk
 ORDER BY page

-- name: discard
-- Deletes the chunks of a batch of a sink, and of all earlier batches. They were sent, or will never be
-- sent. Rows are deleted before their pages, because `stage` and discard_abandoned lock in this order.
DELETE FROM {state}.staging WHERE sink = @sink AND sink_batch <= @sink_batch;
DELETE FROM {state}.staging_page WHERE sink = @sink AND sink_batch <= @sink_batch

-- name: discard_abandoned
-- Deletes old chunks of writes without a name. Such chunks stay when the job of the write is killed. A
-- locked row is in use, so it is skipped. Then the pages of the deleted rows are deleted by their keys,
-- so that no session waits for a page and no row stays without its pages. UPDLOCK is not used, because it
-- would keep the locks on rows that are not old until the commit.
-- Locks:   the rows it deletes and their pages, until commit. Never waits for a row.
-- Index:   the primary key of the pages.
DECLARE @before datetime2(3) = DATEADD(second, -@seconds, SYSUTCDATETIME());
DECLARE @gone TABLE (
    sink    nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
    sink_batch   bigint        NOT NULL,
    attempt nvarchar(36)  COLLATE Latin1_General_100_BIN2 NOT NULL,
    chunk   int           NOT NULL
);
DELETE FROM o
OUTPUT deleted.sink, deleted.sink_batch, deleted.attempt, deleted.chunk
  INTO @gone (sink, sink_batch, attempt, chunk)
  FROM {state}.staging AS o WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE o.sink LIKE N'write:%' AND o.created < @before;
DELETE p
  FROM @gone AS g
 INNER LOOP JOIN {state}.staging_page AS p WITH (FORCESEEK, ROWLOCK)
    ON p.sink = g.sink AND p.sink_batch = g.sink_batch AND p.attempt = g.attempt AND p.chunk = g.chunk
OPTION (MAXDOP 1)

-- name: delete_old_sinks
-- Deletes old rows of writes without a name from the dispatch log. The caller keeps them for a week: if a
-- task of such a write goes on that late, it finds the row and stages nothing.
DELETE FROM d
  FROM {state}.dispatch_log AS d WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE d.sink LIKE N'write:%'
   AND d.dispatched < DATEADD(second, -@seconds, SYSUTCDATETIME())
