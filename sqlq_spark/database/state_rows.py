"""Types of rows of the state tables that both streams and operators' commands read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - the types of a row are read at run time


@dataclass(frozen=True, slots=True)
class HeldReceipt:
    """A row of `receipts`: what one task has received, until its batch is acknowledged."""

    stream: str
    queue: str
    batch: int
    task: int
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
