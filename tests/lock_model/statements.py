"""
The access paths of our statements, as they are now; before.py has those that were replaced.

A path says in which order a plan touches rows and keys. What it locks there follows from the hints
in SHAPES, which a test compares with the SQL files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .access import Tables
from .skeletons import hints
from .steps import Fact, Get, Mark, Marked, Needs, Put, Statement

if TYPE_CHECKING:
    from collections.abc import Iterable

_TAKE = "queue(FORCESEEK,UPDLOCK,READPAST,ROWLOCK,READCOMMITTEDLOCK)"
_LOOK = "queue(FORCESEEK,READPAST,ROWLOCK,READCOMMITTEDLOCK)"
_PAST = "(READPAST,ROWLOCK,READCOMMITTEDLOCK)"

SHAPES = {
    # a queue
    "weigh": f"SELECT {_LOOK} ORDER BY RowVersion",
    "receive": f"SELECT {_TAKE} ORDER BY RowVersion DELETE",
    "take": f"DELETE SELECT INNER LOOP JOIN {_TAKE}",
    "find_large": f"SELECT {_TAKE} ORDER BY RowVersion",
    "divert_large": f"DELETE SELECT INNER LOOP JOIN {_TAKE}"
    " INSERT errors SELECT ORDER BY seq SELECT",
    "purge": "DELETE queue SELECT",
    "purge_range": "DELETE queue SELECT",
    "purge_expired": f"DELETE INSERT SELECT queue{_PAST} DELETE INNER LOOP JOIN {_TAKE} SELECT",
    "browse": f"SELECT queue{_PAST} ORDER BY RowVersion SELECT ORDER BY RowVersion"
    " SELECT ORDER BY RowVersion",
    # delayed messages
    "move_due": f"SELECT {_TAKE.replace('queue', 'delayed')} ORDER BY Due DELETE queue SELECT",
    "next_due": f"SELECT delayed{_PAST}",
    # streams and receipts
    "fence": "SELECT SELECT stream(REPEATABLEREAD,ROWLOCK)",
    "find_receipt": "SELECT receipt",
    "begin_receipt": "INSERT receipt_page",
    "save_receipt": "INSERT receipt",
    "lock_stream": "UPDATE stream(REPEATABLEREAD,ROWLOCK)",
    "outcome": "SELECT receipt",
    "acknowledge": "UPDATE stream",
    "store_plan": f"UPDATE SELECT SELECT receipt{_PAST} SELECT stream{_PAST} ORDER BY MAX"
    f" SELECT SELECT receipt{_PAST} SELECT stream{_PAST} stream",
    "delete_receipts": "DELETE receipt_page DELETE receipt",
    "drop_receipt": "DELETE receipt_page DELETE receipt",
    # staging and dispatch
    "sink_open": "SELECT dispatch_log(REPEATABLEREAD,ROWLOCK)",
    "sink_close": "UPDATE dispatch_log(REPEATABLEREAD,ROWLOCK)",
    "new_sink": "INSERT dispatch_log",
    "stage": "INSERT staging SELECT EXISTS SELECT dispatch_log"
    " EXISTS SELECT staging(READCOMMITTEDLOCK)",
    "advance": "UPDATE dispatch_log",
    "settle": "INSERT SELECT stream(REPEATABLEREAD,ROWLOCK) SELECT receipt(FORCESEEK)"
    " UPDATE receipt(FORCESEEK) JOIN",
    "chunks": "SELECT staging ORDER BY attempt",
    "chunk_pages": "SELECT staging_page ORDER BY page",
    "discard": "DELETE staging DELETE staging_page",
    "discard_abandoned": f"DELETE staging{_PAST}"
    " DELETE INNER LOOP JOIN staging_page(FORCESEEK,ROWLOCK)",
    "delete_old_sinks": f"DELETE dispatch_log{_PAST}",
    # subscriptions
    "subscribers": "SELECT subscriptions ORDER BY Topic",
    "subscribe": "INSERT subscriptions SELECT EXISTS SELECT subscriptions(UPDLOCK,HOLDLOCK,ROWLOCK)"
    " UPDATE subscriptions",
    "unsubscribe": "DELETE subscriptions",
}
# statement → the one whose path it has
ALIKE = {
    "claim": "acknowledge",
    "retire_stream": "acknowledge",
}
# statements without a path, and why
NO_PATH = {
    "new_stream": "no other session knows the new id",
    "record_action": "a new row, which no other session reads before the commit",
}


class Ours(Tables):
    """A method for each statement whose path is not a plain `select`, `update` or `delete`."""

    # ------------------------------------------------------------ a queue

    def receive(self, rows: Iterable[str]) -> list[Statement]:
        """Weigh them, then delete them; each by Index_RowVersion, then the row."""
        return [
            self.select("weigh", "queue", rows, by="Index_RowVersion"),
            self.delete("receive", "queue", rows, by="Index_RowVersion"),
        ]

    def purge_expired(self, rows: Iterable[str]) -> Statement:
        """Candidates by Index_Expires, which has their RowVersion; then each by that."""
        name = "purge_expired"
        found = [
            (*self.look(name, "queue", row, by="Index_Expires", covered=True), Mark(row))
            for row in rows
            if row.startswith("e")
        ]
        gone = [
            (
                Marked(row),
                *self.look(name, "queue", row, by="Index_RowVersion", use=1, target=True),
                *self.erase("queue", row),
            )
            for row in rows
        ]
        return Statement(name, (self.table(name, "queue", writes=True), *found, *gone))

    def move_due(self, rows: Iterable[str], *, by: str = "Index_Due") -> Statement:
        """Delayed rows by Index_Due, or by a scan; each is deleted and inserted at once."""
        name = "move_due"
        blocks = [
            (
                *self.look(name, "delayed", row, by=by, target=True),
                *self.erase("delayed", row),
                *self.insert("queue", f"moved {row}"),
            )
            for row in rows
        ]
        tables = (self.table(name, "delayed"), self.table(name, "queue"))
        return Statement(name, (*tables, *blocks))

    def load(self, table: str, row: str) -> Statement:
        """The bulk insert."""
        intent = (Get(self.whole(table), "IX"),)
        return Statement("load", (intent, self.insert(table, row)))

    # ------------------------------------------------------------ a task and its driver

    def fence(self) -> Statement:
        """A task of a batch that was acknowledged ends here."""
        fresh = Needs(
            Fact("acked", "1"),
            present=False,
            versions=self.reads_versions("fence", "stream"),
            otherwise="rolled back",
        )
        intent = self.table("fence", "stream", writes=False)
        return Statement("fence", (intent, (*self.look("fence", "stream", "1"), fresh)))

    def find_receipt(self, task: str) -> Statement:
        """An attempt that finds a receipt receives nothing more."""
        name = "find_receipt"
        key, fact = Get(self.row("receipt", task), "S", kept=False), Fact("receipt", task)
        versions = self.reads_versions(name, "receipt")
        absent = Needs(fact, present=False, versions=versions, otherwise="committed")
        return Statement(name, ((absent,) if versions else (key, absent),))

    def begin_receipt(self, task: str) -> Statement:
        """The first page, which a second attempt fails to insert."""
        intent = self.table("begin_receipt", "receipt_page")
        return Statement("begin_receipt", (intent, self.insert("receipt_page", f"{task} first")))

    def save_receipt(self, task: str) -> Statement:
        """The row; its key in receipt_query; its page."""
        pages = self.insert("receipt_page", task)
        intents = (self.table("save_receipt", "receipt"), (Get(self.whole("receipt_page"), "IX"),))
        return Statement("save_receipt", (*intents, self.insert("receipt", task), pages))

    def acknowledge(self) -> Statement:
        """The stream's row is locked by lock_stream."""
        change = (Get(self.row("stream", "1"), "X"), Put(Fact("acked", "1"), caught=True))
        return Statement("acknowledge", (self.table("acknowledge", "stream"), change))

    def store_plan(self, stream: str, receipts: Iterable[str]) -> Statement:
        """The stream's row is locked by lock_stream; its query's receipts and streams are read."""
        name = "store_plan"
        found = [self.look(name, "receipt", row, by="receipt_query") for row in receipts]
        found += [self.look(name, "stream", row, by="stream_query") for row in "12"]
        intents = (self.table(name, "stream"), self.table(name, "receipt", writes=False))
        return Statement(name, (*intents, *found, (Get(self.row("stream", stream), "X"),)))

    def delete_pages_and_rows(self, name: str, table: str, rows: Iterable[str]) -> Statement:
        """Two DELETEs, in the order of the skeleton."""
        first, second = self.tables_of(name)
        assert {first, second} == {table, f"{table}_page"}, name
        one, two = self.delete(name, first, rows), self.delete(name, second, rows)
        return Statement(name, (*one.blocks, *two.blocks))

    # ------------------------------------------------------------ staging and dispatch

    def new_sink(self, sink: str) -> Statement:
        """The second of two sessions waits, and inserts nothing."""
        intent = self.table("new_sink", "dispatch_log")
        return Statement("new_sink", (intent, self.insert("dispatch_log", sink, caught=True)))

    def stage(self, chunk: str) -> Statement:
        """A chunk and its page; its sink's row is locked by sink_open."""
        absent = self.insert_if_absent("stage", "staging", chunk, use=1)
        page = (Needs(Fact("staging", chunk)), *self.insert("staging_page", chunk))
        intents = (self.table("stage", "staging"), (Get(self.whole("staging_page"), "IX"),))
        return Statement("stage", (*intents, absent, page))

    def settle(self, receipts: Iterable[str]) -> Statement:
        """The streams by receipt_query, then the receipts by receipt_query, then their rows."""
        name = "settle"
        found = [
            self.look(name, "receipt", row, by="receipt_query", covered=True) for row in receipts
        ]
        changed = [
            (
                *self.look(name, "receipt", row, by="receipt_query", use=1, target=True),
                Get(self.row("receipt", row), "X"),
            )
            for row in receipts
        ]
        stream = self.look(name, "stream", "1")
        intents = (self.table(name, "stream", writes=False), self.table(name, "receipt", use=1))
        return Statement(name, (*intents, *found, stream, *changed))

    def discard_abandoned(self, chunks: Iterable[str], others: Iterable[str] = ()) -> Statement:
        """
        The rows, whose keys are kept in a table variable; then their pages by key.

        Rows that are read and are not abandoned (`others`) keep their locks if a hint asks for it.
        """
        name = "discard_abandoned"
        kept = "UPDLOCK" in hints(self.shapes[name], "staging")
        passed = [
            (Get(self.row("staging", row), "U", past=True, kept=kept, fact=Fact("staging", row)),)
            for row in others
        ]
        rows = [
            (*self.look(name, "staging", row, target=True), *self.erase("staging", row), Mark(row))
            for row in chunks
        ]
        pages = [
            (
                Marked(row),
                *self.look(name, "staging_page", row, target=True),
                *self.erase("staging_page", row),
            )
            for row in chunks
        ]
        intents = (self.table(name, "staging"), self.table(name, "staging_page"))
        return Statement(name, (*intents, *passed, *rows, *pages))

    # ------------------------------------------------------------ subscriptions

    def subscribe(self, row: str) -> Statement:
        """INSERT, and UPDATE where it is there."""
        name = "subscribe"
        intent = self.table(name, "subscriptions")
        insert = self.insert_if_absent(name, "subscriptions", row)
        update = (
            *self.look(name, "subscriptions", row, use=2, target=True),
            Get(self.row("subscriptions", row), "X"),
        )
        return Statement(name, (intent, insert, update))
