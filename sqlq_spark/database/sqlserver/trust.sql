-- name: code_parts
-- The one list of code that can run where a table is used; other statements contain it. An expression
-- of the server's own functions is harmless: a user's function is stored with its schema, as [a].[b].
-- An expression is null for a login that may not see it.
SELECT t.parent_id AS id, t.name, CAST(NULL AS nvarchar(max)) AS expression,
       CASE WHEN t.is_disabled = 1 OR t.is_ms_shipped = 1
            THEN N'idle trigger' ELSE N'trigger' END AS kind
  FROM sys.triggers AS t
UNION ALL
SELECT s.target_object_id, o.name, NULL, N'security policy'
  FROM sys.security_predicates AS s JOIN sys.objects AS o ON o.object_id = s.object_id
UNION ALL
SELECT parent_object_id, name, NULL, N'foreign key' FROM sys.foreign_keys
UNION ALL
SELECT object_id, name, NULL, N'external table' FROM sys.tables WHERE is_external = 1
UNION ALL
SELECT c.object_id, c.name, QUOTENAME(SCHEMA_NAME(t.schema_id)) + N'.' + QUOTENAME(t.name),
       N'column'
  FROM sys.columns AS c JOIN sys.types AS t ON t.user_type_id = c.user_type_id
 WHERE t.is_user_defined = 1 OR c.rule_object_id <> 0
UNION ALL
SELECT parent_object_id, name, [definition], N'check constraint' FROM sys.check_constraints
UNION ALL
SELECT parent_object_id, name, [definition], N'default' FROM sys.default_constraints
UNION ALL
SELECT object_id, name, [definition], N'computed column' FROM sys.computed_columns

-- name: source_owner
-- The owner of the queue that is read; null where none is, or where it is in another database; other
-- statements contain it.
CASE WHEN PARSENAME(@source_table, 3) IS NULL OR DB_ID(PARSENAME(@source_table, 3)) = DB_ID()
     THEN OBJECTPROPERTY(OBJECT_ID(@source_table, N'U'), N'OwnerId') END

-- name: state_faults
-- Finds what another user than this one or dbo owns in the state schema, and what runs code there.
-- Returns: fault; a row for each thing that is wrong
SELECT CONCAT(N'the schema belongs to ', QUOTENAME(USER_NAME(s.principal_id))) AS fault
  FROM sys.schemas AS s
 WHERE s.name = {state_name} AND USER_NAME(s.principal_id) NOT IN (USER_NAME(), N'dbo')
UNION ALL
SELECT CONCAT(N'table ', QUOTENAME(o.name), N' belongs to ', QUOTENAME(USER_NAME(o.principal_id)))
  FROM sys.objects AS o
 WHERE o.schema_id = SCHEMA_ID({state_name})
   AND USER_NAME(o.principal_id) NOT IN (USER_NAME(), N'dbo')
UNION ALL
SELECT CONCAT(QUOTENAME(o.name), N' is no table')
  FROM sys.objects AS o
 WHERE o.schema_id = SCHEMA_ID({state_name}) AND o.type IN ('V', 'SN')
UNION ALL
SELECT CONCAT(N'table ', QUOTENAME(o.name), N' has the ', p.kind, N' ', QUOTENAME(p.name))
  FROM sys.objects AS o
  JOIN (
        {code_parts}
       ) AS p ON p.id = o.object_id
 WHERE o.schema_id = SCHEMA_ID({state_name})
   AND (p.kind LIKE N'%trigger' OR CHARINDEX(N'].[', p.expression) > 0)

