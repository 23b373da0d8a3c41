"""
Whether the server's plan of each statement is good; for `sqlqueue selftest`.

A dialect compiles its statements without running them, and judges what the server answers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlq_spark.errors import RightMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sqlq_spark.database import Tables

# what `install`, `create`, `script`, `selftest` and each transaction have run by then
RUN = re.compile(
    r"script_|selftest_|install_|create_|add_body_string|begin|set_lock_timeout|commit|undo"
    r"|rollback|savepoint|release"
)
# what reads a whole table by design: it counts, lists, deletes or locks all of it, or looks for
# what has expired, for which PostgreSQL's transport makes no index, or for a prefix in a small
# state table, which PostgreSQL's indexes know in the collation C only
WHOLE = {
    *("lock_queue", "purge", "purge_expired", "stats", "stats_delayed", "streams", "subscribers"),
    *("discard_abandoned", "delete_old_sinks"),
}


def to_explain(texts: Mapping[str, str], tables: Tables) -> Iterator[tuple[str, str, Tables]]:
    """Yield the name and text of each statement that has not run by then, and its tables."""
    delayed = {**tables, "queue": tables["delayed"]}
    for name, text in texts.items():
        if not RUN.match(name):
            yield name, text, delayed if name == "stats_delayed" else tables


def find_faults(
    compiled: Mapping[str, str],
    explain: Callable[[str], str],
    judge: Callable[[str, str], list[str]],
) -> list[str]:
    """
    Return what is wrong with the plans of statements.

    Args:
        compiled: a statement's name → what makes the server explain it.
        explain: returns the server's plan for such a text.
        judge: returns what is wrong with a plan of the statement that it names.
    """
    faults = []
    for name, text in compiled.items():
        try:
            found = judge(explain(text), name)
        except Exception as error:
            # the second is of a driver that has no class for it
            if isinstance(error, RightMissing) or "permission" in str(error):
                raise
            found = [" ".join(str(error).split())]
        faults += [f"{name}: {each}" for each in found]
    return faults
