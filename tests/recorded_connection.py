"""A connection of the package whose statements a test watches, stops or breaks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from sqlq_spark import database

if TYPE_CHECKING:
    from collections.abc import Callable

# of a Connection, those that run no statement
OTHERS = {"whole", "printed", "canonical", "identities", "close"}
METHODS = {name for name in vars(database.Connection) if name[0] != "_"} - OTHERS


ANY: Any = object  # a recorded connection is passed on as a connection


class RecordedConnection(ANY):  # type: ignore[misc]
    """Hands everything on to a connection; a subclass says what happens around each statement."""

    def __init__(self, inner: database.Connection) -> None:
        self.inner = inner

    def around(self, statement: str, call: Callable[[], Any]) -> Any:
        """Run a statement by its name, or the method, such as `load`; return what it returns."""
        del statement
        return call()

    def __setattr__(self, name: str, value: Any) -> None:
        """The limit of a transaction is the connection's."""
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
