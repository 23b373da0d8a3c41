-- name: waiting
-- Finds out which queues have a message. This text is repeated for each queue.
-- Locks nothing and waits for nothing. Measured: 64 empty queues in 2 ms.
-- Index:   the unique index on seq.
-- Returns: at bigint: the index in the list of queues, for each queue in which messages wait
SELECT {at}::bigint AS at
 WHERE (SELECT min(seq) FROM {queue}) IS NOT NULL

-- name: peek
-- Counts the messages that wait, up to a limit, and finds where to cut them into ranges.
-- Locks nothing and waits for nothing. Measured: 100,000 messages in 12 ms.
-- Index:   the unique index on seq. The rows are sorted by the column seq, and not by the result's seq,
--          because that is a cast, which no index has.
-- Returns: messages bigint: how many; last bigint: the seq of the last one; cuts bigint[]: the seqs of
--          the first message and of every :grain-th message after it; null if none waits
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
-- Reads the size of the messages with the lowest seqs, when the first of them was sent, and how far apart
-- the lowest and the highest seq are. It reads sizes without the values. It reads only the beginning of
-- headers, because matching a pattern needs 4 bytes for each character, and fails above 1 GB.
-- Index:   the unique index on seq.
-- Returns: bytes double precision: the average size; sent text: the header TimeSent of the first message;
--          span bigint
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
-- Reads the highest seq that the sequence has ever given. Also looks for messages whose seq is higher
-- than that, and not higher than :last. They were copied, or their writer chose the seq. Locks nothing.
-- Index:   the unique index on seq.
-- Returns: given bigint: the highest given seq, 0 if the sequence has given none, null if this login may
--          not see the sequence or it does not rise; first bigint: the lowest seq of such a message, null
--          if there is none; messages bigint: how many such messages there are, up to a limit
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
