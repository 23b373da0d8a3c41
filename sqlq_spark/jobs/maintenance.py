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
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from sqlq_spark.admin import checks, inspect, purge, queue_tables
from sqlq_spark.admin.checks.doctor import unreadable
from sqlq_spark.admin.finding import Finding, no_address, of_error
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
from sqlq_spark.jobs.frame import main as job
from sqlq_spark.jobs.frame.main import print_line
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.names import parse_table
from sqlq_spark.send import DUE_BATCH
from sqlq_spark.send.delayed import Mover
from sqlq_spark.send.dispatch import delete_abandoned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress

DAY = 86_400.0  # seconds
TRUST = "name the queue in the setting queues, if you trust its owner"


def not_negative(text: str) -> float:
    """Read a number of at least 0."""
    if not float(text) >= 0:
        raise ValueError
    return float(text)


@dataclass(frozen=True, kw_only=True)
class Settings(job.DatabaseSettings):
    """What this job takes."""

    queues: str | None = job.setting(
        "The queues, separated by commas; default: those of all streams.", default=None
    )
    purge_expired: bool = job.setting("Delete expired messages.", default=True)
    move_due: bool = job.setting(
        "Move due messages of queues that have a table of delayed messages.",
        default=True,
    )
    doctor: bool = job.setting("Check queues and server for problems.", default=True)
    receipts_days: float | None = job.setting(
        "List receipts of streams that gave no sign for so many days.",
        default=7.0,
        read=not_negative,
        expected="a number of days, at least 0",
    )
    source: dict[str, str] = job.setting(
        "Options of the data source: stateSchema, queryTimeout, endpointTimeZone.", default={}
    )

    @property
    def database(self) -> DatabaseOptions:
        """The options of the database, and of the named queues if there are any."""
        kind = SourceOptions if self.queues else DatabaseOptions
        return kind.parse(job.raw_options(kind, self.source, **self.login, queues=self.queues))

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
        found: list[Finding] = []
        queues = session.run_with_retries(
            lambda connection: choose_queues(connection, options, found)
        )
        there = session.run_with_retries(
            lambda connection: existing(connection, queues, options, found)
        )
        totals["queues"] = len(queues)
        if settings.purge_expired:
            totals["expired"] = in_each(delete_expired, session, there, options, found)
        if settings.move_due:
            totals["moved"] = in_each(move_due, session, there, options, found)
        session.run_with_retries(lambda connection: delete_staged(connection, options))
        if settings.doctor:
            found += session.run_with_retries(lambda connection: check(connection, queues, options))
        if settings.doctor or found:
            # once each: a lost connection repeats what found them
            totals["findings"] = [asdict(each) for each in dict.fromkeys(found)]
        if settings.receipts_days is not None:
            older = settings.receipts_days * DAY
            totals["receipts"] = session.run_with_retries(
                lambda connection: old_receipts(connection, older, options)
            )
    return totals | {"found": report(totals)}


def report(totals: dict[str, Any]) -> bool:
    """Print a line for each finding and receipt; returns whether there is an error or a receipt."""
    for each in totals.get("findings", ()):
        print_line("{severity}  {where}: {found}. Fix: {fix}".format(**each))
    for each in totals.get("receipts", ()):
        print_line("receipts left  {queue}: {messages} messages of stream {stream}".format(**each))
    errors = [each for each in totals.get("findings", ()) if each["severity"] == "error"]
    return bool(errors or totals.get("receipts"))


# ---------------------------------------------------------------- queues


def choose_queues(
    connection: Connection, options: DatabaseOptions, found: list[Finding]
) -> list[QueueAddress]:
    """The named queues, or those of all streams; none without state tables. Adds findings."""
    if isinstance(options, SourceOptions):
        return list(options.addresses)
    if checks.of_state(connection):
        return []
    with transaction(connection, timeout=options.query_timeout):
        names = {name for each in inspect.streams(connection) for name in each.queues}
    queues: list[QueueAddress] = []
    for name in sorted(names):
        try:
            queues.append(parse_table("queues", name, options.naming))
        except BadOption as error:
            found.append(no_address(error, options.state_schema))
    return queues


