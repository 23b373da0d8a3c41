-- name: trail_kept
-- Finds out whether there is an audit trail. A login without any right on the table does not see it.
-- Returns: one row if there is one, else none
SELECT CAST(o.object_id AS bigint) AS trail
  FROM sys.objects AS o
 WHERE o.schema_id = SCHEMA_ID(@state_name) AND o.name = N'trail' AND o.type = 'U'

-- name: record_action
-- Writes an entry in the transaction of the action, so that either both are committed or neither is.
INSERT INTO {state}.trail (action, queue, messages, stream, batch, task)
VALUES (@action, @queue_name, @messages, @stream, @batch, @task)

-- name: trail
-- Reads the last entries of all queues, or of @queue_name, the latest first.
-- Returns: at, login, session_login, action, messages, stream, batch, task, queue
SELECT TOP (@entries) at, login, session_login, action, messages, stream, batch,
       CAST(task AS bigint) AS task, queue
  FROM {state}.trail
 WHERE @queue_name IS NULL OR queue = @queue_name
 ORDER BY entry DESC
