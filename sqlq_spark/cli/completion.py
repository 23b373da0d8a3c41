"""
Names of queues for a shell that completes a word.

Those of the default schema are plain. bash is given those of other schemas too, in quotes, if
schema and table need none themselves. The shell waits for them and shows everything that is
printed. Completion is therefore quick and prints no errors: if the database cannot be read, it
returns no names.
"""

from __future__ import annotations

import os
import re
from shlex import quote
from typing import TYPE_CHECKING

from sqlq_spark.admin import queue_tables
from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import SqlQueueError
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.login import with_password

if TYPE_CHECKING:
    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress

PATIENCE = 1.0  # seconds for the statement; connecting to a server takes at most 2
PLAIN = re.compile(r"[\w.-]+")  # names that need no quotes in any shell


def queues(incomplete: str) -> list[str]:
    """List the queues whose names begin with `incomplete`; needs SQLQUEUE_URL."""
    url = os.environ.get("SQLQUEUE_URL")
    if not url:
        return []
    credentials = os.environ.get("SQLQUEUE_CREDENTIALS")
    login = {"credentials": credentials} if credentials else {}
    if not credentials:
        url = with_password(url, os.environ.get("SQLQUEUE_PASSWORD"))
    try:
        options = DatabaseOptions.parse({"url": url, **login, "queryTimeout": f"{PATIENCE:g}s"})
        with (
            Session(options, "completion", state=False) as session,
            transaction(session.open(), timeout=PATIENCE),
        ):
            connection = session.open()
            found = [each.address for each in queue_tables.queues(queue_tables.tables(connection))]
            names = [(each, word(connection, each)) for each in found]
    except SqlQueueError:
        return []  # the command that is being typed reports the error
    return [name for each, name in names if name and each.table.startswith(incomplete)]


def word(connection: Connection, queue: QueueAddress) -> str | None:
    """The word for a queue on a command line; None if its name is not plain enough."""
    schema = queue.schema or ""
    if not (PLAIN.fullmatch(queue.table) and PLAIN.fullmatch(schema)):
        return None
    if schema == connection.names.default_schema:
        return queue.table
    in_bash = os.environ.get("_SQLQUEUE_COMPLETE") == "complete_bash"
    return quote(connection.names.print_address(queue)) if in_bash else None
