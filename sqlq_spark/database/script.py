"""
Steps of a script for a DBA, and how the dialects write them out.

A dialect's `write_script` turns the steps into SQL. It connects to nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlq_spark.wire.address import QueueAddress


@dataclass(frozen=True, kw_only=True)
class Step:
    """One statement of a script with its names, or a comment."""

    comment: str = ""
    statement: str = ""
    tables: dict[str, QueueAddress] = field(default_factory=dict)
    role: str = ""
    state_table: str = ""  # the state table that the statement is about
    part: str = ""  # what `install_done` calls it; in place already, it is left out


def fill(statement: str, words: Mapping[str, str]) -> str:
    """Write words into a statement, in one pass: no word is replaced inside another."""
    pattern = "|".join(rf"\{{{name}\}}|(?<![:@\w])[:@]{name}\b" for name in words)
    return re.sub(pattern, lambda found: words[found[0].strip("{:@}")], statement) + ";"


def join_lines(quoted: str) -> str:
    """Write a name for a comment, which a line break would end."""
    return " ".join(quoted.split())
