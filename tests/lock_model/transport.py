"""The transport's statements, by Particular/NServiceBus.SqlServer 9.1, SqlServerConstants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .access import Tables
from .steps import Get, Mark, Marked, Statement, Transaction

if TYPE_CHECKING:
    from collections.abc import Sequence

SHAPES = {
    "send": "INSERT queue",
    "receive": "SELECT queue(UPDLOCK,READPAST,ROWLOCK) ORDER BY RowVersion DELETE",
    "purge_expired": "DELETE queue SELECT queue(READPAST)",
    "purge": "DELETE queue",
    "store": "INSERT queue",
    "move": "SELECT queue(UPDLOCK,READPAST,ROWLOCK) DELETE to",
    "subscribe": "MERGE queue(HOLDLOCK,TABLOCK) SELECT UPDATE INSERT",
    "unsubscribe": "DELETE queue",
    "subscribers": "SELECT queue",
}
# the same for the tables that they are run on
ON_TABLES = SHAPES | {
    "move": SHAPES["move"].replace("queue", "delayed").replace("to", "queue"),
    **{
        name: SHAPES[name].replace("queue", "subscriptions")
        for name in ("subscribe", "unsubscribe", "subscribers")
    },
}


def endpoint(name: str, *statements: Statement) -> Transaction:
    """Return a transaction of an endpoint; it has the usual priority."""
    return Transaction(f"endpoint {name}", statements)


class Endpoint(Tables):
    """What endpoints do; each method is one transaction."""

    def receive(self, rows: Sequence[str], *, sends: str = "") -> Transaction:
        """Receive one message, and send while it is handled."""
        taken = self.delete("receive", "queue", rows, by="Index_RowVersion", top=True)
        more = [self.insertion("errors", sends)] if sends else []
        return endpoint("receives", taken, *more)

    def send(self, row: str) -> Transaction:
        """Send a message."""
        return endpoint("sends", self.insertion("queue", row))

    def store(self, row: str) -> Transaction:
        """Delay a message."""
        return endpoint("delays", self.insertion("delayed", row))

    def insertion(self, table: str, row: str) -> Statement:
        """Return an INSERT."""
        return Statement("send", ((Get(self.whole(table), "IX"),), self.insert(table, row)))

    def purge(self, rows: Sequence[str]) -> Transaction:
        """PurgeOnStartup scans the table."""
        return endpoint("purges", self.delete("purge", "queue", rows))

    def purge_expired(self, rows: Sequence[str]) -> Transaction:
        """
        Delete expired messages.

        The plan reads all candidates before it deletes one, because it deletes from the table that
        it reads (Halloween protection).
        """
        name = "purge_expired"
        found = [
            (*self.look(name, "queue", row, by="Index_Expires", use=1, covered=True), Mark(row))
            for row in rows
            if row.startswith("e")
        ]
        gone = [
            (
                Marked(row),
                *self.look(name, "queue", row, by="Index_RowVersion", target=True),
                *self.erase("queue", row),
            )
            for row in rows
        ]
        statement = Statement(name, (self.table(name, "queue"), *found, *gone))
        return endpoint("purges expired", statement)

    def move(self, rows: Sequence[str], *, by: str = "Index_Due") -> Transaction:
        """Move what is due; without ORDER BY the plan may also scan the heap (`by` empty)."""
        blocks = [
            (
                *self.look("move", "delayed", row, by=by, target=True),
                *self.erase("delayed", row),
                *self.insert("queue", f"moved {row}"),
            )
            for row in rows
        ]
        tables = (self.table("move", "delayed"), self.table("move", "queue"))
        return endpoint(f"moves {by}".strip(), Statement("move", (*tables, *blocks)))

    def subscribe(self, row: str) -> Transaction:
        """MERGE, with a lock on the whole table."""
        steps = (
            *self.table("subscribe", "subscriptions"),
            Get(self.row("subscriptions", row), "X"),
        )
        return endpoint("subscribes", Statement("subscribe", (steps,)))

    def unsubscribe(self, row: str) -> Transaction:
        """DELETE of one row."""
        return endpoint("unsubscribes", self.delete("unsubscribe", "subscriptions", [row]))

    def subscribers(self, rows: Sequence[str]) -> Transaction:
        """A publisher reads them."""
        return endpoint("publishes", self.select("subscribers", "subscriptions", rows))
