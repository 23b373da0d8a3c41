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

from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from sqlq_spark import errors
from sqlq_spark.admin import checks, inspect, purge
from sqlq_spark.admin.problems import Finding, unreadable
from sqlq_spark.database import transaction
from sqlq_spark.database.schema import delayed_of
from sqlq_spark.database.sessions import Session
from sqlq_spark.database.trust import DELAYED, RETURNED, Destinations
from sqlq_spark.jobs import runner
from sqlq_spark.jobs.settings import DatabaseSettings, number, pairs, raw_options, setting
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.fields import flag
from sqlq_spark.send.delayed import Mover
from sqlq_spark.send.dispatch import delete_abandoned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress

DAY = 86_400.0  # seconds
FIX = "fix the queue, or list the queues to maintain in the setting queues"


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
    options = settings.database
    named = isinstance(options, SourceOptions)
    steps = {"expired": settings.purge_expired, "moved": settings.move_due}
    done = Counter({step: 0 for step, wanted in steps.items() if wanted})
    with Session(options, "maintenance") as session:
        repeat = session.run_with_retries
        queues, findings = repeat(partial(choose_queues, settings=settings))
        for queue in [each for each, trusted in queues.items() if trusted]:
            try:
                done.update(repeat(partial(maintain, queue=queue, settings=settings)))
            except errors.DatabaseFailure as error:
                if named or isinstance(error, errors.ConnectionLost):
                    raise
                where = repeat(methodcaller("printed", queue))
                findings.append(Finding(where, "not_maintained", "error", str(error), FIX))
        work = partial(keep_state, days=settings.receipts_days)
        receipts = [] if repeat(checks.of_state) else repeat(work)
        if settings.doctor:
            check = partial(checks.run_all_checks, queues=[*queues])
            findings += repeat(partial(check, unnamed=() if named else queues))
    totals: dict[str, Any] = {"queues": len(queues), **done}
    if settings.doctor or findings:
        totals["findings"] = [asdict(each) for each in findings]
    if settings.receipts_days is not None:
        totals["receipts"] = receipts
    for each in findings:
        runner.print_line(f"{each.severity}  {each.where}: {each.found}. Fix: {each.fix}")
    found = bool(receipts) or any(each.severity == "error" for each in findings)
    return totals | {"found": found}


def choose_queues(
    connection: Connection, settings: Settings
) -> tuple[dict[QueueAddress, bool], list[Finding]]:
    """
    Choose the named queues, or those of all streams; without state tables there are none.

    Returns:
        The queues that exist, and whether to maintain each; and findings, for a stream's queue that
        does not exist, is no address, or is not trusted.
    """
    options = settings.database
    if isinstance(options, SourceOptions):
        return dict.fromkeys(options.addresses, True), []
    there: dict[QueueAddress, bool] = {}
    queues, findings = checks.queues_of_streams(connection, [connection.state])
    for queue in queues:
        where = connection.printed(queue)
        if connection.columns(queue):
            with transaction(connection):
                reason = distrust(connection, queue)
            there[queue] = reason is None
            if reason is not None:
                problem = f"the job skips it: {reason.rstrip('.')}"
                fix = "name the queue in the setting queues, if you trust its owner"
                findings.append(Finding(where, "not_maintained", "warning", problem, fix))
        elif settings.doctor:
            error = errors.QueueNotFound(queue=where, server=connection.server)
            findings.append(unreadable(where, error))
    return there, findings


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


def maintain(connection: Connection, queue: QueueAddress, settings: Settings) -> dict[str, int]:
    """Do the steps on a queue, a batch a transaction; a lost answer loses only their counts."""
    options, done = settings.database, dict[str, int]()
    if settings.purge_expired:
        done["expired"] = sum(purge.purge_expired(connection, queue))
    if settings.move_due:
        if not settings.queues:
            options = replace(options, allowed=())
        mover = Mover(queue, options)
        if connection.columns(mover.delayed):
            done["moved"] = mover.move_all(connection).messages
    return done


def keep_state(connection: Connection, *, days: float | None) -> list[dict[str, Any]]:
    """
    Delete what killed writes left, if this login may.

    Returns:
        Streams that hold receipts and gave no sign for so many days.
    """
    with suppress(errors.RightMissing), transaction(connection):
        delete_abandoned(connection)
    if days is None:
        return []
    with transaction(connection):
        streams = inspect.unseen_streams(connection, days * DAY)
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


main = runner.Job(__doc__, Settings, run, spark=False)  # the entry point of the wheel
