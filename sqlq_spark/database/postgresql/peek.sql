-- name: waiting
-- Finds the queues in which a message waits. The text is repeated for each queue of a list; {at} is the
-- queue's index in that list. Measured: 64 empty queues in 2 ms.
-- Locks:   nothing. Waits for nothing.
-- Index:   the unique index on seq.
-- Returns: at bigint: the index of a queue in which messages wait; one row for each such queue
SELECT {at}::bigint AS at
 WHERE (SELECT min(seq) FROM {queue}) IS NOT NULL

-- name: peek
-- Counts the messages that wait in a range, up to a limit, and finds where they can be cut into smaller
-- ranges. Measured: 100,000 messages in 12 ms.
-- Locks:   nothing. Waits for nothing.
-- Index:   the unique index on seq. The rows are sorted by the column q.seq, which is in the index. The
--          result's seq is a cast to bigint, which is not.
-- Returns: messages bigint: how many; last bigint: the seq of the last one; cuts bigint[]: the seqs of
--          the first message and of every :grain-th message after it. All are null if no message waits
SELECT cardinality(seqs)::bigint AS messages, seqs[cardinality(seqs)] AS last,
       ARRAY (SELECT seqs[place] FROM generate_series(1, cardinality(seqs), :grain::bigint) AS place)
       AS cuts
  FROM (SELECT array_agg(seq) AS seqs
          FROM (SELECT q.seq::bigint AS seq
                  FROM {queue} AS q
                 WHERE q.seq >= :first::bigint AND q.seq <= :last::bigint
                 ORDER BY q.seq
                 LIMIT :messages::bigint) AS lowest
        OFFSET 0) AS waiting

-- name: sample
-- Reads facts about the messages with the lowest seqs. For sizes the server does not read the values
-- themselves. Of the headers of the first message only the beginning is read, because matching a pattern
-- needs 4 bytes for each character, and fails above 1 GB.
-- Index:   the unique index on seq.
-- Returns: bytes double precision: the average size of the lowest 50 messages; sent text: the header
--          TimeSent of the first message; span bigint: how many seqs there are from the first message to
--          the last one of the queue
SELECT (SELECT avg({message_bytes})
          FROM (SELECT headers, body
                  FROM {queue}
                 WHERE seq >= :first::bigint
                 ORDER BY seq
                 LIMIT 50) AS lowest)::float8 AS bytes,
       (SELECT substring(left(headers, 16384) FROM '"NServiceBus.TimeSent":"([^"]{1,40})"')
          FROM {queue}
         WHERE seq = :first::bigint
         LIMIT 1) AS sent,
       (SELECT max(seq) FROM {queue})::bigint - :first::bigint + 1 AS span

-- name: top
-- Reads the lowest and the highest seq of a queue.
-- Returns: first bigint, last bigint; both null if the queue is empty
SELECT min(seq)::bigint AS first, max(seq)::bigint AS last FROM {queue}

-- name: above_sequence
-- Looks for messages that have a higher seq than the sequence has given, up to :last. Such messages were
-- copied, or their writer chose the seq.
-- Locks:   nothing.
-- Index:   the unique index on seq.
-- Returns: given bigint: the highest seq that the sequence has ever given. It is 0 if the sequence has
--          given none. It is null if this login may not see the sequence, or if the sequence descends.
--          first bigint: the lowest seq of such a message, null if there is none; messages bigint: how
--          many such messages there are, up to a limit
SELECT its.given, above.first, above.messages
  FROM (SELECT (SELECT CASE WHEN s.seqincrement > 0 AND has_sequence_privilege(s.seqrelid, 'USAGE, SELECT')
                            THEN coalesce(pg_sequence_last_value(s.seqrelid), 0) END
                  FROM pg_catalog.pg_sequence AS s
                 WHERE s.seqrelid = to_regclass(pg_get_serial_sequence(:table_name::text, 'seq'))) AS given
        OFFSET 0) AS its
 CROSS JOIN LATERAL (
        SELECT min(seq)::bigint AS first, count(*) AS messages
          FROM (SELECT q.seq
                  FROM {queue} AS q
                 WHERE q.seq > its.given AND q.seq <= :last::bigint
                 ORDER BY q.seq
                 LIMIT :messages::bigint) AS lowest) AS above
