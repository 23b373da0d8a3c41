-- name: endpoint_zone
-- The time zone of the .NET endpoints' sessions: the given one, or that of a session without settings
-- of its own, which is the database's, else the server's. If this session's client set a zone (PGTZ,
-- options of the url), the server's cannot be read.
-- Returns: zone text, null where it cannot be read. It is used once here, so that a zone that the server
-- does not know fails (22023).
SELECT CASE WHEN now() AT TIME ZONE zone IS NOT NULL THEN zone END AS zone
  FROM (SELECT coalesce(
                 :zone::text,
                 (SELECT substr(setting, strpos(setting, '=') + 1)
                    FROM pg_catalog.pg_db_role_setting AS s
                    JOIN pg_catalog.pg_database AS d ON d.oid = s.setdatabase,
                         unnest(s.setconfig) AS setting
                   WHERE s.setrole = 0
                     AND d.datname = current_database()
                     AND setting ILIKE 'timezone=%'),
                 (SELECT reset_val
                    FROM pg_catalog.pg_settings
                   WHERE name = 'TimeZone' AND source <> 'client')) AS zone) AS known

-- name: dues
-- Due times of delays in milliseconds, and of times in UTC. As the transport does, this reads the
-- server's UTC clock as a local time of the session's zone. Each list is a JSON array of texts. A time
-- in the past becomes the current time.
-- Returns: one row: delays timestamptz[], moments timestamptz[]: the due times, in their order
SELECT ARRAY (SELECT (now() AT TIME ZONE 'UTC' + wait::bigint * interval '1 millisecond')
                     AT TIME ZONE :zone::text
                FROM json_array_elements_text(:delays::text::json)
                     WITH ORDINALITY AS each (wait, place)
               ORDER BY place) AS delays,
       ARRAY (SELECT greatest(moment::timestamp, now() AT TIME ZONE 'UTC') AT TIME ZONE :zone::text
                FROM json_array_elements_text(:moments::text::json)
                     WITH ORDINALITY AS each (moment, place)
               ORDER BY place) AS moments

-- name: move_due
-- Moves the messages that have been due longest into the queue, with their ids. A message whose id is
-- in the queue already gets a new one; with :renamed all do. A message is in exactly one of the tables
-- at any time.
-- Locks:   the delayed rows, until commit; skips rows that others hold. Never waits for another of our
--          movers; an endpoint's mover waits for this one and then finds the rows gone.
-- Index:   the one on due; then by ctid.
-- Returns: one row: moved bigint; renamed bigint: those of them that got a new id; unfit bigint: 0,
--          because a queue holds all texts of this database
WITH due AS (
    DELETE FROM ONLY {delayed}
     WHERE ctid = ANY (ARRAY (
            SELECT ctid
              FROM ONLY {delayed}
             WHERE due <= now() AT TIME ZONE 'UTC' AT TIME ZONE :zone::text
             ORDER BY due
             LIMIT :messages::bigint
               FOR UPDATE SKIP LOCKED))
    RETURNING id, headers, body, due),
moved AS (
    INSERT INTO {queue} (id, headers, body)
    SELECT id, headers, coalesce(body, '') FROM due WHERE NOT :renamed::boolean ORDER BY due
        ON CONFLICT DO NOTHING
    RETURNING id),
renamed AS (
    INSERT INTO {queue} (id, headers, body)
    SELECT gen_random_uuid(), headers, coalesce(body, '')
      FROM due
     WHERE id NOT IN (SELECT id FROM moved)
     ORDER BY due
    RETURNING id)
SELECT (SELECT count(*) FROM due) AS moved, (SELECT count(*) FROM renamed) AS renamed,
       0::bigint AS unfit

-- name: next_due
-- Index:   the one on due.
-- Returns: seconds double precision until the next message is due, null where none waits; below 0
--          where it is due, and another mover holds it or a full batch left it. A message due at
--          infinity never is; before version 17 infinity cannot be subtracted from.
SELECT extract(epoch FROM min(due) - (now() AT TIME ZONE 'UTC' AT TIME ZONE :zone::text))::float8
       AS seconds
  FROM ONLY {delayed}
 WHERE isfinite(due)
