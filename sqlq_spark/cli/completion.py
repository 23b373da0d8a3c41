"""
Names of queues for a shell that completes a word.

The shell waits for them and shows everything that is printed. Completion is therefore quick and
prints no errors: if the database cannot be read, it returns no names.
"""

from __future__ import annotations

import os
import re

from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import SqlQueueError
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.login import with_password

PATIENCE = 1.0  # seconds for the statement; connecting to a server takes at most 2
PLAIN = re.compile(r"[\w.-]+")  # names that need no quotes in any shell


def queues(incomplete: str) -> list[str]:
    """List the queues of the default schema that begin with `incomplete`; needs SQLQUEUE_URL."""
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
            found = session.open().rows("queue_tables")
    except SqlQueueError:
        return []  # the command that is being typed reports the error
    names = (name for (name,) in found)
    return [name for name in names if name.startswith(incomplete) and PLAIN.fullmatch(name)]