def existing(
    connection: Connection,
    queues: Sequence[QueueAddress],
    options: DatabaseOptions,
    found: list[Finding],
) -> list[QueueAddress]:
    """
    The queues without those of streams that cannot be maintained.

    The check reports those that no longer exist. A finding is added for those that are not trusted.
    """
    if isinstance(options, SourceOptions):
        return list(queues)
    there: list[QueueAddress] = []
    for queue in queues:
        if not connection.columns(queue):
            continue
        with transaction(connection, timeout=options.query_timeout):
            reason = distrust(connection, queue)
        if reason is None:
            there.append(queue)
        else:
            found.append(skipped(connection.printed(queue), reason))
    return there


def distrust(connection: Connection, queue: QueueAddress) -> str | None:
    """Why code of an owner could run in a step on a queue that nobody named; None: none could."""
    danger = queue_tables.danger(connection, queue)
    if danger is not None:
        return f"it could run code of its owner: {danger}"
    delayed, known = delayed_of(queue), Destinations(connection)
    reasons = known.find_refused([queue], RETURNED)
    if connection.columns(delayed):
        reasons |= known.find_refused([delayed], DELAYED)
    return next((str(reason) for reason in reasons.values()), None)


def skipped(where: str, reason: str) -> Finding:
    """The finding for a queue whose messages are not deleted or moved."""
    return Finding(
        where=where,
        name="not_maintained",
        severity="warning",
        found=f"the job skips it: {reason.rstrip('.')}",
        fix=TRUST,
    )


# ---------------------------------------------------------------- steps


def in_each(
    step: Callable[[Session, QueueAddress, DatabaseOptions], int],
    session: Session,
    queues: Sequence[QueueAddress],
    options: DatabaseOptions,
    found: list[Finding],
) -> int:
    """Do a step in each queue; an error in one that nobody named is a finding. Returns the sum."""
    total = 0
    for queue in queues:
        try:
            total += step(session, queue, options)
        except ConnectionLost:
            raise
        except DatabaseFailure as error:
            if isinstance(options, SourceOptions):
                raise
            where = session.run_with_retries(methodcaller("printed", queue))
            fix = "fix the queue, or list the queues to maintain in the setting queues"
            found.append(of_error(where, "not_maintained", error, fix))
    return total


def delete_expired(session: Session, queue: QueueAddress, options: DatabaseOptions) -> int:
    """Delete expired messages, one batch per transaction; a lost answer loses only its count."""
    gone: list[int] = []

    def work(connection: Connection) -> None:
        gone.extend(purge.purge_expired(connection, queue, timeout=options.query_timeout))

    session.run_with_retries(work)
    return sum(gone)


def move_due(session: Session, queue: QueueAddress, options: DatabaseOptions) -> int:
    """Move all due messages; see `Mover.move` for a lost answer."""
    if not isinstance(options, SourceOptions):
        options = replace(options, allowed=())
    mover = Mover(queue, options)
    if not session.run_with_retries(lambda connection: connection.columns(mover.delayed)):
        return 0
    messages = 0
    while True:
        batch = session.run_with_retries(mover.move).messages
        messages += batch
        if batch < DUE_BATCH:
            return messages


def delete_staged(connection: Connection, options: DatabaseOptions) -> None:
    """Delete what killed writes left, if this login may."""
    if checks.of_state(connection):
        return
    with suppress(RightMissing), transaction(connection, timeout=options.query_timeout):
        delete_abandoned(connection)


def check(
    connection: Connection, queues: Sequence[QueueAddress], options: DatabaseOptions
) -> list[Finding]:
    """Check queues and server; queues that nobody named are read only if that is safe."""
    timeout = options.query_timeout
    if isinstance(options, SourceOptions):
        return checks.everything(connection, queues, timeout=timeout)
    there = [each for each in queues if connection.columns(each)]
    absent = [connection.printed(each) for each in queues if each not in there]
    return checks.everything(connection, there, timeout=timeout, unnamed=there) + [
        unreadable(each, QueueNotFound(queue=each, server=connection.server)) for each in absent
    ]


def old_receipts(
    connection: Connection, older: float, options: DatabaseOptions
) -> list[dict[str, Any]]:
    """Streams that hold receipts and gave no sign for `older` seconds."""
    if checks.of_state(connection):
        return []
    with transaction(connection, timeout=options.query_timeout):
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


def main() -> None:
    """Do this job by the command line of this process; the entry point of the wheel."""
    job.program(__doc__, Settings, run, spark=False)


if __name__ == "__main__":
    main()
