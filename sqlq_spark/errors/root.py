"""The root of all errors of this package."""

from __future__ import annotations

from typing import ClassVar


class SqlQueueError(Exception):
    """The root of all errors of this package. `str` fills `template` with `args`."""

    template: ClassVar[str] = "{0}"

    def __str__(self) -> str:
        return self.template.format(*self.args)


class DatabaseFailure(SqlQueueError):
    """The database rejected a statement, or did not answer."""
