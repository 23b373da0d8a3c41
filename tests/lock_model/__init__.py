"""
A model of SQL Server's locks: our statements and the transport's, in every order of their steps.

There is no SQL Server in a test run, so nothing here is measured. The model shows what follows from
Microsoft's rules if the plans are as the paths say.

Documented by Microsoft:

- Which modes exclude each other, key-range locks, and what an insert tests: "Transaction locking
  and row versioning guide".
- UPDLOCK, HOLDLOCK, REPEATABLEREAD, READCOMMITTEDLOCK, READPAST, TABLOCK; READPAST skips locks on
  rows, not on tables: "Table hints (Transact-SQL)".
- READ COMMITTED returns the lock of a row after the read; with READ_COMMITTED_SNAPSHOT a plain read
  takes none: "SET TRANSACTION ISOLATION LEVEL".
- The session of the lowest priority is the victim: "SET DEADLOCK_PRIORITY".

Assumed, where several answers are possible, the one that locks more:

- FORCESEEK and INNER LOOP JOIN give the plan that they ask for: the key of the index, then the row.
  The Delete operator locks the row, then its keys in all nonclustered indexes. No hint applies to
  it, so READPAST does not skip there.
- A statement with UPDLOCK keeps the lock on a key whose row it then skipped.
- Requests are granted in their order, and a conversion before new requests.
- A seek for a unique key that is absent locks nothing, except with HOLDLOCK: then the next key.
- A failed INSERT keeps its lock on the key that was there.

Not shown by the model: which plan the server chooses, lock escalation, locks on pages and large
values, schema locks (DDL), application locks, optimized locking (Azure, SQL Server 2025), parallel
plans, timeouts, and how long a wait lasts.

    engine.py    the lock manager, and the search through all interleavings
    table.py     the table of locks: skeletons and paths of the statements; what sessions run
    plans.py     from a path and its hints to locks
"""
