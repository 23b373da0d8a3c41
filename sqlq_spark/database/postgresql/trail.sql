-- name: trail_kept
-- Finds out whether there is an audit trail, in a state schema that this login may use.
-- Returns: one row if there is one, else none
SELECT c.oid::bigint AS trail
  FROM pg_catalog.pg_class AS c
  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname = :state_name::text AND c.relname = 'trail' AND c.relkind = 'r'
   AND has_schema_privilege(n.oid, 'USAGE')

-- name: record_action
-- Writes an entry in the transaction of the action, so that either both are committed or neither is.
INSERT INTO {state}.trail (action, queue, messages, stream, batch, task)
VALUES (:action::text, :queue_name::text, :messages::bigint, :stream::text, :batch::bigint,
        :task::integer)

-- name: trail
-- Reads the last entries of all queues, or of :queue_name, the latest first.
-- Returns: at, login, session_login, action, messages, stream, batch, task, queue
SELECT at, login::text AS login, session_login::text AS session_login, action, messages, stream, batch,
       task::bigint AS task, queue
  FROM {state}.trail
 WHERE :queue_name::text IS NULL OR queue = :queue_name::text
 ORDER BY entry DESC
 LIMIT :entries::bigint
