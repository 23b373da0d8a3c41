"""
The versions of the state tables, and the steps from each version to the next.

A step is SQL that a DBA can read. Each dialect has it in migrations/<version>.sql, as two
statements: one for the step to the next version, and one for the step back. Each statement tests
the version of the tables first, so it can be run again without harm. `sqlqueue install` runs the
steps that are missing. `sqlqueue script` prints all steps.

How a later step is added: CONTRIBUTING.md, "A new version of the state tables".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlq_spark.database.statements import StatementName

STATE_VERSION = 5  # the version of this release; all dialects' statements name a column `version_5`
OLDEST_STATE_VERSION = 3  # the oldest version from which a step leads on


@dataclass(frozen=True, slots=True)
class Step:
    """How state tables of one version become tables of the next version."""

    version: int  # the version of the tables after this step
    forward: StatementName
    back: StatementName
    does: str  # what the step does, in words for people
    locks: str  # the state tables that are locked as a whole until the commit

    def describe(self) -> str:
        """Say what the step does, for people."""
        return (
            f"the step from version {self.version - 1} to {self.version} {self.does}. "
            f"It locks {self.locks} until its commit"
        )


STEPS = (
    Step(
        version=4,
        forward="migrate_4",
        back="revert_4",
        does="renames columns, and adds the table query_reader and two columns",
        locks="stream, receipt, staging, staging_page and dispatch_log",
    ),
    Step(
        version=5,
        forward="migrate_5",
        back="revert_5",
        does="adds the table heartbeat, the names of queries, and stream.removed",
        locks="stream, receipt and dispatch_log",
    ),
)


def steps_from(version: int) -> tuple[Step, ...]:
    """Return the steps from a version to the version of this release, if there are such steps."""
    if version < OLDEST_STATE_VERSION:
        return ()
    return tuple(step for step in STEPS if step.version > version)


def steps_back_to(version: int) -> tuple[Step, ...]:
    """Return the steps back from this release's version to `version`, in the order to run them."""
    return tuple(step for step in reversed(STEPS) if step.version > version)
