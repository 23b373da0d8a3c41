"""
Writes micro-batches into tables, exactly once, and what does not fit them into the error queue.

The table recognises a repeated write by a name and a number, and the sink of this package by its
dispatch log. So a job that is killed between these writes repeats the batch, and each of them
is done once. The names of the writes contain the rules that share a batch among them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark import checkpoints
from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.database.trust import PATIENCE, Destinations
from sqlq_spark.errors import SqlQueueError
from sqlq_spark.functions import acknowledge_retries, is_retried
from sqlq_spark.jobs import bodies
from sqlq_spark.jobs.streams import is_path
from sqlq_spark.send.insert import Inserts
from sqlq_spark.send.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from sqlq_spark.jobs.queue_to_delta import Settings
    from sqlq_spark.options import SinkOptions

log = logging.getLogger("sqlq_spark")

LONGEST_TYPE = 1000  # characters; a longer type gets no table of its own
OTHER = "other"
STEM = 60  # the last characters of a type's name that its table's name contains
ANSWER = "acknowledgement"  # a column of the stream, beside the columns to write
MOST_QUEUES = 8  # of the answers of a batch; others would be checked one by one
LONGEST = 1000  # characters of an answer's headers, and of its address
# properties of a snapshot of Iceberg; Spark makes options lower case
APPLICATION, BATCH = "sqlqueue.application", "sqlqueue.batch"


class Appender:
    """
    Writes a micro-batch into the table or tables, then failures, then acknowledges.

    Without schemas the name of the write is that of Delta's own sink, so a checkpoint can be used
    with both. With Spark Connect the object is pickled, and runs in a process of the server.
    """

    def __init__(self, settings: Settings, schemas: Sequence[bodies.Schema] = ()) -> None:
        """Begin; `query` is the stream's id, which is read from the checkpoint later."""
        self.settings = settings
        self.schemas = schemas
        self.query = ""
        self.unacknowledged = 0  # retries; with Spark Connect only the server's copy counts them

    def write(self, batch: DataFrame, number: int) -> None:
        """Write a batch. A replay has the same rows, and writes them to the same tables."""
        settings = self.settings
        if not self.query:  # the id is the same for the life of its checkpoint
            file = f"{settings.checkpoint.rstrip('/')}/metadata"
            self.query = str(json.loads(checkpoints.text(batch.sparkSession, file))["id"])
        with persist(batch) as frame:
            good = frame.where(F.col(bodies.UNFIT).isNull()) if self.schemas else frame
            if settings.split:
                self.share(good, number)
            else:
                name = self.application("table") if self.schemas else self.query
                schema = next(iter(self.schemas), None)  # of all messages
                self.append(good, settings.table, name, number, schema)
            failed = bodies.failures(frame, self.schemas, json=settings.form != "map")
            if failed is not None:
                options = settings.failures(self.application("failed"), number)
                failed.write.format("sqlqueue").mode("append").options(**options).save()
            if settings.acknowledge_retries:
                self.unacknowledged += acknowledge(good, settings.answers())

    def share(self, frame: DataFrame, number: int) -> None:
        """Write the rows of a batch into the tables of their types; all others into `other`."""
        named, most = self.settings.named, self.settings.most_types
        found = (
            frame.where(F.length("messageType") <= LONGEST_TYPE)
            .groupBy("messageType")
            .count()
            .orderBy(F.col("messageType").isin(list(named)).desc(), F.desc("count"), "messageType")
            .limit(most + len(named))
            .collect()
        )
        tables = routes(((row[0], row[1]) for row in found), named, most=most)
        for name, types in tables.items():
            self.append_share(frame.where(F.col("messageType").isin(types)), name, number)
        chosen = [each for types in tables.values() for each in types]
        rest = frame.where(~F.coalesce(F.col("messageType").isin(chosen), F.lit(False)))  # noqa: FBT003
        if not rest.isEmpty():
            self.append_share(rest, OTHER, number)

    def append_share(self, rows: DataFrame, name: str, number: int) -> None:
        """Write the rows of one table, unless it has this write; its types have one schema."""
        named = self.settings.named
        mine = (each for each in self.schemas if name in {named[one] for one in each.types})
        table = place(self.settings.table, name)
        self.append(rows, table, self.application(name), number, next(mine, None))

    def append(
        self,
        rows: DataFrame,
        table: str,
        application: str,
        number: int,
        schema: bodies.Schema | None,
    ) -> None:
        """Append rows to a table, unless it has this write."""
        write = Write(
            table=table,
            partitions=self.settings.partitions,
            application=application,
            number=number,
        )
        append = append_iceberg if self.settings.format == "iceberg" else append_delta
        append(self.columns(rows, schema), write)

    def columns(self, rows: DataFrame, schema: bodies.Schema | None) -> DataFrame:
        """The columns of a table: those of a message, and those of its body."""
        own = {ANSWER, bodies.UNFIT, *(each.name for each in self.schemas)}
        if self.settings.form == "body":
            own.add("headers")  # which only failures need
        kept = [each for each in rows.columns if each not in own]
        return rows.select(*kept, *(schema.into_columns() if schema else []))

    def application(self, name: str) -> str:
        settings = self.settings
        return application(
            self.query,
            name,
            settings.named,
            most=settings.most_types,
            form=settings.form,
            schemas=settings.ddl,
        )


