"""
A model of SQL Server's locks: our statements and the transport's, in every order of their steps.

There is no SQL Server in a test run, so nothing here is measured. The model shows what follows from
Microsoft's rules ("Transaction locking and row versioning guide", "Table hints (Transact-SQL)",
"SET TRANSACTION ISOLATION LEVEL", "SET DEADLOCK_PRIORITY") if the plans are as the paths say.

Assumed, where several answers are possible, the one that locks more:

- FORCESEEK and INNER LOOP JOIN give the plan that they ask for: the key of the index, then the row.
  The Delete operator locks the row, then its keys in all nonclustered indexes. No hint applies to
  it, so READPAST does not skip there.
- A statement with UPDLOCK keeps the lock on a key whose row it then skipped.
- A seek for a unique key that is absent locks nothing, except with HOLDLOCK: then the next key.
- A failed INSERT keeps its lock on the key that was there.

Not shown by the model: which plan the server chooses, lock escalation, locks on pages and large
values, schema locks (DDL), application locks, optimized locking (Azure, SQL Server 2025), parallel
plans, timeouts, and how long a wait lasts.
"""
