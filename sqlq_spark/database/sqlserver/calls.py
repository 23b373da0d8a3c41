"""
T-SQL as it is sent: names put in, values bound with their types, the bulk insert, the steps.

The functions are pure and need no driver.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlq_spark.database.statements import Statements, repeat
from sqlq_spark.wire.sqlserver import SQLSERVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlq_spark.database import Tables, Value
    from sqlq_spark.database.statements import StatementName
    from sqlq_spark.wire.address import QueueAddress

# It defers no check to the commit. `receive` has one pass, which locks a row as it deletes it.
# The right to INSERT gives no lock of a table: whose it is, is asked before and after the use.
# Due is a datetime in UTC, whatever the session's zone. To end a session needs a right on the whole
# server. A statement that stands alone needs no transaction around it. Who may only insert does not
# choose a RowVersion.
LACKS: frozenset[StatementName] = frozenset(
    {
        *("check_deferred", "receive_range", "lock_read", "lock_insert", "lock_delete"),
        *("endpoint_zone", "end_frozen", "begin_alone", "skip_taken"),
        # no limit ends a transaction, and an error has a number and names what it is about
        *("transaction_limit", "why_refused"),
    }
)
STATEMENTS = Statements.load(SQLSERVER.dialect, LACKS)
IDENTIFIER = re.compile(r"\{([a-z][a-z_0-9]*)\}")
PARAMETER = re.compile(r"(?<![@\w])@([a-z_]+)\b")
GUARD = "IF @@TRANCOUNT <> 1 BEGIN; THROW 51900, N'the transaction is gone', 1; END; "

# the type of a column that holds one code page only, and its collation
NARROW = re.compile(r"varchar COLLATE (\w+)")
BINARY_ORDER = "Latin1_General_100_BIN2"
ALL_FIT = "1 = 1"  # a condition, where headers of all characters fit
UNFIT = "BEGIN; THROW 51901, N'characters of Headers do not fit', 1; END;"

BINARY = {"body", "payload"}  # values that are bytes where they are not null
NUMBERS = {bool: "bit", int: "bigint", float: "float"}
SHORT_TEXT, SHORT_BYTES = 4000, 8000  # what a parameter holds without (max)

# columns of a bulk insert: Arrow's name → the table's, and its type. OPENJSON cuts a text silently.
# Of one that is too long for a column of 255 a character more is left, so that the INSERT fails.
LOADED = {
    "id": ("Id", "uniqueidentifier"),
    "correlationid": ("CorrelationId", "varchar(256)"),
    "replytoaddress": ("ReplyToAddress", "varchar(256)"),
    "expires": ("Expires", "datetime2(6)"),
    "headers": ("Headers", "nvarchar(max)"),
    "body": ("Body", "varbinary(max)"),
    "due": ("Due", "datetime2(6)"),
}
OPTIONAL = {"correlationid", "replytoaddress"}  # left out where the table lacks them


def fill_names(text: str, state: str, tables: Tables, **words: str) -> str:
    """
    Put names into the braces, last and in one pass: a name may be {state} or @n.

    `words` are put in as they are.
    """
    text = repeat(text, tables)
    found = {
        "state": SQLSERVER.quote_name(state),
        "state_name": literal(state),
        "state_escaped": SQLSERVER.quote_name(state).replace("'", "''"),
        "recoverable": "Recoverable, ",
        "one": "1, ",
        "fits": "",
        "headers_fit": ALL_FIT,
        "seek": "FORCESEEK, ",
    }
    for role, address in tables.items():
        quoted = SQLSERVER.quote_address(address)
        catalog = "" if address.catalog is None else f"{SQLSERVER.quote_name(address.catalog)}."
        found[role] = quoted
        found[f"{role}_text"] = literal(quoted)
        found[f"{role}_catalog"] = catalog
        # GRANT takes no database
        found[f"{role}_use"] = literal(catalog and f"USE {catalog[:-1]}; ")
        found[f"{role}_here"] = literal(quoted.removeprefix(catalog))
        # what the transport's installer locks: the table with its database
        database = "" if catalog else "QUOTENAME(DB_NAME()) + N'.' + "
        found[f"{role}_lock"] = f"LEFT({database}{literal(quoted + '_lock')}, 255)"
    found |= words
    return IDENTIFIER.sub(lambda match: found.get(match[1], match[0]), text)


def join_script(parts: Iterable[str]) -> str:
    return "\n\n".join(text if text.endswith("GO") else f"{text};" for text in parts) + "\n"


def split_script(text: str) -> list[str]:
    """Return the batches that sqlcmd sends."""
    return [batch for batch in re.split(r"^GO$", text, flags=re.MULTILINE) if batch.strip()]


def find_table(tables: Tables, text: str) -> QueueAddress | None:
    """Return the table in the server's sentence; the first one, where it names none."""
    named = (each for each in tables.values() if f"{each.table}'" in text)
    return next(named, next(iter(tables.values()), None))


