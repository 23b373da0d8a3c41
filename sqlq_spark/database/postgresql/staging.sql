-- name: sink_open
-- Locks a sink for a task that stages. Several tasks can hold this lock at the same time. A driver that
-- dispatches or discards waits for all of them.
-- Locks:   the sink's row FOR SHARE, until commit.
-- Returns: sink_batch bigint: the batch of the last dispatch, null if there was none; messages bigint:
--          how many messages it sent; seconds double precision: how long ago it began. No row if the sink
--          is new
SELECT sink_batch, messages,
       extract(epoch FROM clock_timestamp() - dispatched)::float8 AS seconds
  FROM {state}.dispatch_log
 WHERE sink = :sink::text AND version_5 IS NULL
   FOR SHARE

-- name: sink_close
-- Locks a sink for a driver that dispatches or discards.
-- Locks:   the sink's row, until commit. Waits for tasks that stage, and for another driver.
-- Returns: login text, sink_batch bigint, destination text; no row if the sink is new
SELECT login::text AS login, sink_batch, destination
  FROM {state}.dispatch_log
 WHERE sink = :sink::text AND version_5 IS NULL
   FOR UPDATE

-- name: new_sink
-- Enters a sink into the dispatch log. If two sessions insert the same sink, the second waits for the
-- first, and then inserts nothing.
-- Locks:   the row it writes, until commit.
INSERT INTO {state}.dispatch_log (sink)
VALUES (:sink::text)
    ON CONFLICT DO NOTHING

-- name: stage
-- Inserts a chunk, unless its batch was sent or given up. It inserts nothing if the chunk is there
-- already, because an earlier insert whose answer was lost may have been committed.
-- Returns: staged true if the chunk was inserted, else no row
INSERT INTO {state}.staging (sink, sink_batch, attempt, chunk, messages, payload)
SELECT :sink::text, :sink_batch::bigint, :attempt::text, :chunk::bigint, :messages::bigint, :payload::bytea
 WHERE NOT EXISTS (
        SELECT FROM {state}.dispatch_log WHERE sink = :sink::text AND sink_batch >= :sink_batch::bigint)
    ON CONFLICT DO NOTHING
RETURNING true AS staged

-- name: advance
-- Enters a batch into the dispatch log, unless this batch or a later one is in it. `sink_close` has
-- locked the row.
-- Returns: sink_batch bigint; no row if the batch was sent before
UPDATE {state}.dispatch_log
   SET sink_batch = :sink_batch::bigint, messages = :messages::bigint, dispatched = now(),
       destination = :destination::text
 WHERE sink = :sink::text AND version_5 IS NULL AND (sink_batch IS NULL OR sink_batch < :sink_batch::bigint)
RETURNING sink_batch

-- name: settle
-- Marks the receipts of a micro-batch as settled, because this transaction sends their messages on. If an
-- operator has returned or dropped a receipt of the batch, this statement does not find it. But that has
-- closed the batch, and the statement closed_high_water shows it.
-- Locks:   the stream's row FOR SHARE, and the receipts, until commit.
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
-- Reads the highest batch that is closed, so that the caller can refuse to send a closed batch. It runs
-- after `settle`. No session can close the batch before the commit, because for that it must lock the
-- stream's row, which `settle` has locked.
-- Index:   stream_query.
-- Returns: one row. closed_high_water bigint: the highest batch of Spark's query that any of its streams
--          has closed. It is null if the query has no stream here, or if none of them has closed a batch
SELECT max(spark_batch) AS closed_high_water FROM {state}.stream WHERE query_id = :query_id::text

-- name: query_queues
-- Lists the queues of which a query of Spark has receipts now.
-- Locks:   nothing.
-- Index:   receipt_query.
-- Returns: queue text
SELECT DISTINCT queue FROM {state}.receipt WHERE query_id = :query_id::text

-- name: chunks
-- Lists the chunks that are staged for a batch of a sink.
-- Returns: attempt text, chunk bigint
SELECT attempt, chunk::bigint AS chunk
  FROM {state}.staging
 WHERE sink = :sink::text AND sink_batch = :sink_batch::bigint
 ORDER BY attempt, chunk

-- name: chunk
-- Reads the payload of one chunk.
-- Returns: payload bytea, empty if it is in pages
SELECT payload
  FROM {state}.staging
 WHERE sink = :sink::text AND sink_batch = :sink_batch::bigint
   AND attempt = :attempt::text AND chunk = :chunk::bigint

-- name: chunk_pages
-- Reads the payload of a large chunk, which is stored in pages.
-- Returns: payload bytea, the pages in their order
SELECT payload
  FROM {state}.staging_page
 WHERE sink = :sink::text AND sink_batch = :sink_batch::bigint
   AND attempt = :attempt::text AND chunk = :chunk::bigint
 ORDER BY page

-- name: discard
-- Deletes the chunks of a batch of a sink, and of all earlier batches. They were sent, or will never be
-- sent.
WITH pages AS (
    DELETE FROM {state}.staging_page
     WHERE sink = :sink::text AND sink_batch <= :sink_batch::bigint)
DELETE FROM {state}.staging
 WHERE sink = :sink::text AND sink_batch <= :sink_batch::bigint

-- name: discard_abandoned
-- Deletes old chunks of writes without a name. Such chunks stay when the job of the write is killed.
WITH gone AS (
    DELETE FROM {state}.staging
     WHERE sink LIKE 'write:%' AND created < now() - make_interval(secs => :seconds::float8)
    RETURNING sink, sink_batch, attempt, chunk)
DELETE FROM {state}.staging_page AS p
 USING gone
 WHERE p.sink = gone.sink AND p.sink_batch = gone.sink_batch AND p.attempt = gone.attempt AND p.chunk = gone.chunk

-- name: delete_old_sinks
-- Deletes old rows of writes without a name from the dispatch log. The caller keeps them for a week: if a
-- task of such a write goes on that late, it finds the row and stages nothing.
DELETE FROM {state}.dispatch_log
 WHERE sink LIKE 'write:%' AND dispatched < now() - make_interval(secs => :seconds::float8)
