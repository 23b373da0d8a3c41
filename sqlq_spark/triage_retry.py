"""
Failures of a Delta table go back to the queues in which they failed, each exactly once.

    choose   a request's name is written into the rows that it returns, in one commit of the table;
             no other request takes these, so what it sends is fixed
    send     in one transaction, which enters the request into the database's ledger (txnAppId)
    mark     the rows are returned, in one commit of the table

What is killed before `choose` has done nothing. After it the request is pending, and whoever comes
next finishes it: it is sent, unless the ledger has it, and then marked. The gap between the send
and the mark is the one in which the table does not know better; the ledger does. It keeps the
request's name for ever: a name is never used again.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from delta.tables import DeltaTable
from pyspark.sql import functions as F  # noqa: N812 - everyone's name for it

from sqlq_spark import retry
from sqlq_spark.errors import SqlQueueError
from sqlq_spark.functions import return_to_source
from sqlq_spark.job_settings import BadSettings
from sqlq_spark.job_spark import has_table, is_path, read_table
from sqlq_spark.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from sqlq_spark.options import SourceOptions

HOMELESS = "it has no header NServiceBus.FailedQ, or corrupt headers"


class RequestStuck(SqlQueueError):
    """A request cannot be finished yet; all of it was sent, as the ledger knows, or nothing."""

    template = (
        "request {0} of table {1} cannot be finished: {2}; the next run goes on with it, when that "
        "is mended, and sends nothing twice"
    )

    def __init__(self, request: str, table: str, reason: str, messages: int = 0) -> None:
        super().__init__(request, table, reason)
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
        wanted = free() & named(groups, ids)
        counted = by_queue(self.rows.where(wanted))
        there, reasons = self.sources([text for text in counted if text])
        staying: dict[str, int] = {}
        for text in counted.keys() - there.keys():
            reason = reasons.get(text or "", HOMELESS)
            staying[reason] = staying.get(reason, 0) + counted[text]
        if not there:
            return 0, staying
        request = str(uuid.uuid4())
        chosen = wanted & F.col("failedQueue").isin(*there)
        self._update(chosen, {"request": F.lit(request)})
        return self.finish(request), staying

    def finish(self, request: str) -> int:
        """
        Send the failures of a request, unless that was done, and mark them.

        Returns:
            How many there are.

        Raises:
            RequestStuck: one of its queues has gone.
        """
        mine = (F.col("request") == request) & F.col("returned").isNull()
        rows = self.rows.where(mine)
        counted = by_queue(rows)
        if not counted:
            return 0
        there, reasons = self.sources([str(text) for text in counted])
        if reasons:
            told = "; ".join(sorted(set(reasons.values())))
            raise RequestStuck(request, self.table, told, sum(counted.values()))
        pairs = [F.lit(each) for pair in there.items() for each in pair]
        sent = rows.withColumnRenamed("failureId", "id").select(
            *return_to_source(json=True)[:-1],
            F.create_map(*pairs)[F.col("failedQueue")].alias("queue"),
        )
        options = self.sink(request)
        sent.write.format("sqlqueue").options(**options).mode("append").save()
        self._update(mine, {"returned": F.current_timestamp()})
        return sum(counted.values())

    def sources(self, texts: list[str]) -> tuple[dict[str, str], dict[str, str]]:
        """The canonical addresses of failed queues, and why others have none, by text."""
        with Session(self.source, "triage", state=False) as session:
            connection = session.open()
            there, reasons = retry.sources(
                connection, self.source.address, texts, timeout=self.source.query_timeout
            )
            return {text: connection.printed(each) for text, each in there.items()}, reasons

    def _update(self, which: Column, values: dict[str, Column]) -> None:
        name, spark = self.table, self.spark
        table = (
            DeltaTable.forPath(spark, name) if is_path(name) else DeltaTable.forName(spark, name)
        )
        table.update(which, dict(values))


def free() -> Column:
    """Failures that no request has."""
    return F.col("request").isNull() & F.col("returned").isNull()


def named(groups: Sequence[str], ids: Sequence[str]) -> Column:
    """Failures by their digests, or by ids."""
    by_id = F.col("failureId").isin(*ids) | F.col("messageId").isin(*ids)
    return F.col("digest").isin(*groups) | by_id


def by_queue(failures: DataFrame) -> dict[str | None, int]:
    """How many failed in each queue."""
    return dict(failures.groupBy("failedQueue").count().collect())
