"""
Maintain queues on a schedule. Starts no Spark.

    spark-submit jobs/maintenance.py --settings conf/maintenance.toml
    sqlqueue-maintenance --settings conf/maintenance.toml

The job deletes expired messages, moves due messages into their queue, checks queues and server as
`sqlqueue doctor` does, and lists receipts of streams that gave no sign for days. Each step can be
switched off, and repeated safely. The exit code is 1 if there is an error or such receipts.

It also deletes what killed writes without `txnAppId` staged more than a week ago, if its login may
send.

A stream's row is untrusted: whoever holds a role writes it. A queue that only such a row names is
skipped, with a finding, if its table could run code of its owner.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from sqlq_spark.admin import checks, inspect, purge
from sqlq_spark.admin.problems import Finding, unreadable
from sqlq_spark.database import transaction
from sqlq_spark.database.schema import delayed_of
from sqlq_spark.database.sessions import Session
from sqlq_spark.database.trust import DELAYED, RETURNED, Destinations
from sqlq_spark.errors import (
    BadOption,
    ConnectionLost,
    DatabaseFailure,
    QueueNotFound,
    RightMissing,
)
from sqlq_spark.jobs import runner
from sqlq_spark.jobs.settings import DatabaseSettings, number, pairs, raw_options, setting
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.fields import flag
from sqlq_spark.options.names import parse_table
from sqlq_spark.send import DUE_BATCH
from sqlq_spark.send.delayed import Mover
from sqlq_spark.send.dispatch import delete_abandoned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress

DAY = 86_400.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Settings(DatabaseSettings):
    """What this job takes."""

    queues: str | None = setting(
        "The queues, separated by commas; default: those of all streams.", default=None
    )
    purge_expired: bool = setting("Delete expired messages.", flag, default=True)
    move_due: bool = setting(
        "Move due messages of queues that have a table of delayed messages.", flag, default=True
    )
    doctor: bool = setting("Check queues and server for problems.", flag, default=True)
    receipts_days: float | None = setting(
        "List receipts of streams that gave no sign for so many days.",
        number("a number of days, at least 0", 0),
        default=7.0,
    )
    source: dict[str, str] = setting(
        "Options of the data source: stateSchema, queryTimeout, endpointTimeZone.", pairs
    )

    @property
    def database(self) -> DatabaseOptions:
        """The options of the database, and of the named queues if there are any."""
        kind = SourceOptions if self.queues else DatabaseOptions
        return kind.parse(raw_options(kind, self.source, **self.login(), queues=self.queues))

    def options(self) -> list[SourceOptions | SinkOptions]:
        """What a dry run looks at: the named queues."""
        database = self.database
        return [database] if isinstance(database, SourceOptions) else []


def run(_: SparkSession | None, settings: Settings) -> dict[str, Any]:
    """
    Do the steps, one after the other.

    Returns:
        `queues`; by step `expired`, `moved`, `findings`, `receipts`; and `found`, whether there is
        an error or such receipts.
    """
    options, totals = settings.database, dict[str, Any]()
    with Session(options, "maintenance") as session:
        work = Maintenance(session, options)
        queues = session.run_with_retries(work.choose_queues)
        there = session.run_with_retries(partial(work.trusted, queues=queues))
        totals["queues"] = len(queues)
        if settings.purge_expired:
            totals["expired"] = work.in_each(there, work.delete_expired)
        if settings.move_due:
            totals["moved"] = work.in_each(there, work.move_due)
        if work.state:
            session.run_with_retries(work.delete_staged)
        if settings.doctor:
            work.findings += session.run_with_retries(partial(work.check, queues=queues))
        if settings.doctor or work.findings:
            # once each: a lost connection repeats what found them
            totals["findings"] = [asdict(each) for each in dict.fromkeys(work.findings)]
        if settings.receipts_days is not None:
            older = settings.receipts_days * DAY
            totals["receipts"] = session.run_with_retries(partial(work.old_receipts, older=older))
    for each in totals.get("findings", ()):
        runner.print_line("{severity}  {where}: {found}. Fix: {fix}".format(**each))
    for each in totals.get("receipts", ()):
        line = "receipts left  {queue}: {messages} messages of stream {stream}"
        runner.print_line(line.format(**each))
    errors = [each for each in totals.get("findings", ()) if each["severity"] == "error"]
    return totals | {"found": bool(errors or totals.get("receipts"))}


class Maintenance:
    """The steps on one database; each but `in_each` is repeated if its connection is lost."""

    def __init__(self, session: Session, options: DatabaseOptions) -> None:
        """Begin."""
        self.session = session
        self.options = options
        self.named = isinstance(options, SourceOptions)  # whether the settings name the queues
        self.state = not session.run_with_retries(checks.of_state)  # whether it can be read
        self.findings: list[Finding] = []

    def transaction(self, connection: Connection) -> AbstractContextManager[None]:
        return transaction(connection, timeout=self.options.query_timeout)

    def choose_queues(self, connection: Connection) -> list[QueueAddress]:
        """The named queues, or those of all streams; none without state tables. Adds findings."""
        if isinstance(self.options, SourceOptions):
            return list(self.options.addresses)
        if not self.state:
            return []
        with self.transaction(connection):
            names = {name for each in inspect.streams(connection) for name in each.queues}
        queues: list[QueueAddress] = []
        for name in sorted(names):
            try:
                queues.append(parse_table("queues", name, self.options.naming))
            except BadOption as error:
                self.findings.append(checks.no_address(error, self.options.state_schema))
        return queues

    def trusted(self, connection: Connection, queues: Sequence[QueueAddress]) -> list[QueueAddress]:
        """
        The queues without those of streams that cannot be maintained.

        The check reports those that no longer exist. A finding is added for those that are not
        trusted.
        """
        if self.named:
            return list(queues)
        there: list[QueueAddress] = []
        for queue in queues:
            if not connection.columns(queue):
                continue
            with self.transaction(connection):
                reason = distrust(connection, queue)
            if reason is None:
                there.append(queue)
                continue
            self.findings.append(
                Finding(
                    where=connection.printed(queue),
                    name="not_maintained",
                    severity="warning",
                    found=f"the job skips it: {reason.rstrip('.')}",
                    fix="name the queue in the setting queues, if you trust its owner",
                )
            )
        return there

    def in_each(self, queues: Sequence[QueueAddress], step: Callable[[QueueAddress], int]) -> int:
        """Do a step in each queue; an error in one that nobody named is a finding. The sum."""
        total = 0
        for queue in queues:
            try:
                total += step(queue)
            except ConnectionLost:
                raise
            except DatabaseFailure as error:
                if self.named:
                    raise
                where = self.session.run_with_retries(methodcaller("printed", queue))
                fix = "fix the queue, or list the queues to maintain in the setting queues"
                self.findings.append(Finding(where, "not_maintained", "error", str(error), fix))
        return total

    def delete_expired(self, queue: QueueAddress) -> int:
        """Delete expired messages, a batch a transaction; a lost answer loses only its count."""
        gone: list[int] = []

        def work(connection: Connection) -> None:
            gone.extend(purge.purge_expired(connection, queue))

        self.session.run_with_retries(work)
        return sum(gone)

    def move_due(self, queue: QueueAddress) -> int:
        """Move all due messages; see `Mover.move` for a lost answer."""
        mover = Mover(queue, self.options if self.named else replace(self.options, allowed=()))
        if not self.session.run_with_retries(methodcaller("columns", mover.delayed)):
            return 0
        messages = 0
        while True:
            batch = self.session.run_with_retries(mover.move).messages
            messages += batch
            if batch < DUE_BATCH:
                return messages

    def delete_staged(self, connection: Connection) -> None:
        """Delete what killed writes left, if this login may."""
        with suppress(RightMissing), self.transaction(connection):
            delete_abandoned(connection)

    def check(self, connection: Connection, queues: Sequence[QueueAddress]) -> list[Finding]:
        """Check queues and server; queues that nobody named are read only if that is safe."""
        if self.named:
            return checks.run_all_checks(connection, queues)
        there = [each for each in queues if connection.columns(each)]
        absent = [connection.printed(each) for each in queues if each not in there]
        return checks.run_all_checks(connection, there, unnamed=there) + [
            unreadable(each, QueueNotFound(queue=each, server=connection.server)) for each in absent
        ]

    def old_receipts(self, connection: Connection, older: float) -> list[dict[str, Any]]:
        """Streams that hold receipts and gave no sign for `older` seconds."""
        if not self.state:
            return []
        with self.transaction(connection):
            streams = inspect.unseen_streams(connection, older)
        return [
            {
                "stream": each.stream,
                "queue": each.queue,
                "receipts": each.receipts,
                "messages": each.held,
                "seen": each.seen.isoformat(),
            }
            for each in streams
        ]


def distrust(connection: Connection, queue: QueueAddress) -> str | None:
    """Why code of an owner could run in a step on a queue that nobody named; None: none could."""
    danger = inspect.danger(connection, queue)
    if danger is not None:
        return f"it could run code of its owner: {danger}"
    delayed, known = delayed_of(queue), Destinations(connection)
    reasons = known.find_refused([queue], RETURNED)
    if connection.columns(delayed):
        reasons |= known.find_refused([delayed], DELAYED)
    return next((str(reason) for reason in reasons.values()), None)


main = partial(runner.program, __doc__, Settings, run, spark=False)  # the entry point of the wheel
