-- name: trusted
-- The ids of the principals whose tables this session uses; other statements contain it. @owners has names
-- of principals; @named has the tables and schemas that the user names: their owners' code runs as this
-- login already. A sysadmin trusts dbo and @owners only. No id is null, or 0: a login that comes by a group
-- has that id.
SELECT t.id
  FROM (SELECT 1 AS id
        UNION ALL
        SELECT DATABASE_PRINCIPAL_ID(CAST(o.value AS nvarchar(128))) FROM OPENJSON(@owners) AS o
        UNION ALL
        SELECT o.id
          FROM (SELECT DATABASE_PRINCIPAL_ID() AS id
                UNION ALL
                SELECT OBJECTPROPERTY(OBJECT_ID(n.name, N'U'), N'OwnerId')
                  FROM OPENJSON(@named) WITH (name nvarchar(776) '$.name', catalog nvarchar(128) '$.catalog') AS n
                 WHERE n.catalog IS NULL OR DB_ID(n.catalog) = DB_ID()
                UNION ALL
                SELECT s.principal_id
                  FROM OPENJSON(@named) WITH (schema_name nvarchar(128) '$.schema_name',
                                               catalog nvarchar(128) '$.catalog') AS n
                  JOIN sys.schemas AS s ON s.name = n.schema_name
                 WHERE n.catalog IS NULL OR DB_ID(n.catalog) = DB_ID()) AS o
         WHERE ISNULL(IS_SRVROLEMEMBER(N'sysadmin'), 0) = 0) AS t
 WHERE ISNULL(t.id, 0) > 0

-- name: table_owners
-- Whose tables they are, why they must not be used, and whether they are queues. It runs before the use and
-- before the commit, because no right of a sender locks a table against a change. Who else may alter a table
-- cannot be seen; that is its owner's choice. A right that cannot be looked up, because the name has more
-- than 128 characters, counts as granted: the INSERT decides. @source_table is another table, or null.
-- Returns: for each table that is there, what `Table` in trust.py says
SELECT t.place, CAST(t.id AS bigint) AS [identity], ISNULL(t.catalog, DB_NAME()) AS catalog,
       CAST(CASE WHEN t.catalog IS NULL THEN 1 ELSE 0 END AS bit) AS here,
       COALESCE(CASE WHEN t.catalog IS NULL THEN OBJECT_SCHEMA_NAME(t.id) END, PARSENAME(t.name, 2))
       AS [schema],
       COALESCE(CASE WHEN t.catalog IS NULL THEN OBJECT_NAME(t.id) END, PARSENAME(t.name, 1)) AS [table],
       (SELECT MIN(w.name)
          FROM (SELECT CASE value WHEN N'Seq' THEN N'RowVersion' ELSE value END AS name
                  FROM OPENJSON(t.columns)) AS w
         WHERE COL_LENGTH(t.name, w.name) IS NULL) AS missing,
       CAST(ISNULL(HAS_PERMS_BY_NAME(t.name, N'OBJECT', N'INSERT'), 1) AS bit) AS may_insert,
       ISNULL(USER_NAME(NULLIF(t.owner_id, 0)), N'an owner that cannot be seen') AS owner,
       CAST(CASE WHEN t.owner_id > 0 AND t.owner_id = t.source_id THEN 1 ELSE 0 END AS bit) AS same_owner,
       CASE WHEN t.catalog IS NOT NULL THEN N'it is in another database, whose owners cannot be seen'
            WHEN t.is_table = 0 THEN N'it is no ordinary table'
            WHEN t.is_trusted = 0
            THEN N'it belongs to ' + ISNULL(USER_NAME(NULLIF(t.owner_id, 0)), N'an owner that cannot be seen')
       END AS fault,
       CASE WHEN t.catalog IS NULL AND t.is_table = 1 AND t.is_trusted = 0
            THEN USER_NAME(NULLIF(t.owner_id, 0)) END AS role,
       CAST(ISNULL(IS_SRVROLEMEMBER(N'sysadmin'), 0) AS bit) AS is_super
  FROM (SELECT a.*,
               CASE WHEN a.owner_id IN (
                    {trusted}
                    ) THEN 1 ELSE 0 END AS is_trusted
          FROM (SELECT w.place, w.name, w.columns, OBJECT_ID(w.name) AS id,
                       CASE WHEN w.catalog IS NULL OR DB_ID(w.catalog) = DB_ID() THEN NULL
                            ELSE ISNULL(DB_NAME(DB_ID(w.catalog)), w.catalog) END AS catalog,
                       CASE WHEN EXISTS (SELECT * FROM sys.tables AS s
                                          WHERE s.object_id = OBJECT_ID(w.name, N'U') AND s.is_external = 0)
                            THEN 1 ELSE 0 END AS is_table,
                       ISNULL(OBJECTPROPERTY(OBJECT_ID(w.name), N'OwnerId'), 0) AS owner_id,
                       ISNULL(OBJECTPROPERTY(OBJECT_ID(@source_table, N'U'), N'OwnerId'), 0) AS source_id
                  FROM OPENJSON(@places) WITH (place bigint '$.place', name nvarchar(776) '$.name',
                                               catalog nvarchar(128) '$.catalog',
                                               columns nvarchar(max) '$.columns' AS JSON) AS w) AS a) AS t
 WHERE t.id IS NOT NULL