@contextmanager
def persist(batch: DataFrame) -> Iterator[DataFrame]:
    """Keep a batch in memory. If that is not allowed, as on serverless, each use reads it again."""
    try:
        batch = batch.persist()
        persisted = True
    except PySparkException as error:
        log.info("a micro-batch cannot be persisted and is read for each table: %s", error)
        persisted = False
    try:
        yield batch
    finally:
        if persisted:
            batch.unpersist()


# ---------------------------------------------------------------- the table of each message type


def table_name(message_type: str) -> str:
    """
    A table's name for a type: `shop_orderplaced_5f1c0a9e` of `Shop.OrderPlaced`.

    The name of a type is untrusted. The digest of it separates `Shop.Placed`, `shop.placed` and
    `Shop_Placed`, even if table names are not case-sensitive.

    Returns:
        At most 69 letters, digits and underscores; always the same, and never `other`.
    """
    stem = re.sub(r"[^a-z0-9]+", "_", message_type.lower()).strip("_")[-STEM:].strip("_")
    digest = hashlib.sha256(message_type.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{stem}_{digest}" if stem else digest


def place(table: str, name: str) -> str:
    """The table of a type: a folder below the path `table`, or a name that begins with `table`."""
    return f"{table.rstrip('/')}/{name}" if is_path(table) else f"{table}_{name}"


def routes(
    found: Iterable[tuple[str | None, int]], named: Mapping[str, str], *, most: int
) -> dict[str, list[str]]:
    """
    Share the types of a batch among tables.

    Args:
        found: type and number of messages of a batch, in any order.
        named: full type name → table name, from the settings.
        most: how many other types get a table, >= 0. The most frequent are chosen, and by name if
            they are equal, so that a replay of the batch has the same result.

    Returns:
        Table name → its types. Types that are not in it go to `other`.
    """
    types = sorted((-messages, each) for each, messages in found if each is not None)
    chosen = [each for _, each in types if each not in named][:most]
    tables: dict[str, list[str]] = {}
    for each in sorted([*chosen, *(each for _, each in types if each in named)]):
        tables.setdefault(named.get(each) or table_name(each), []).append(each)
    tables.pop(OTHER, None)
    return tables


def application(
    query: str,
    name: str,
    named: Mapping[str, str],
    *,
    most: int,
    form: str,
    schemas: Mapping[str, str] | None = None,
) -> str:
    """
    The txnAppId by which Delta recognises a write: the query, the table, and the rules of sharing.

    It contains the rules, because they may change between a kill and the replay of a batch. Then
    messages may be repeated in another table, but none is lost. `form` is one of the rules: with
    headers as text, poison messages can have a type too. So are the schemas, by which a body is
    written or fails.
    """
    typed = [sorted(schemas.items())] if schemas else []
    rules = json.dumps([sorted(named.items()), most, form, *typed]).encode()
    return f"{query}:{name}:{hashlib.sha256(rules).hexdigest()[:16]}"


# ---------------------------------------------------------------- Delta and Iceberg


@dataclass(frozen=True, kw_only=True)
class Write:
    """A write of one micro-batch into one table."""

    table: str  # a name, or for Delta a path with a slash in it
    partitions: Sequence[str] = ()  # columns of a new table
    application: str
    number: int


def append_delta(rows: DataFrame, write: Write) -> None:
    """Append rows to a Delta table, which is created if it is missing, unless it has this write."""
    writer = (
        rows.write.format("delta")
        .mode("append")
        .partitionBy(*write.partitions)
        .option("mergeSchema", "true")
        .option("txnAppId", write.application)
        .option("txnVersion", str(write.number))
    )
    if is_path(write.table):
        writer.save(write.table)
    else:
        writer.saveAsTable(write.table)


def append_iceberg(rows: DataFrame, write: Write) -> None:
    """
    Append rows to an Iceberg table, which is created if it is missing, unless it has this write.

    Iceberg has no check of names and numbers for a batch write. So they are written into the
    properties of the snapshot, and are looked up before the next write, as by Iceberg's own
    streaming sink. The look finds the write as long as its snapshot is in the table's history, and
    two drivers may both look before one writes.
    """
    spark, table = rows.sparkSession, write.table
    if not spark.catalog.tableExists(table):
        # an empty table that takes new columns
        creator = rows.limit(0).writeTo(table).using("iceberg")
        creator = creator.tableProperty("write.spark.accept-any-schema", "true")
        columns = [F.col(each) for each in write.partitions]
        (creator.partitionedBy(*columns) if columns else creator).create()
    spark.sql(f"REFRESH TABLE {table}")  # another session's cache may be older
    last = spark.sql(
        f"SELECT max(CAST(s.summary['{BATCH}'] AS BIGINT)) FROM {table}.snapshots AS s "  # noqa: S608 - the table is the operator's
        f"JOIN {table}.history AS h ON h.snapshot_id = s.snapshot_id "
        f"WHERE h.is_current_ancestor AND s.summary['{APPLICATION}'] = :application",
        args={"application": write.application},
    ).collect()[0][0]
    if last is not None and last >= write.number:
        return
    (
        rows.writeTo(table)
        .option("merge-schema", "true")
        .option("check-ordering", "false")
        .option(f"snapshot-property.{APPLICATION}", write.application)
        .option(f"snapshot-property.{BATCH}", str(write.number))
        .append()
    )


# ---------------------------------------------------------------- answers to ServiceControl


def answer(*, json: bool) -> Column:
    """The answer to a message that ServiceControl returned, with its queue; null if none is due."""
    made = F.struct(*acknowledge_retries(json=json), F.col("queue").alias("source"))
    return F.when(is_retried(json=json), made).alias(ANSWER)


def acknowledge(processed: DataFrame, options: SinkOptions) -> int:
    """
    Report to ServiceControl the messages that it returned, after their batch was written.

    The addresses come from messages. So an answer goes only where a message may be forwarded: to
    tables of the owner of the queue that the message came from, or to those in allowedDestinations.
    An answer that cannot be sent is logged and left out. It fails no batch. A repeated answer has
    no effect.

    Args:
        processed: with the column of `answer`.
        options: of a sink in the database of the queues.

    Returns:
        How many could not be sent.
    """
    asked = processed.where(F.col(ANSWER).isNotNull()).select(f"{ANSWER}.*")
    short = (F.length("headers") <= LONGEST) & (F.length("queue") <= LONGEST)
    answers = asked.where(short).toArrow().combine_chunks()
    pairs = zip(answers["source"].to_pylist(), answers["queue"].to_pylist(), strict=True)
    chosen = Counter(pairs).most_common(MOST_QUEUES)
    left: int = answers.num_rows - sum(send_to(*pair, answers, options) for pair, _ in chosen)
    if left:
        log.warning("%d of %d retries were not acknowledged", left, len(answers))
    return left


def send_to(source: str, queue: str, answers: pa.Table, options: SinkOptions) -> int:
    """
    Send the answers to messages of one queue to one queue; 0 if that is impossible.

    They are inserted in one transaction, which waits only for a short time.
    """
    both = pc.and_(pc.equal(answers["source"], source), pc.equal(answers["queue"], queue))
    mine = answers.filter(both).select(["body", "headers", "queue"]).combine_chunks()
    try:
        sender = Sender(options=options, partition=0)
        messages = [sender.messages(each, 0) for each in mine.to_batches()]
        with Session(options, "acknowledge") as session:
            connection = session.open()
            with transaction(connection, timeout=min(PATIENCE, options.query_timeout)):
                trusted = Destinations(
                    connection,
                    options.allowed,
                    source=connection.names.parse_address(source),
                    by_header=True,
                )
                inserts = Inserts(connection, options, trusted)
                inserts.insert(pa.concat_tables(messages))
                inserts.destinations.confirm()
    except SqlQueueError as error:
        log.warning("%s: retries cannot be acknowledged in %.200r: %s", source, queue, error)
        return 0
    return len(mine)