-- name: destinations
-- For tables that messages are to go to: whether they are queues, and their owners. It runs before the
-- INSERT and after it, because no right of a sender locks a table against a change.
-- A right that cannot be looked up, because the name has more than 128 characters, counts as granted: the
-- INSERT decides.
-- Returns: for each table that is there: place bigint, in the list that was given; identity bigint;
--          catalog, here bit (in this database), schema and table; missing, what is wrong with its first
--          column that is absent or, in this database, of another type, or null; may_insert bit; owner; same_owner bit, as the queue that is read; trusted
--          bit: never
WITH asked AS (
    SELECT w.place, w.name, w.columns,
           OBJECT_ID(w.name, N'U') AS id,
           CASE WHEN w.catalog IS NULL OR DB_ID(w.catalog) = DB_ID() THEN NULL
                WHEN DB_ID(w.catalog) IS NULL THEN w.catalog
                ELSE COALESCE(DB_NAME(DB_ID(w.catalog)), w.catalog) END AS catalog,
           CASE WHEN w.catalog IS NULL OR DB_ID(w.catalog) = DB_ID()
                THEN OBJECTPROPERTY(OBJECT_ID(w.name, N'U'), N'OwnerId') END AS owner_id,
           {source_owner} AS source_owner
      FROM OPENJSON(@places) WITH (place bigint '$.place', name nvarchar(776) '$.name',
                                   catalog nvarchar(128) '$.catalog',
                                   columns nvarchar(max) '$.columns' AS JSON) AS w
     WHERE OBJECT_ID(w.name, N'U') IS NOT NULL
)
SELECT a.place, CAST(a.id AS bigint) AS [identity], COALESCE(a.catalog, DB_NAME()) AS catalog,
       CAST(CASE WHEN a.catalog IS NULL THEN 1 ELSE 0 END AS bit) AS here,
       COALESCE(CASE WHEN a.catalog IS NULL THEN OBJECT_SCHEMA_NAME(a.id) END, PARSENAME(a.name, 2))
       AS [schema],
       COALESCE(CASE WHEN a.catalog IS NULL THEN OBJECT_NAME(a.id) END, PARSENAME(a.name, 1))
       AS [table],
       (SELECT MIN(w.fault)
          FROM (SELECT CASE WHEN COL_LENGTH(a.name, j.name) IS NULL
                            THEN CONCAT(N'it has no column ', j.name)
                            WHEN a.catalog IS NULL AND NOT EXISTS (
                                    SELECT 1
                                      FROM sys.columns AS c
                                      JOIN sys.types AS t ON t.user_type_id = c.system_type_id
                                      JOIN ({queue_types}) AS k
                                        ON k.name = j.name
                                       AND k.kind = t.name COLLATE DATABASE_DEFAULT
                                     WHERE c.object_id = a.id
                                       AND c.name = j.name COLLATE DATABASE_DEFAULT)
                            THEN CONCAT(N'column ', j.name, N' has another type than that of a queue')
                            END AS fault
                  FROM (SELECT CASE value WHEN N'Seq' THEN N'RowVersion' ELSE value END AS name
                          FROM OPENJSON(a.columns)) AS j) AS w) AS missing,
       CAST(COALESCE(HAS_PERMS_BY_NAME(a.name, N'OBJECT', N'INSERT'), 1) AS bit) AS may_insert,
       COALESCE(USER_NAME(a.owner_id), N'an owner that cannot be seen') AS owner,
       CAST(CASE WHEN a.owner_id = a.source_owner THEN 1 ELSE 0 END AS bit) AS same_owner,
       CAST(0 AS bit) AS trusted
  FROM asked AS a

-- name: table_code
-- The first code of an owner who is not trusted that an action would run on tables: N'insert' (all
-- code), or N'select' (triggers and defaults do not run, and only the columns of queues are read). Trusted
-- are this login, dbo, and the owner of the queue that is read, if any. For an INSERT a table of another
-- owner must show its definition, and be in this database. Whether a definition is shown cannot be looked
-- up for a name of more than 128 characters, which counts as not shown.
-- Returns: identity bigint, code; no row where nothing was found
WITH asked AS (
    SELECT OBJECT_ID(w.name, N'U') AS id, w.name, w.here,
           CASE WHEN w.here = 1 THEN OBJECTPROPERTY(OBJECT_ID(w.name, N'U'), N'OwnerId') END AS owner_id
      FROM (SELECT name, CASE WHEN catalog IS NULL OR DB_ID(catalog) = DB_ID() THEN 1 ELSE 0 END AS here
              FROM OPENJSON(@places) WITH (name nvarchar(776) '$.name',
                                           catalog nvarchar(128) '$.catalog')) AS w
), code AS (
    {code_parts}
), found AS (
    SELECT id, 1 AS rank, owner_id,
           CAST(N'it is in another database, whose triggers cannot be seen from here' AS nvarchar(max))
           AS what
      FROM asked
     WHERE here = 0
    UNION ALL
    SELECT id, 2, owner_id, N'its triggers cannot be seen without VIEW DEFINITION on it'
      FROM asked
     WHERE @action = N'insert'
       AND COALESCE(HAS_PERMS_BY_NAME(name, N'OBJECT', N'VIEW DEFINITION'), 0) = 0
    UNION ALL
    SELECT a.id, 3, a.owner_id,
           CONCAT(c.kind, N' ', QUOTENAME(c.name),
                  CASE c.kind WHEN N'column' THEN N' has type ' + c.expression END)
      FROM asked AS a
      JOIN code AS c ON c.id = a.id
     WHERE @action = N'insert' AND c.kind <> N'idle trigger'
       AND (c.expression IS NULL OR CHARINDEX(N'].[', c.expression) > 0)
        OR c.kind IN (N'security policy', N'external table')
        OR c.kind IN (N'column', N'computed column')
           AND c.name IN (N'Id', N'Expires', N'Headers', N'Body', N'RowVersion', N'Due',
                          N'Topic', N'Endpoint', N'QueueAddress')
)
SELECT CAST(f.id AS bigint) AS [identity],
       CONCAT(f.what, N', of ' + QUOTENAME(USER_NAME(f.owner_id))) AS code
  FROM (SELECT id, owner_id, what, ROW_NUMBER() OVER (PARTITION BY id ORDER BY rank, what) AS at
          FROM found
         WHERE id IS NOT NULL
           AND ISNULL(owner_id, 0) NOT IN (1, DATABASE_PRINCIPAL_ID(), ISNULL({source_owner}, 1))) AS f
 WHERE f.at = 1
