"""
Maintain queues on a schedule. Starts no Spark.

    spark-submit jobs/maintenance.py --settings conf/maintenance.toml
    sqlqueue-maintenance --settings conf/maintenance.toml

The job deletes expired messages, moves due messages into their queue, checks queues and server as
`sqlqueue doctor` does, and lists receipts of streams that gave no sign for days. It may be repeated
at any time. The exit code is 1 if there is an error or such receipts.

It also deletes what killed writes without `txnAppId` staged more than a week ago, if its login may
send.

A stream's row is untrusted: whoever holds a role writes it. A queue that only such a row names is
skipped, with a finding, if its owner is not trusted.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlq_spark import errors
from sqlq_spark.admin import doctor, purge, state_tables
from sqlq_spark.admin.queue_checks import Finding, unreadable
from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.database.trust import READ, look_at_tables
from sqlq_spark.jobs import runner
from sqlq_spark.jobs.settings import OneDatabaseSettings, Opened, days, pairs, setting
from sqlq_spark.options import SourceOptions
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.receive.due import Mover
from sqlq_spark.send.dispatch import delete_abandoned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sqlq_spark.database import Connection
    from sqlq_spark.database.blockers import Severity
    from sqlq_spark.wire.address import QueueAddress


@dataclass(frozen=True, kw_only=True)
class MaintenanceSettings(OneDatabaseSettings):
    """The settings of this job."""

    queues: str | None = setting(
        "The queues, separated by commas; default: those of all streams.", default=None
    )
    receipts_days: float = setting(
        "List receipts of streams that gave no sign for so many days.", days, default=7.0
    )
    source: dict[str, str] = setting(
        "Options of the data source: stateSchema, queryTimeout, endpointTimeZone.", pairs
    )

    @property
    def database(self) -> DatabaseOptions:
        """Return the options of the database, and of the named queues if there are any."""
        kind = SourceOptions if self.queues else DatabaseOptions
        return kind.parse(self.raw_options("source", self, queues=self.queues))

    def options(self) -> Opened:
        """Return what a dry run looks at: the named queues."""
        database = self.database
        return [database] if isinstance(database, SourceOptions) else []


def run(_: SparkSession | None, settings: MaintenanceSettings) -> dict[str, Any]:
    """
    Do the steps, one after the other.

    Returns:
        `queues`: how many queues; `expired` and `moved`: how many messages; `findings`: of all
        checks; `receipts`: the streams that hold receipts and were not seen for days; `found`:
        whether there is an error or such a stream.
    """
    options = settings.database
    named = isinstance(options, SourceOptions)
    done = Counter(expired=0, moved=0)
    with Session(options, "maintenance") as session:
        repeat = session.run_with_retries
        queues, findings = repeat(partial(choose_queues, settings=settings))
        for queue, where in queues.items():
            try:
                done.update(repeat(partial(maintain, queue=queue, settings=settings)))
            except errors.DatabaseFailure as error:
                if named or isinstance(error, errors.ConnectionLost):
                    raise
                fix = "fix the queue, or list the queues to maintain in the setting queues"
                # Any login that may write a stream's row can name another owner's queue in it.
                refused = isinstance(error, errors.TableRefused)
                severity: Severity = "warning" if refused else "error"
                finding = Finding(
                    where=where,
                    name="not_maintained",
                    severity=severity,
                    found=str(error),
                    fix=fix,
                )
                findings.append(finding)
        work = partial(keep_state, days=settings.receipts_days)
        receipts = [] if repeat(doctor.of_state) else repeat(work)
        check = partial(doctor.run_all_checks, queues=[*queues])
        findings += repeat(partial(check, unnamed=() if named else queues))
    for finding in findings:
        fix = " ".join(finding.fix_lines)
        runner.print_line(f"{finding.severity}  {finding.where}: {finding.found}. Fix: {fix}")
    return {
        "queues": len(queues),
        **done,
        "findings": [asdict(finding) for finding in findings],
        "receipts": [asdict(stream) for stream in receipts],
        "found": bool(receipts) or any(finding.severity == "error" for finding in findings),
    }


def choose_queues(
    connection: Connection, settings: MaintenanceSettings
) -> tuple[dict[QueueAddress, str], list[Finding]]:
    """
    Choose the queues that the settings name. If they name none, choose the queues of all streams.

    Without state tables there are no streams.

    Returns:
        The queues that exist, with their names for people; and a finding for each queue of a stream
        that does not exist, or whose name is no address.
    """
    options = settings.database
    if isinstance(options, SourceOptions):
        return dict.fromkeys(options.addresses, ""), []
    there: dict[QueueAddress, str] = {}
    queues, findings = doctor.queues_of_streams(connection, [connection.state])
    found, _ = look_at_tables(connection, queues, READ)
    for queue in queues:
        where = connection.printed(queue)
        if queue in found:
            there[queue] = where
        else:
            error = errors.QueueNotFound(queue=where, server=connection.server)
            findings.append(unreadable(where, error))
    return there, findings


def maintain(
    connection: Connection, queue: QueueAddress, settings: MaintenanceSettings
) -> dict[str, int]:
    """
    Delete the expired messages of a queue and move its due ones, each batch in a transaction.

    If the server's answer to a commit is lost, this runs again. No message is lost by that, but the
    counts are too low.
    """
    expired = sum(purge.purge_expired(connection, queue))
    moved = 0
    mover = Mover(queue, settings.database)
    if connection.columns(mover.delayed):
        moved = mover.move_all(connection).messages
    return {"expired": expired, "moved": moved}


def keep_state(connection: Connection, *, days: float) -> list[state_tables.Stream]:
    """
    Delete the staged messages that killed writes left, if this login may do that.

    Returns:
        The streams that hold receipts and were not seen for `days` days.
    """
    with suppress(errors.RightMissing), transaction(connection):
        delete_abandoned(connection)
    with transaction(connection):
        return state_tables.unseen_streams(connection, days * 86_400)


main = runner.Job(__doc__, MaintenanceSettings, run, spark=False)  # the entry point of the wheel
