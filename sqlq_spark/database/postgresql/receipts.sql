-- part: kept_when_closed
-- What the row of a stream keeps when a batch is closed; other statements contain this part. If a plan is
-- stored for a later batch, the plan and its high-water mark stay. query_id and spark_batch become the
-- highest batch of Spark's query that was closed.
plan_batch  = CASE WHEN plan_batch > :batch::bigint THEN plan_batch END,
stored_plan = CASE WHEN plan_batch > :batch::bigint THEN stored_plan END,
plan_high_water = CASE WHEN plan_batch > :batch::bigint THEN plan_high_water END,
query_id    = coalesce(:query_id::text, query_id),
spark_batch = CASE WHEN :query_id::text IS NULL THEN spark_batch
                   WHEN query_id = :query_id::text
                   THEN greatest(spark_batch, :spark_batch::bigint)
                   ELSE :spark_batch::bigint END

-- name: new_stream
INSERT INTO {state}.stream (stream, queue, driver)
VALUES (:stream::text, :queue_name::text, :driver::text)

-- name: lock_stream
-- Locks the row of a stream for its driver, and reads it.
-- Locks:   the stream's row, until commit; waits for running tasks.
-- Returns: queue text, driver text, acked_batch bigint, plan_batch bigint, stored_plan text; no row if
--          the stream is not there
SELECT queue, driver, acked_batch, plan_batch, stored_plan
  FROM {state}.stream
 WHERE stream = :stream::text AND version_5 IS NULL
   FOR UPDATE

-- name: claim
-- Makes this driver the owner of the stream, and stores the queues that the stream reads. A stream that was
-- removed is in all lists again.
UPDATE {state}.stream
   SET driver = :driver::text, queue = :queue_name::text, removed = NULL, seen = now()
 WHERE stream = :stream::text

-- name: stream_queue
-- Locks nothing.
-- Returns: queue text
SELECT queue FROM {state}.stream WHERE stream = :stream::text

-- name: outcome
-- Sums up what the tasks of the batches from :first to :batch received. :first limits the scan of the
-- index, which would otherwise read the dead entries of all earlier batches.
-- Returns: a row for each queue. queue text; bigint: tasks, empty (how many tasks took nothing),
--          messages, expired, diverted, forwarded; query_id text, spark_batch bigint, query_name text:
--          Spark's names for the last batch, all null if the receipts are of several queries
SELECT queue, count(*) AS tasks,
       count(*) FILTER (WHERE messages + expired + diverted + forwarded = 0) AS empty,
       sum(messages)::bigint AS messages, sum(expired)::bigint AS expired,
       sum(diverted)::bigint AS diverted, sum(forwarded)::bigint AS forwarded,
       CASE WHEN min(query_id) = max(query_id) THEN max(query_id) END AS query_id,
       CASE WHEN min(query_id) = max(query_id) THEN max(spark_batch) END AS spark_batch,
       CASE WHEN min(query_id) = max(query_id) THEN max(query_name) END AS query_name
  FROM {state}.receipt
 WHERE stream = :stream::text AND batch BETWEEN :first::bigint AND :batch::bigint
 GROUP BY queue

-- name: acknowledge
-- Closes a batch for its stream and for Spark's query, and adds up what it received. After that no stream
-- of the query receives for this batch again.
UPDATE {state}.stream
   SET acked_batch = :batch::bigint,
       {kept_when_closed},
       messages    = messages + :messages::bigint,
       expired     = expired + :expired::bigint,
       diverted    = diverted + :diverted::bigint,
       forwarded   = forwarded + :forwarded::bigint,
       query_name  = coalesce(:query_name::text, query_name),
       seen        = now()
 WHERE stream = :stream::text

-- name: delete_receipts
WITH pages AS (
    DELETE FROM {state}.receipt_page
     WHERE stream = :stream::text AND batch BETWEEN :first::bigint AND :batch::bigint)
DELETE FROM {state}.receipt
 WHERE stream = :stream::text AND batch BETWEEN :first::bigint AND :batch::bigint

