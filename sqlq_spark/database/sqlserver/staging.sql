-- name: sink_open
-- Many tasks of a sink stage at once; a driver that dispatches or discards waits for them.
-- REPEATABLEREAD locks also where the database reads row versions.
-- Locks:   the sink's row, shared, until commit.
-- Returns: login; no row where the sink is new
SELECT login
  FROM {state}.dispatched WITH (REPEATABLEREAD, ROWLOCK)
 WHERE sink = @sink

-- name: sink_close
-- An update that changes nothing, as lock_reader.
-- Locks:   the sink's row, until commit: waits for tasks that stage, and they for us; of two drivers
--          the second waits.
-- Returns: login, batch bigint; no row where the sink is new
UPDATE {state}.dispatched WITH (REPEATABLEREAD, ROWLOCK)
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
SELECT login FROM {state}.dispatched WHERE sink = @sink AND 1 = 0

-- name: new_sink
-- Locks:   the row it writes, or the gap where it will be, until commit.
INSERT INTO {state}.dispatched (sink)
SELECT @sink
 WHERE NOT EXISTS (
        SELECT 1 FROM {state}.dispatched WITH (UPDLOCK, HOLDLOCK, ROWLOCK) WHERE sink = @sink)

-- name: stage
-- Nothing where the batch is done or given up, or, after a lost answer, where it is there already;
-- where the session whose answer was lost still works on it, its row is waited for.
-- Returns: one row where it was inserted
INSERT INTO {state}.outbox (sink, login, batch, attempt, parcel, messages, payload)
OUTPUT CAST(1 AS bit)
SELECT @sink, @login, @batch, @attempt, @parcel, @messages, @payload
 WHERE NOT EXISTS (
        SELECT 1 FROM {state}.dispatched WHERE sink = @sink AND batch >= @batch)
   AND NOT EXISTS (
        SELECT 1
          FROM {state}.outbox WITH (READCOMMITTEDLOCK)
         WHERE sink = @sink AND batch = @batch AND attempt = @attempt AND parcel = @parcel)

-- name: advance
-- Enter a batch into the dispatch log, whose row `sink_close` has locked, unless it, or a later one,
-- is there.
-- Returns: batch bigint; no row where it was sent before
UPDATE {state}.dispatched
   SET batch = @batch, messages = @messages, dispatched = SYSUTCDATETIME()
OUTPUT inserted.batch
 WHERE sink = @sink AND login = @login AND (batch IS NULL OR batch < @batch)

-- name: settle
-- What a micro-batch received is sent on in this transaction. A batch that was closed, because its
-- receipts were returned or dropped, has none to settle.
-- Locks:   the reader's row, shared, as its tasks do, and before the receipts, as the ack does;
--          the receipts until commit.
-- Index:   receipt_query.
-- Returns: a row for each receipt
DECLARE @open TABLE (
    reader nvarchar(36) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY, acked bigint NOT NULL);
INSERT INTO @open (reader, acked)
SELECT o.reader, o.acked_batch
  FROM {state}.reader AS o WITH (REPEATABLEREAD, ROWLOCK)
 WHERE o.reader IN (
        SELECT r.reader
          FROM {state}.receipt AS r
         WHERE r.query_id = @query_id AND r.query_batch = @query_batch);
UPDATE r
   SET settled = 1
OUTPUT CAST(1 AS bit)
  FROM {state}.receipt AS r
  JOIN @open AS o ON o.reader = r.reader
 WHERE r.query_id = @query_id AND r.query_batch = @query_batch AND r.batch > o.acked

-- name: parcels
-- Returns: attempt, parcel bigint
SELECT attempt, CAST(parcel AS bigint) AS parcel
  FROM {state}.outbox
 WHERE sink = @sink AND login = @login AND batch = @batch
 ORDER BY attempt, parcel

-- name: parcel
-- Returns: payload varbinary; empty where it is in pages
SELECT payload
  FROM {state}.outbox
 WHERE sink = @sink AND login = @login AND batch = @batch
   AND attempt = @attempt AND parcel = @parcel

-- name: parcel_pages
-- Returns: payload varbinary, in order
SELECT payload
  FROM {state}.outbox_page
 WHERE sink = @sink AND login = @login AND batch = @batch
   AND attempt = @attempt AND parcel = @parcel
 ORDER BY page

-- name: discard
-- What a sink staged up to a batch: sent by now, or never to be sent.
DELETE FROM {state}.outbox_page WHERE sink = @sink AND login = @login AND batch <= @batch;
DELETE FROM {state}.outbox WHERE sink = @sink AND login = @login AND batch <= @batch

-- name: discard_abandoned
-- What writes without a name left behind when their job was killed. A row that someone holds is not
-- abandoned.
DECLARE @before datetime2(3) = DATEADD(second, -@seconds, SYSUTCDATETIME());
DELETE FROM p
  FROM {state}.outbox_page AS p
  JOIN {state}.outbox AS o WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
    ON o.sink = p.sink AND o.batch = p.batch AND o.attempt = p.attempt AND o.parcel = p.parcel
 WHERE o.sink LIKE N'write:%' AND o.created < @before;
DELETE FROM o
  FROM {state}.outbox AS o WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE o.sink LIKE N'write:%' AND o.created < @before

-- name: forget_abandoned
-- The ledger's rows of writes without a name: kept for a while, so that a task which comes back late
-- stages nothing.
DELETE FROM d
  FROM {state}.dispatched AS d WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
 WHERE d.sink LIKE N'write:%'
   AND d.dispatched < DATEADD(second, -@seconds, SYSUTCDATETIME())
