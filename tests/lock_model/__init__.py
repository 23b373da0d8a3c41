"""
A model of SQL Server's locks: our statements and the transport's, in every order of their steps.

There is no SQL Server in a test run, so nothing here is measured. The model shows what follows from
Microsoft's rules if the plans are as the paths say.

Documented by Microsoft:

- Which modes exclude each other, key-range locks, and what an insert tests: "Transaction locking
  and row versioning guide" (lock compatibility, key-range locking).
- UPDLOCK, HOLDLOCK, REPEATABLEREAD, READCOMMITTEDLOCK, READPAST, TABLOCK; READPAST skips locks on
  rows, not on tables: "Table hints (Transact-SQL)".
- READ COMMITTED returns the lock of a row after the read; with READ_COMMITTED_SNAPSHOT a plain read
  takes none: "SET TRANSACTION ISOLATION LEVEL".
- 5,000 locks of a statement on one table or index may become one on the table, which is not waited
  for: the guide (lock escalation).
- The session of the lowest priority is the victim: "SET DEADLOCK_PRIORITY".

Assumed, where several answers are possible, the one that locks more:

- FORCESEEK and INNER LOOP JOIN give the plan that they ask for: the key of the index, then the row.
  The Delete operator locks the row, then its keys in all nonclustered indexes. No hint applies to
  it, so READPAST does not skip there.
- A statement with UPDLOCK keeps the lock on a key whose row it then skipped.
- Requests are granted in their order, and a conversion before new requests.
- A statement reads all candidates before it deletes one, if it reads and deletes in one table by
  two scans (Halloween protection).
- A seek for a unique key that is absent locks nothing, except with HOLDLOCK: then the next key.
- A failed INSERT keeps its lock on the key that was there.
- The locks of a transaction are counted for escalation, not only those of one statement.

Not shown by the model: which plan the server chooses, locks on pages and large values, schema locks
(DDL), application locks of other programs, optimized locking (Azure, SQL Server 2025), parallel
plans, timeouts, and how long a wait lasts. The locks of a plain read are taken and returned in one
step: a writer may wait for that moment, also where the model reports no wait.

    explore.py       the lock manager, and the search through all interleavings (found.py)
    sessions.py      where a session stands; rows; undo
    modes.py         which modes exclude each other
    steps.py         locks, reads and changes, of which a transaction is made
    access.py        from a hint to its locks
    skeletons.py     what is compared with the SQL files
    statements.py    the paths of our statements; before.py: of those that were replaced
    transactions.py  what our sessions do
    transport.py     what endpoints do
    groups.py        who meets whom
"""
