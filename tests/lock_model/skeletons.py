"""
The skeleton of a statement: its verbs, joins and orders, and its tables with their hints.

    SELECT queue(FORCESEEK,UPDLOCK,READPAST,ROWLOCK,READCOMMITTEDLOCK) ORDER BY RowVersion DELETE

The lock paths take their hints from the skeletons here. A test compares these with the texts, so
that whoever changes a statement looks at its path.
"""

from __future__ import annotations

import re

_TABLE = r"\{(?:queue|errors|delayed|subscriptions|to)\}|\{state\}\.\w+"
_TOKEN = re.compile(
    r"\b(?P<word>SELECT|INSERT|UPDATE|DELETE|MERGE|EXISTS|ORDER BY [\w.]+|(?:INNER )?(?:LOOP )?JOIN"
    r"|sp_getapplock)\b"
    rf"|(?P<table>{_TABLE})(?:\s+AS\s+\w+)?(?:\s+WITH\s*\((?P<hints>[^)]*)\))?"
)


def skeleton(text: str) -> str:
    """Return the skeleton of a statement's text."""
    parts = []
    for found in _TOKEN.finditer(re.sub(r"N?'[^']*'", "", text.replace("{seek}", "FORCESEEK,"))):
        if found["word"]:
            parts.append(found["word"])
            continue
        name = found["table"].removeprefix("{state}.").strip("{}")
        hints = ",".join((found["hints"] or "").replace(" ", "").split(","))
        parts.append(f"{name}({hints})" if hints else name)
    return " ".join(parts)


def hints(shape: str, table: str, number: int = 0) -> frozenset[str]:
    """Return the hints on the n-th use of a table in a skeleton."""
    uses = re.findall(rf"(?<![\w.]){table}(?:\(([^)]*)\))?(?!\w)", shape)
    return frozenset(filter(None, uses[number].split(",")))
