"""
Columns of messages that failed, that are tried again later, and of acknowledged retries.

The headers are those that an endpoint writes. Source: rows of real endpoints.
Times are `current_timestamp()`: in a stream the time of the batch, which a replay repeats.
"""

from __future__ import annotations

import hashlib
import socket
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark.errors import BadFrame
from sqlq_spark.functions.expressions import (
    EXCEPTION_MESSAGE,
    EXCEPTION_TYPE,
    as_map,
    literal,
    message_columns,
    of,
    present_values,
    queue_of,
    wire_text,
)
from sqlq_spark.wire import headers as wire

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql import Column

LONGEST_MESSAGE = 16_384  # characters of an exception's message, as endpoints cut it
SOURCE = f"{wire.EXCEPTION_INFO}Source"
STACK_TRACE = f"{wire.EXCEPTION_INFO}StackTrace"
RETRIES_AT = f"{wire.RETRIES}.Timestamp"
HOST_ID = "$.diagnostics.hostid"
HOST_NAME = "$.diagnostics.hostdisplayname"

# of messages that ServiceControl returned, and of the answer to it
RETRY_ID = "ServiceControl.Retry.UniqueMessageId"
RETRY_QUEUE = "ServiceControl.Retry.AcknowledgementQueue"
RETRY_DONE = "ServiceControl.Retry.Successful"

# a failure replaces these headers, and all that begin with EXCEPTION_INFO
REPLACED = (
    wire.FAILED_Q,
    wire.TIME_OF_FAILURE,
    wire.RETRIES,
    wire.FL_RETRIES,
    wire.PROCESSING_ENDPOINT,
    wire.PROCESSING_MACHINE,
    HOST_ID,
    HOST_NAME,
)

# the table of `"schema"."table"`; the quantifiers are possessive
POSTGRESQL_TABLE = r'(?s)\A"(?:[^"]|"")*+"\."((?:[^"]|"")*+)"\z'


def fail(
    exception_type: Column | str,
    exception_message: Column | str,
    to: Column | str | None = None,
    *,
    stack_trace: Column | str | None = None,
    source: Column | str | None = None,
    endpoint: Column | str | None = None,
    received: str | None = None,
    json: bool = False,
) -> list[Column]:
    """
    Send the received messages to an error queue, as an endpoint does whose handler raised an error.

    Body, headers and message id are unchanged. The headers of the failure are added: FailedQ,
    ExceptionInfo, TimeOfFailure, and which endpoint on which machine failed. Those of an earlier
    failure are replaced. Corrupt headers raise an error as in `forward`.

    Args:
        exception_type: for example `Shop.BadOrder`; a Column for different types in each row.
        exception_message: the reason, cut at 16,384 characters; as above.
        to: the error queue's address, or a Column of them; None: the sink's option `queue`.
        stack_trace: as above; None or null: left out.
        source: as above; None or null: left out.
        endpoint: the ProcessingEndpoint; None: the name of the queue's table, which is the name of
            the queue's endpoint.
        received: as for `reply`; it has `body` and `queue` too.
        json: whether the received headers are text.

    Returns:
        `body`, `headers`, `id` and, if `to` is set, `queue`.
    """
    added = _failure(exception_type, exception_message, stack_trace, source, endpoint, received)
    headers = _with_headers(of(received, "headers"), REPLACED, added, json=json)
    return [*message_columns(headers, received), *queue_of(to)]


def retry_later(
    delay: Column | str | int | timedelta,
    exception_type: Column | str,
    exception_message: Column | str,
    to: Column | str | None = None,
    *,
    most: int = 3,
    stack_trace: Column | str | None = None,
    source: Column | str | None = None,
    endpoint: Column | str | None = None,
    received: str | None = None,
    json: bool = False,
) -> list[Column]:
    """
    Send the received messages back to their queue after a delay; fail them after `most` retries.

    This is the delayed retry of an endpoint. The header NServiceBus.Retries counts the retries. A
    message whose header is not a number of at least 0 fails.

    Args:
        delay: `hh:mm:ss`, milliseconds or a timedelta; a Column of one of these for different
            delays.
        exception_type: of the failure; as for `fail`.
        exception_message: as for `fail`.
        to: the error queue of messages that fail, as for `fail`. The sink's option `queue` cannot
            name it, because it would override the queue to which the others come back.
        most: the number of retries; with 0 all messages fail.
        stack_trace: as for `fail`.
        source: as for `fail`.
        endpoint: as for `fail`.
        received: as for `fail`.
        json: as for `fail`.

    Returns:
        `body`, `headers`, `id`, `queue`, `delay`. For messages that fail `delay` is null, and
        `queue` is `to`.

    Raises:
        BadFrame: `most` is negative.
        ValueError: `delay` is text that cannot be read.
    """
    if most < 0:
        raise BadFrame(done="sent", reason=f"most is {most}: expected a whole number of at least 0")
    if isinstance(delay, str):
        wire.parse_span(delay, longest=wire.LONGEST_DELAY, what="delay")
    headers = of(received, "headers")
    found = present_values(headers, (wire.RETRIES, RETRIES_AT), json=json)
    done = F.coalesce(found[wire.RETRIES], F.lit("0")).try_cast("int")
    again = F.coalesce((done >= 0) & (done < most), F.lit(False))  # noqa: FBT003
    failure = _failure(exception_type, exception_message, stack_trace, source, endpoint, received)
    added = {
        wire.RETRIES: F.when(again, (done + 1).cast("string")),
        RETRIES_AT: F.when(again, wire_text(F.current_timestamp())).otherwise(found[RETRIES_AT]),
        **{name: F.when(~again, value) for name, value in failure.items()},
    }
    errors = F.lit(None).cast("string") if to is None else literal(to)
    return [
        *message_columns(
            _with_headers(headers, (*REPLACED, RETRIES_AT), added, json=json), received
        ),
        F.when(again, of(received, "queue")).otherwise(errors).alias("queue"),
        F.when(again, literal(delay)).alias("delay"),
    ]


