"""
What the column functions share: how headers are read, and how messages are made.

Each expression uses the column of headers only once if possible, because parsing the text of the
headers takes long. In a select, Spark computes equal parts of expressions once. But in a condition
it computes each of them again.
"""

from __future__ import annotations

import socket
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, TypeAlias

from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it
from pyspark.sql.types import StringType, StructField, StructType

from sqlq_spark.errors import BadFrame
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire import returning
from sqlq_spark.wire.dialects import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column

Text: TypeAlias = "Column | str"

# The strictest mode of Spark's JSON parser. If there are options, Spark parses the text once for
# all fields of a struct, and not once for each field. The limits replace Spark's own, which are 20
# million characters of a value and 1000 digits of a number. Headers above those limits are accepted
# by a read, and must not be corrupt here.
STRICT = {
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    "maxStringLen": "2147483647",
    "maxNumLen": "2147483647",
}

# The full name of a type: the text up to the first comma outside of brackets, as in
# wire/headers.py. Unlike there, a backslash outside of brackets is not allowed. The quantifiers are
# possessive, so that a text of a megabyte is read only once and takes no stack.
FULL_NAME = r"(?s)\A\s*+([^,\[\]\\\x00-\x1f\x7f]++(?:\[.*\][^,\[\]]*+)?)(?:,.*)?\z"

EXCEPTION_MESSAGE = f"{wire.EXCEPTION_INFO}Message"

# The headers of a message that ServiceControl returned. It gives each message a GUID.
RETRY_ID = "ServiceControl.Retry.UniqueMessageId"
RETRY_ID_FORM = r"(?i)\A[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\z"
RETRY_QUEUE = "ServiceControl.Retry.AcknowledgementQueue"

AUDIT_HEADERS = (
    wire.CONVERSATION_ID,
    wire.RELATED_TO,
    wire.PROCESSING_ENDPOINT,
    wire.TIME_SENT,
    wire.DELIVER_AT,
    wire.PROCESSING_STARTED,
    wire.PROCESSING_ENDED,
)
FAILURE_HEADERS = (wire.FAILED_Q, returning.EXCEPTION_TYPE, EXCEPTION_MESSAGE, wire.TIME_OF_FAILURE)
# The headers that the functions read. Each function reads all of them, so that their expressions
# are equal. Then Spark parses a text only once for all functions in one select.
READ_HEADERS = (wire.ENCLOSED_MESSAGE_TYPES, *AUDIT_HEADERS, *FAILURE_HEADERS)

# headers of the received message from which the headers of a new message are made
CAUSES = (
    wire.MESSAGE_ID,
    wire.CORRELATION_ID,
    wire.CONVERSATION_ID,
    wire.REPLY_TO_ADDRESS,
    wire.ORIGINATING_SAGA_ID,
    wire.ORIGINATING_SAGA_TYPE,
)
TRACING = (wire.TRACE_PARENT, wire.TRACE_STATE, wire.BAGGAGE)


def received_column(received: str | None, name: str) -> Column:
    """Return one column of the received message."""
    return F.col(name if received is None else f"{received}.{name}")


def values(headers: Text, *names: str, json: bool) -> list[Column]:
    """Return several headers. A text is parsed once for all of them."""
    if not json:
        return [F.try_element_at(headers, F.lit(name)) for name in names]
    fields = READ_HEADERS if {*names} <= {*READ_HEADERS} else names
    # If a name comes twice, a struct has its last value, as it must be. A map of from_json would
    # have its first.
    kind = StructType([StructField(name, StringType()) for name in fields])
    # Spark puts a corrupt text into the field with this name. It is longer than each header's name.
    corrupt = {"columnNameOfCorruptRecord": "_" * (1 + max(map(len, fields)))}
    parsed = F.from_json(headers, kind, STRICT | corrupt)
    return [parsed.getField(name) for name in names]


def present_values(received: str | None, *names: str, json: bool) -> list[Column]:
    """Return several headers. An empty one is null, because transports treat it as missing."""
    headers = received_column(received, "headers")
    return [F.nullif(value, F.lit("")) for value in values(headers, *names, json=json)]


def full_name_column(text: Column) -> Column:
    """Return the full name of a type, or null if it is invalid."""
    return F.trim(F.get(F.regexp_extract_all(text, F.lit(FULL_NAME), F.lit(1)), 0))


def full_names(text: Column) -> Column:
    """Return the full names in a header EnclosedMessageTypes, without invalid names."""
    return F.filter(F.transform(F.split(text, wire.SEPARATOR), full_name_column), F.isnotnull)


def as_json(headers: Mapping[str, object]) -> Column:
    """Return headers as JSON text. A header that is null is left out."""
    fields = (F.lit(value).alias(name) for name, value in headers.items() if value is not None)
    # A struct is faster than a map whose nulls are removed, also if the way into the sink counts.
    return F.to_json(F.struct(*fields), {"ignoreNullFields": "true"})


def wire_text(moment: Column) -> Column:
    """Return a time as headers have it. The session's time zone does not matter."""
    # No date_format, because patterns depend on spark.sql.legacy.timeParserPolicy.
    since = F.unix_micros(moment) * F.expr("INTERVAL '0.000001' SECOND")
    text = (F.expr("TIMESTAMP_NTZ '1970-01-01'") + since).cast("string")
    # The cast leaves out zeros at the end of the fraction.
    micros = F.rpad(F.substring(text, 21, 6), 6, "0")
    return F.format_string("%s:%s Z", F.substring(text, 1, 19), micros)


