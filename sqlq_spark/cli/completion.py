"""
Names of queues for a shell that completes a word: a short look at the database, or nothing.

A shell waits for it, and shows what it prints: so it is quick, silent, and fails as no names.
"""

from __future__ import annotations

import os
import re

from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import SqlQueueError
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.login import with_password

PATIENCE = 1.0  # seconds for the statement; a server that cannot be reached is given up after 2
PLAIN = re.compile(r"[\w.-]+")  # what no shell needs quotes for


def queues(incomplete: str) -> list[str]:
    """The queues of the default schema that begin so, where SQLQUEUE_URL says where they are."""
    url = os.environ.get("SQLQUEUE_URL")
    if not url:
        return []
    url = with_password(url, os.environ.get("SQLQUEUE_PASSWORD"))
    try:
        options = DatabaseOptions.parse({"url": url, "queryTimeout": f"{PATIENCE:g}s"})
        with (
            Session(options, "completion", state=False) as session,
            transaction(session.open(), timeout=PATIENCE),
        ):
            found = session.open().rows("queue_tables")
    except SqlQueueError:
        return []  # what is wrong is told by the command itself
    names = (name for (name,) in found)
    return [name for name in names if name.startswith(incomplete) and PLAIN.fullmatch(name)]
