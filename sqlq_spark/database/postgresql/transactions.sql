-- The statements of the PostgreSQL dialect.
-- {queue}, {errors}, {delayed}: a quoted table. {state}: the quoted schema of the state tables.
-- :name is a bound value. All statements run under READ COMMITTED, whatever the database's default is.

-- name: begin_alone
-- Begins the transaction of a statement that runs alone. The statement `begin` contains this text too.
-- - The isolation level is READ COMMITTED, because after it has waited for a lock, a statement must read
--   what others have committed meanwhile.
-- - The search path has only pg_catalog. Other logins may create functions and operators in other
--   schemas. Such a function could fit the arguments of a statement better than the server's own
--   function, and would run with the rights of this login.
-- Both settings hold for this transaction only, because a pooler may lend the session to others.
BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL search_path = pg_catalog, pg_temp

-- name: begin
-- Begins a transaction of several statements. It is sent to the server in one message, for which its
-- values are written into its text. All settings hold for this transaction only, because a pooler may
-- lend the session to others.
-- - The timeouts have the value of the connection's timeout. If the login has a shorter statement_timeout,
--   that one stays, because a DBA has set it as a limit. statement_timeout does not end a COPY that
--   waits for its client. The TCP settings end such a COPY when, for as long as the timeout, the client's
--   machine is gone or has read nothing. tcp_user_timeout is set on Linux only, because any other server
--   would write a line to its log.
-- - A login or a database may set synchronous_commit to `off` or `local`. Then a crash, or a standby that
--   takes over, could undo a commit, and messages that Spark already has would be in the queue again. So
--   `off` and `local` become `on`. Without synchronous standbys `local` and `on` are the same.
-- - application_name is the name that the DBA sees.
-- - client_encoding is set only in a database with the encoding SQL_ASCII, which stores any bytes as
--   text. With the same encoding the client gets the bytes unchanged. With another encoding a statement
--   would fail.
-- - client_min_messages hides the notices of triggers, because they may contain texts of messages.
{begin_alone};
SELECT set_config('client_min_messages', 'error', true),
       set_config('statement_timeout',
                  CASE WHEN current_setting('statement_timeout')::interval
                            BETWEEN interval '1 ms' AND :milliseconds * interval '1 ms'
                       THEN current_setting('statement_timeout')
                       ELSE CAST(:milliseconds AS text) END, true),
       set_config('lock_timeout', CAST(:milliseconds AS text), true),
       set_config('idle_in_transaction_session_timeout', CAST(:milliseconds AS text), true),
       set_config('tcp_user_timeout',
                  CASE WHEN version() LIKE '%linux%' THEN CAST(:milliseconds AS text)
                       ELSE current_setting('tcp_user_timeout') END, true),
       set_config('tcp_keepalives_idle', CAST(greatest(1, :milliseconds / 3000) AS text), true),
       set_config('tcp_keepalives_interval', CAST(greatest(1, :milliseconds / 10000) AS text), true),
       set_config('synchronous_commit',
                  CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'
                       ELSE current_setting('synchronous_commit') END, true),
       set_config('application_name', :application, true),
       set_config('client_encoding',
                  CASE WHEN getdatabaseencoding() = 'SQL_ASCII' THEN 'SQL_ASCII'
                       ELSE current_setting('client_encoding') END, true)

-- name: time_limits
-- Reads the login's time limits. After transaction_timeout the server ends the transaction and the session.
-- After statement_timeout it ends the statement.
-- Returns: transaction float8, statement float8: seconds, 0 if there is no limit. transaction is null if the
--          server is older than version 17
SELECT extract(epoch FROM current_setting('transaction_timeout', true)::interval)::float8 AS transaction,
       extract(epoch FROM current_setting('statement_timeout')::interval)::float8 AS statement

-- name: set_lock_timeout
-- Sets how long the open transaction waits for a lock, from now until it ends.
-- Returns: one row
SELECT set_config('lock_timeout', :milliseconds, true)

-- name: commit
COMMIT

-- name: rollback
ROLLBACK

-- name: savepoint
-- Sets a savepoint, so that a later failure can be undone up to this point while the transaction goes on.
SAVEPOINT attempt

-- name: release
RELEASE SAVEPOINT attempt

-- name: check_deferred
-- Runs the checks that a table defers to the commit, so that they fail here. Measured: 0.2 ms.
SET CONSTRAINTS ALL IMMEDIATE

-- name: end_frozen
-- Ends sessions of this login that keep a stream or sink waiting because their own client hangs. A
-- session is one of them if all this is true:
-- - It holds locks on the state tables.
-- - Its name begins with `sqlqueue` and contains :name.
-- - Its statement has waited for its client for more than :seconds seconds. No time limit of the server
--   ends such a session.
-- Sessions of other logins with such a name and such locks are returned but not ended, because the server
-- does not show what they wait for. A DBA can end them.
-- Locks:   nothing.
-- Returns: pid int, login text, application text; ended bool, null for a session of another login
SELECT a.pid, a.usename::text AS login, a.application_name AS application,
       CASE WHEN its.own THEN pg_terminate_backend(a.pid) END AS ended
  FROM pg_catalog.pg_stat_activity AS a
 CROSS JOIN LATERAL (
        SELECT a.usename = session_user AND pg_has_role(a.usesysid, 'USAGE') AS own) AS its
 WHERE a.datname = current_database()
   AND a.pid <> pg_backend_pid()
   AND starts_with(a.application_name, 'sqlqueue ')
   AND strpos(a.application_name, :name::text) > 0
   AND EXISTS (
        SELECT
          FROM pg_catalog.pg_locks AS l
          JOIN pg_catalog.pg_class AS c ON c.oid = l.relation
          JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
         WHERE l.pid = a.pid AND n.nspname = :state_name::text)
   AND (NOT its.own
        OR a.state = 'active'
           AND a.wait_event IN ('ClientRead', 'ClientWrite')
           AND a.query_start < clock_timestamp() - make_interval(secs => :seconds::float8))

-- name: clock
-- Returns: the server's UTC time, timestamp without zone
SELECT clock_timestamp() AT TIME ZONE 'UTC'