def sent_on(
    received: str | None,
    to: Text | None,
    *,
    json: bool,
    names: Sequence[str] = (),
    prefixes: Sequence[str] = (),
    added: Mapping[str, Column] | None = None,
) -> list[Column]:
    """
    Return the columns that send a received message on, without some of its headers.

    Headers with one of the `names`, or whose name begins with one of the `prefixes`, are left out.
    `added` are headers of a failure. They come at the end, and replace those of an earlier failure.
    """
    row = received_column(received, "id")
    headers = received_column(received, "headers")
    if added:
        names = (*added, wire.RETRIES, wire.FL_RETRIES)
        prefixes = (wire.EXCEPTION_INFO,)
    if names or prefixes:
        if json:  # the map keeps both values of a repeated name
            text = F.coalesce(F.nullif(headers, F.lit("")), F.lit("{}"))
            headers = F.from_json(text, "map<string,string>", STRICT)
        kept = F.map_filter(
            headers, lambda name, _: ~reduce(or_, map(name.startswith, prefixes), name.isin(*names))
        )
        headers = F.to_json(kept)
    else:
        headers = F.coalesce(headers, F.lit("{}")) if json else F.to_json(headers)
    if added:
        # The two JSON texts are joined as text, because map_concat raises an error if a sender
        # wrote a name twice.
        inside, more = (
            F.substring(text, 2, F.length(text) - 2) for text in (headers, as_json(added))
        )
        insides = F.concat_ws(",", F.nullif(inside, F.lit("")), more)
        # The closing brace is taken from the headers, so that the result is null if the headers are
        # null.
        headers = F.concat(F.lit("{"), insides, F.right(headers, F.lit(1)))
    corrupt = F.format_string(
        "message %s cannot be sent on: its headers are corrupt; leave out rows whose headers are "
        "null, or give the read the option errorQueue",
        row,
    )
    return [
        F.coalesce(received_column(received, "body"), F.lit(b"")).alias("body"),
        F.coalesce(headers, F.raise_error(corrupt)).alias("headers"),
        row.alias("id"),
        *queue_of(to),
    ]


def queue_of(to: Text | None) -> list[Column]:
    """Return the column `queue` with a destination, or no column if `to` is None."""
    return [] if to is None else [F.lit(to).alias("queue")]


def effect(  # noqa: PLR0917 - what reply, send and publish take
    intent: str,
    body: Text,
    to: Text | None,
    message_type: Text | None,
    content_type: str | None,
    headers: Mapping[str, Text] | None,
    received: str | None,
    json: bool,  # noqa: FBT001
) -> list[Column]:
    """
    Return the columns of a message that is sent because of a received one.

    A reply goes to the sender of the received message. Other messages go to `to`.
    """
    if isinstance(message_type, str) and (reason := wire.types_problem(message_type)):
        raise BadFrame(
            done="sent",
            reason=f"message_type is {message_type!r}, with {reason}: expected a .NET type's full "
            f"name, or several joined by {wire.SEPARATOR}, each once",
        )
    own_id, correlation, conversation, address, saga, saga_type, *trace = present_values(
        received, *CAUSES, *TRACING, json=json
    )
    message_id = F.coalesce(own_id, received_column(received, "id"))
    new_headers = {
        wire.MESSAGE_INTENT: intent,
        wire.CORRELATION_ID: F.coalesce(correlation, message_id),
        wire.CONVERSATION_ID: conversation,
        wire.RELATED_TO: message_id,
    }
    new_headers |= zip(TRACING, trace, strict=True)
    if intent == "Reply":
        to = address
        new_headers |= {wire.SAGA_ID: saga, wire.SAGA_TYPE: saga_type}
    new_headers |= {wire.ENCLOSED_MESSAGE_TYPES: message_type, wire.CONTENT_TYPE: content_type}
    new_headers |= headers or {}
    whole = F.col(body) if isinstance(body, str) else body
    return [whole.alias("body"), as_json(new_headers).alias("headers"), *queue_of(to)]


def table_of(address: Column) -> Column:
    """Return the table of a canonical address of any database. Any other text stays as it is."""
    tables = []
    for names in DIALECTS.values():
        table = F.regexp_extract(address, names.table_in_address, 1)
        if names.doubled_in_table:
            single = names.doubled_in_table[0]
            table = F.replace(table, F.lit(names.doubled_in_table), F.lit(single))
        tables.append(F.nullif(table, F.lit("")))
    return F.coalesce(*tables, address)


def new_trace(received: str | None, *, json: bool) -> dict[str, Column]:
    """Return the header StartNewTrace: True for a message with a traceparent, else as received."""
    trace, own = present_values(received, wire.TRACE_PARENT, wire.START_NEW_TRACE, json=json)
    return {wire.START_NEW_TRACE: F.when(trace.isNotNull(), F.lit("True")).otherwise(own)}


def failure_of(  # noqa: PLR0917 - what fail and retry_later take
    exception_type: Text,
    exception_message: Text,
    stack_trace: Text | None,
    source: Text | None,
    endpoint: Text | None,
    received: str | None,
) -> dict[str, Column]:
    """Return the headers of a failure, as messages of endpoints have them."""
    queue = received_column(received, "queue")
    if endpoint is None:
        endpoint = table_of(queue)
    failure = {
        wire.PROCESSING_ENDPOINT: endpoint,
        **wire.host_headers(socket.gethostname()),
        wire.FAILED_Q: queue,
        returning.EXCEPTION_TYPE: exception_type,
        # endpoints cut it at this length too
        EXCEPTION_MESSAGE: F.substring(F.lit(exception_message).cast("string"), 1, 16_384),
        f"{wire.EXCEPTION_INFO}Source": source,
        f"{wire.EXCEPTION_INFO}StackTrace": stack_trace,
        wire.TIME_OF_FAILURE: wire_text(F.current_timestamp()),
    }
    return {
        name: F.lit(value).cast("string") for name, value in failure.items() if value is not None
    }
