"""What a tenant does with its queue, without Spark: streams and writes."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa

from sqlq_spark.admin import doctor
from sqlq_spark.database.sessions import StateSession
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.receive.batch import INITIAL
from sqlq_spark.receive.driver import StreamDriver
from sqlq_spark.receive.task import receive
from sqlq_spark.send import dispatch as send
from sqlq_spark.send.sender import Sender
from sqlq_spark.wire.rows import NO_SPARK_BATCH, SparkBatch

if TYPE_CHECKING:
    from conftest import Place

    from sqlq_spark.receive.batch import Offset
    from sqlq_spark.send.dispatch import Staged

TIMEOUT = 10.0  # seconds for a statement; what an attacker holds is held for longer
PUT = "INSERT INTO {} (id, headers, body) VALUES (gen_random_uuid(), '{{}}', %s)"


class Stream:
    """A stream of one login; `end` is the last offset that it was given."""

    def __init__(
        self, place: Place, url: str, queue: str, *, end: Offset = INITIAL, **raw: str
    ) -> None:
        """Begin a new stream, or continue after an offset of a checkpoint."""
        given = {"url": url, "queue": queue, "stateSchema": place.state}
        self.options = SourceOptions.parse(given | {"queryTimeout": f"{TIMEOUT}s"} | raw)
        ticks = count(1000.0, 2.0)  # each call is 2 s later, more than a peek's pause
        self.loop = StreamDriver(self.options, lambda: next(ticks), doctor.at_start)
        self.end = end

    @property
    def name(self) -> str:
        """The stream's id, as every login can see it in application_name."""
        return str(self.end.stream)

    def plan(self) -> Offset:
        """Acknowledge the last batch and plan the next one."""
        self.end = self.loop.latest(self.end)
        return self.end

    def receive(self, spark_batch: SparkBatch = NO_SPARK_BATCH) -> list[bytes]:
        """Run the tasks of the last batch, and return their bodies."""
        bodies: list[bytes] = []
        with StateSession(self.options, f"{self.name} 1/0") as session:
            for task in self.loop.tasks(self.end):
                result = receive(session.open(), task, spark_batch=spark_batch)
                bodies += result.rows["body"].to_pylist()
        return bodies

    def batch(self) -> list[bytes]:
        """Plan a batch and receive it."""
        self.plan()
        return self.receive()

    def close(self) -> None:
        """End the driver's session."""
        self.loop.close()


class Writer:
    """What a login sends to one queue, once for each batch of the sink app:billing."""

    sink = "app:billing"

    def __init__(self, place: Place, url: str, queue: str, **raw: str) -> None:
        given = {"url": url, "queue": queue, "stateSchema": place.state}
        self.options = SinkOptions.parse(given | {"queryTimeout": f"{TIMEOUT}s"} | raw)

    def stage(self, body: bytes, batch: int, **columns: object) -> Staged:
        """Stage a message."""
        values = {name: [value] for name, value in {"body": body, **columns}.items()}
        rows = pa.RecordBatch.from_pydict(values)
        with StateSession(self.options, f"sink {self.sink}") as session:
            chunks = Sender(options=self.options, partition=0).chunks([rows])
            return send.stage(session, chunks, sink=self.sink, sink_batch=batch)

    def dispatch(self, *staged: Staged) -> int:
        """Send what was staged, and return how many messages."""
        with StateSession(self.options, f"dispatch {self.sink}") as session:
            return send.dispatch(session.open(), list(staged), self.options)

    def send(self, body: bytes, batch: int, **columns: object) -> int:
        """Stage and send a message."""
        return self.dispatch(self.stage(body, batch, **columns))


def bodies(place: Place, queue: str) -> list[bytes]:
    """What waits in a queue."""
    return [body for (body,) in place.sql(f"SELECT body FROM {queue} ORDER BY seq")]
