"""
Failures of a Delta table go back to the queues in which they failed, each exactly once.

    open     the request's name is entered into the database's ledger
    choose   it is written into the rows that it returns, in one commit of the table; no other
             request takes these, so what it sends is fixed
    send     in one transaction, which enters into the ledger that it was sent (txnAppId)
    mark     the rows are returned, in one commit of the table

What is killed before `choose` has done nothing. After it the request is pending, and whoever comes
next finishes it: it is sent, unless the ledger says that it was, and then marked. The gap between
the send and the mark is the one in which the table does not know better; the ledger does. It keeps
the request's name for ever: a name is never used again. A ledger that does not know a pending
request is another one, of another database or stateSchema: nothing is sent then. A request that can
never be sent, for its queue is gone for good, is given up, and its rows are free again.
"""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, TypeVar

import stamina
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark.admin import retry
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import SqlQueueError
from sqlq_spark.functions import return_to_source
from sqlq_spark.jobs.settings import BadSettings
from sqlq_spark.jobs.spark import has_table, quoted, read_table
from sqlq_spark.jobs.triage.ledger import GIVEN_UP, SENT, UNKNOWN, Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from sqlq_spark.options import SourceOptions

T = TypeVar("T")

# another commit came first; what is asked anew is done, or finds that there is nothing to do
CONFLICT = re.compile(
    r"\[DELTA_(?:CONCURRENT_|METADATA_CHANGED|PROTOCOL_CHANGED)|"
    r"\b(?:Concurrent\w+|(?:Metadata|Protocol)Changed)Exception\b"
)
ATTEMPTS = 8  # to commit, with pauses of 8 s together

ELSEWHERE = (
    "the ledger here does not know it: it was begun in another database or stateSchema, and may "
    "have been sent there"
)
GO_BACK = "Give the url and the [sink] that it was begun with"
LET_GO = "Make the queue, or let go of the request by --give-up {}"
HOMELESS = "it has no header NServiceBus.FailedQ, or corrupt headers"


class RequestStuck(SqlQueueError):
    """A request cannot be finished yet; all of it was sent, as the ledger knows, or nothing."""

    template = (
        "request {0} of table {1} cannot be finished: {2}. {3}; the next run then goes on with it, "
        "and sends nothing twice"
    )

    def __init__(self, request: str, table: str, reason: str, fix: str, messages: int = 0) -> None:
        super().__init__(request, table, reason, fix)
        self.messages = messages


