"""
A Delta table of failures: its rows, their groups, and how they return to where they failed, once.

A return has four steps:

    open     the request's id is entered into the dispatch log
    choose   the id is written into the rows to return, in one commit of the table; no other
             request can choose these rows
    send     the rows are sent in one transaction, which enters this into the dispatch log
    mark     the rows are marked as returned, in one commit of the table

A kill before `choose` has no effect. After it the request is pending, and the next run finishes it:
it sends the rows, unless the dispatch log says that they were sent, and marks them.

The dispatch log keeps the request's id, which is never used again. If it does not have a pending
request, it belongs to another database or stateSchema, and nothing is sent. If a request's queue no
longer exists, the request can be given up. Its rows can then be chosen again.
"""

from __future__ import annotations

import re
import uuid
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import stamina
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark import functions
from sqlq_spark.admin import failed_messages
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.errors import SqlQueueError
from sqlq_spark.jobs.settings import BadSettings
from sqlq_spark.jobs.streams import has_table, quote_table, read_table
from sqlq_spark.options import SinkOptions
from sqlq_spark.send import dispatch
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.header_columns import parse_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from sqlq_spark.database import Connection
    from sqlq_spark.options import SourceOptions

T = TypeVar("T")

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


# ---------------------------------------------------------------- rows and groups


