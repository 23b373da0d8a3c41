"""The access paths of statements that were replaced: the model must find their faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .skeletons import hints
from .statements import SHAPES, Ours
from .steps import Fact, Get, Mark, Marked, Statement

if TYPE_CHECKING:
    from collections.abc import Iterable

_TAKE = "queue(UPDLOCK,READPAST,ROWLOCK,READCOMMITTEDLOCK)"
_PAST = "(READPAST,ROWLOCK,READCOMMITTEDLOCK)"

_SEEK = _TAKE.replace("(", "(FORCESEEK,")

REPLACED = {
    "receive": f"SELECT {_SEEK} ORDER BY RowVersion SELECT ORDER BY RowVersion DELETE",
    "purge_expired": f"SELECT {_TAKE} DELETE SELECT",
    "new_sink": "INSERT dispatch_log SELECT EXISTS SELECT dispatch_log(UPDLOCK,HOLDLOCK,ROWLOCK)",
    "discard": "DELETE staging_page DELETE staging",
    "discard_abandoned": f"DELETE staging_page JOIN staging{_PAST} DELETE staging{_PAST}",
}


class Before(Ours):
    """Ours, with the statements of REPLACED."""

    def receive(self, rows: Iterable[str]) -> list[Statement]:
        """All rows are found before the first is deleted, because of the window function."""
        name = "receive"
        found = [
            (*self.look(name, "queue", row, by="Index_RowVersion", target=True), Mark(row))
            for row in rows
        ]
        gone = [(Marked(row), *self.erase("queue", row)) for row in rows]
        return [Statement(name, (self.table(name, "queue"), *found, *gone))]

    def purge_expired(self, rows: Iterable[str]) -> Statement:
        """Each row by Index_Expires, which has all that is read; the delete goes to the row."""
        expired = [row for row in rows if row.startswith("e")]
        blocks = [
            (
                *self.look("purge_expired", "queue", row, by="Index_Expires", covered=True),
                *self.erase("queue", row),
            )
            for row in expired
        ]
        return Statement("purge_expired", (self.table("purge_expired", "queue"), *blocks))

    def new_sink(self, sink: str) -> Statement:
        """HOLDLOCK on a key that is absent locks the gap."""
        absent = self.insert_if_absent("new_sink", "dispatch_log", sink)
        return Statement("new_sink", (self.table("new_sink", "dispatch_log"), absent))

    def discard_abandoned(self, chunks: Iterable[str], others: Iterable[str] = ()) -> Statement:
        """All pages are scanned and those of abandoned rows are deleted; then the rows."""
        name = "discard_abandoned"
        past = "READPAST" in hints(self.shapes[name], "staging")
        pages = []
        for row in chunks:
            page = self.row("staging_page", row)
            pages.append(
                (
                    Get(page, "U", kept=False, fact=Fact("staging_page", row)),
                    Get(
                        self.row("staging", row),
                        "S",
                        past=past,
                        kept=False,
                        fact=Fact("staging", row),
                    ),
                    *self.erase("staging_page", row),
                )
            )
        scanned = [
            (Get(self.row("staging_page", row), "U", kept=False, fact=Fact("staging_page", row)),)
            for row in others
        ]
        rows = [
            (
                *self.look(name, "staging", row, use=1, target=True),
                *self.erase("staging", row),
            )
            for row in chunks
        ]
        intents = (self.table(name, "staging"), self.table(name, "staging_page"))
        return Statement(name, (*intents, *scanned, *pages, *rows))


BEFORE = SHAPES | REPLACED
