"""
Build T-SQL and its values for a driver: names, typed parameters, and the bulk insert.

This module also decides how many messages one `receive` or `browse` takes. All functions are pure:
they need neither a driver nor a connection.
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

# statements that SQL Server does not have, each with the reason
LACKS: frozenset[StatementName] = frozenset(
    {
        "check_deferred",  # no check is deferred to the commit
        "receive_range",  # `receive` takes one pass already: it locks a row as it deletes it
        # A login that may only INSERT cannot lock a table. So the owner is checked before the table
        # is used, and again before the commit.
        *("lock_read", "lock_insert", "lock_delete"),
        "endpoint_zone",  # Due is a datetime in UTC, whatever the session's zone
        "end_frozen",  # ending a session needs a right on the whole server
        "begin_alone",  # here a statement needs no transaction around it
        "skip_taken",  # a login that may only insert cannot choose a RowVersion
        "time_limits",  # the server has no time limits of a login
        "why_refused",  # an error has a number, and its text names the object
    }
)
STATEMENTS = Statements.load(SQLSERVER.dialect, LACKS)
IDENTIFIER = re.compile(r"\{([a-z][a-z_0-9]*)\}")
PARAMETER = re.compile(r"(?<![@\w])@([a-z_]+)\b")
GUARD = "IF @@TRANCOUNT <> 1 BEGIN; THROW 51900, N'the transaction is gone', 1; END; "

# the type of a column that holds only the characters of one code page, and its collation
NARROW = re.compile(r"varchar COLLATE (\w+)")
BINARY_ORDER = "Latin1_General_100_BIN2"
ALL_FIT = "1 = 1"  # the condition for a column that holds all characters
UNFIT = "BEGIN; THROW 51901, N'characters of Headers do not fit', 1; END;"

BINARY = {"body", "payload"}  # parameters whose values are bytes or null
NUMBERS = {bool: "bit", int: "bigint", float: "float"}
# the longest values for which a parameter's type needs no (max)
SHORT_TEXT = 4000  # characters
SHORT_BYTES = 8000

# Columns of a bulk insert: Arrow's name → (the table's name, type for OPENJSON). OPENJSON cuts a
# text that is too long for its type, without an error. The types here are one character longer than
# the table's columns, so a text that is too long is still too long for the INSERT, which fails.
LOADED = {
    "id": ("Id", "uniqueidentifier"),
    "correlationid": ("CorrelationId", "varchar(256)"),
    "replytoaddress": ("ReplyToAddress", "varchar(256)"),
    "expires": ("Expires", "datetime2(6)"),
    "headers": ("Headers", "nvarchar(max)"),
    "body": ("Body", "varbinary(max)"),
    "due": ("Due", "datetime2(6)"),
}
OPTIONAL = {"correlationid", "replytoaddress"}  # left out if the table does not have them


def fill_names(text: str, state: str, tables: Tables, **words: str) -> str:
    """
    Put quoted names into the braces of a statement.

    This is the last change of the text, and it makes only one pass: a queue may be called `{state}`
    or `@n`, and such a name must not be replaced again. `words` are put in unchanged.
    """
    text = repeat(text, tables)
    filled = {
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
        filled[role] = quoted
        filled[f"{role}_text"] = literal(quoted)
        filled[f"{role}_catalog"] = catalog
        # a GRANT cannot name a database, so a USE comes before it
        filled[f"{role}_use"] = literal(catalog and f"USE {catalog[:-1]}; ")
        filled[f"{role}_here"] = literal(quoted.removeprefix(catalog))
        # the transport's installer locks the same name: the table's name with its database
        database = "" if catalog else "QUOTENAME(DB_NAME()) + N'.' + "
        filled[f"{role}_lock"] = f"LEFT({database}{literal(quoted + '_lock')}, 255)"
    filled |= words
    return IDENTIFIER.sub(lambda match: filled.get(match[1], match[0]), text)


def join_script(parts: Iterable[str]) -> str:
    return "\n\n".join(text if text.endswith("GO") else f"{text};" for text in parts) + "\n"


def split_script(text: str) -> list[str]:
    """Split a script at its lines `GO`, as sqlcmd does."""
    return [batch for batch in re.split(r"^GO$", text, flags=re.MULTILINE) if batch.strip()]


def find_table(tables: Tables, text: str) -> QueueAddress | None:
    """Return the table that the server's sentence names. If it names none, the first table."""
    named = (table for table in tables.values() if f"{table.table}'" in text)
    return next(named, next(iter(tables.values()), None))


def literal(text: str) -> str:
    return "N'" + text.replace("'", "''") + "'"


def build_call(
    statement: str, text: str, values: Mapping[str, Value], *, guarded: bool
) -> tuple[str, tuple[Value, ...]]:
    """
    Return a statement as a call of sp_executesql, and the values for its question marks.

    Values that the text does not use are left out. If `guarded`, the call first checks that the
    transaction is still open.
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
    """Return the type of a parameter. Types have few sizes, so that the server can reuse plans."""
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
    Return the condition that the column Headers of a queue can hold all characters of a text.

    If a varchar cannot hold a character, SQL Server stores a question mark instead, without an
    error. `shape` has the queue's columns and their types.
    """
    narrow = NARROW.fullmatch(shape.get("headers", ""))
    if narrow is None:
        return ALL_FIT
    kept = f"CAST(CAST(Headers COLLATE {narrow[1]} AS varchar(max)) AS nvarchar(max))"
    return f"{kept} COLLATE {BINARY_ORDER} = Headers"


