-- name: sink_open
-- Many tasks of a sink stage at once; a driver that dispatches or discards waits for them.
-- REPEATABLEREAD locks also where the database reads row versions.
-- Locks:   the sink's row, shared, until commit.
-- Returns: login; no row where the sink is new
SELECT login
  FROM {state}.dispatch_log WITH (REPEATABLEREAD, ROWLOCK)
 WHERE sink = @sink

-- name: sink_close
-- An update that changes nothing, as lock_stream.
-- Locks:   the sink's row, until commit: waits for tasks that stage, and they for us; of two drivers
--          the second waits.
-- Returns: login, batch bigint; no row where the sink is new
UPDATE {state}.dispatch_log WITH (REPEATABLEREAD, ROWLOCK)
   SET messages = messages
OUTPUT inserted.login, inserted.batch
 WHERE sink = @sink

-- name: sinks_lock
-- Nothing: a sink has one row here, by the table's key.
-- Locks:   nothing.
SELECT 0 AS locked

-- name: sink_elsewhere
-- No row: who may use the schema shares all its rows.
-- Returns: login
SELECT login FROM {state}.dispatch_log WHERE sink = @sink AND 1 = 0

-- name: new_sink
-- Locks:   the row it writes, or the gap where it will be, until commit.
INSERT INTO {state}.dispatch_log (sink)
SELECT @sink
 WHERE NOT EXISTS (
        SELECT 1 FROM {state}.dispatch_log WITH (UPDLOCK, HOLDLOCK, ROWLOCK) WHERE sink = @sink)

-- name: stage
-- Nothing where the batch is done or given up, or, after a lost answer, where it is there already;
-- where the session whose answer was lost still works on it, its row is waited for.
-- Returns: one row where it was inserted
INSERT INTO {state}.staging (sink, login, batch, attempt, chunk, messages, payload)
OUTPUT CAST(1 AS bit)
SELECT @sink, @login, @batch, @attempt, @chunk, @messages, @payload
 WHERE NOT EXISTS (
        SELECT 1 FROM {state}.dispatch_log WHERE sink = @sink AND batch >= @batch)
   AND NOT EXISTS (
        SELECT 1
          FROM {state}.staging WITH (READCOMMITTEDLOCK)
         WHERE sink = @sink AND batch = @batch AND attempt = @attempt AND chunk = @chunk)

-- name: advance
-- Enter a batch into the dispatch log, whose row `sink_close` has locked, unless it, or a later one,
-- is there.
-- Returns: batch bigint; no row where it was sent before
UPDATE {state}.dispatch_log
   SET batch = @batch, messages = @messages, dispatched = SYSUTCDATETIME()
OUTPUT inserted.batch
 WHERE sink = @sink AND login = @login AND (batch IS NULL OR batch < @batch)

-- name: settle
-- What a micro-batch received is sent on in this transaction. A batch that was closed, because its
-- receipts were returned or dropped, has none to settle.
-- Locks:   the stream's row, shared, as its tasks do, and before the receipts, as the ack does;
--          the receipts until commit.
-- Index:   receipt_query.
-- Returns: a row for each receipt
DECLARE @open TABLE (
    stream nvarchar(36) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY, acked bigint NOT NULL);
INSERT INTO @open (stream, acked)
SELECT o.stream, o.acked_batch
  FROM {state}.stream AS o WITH (REPEATABLEREAD, ROWLOCK)
 WHERE o.stream IN (
        SELECT r.stream
          FROM {state}.receipt AS r
         WHERE r.query_id = @query_id AND r.query_batch = @query_batch);
UPDATE r
   SET settled = 1
OUTPUT CAST(1 AS bit)
  FROM {state}.receipt AS r
  JOIN @open AS o ON o.stream = r.stream
 WHERE r.query_id = @query_id AND r.query_batch = @query_batch AND r.batch > o.acked

-- name: chunks
-- Returns: attempt, chunk bigint
SELECT attempt, CAST(chunk AS bigint) AS chunk
  FROM {state}.staging
 WHERE sink = @sink AND login = @login AND batch = @batch
 ORDER BY attempt, chunk

-- name: chunk
-- Returns: payload varbinary; empty where it is in pages
SELECT payload
  FROM {state}.staging
 WHERE sink = @sink AND login = @login AND batch = @batch
   AND attempt = @attempt AND chunk = @chunk

-- name: chunk_pages
-- Returns: payload varbinary, in order
SELECT payload
  FROM {state}.staging_page
 WHERE sink = @sink AND login = @login AND batch = @batch
   AND attempt = @attempt AND chunk = @chunk
 ORDER BY page

-- name: discard
-- What a sink staged up to a batch: sent by now, or never to be sent.
DELETE FROM {state}.staging_page WHERE sink = @sink AND login = @login AND batch <= @batch;
DELETE FROM {state}.staging WHERE sink = @sink AND login = @login AND batch <= @batch

-- name: discard_abandoned
-- What writes without a name left behind when their job was killed. A row that someone holds is not
-- abandoned.
DECLARE @before datetime2(3) = DATEADD(second, -@seconds, SYSUTCDATETIME());
DELETE FROM p
  FROM {state}.staging_page AS p
  JOIN {state}.staging AS o WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
    ON o.sink = p.sink AND o.batch = p.batch AND o.attempt = p.attempt AND o.chunk = p.chunk
 WHERE o.sink LIKE N'write:%' AND o.created < @before;
DELETE FROM o
  FROM {state}.staging AS o WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE o.sink LIKE N'write:%' AND o.created < @before

-- name: forget_abandoned
-- Rows of writes without a name. They are kept for a week, so that a task that resumes late stages
-- nothing.
DELETE FROM d
  FROM {state}.dispatch_log AS d WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE d.sink LIKE N'write:%'
   AND d.dispatched < DATEADD(second, -@seconds, SYSUTCDATETIME())
