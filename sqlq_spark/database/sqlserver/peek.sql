-- name: waiting
-- Finds the queues in which a message waits that no other session has locked. The text is repeated for
-- each queue of a list; {at} is the queue's index in that list.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_RowVersion.
-- Returns: at bigint: the index of a queue in which messages wait; one row for each such queue
SELECT CAST({at} AS bigint) AS at
 WHERE EXISTS (SELECT 1 FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK))

-- name: peek
-- Counts the messages that wait in a range, up to a limit, and finds where they can be cut into smaller
-- ranges. Locked rows are not counted.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_RowVersion.
-- Returns: messages bigint: how many; last bigint: the RowVersion of the last one; cuts: the RowVersions
--          of the first message and of every @grain-th message after it, separated by commas. All are
--          null if no message waits
DECLARE @kept TABLE (place bigint NOT NULL PRIMARY KEY, seq bigint NOT NULL);
INSERT INTO @kept (place, seq)
SELECT place, seq
  FROM (SELECT seq, ROW_NUMBER() OVER (ORDER BY seq) AS place,
               LEAD(seq) OVER (ORDER BY seq) AS following
          FROM (SELECT TOP (@messages) RowVersion AS seq
                  FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
                 WHERE RowVersion >= @first AND RowVersion <= @last
                 ORDER BY RowVersion) AS lowest) AS numbered
 WHERE (place - 1) % @grain = 0 OR following IS NULL;
SELECT MAX(place) AS messages, MAX(seq) AS last,
       STUFF((SELECT N',' + CAST(seq AS nvarchar(20))
                FROM @kept
               WHERE (place - 1) % @grain = 0
               ORDER BY place
                 FOR XML PATH('')), 1, 1, N'') AS cuts
  FROM @kept

-- name: sample
-- Reads facts about the messages with the lowest RowVersions, without locked rows. Of the headers of the
-- first message only the beginning is read.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_RowVersion.
-- Returns: bytes float: the average size of the lowest 50 messages; sent: the header TimeSent of the
--          first message; span bigint: how many RowVersions there are from the first message to the last
--          one of the queue
SELECT (SELECT AVG(CAST(bytes AS float))
          FROM (SELECT TOP (50)
                       {message_bytes} AS bytes
                  FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
                 WHERE RowVersion >= @first
                 ORDER BY RowVersion) AS lowest) AS bytes,
       (SELECT TOP (1)
               CASE WHEN p.found > 0 AND e.stop - p.found - 24 BETWEEN 1 AND 40
                    THEN SUBSTRING(h.start, p.found + 24, e.stop - p.found - 24) END
          FROM {queue} AS q WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
         CROSS APPLY (SELECT LEFT(CAST(q.Headers AS nvarchar(max)), 16384) AS start) AS h
         CROSS APPLY (SELECT CHARINDEX(N'"NServiceBus.TimeSent":"', h.start) AS found) AS p
         CROSS APPLY (SELECT CHARINDEX(N'"', h.start, p.found + 24) AS stop) AS e
         WHERE q.RowVersion = @first) AS sent,
       (SELECT MAX(RowVersion)
          FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)) - @first + 1 AS span

-- name: top
-- Reads the lowest and the highest RowVersion of a queue, without locked rows.
-- Returns: first bigint, last bigint; both null if the queue is empty
SELECT (SELECT MIN(RowVersion)
          FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)) AS first,
       (SELECT MAX(RowVersion)
          FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)) AS last

-- name: above_sequence
-- Looks for messages that have a higher RowVersion than the identity has given, up to @last. There are
-- some if the identity was set back.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_RowVersion.
-- Returns: given bigint: the highest RowVersion that the identity has ever given. It is 0 if none was
--          given, and null if there is no identity that rises. first bigint: the lowest RowVersion of
--          such a message, null if there is none; messages bigint: how many such messages there are, up
--          to a limit
DECLARE @given bigint = (
    SELECT CASE WHEN CAST(c.increment_value AS bigint) > 0 THEN ISNULL(CAST(c.last_value AS bigint), 0) END
      FROM {queue_catalog}sys.identity_columns AS c
     WHERE c.object_id = OBJECT_ID({queue_text}, N'U'));
SELECT @given AS given, MIN(seq) AS first, COUNT_BIG(*) AS messages
  FROM (SELECT TOP (@messages) RowVersion AS seq
          FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
         WHERE RowVersion > @given AND RowVersion <= @last
         ORDER BY RowVersion) AS lowest
