"""
Answers of a job to ServiceControl: messages that it returned were processed.

The addresses come from messages. So an answer goes only where a message may be forwarded: to tables
of the owner of the queue that the message came from, or to those in allowedDestinations. An answer
that cannot be sent is logged and left out. It fails no batch. A repeated answer has no effect.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.database.trust import PATIENCE, Destinations
from sqlq_spark.errors import SqlQueueError
from sqlq_spark.functions import acknowledge_retries, is_retried
from sqlq_spark.send.insert import Inserts
from sqlq_spark.send.sender import Sender

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SinkOptions

log = logging.getLogger("sqlq_spark")

COLUMN = "acknowledgement"  # beside the columns to write
MOST_QUEUES = 8  # of the answers of a batch; others would be checked one by one
LONGEST = 1000  # characters of an answer's headers, and of its address


def acknowledgement(*, json: bool) -> Column:
    """The answer to a message, with the queue it came from; null if none is due."""
    answer = F.struct(*acknowledge_retries(json=json), F.col("queue").alias("source"))
    return F.when(is_retried(json=json), answer).alias(COLUMN)


def acknowledge(processed: DataFrame, options: SinkOptions) -> int:
    """
    Send the answers to the messages of a batch, after the batch was written.

    Args:
        processed: with the column of `acknowledgement`.
        options: of a sink in the database of the queues.

    Returns:
        How many could not be sent.
    """
    asked = processed.where(F.col(COLUMN).isNotNull()).select(f"{COLUMN}.*")
    short = (F.length("headers") <= LONGEST) & (F.length("queue") <= LONGEST)
    answers = asked.where(short).toArrow().combine_chunks()
    if not answers.num_rows:
        return 0
    pairs = zip(answers["source"].to_pylist(), answers["queue"].to_pylist(), strict=True)
    counted = Counter(pairs)
    chosen = dict(counted.most_common(MOST_QUEUES))
    sent = sum(send_to(source, queue, answers, options) for source, queue in chosen)
    left: int = answers.num_rows - sent
    if left:
        log.warning("%d of %d retries were not acknowledged", left, len(answers))
    return left


def send_to(source: str, queue: str, answers: pa.Table, options: SinkOptions) -> int:
    """Send the answers to messages of one queue to one queue; 0 if that is impossible."""
    both = pc.and_(pc.equal(answers["source"], source), pc.equal(answers["queue"], queue))
    mine = answers.filter(both).select(["body", "headers", "queue"]).combine_chunks()
    try:
        sender = Sender(options=options, partition=0)
        messages = [sender.messages(each, 0) for each in mine.to_batches()]
        with Session(options, "acknowledge") as session:
            insert(session.open(), source, pa.concat_tables(messages), options)
    except SqlQueueError as error:
        log.warning("%s: retries cannot be acknowledged in %.200r: %s", source, queue, error)
        return 0
    return len(mine)


def insert(connection: Connection, source: str, messages: pa.Table, options: SinkOptions) -> None:
    """
    Insert answers in one transaction, which waits only for a short time.

    Raises:
        DatabaseFailure: the table is absent, locked, or not trusted.
    """
    with transaction(connection, timeout=min(PATIENCE, options.query_timeout)):
        trusted = Destinations(
            connection,
            options.allowed,
            source=connection.names.parse_address(source),
            by_header=True,
        )
        inserts = Inserts(connection, options, trusted)
        inserts.insert(messages)
        inserts.destinations.confirm()
