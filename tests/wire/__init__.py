r"""
Rows as the transports write them, one file for each, and what must come of it.

To add a row, put a file `<name>.toml` beside this one; nothing else names it:

    title = "What it is, in one sentence."
    source = "WIRE.md part 2, Header JSON"  # or: the transports' design pages, <title>
    table = "no key"                        # optional, of `otherwise` in conformance/shapes.py

    [row]                          # as it lies in the table
    headers = '{"a":"b\/c"}'       # byte for byte between ' or ''' ; left out: NULL
    body = "{}"                    # or body_hex = "efbbbf"; left out: NULL
    lives = 60000                  # ms until it expires; negative: it did; left out: never

    [read]                         # what a reader must find
    headers = [["a", "b/c"]]       # in this order; a name alone has the value null
    correlationId = "x"            # and replyToAddress; left out: null
    poison = true                  # instead of all of these

    [written]                      # for rows that the 9.1 writer wrote, and so must our sink
    whole = true                   # false: our sink puts headers of its own before these

    [repeat]                       # for what is too long for a file
    "<frame>" = ["   at Shop.Sales", 500]  # in `row` and in `read`

A row without `[written]` is another writer's: it is read, and written in the bytes of 9.1.
The rows of golden/nservicebus-10.jsonl, which real endpoints wrote, are cases too.
What must come of a row is held by conformance/test_wire.py; the Spark tests read `messages()`.
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

# what endpoints of NServiceBus 10.2 with transport 9.1 wrote: table, headers, body in base64
GOLDEN = Path(__file__).parents[1] / "golden" / "nservicebus-10.jsonl"

KNOWN = {
    "": {"title", "source", "table", "row", "read", "written", "repeat"},
    "row": {"headers", "body", "body_hex", "lives"},
    "read": {"headers", "correlationId", "replyToAddress", "poison"},
    "written": {"whole"},
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row and what must come of it."""

    name: str  # of its file
    table: str | None  # None: today's
    headers: str | None
    body: bytes | None
    lives: int | None
    read: dict[str, str | None] | None  # None: poison
    columns: dict[str, str | None]  # that are headers
    whole: bool | None  # None: another writer's
    id: uuid.UUID = field(default_factory=uuid.uuid4)

    @property
    def poison(self) -> bool:
        """Whether no endpoint can read it."""
        return self.read is None

    @property
    def expired(self) -> bool:
        """Whether it is not to be handled."""
        return self.lives is not None and self.lives <= 0


@cache
def cases() -> tuple[Case, ...]:
    """All rows, by name."""
    parsed = tuple(parse(path) for path in sorted(Path(__file__).parent.glob("*.toml")))
    return parsed + golden()


@cache
def golden() -> tuple[Case, ...]:
    """The rows that real endpoints wrote, in their order; a name begins with the table's."""
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    return tuple(parse_golden(number, json.loads(line)) for number, line in enumerate(lines, 1))


def parse_golden(number: int, row: dict[str, str]) -> Case:
    """Read one line; Python's own parser says what a reader must find."""
    found = json.loads(row["headers"])
    return Case(
        name=f"{row['table']}, line {number}",
        table=None,
        headers=row["headers"],
        body=base64.b64decode(row["body"]),
        lives=None,
        read=found,
        columns={
            "correlationId": found["NServiceBus.CorrelationId"],
            "replyToAddress": found["NServiceBus.ReplyToAddress"],
        },
        whole=True,
    )


def parse(path: Path) -> Case:
    """Read one file; a name that no one knows is a mistake in it."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    for part, known in KNOWN.items():
        stray = set(found.get(part, {}) if part else found) - known
        assert not stray, f"{path.name}: {part or 'the file'} has {stray}, known are {known}"
    row, read, repeat = found["row"], found["read"], found.get("repeat", {})
    headers = row.get("headers")
    return Case(
        name=path.stem,
        table=found.get("table"),
        headers=None if headers is None else filled(headers, repeat),
        body=body(row),
        lives=row.get("lives"),
        read=None
        if "poison" in read
        # TOML has no null
        else {name: filled(text[0], repeat) if text else None for name, *text in read["headers"]},
        columns={name: read.get(name) for name in ("correlationId", "replyToAddress")},
        whole=found["written"]["whole"] if "written" in found else None,
    )


def filled(text: str, repeat: dict[str, list[Any]]) -> str:
    """Put what is repeated into its places."""
    for mark, (part, times) in repeat.items():
        text = text.replace(mark, part * times)
    return text


def body(row: dict[str, Any]) -> bytes | None:
    """The bytes of a body."""
    if "body_hex" in row:
        return bytes.fromhex(row["body_hex"])
    return row["body"].encode() if "body" in row else None


def messages() -> list[tuple[str, bytes]]:
    """Headers and body of those that a plain reader of JSON understands too."""
    return [
        (case.headers, case.body)
        for case in cases()
        if case.headers and case.body is not None and not case.poison and case.lives is None
    ]
