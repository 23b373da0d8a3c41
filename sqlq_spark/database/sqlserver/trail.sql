-- name: trail_kept
-- Whether there is an audit trail on which this login has a right: the others do not see it.
-- Returns: one row, or none
SELECT CAST(o.object_id AS bigint) AS trail
  FROM sys.objects AS o
 WHERE o.schema_id = SCHEMA_ID(@state_name) AND o.name = N'trail' AND o.type = 'U'

-- name: record_action
-- In the transaction of the action: neither is there without the other.
INSERT INTO {state}.trail (action, queue, messages, stream, batch, task)
VALUES (@action, @queue_name, @messages, @stream, @batch, @task)

-- name: trail
-- The last entries of all queues, or of one, the latest first.
-- Returns: at, login, session_login, action, messages, stream, batch, task, queue
SELECT TOP (@entries) at, login, session_login, action, messages, stream, batch,
       CAST(task AS bigint) AS task, queue
  FROM {state}.trail
 WHERE @queue_name IS NULL OR queue = @queue_name
 ORDER BY entry DESC
