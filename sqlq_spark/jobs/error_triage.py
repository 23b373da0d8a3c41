"""
Collect an error queue in a Delta table of failures and one of groups; return failures.

    spark-submit jobs/error_triage.py --settings conf/error_triage.toml
    sqlqueue-error-triage --settings conf/error_triage.toml
    spark-submit jobs/error_triage.py --settings conf/error_triage.toml --mode retry --groups DIGEST

`collect` receives the error queue into the table, exactly once, with complete headers and bodies.
It then writes the table of groups again. A group has failures of one exception and one stack.

`retry` returns the failures of some groups or ids to the queues in which they failed, each exactly
once:

    open     the request's id is entered into the dispatch log
    choose   the id is written into the rows to return, in one commit of the table; no other
             request can choose these rows
    send     the rows are sent in one transaction, which enters this into the dispatch log
    mark     the rows are marked as returned, in one commit of the table

A kill before `choose` has no effect. After it the request is pending, and the next `retry` finishes
it: it sends the rows, unless the dispatch log says that they were sent, and marks them. It reports
a request that this dispatch log does not have: it belongs to another database or stateSchema.

Failures that cannot be returned, and ids or groups that are not in the table, are reported, and the
exit code is 1. If a request's queue no longer exists, use `--give-up`. Its rows can then be chosen
again.
"""

from __future__ import annotations

import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from sqlq_spark.admin import return_to_source
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.jobs import runner
from sqlq_spark.jobs.settings import (
    BadSettings,
    OneDatabaseSettings,
    Opened,
    StreamSettings,
    days,
    pairs,
    setting,
    texts,
)
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.fields import count, one_of
from sqlq_spark.send import dispatch
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire import returning
from sqlq_spark.wire.address import LONGEST_ADDRESS
from sqlq_spark.wire.header_columns import parse_headers

with suppress(ImportError):  # the runner says what to install
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

    from sqlq_spark import functions
    from sqlq_spark.jobs import streams, table_writer
    from sqlq_spark.jobs.streams import commit, has_table, quote_table, read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

# A frame of a stack, for example `   at Shop.Sales.Handle(Order order) in C:\Shop.cs:line 42`, up
# to the closing parenthesis. Each character of a text must be read only a constant number of times.
# So the quantifiers are possessive, no part of a frame contains an end of a line, and because of
# (?d) only \n ends a line. With Java's own ends of lines, a text of 80,000 times U+2028 took 48 s.
ENDS = r"\r\n\x0b\f\u0085\u2028\u2029"
FRAME = rf"(?md)^[ \t]++[^\s({ENDS}]++[ \t]++([^\s({ENDS}][^({ENDS}]*+\([^){ENDS}]*+\))"
GUID = r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
NUMBERED = r"(?<=__|DisplayClass)[0-9]++(?:_[0-9]++)*+"  # as in <Handle>d__5, DisplayClass3_0
ADDRESS = r"0x[0-9a-fA-F]++"
QUOTED = r"\"[^\"]*+\"|'[^']*+'"
NUMBER = r"[0-9]++"
# How many characters of a stack trace or a message are searched for patterns, from its beginning.
LONGEST_TEXT = 64 << 10

# The time when a message failed or, if it lacks this header, the time when it was received.
SEEN = "coalesce(timeOfFailure, receivedAt)"
MOST_QUEUES = return_to_source.MOST_SOURCES  # to how many queues a run returns messages
# The name of a column in earlier versions. A table that has it keeps it.
FORMER = {"receivedAt": "collected"}
IS_POISON = f"exceptionType <=> '{wire.POISON_TYPE}'"
COLUMNS = (
    "id AS failureId",
    "coalesce(ownId, id) AS messageId",
    "digest",
    "exceptionType",
    "exceptionMessage",
    "if(readable, failedQueue, NULL) AS failedQueue",
    "timeOfFailure",
    "messageTypes",
    "headers",
    "body",
    "queue AS errorQueue",
    "seq",
    "now() AS receivedAt",
    "CAST(NULL AS STRING) AS request",
    "CAST(NULL AS TIMESTAMP_LTZ) AS returned",
)
GROUPS = (
    "count(*) AS failures",
    "count(returned) AS returned",
    f"min({SEEN}) AS firstSeen",
    f"max({SEEN}) AS lastSeen",
    "min(exceptionType) AS exceptionType",
    f"max_by(exceptionMessage, {SEEN}) AS sampleMessage",
    "array_sort(collect_set(failedQueue)) AS failedQueues",
    "array_sort(array_distinct(flatten(collect_set(messageTypes)))) AS messageTypes",
)


