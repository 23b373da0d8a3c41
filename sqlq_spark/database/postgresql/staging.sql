-- name: sink_open
-- Locks a sink for a task that stages. Tasks of a sink stage at the same time. A driver that dispatches
-- or discards waits for them.
-- Locks:   the sink's row FOR SHARE, until commit.
-- Returns: sink_batch bigint: the batch of the last dispatch, null if there was none; messages bigint:
--          how many it sent; seconds double precision since then. No row if the sink is new
SELECT sink_batch, messages,
       extract(epoch FROM clock_timestamp() - dispatched)::float8 AS seconds
  FROM {state}.dispatch_log
 WHERE sink = :sink::text AND version_5 IS NULL
   FOR SHARE

-- name: sink_close
-- Locks:   the sink's row, until commit. A driver and the tasks that stage wait for each other, and the
--          second of two drivers waits for the first.
-- Returns: login text, sink_batch bigint, destination text; no row if the sink is new
SELECT login::text AS login, sink_batch, destination
  FROM {state}.dispatch_log
 WHERE sink = :sink::text AND version_5 IS NULL
   FOR UPDATE

-- name: new_sink
-- Two sessions may insert the same sink. The second waits for the first, and then inserts nothing.
-- Locks:   the row it writes, until commit.
INSERT INTO {state}.dispatch_log (sink)
VALUES (:sink::text)
    ON CONFLICT DO NOTHING

-- name: stage
-- Inserts a chunk, unless its batch was sent or given up. If the answer to an earlier insert was lost,
-- the chunk may already be there. Then this inserts nothing either.
-- Returns: staged true if the chunk was inserted, else no row
INSERT INTO {state}.staging (sink, sink_batch, attempt, chunk, messages, payload)
SELECT :sink::text, :sink_batch::bigint, :attempt::text, :chunk::bigint, :messages::bigint, :payload::bytea
 WHERE NOT EXISTS (
        SELECT FROM {state}.dispatch_log WHERE sink = :sink::text AND sink_batch >= :sink_batch::bigint)
    ON CONFLICT DO NOTHING
RETURNING true AS staged

-- name: advance
-- Enters a batch into the dispatch log, unless it or a later one is there. `sink_close` has locked the
-- row.
-- Returns: sink_batch bigint; no row if the batch was sent before
UPDATE {state}.dispatch_log
   SET sink_batch = :sink_batch::bigint, messages = :messages::bigint, dispatched = now(),
       destination = :destination::text
 WHERE sink = :sink::text AND version_5 IS NULL AND (sink_batch IS NULL OR sink_batch < :sink_batch::bigint)
RETURNING sink_batch

-- name: settle
-- Marks the receipts of a micro-batch as settled, because this transaction sends their messages on. A
-- receipt that an operator has returned or dropped is not there any more, so it is not marked. The
-- operator's command has closed the batch of that receipt. The statement closed_high_water shows this.
-- Locks:   the stream's row FOR SHARE, as its tasks do; the receipts until commit.
-- Returns: settled true, for each receipt
WITH held AS (
    SELECT r.stream, r.batch, r.task
      FROM {state}.receipt AS r
      JOIN {state}.stream AS o ON o.stream = r.stream
     WHERE r.query_id = :query_id::text
       AND r.spark_batch = :spark_batch::bigint
       AND r.batch > o.acked_batch
       FOR SHARE OF o)
UPDATE {state}.receipt AS r
   SET settled = true
  FROM held
 WHERE r.stream = held.stream AND r.batch = held.batch AND r.task = held.task
RETURNING true AS settled

-- name: closed_high_water
-- Says, after settle, whether the micro-batch may be sent. No session can close the batch between settle
-- and the commit, because for that it must lock the stream's row, which settle has locked.
-- Index:   stream_query.
-- Returns: one row. closed_high_water bigint: the highest batch of Spark's query that any of its streams
--          has closed; null if the query has no stream here, or if none has closed a batch
SELECT max(spark_batch) AS closed_high_water FROM {state}.stream WHERE query_id = :query_id::text

-- name: query_queues
-- Returns the queues from which a query of Spark receives now. Locks nothing.
-- Index:   receipt_query.
-- Returns: queue text
SELECT DISTINCT queue FROM {state}.receipt WHERE query_id = :query_id::text

-- name: chunks
-- Returns: attempt text, chunk bigint
SELECT attempt, chunk::bigint AS chunk
  FROM {state}.staging
 WHERE sink = :sink::text AND sink_batch = :sink_batch::bigint
 ORDER BY attempt, chunk

-- name: chunk
-- Returns: payload bytea, empty if it is in pages
SELECT payload
  FROM {state}.staging
 WHERE sink = :sink::text AND sink_batch = :sink_batch::bigint
   AND attempt = :attempt::text AND chunk = :chunk::bigint

-- name: chunk_pages
-- Returns: payload bytea, the pages in their order
SELECT payload
  FROM {state}.staging_page
 WHERE sink = :sink::text AND sink_batch = :sink_batch::bigint
   AND attempt = :attempt::text AND chunk = :chunk::bigint
 ORDER BY page

-- name: discard
-- Deletes the chunks of a sink up to a batch. They were sent, or will never be sent.
WITH pages AS (
    DELETE FROM {state}.staging_page
     WHERE sink = :sink::text AND sink_batch <= :sink_batch::bigint)
DELETE FROM {state}.staging
 WHERE sink = :sink::text AND sink_batch <= :sink_batch::bigint

-- name: discard_abandoned
-- Deletes the chunks that writes without a name left when their job was killed.
WITH gone AS (
    DELETE FROM {state}.staging
     WHERE sink LIKE 'write:%' AND created < now() - make_interval(secs => :seconds::float8)
    RETURNING sink, sink_batch, attempt, chunk)
DELETE FROM {state}.staging_page AS p
 USING gone
 WHERE p.sink = gone.sink AND p.sink_batch = gone.sink_batch AND p.attempt = gone.attempt AND p.chunk = gone.chunk

-- name: delete_old_sinks
-- Deletes the rows of writes without a name. They are kept for a week, so that a task that resumes late
-- stages nothing.
DELETE FROM {state}.dispatch_log
 WHERE sink LIKE 'write:%' AND dispatched < now() - make_interval(secs => :seconds::float8)
