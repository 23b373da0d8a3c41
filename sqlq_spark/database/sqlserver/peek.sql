-- name: waiting
-- Which of some queues have a message that is not locked; this part is repeated for each of them.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_RowVersion.
-- Returns: at bigint, the place of a queue in which messages wait
SELECT CAST({at} AS bigint) AS at
 WHERE EXISTS (SELECT 1 FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK))

-- name: peek
-- Counts the messages that wait, up to a limit, and finds where to cut them into ranges. Locked rows
-- are not counted.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_RowVersion.
-- Returns: messages bigint, last bigint, cuts: the RowVersion of every @grain-th message, the first
--          one's among them, separated by commas; null where none waits
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
-- The size of the lowest messages, when the lowest was sent, and the range of RowVersion in the
-- queue. Only the beginning of headers is read.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_RowVersion.
-- Returns: bytes float, sent (the TimeSent header of the lowest), span bigint
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
-- The lowest and the highest RowVersion of a queue, without locked rows.
-- Returns: first bigint, last bigint; null where the queue is empty
SELECT (SELECT MIN(RowVersion)
          FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)) AS first,
       (SELECT MAX(RowVersion)
          FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)) AS last

-- name: above_sequence
-- The highest RowVersion that was ever assigned, and the messages up to @last with a higher one: the
-- lowest RowVersion, and how many, up to a limit. There are some where the identity was set back.
-- Locks:   keeps none, waits for no row.
-- Index:   Index_RowVersion.
-- Returns: given bigint: 0 where none was assigned, null where there is no identity that rises; first
--          bigint, null where there is none; messages bigint
DECLARE @given bigint = (
    SELECT CASE WHEN CAST(c.increment_value AS bigint) > 0 THEN ISNULL(CAST(c.last_value AS bigint), 0) END
      FROM {queue_catalog}sys.identity_columns AS c
     WHERE c.object_id = OBJECT_ID({queue_text}, N'U'));
SELECT @given AS given, MIN(seq) AS first, COUNT_BIG(*) AS messages
  FROM (SELECT TOP (@messages) RowVersion AS seq
          FROM {queue} WITH (READPAST, ROWLOCK, READCOMMITTEDLOCK)
         WHERE RowVersion > @given AND RowVersion <= @last
         ORDER BY RowVersion) AS lowest
