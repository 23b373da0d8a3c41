"""
The versions of the state tables, and the steps from one to the next.

A step is SQL that a DBA can read: migrations/<version>.sql of each dialect, a statement forward and
one back. It begins with a test of the version, so it can run again. `sqlqueue install` runs the
steps that are missing, and `sqlqueue script` prints all of them.

How a later step is added: CONTRIBUTING.md, "A new version of the state tables".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlq_spark.database.statements import StatementName

STATE_VERSION = 4  # of this release; the statements of both dialects name the column `version_4`
OLDEST_STATE_VERSION = 3  # the oldest version that a step begins with


@dataclass(frozen=True, slots=True)
class Step:
    """What makes state tables of one version those of the next one."""

    version: int  # of the tables after it
    forward: StatementName
    back: StatementName
    does: str  # for people
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
)


def steps_from(version: int) -> tuple[Step, ...]:
    """Return the steps from a version to this release's; none if no step begins with it."""
    if version < OLDEST_STATE_VERSION:
        return ()
    return tuple(step for step in STEPS if step.version > version)


def steps_back_to(version: int) -> tuple[Step, ...]:
    """Return the steps back from the version of this release, in their order."""
    return tuple(step for step in reversed(STEPS) if step.version > version)
