"""What the columns and indexes of a queue's tables decide about a statement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark import errors
from sqlq_spark.database.sqlserver.calls import check_fit, fill_names

if TYPE_CHECKING:
    from sqlq_spark.database.sqlserver.connection import Connection
    from sqlq_spark.wire.address import QueueAddress

# An old table of delayed messages may lack the index; FORCESEEK is then an error, 8622.
DUE_INDEX = """SELECT 1 AS found
  FROM {delayed_catalog}sys.indexes AS i
  JOIN {delayed_catalog}sys.index_columns AS k
    ON k.object_id = i.object_id AND k.index_id = i.index_id AND k.key_ordinal = 1
  JOIN {delayed_catalog}sys.columns AS c ON c.object_id = k.object_id AND c.column_id = k.column_id
 WHERE i.object_id = OBJECT_ID({delayed_text}, N'U')
   AND i.type IN (1, 2) AND i.is_disabled = 0 AND i.has_filter = 0 AND c.name = N'Due'"""


class Shapes:
    """The columns of queues and their types, read once in a transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[QueueAddress, dict[str, str]] = {}

    def clear(self) -> None:
        """Read again from now on."""
        self._known.clear()

    def of(self, queue: QueueAddress) -> dict[str, str]:
        """
        Return a queue's columns in lower case → type.

        Raises:
            QueueNotFound: the table is absent.
        """
        if queue not in self._known:
            found = self._connection.columns(queue)
            if not found:
                name = self._connection.printed(queue)
                raise errors.QueueNotFound(queue=name, server=self._connection.server)
            self._known[queue] = found
        return self._known[queue]

    def fill_names(self, text: str, tables: dict[str, QueueAddress]) -> str:
        """Return a statement with its names, for the columns that the table has."""
        state = self._connection.state
        if "{recoverable}" not in text:
            return fill_names(text, state, tables)
        shape = self.of(tables["errors"]) if "errors" in tables else self._moved_into(tables)
        return fill_names(
            text,
            state,
            tables,
            recoverable="recoverable" in shape,
            fits=check_fit(shape),
            seek="{seek}" in text and self._has_due_index(tables),
        )

    def _moved_into(self, tables: dict[str, QueueAddress]) -> dict[str, str]:
        """Return the queue's columns; an error names the delayed table if both are wrong."""
        try:
            return self.of(tables["queue"])
        except errors.QueueNotFound:
            if "due" not in self.of(tables["delayed"]):
                name = self._connection.printed(tables["delayed"])
                raise errors.NotAQueue(queue=name, reason="it has no column Due") from None
            raise

    def _has_due_index(self, tables: dict[str, QueueAddress]) -> bool:
        """Whether the table of delayed messages has an index that begins with Due."""
        text = fill_names(DUE_INDEX, self._connection.state, tables)
        return bool(self._connection.call("due_index", text, {}, tables))
