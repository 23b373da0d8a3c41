-- The statements of the PostgreSQL dialect.
-- {queue}, {errors}, {delayed}: a quoted table. {state}: the quoted schema of the state tables.
-- :name is a bound value. All run under READ COMMITTED, whatever the database's default is.

-- name: begin_alone
-- Begins the transaction of one statement that stands alone, and each other one; see begin.
-- Sets the isolation level: the receipt protocol reads, after a lock, what others committed.
-- Sets the search path: a function or an operator that another login defined in a schema of the
-- session's search_path could match our arguments better, and would run as this login.
-- Both hold for this transaction only, because a pooler may share the session.
BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL search_path = pg_catalog, pg_temp

-- name: begin
-- Begins a transaction of several statements, all in one message.
-- Sets the timeouts, and the name that the DBA sees. Raises a synchronous_commit of `off` or `local`,
-- which a login or a database may have: Spark has the rows after the commit, and neither a crash nor a
-- standby that takes over may return them to the queue. Without synchronous standbys `local` is `on`.
-- Sets the client encoding of a SQL_ASCII database, which holds any bytes as text: with the same
-- encoding it passes them unchanged, and with another it fails.
-- Keeps the notices of triggers from standard error, because they may have texts of messages.
-- statement_timeout does not end a COPY that waits for its client. The limits of TCP end it where the
-- client's machine is gone, or reads nothing for so long. Only Linux has tcp_user_timeout: any other
-- server would write a line to its log at each transaction.
-- All hold for this transaction only, because a pooler may share the session.
-- Values are written into the text, so that it is one message: with parameters there are three.
{begin_alone};
SELECT set_config('client_min_messages', 'error', true),
       set_config('statement_timeout', CAST(:milliseconds AS text), true),
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

-- name: transaction_limit
-- Returns: the seconds after which the server ends a transaction of this login, and its session; 0 where
--          it has no limit; null before version 17
SELECT extract(epoch FROM current_setting('transaction_timeout', true)::interval)::float8

-- name: set_lock_timeout
-- Sets how long the transaction waits for a destination that others lock, from here to its end.
-- Returns: one row
SELECT set_config('lock_timeout', :milliseconds, true)

-- name: commit
COMMIT

-- name: rollback
ROLLBACK

-- name: savepoint
-- A failure between here and the release undoes only that work, and the transaction goes on.
SAVEPOINT attempt

-- name: release
RELEASE SAVEPOINT attempt

-- name: check_deferred
-- Runs the checks that a table defers to the commit, so that they fail here. Measured: 0.2 ms.
SET CONSTRAINTS ALL IMMEDIATE

-- name: end_frozen
-- Ends sessions that have locked rows of the state tables while their client hangs: their statement has
-- waited for it for longer than :seconds. No time limit of the server ends such a statement. It ends
-- only sessions of this login, whose names begin with `sqlqueue` and contain :name. The server does not
-- show what sessions of other logins wait for. They are returned for a DBA.
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
