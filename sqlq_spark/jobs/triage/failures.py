"""
Failures in columns: what a message of an error queue says, and which failures are alike.

The digest of a failure is that of its exception's type and its stack, without what differs from one
failure to the next, or from one build to the next: line numbers and files, addresses, guids, the
numbers that a compiler gives, the words of another language. Without a stack the message stands for
it, without its numbers and what it quotes. These are Spark's own expressions; none raises, and each
takes one pass over a text of any size.

Where it failed is only told of a message that an endpoint could read: Spark reads poison too, and
what it made of that would be returned as another message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark import functions
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.rows import flat, opened

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STACK_TRACE = f"{wire.EXCEPTION_INFO}StackTrace"

# `   at Shop.Sales.Handle(Order order) in C:\Shop.cs:line 42`: what stands up to the parenthesis;
# possessive, so that a line of a megabyte takes one pass
FRAME = r"(?m)^[ \t]++[^\s(]++[ \t]++([^\s(][^(\r\n]*+\([^)\r\n]*+\))"
GUID = r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
NUMBERED = r"(?<=__|DisplayClass)[0-9]++(?:_[0-9]++)*+"  # as in <Handle>d__5, DisplayClass3_0
ADDRESS = r"0x[0-9a-fA-F]++"
QUOTED = r"\"[^\"]*+\"|'[^']*+'"
NUMBER = r"[0-9]++"
DIGITS = 16  # of a digest, in hex


def digest(headers: Column | str = "headers", *, json: bool = False) -> Column:
    """
    What failures of one kind have in common, 16 digits in hex; never null.

    Args:
        headers: of a message of an error queue.
        json: they are text.
    """
    _, kind, message, _ = functions.failure(headers, json=json)
    frames = F.regexp_extract_all(
        functions.header(headers, STACK_TRACE, json=json), F.lit(FRAME), F.lit(1)
    )
    stack = F.nullif(replaced(F.array_join(frames, "\n"), GUID, ADDRESS, NUMBERED), F.lit(""))
    said = replaced(message, GUID, QUOTED, ADDRESS, NUMBER)
    whole = F.concat_ws("\n", kind, F.coalesce(stack, said))
    return F.substring(F.sha2(whole.cast("binary"), 256), 1, DIGITS)


def replaced(text: Column, *patterns: str) -> Column:
    """A text with a mark in the place of what differs."""
    for pattern in patterns:
        text = F.regexp_replace(text, pattern, "#")
    return text


def sound(text: str | None) -> bool:
    """Whether an endpoint could read these headers."""
    found = opened(text)
    return found is not None and flat(found)


def failures(received: DataFrame) -> DataFrame:
    """
    Messages of an error queue, as rows of a table of failures.

    Args:
        received: as a read with headersFormat=json gives them.

    Returns:
        Headers and body whole, what they say of the failure, and room for a return: `request` and
        `returned` are null.
    """
    queue, kind, message, time = functions.failure("headers", json=True)
    whole = F.udf(sound, "boolean", useArrow=False)("headers")
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
    Failures that are alike, one row for each digest.

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
