"""
Types of rows of the state tables that both streams and operators' commands read.

All texts in these rows are untrusted: each login that receives may write them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - the types of a row are read at run time

from sqlq_spark.errors import clean

# A stream is gone if it was silent for this many seconds: four intervals of its heartbeats.
LONGEST_SILENCE = 40.0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A row of `heartbeats`: a process that runs a stream, or that did so."""

    driver: str
    stream: str | None  # None if the process has no batch yet
    name: str | None  # the name of Spark's query, or of the stream
    queue: str  # addresses; several are joined by ", "
    host: str
    process: int
    shared: bool  # whether the stream shares its queues with other streams on purpose
    started: datetime
    beat: datetime  # the last heartbeat
    silent: float  # seconds since the last heartbeat

    @property
    def is_alive(self) -> bool:
        return self.silent < LONGEST_SILENCE

    def describe(self) -> str:
        """Name the stream, and where it runs."""
        name = self.name or self.stream or "a stream without a name"
        return clean(f"{name} on {self.host} (process {self.process})")


@dataclass(frozen=True, slots=True)
class HeldReceipt:
    """A row of `receipts`: what one task has received, until its batch is acknowledged."""

    stream: str
    queue: str
    batch: int
    task: int
    query_id: str | None  # Spark's id of the query, which sinks store too
    spark_batch: int | None  # Spark's number of the batch; None if Spark did not give one
    messages: int
    bytes: int
    settled: bool
    created: datetime
    seen: datetime | None  # when the stream last wrote to its row
    login: str  # the login that wrote the receipt
    entitled: bool  # whether the login that wrote the receipt may receive from the queue

    @property
    def key(self) -> tuple[str, int, int]:
        return self.stream, self.batch, self.task

    @property
    def name(self) -> str:
        """The stream, batch and task as text."""
        return f"{self.stream}/{self.batch}/{self.task}"
