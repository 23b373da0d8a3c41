"""Transactions that keep others waiting: the rows of the statement `blockers`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from sqlq_spark.wire.address import QueueAddress

Severity: TypeAlias = Literal["error", "warning", "note"]  # worst first; a note needs no fix


@dataclass(frozen=True, slots=True)
class Blocker:
    """A finding about one transaction that has locked one table or messages in that table."""

    schema_name: str
    table_name: str
    name: str
    severity: Severity
    found: str
    fix: str

    @property
    def address(self) -> QueueAddress:
        return QueueAddress(self.table_name, self.schema_name)
