"""A connection of the package whose statements a test records, stops or breaks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from sqlq_spark import database, errors
from sqlq_spark.database import LOCKS, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from sqlq_spark.wire.address import QueueAddress

# methods of a Connection that run no statement
OTHERS = {"whole", "printed", "canonical", "identities", "close"}
METHODS = {name for name in vars(database.Connection) if name[0] != "_"} - OTHERS


ANY: Any = object  # a recorded connection is passed on as a connection


class RecordedConnection(ANY):  # type: ignore[misc]
    """
    Passes everything on to a connection.

    A subclass defines what happens around each statement.
    """

    def __init__(self, inner: database.Connection) -> None:
        self.inner = inner

    def around(self, statement: str, call: Callable[[], Any]) -> Any:
        """Run a statement by its name, or the method, such as `load`; return what it returns."""
        del statement
        return call()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the limit of a transaction on the connection itself."""
        object.__setattr__(self.inner if name == "timeout" else self, name, value)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        return partial(self._run, name, found) if name in METHODS else found

    def _run(self, method: str, call: Callable[..., Any], *args: Any, **values: Any) -> Any:
        if method in {"rows", "row", "values", "value", "run", "arrow"}:
            statement = args[0]
        else:
            statement = f"store {args[0]}" if method == "store" else method
        return self.around(statement, partial(call, *args, **values))


class HarshConnection(RecordedConnection):
    """Any error ends the whole transaction, as SQL Server does for one in a trigger."""

    def around(self, statement: str, call: Callable[[], Any]) -> Any:
        """Run the statement, and end the whole transaction after an error."""
        del statement
        try:
            return call()
        except errors.DatabaseFailure:
            if self.inner.work is not Work.NONE:
                self.inner.undo()
            raise


class WaitingConnection(RecordedConnection):
    """
    One step waits for tables that another session alters, as on SQL Server, and times out at once.

    The step is a look, a comparison of addresses, or an insert. No right of a sender locks a
    table.
    """

    def __init__(self, inner: database.Connection, altered: str, step: str) -> None:
        super().__init__(inner)
        self.lacks = inner.lacks | {*LOCKS.values()}
        self.altered = altered  # the name of the tables
        self.step = step

    def around(self, statement: str, call: Any) -> Any:
        """Run the statement, or time out if it is the one that waits."""
        given = call.keywords.get("places", "") if statement == "table_owners" else str(call.args)
        if statement == self.step and self.altered in given:
            self.time_out(statement)
        return call()

    def identities(self, addresses: Sequence[QueueAddress]) -> list[Hashable]:
        """Compare addresses, or time out if this is the step that waits."""
        if self.step == "identities" and any(self.altered == each.table for each in addresses):
            self.time_out("table_owners")
        return self.inner.identities(addresses)

    def time_out(self, statement: str) -> None:
        """Fail as a statement that waited for a lock."""
        self.inner.undo()
        seconds = self.inner.lock_timeout
        raise errors.LockTimedOut(statement=statement, seconds=seconds, reason="altered")