def digest(headers: Column | str = "headers", *, json: bool = False) -> Column:
    """
    The digest of a failure, 16 hexadecimal digits; never null.

    It is computed from the exception's type and stack trace. It leaves out what differs between
    failures or builds: line numbers, files, addresses, guids, numbers from the compiler and
    translated words. Without a stack trace the message is used, without numbers and quoted text.
    These are Spark expressions. None raises an error, and each takes one pass over a text of any
    size.

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
        Headers, body, and columns of the failure. `failedQueue` is null for poison messages: Spark
        can read some headers that an endpoint cannot, and would return them as a different message.
        `request` and `returned` are null until the message is returned.
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


def seen() -> Column:
    """When a message failed; without such a header, when it was collected."""
    return F.coalesce("timeOfFailure", "collected")


def groups(table: DataFrame) -> DataFrame:
    """
    Group failures, one row for each digest.

    Returns:
        `digest`, `failures`, `returned` (of them), `firstSeen`, `lastSeen`, `exceptionType`,
        `sampleMessage` (the last), `failedQueues`, `messageTypes`.
    """
    types = F.explode_outer("messageTypes").alias("messageType")
    kinds = table.select("digest", types).groupBy("digest")
    rows = table.groupBy("digest").agg(
        F.count("*").alias("failures"),
        F.count("returned").alias("returned"),
        F.min(seen()).alias("firstSeen"),
        F.max(seen()).alias("lastSeen"),
        F.min("exceptionType").alias("exceptionType"),
        F.max_by("exceptionMessage", seen()).alias("sampleMessage"),
        F.array_sort(F.collect_set("failedQueue")).alias("failedQueues"),
    )
    found = kinds.agg(F.array_sort(F.collect_set("messageType")).alias("messageTypes"))
    return rows.join(found, "digest")


# ---------------------------------------------------------------- return


class RequestStuck(SqlQueueError):
    """A request cannot be finished yet. Either all of it was sent, or nothing."""

    template = (
        "request {request} of table {table} cannot be finished: {reason}. {fix}. The next run then "
        "finishes it, and sends nothing twice."
    )
    messages: int  # that wait for it


class Retry:
    """Returns the failures of one table."""

    def __init__(
        self,
        spark: SparkSession,
        table: str,
        source: SourceOptions,
        sink: Callable[[str], dict[str, str]],
    ) -> None:
        """
        Begin.

        Args:
            spark: the session.
            table: made by `failures`.
            source: of the error queue.
            sink: request → options of the write that sends it.

        Raises:
            BadSettings: there is no such table.
        """
        if not has_table(spark, table):
            raise BadSettings(
                reason=f"setting table is {table!r}: expected a table that mode collect created"
            )
        self.spark = spark
        self.table = table
        self.source = source
        self.sink = sink

    @property
    def rows(self) -> DataFrame:
        return read_table(self.spark.read, self.table)

    def pending(self) -> list[str]:
        open_ = self.rows.where("request IS NOT NULL AND returned IS NULL")
        return sorted(request for (request,) in open_.select("request").distinct().collect())

    def resume(self) -> tuple[int, dict[str, int]]:
        """
        Finish the requests of earlier runs. If one cannot be finished, the others still are.

        Returns:
            How many failures were returned, and how many wait, by reason.
        """
        returned, waiting = 0, dict[str, int]()
        for request in self.pending():
            try:
                returned += self.finish(request)
            except RequestStuck as error:
                waiting[str(error)] = error.messages
        return returned, waiting

    def give_up(self, requests: Sequence[str]) -> int:
        """
        Give up pending requests. `resume` finishes those that were already sent.

        Returns:
            How many failures can be chosen again.

        Raises:
            BadSettings: one of them is not pending; none was given up.
        """
        pending = self.pending() if requests else []
        if strange := sorted({*requests} - {*pending}):
            known = ", ".join(pending) or "none"
            raise BadSettings(
                reason=f"setting give_up names {strange[0]!r}: expected a pending request ({known})"
            )
        freed = 0
        for request in requests:
            if give_up(self.sink(request)) == dispatch.GIVEN_UP:
                freed += self._free(request)
        return freed

    def missing(self, *, groups: Sequence[str], ids: Sequence[str]) -> list[str]:
        """The groups and ids that no failure of the table has."""
        found = self.rows.where(by_name(groups, ids)).select("digest", "failureId", "messageId")
        known = [set(each) for each in zip(*found.distinct().collect(), strict=True)]
        digests, *others = known or [set(), set()]
        return sorted({*groups} - digests) + sorted({*ids}.difference(*others))

    def do(
        self, *, groups: Sequence[str], ids: Sequence[str], limit: int | None = None
    ) -> tuple[int, dict[str, int]]:
        """
        Return the failures of some groups, or with some ids of messages or failures.

        Args:
            groups: digests.
            ids: of messages or failures.
            limit: how many at most, the oldest first; None: all.

        Returns:
            How many were returned, and how many stay, by reason.
        """
        if not groups and not ids:
            return 0, {}
        wanted = f"request IS NULL AND returned IS NULL AND {by_name(groups, ids)}"
        counted = by_queue(self.rows.where(wanted))
        there, reasons = self.sources([text for text in counted if text])
        staying: dict[str, int] = {}
        for text in counted.keys() - there.keys():
            homeless = "it has no header NServiceBus.FailedQ, or corrupt headers"
            reason = reasons.get(text or "", homeless)
            staying[reason] = staying.get(reason, 0) + counted[text]
        if not there or limit == 0:
            return 0, staying
        request = str(uuid.uuid4())
        in_log(self.sink(request), dispatch.open_request)
        chosen = f"{wanted} AND {among('failedQueue', there)}"
        if limit is None:
            self._update(chosen, f"request = {literal(request)}")
        else:
            self._choose_oldest(request, chosen, limit)
        return self.finish(request), staying

    def _choose_oldest(self, request: str, chosen: str, limit: int) -> None:
        """Write a request into the oldest of some failures; a newer commit may leave it fewer."""
        view = f"sqlqueue_oldest_{request.replace('-', '_')}"
        key = ["errorQueue", "seq", "failureId"]
        oldest = self.rows.where(chosen).orderBy(seen(), *key).limit(limit)
        oldest.select(key).distinct().createOrReplaceTempView(view)
        same = " AND ".join(f"t.{each} = o.{each}" for each in key)
        text = (
            f"MERGE INTO {quote_table(self.table)} AS t USING {view} AS o "
            f"ON {same} AND t.request IS NULL AND t.returned IS NULL "
            f"WHEN MATCHED THEN UPDATE SET request = {literal(request)}"
        )
        retry_conflicts(lambda: self.spark.sql(text).collect())
        self.spark.catalog.dropTempView(view)

    def finish(self, request: str) -> int:
        """
        Send the failures of a request, unless they were sent, and mark them.

        Returns:
            How many there are; 0 if the request was given up.

        Raises:
            RequestStuck: one of its queues no longer exists, or the dispatch log has no request.
        """
        rows = self.rows.where(of_request(request))
        counted = by_queue(rows)
        if not counted:
            return 0
        state = in_log(self.sink(request), dispatch.read_state)
        if state == dispatch.UNKNOWN:
            raise self._stuck(
                request,
                counted,
                "the dispatch log does not have it. It was begun in another database or "
                "stateSchema, and may have been sent there",
                "Set the url and the [sink] with which it was begun",
            )
        if state < dispatch.SENT:
            self.send(request, rows, counted)
            state = in_log(self.sink(request), dispatch.read_state)
        if state == dispatch.GIVEN_UP:
            self._free(request)
            return 0
        self._update(of_request(request), "returned = current_timestamp()")
        return sum(counted.values())

    def send(self, request: str, rows: DataFrame, counted: dict[str | None, int]) -> None:
        """
        Send the failures of a request, only once.

        Raises:
            RequestStuck: one of its queues no longer exists.
        """
        there, reasons = self.sources([str(text) for text in counted])
        if reasons:
            found = "; ".join(sorted(set(reasons.values()))).rstrip(".")
            fix = f"Create the queue, or give the request up with --give-up {request}"
            raise self._stuck(request, counted, found, fix)
        queues = F.create_map(*map(F.lit, chain(*there.items())))
        sent = rows.withColumnRenamed("failureId", "id").select(
            *functions.return_to_source(json=True)[:-1],
            queues[F.col("failedQueue")].alias("queue"),
        )
        options = self.sink(request)
        sent.write.format("sqlqueue").options(**options).mode("append").save()

    def sources(self, texts: list[str]) -> tuple[dict[str, str], dict[str, str]]:
        """The canonical addresses of failed queues, and the reasons why others have none."""
        with Session(self.source, "triage") as session:
            connection = session.open()
            there, reasons = failed_messages.sources(
                connection,
                self.source.address,
                texts,
                timeout=self.source.query_timeout,
                allowed=self.source.allowed,
            )
            return {text: connection.canonical(each) for text, each in there.items()}, reasons

    def _stuck(
        self, request: str, counted: Mapping[str | None, int], reason: str, fix: str
    ) -> RequestStuck:
        messages = sum(counted.values())
        return RequestStuck(
            request=request, table=self.table, reason=reason, fix=fix, messages=messages
        )

    def _free(self, request: str) -> int:
        """Remove a given-up request from its rows; returns their number."""
        rows = self.rows.where(of_request(request)).count()
        self._update(of_request(request), "request = NULL")
        return rows

    def _update(self, which: str, change: str) -> None:
        text = f"UPDATE {quote_table(self.table)} SET {change} WHERE {which}"  # noqa: S608 - by `literal`
        retry_conflicts(lambda: self.spark.sql(text).collect())


def in_log(sink: Mapping[str, str], work: Callable[[Connection, str, float], T]) -> T:
    """Read or change a request in the dispatch log, by the options of the write that sends it."""
    options = SinkOptions.parse(sink)
    name, timeout = f"app:{options.txn_app_id}", options.query_timeout
    with StateSession(options, "triage") as session:
        return session.run_with_retries(lambda connection: work(connection, name, timeout))


def give_up(sink: Mapping[str, str]) -> int:
    """Prevent that an open request is sent, unless it was sent already; returns its state."""
    if in_log(sink, dispatch.read_state) == dispatch.OPEN:
        in_log(sink, dispatch.give_up)
    return in_log(sink, dispatch.read_state)


# another commit came first; a second attempt succeeds, or finds nothing to do
CONFLICT = re.compile(
    r"\[DELTA_(?:CONCURRENT_|METADATA_CHANGED|PROTOCOL_CHANGED)|"
    r"\b(?:Concurrent\w+|(?:Metadata|Protocol)Changed)Exception\b"
)
ATTEMPTS = 8  # to commit, with pauses of 8 s in total


def retry_conflicts(work: Callable[[], T]) -> T:
    """Do one commit of a table, and try again if another commit came first."""

    def is_conflict(error: Exception) -> bool:  # by the name of Delta's error
        return bool(CONFLICT.search(f"{type(error).__name__}: {error}"))

    return stamina.retry(on=is_conflict, attempts=ATTEMPTS, timeout=None)(work)()


# ---------------------------------------------------------------- conditions, as SQL


def literal(value: str) -> str:
    """Any text as an SQL literal, because Delta's UPDATE takes no parameters."""
    return f"decode(unhex('{value.encode().hex()}'), 'UTF-8')"


def among(column: str, values: Iterable[str]) -> str:
    """The condition that a column has one of the texts."""
    listed = ", ".join(map(literal, values))
    return f"{column} IN ({listed})" if listed else "false"


def of_request(request: str) -> str:
    """The condition for the failures of a pending request."""
    return f"request = {literal(request)} AND returned IS NULL"


def by_name(groups: Sequence[str], ids: Sequence[str]) -> str:
    """The condition for failures with these digests or ids."""
    columns = {"digest": groups, "failureId": ids, "messageId": ids}
    return f"({' OR '.join(among(*each) for each in columns.items())})"


def by_queue(failures: DataFrame) -> dict[str | None, int]:
    return dict(failures.groupBy("failedQueue").count().collect())
