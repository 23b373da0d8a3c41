"""
Check how the server would run each statement: part of `sqlqueue selftest`.

A dialect makes the server compile the statements without running them, and looks for faults in the
plans that the server returns.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlq_spark.errors import RightMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sqlq_spark.database import Tables

# Statements whose plans are not checked, because the selftest has run them before: by `install`,
# `create` and `script`, and in its transactions. Migrations only change tables, and have no plan.
RUN = re.compile(
    r"script_|selftest_|install_|migrate_|revert_|create_|add_body_string|begin|set_lock_timeout"
    r"|commit|undo|rollback|savepoint|release"
)
# Statements that may read a whole table. Most of them count, list, delete or lock all rows of the
# table. `purge_expired` looks for expired messages, for which PostgreSQL's transport creates no
# index. The last two search a small state table for a prefix, and PostgreSQL can use an index for
# that only in the collation C.
WHOLE = {
    *("lock_queue", "purge", "purge_expired", "stats", "stats_delayed", "streams", "subscribers"),
    *("heartbeats", "forget_heartbeats", "remove_stream", "discard_abandoned", "delete_old_sinks"),
}


def to_explain(texts: Mapping[str, str], tables: Tables) -> Iterator[tuple[str, str, Tables]]:
    """Yield the name, the text and the tables of each statement that has not run yet."""
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
        compiled: a statement's name → the text that makes the server explain it.
        explain: sends such a text, and returns the server's plan.
        judge: gets a plan and the statement's name, and returns the faults of the plan.
    """
    faults = []
    for name, text in compiled.items():
        try:
            reasons = judge(explain(text), name)
        except Exception as error:
            # some drivers have no error class for a missing right, so the text is searched
            if isinstance(error, RightMissing) or "permission" in str(error):
                raise
            reasons = [" ".join(str(error).split())]
        faults += [f"{name}: {reason}" for reason in reasons]
    return faults
