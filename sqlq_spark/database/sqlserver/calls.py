"""
T-SQL as it is sent: names put in and quoted, values bound with their types, the bulk insert.

Pure: a driver is not needed to know what one would be told.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlq_spark.wire.address import bracketed, quote_sqlserver

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlq_spark.database import Value
    from sqlq_spark.wire.address import QueueAddress

IDENTIFIER = re.compile(r"\{([a-z_]+)\}")
PARAMETER = re.compile(r"(?<![@\w])@([a-z_]+)\b")
GUARD = "IF @@TRANCOUNT <> 1 BEGIN; THROW 51900, N'the transaction is gone', 1; END; "

# the type of a column that holds one code page only, and its collation
NARROW = re.compile(r"varchar COLLATE (\w+)")
BINARY_ORDER = "Latin1_General_100_BIN2"
UNFIT = "BEGIN; THROW 51901, N'characters of Headers do not fit', 1; END;"

BINARY = {"body", "payload"}  # values that are bytes where they are not null
SHORT_TEXT, SHORT_BYTES = 4000, 8000  # what a parameter holds without (max)

# columns of a bulk insert: Arrow's name → the table's, and its type
LOADED = {
    "id": ("Id", "uniqueidentifier"),
    "correlationid": ("CorrelationId", "varchar(255)"),
    "replytoaddress": ("ReplyToAddress", "varchar(255)"),
    "expires": ("Expires", "datetime2(6)"),
    "headers": ("Headers", "nvarchar(max)"),
    "body": ("Body", "varbinary(max)"),
    "due": ("Due", "datetime2(6)"),
}
OPTIONAL = {"correlationid", "replytoaddress"}  # left out where the table has them not


def named(
    text: str,
    state: str,
    tables: dict[str, QueueAddress],
    *,
    recoverable: bool = True,
    fits: str = "",
) -> str:
    """Put names into the braces, last and in one go: a queue may be called {state} or @n."""
    found = names(state, tables, recoverable=recoverable) | {"fits": fits}
    return IDENTIFIER.sub(lambda match: found.get(match[1], match[0]), text)


def names(
    state: str, tables: dict[str, QueueAddress], *, recoverable: bool = True
) -> dict[str, str]:
    """What stands for each word in braces, quoted."""
    found = {
        "state": bracketed(state),
        "state_text": literal(bracketed(state)),
        "state_name": literal(state),
        "recoverable": "Recoverable, " if recoverable else "",
        "one": "1, " if recoverable else "",
    }
    for role, address in tables.items():
        quoted = quote_sqlserver(address)
        catalog = "" if address.catalog is None else f"{bracketed(address.catalog)}."
        found[role] = quoted
        found[f"{role}_text"] = literal(quoted)
        found[f"{role}_catalog"] = catalog
        found[f"{role}_lock"] = lock_of(quoted, catalog)
    return found


def blamed(tables: dict[str, QueueAddress], text: str) -> QueueAddress | None:
    """The table that the server speaks of; the first, where that is not clear."""
    spoken = (each for each in tables.values() if f"{each.table}'" in text)
    return next(spoken, next(iter(tables.values()), None))


def lock_of(quoted: str, catalog: str) -> str:
    """What the transport's installer locks: the table with its database."""
    database = "" if catalog else "QUOTENAME(DB_NAME()) + N'.' + "
    return f"LEFT({database}{literal(quoted + '_lock')}, 255)"


def literal(text: str) -> str:
    """A quoted text."""
    return "N'" + text.replace("'", "''") + "'"


def call(
    statement: str, text: str, values: Mapping[str, Value], *, guarded: bool
) -> tuple[str, tuple[Value, ...]]:
    """
    A statement as a call of sp_executesql, and what is bound to its question marks.

    Args:
        statement: its name, for the DBA.
        text: with its names put in.
        values: by parameter; those that the text does not speak of are left out.
        guarded: in a transaction, which must still be there.
    """
    spoken = set(PARAMETER.findall(text))
    used = {name: value for name, value in values.items() if name in spoken}
    text = f"/* sqlqueue:{statement} */ {text}"
    guard = GUARD if guarded else ""
    if not used:
        return f"{guard}DECLARE @text nvarchar(max) = ?; EXEC sys.sp_executesql @text", (text,)
    types = ", ".join(f"@{name} {declared(name, value)}" for name, value in used.items())
    given = ", ".join(
        f"@{name} = {'NULL' if value is None else '?'}" for name, value in used.items()
    )
    sql = (
        f"{guard}DECLARE @text nvarchar(max) = ?, @types nvarchar(max) = ?; "
        f"EXEC sys.sp_executesql @text, @types, {given}"
    )
    return sql, (text, types, *(value for value in used.values() if value is not None))


def declared(name: str, value: Value) -> str:
    """The type of a parameter; a few sizes only, so that plans are found again."""
    if value is None:
        return "varbinary(max)" if name in BINARY else "nvarchar(4000)"
    if isinstance(value, bool):
        return "bit"
    if isinstance(value, int):
        return "bigint"
    if isinstance(value, float):
        return "float"
    if isinstance(value, bytes):
        return "varbinary(8000)" if len(value) <= SHORT_BYTES else "varbinary(max)"
    units = len(value.encode("utf-16-le", "surrogatepass")) // 2
    return "nvarchar(4000)" if units <= SHORT_TEXT else "nvarchar(max)"


def unfit(headers: str, shape: dict[str, str]) -> str:
    """
    A condition: these headers hold what a queue's column of version 1 cannot; empty where none can.

    SQL Server puts question marks into a varchar, and says nothing.

    Args:
        headers: in SQL.
        shape: the queue's columns and their types.
    """
    found = NARROW.fullmatch(shape.get("headers", ""))
    if found is None:
        return ""
    kept = f"CAST(CAST({headers} COLLATE {found[1]} AS varchar(max)) AS nvarchar(max))"
    return f"{kept} COLLATE {BINARY_ORDER} <> {headers}"


def fits(shape: dict[str, str]) -> str:
    """What refuses rows of @gone whose headers a queue cannot hold; empty where it holds all."""
    condition = unfit("Headers", shape)
    return f"IF EXISTS (SELECT 1 FROM @gone WHERE {condition}) {UNFIT}\n" if condition else ""  # noqa: S608


def insertion(names: list[str], shape: dict[str, str]) -> str:
    """The INSERT of `load` for some columns, in the order that they were sent in."""
    known = [
        (at, *LOADED[name])
        for at, name in enumerate(names, 1)
        if name in shape or name not in OPTIONAL
    ]
    recoverable = "recoverable" in shape
    columns = [column for _, column, _ in known]
    into = ", ".join([*columns, "Recoverable"] if recoverable else columns)
    values = ", ".join([*columns, "1"] if recoverable else columns)
    read = ", ".join(f"{column} {kind} '$[{at}]'" for at, column, kind in known)
    condition = unfit("Headers", shape)
    source = f"OPENJSON(@rows) WITH (Headers nvarchar(max) '$[{names.index('headers') + 1}]')"
    guard = f"IF EXISTS (SELECT 1 FROM {source} WHERE {condition}) {UNFIT} " if condition else ""  # noqa: S608
    return guard + (
        f"INSERT INTO {{queue}} ({into}) SELECT {values} "  # noqa: S608 - of LOADED
        f"FROM OPENJSON(@rows) WITH (place int '$[0]', {read}) AS sent ORDER BY place"
    )
