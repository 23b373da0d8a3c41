"""
What queues need from time to time, for a schedule; starts no Spark.

    spark-submit jobs/maintenance.py --settings conf/maintenance.toml
    sqlqueue-maintenance --settings conf/maintenance.toml

Each step by itself, and each may be done again: expired messages are deleted, delayed ones that
are due moved into their queue, the doctor looks, and receipts are listed whose stream has not been
seen for days. The exit code is 1 where the doctor found an error or such receipts are left.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any

from sqlq_spark.admin import checks, inspect, purge
from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.jobs import main as job
from sqlq_spark.jobs.main import tell
from sqlq_spark.options import ANY_TABLE, SinkOptions, SourceOptions, addressed
from sqlq_spark.receive.delayed import BATCH, Mover

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress

DAY = 86_400.0  # seconds


def not_negative(text: str) -> float:
    """Read a number of at least 0."""
    if not float(text) >= 0:
        raise ValueError
    return float(text)


@dataclass(frozen=True, kw_only=True)
class Settings(job.DatabaseSettings):
    """What this job takes."""

    queues: str | None = job.setting(
        "The queues, separated by commas; without it, those of all streams.", default=None
    )
    purge_expired: bool = job.setting("Delete the messages that have expired.", default=True)
    move_due: bool = job.setting(
        "Move the delayed messages that are due, of queues that have a table for them.",
        default=True,
    )
    doctor: bool = job.setting("Look for what is wrong.", default=True)
    receipts_days: float | None = job.setting(
        "List receipts of streams that have not been seen for so many days.",
        default=7.0,
        read=not_negative,
        expected="a number of days, at least 0",
    )
    source: dict[str, str] = job.setting(
        "Options of the data source: stateSchema, queryTimeout, endpointTimeZone.", default={}
    )

    @property
    def database(self) -> SourceOptions:
        """How to reach the database, and the queues that are named."""
        named = {"queues": self.queues} if self.queues else {"queue": "all"}
        return SourceOptions.parse(job.passed(SourceOptions, self.source, **self.login, **named))

    def options(self) -> list[SourceOptions | SinkOptions]:
        """What a dry run reaches: the queues that are named."""
        database = self.database
        return [database] if self.queues else []


def run(_: SparkSession | None, settings: Settings) -> dict[str, Any]:
    """
    Do the steps, one after the other.

    Returns:
        `queues`; by step `expired`, `moved`, `findings`, `receipts`; and `found`, whether someone
        must look.
    """
    options, said = settings.database, dict[str, Any]()
    with Session(options, "maintenance", state=False) as session:
        queues = session.do(lambda connection: chosen(connection, settings, options))
        there = session.do(lambda connection: present(connection, settings, queues))
        said["queues"] = len(queues)
        if settings.purge_expired:
            said["expired"] = sum(purged(session, each, options) for each in there)
        if settings.move_due:
            said["moved"] = sum(moved(session, each, options) for each in there)
        if settings.doctor:
            said["findings"] = session.do(lambda connection: looked(connection, queues, options))
        if settings.receipts_days is not None:
            older = settings.receipts_days * DAY
            said["receipts"] = session.do(lambda connection: held(connection, older, options))
    return said | {"found": wrong(said)}


def wrong(said: dict[str, Any]) -> bool:
    """Whether someone must look; each thing is told in a line of its own, too."""
    for each in said.get("findings", ()):
        tell("{severity}  {where}: {found}. Fix: {fix}".format(**each))
    for each in said.get("receipts", ()):
        tell("receipts left  {queue}: {messages} messages of stream {stream}".format(**each))
    errors = [each for each in said.get("findings", ()) if each["severity"] == "error"]
    return bool(errors or said.get("receipts"))


# ---------------------------------------------------------------- which queues


def chosen(
    connection: Connection, settings: Settings, options: SourceOptions
) -> list[QueueAddress]:
    """The queues that are named, or those of all streams; none without state tables."""
    if settings.queues:
        return list(options.addresses)
    if checks.of_state(connection):
        return []
    with transaction(connection, timeout=options.query_timeout):
        names = {name for each in inspect.streams(connection) for name in each.queues}
    return [addressed("queues", options.url, name, ANY_TABLE) for name in sorted(names)]


def present(
    connection: Connection, settings: Settings, queues: Sequence[QueueAddress]
) -> list[QueueAddress]:
    """Without those that a stream had once, and that are gone; the doctor tells them."""
    return [each for each in queues if settings.queues or connection.columns(each)]


# ---------------------------------------------------------------- the steps


def purged(session: Session, queue: QueueAddress, options: SourceOptions) -> int:
    """Delete what has expired, a batch in each transaction; a lost answer loses only its count."""
    gone: list[int] = []

    def work(connection: Connection) -> None:
        gone.extend(purge.purge_expired(connection, queue, timeout=options.query_timeout))

    session.do(work)
    return sum(gone)


def moved(session: Session, queue: QueueAddress, options: SourceOptions) -> int:
    """Move what is due, as many transactions as that takes; see `Mover.move` for a lost answer."""
    mover = Mover(queue, zone=options.endpoint_time_zone, timeout=options.query_timeout)
    if not session.do(lambda connection: connection.columns(mover.delayed)):
        return 0
    messages = 0
    while True:
        batch = session.do(mover.move).messages
        messages += batch
        if batch < BATCH:
            return messages


def looked(
    connection: Connection, queues: Sequence[QueueAddress], options: SourceOptions
) -> list[dict[str, Any]]:
    """What is wrong, or worth knowing."""
    found = checks.everything(connection, queues, timeout=options.query_timeout)
    return [asdict(each) for each in found]


def held(connection: Connection, older: float, options: SourceOptions) -> list[dict[str, Any]]:
    """Streams that hold receipts and have not been seen for so many seconds."""
    if checks.of_state(connection):
        return []
    with transaction(connection, timeout=options.query_timeout):
        now = connection.rows("clock")[0][0].replace(tzinfo=UTC)
        streams = inspect.streams(connection)
    return [
        {
            "stream": each.stream,
            "queue": each.queue,
            "receipts": each.receipts,
            "messages": each.held,
            "seen": each.seen.isoformat(),
        }
        for each in streams
        if each.receipts and (now - each.seen).total_seconds() > older
    ]


def main() -> None:
    """Do this job by the command line of this process; the entry point of the wheel."""
    job.program(__doc__, Settings, run, spark=False)


if __name__ == "__main__":
    main()
