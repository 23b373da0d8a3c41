-- The statements of the SQL Server dialect: T-SQL of SQL Server 2016 and later, and of Azure SQL.
-- {queue}, {errors}, {delayed}, {subscriptions}: a quoted table. {state}: the quoted schema of the state tables.
-- {…_text}: the same as a text, N'[dbo].[orders]'. {…_name}: a bare name as a text, N'sqlqueue'.
-- {…_catalog}: `[catalog].` of a table in another database, else nothing.
-- @name is a bound value. All run under READ COMMITTED, whatever the database's default is.
--
-- Locks. READPAST passes over locked rows only under READ COMMITTED; where the database reads row
-- versions (READ_COMMITTED_SNAPSHOT, Azure's default) it is refused without READCOMMITTEDLOCK. A locked
-- page it waits for: ROWLOCK, so that no page is locked whole.
-- A statement takes 2,000 messages at most: from 5,000 locks on, SQL Server may lock the whole table,
-- and READPAST does not pass over that.

-- name: begin
-- An error of any kind undoes the whole transaction; no row counts are sent between results.
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN TRANSACTION

-- name: timeouts
-- And the name that the DBA sees, in sys.dm_exec_sessions.context_info.
-- Written out, not bound: what a parameterised batch sets ends with it. The time of a statement is
-- bounded by the driver; there is no bound for a transaction that does nothing.
SET LOCK_TIMEOUT {milliseconds};
SET CONTEXT_INFO {application}

-- name: commit
COMMIT TRANSACTION

-- name: rollback
-- An error has undone the transaction already, most often.
IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION

-- name: savepoint
-- What fails from here to the release is undone by itself, and the transaction goes on. With
-- XACT_ABORT no error would leave a transaction to go on with.
SET XACT_ABORT OFF;
SAVE TRANSACTION attempt

-- name: release
SET XACT_ABORT ON

-- name: check_deferred
-- Nothing: this database leaves no check until the commit.
SELECT 0 AS deferred

-- name: clock
-- The clock that the peers compare Expires with.
-- Returns: the server's UTC time, datetime
SELECT GETUTCDATE()