@dataclass(frozen=True, kw_only=True)
class TriageSettings(OneDatabaseSettings, StreamSettings):
    """The settings of this job."""

    queue: str = setting("The error queue to read.", former="error_queue")
    table: str = setting("The Delta table of failures: a name, or a path with a slash in it.")
    mode: str = setting("collect or retry.", one_of("collect", "retry"), default="collect")
    groups: tuple[str, ...] = setting(
        "With mode retry: digests of groups, separated by commas.", texts, default=()
    )
    ids: tuple[str, ...] = setting(
        "With mode retry: ids of messages or failures, separated by commas.", texts, default=()
    )
    give_up: tuple[str, ...] = setting(
        "With mode retry: requests to give up, by the ids that the job reported. Failures that "
        "were not sent can be chosen again.",
        texts,
        default=(),
    )
    limit: int | None = setting(
        "With mode retry: return only so many of the chosen failures, the oldest. Those of a retry "
        "that was killed count.",
        count,
        default=None,
    )
    retention_days: float | None = setting(
        "Delete failures that were returned more than so many days ago. Others are never deleted.",
        days,
        default=None,
    )
    checkpoint: str | None = setting(  # type: ignore[assignment]  # mode retry needs none
        "With mode collect: the folder of the stream's checkpoint.", default=None
    )
    allowed_destinations: str | None = setting(
        "Tables of other owners to which messages may be returned, separated by commas.",
        default=None,
    )
    source: dict[str, str] = setting("Options of the data source.", pairs)
    sink: dict[str, str] = setting("Options of the sink.", pairs)

    def read(self) -> dict[str, str]:
        """
        Return options of the read.

        Headers may be as long as a whole message. Streams move messages with long headers into the
        error queue, and such a message must not stop this job, which has no error queue of its own.
        A limit on headers is not needed, because this job parses no headers in a transaction.
        """
        given = {name.lower(): text for name, text in self.source.items()}
        return self.raw_options(
            "source",
            self,
            queue=self.queue,
            headersFormat="json",
            maxHeaderBytes=given.get("maxmessagebytes", str(SourceOptions.max_message_bytes)),
            allowedDestinations=self.allowed_destinations,
        )

    def write(self, request: str) -> dict[str, str]:
        """
        Return options of the sink.

        The id `request` names the write, so that the request is sent only once.
        """
        return self.raw_options(
            "sink",
            self,
            asReceived=True,
            delivery="exactlyOnce",
            transactionMode=None,
            queue=None,
            topics=None,
            txnAppId=f"triage:{request}",
            txnVersion="0",
            allowedDestinations=self.allowed_destinations,
        )

    def options(self) -> Opened:
        if self.mode == "retry":
            return [*super().options(), SinkOptions.parse(self.write("check"))]
        if self.checkpoint is None:
            raise BadSettings(reason="setting checkpoint is missing: mode collect needs a folder")
        if self.groups or self.ids or self.give_up or self.limit:
            raise BadSettings(reason="settings groups, ids, give_up and limit are for --mode retry")
        return super().options()

    def needs_table(self) -> bool:
        return self.mode == "retry"


def run(spark: SparkSession, settings: TriageSettings) -> dict[str, Any]:
    if settings.mode == "retry":
        return retry(spark, settings)
    former = streams.former_columns(spark, settings.table, FORMER)

    def columns(received: DataFrame) -> DataFrame:
        return failures(received).withColumnsRenamed(former)

    return table_writer.keep(spark, settings, columns, tidy)


def retry(spark: SparkSession, settings: TriageSettings) -> dict[str, Any]:
    """Finish the requests of earlier runs, then return the chosen failures."""
    if not has_table(spark, settings.table):
        raise BadSettings(
            reason=f"setting table is {settings.table!r}: expected a table that mode collect made"
        )
    work = Retry(spark, settings)
    work.resume()
    work.do(settings.limit)
    missing = work.missing()
    work.totals.update(tidy(spark, settings))
    found = {"staying": work.staying, "missing": missing}
    return {**work.totals, **found, "found": any(found.values())}