def literal(text: str) -> str:
    return "N'" + text.replace("'", "''") + "'"


def build_call(
    statement: str, text: str, values: Mapping[str, Value], *, guarded: bool
) -> tuple[str, tuple[Value, ...]]:
    """
    Return a statement as a call of sp_executesql, and the values of its question marks.

    Values that the text does not use are left out. `guarded`: a transaction must still be open.
    """
    wanted = set(PARAMETER.findall(text))
    used = {name: value for name, value in values.items() if name in wanted}
    text = f"/* sqlqueue:{statement} */ {text}"
    guard = GUARD if guarded else ""
    if not used:
        return f"{guard}DECLARE @text nvarchar(max) = ?; EXEC sys.sp_executesql @text", (text,)
    types = ", ".join(f"@{name} {type_of(name, value)}" for name, value in used.items())
    given = ", ".join(
        f"@{name} = {'NULL' if value is None else '?'}" for name, value in used.items()
    )
    sql = (
        f"{guard}DECLARE @text nvarchar(max) = ?, @types nvarchar(max) = ?; "
        f"EXEC sys.sp_executesql @text, @types, {given}"
    )
    return sql, (text, types, *(value for value in used.values() if value is not None))


def type_of(name: str, value: Value) -> str:
    """Return the type of a parameter; few sizes only, so that the server reuses plans."""
    if value is None:
        return "varbinary(max)" if name in BINARY else "nvarchar(4000)"
    if isinstance(value, bytes):
        return "varbinary(8000)" if len(value) <= SHORT_BYTES else "varbinary(max)"
    if not isinstance(value, str):
        return NUMBERS[type(value)]
    units = len(value.encode("utf-16-le", "surrogatepass")) // 2
    return "nvarchar(4000)" if units <= SHORT_TEXT else "nvarchar(max)"


def headers_fit(shape: dict[str, str]) -> str:
    """
    Return the condition that a queue's column holds all characters of Headers.

    SQL Server writes question marks to a varchar, without an error. `shape` has the queue's columns
    and their types.
    """
    found = NARROW.fullmatch(shape.get("headers", ""))
    if found is None:
        return ALL_FIT
    kept = f"CAST(CAST(Headers COLLATE {found[1]} AS varchar(max)) AS nvarchar(max))"
    return f"{kept} COLLATE {BINARY_ORDER} = Headers"


def check_fit(shape: dict[str, str], source: str = "@gone") -> str:
    """Return a check for headers that a queue's varchar cannot hold; empty where it holds all."""
    fit = headers_fit(shape)
    if fit == ALL_FIT:
        return ""
    return f"IF EXISTS (SELECT 1 FROM {source} WHERE NOT ({fit})) {UNFIT}\n"  # noqa: S608


