"""
Spark expressions over the headers of a received message, for the functions of this package.

Each expression uses the column of headers once if possible. Spark computes equal parts of a
projection once, but not inside of a condition, where text would be parsed several times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.headers import SEPARATOR

if TYPE_CHECKING:
    from collections.abc import Iterable

# The strictest mode of Spark. With any option Spark parses the text once for all fields of a
# struct, and without options once for each field. Spark's own limits are 20 million characters of a
# value and 1000 digits of a number. A read has neither, so here the headers would be corrupt.
LIMITS = dict.fromkeys(("maxStringLen", "maxNumLen"), str(2**31 - 1))
STRICT = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"} | LIMITS

# The full name of a type, up to the first comma outside brackets, as in wire/headers.py, but
# without backslashes. The quantifiers are possessive: a megabyte takes one pass and no stack.
FULL_NAME = r"(?s)\A\s*+([^,\[\]\\\x00-\x1f\x7f]++(?:\[.*\][^,\[\]]*+)?)(?:,.*)?\z"

# Keeps the parts of a valid time, and nothing of any other text.
WIRE_TIME = (
    r"(?s)\A(?:((?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}):([0-9]{6}) Z|.*)\z"
)

# The headers that the functions read. Each function reads all of them, so that the expressions are
# equal and Spark parses a text once for all functions in one select.
EXCEPTION_TYPE = f"{wire.EXCEPTION_INFO}ExceptionType"
EXCEPTION_MESSAGE = f"{wire.EXCEPTION_INFO}Message"
READ = (
    wire.ENCLOSED_MESSAGE_TYPES,
    wire.CONVERSATION_ID,
    wire.RELATED_TO,
    wire.TIME_SENT,
    wire.DELIVER_AT,
    wire.PROCESSING_STARTED,
    wire.PROCESSING_ENDED,
    wire.PROCESSING_ENDPOINT,
    wire.FAILED_Q,
    wire.TIME_OF_FAILURE,
    EXCEPTION_TYPE,
    EXCEPTION_MESSAGE,
)


def column(given: Column | str) -> Column:
    """The column, or the column of this name."""
    return F.col(given) if isinstance(given, str) else given


def literal(value: Column | object) -> Column:
    """The column, or a constant."""
    return value if isinstance(value, Column) else F.lit(value)


def queue_of(to: Column | str | None) -> list[Column]:
    """The column `queue` of a destination, if there is one."""
    return [] if to is None else [literal(to).alias("queue")]


def of(received: str | None, name: str) -> Column:
    """One column of the received message."""
    return F.col(name if received is None else f"{received}.{name}")


def values(headers: Column | str, names: Iterable[str], *, json: bool) -> dict[str, Column]:
    """Several headers; a text is parsed once for all of them."""
    whole, names = column(headers), tuple(names)
    if not json:
        return {name: F.try_element_at(whole, F.lit(name)) for name in names}
    fields = READ if set(names) <= set(READ) else names
    # a struct, because in a map of from_json the first of two equal names is found
    kind = StructType([StructField(name, StringType()) for name in fields])
    # this field would get the whole text if it is corrupt: no header may have its name
    corrupt = {"columnNameOfCorruptRecord": "_" * (1 + max(map(len, fields)))}
    parsed = F.from_json(whole, kind, STRICT | corrupt)
    return {name: parsed.getField(name) for name in names}


def present_values(headers: Column | str, names: Iterable[str], *, json: bool) -> dict[str, Column]:
    """Several headers; an empty one is null, because the transports treat it as missing."""
    found = values(headers, names, json=json)
    return {name: F.nullif(value, F.lit("")) for name, value in found.items()}


def as_map(headers: Column, *, json: bool) -> Column:
    """All headers; null if they are corrupt. A name may be there twice, as in the text."""
    if not json:
        return headers
    text = F.coalesce(F.nullif(headers, F.lit("")), F.lit("{}"))
    return F.from_json(text, "map<string,string>", STRICT)


def full_name(text: Column) -> Column:
    """The full name of a type; null if it is invalid."""
    found = F.regexp_extract_all(text, F.lit(FULL_NAME), F.lit(1))
    return F.trim(F.get(found, 0))


def full_names(text: Column) -> Column:
    """The full names in an EnclosedMessageTypes header; invalid names are left out."""
    return F.filter(F.transform(F.split(text, SEPARATOR), full_name), lambda name: name.isNotNull())


def wire_time(text: Column) -> Column:
    """A time as the headers have it; null for any other text."""
    # without a pattern, which depends on spark.sql.legacy.timeParserPolicy and may raise
    return F.regexp_replace(text, WIRE_TIME, "$1.$2Z").try_cast(TimestampType())


def wire_text(moment: Column) -> Column:
    """A time as the headers have it, in every time zone of the session."""
    # without a pattern, which depends on spark.sql.legacy.timeParserPolicy
    second = F.unix_seconds(moment)
    micros = F.unix_micros(moment) - second * F.lit(1_000_000)
    day = F.floor(second / F.lit(86_400))
    rest = (second - day * F.lit(86_400)).cast("int")
    parts = (rest / 3600, rest / 60 % 60, rest % 60, micros)
    return F.format_string(
        "%s %02d:%02d:%02d:%06d Z",
        F.date_from_unix_date(day.cast("int")).cast("string"),
        *(F.floor(part).cast("int") for part in parts),
    )


def seconds(first: Column, last: Column) -> Column:
    """Seconds between two times, because few formats can store an interval."""
    return (F.unix_micros(last) - F.unix_micros(first)) / F.lit(1e6)


def begins_as_fault(name: Column) -> Column:
    """Whether a failure added this header."""
    first, *others = (name.startswith(prefix) for prefix in wire.FAULT_PREFIXES)
    for other in others:
        first |= other
    return first


def message_columns(headers: Column, received: str | None) -> list[Column]:
    """The received message with these headers, as text; null headers raise an error."""
    row = of(received, "id")
    corrupt = F.concat(
        F.lit("message "),
        row,
        F.lit(
            " cannot be sent on: its headers are corrupt; leave out rows whose headers are null, "
            "or give the read the option errorQueue"
        ),
    )
    return [
        F.coalesce(of(received, "body"), F.lit(b"")).alias("body"),
        F.coalesce(headers, F.raise_error(corrupt)).alias("headers"),
        row.alias("id"),
    ]