-- name: store_plan
-- Stores the plan of a batch, with its high-water mark. The mark is the highest batch of Spark's query
-- that any stream of the query has closed or has receipts of. A sink may already have the batches up to
-- the mark, so the plan must not be used for them. The mark is stored as JSON: query → batch. Before the
-- first acknowledgement it is not known which query the stream belongs to. Then the JSON has the marks of
-- the 500 queries that were seen last, 23 kB at most.
-- Index:   receipt_query, behind the batches that were acknowledged before; stream_query.
WITH received AS NOT MATERIALIZED (
    SELECT query_id, spark_batch, created AS seen FROM {state}.receipt
    UNION ALL
    SELECT query_id, spark_batch, seen FROM {state}.stream)
UPDATE {state}.stream AS o
   SET plan_batch = :batch::bigint,
       stored_plan = :stored_plan::text,
       plan_high_water = CASE WHEN o.query_id IS NULL
                    THEN (SELECT json_object_agg(h.query_id, h.spark_batch)::text
                            FROM (SELECT m.query_id, max(m.spark_batch) AS spark_batch
                                    FROM received AS m
                                   WHERE m.query_id IS NOT NULL
                                   GROUP BY m.query_id
                                   ORDER BY max(m.seen) DESC
                                   LIMIT 500) AS h)
                    ELSE (SELECT json_build_object(o.query_id, max(m.spark_batch))::text
                            FROM received AS m
                           WHERE m.query_id = o.query_id AND m.spark_batch >= o.spark_batch) END,
       seen       = now()
 WHERE o.stream = :stream::text AND o.version_5 IS NULL

-- name: receipts
-- Lists receipts without their payloads, oldest first.
-- Returns: stream, queue, batch, task, query_id, spark_batch, messages, bytes, settled, created, seen,
--          login; entitled bool: whether the login that wrote the receipt may receive from the queue. It
--          is needed because whoever may write a receipt can name any queue in it. It is true if this
--          login wrote the receipt, or if the login that wrote it may delete from the queue
SELECT r.stream, r.queue, r.batch, r.task::bigint AS task, r.query_id, r.spark_batch, r.messages,
       r.bytes, r.settled, r.created, o.seen, r.login::text AS login,
       r.login = current_user OR coalesce(has_table_privilege(a.oid, q.oid, 'DELETE'), false) AS entitled
  FROM {state}.receipt AS r
  LEFT JOIN {state}.stream AS o ON o.stream = r.stream
  LEFT JOIN pg_catalog.pg_roles AS a ON a.rolname = r.login
  LEFT JOIN (SELECT c.oid, format('"%s"."%s"', replace(n.nspname, '"', '""'),
                                  replace(c.relname, '"', '""')) AS printed
               FROM pg_catalog.pg_class AS c
               JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace) AS q
    ON q.printed = r.queue
 WHERE (:stream::text IS NULL OR r.stream = :stream::text)
   AND (:queue_name::text IS NULL OR r.queue = :queue_name::text)
 ORDER BY r.created, r.stream, r.batch, r.task

-- name: drop_receipt
-- Deletes one receipt with its pages, and returns it.
-- Returns: queue, messages, settled, payload, unpacked, query_id, spark_batch of the deleted receipt; no
--          row if there is no such receipt
WITH pages AS (
    DELETE FROM {state}.receipt_page
     WHERE stream = :stream::text AND batch = :batch::bigint AND task = :task::bigint)
DELETE FROM {state}.receipt
 WHERE stream = :stream::text AND batch = :batch::bigint AND task = :task::bigint
RETURNING queue, messages, settled, payload, unpacked, query_id, spark_batch

-- name: close_batch
-- Closes a batch when an operator has returned or dropped one of its receipts. After that no stream of
-- Spark's query receives for this batch, not even one with a restored checkpoint.
UPDATE {state}.stream
   SET acked_batch = greatest(acked_batch, :batch::bigint),
       {kept_when_closed}
 WHERE stream = :stream::text
