"""
Returns failures of a Delta table to the queues in which they failed, each exactly once.

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
from typing import TYPE_CHECKING, TypeVar

import stamina
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark.admin import failed_messages
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import SqlQueueError
from sqlq_spark.functions import return_to_source
from sqlq_spark.jobs.frame.settings import BadSettings
from sqlq_spark.jobs.frame.spark import has_table, quote_table, read_table
from sqlq_spark.jobs.triage.request_log import RequestLog
from sqlq_spark.send.dispatch import GIVEN_UP, SENT, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from sqlq_spark.options import SourceOptions

T = TypeVar("T")

# another commit came first; a second attempt succeeds, or finds nothing to do
CONFLICT = re.compile(
    r"\[DELTA_(?:CONCURRENT_|METADATA_CHANGED|PROTOCOL_CHANGED)|"
    r"\b(?:Concurrent\w+|(?:Metadata|Protocol)Changed)Exception\b"
)
ATTEMPTS = 8  # to commit, with pauses of 8 s in total

ELSEWHERE = (
    "the dispatch log does not have it. It was begun in another database or stateSchema, and may "
    "have been sent there"
)
GO_BACK = "Set the url and the [sink] with which it was begun"
GIVE_UP = "Create the queue, or give the request up with --give-up {}"
HOMELESS = "it has no header NServiceBus.FailedQ, or corrupt headers"


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
            table: of failures, made by `triage.failures`.
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
        self.log = RequestLog(sink)

    @property
    def rows(self) -> DataFrame:
        """The current rows of the table."""
        return read_table(self.spark.read, self.table)

    def pending(self) -> list[str]:
        """The requests that are not finished."""
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
        return sum(self._free(each) for each in requests if self.log.give_up(each) == GIVEN_UP)

    def missing(self, *, groups: Sequence[str], ids: Sequence[str]) -> list[str]:
        """The groups and ids that no failure of the table has."""
        found = self.rows.where(by_name(groups, ids)).select("digest", "failureId", "messageId")
        known = [set(each) for each in zip(*found.distinct().collect(), strict=True)]
        digests, *others = known or [set(), set()]
        return sorted({*groups} - digests) + sorted({*ids}.difference(*others))

    def do(self, *, groups: Sequence[str], ids: Sequence[str]) -> tuple[int, dict[str, int]]:
        """
        Return the failures of some groups, or with some ids of messages or failures.

        Returns:
            How many were returned, and how many stay, by reason.
        """
        if not groups and not ids:
            return 0, {}
        wanted = f"{FREE} AND {by_name(groups, ids)}"
        counted = by_queue(self.rows.where(wanted))
        there, reasons = self.sources([text for text in counted if text])
        staying: dict[str, int] = {}
        for text in counted.keys() - there.keys():
            reason = reasons.get(text or "", HOMELESS)
            staying[reason] = staying.get(reason, 0) + counted[text]
        if not there:
            return 0, staying
        request = str(uuid.uuid4())
        chosen = f"{wanted} AND {among('failedQueue', there)}"
        self.log.open(request)
        self._update(chosen, f"request = {literal(request)}")
        return self.finish(request), staying

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
        state = self.log.state(request)
        if state == UNKNOWN:
            raise RequestStuck(
                request=request,
                table=self.table,
                reason=ELSEWHERE,
                fix=GO_BACK,
                messages=sum(counted.values()),
            )
        if state < SENT:
            self.send(request, rows, counted)
            state = self.log.state(request)
        if state == GIVEN_UP:
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
            fix = GIVE_UP.format(request)
            raise RequestStuck(
                request=request,
                table=self.table,
                reason=found,
                fix=fix,
                messages=sum(counted.values()),
            )
        pairs = [F.lit(each) for pair in there.items() for each in pair]
        sent = rows.withColumnRenamed("failureId", "id").select(
            *return_to_source(json=True)[:-1],
            F.create_map(*pairs)[F.col("failedQueue")].alias("queue"),
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

    def _free(self, request: str) -> int:
        """Remove a given-up request from its rows; returns their number."""
        rows = self.rows.where(of_request(request)).count()
        self._update(of_request(request), "request = NULL")
        return rows

    def _update(self, which: str, change: str) -> None:
        text = f"UPDATE {quote_table(self.table)} SET {change} WHERE {which}"  # noqa: S608 - by `literal`
        retry_conflicts(lambda: self.spark.sql(text).collect())


def retry_conflicts(work: Callable[[], T]) -> T:
    """Do one commit of a table, and try again if another commit came first."""
    for attempt in stamina.retry_context(on=is_conflict, attempts=ATTEMPTS, timeout=None):
        with attempt:
            return work()
    raise AssertionError  # pragma: no cover - stamina raises the last error itself


def is_conflict(error: Exception) -> bool:
    """Whether another commit came first, by the name of Delta's error."""
    return bool(CONFLICT.search(f"{type(error).__name__}: {error}"))


# ---------------------------------------------------------------- conditions, as SQL

FREE = "request IS NULL AND returned IS NULL"  # failures without a request


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
    """How many failed in each queue."""
    return dict(failures.groupBy("failedQueue").count().collect())
