-- The statements of the SQL Server dialect: T-SQL of SQL Server 2016 and later, and of Azure SQL.
-- {queue}, {errors}, {delayed}, {subscriptions}: a quoted table. {state}: the quoted schema of the state
-- tables.
-- {…_text}: the quoted table as a text, N'[dbo].[orders]'. {…_name}: a bare name as a text, N'sqlqueue'.
-- {…_catalog}: `[catalog].` of a table in another database, else nothing.
-- @name is a bound value. All statements run under READ COMMITTED, whatever the database's default is.
--
-- Locks. READPAST skips locked rows only under READ COMMITTED. In a database that reads row versions
-- (READ_COMMITTED_SNAPSHOT, Azure's default) it also needs READCOMMITTEDLOCK. READPAST does not skip a
-- locked page, but waits for it. So ROWLOCK makes sure that nobody locks whole pages.
-- A statement receives at most 2,000 messages. From 5,000 locks on, SQL Server may lock the whole
-- table, and READPAST does not skip that lock.

-- name: begin
-- Begins a transaction of one or several statements. Its values are written into the text, because the
-- settings of a batch with parameters would end with that batch.
-- - With NOCOUNT the server sends no row counts between results.
-- - With XACT_ABORT any error undoes the whole transaction.
-- - The lock timeout is the connection's. The driver limits the time of a statement. For a transaction in
--   which no statement runs the server has no limit, so the watchdog in drivers.py ends it.
-- - CONTEXT_INFO is the name that a DBA sees in sys.dm_exec_sessions.
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT {milliseconds};
SET CONTEXT_INFO {application};
BEGIN TRANSACTION

-- name: set_lock_timeout
-- Sets how long the open transaction waits for a lock, from now until it ends. The value is written into
-- the text, as in `begin`.
SET LOCK_TIMEOUT {milliseconds}

-- name: commit
COMMIT TRANSACTION

-- name: rollback
-- Undoes the transaction. Usually an error has undone it already.
IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION

-- name: savepoint
-- Sets a savepoint, so that a later failure can be undone up to this point while the transaction goes on.
-- XACT_ABORT is off until then, because with it any error would undo the whole transaction. Some errors
-- do so anyway: see `undo`.
SET XACT_ABORT OFF;
SAVE TRANSACTION attempt

-- name: undo
-- Undoes the work since the savepoint, or the whole transaction if the server leaves no choice. After a
-- deadlock, an error of a conversion or an error in a trigger, XACT_STATE() is 0 or -1: the transaction
-- has ended, or it can only be undone.
-- Returns: is_open: 1 if the transaction goes on, 0 if all of it is undone
IF XACT_STATE() = 1
BEGIN
    ROLLBACK TRANSACTION attempt;
    SET XACT_ABORT ON;
END
ELSE IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
SELECT @@TRANCOUNT AS is_open

-- name: release
-- Ends the part of the transaction that a savepoint protects: from now on any error undoes all of it.
SET XACT_ABORT ON

-- name: clock
-- Reads the clock with which the transport compares Expires.
-- Returns: the server's UTC time, datetime
SELECT GETUTCDATE()