def read_failures(spark: SparkSession, table: str) -> DataFrame:
    """Return the rows of the table, whose columns have the names of this version."""
    former = streams.former_columns(spark, table, FORMER)
    rows = read_table(spark.read, table)
    return rows.withColumnsRenamed({old: new for new, old in former.items()})


def tidy(spark: SparkSession, settings: TriageSettings) -> dict[str, int]:
    """
    Delete old failures that were returned, and overwrite the table of groups, each in one commit.

    A failure that is not marked as returned stays in the table: it waits for a decision, or its
    request is not finished.
    """
    done: dict[str, int] = {}
    table = settings.table
    if not has_table(spark, table):
        return done
    if settings.retention_days is not None:
        seconds = round(settings.retention_days * 86_400)
        old = f"returned < now() - INTERVAL '{seconds}' SECOND"
        done["deletedFailures"] = streams.delete_rows(spark, table, old)
    groups = read_failures(spark, table).groupBy("digest").agg(*map(F.expr, GROUPS))
    writer = groups.coalesce(1).write.format("delta").mode("overwrite")
    save = writer.save if streams.is_path(table) else writer.saveAsTable
    streams.retry_conflicts(save)(f"{table.rstrip('/')}_groups")
    return done


# ---------------------------------------------------------------- rows and groups


def digest() -> Column:
    """
    Return the digest of a failure: 16 hexadecimal digits, never null.

    It is computed from the exception's type and stack trace. It leaves out what differs between
    failures or builds: line numbers, files, addresses, guids, numbers from the compiler and
    translated words. If there is no stack trace, the exception's message is used instead, without
    numbers and quoted text. Of each text only the first LONGEST_TEXT characters are read.

    The digest is made of Spark expressions. None of them raises an error, and each reads its text
    only once.
    """
    _, kind, text, _ = functions.failure(json=True)
    whole_trace = functions.header("headers", f"{wire.EXCEPTION_INFO}StackTrace", json=True)
    trace = F.substring(whole_trace, 1, LONGEST_TEXT)
    message = F.substring(text, 1, LONGEST_TEXT)
    frames = F.regexp_extract_all(trace, F.lit(FRAME), F.lit(1))
    stack = F.nullif(mask(F.array_join(frames, "\n"), GUID, ADDRESS, NUMBERED), F.lit(""))
    plain = mask(message, GUID, QUOTED, ADDRESS, NUMBER)
    whole = F.concat_ws("\n", kind, F.coalesce(stack, plain))
    return F.substring(F.sha2(whole.cast("binary"), 256), 1, 16)


def mask(text: Column, *patterns: str) -> Column:
    """Replace each part of a text that matches a pattern by #."""
    for pattern in patterns:
        text = F.regexp_replace(text, pattern, "#")
    return text


def failures(received: DataFrame) -> DataFrame:
    """
    Return the rows of the table of failures for the messages of an error queue.

    Args:
        received: the messages, read with headersFormat=json.

    Returns:
        Headers, body, and columns of the failure. `failedQueue` is null for a poison message, so
        the job cannot return the message. Spark can read some headers of poison all the same, but a
        message made of them would not be the original one. `request` and `returned` are null until
        the message is returned.
    """
    is_readable = F.udf(lambda text: parse_headers(text) is not None, "boolean", useArrow=False)
    return received.select(
        "*",
        functions.header("headers", wire.MESSAGE_ID, json=True).alias("ownId"),
        functions.message_types("headers", json=True).alias("messageTypes"),
        *functions.failure(json=True),
        digest().alias("digest"),
        is_readable("headers").alias("readable"),
    ).selectExpr(*COLUMNS)


# ---------------------------------------------------------------- return