def check_fit(shape: dict[str, str], source: str = "@gone") -> str:
    """Return T-SQL that throws if a queue cannot hold some headers. Empty if it can hold all."""
    fit = headers_fit(shape)
    if fit == ALL_FIT:
        return ""
    return f"IF EXISTS (SELECT 1 FROM {source} WHERE NOT ({fit})) {UNFIT}\n"  # noqa: S608


def build_insert(names: list[str], shape: dict[str, str], *, null_bodies: bool = False) -> str:
    """
    Return the INSERT of `load` for some columns. It inserts the rows in their order.

    @rows is the text that `json_rows` returns, and @messages is how many rows it has.

    OPENJSON may read an empty body as a null. If `null_bodies` is False, no row had a null body, so
    each null that OPENJSON reads is inserted as an empty body.
    """
    known = [
        (place, *LOADED[name])
        for place, name in enumerate(names, 1)
        if name in shape or name not in OPTIONAL
    ]
    values = {column: column for _, column, _ in known}
    if "Body" in values and not null_bodies:
        values["Body"] = "ISNULL(Body, 0x)"
    if "recoverable" in shape:
        values["Recoverable"] = "1"
    read = ", ".join(f"{column} {kind} '$[{place}]'" for place, column, kind in known)
    source = f"OPENJSON(@rows) WITH (Headers nvarchar(max) '$[{names.index('headers') + 1}]')"
    return check_fit(shape, source) + (
        f"INSERT INTO {{queue}} ({', '.join(values)}) "  # noqa: S608 - names of LOADED
        # Without TOP the server expects 50 rows of OPENJSON, and sorts the others in tempdb.
        f"SELECT TOP (@messages) {', '.join(values.values())} "
        f"FROM OPENJSON(@rows) WITH (place int '$[0]', {read}) AS sent ORDER BY place "
        "OPTION (MAXDOP 1)"
    )


# ---------------------------------------------------------------- how far one `receive` goes
# `receive` cannot limit the bytes that it takes. So the rows of a range are weighed first: their
# sizes are read, and the range is cut where they have enough bytes for a step. `receive` may also
# take rows that are committed after the weighing. So it has a limit for the number of rows, and a
# limit for the size of each row. The product of the two limits bounds the bytes of rows that were
# not weighed. A row that is too large is not received, but `receive` locks it.

# If a statement has 5,000 locks, SQL Server may lock the whole table. A large value may count as
# one lock for each of its pages of 8,000 bytes. PAGE is only half of that, because in sizes a byte
# of headers stands for two stored bytes.
MOST_LOCKS = 4000
PAGE = 4000  # bytes
MOST_MOVED = (MOST_LOCKS - 1000) * PAGE  # bytes that one statement moves, in at most 1,000 messages


@dataclass(frozen=True, slots=True)
class Size:
    """A row of `weigh_page`: a message and its size."""

    seq: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Weight(Size):
    """A row of `weigh`: a message, its size, and whether it is too large to be received."""

    is_large: bool  # whether the whole message is too large, or its headers are


def cut_step(rows: Iterable[Weight], *, messages: int, most: int, largest: int) -> dict[str, int]:
    """
    Return the parameters of `receive` that say how far it goes. Empty if no message waits.

    All weighed rows up to `stop` are received, except rows that are too large. Other rows may be
    committed after the weighing. Even with these rows, the step has at most `most` plus `largest`
    bytes.

    Args:
        rows: the messages, sorted by seq.
        messages: how many messages the step may have. It has none if all rows are too large.
        most: how many bytes the step may have. The first message may have more.
        largest: how many bytes one message may have.
    """
    count = 0
    total = 0
    locks = 0
    heaviest = 0
    stop: int | None = None
    for message in rows:
        size = message.bytes
        locks += 1
        if not message.is_large:
            locks += size // PAGE
            heaviest = max(heaviest, size)
            is_full = total >= most or locks > MOST_LOCKS or (count + 1) * heaviest > most + largest
            if count > 0 and (is_full or count == messages):
                break
            count += 1
            total += size
        stop = message.seq + 1
    if stop is None:
        return {}
    heaviest = min(largest, (most + largest) // max(1, count))
    return {"stop": stop, "messages": count, "largest": heaviest}


# ---------------------------------------------------------------- how far one `browse` goes


def cut_page(rows: Iterable[Size], *, most: int, largest: int) -> dict[str, int]:
    """
    Return the parameters of `browse` that say how far it reads. Empty if no message waits.

    The page ends with the message that reaches the limit, and with all other messages of the same
    seq. A row that is committed after the weighing was not weighed. If it has more bytes than any
    weighed row, `browse` reads only its size. `is_weighed` sees that by the size, and the page is
    weighed again.

    Args:
        rows: the messages, sorted by seq.
        most: how many bytes the page may have. The first message may have more.
        largest: how many bytes one message may have. Of a larger message only the size is read.
    """
    total = 0
    heaviest = 0
    stop: int | None = None
    for message in rows:
        if stop is not None and total >= most and message.seq >= stop:
            break
        if message.bytes <= largest:
            total += message.bytes
            heaviest = max(heaviest, message.bytes)
        stop = message.seq + 1
    return {} if stop is None else {"stop": stop, "largest": heaviest}
