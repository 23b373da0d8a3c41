-- name: endpoint_zone
-- Returns the time zone of the .NET endpoints' sessions:
-- - :zone, if it is not null;
-- - otherwise the zone that the database sets for its sessions;
-- - otherwise the server's zone, unless the client of this session has set a zone (by PGTZ or by options
--   of the url). Such a setting hides the server's zone.
-- Returns: zone text, null if it cannot be read. The statement converts a time to the zone, so that it
--          fails (22023) if the server does not know the zone.
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
-- Computes due times from :delays, which are milliseconds, and from :moments, which are times in UTC.
-- Both are JSON arrays of texts. As in the transport, the UTC time of the server's clock is stored as if
-- it were a local time of the zone :zone. A time in the past becomes the current time.
-- Returns: one row: delays timestamptz[], moments timestamptz[]: the due times in the order of the arrays
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
-- Moves due messages into the queue, those first that have been due longest. A message keeps its id,
-- unless the queue has this id already or :renamed is true. Then it gets a new id. At any time a message
-- is in exactly one of the two tables.
-- Locks:   the delayed rows, until commit; skips rows that others hold. An endpoint's mover waits for this
--          one, and then finds the rows gone.
-- Index:   the one on due; then by ctid.
-- Returns: one row: moved bigint: how many were moved; renamed bigint: how many of them got a new id;
--          unfit bigint: 0, because a queue holds all texts of this database
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
-- Reads when the next delayed message is due. A message whose due time is infinity is never due, and is
-- left out: before version 17 the server cannot subtract from infinity.
-- Index:   the one on due.
-- Returns: seconds double precision until the next message is due, null if none waits. It is below 0 if a
--          message is due already, because another mover holds it or a full batch has left it
SELECT extract(epoch FROM min(due) - (now() AT TIME ZONE 'UTC' AT TIME ZONE :zone::text))::float8
       AS seconds
  FROM ONLY {delayed}
 WHERE isfinite(due)
