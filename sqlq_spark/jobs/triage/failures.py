"""
Turns messages of an error queue into rows of failures, and groups equal failures.

The digest of a failure is computed from its exception type and stack trace. It leaves out what
differs between failures or builds: line numbers, files, addresses, guids, numbers from the compiler
and translated words. Without a stack trace the message is used, without numbers and quoted text.
These are Spark expressions. None raises an error, and each takes one pass over a text of any size.

`failedQueue` is null for poison messages. Spark can read some headers that an endpoint cannot, and
would return them as a different message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark import functions
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.header_columns import parse_headers

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STACK_TRACE = f"{wire.EXCEPTION_INFO}StackTrace"

# `   at Shop.Sales.Handle(Order order) in C:\Shop.cs:line 42`: the part up to the parenthesis.
# The quantifiers are possessive, so that a line of a megabyte takes one pass.
FRAME = r"(?m)^[ \t]++[^\s(]++[ \t]++([^\s(][^(\r\n]*+\([^)\r\n]*+\))"
GUID = r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
NUMBERED = r"(?<=__|DisplayClass)[0-9]++(?:_[0-9]++)*+"  # as in <Handle>d__5, DisplayClass3_0
ADDRESS = r"0x[0-9a-fA-F]++"
QUOTED = r"\"[^\"]*+\"|'[^']*+'"
NUMBER = r"[0-9]++"
DIGITS = 16  # of a digest, in hex


def digest(headers: Column | str = "headers", *, json: bool = False) -> Column:
    """
    The digest of a failure, 16 hexadecimal digits; never null.

    Args:
        headers: the column of headers of an error queue.
        json: whether it is text.
    """
    _, kind, message, _ = functions.failure(headers, json=json)
    frames = F.regexp_extract_all(
        functions.header(headers, STACK_TRACE, json=json), F.lit(FRAME), F.lit(1)
    )
    stack = F.nullif(mask(F.array_join(frames, "\n"), GUID, ADDRESS, NUMBERED), F.lit(""))
    plain = mask(message, GUID, QUOTED, ADDRESS, NUMBER)
    whole = F.concat_ws("\n", kind, F.coalesce(stack, plain))
    return F.substring(F.sha2(whole.cast("binary"), 256), 1, DIGITS)


def mask(text: Column, *patterns: str) -> Column:
    """Replace what matches a pattern by #."""
    for pattern in patterns:
        text = F.regexp_replace(text, pattern, "#")
    return text


def is_readable(text: str | None) -> bool:
    """Whether an endpoint can read these headers."""
    return parse_headers(text) is not None


def failures(received: DataFrame) -> DataFrame:
    """
    Messages of an error queue, as rows of a table of failures.

    Args:
        received: a read with headersFormat=json.

    Returns:
        Headers, body, and columns of the failure. `request` and `returned` are null until the
        message is returned.
    """
    queue, kind, message, time = functions.failure("headers", json=True)
    whole = F.udf(is_readable, "boolean", useArrow=False)("headers")
    own = functions.header("headers", wire.MESSAGE_ID, json=True)
    return received.select(
        F.col("id").alias("failureId"),
        F.coalesce(own, F.col("id")).alias("messageId"),
        digest("headers", json=True).alias("digest"),
        kind,
        message,
        F.when(whole, queue).alias("failedQueue"),
        time,
        functions.message_types("headers", json=True).alias("messageTypes"),
        "headers",
        "body",
        F.col("queue").alias("errorQueue"),
        "seq",
        F.current_timestamp().alias("collected"),
        F.lit(None).cast("string").alias("request"),
        F.lit(None).cast("timestamp").alias("returned"),
    )


def groups(table: DataFrame) -> DataFrame:
    """
    Group failures, one row for each digest.

    Returns:
        `digest`, `failures`, `returned` (of them), `firstSeen`, `lastSeen`, `exceptionType`,
        `sampleMessage` (the last), `failedQueues`, `messageTypes`.
    """
    seen = F.coalesce("timeOfFailure", "collected")
    types = F.explode_outer("messageTypes").alias("messageType")
    kinds = table.select("digest", types).groupBy("digest")
    rows = table.groupBy("digest").agg(
        F.count("*").alias("failures"),
        F.count("returned").alias("returned"),
        F.min(seen).alias("firstSeen"),
        F.max(seen).alias("lastSeen"),
        F.min("exceptionType").alias("exceptionType"),
        F.max_by("exceptionMessage", seen).alias("sampleMessage"),
        F.array_sort(F.collect_set("failedQueue")).alias("failedQueues"),
    )
    found = kinds.agg(F.array_sort(F.collect_set("messageType")).alias("messageTypes"))
    return rows.join(found, "digest")
