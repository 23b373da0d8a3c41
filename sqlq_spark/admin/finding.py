"""What a check returns: a problem or a note, and the statement that fixes it."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from sqlq_spark.database import Row
    from sqlq_spark.errors import BadOption

Severity: TypeAlias = Literal["error", "warning", "note"]  # worst first; a note needs no fix


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem, or a note."""

    where: str  # a queue's address, or the server
    name: str
    severity: Severity
    found: str
    fix: str  # statements, one per line; or a command, or what to set

    @property
    def is_problem(self) -> bool:
        """Whether it should be fixed."""
        return self.severity != "note"

    @property
    def rank(self) -> int:
        """Its place among severities, 0 for the worst."""
        return get_args(Severity).index(self.severity)


def finding(where: str, row: Row) -> Finding:
    """The finding in a row of `check_queue`, `check_delayed` or `check_server`."""
    name, severity, found, fix = row
    return Finding(where=where, name=name, severity=severity, found=found, fix=fix)


def state_unread(where: str, schema: str, reason: str) -> Finding:
    """The note for a state schema that was not looked into."""
    return Finding(
        where=where,
        name="state_unread",
        severity="note",
        found=f"state schema {schema} was not looked into: {reason}",
        fix="",
    )


def absent(where: str) -> Finding:
    """The finding for a queue of a stream that is not there."""
    return Finding(
        where=where,
        name="absent",
        severity="error",
        found="a stream reads it, and this login sees no such table",
        fix=f"sqlqueue create {quote(where)}",
    )


def no_address(error: BadOption, state: str) -> Finding:
    """The finding for a stream whose queue is no address; a tenant can write such a row."""
    return Finding(
        where=error.found,
        name="no_address",
        severity="warning",
        found=f"a row of {state}.stream names this queue, expected {error.expected}",
        fix="find out which login wrote the row, and delete the row",
    )


def delayed_alone(where: str) -> Finding:
    """The finding for a table of delayed messages whose queue is not there."""
    return Finding(
        where=where,
        name="delayed_alone",
        severity="warning",
        found="this login sees no queue to which these delayed messages belong",
        fix="create the queue (`sqlqueue create`), or drop the table if it is not used any more",
    )


def of_error(where: str, name: str, error: Exception, fix: str) -> Finding:
    """Make a finding of an error."""
    return Finding(where=where, name=name, severity="error", found=str(error), fix=fix)
