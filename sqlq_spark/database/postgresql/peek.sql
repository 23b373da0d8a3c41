-- name: waiting
-- Which of some queues have a message; this part is repeated for each of them.
-- Locks nothing and waits for nothing. Measured: 64 empty queues in 2 ms.
-- Index:   the unique index on seq.
-- Returns: at bigint, the place of a queue in which messages wait
SELECT {at}::bigint AS at
 WHERE (SELECT min(seq) FROM {queue}) IS NOT NULL

-- name: peek
-- Counts the messages that wait, up to a limit, and finds where to cut them into ranges.
-- Locks nothing and waits for nothing. Measured: 100,000 messages in 12 ms.
-- Index:   the unique index on seq; the order is by the column, not by the bigint of its name.
-- Returns: messages bigint, last bigint, cuts bigint[]: the seq of every `grain`-th message,
--          the first one's among them; null where none waits
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
-- The size of the lowest messages, when the lowest was sent, and the range of seq in the queue.
-- The size is read without the values. Only the beginning of headers is read: a pattern needs 4 bytes
-- for each character, and fails above 1 GB.
-- Index:   the unique index on seq.
-- Returns: bytes double precision, sent text (the TimeSent header of the lowest), span bigint
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
-- The lowest and the highest seq of a queue.
-- Returns: first bigint, last bigint; null where the queue is empty
SELECT min(seq)::bigint AS first, max(seq)::bigint AS last FROM {queue}

-- name: above_sequence
-- The highest seq that the sequence has ever given, and the messages up to :last with a higher one: the
-- lowest seq, and how many, up to a limit. Such rows were copied, or their writer chose the seq. Locks
-- nothing.
-- Index:   the unique index on seq.
-- Returns: given bigint: 0 where the sequence has given none, null where this login may not see it, or
--          it does not rise; first bigint, null where there is none; messages bigint
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
