"""
The SQL statements of the databases, by name.

Each database has the same SQL files. `StatementName` lists all statements in the order of the
files, and mypy finds a typo in a call. A dialect lists in LACKS the statements that its files do
not have. If the files of a dialect have other statements than these, or another order, loading them
raises an error.
"""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import zip_longest
from textwrap import indent
from typing import TYPE_CHECKING, Literal, Self, get_args

if TYPE_CHECKING:
    from collections.abc import Iterable

PACKAGE = "sqlq_spark.database"
# the SQL files of each database, one for each subject
FILES = (
    "transactions",
    "trust",
    "schema",
    "migrations/004",
    "migrations/005",
    "peek",
    "receive",
    "receipts",
    "streams",
    "staging",
    "subscriptions",
    "delayed",
    "browse",
    "trail",
    "checks",
    "script",
    "selftest",
)

COMMENTS = re.compile(r"^ *--.*\n?", re.MULTILINE)
HEAD = re.compile(r"\A\n(?:--.*\n)+\n")

# the statements of each file; files and statements are in the order in which they are read
# fmt: off
StatementName = Literal[
    # transactions.sql
    "begin_alone", "begin", "time_limits", "set_lock_timeout", "commit", "rollback",
    "savepoint", "undo",
    "release", "check_deferred", "end_frozen", "clock",
    # trust.sql
    "table_owners", "find_other_case",
    # schema.sql
    "install_lock", "install_schema", "install_state", "state_parts", "state_faults", "version",
    "create_lock", "create_queue", "add_body_string", "create_subscriptions", "create_delayed",
    "queue_columns", "wrong_types", "lock_read", "lock_insert", "lock_delete", "lock_queue",
    "drop_queue",
    # migrations/004.sql
    "migrate_4", "revert_4",
    # migrations/005.sql
    "migrate_5", "revert_5",
    # peek.sql
    "waiting", "peek", "sample", "top", "above_sequence",
    # receive.sql
    "fence", "enter_query", "query_reader", "find_receipt", "receipt_pages", "weigh",
    "receive_range", "receive", "take", "find_large", "divert_large", "skip_taken",
    "begin_receipt", "save_receipt",
    # receipts.sql
    "new_stream", "lock_stream", "claim", "stream_queue", "outcome", "acknowledge",
    "delete_receipts", "store_plan", "receipts", "drop_receipt", "close_batch",
    # streams.sql
    "beat", "forget_heartbeats", "heartbeats", "streams", "remove_stream",
    # staging.sql
    "sink_open", "sink_close", "new_sink", "stage", "advance", "settle", "closed_high_water",
    "query_queues", "chunks", "chunk", "chunk_pages", "discard", "discard_abandoned",
    "delete_old_sinks",
    # subscriptions.sql
    "subscribers", "subscribed", "subscribe", "unsubscribe",
    # delayed.sql
    "endpoint_zone", "dues", "due_index", "move_due", "next_due",
    # browse.sql
    "weigh_page", "browse", "browse_seq", "browse_headers", "purge", "purge_range",
    "purge_expired", "stats", "stats_delayed", "seq_given", "queue_tables",
    # trail.sql
    "trail_kept", "record_action", "trail",
    # checks.sql
    "check_rows", "check_owner", "check_queue", "check_delayed", "check_server", "check_state",
    "state_schemas", "why_refused", "blockers",
    # script.sql
    "script_begin", "script_check", "script_roles", "script_role", "script_reader", "script_sender",
    "script_operator", "script_receive", "script_send", "script_divert", "script_produce",
    "script_move", "script_delay", "script_publish", "script_subscribe", "script_member",
    "script_login", "script_end",
    # selftest.sql
    "selftest_facts", "selftest_locks", "selftest_end", "selftest_remains", "selftest_costs",
]
# fmt: on


def sql(dialect: str, name: str) -> str:
    """Return the text of one of a dialect's SQL files, with its comments."""
    return files(PACKAGE).joinpath(dialect, f"{name}.sql").read_text(encoding="utf-8")


class Statements(dict[str, str]):
    """The statements of one dialect: name → text."""

    @classmethod
    def load(cls, dialect: str, lacks: frozenset[StatementName]) -> Self:
        """
        Read a dialect's SQL files. The dialect exports the result as STATEMENTS.

        Raises:
            RuntimeError: the files do not have exactly the statements of StatementName in their
                order, without those in `lacks`.
        """
        statements = cls.read(dialect)
        names = [name for name in get_args(StatementName) if name not in lacks]
        for found, expected in zip_longest(statements, names):
            if found != expected:
                message = f"{dialect}: statement {found} was found where {expected} was expected"
                raise RuntimeError(message)
        return statements

    @classmethod
    def read(cls, dialect: str, *, comments: bool = False) -> Self:
        """
        Split a dialect's SQL files, in the order of FILES, at lines `-- name:` and `-- part:`.

        A line `-- name:` begins a statement. A line `-- part:` begins a part, which is a text that
        statements contain. If a statement has the name of a part in braces, the text of the part
        replaces it, without comments. A statement may be contained in other statements in the same
        way.

        With `comments` the comments of statements are kept, except a comment at the head of a
        statement that a blank line follows. Such a comment is for maintainers, and not for readers
        of a script.
        """
        text = "\n".join(sql(dialect, name) for name in FILES)
        _, *pieces = re.split(r"^-- (name|part): *(\w+) *$", text, flags=re.MULTILINE)
        kinds = pieces[::3]
        names = pieces[1::3]
        bodies = pieces[2::3]
        texts = dict(zip(names, bodies, strict=True))
        for name in names:
            inner = COMMENTS.sub("", texts[name]).strip("\n")
            texts = {other: _include(text, name, inner) for other, text in texts.items()}
        for kind, name in zip(kinds, names, strict=True):
            if kind == "part":
                del texts[name]
        left_out = HEAD if comments else COMMENTS
        return cls((name, left_out.sub("", text).strip("\n")) for name, text in texts.items())


def repeat(text: str, tables: Iterable[str]) -> str:
    """
    Repeat a statement that contains {at} for each of its queues, joined by UNION ALL.

    {at} becomes the number of the queue in the list of queues, from 0 on.
    """
    if "{at}" not in text:
        return text
    queues = [name for name in tables if name.startswith("queue")]
    parts = (
        text.replace("{at}", str(number)).replace("{queue}", f"{{{name}}}")
        for number, name in enumerate(queues)
    )
    return "\nUNION ALL\n".join(parts)


def _include(text: str, part: str, inner: str) -> str:
    """Replace {part} by the text `inner`, with the indentation of the line that has {part}."""
    if f"{{{part}}}" not in text:
        return text
    return re.sub(
        rf"^( *)(.*)\{{{part}\}}",
        lambda match: f"{match[1]}{match[2]}{indent(inner, match[1]).lstrip()}",
        text,
        flags=re.MULTILINE,
    )
