-- The statements of the PostgreSQL dialect.
-- {queue}, {errors}, {delayed}: a quoted table. {state}: the quoted schema of the state tables.
-- :name is a bound value. All run under READ COMMITTED, whatever the database's default is.

-- name: begin
-- Isolation is said explicitly: the receipt protocol reads, after a lock, what others committed.
-- So is where names are looked up: a function or an operator that another login defined in a schema
-- of the session's search_path could match our arguments better, and would run as this login.
-- For this transaction only, as a pooler may share the session.
BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL search_path = pg_catalog, pg_temp

-- name: timeouts
-- And the name that the DBA sees. A commit is on disk when it is answered, also for a login that does
-- without: Spark has the rows by then, and after a crash they would be in the queue again.
-- A database of SQL_ASCII holds any bytes as text; it gives and takes them as they are where the client
-- says that it does so too, and fails otherwise.
-- For this transaction only, so that a pooler's next client is not surprised.
-- Returns: one row
SELECT set_config('statement_timeout', :milliseconds, true),
       set_config('lock_timeout', :milliseconds, true),
       set_config('idle_in_transaction_session_timeout', :milliseconds, true),
       set_config('synchronous_commit',
                  coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), true),
       set_config('application_name', left(:application, 63), true),
       set_config('client_encoding',
                  CASE WHEN getdatabaseencoding() = 'SQL_ASCII' THEN 'SQL_ASCII'
                       ELSE current_setting('client_encoding') END, true)

-- name: commit
COMMIT

-- name: rollback
ROLLBACK

-- name: savepoint
-- What fails from here to the release is undone by itself, and the transaction goes on.
SAVEPOINT attempt

-- name: release
RELEASE SAVEPOINT attempt

-- name: check_deferred
-- What a table leaves until the commit is checked now, where it fails by itself. Measured: 0.2 ms.
SET CONSTRAINTS ALL IMMEDIATE

-- name: clock
-- Returns: the server's UTC time, timestamp without zone
SELECT clock_timestamp() AT TIME ZONE 'UTC'