class Retry:
    """What returns the failures of one table."""

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
            table: of failures, as `triage.failures` makes it.
            source: of the error queue.
            sink: request → options of the write that sends it.

        Raises:
            BadSettings: there is no such table.
        """
        if not has_table(spark, table):
            raise BadSettings(f"setting table is {table!r}: expected a table that collect made")
        self.spark = spark
        self.table = table
        self.source = source
        self.sink = sink
        self.ledger = Ledger(sink)

    @property
    def rows(self) -> DataFrame:
        """All failures, as they are now."""
        return read_table(self.spark.read, self.table)

    def pending(self) -> list[str]:
        """The requests that were not seen through."""
        open_ = self.rows.where("request IS NOT NULL AND returned IS NULL")
        return sorted(request for (request,) in open_.select("request").distinct().collect())

    def resume(self) -> tuple[int, dict[str, int]]:
        """
        Finish what earlier runs began; a request that is stuck stops no other.

        Returns:
            How many were returned, and how many wait, by the reason.
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
        Let go of pending requests: what was not sent is free again; what was, is for `resume`.

        Returns:
            How many failures are free again.

        Raises:
            BadSettings: one is not pending; none is let go.
        """
        pending = self.pending() if requests else []
        if strange := sorted({*requests} - {*pending}):
            told = ", ".join(pending) or "none"
            raise BadSettings(
                f"setting give_up names {strange[0]!r}: expected a request that is pending: {told}"
            )
        return sum(self._free(each) for each in requests if self.ledger.give_up(each) == GIVEN_UP)

    def missing(self, *, groups: Sequence[str], ids: Sequence[str]) -> list[str]:
        """Those of some groups and ids that no failure of the table has."""
        found = self.rows.where(named(groups, ids)).select("digest", "failureId", "messageId")
        known = [set(each) for each in zip(*found.distinct().collect(), strict=True)]
        digests, *others = known or [set(), set()]
        return sorted({*groups} - digests) + sorted({*ids}.difference(*others))

    def do(self, *, groups: Sequence[str], ids: Sequence[str]) -> tuple[int, dict[str, int]]:
        """
        Return the failures of some groups, or by some ids of messages or failures.

        Returns:
            How many were returned, and how many stay, by the reason.
        """
        if not groups and not ids:
            return 0, {}
        wanted = f"{FREE} AND {named(groups, ids)}"
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
        self.ledger.open(request)
        self._update(chosen, f"request = {literal(request)}")
        return self.finish(request), staying

    def finish(self, request: str) -> int:
        """
        Send the failures of a request, unless that was done, and mark them.

        Returns:
            How many there are; none, if it was given up.

        Raises:
            RequestStuck: one of its queues has gone, or the ledger does not know it.
        """
        rows = self.rows.where(mine(request))
        counted = by_queue(rows)
        if not counted:
            return 0
        state = self.ledger.state(request)
        if state == UNKNOWN:
            raise RequestStuck(request, self.table, ELSEWHERE, GO_BACK, sum(counted.values()))
        if state < SENT:
            self.send(request, rows, counted)
            state = self.ledger.state(request)
        if state == GIVEN_UP:
            self._free(request)
            return 0
        self._update(mine(request), "returned = current_timestamp()")
        return sum(counted.values())

    def send(self, request: str, rows: DataFrame, counted: dict[str | None, int]) -> None:
        """
        Send the failures of a request, once, ever.

        Raises:
            RequestStuck: one of its queues has gone.
        """
        there, reasons = self.sources([str(text) for text in counted])
        if reasons:
            told = "; ".join(sorted(set(reasons.values())))
            fix = LET_GO.format(request)
            raise RequestStuck(request, self.table, told, fix, sum(counted.values()))
        pairs = [F.lit(each) for pair in there.items() for each in pair]
        sent = rows.withColumnRenamed("failureId", "id").select(
            *return_to_source(json=True)[:-1],
            F.create_map(*pairs)[F.col("failedQueue")].alias("queue"),
        )
        options = self.sink(request)
        sent.write.format("sqlqueue").options(**options).mode("append").save()

    def sources(self, texts: list[str]) -> tuple[dict[str, str], dict[str, str]]:
        """The canonical addresses of failed queues, and why others have none, by text."""
        with Session(self.source, "triage", state=False) as session:
            connection = session.open()
            there, reasons = retry.sources(
                connection,
                self.source.address,
                texts,
                timeout=self.source.query_timeout,
                allowed=self.source.allowed,
            )
            return {text: connection.printed(each) for text, each in there.items()}, reasons

    def _free(self, request: str) -> int:
        """Take a request that was given up from its rows; returns how many there are."""
        rows = self.rows.where(mine(request)).count()
        self._update(mine(request), "request = NULL")
        return rows

    def _update(self, which: str, change: str) -> None:
        said = f"UPDATE {quoted(self.table)} SET {change} WHERE {which}"  # noqa: S608 - by `literal`
        undisturbed(lambda: self.spark.sql(said).collect())


def undisturbed(work: Callable[[], T]) -> T:
    """Do what is one commit of a table, and again where another commit came first."""
    for attempt in stamina.retry_context(on=is_conflict, attempts=ATTEMPTS, timeout=None):
        with attempt:
            return work()
    raise AssertionError  # pragma: no cover - stamina raises the last error itself


def is_conflict(error: Exception) -> bool:
    """Whether another commit came first: with and without Spark Connect Delta says so by a name."""
    return bool(CONFLICT.search(f"{type(error).__name__}: {error}"))


# ---------------------------------------------------------------- which failures, as SQL

FREE = "request IS NULL AND returned IS NULL"  # failures that no request has


def literal(value: str) -> str:
    """A text as SQL, whatever is in it: Delta's UPDATE takes no parameters."""
    return f"decode(unhex('{value.encode().hex()}'), 'UTF-8')"


def among(column: str, values: Iterable[str]) -> str:
    """A column has one of some texts."""
    listed = ", ".join(map(literal, values))
    return f"{column} IN ({listed})" if listed else "false"


def mine(request: str) -> str:
    """Failures of a request that is pending."""
    return f"request = {literal(request)} AND returned IS NULL"


def named(groups: Sequence[str], ids: Sequence[str]) -> str:
    """Failures by their digests, or by ids."""
    columns = {"digest": groups, "failureId": ids, "messageId": ids}
    return f"({' OR '.join(among(*each) for each in columns.items())})"


def by_queue(failures: DataFrame) -> dict[str | None, int]:
    """How many failed in each queue."""
    return dict(failures.groupBy("failedQueue").count().collect())
