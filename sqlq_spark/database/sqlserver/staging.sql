-- name: sink_open
-- Locks a sink for a task that stages. Tasks of a sink stage at the same time. A driver that dispatches
-- or discards waits for them. REPEATABLEREAD locks also where the database reads row versions.
-- Locks:   the sink's row, shared, until commit.
-- Returns: sink_batch bigint: the batch of the last dispatch, null if there was none; messages bigint:
--          how many it sent; seconds float since then. No row if the sink is new
SELECT sink_batch, messages,
       CAST(DATEDIFF_BIG(millisecond, dispatched, SYSUTCDATETIME()) AS float) / 1000 AS seconds
  FROM {state}.dispatch_log WITH (REPEATABLEREAD, ROWLOCK)
 WHERE sink = @sink AND version_5 IS NULL

-- name: sink_close
-- Locks a sink's row by an update that changes nothing, as lock_stream does.
-- Locks:   the sink's row, until commit. A driver and the tasks that stage wait for each other, and the
--          second of two drivers waits for the first.
-- Returns: login, sink_batch bigint, destination; no row if the sink is new
UPDATE {state}.dispatch_log WITH (REPEATABLEREAD, ROWLOCK)
   SET messages = messages
OUTPUT inserted.login, inserted.sink_batch, inserted.destination
 WHERE sink = @sink AND version_5 IS NULL

-- name: new_sink
-- Two sessions may insert the same sink. The second waits for the first, and then inserts nothing. The
-- statement takes no lock on the gap between sinks, because all other new sinks would wait for that.
-- XACT_ABORT is off until the end of this statement, so that a duplicate does not end the transaction.
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
-- Inserts a chunk, unless its batch was sent or given up. If the answer to an earlier insert was lost,
-- the chunk may already be there. Then this inserts nothing either. If the earlier session is still
-- inserting the chunk, this one waits for its row.
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
-- Enters a batch into the dispatch log, unless it or a later one is there. `sink_close` has locked the
-- row.
-- Returns: sink_batch bigint; no row if the batch was sent before
UPDATE {state}.dispatch_log
   SET sink_batch = @sink_batch, messages = @messages, dispatched = SYSUTCDATETIME(),
       destination = @destination
OUTPUT inserted.sink_batch
 WHERE sink = @sink AND version_5 IS NULL AND (sink_batch IS NULL OR sink_batch < @sink_batch)

-- name: settle
-- Marks the receipts of a micro-batch as settled, because this transaction sends their messages on. A
-- receipt that an operator has returned or dropped is not there any more, so it is not marked. The
-- operator's command has closed the batch of that receipt. The statement closed_high_water shows this.
-- Locks:   the stream's row, shared, as its tasks do, and before the receipts, as acknowledging does;
--          the receipts until commit.
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
-- Says, after settle, whether the micro-batch may be sent. No session can close the batch between settle
-- and the commit, because for that it must lock the stream's row, which settle has locked.
-- Index:   stream_query.
-- Returns: one row. closed_high_water bigint: the highest batch of Spark's query that any of its streams
--          has closed; null if the query has no stream here, or if none has closed a batch
SELECT MAX(spark_batch) AS closed_high_water FROM {state}.stream WHERE query_id = @query_id

-- name: query_queues
-- Returns the queues from which a query of Spark receives now.
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
-- Returns: payload varbinary, empty if it is in pages
SELECT payload
  FROM {state}.staging
 WHERE sink = @sink AND sink_batch = @sink_batch AND attempt = @attempt AND chunk = @chunk

-- name: chunk_pages
-- Returns: payload varbinary, the pages in their order
SELECT payload
  FROM {state}.staging_page
 WHERE sink = @sink AND sink_batch = @sink_batch AND attempt = @attempt AND chunk = @chunk
 ORDER BY page

-- name: discard
-- Deletes the chunks of a sink up to a batch. They were sent, or will never be sent. Rows are deleted
-- before their pages, in the order of `stage` and discard_abandoned.
DELETE FROM {state}.staging WHERE sink = @sink AND sink_batch <= @sink_batch;
DELETE FROM {state}.staging_page WHERE sink = @sink AND sink_batch <= @sink_batch

-- name: discard_abandoned
-- Deletes the chunks that writes without a name left when their job was killed. A locked row is not
-- abandoned, and is skipped. Pages are deleted by the keys of the rows that this session has deleted. So
-- no session waits for a page, and no row stays without its pages. The statement does not use UPDLOCK,
-- because UPDLOCK would keep the locks on rows that are not old until the commit.
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
-- Deletes the rows of writes without a name. They are kept for a week, so that a task that resumes late
-- stages nothing.
DELETE FROM d
  FROM {state}.dispatch_log AS d WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE d.sink LIKE N'write:%'
   AND d.dispatched < DATEADD(second, -@seconds, SYSUTCDATETIME())