def build_insert(names: list[str], shape: dict[str, str], *, null_bodies: bool = False) -> str:
    """
    Return the INSERT of `load` for some columns, in the order in which they were sent.

    @rows are `json_rows`, and @messages says how many they are.

    If no body may be null, a text without characters, which OPENJSON may read as a null, becomes an
    empty body.
    """
    known = [
        (at, *LOADED[name])
        for at, name in enumerate(names, 1)
        if name in shape or name not in OPTIONAL
    ]
    values = {column: column for _, column, _ in known}
    if "Body" in values and not null_bodies:
        values["Body"] = "ISNULL(Body, 0x)"
    if "recoverable" in shape:
        values["Recoverable"] = "1"
    read = ", ".join(f"{column} {kind} '$[{at}]'" for at, column, kind in known)
    source = f"OPENJSON(@rows) WITH (Headers nvarchar(max) '$[{names.index('headers') + 1}]')"
    return check_fit(shape, source) + (
        f"INSERT INTO {{queue}} ({', '.join(values)}) "  # noqa: S608 - of LOADED
        # the server expects 50 rows of OPENJSON, and would sort the others in tempdb
        f"SELECT TOP (@messages) {', '.join(values.values())} "
        f"FROM OPENJSON(@rows) WITH (place int '$[0]', {read}) AS sent ORDER BY place "
        "OPTION (MAXDOP 1)"
    )


# ---------------------------------------------------------------- how far one `receive` goes
# The rows of a range were weighed, and are cut at the size of a step. A row that is committed after
# the weighing comes unweighed. So a step has a limit for the number of rows and one for each row,
# and their product is bounded like the sum of the weighed rows. A row that is too large is not
# received, but `receive` locks it.

# From 5,000 locks on, SQL Server may lock the table. It may count a lock for each page of a large
# value; a page holds 8,000 bytes, and a byte of headers counts for two.
MOST_LOCKS, PAGE = 4000, 4000
MOST_MOVED = (MOST_LOCKS - 1000) * PAGE  # bytes of up to 1,000 messages that one statement moves


@dataclass(frozen=True, slots=True)
class Size:
    """A message of a page and its size: a row of `weigh_page`."""

    seq: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Weight(Size):
    """A message of a range, its size, and whether it is received: a row of `weigh`."""

    is_large: bool  # or its headers: it is not received


def cut_step(rows: Iterable[Weight], *, messages: int, most: int, largest: int) -> dict[str, int]:
    """
    Return how far to receive, as parameters of `receive`; nothing where nothing waits.

    The limits let the weighed rows through, but for those that are too large. Whatever was
    committed since, the step has at most `most` plus `largest` bytes.

    Args:
        rows: the messages, by seq.
        messages: of the step, at most; it has none where all rows are too large.
        most: bytes of the step, but one message at least.
        largest: bytes of one message.
    """
    count = total = locks = heaviest = 0
    stop: int | None = None
    for message in rows:
        size = message.bytes
        locks += 1
        if not message.is_large:
            locks, heaviest = locks + size // PAGE, max(heaviest, size)
            full = total >= most or locks > MOST_LOCKS or (count + 1) * heaviest > most + largest
            if count and (full or count == messages):
                break
            count, total = count + 1, total + size
        stop = message.seq + 1
    if stop is None:
        return {}
    heaviest = min(largest, (most + largest) // max(1, count))
    return {"stop": stop, "messages": count, "largest": heaviest}


# ---------------------------------------------------------------- how far one `browse` goes


def cut_page(rows: Iterable[Size], *, most: int, largest: int) -> dict[str, int]:
    """
    Return up to where a browse reads, as parameters of `browse`; nothing where nothing waits.

    The page ends with the message that reaches the limit, and with all others of its seq. A row
    that is committed after the weighing comes unweighed. The limit for each row is that of the
    heaviest weighed one, so that `is_weighed` finds a heavier one that came since.

    Args:
        rows: the messages, by seq.
        most: bytes of the page, but one message at least.
        largest: bytes of one message; of a larger one only the size is read.
    """
    total = heaviest = 0
    stop: int | None = None
    for message in rows:
        if stop is not None and total >= most and message.seq >= stop:
            break
        if message.bytes <= largest:
            total += message.bytes
            heaviest = max(heaviest, message.bytes)
        stop = message.seq + 1
    return {} if stop is None else {"stop": stop, "largest": heaviest}
