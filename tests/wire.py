"""
Rows as the transports write them, from golden/rows.toml and golden/nservicebus-10.jsonl.

Python's own parser says what a reader must find in them. conformance/test_wire.py tests what
becomes of a row. The Spark tests read `messages()`.
"""

from __future__ import annotations

import base64
import json
import tomllib
import uuid
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("golden")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row, and what must become of it."""

    name: str
    headers: str | None
    body: bytes | None = b"{}"
    lives: int | None = None  # ms
    table: str | None = None  # None: today's
    poison: bool = False  # no endpoint can read it
    whole: bool | None = None  # our sink adds no headers; None: another writer's
    id: uuid.UUID = field(default_factory=uuid.uuid4)

    @property
    def read(self) -> dict[str, str | None] | None:
        """The headers that a reader finds, or None for poison."""
        found: dict[str, str | None] = {} if self.poison else json.loads(self.headers or "{}")
        return None if self.poison else found

    @property
    def columns(self) -> dict[str, str | None]:
        """The columns that are headers."""
        names = {"correlationId": "CorrelationId", "replyToAddress": "ReplyToAddress"}
        read = self.read or {}
        return {name: read.get(f"NServiceBus.{header}") for name, header in names.items()}

    @property
    def expired(self) -> bool:
        """Whether the message has expired."""
        return self.lives is not None and self.lives <= 0


@cache
def cases() -> tuple[Case, ...]:
    """All rows."""
    found = tomllib.loads((FOLDER / "rows.toml").read_text("utf-8"))
    groups: dict[str, dict[str, Any]] = {
        "written": {"whole": False},
        "foreign": {},
        "poison": {"poison": True},
    }
    rows = [(name, row, its) for group, its in groups.items() for name, row in found[group].items()]
    return *(Case(name=name, **parse(row), **its) for name, row, its in rows), *golden()


def parse(row: str | dict[str, Any]) -> dict[str, Any]:
    """Read what the file has of a row."""
    found: dict[str, Any] = {"headers": row} if isinstance(row, str) else {"headers": None} | row
    if "repeat" in found:
        part, times = found.pop("repeat")
        found["headers"] = found["headers"].replace("<>", part * times)
    if "body" in found:
        found["body"] = None if found["body"] is False else bytes.fromhex(found["body"])
    return found


@cache
def golden() -> tuple[Case, ...]:
    """The rows that real endpoints wrote, in their order. A name begins with the table's name."""
    lines = (FOLDER / "nservicebus-10.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return tuple(
        Case(
            name=f"{row['table']}, line {number}",
            headers=row["headers"],
            body=base64.b64decode(row["body"]),
            whole=True,
        )
        for number, row in enumerate(rows, 1)
    )


def messages() -> list[tuple[str, bytes]]:
    """Headers and bodies of rows that a plain JSON reader understands too."""
    return [
        (case.headers, case.body)
        for case in cases()
        if case.headers and case.body is not None and not case.poison and case.lives is None
    ]
