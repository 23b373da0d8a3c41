-- part: trusted
-- The ids of the principals that this session trusts: it may use their tables. Other statements contain
-- this part. @owners has the names of trusted principals. @named has the tables and schemas that the user
-- has named in the options. The owners of these tables and schemas are trusted too. A sysadmin trusts
-- only dbo and @owners. The ids come from functions of the server, which return null for a name that is
-- no principal, and 0 for a login that has its access by a group. Nulls and 0 are left out.
SELECT t.id
  FROM (SELECT ISNULL(DATABASE_PRINCIPAL_ID(N'dbo'), 1) AS id
        UNION ALL
        SELECT DATABASE_PRINCIPAL_ID(CAST(o.value AS nvarchar(128))) FROM OPENJSON(@owners) AS o
        UNION ALL
        SELECT o.id
          FROM (SELECT DATABASE_PRINCIPAL_ID()
                UNION ALL
                SELECT n.id
                  FROM OPENJSON(@named) WITH (schema_name nvarchar(128) '$.schema_name',
                                              name nvarchar(776) '$.name',
                                              catalog nvarchar(128) '$.catalog') AS w
                 CROSS APPLY (SELECT OBJECTPROPERTY(OBJECT_ID(w.name, N'U'), N'OwnerId')
                              UNION ALL
                              SELECT principal_id FROM sys.schemas WHERE name = w.schema_name) AS n (id)
                 WHERE w.catalog IS NULL OR ISNULL(DB_ID(w.catalog), 0) = DB_ID()) AS o (id)
         WHERE ISNULL(IS_SRVROLEMEMBER(N'sysadmin'), 0) = 0) AS t
 WHERE ISNULL(t.id, 0) > 0

-- name: table_owners
-- Reads, for each of some tables, who owns it, why it must not be used, and whether it is a queue. It
-- runs before a table is used and again before the commit, because a sender has no right by which it
-- could lock a table against changes.
-- - Who else may alter a table is not checked. This session cannot see it, and the table's owner decides
--   it.
-- - HAS_PERMS_BY_NAME cannot look up a right on a table whose name has more than 128 characters. Such a
--   right counts as granted. If the login lacks it, the INSERT fails later.
-- Returns: for each table that is there, the fields of `TableFacts` in trust.py
SELECT t.place, CAST(t.id AS bigint) AS [identity], t.catalog, CAST(t.here AS bit) AS here,
       ISNULL(CASE WHEN t.here = 1 THEN OBJECT_SCHEMA_NAME(t.id) END, PARSENAME(t.name, 2)) AS [schema],
       ISNULL(CASE WHEN t.here = 1 THEN OBJECT_NAME(t.id) END, PARSENAME(t.name, 1)) AS [table],
       ({wrong_column}) AS missing,
       CAST(ISNULL(HAS_PERMS_BY_NAME(t.name, N'OBJECT', N'INSERT'), 1) * t.is_table AS bit) AS may_insert,
       ISNULL(USER_NAME(t.owner_id), N'an owner that cannot be seen') AS owner,
       CASE WHEN t.here = 0 THEN N'it is in another database, whose owners cannot be seen'
            WHEN t.is_table = 0 THEN N'it is no ordinary table'
            WHEN u.found IS NOT NULL
            THEN N'it belongs to ' + ISNULL(USER_NAME(t.owner_id), N'an owner that cannot be seen')
       END AS fault,
       CASE WHEN t.here = 1 AND t.is_table = 1 AND u.found IS NOT NULL THEN USER_NAME(t.owner_id) END AS role,
       CAST(ISNULL(IS_SRVROLEMEMBER(N'sysadmin'), 0) AS bit) AS is_super
  FROM (SELECT a.*,
               NULLIF(CASE WHEN a.here = 1 THEN OBJECTPROPERTY(a.id, N'OwnerId') END, 0) AS owner_id,
               CASE WHEN a.here = 0 OR EXISTS (SELECT * FROM sys.tables AS s
                                                WHERE s.object_id = a.id AND s.is_external = 0)
                    THEN 1 ELSE 0 END AS is_table
          FROM (SELECT w.place, w.name, w.columns, OBJECT_ID(w.name) AS id,
                       COALESCE(DB_NAME(DB_ID(w.catalog)), w.catalog, DB_NAME()) AS catalog,
                       CASE WHEN w.catalog IS NULL OR ISNULL(DB_ID(w.catalog), 0) = DB_ID()
                            THEN 1 ELSE 0 END AS here
                  FROM OPENJSON(@places) WITH (place bigint '$.place', name nvarchar(776) '$.name',
                                               catalog nvarchar(128) '$.catalog',
                                               columns nvarchar(max) '$.columns' AS JSON) AS w) AS a
         WHERE a.id IS NOT NULL) AS t
  LEFT JOIN (SELECT 1 AS found) AS u ON ISNULL(t.owner_id, 0) NOT IN (
       {trusted}
       )

-- name: find_other_case
-- Finds a queue whose schema and name are @schema_name and @table_name in other upper and lower case. It
-- runs after a queue that an option or an argument names was not found. So it finds a row only if the
-- database's collation distinguishes them. It finds only tables that have the columns of a queue and
-- that this login may see. Only the catalogue is read.
-- Locks:   keeps none. Waits for a session that creates or changes a table and has not committed;
--          `blockers` shows it.
-- Returns: schema, table: at most one row, the first by schema and name
SELECT TOP (1) s.name AS [schema], t.name AS [table]
  FROM {queue_catalog}sys.tables AS t
  JOIN {queue_catalog}sys.schemas AS s ON s.schema_id = t.schema_id
 WHERE LOWER(s.name) = LOWER(@schema_name)
   AND LOWER(t.name) = LOWER(@table_name)
   AND (s.name <> @schema_name OR t.name <> @table_name)
   AND 5 = (SELECT COUNT(*)
              FROM {queue_catalog}sys.columns AS c
             WHERE c.object_id = t.object_id
               AND c.name IN (N'Id', N'Expires', N'Headers', N'Body', N'RowVersion'))
 ORDER BY s.name, t.name