class Retry:
    """
    Returns the failures of one table.

    `totals` counts the failures that were returned. `staying` counts, by the reason, the failures
    that were not returned.
    """

    def __init__(self, spark: SparkSession, settings: TriageSettings) -> None:
        self.spark = spark
        self.settings = settings
        self.totals = Counter(returned=0, resumed=0, freed=0)
        self.staying = Counter[str]()

    @property
    def rows(self) -> DataFrame:
        return read_failures(self.spark, self.settings.table)

    def pending(self) -> list[str]:
        open_ = self.rows.where("request IS NOT NULL AND returned IS NULL")
        return sorted(request for (request,) in open_.select("request").distinct().collect())

    def resume(self) -> None:
        """
        Finish the requests that earlier runs left pending.

        A request is a group of failures that one run chose to return. A request that cannot be
        finished is counted in `staying`. It does not stop the others.

        Raises:
            BadSettings: the setting give_up names a request that is not pending. No request was
                finished or given up.
        """
        pending = self.pending()
        if strange := sorted({*self.settings.give_up} - {*pending}):
            known = ", ".join(pending) or "none"
            raise BadSettings(
                reason=f"setting give_up names {strange[0]!r}: expected a pending request ({known})"
            )
        for request in pending:
            self.finish(request, "resumed")

    def missing(self) -> list[str]:
        """Return those of the chosen groups and ids that no failure in the table has."""
        chosen = {*self.settings.groups, *self.settings.ids}
        names = F.explode(F.array("digest", "failureId", "messageId")).alias("name")
        found = self.rows.select(names).where(among("name", chosen)).distinct().collect()
        return sorted(chosen - {name for (name,) in found})

    def stay(self, reason: str, messages: int) -> None:
        """
        Count failures that stay.

        Only MOST_REASONS reasons are kept, because reasons quote texts that senders choose.
        """
        if reason not in self.staying and len(self.staying) >= return_to_source.MOST_REASONS:
            reason = return_to_source.OTHER_GROUPS
        self.staying[reason] += messages

    def do(self, limit: int | None) -> None:
        """
        Return the chosen failures: those of some groups, or with some ids of messages or failures.

        At most `limit` failures are returned, the oldest first. The failures of resumed requests
        count too. If `limit` is None, all are returned.
        """
        left = "ALL" if limit is None else max(0, limit - self.totals["resumed"])
        groups, ids = among("digest", self.settings.groups), self.settings.ids
        chosen = f"{groups} OR {among('failureId', ids)} OR {among('messageId', ids)}"
        wanted = f"request IS NULL AND returned IS NULL AND ({chosen})"
        if poison := self.rows.where(f"{wanted} AND {IS_POISON}").count():
            self.stay(returning.POISON, poison)
        wanted += f" AND NOT ({IS_POISON})"
        there: dict[str, str] = {}
        for counted in by_queue(self.rows.where(wanted)):
            found, reasons = self.sources(counted)
            for text, messages in counted.items():
                if text not in found:
                    self.stay(reasons.get(text or "", returning.NO_SOURCE), messages)
                elif len(there) < MOST_QUEUES:
                    there[text] = found[text]
                else:
                    self.stay(return_to_source.TOO_MANY, messages)
        if there and left:
            request = str(uuid.uuid4())
            in_log(self.settings.write(request), dispatch.open_request)
            key, table = "errorQueue, seq, failureId", quote_table(self.settings.table)
            former = streams.former_columns(self.spark, self.settings.table, FORMER)
            seen = SEEN.replace("receivedAt", former.get("receivedAt", "receivedAt"))
            # The conditions are here again, because another commit since the count may have changed
            # the rows.
            merge = (
                f"MERGE INTO {table} AS t USING (SELECT DISTINCT {key} FROM (SELECT {key} "  # noqa: S608 - by `literal`
                f"FROM {table} WHERE {wanted} AND {among('failedQueue', there)} "
                f"ORDER BY {seen}, {key} LIMIT {left})) AS o "
                "ON t.errorQueue = o.errorQueue AND t.seq = o.seq AND t.failureId = o.failureId "
                "AND t.request IS NULL AND t.returned IS NULL "
                f"WHEN MATCHED THEN UPDATE SET request = {literal(request)}"
            )
            commit(self.spark, merge)
            self.finish(request, "returned")

    def finish(self, request: str, total: str) -> None:
        """
        Send the failures of a request, unless they were sent before, and mark them as returned.

        The failures stay if one of the request's queues no longer exists, or if the dispatch log
        does not have the request. If the request was given up, its failures can be chosen again.
        """
        which = f"request = {literal(request)} AND returned IS NULL"
        counted = dict(chain.from_iterable(map(dict.items, by_queue(self.rows.where(which)))))
        messages, sink, stuck = sum(counted.values()), self.settings.write(request), ""
        if not messages:
            return
        state = in_log(sink, dispatch.read_state)
        if state == dispatch.REQUEST_UNKNOWN:
            stuck = (
                "the dispatch log does not have it. It was begun in another database or "
                "stateSchema, and may have been sent there. "
                "Set the url and the [sink] with which it was begun"
            )
        elif state == dispatch.REQUEST_OPEN:
            if request in self.settings.give_up:
                in_log(sink, dispatch.give_up)
            else:
                stuck = self.send(request, self.rows.where(which), counted)
            state = in_log(sink, dispatch.read_state)
        if stuck:
            what = f"request {request} of table {self.settings.table} cannot be finished: {stuck}"
            reason = f"{what}. The next run then finishes it, and sends nothing twice."
            self.stay(reason, messages)
            return
        given_up = state == dispatch.REQUEST_GIVEN_UP
        self._update(which, "request = NULL" if given_up else "returned = now()")
        self.totals["freed" if given_up else total] += messages

    def send(self, request: str, rows: DataFrame, counted: Iterable[str | None]) -> str:
        """Send the failures of a request. Return "", or the reason why that is not possible."""
        there, reasons = self.sources(counted)
        if reasons:
            found = "; ".join(sorted(set(reasons.values()))).rstrip(".")
            return f"{found}. Create the queue, or give the request up with --give-up {request}"
        queues = F.create_map(*map(F.lit, chain(*there.items())))
        sent = rows.withColumnRenamed("failureId", "id").select(
            *functions.return_to_source(json=True)[:-1],
            queues[F.col("failedQueue")].alias("queue"),
        )
        sent.write.format("sqlqueue").options(**self.settings.write(request)).mode("append").save()
        return ""

    def sources(self, texts: Iterable[str | None]) -> tuple[dict[str, str], dict[str, str]]:
        """
        Find the canonical addresses of failed queues.

        Returns:
            Two dicts by the text in the header: the addresses of queues that can be sent to, and
            the reasons why messages cannot be sent to the other queues.
        """
        source = SourceOptions.parse(self.settings.read()).address
        # The rows of the table name the queues, so these are untrusted. The options of the write
        # decide which of them may be used.
        options = SinkOptions.parse(self.settings.write("check"))
        with Session(options, "triage") as session:
            connection = session.open()
            wanted = [text for text in texts if text]
            found = return_to_source.find_sources(connection, source, wanted)
            there, reasons = dict[str, str](), dict[str, str]()
            for text, place in found.items():
                if isinstance(place, str):
                    reasons[text] = place
                else:
                    there[text] = connection.canonical(place)
            return there, reasons

    def _update(self, which: str, change: str) -> None:
        text = f"UPDATE {quote_table(self.settings.table)} SET {change} WHERE {which}"  # noqa: S608 - by `literal`
        commit(self.spark, text)