def is_retried(headers: Column | str = "headers", *, json: bool = False) -> Column:
    """Whether ServiceControl returned this message and waits for an acknowledgement; never null."""
    found = present_values(headers, (RETRY_ID, RETRY_QUEUE), json=json)
    return found[RETRY_ID].isNotNull() & found[RETRY_QUEUE].isNotNull()


def acknowledge_retries(*, received: str | None = None, json: bool = False) -> list[Column]:
    """
    Report to ServiceControl that messages that it returned were processed, as endpoints do.

    Select the messages by `is_retried`; another message raises an error:
    `received.where(is_retried()).select(*acknowledge_retries())`. The address is untrusted. A
    repeated acknowledgement has no effect.

    Args:
        received: as for `reply`.
        json: whether the received headers are text.

    Returns:
        `body` (empty), `headers`, `queue`.
    """
    found = present_values(of(received, "headers"), (RETRY_ID, RETRY_QUEUE), json=json)
    other = F.concat(
        F.lit("message "),
        of(received, "id"),
        F.lit(" was not returned by ServiceControl: select messages by where(is_retried())"),
    )
    made = {
        RETRY_DONE: wire_text(F.current_timestamp()),
        RETRY_ID: F.coalesce(
            F.when(found[RETRY_QUEUE].isNotNull(), found[RETRY_ID]), F.raise_error(other)
        ),
        wire.CONTROL_MESSAGE: F.lit("True"),
    }
    return [
        F.lit(b"").alias("body"),
        F.to_json(_struct(made)).alias("headers"),
        found[RETRY_QUEUE].alias("queue"),
    ]


# ---------------------------------------------------------------- headers


def _failure(  # noqa: PLR0917 - what fail and retry_later take
    exception_type: Column | str,
    exception_message: Column | str,
    stack_trace: Column | str | None,
    source: Column | str | None,
    endpoint: Column | str | None,
    received: str | None,
) -> dict[str, Column]:
    """The headers of a failure; null is left out."""
    queue, machine = of(received, "queue"), socket.gethostname()
    given = {
        EXCEPTION_TYPE: exception_type,
        EXCEPTION_MESSAGE: F.substring(
            literal(exception_message).cast("string"), 1, LONGEST_MESSAGE
        ),
        SOURCE: source,
        STACK_TRACE: stack_trace,
    }
    return {
        wire.PROCESSING_ENDPOINT: _table(queue) if endpoint is None else _text(endpoint),
        wire.PROCESSING_MACHINE: F.lit(machine),
        HOST_ID: F.lit(hashlib.md5(machine.encode(), usedforsecurity=False).hexdigest()),
        HOST_NAME: F.lit(machine),
        wire.FAILED_Q: queue,
        **{name: _text(value) for name, value in given.items() if value is not None},
        wire.TIME_OF_FAILURE: wire_text(F.current_timestamp()),
    }


def _text(value: Column | str) -> Column:
    return literal(value).cast("string")


def _table(queue: Column) -> Column:
    """The table of a canonical address."""
    quoted = F.replace(F.regexp_extract(queue, POSTGRESQL_TABLE, 1), F.lit('""'), F.lit('"'))
    return F.coalesce(F.nullif(quoted, F.lit("")), F.substring_index(queue, "@[", 1))


def _with_headers(
    headers: Column, replaced: tuple[str, ...], added: dict[str, Column], *, json: bool
) -> Column:
    """The received headers, without some, and with others at their end; null if corrupt."""
    kept = F.to_json(
        F.map_filter(
            as_map(headers, json=json),
            lambda name, _: ~name.isin(*replaced) & ~name.startswith(wire.EXCEPTION_INFO),
        )
    )
    new = F.to_json(_struct(added), {"ignoreNullFields": "true"})
    # not map_concat, which raises an error if the sender wrote a name twice
    insides = F.concat_ws(",", F.nullif(_inside(kept), F.lit("")), _inside(new))
    return F.concat(F.lit("{"), insides, F.right(kept, F.lit(1)))  # null if `kept` is


def _inside(text: Column) -> Column:
    """A JSON object without its braces."""
    return F.substring(text, F.lit(2), F.length(text) - F.lit(2))


def _struct(made: dict[str, Column]) -> Column:
    return F.struct(*(value.alias(name) for name, value in made.items()))