def by_queue(failures: DataFrame) -> Iterator[dict[str | None, int]]:
    """
    Count failures by their failed queue. Yield at most MOST_QUEUES queues at a time.

    A text that is longer than any address is cut.
    """
    queue = F.substring("failedQueue", 1, LONGEST_ADDRESS + 1).alias("queue")
    rows = (
        failures.groupBy(queue).count().coalesce(1).toLocalIterator()
    )  # coalesce, because toLocalIterator runs a job for each partition
    while page := list(islice(rows, MOST_QUEUES)):
        yield dict(page)


def literal(value: str) -> str:
    """Return any text as an SQL literal, because Delta's UPDATE takes no parameters."""
    return f"decode(unhex('{value.encode().hex()}'), 'UTF-8')"


def among(column: str, values: Iterable[str]) -> str:
    """Return the condition that a column has one of the texts."""
    listed = ", ".join(map(literal, values))
    return f"{column} IN ({listed})" if listed else "false"


# ---------------------------------------------------------------- the dispatch log


def in_log(sink: Mapping[str, str], work: Callable[..., Any]) -> Any:  # noqa: ANN401 - of `work`
    """Read or change a request in the dispatch log, with the options of the write that sends it."""
    options = SinkOptions.parse(sink)
    with StateSession(options, "triage") as session:
        sink_name = f"{dispatch.NAMED_SINK}{options.txn_app_id}"
        return session.run_with_retries(partial(work, sink=sink_name))


main = runner.Job(__doc__, TriageSettings, run)  # the entry point of the wheel
