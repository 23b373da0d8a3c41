"""
The table of locks: what statements touch, in which order, and which of them sessions run.

A skeleton has the verbs, joins and orders of a statement, and its tables with their hints. A test
compares them with the SQL files, so that whoever changes a statement looks at its path.

A path says in which order the plan touches rows: `verb table.index#use flag`, for each row that the
session names. The hints are those of the use of that table in the skeleton, from 0. `plans` has the
verbs. Paths of `transport.` are those of NServiceBus.
"""

from __future__ import annotations

import re

_TABLE = r"\{(?:queue|errors|delayed|subscriptions|to)\}|\{state\}\.\w+"
_HINTS = r"(?:[^()]|\(\w+\))*"  # the hint INDEX(…) has brackets inside
_TOKEN = re.compile(
    r"\b(?P<word>SELECT|INSERT|UPDATE|DELETE|MERGE|EXISTS|ORDER BY [\w.]+|(?:INNER )?(?:LOOP )?JOIN"
    r"|sp_getapplock)\b"
    rf"|(?P<table>{_TABLE})(?:\s+AS\s+\w+)?(?:\s+WITH\s*\((?P<hints>{_HINTS})\))?"
)


def skeleton(text: str) -> str:
    """Return the skeleton of a statement's text."""
    parts = []
    for found in _TOKEN.finditer(re.sub(r"N?'[^']*'", "", text.replace("{seek}", "FORCESEEK,"))):
        name = (found["table"] or "").removeprefix("{state}.").strip("{}")
        given = (found["hints"] or "").replace(" ", "").replace("\n", "")
        parts.append(found["word"] or (f"{name}({given})" if given else name))
    return " ".join(parts)


def hints(shape: str, table: str, number: int = 0) -> frozenset[str]:
    """Return the hints on the n-th use of a table in a skeleton."""
    uses = re.findall(rf"(?<![\w.]){table}(?:\(({_HINTS})\))?(?!\w)", shape)
    return frozenset(filter(None, uses[number].split(",") if uses else ()))


_TAKE = "queue(FORCESEEK,UPDLOCK,READPAST,ROWLOCK,READCOMMITTEDLOCK)"
_LOOK = "queue(FORCESEEK,READPAST,ROWLOCK,READCOMMITTEDLOCK)"
_BY_QUERY = "INDEX(receipt_query),FORCESEEK"
_PAST = "(READPAST,ROWLOCK,READCOMMITTEDLOCK)"

# statement → skeleton
SHAPES = {
    "weigh": f"SELECT {_LOOK} ORDER BY RowVersion",
    "receive": f"SELECT {_TAKE} ORDER BY RowVersion DELETE",
    "take": f"DELETE SELECT INNER LOOP JOIN {_TAKE}",
    "find_large": f"SELECT {_TAKE} ORDER BY RowVersion",
    "divert_large": f"DELETE SELECT INNER LOOP JOIN {_TAKE}"
    " INSERT errors SELECT ORDER BY seq SELECT",
    **dict.fromkeys(("purge", "purge_range"), "DELETE queue SELECT"),
    "purge_expired": f"DELETE INSERT SELECT queue{_PAST} DELETE INNER LOOP JOIN {_TAKE} SELECT",
    "weigh_page": f"SELECT queue{_PAST} ORDER BY RowVersion",
    "browse": f"SELECT SELECT queue{_PAST} ORDER BY RowVersion ORDER BY RowVersion",
    "move_due": f"SELECT {_TAKE.replace('queue', 'delayed')} ORDER BY Due DELETE queue SELECT"
    f" SELECT delayed{_PAST}",
    "next_due": f"SELECT delayed{_PAST}",
    "fence": "SELECT SELECT EXISTS SELECT query_reader stream(REPEATABLEREAD,ROWLOCK)",
    "enter_query": "UPDATE query_reader(REPEATABLEREAD,ROWLOCK)"
    " INSERT query_reader SELECT EXISTS SELECT query_reader",
    **dict.fromkeys(("find_receipt", "outcome"), "SELECT receipt"),
    "begin_receipt": "INSERT receipt_page",
    "save_receipt": "INSERT receipt",
    "lock_stream": "UPDATE stream(REPEATABLEREAD,ROWLOCK)",
    "acknowledge": "UPDATE stream",
    "store_plan": f"UPDATE SELECT SELECT receipt{_PAST} SELECT stream{_PAST} ORDER BY MAX"
    f" SELECT SELECT receipt{_PAST} SELECT stream{_PAST} stream",
    **dict.fromkeys(("delete_receipts", "drop_receipt"), "DELETE receipt_page DELETE receipt"),
    "sink_open": "SELECT dispatch_log(REPEATABLEREAD,ROWLOCK)",
    "sink_close": "UPDATE dispatch_log(REPEATABLEREAD,ROWLOCK)",
    "new_sink": "INSERT dispatch_log",
    "stage": "INSERT staging SELECT EXISTS SELECT dispatch_log"
    " EXISTS SELECT staging(READCOMMITTEDLOCK)",
    "advance": "UPDATE dispatch_log",
    "settle": f"INSERT SELECT stream(REPEATABLEREAD,ROWLOCK) SELECT receipt({_BY_QUERY})"
    f" UPDATE receipt({_BY_QUERY}) JOIN",
    "chunks": "SELECT staging ORDER BY attempt",
    "chunk_pages": "SELECT staging_page ORDER BY page",
    "discard": "DELETE staging DELETE staging_page",
    "discard_abandoned": f"DELETE staging{_PAST}"
    " DELETE INNER LOOP JOIN staging_page(FORCESEEK,ROWLOCK)",
    "delete_old_sinks": f"DELETE dispatch_log{_PAST}",
    "subscribers": "SELECT subscriptions SELECT ORDER BY Topic",
    "subscribed": "SELECT subscriptions(UPDLOCK,ROWLOCK)",
    "subscribe": "INSERT subscriptions SELECT EXISTS SELECT subscriptions(UPDLOCK,HOLDLOCK,ROWLOCK)"
    " UPDATE subscriptions",
    "unsubscribe": "DELETE subscriptions",
    # Particular/NServiceBus.SqlServer 9.1, SqlServerConstants
    "transport.receive": "SELECT queue(UPDLOCK,READPAST,ROWLOCK) ORDER BY RowVersion DELETE",
    "transport.purge": "DELETE queue",
    "transport.purge_expired": "DELETE queue SELECT queue(READPAST)",
    "transport.move": "SELECT delayed(UPDLOCK,READPAST,ROWLOCK) DELETE queue",
    "transport.subscribe": "MERGE subscriptions(HOLDLOCK,TABLOCK) SELECT UPDATE INSERT",
    "transport.unsubscribe": "DELETE subscriptions",
    "transport.subscribers": "SELECT subscriptions",
}

# path → the statements that have it
_ALIKE = {
    "read queue.Index_RowVersion": "weigh find_large weigh_page browse",
    "delete queue.Index_RowVersion": "receive take divert_large purge_range transport.receive",
    "delete queue": "purge transport.purge",
    "move delayed.Index_Due": "transport.move",
    "insert queue": "send",
    "insert errors": "return_to_errors",
    "insert delayed": "delay",
    "read receipt": "outcome",
    "delete receipt_page; delete receipt": "delete_receipts",
    "read dispatch_log": "sink_open",
    "update dispatch_log": "sink_close advance",
    "read subscriptions": "subscribers transport.subscribers",
    "delete subscriptions": "unsubscribe transport.unsubscribe",
}
# statement → path
PATHS = {statement: path for path, names in _ALIKE.items() for statement in names.split()} | {
    # the plan reads the candidates by Index_Expires, which has their RowVersion
    "purge_expired": "expire queue.Index_RowVersion#1",
    "transport.purge_expired": "expire queue.Index_RowVersion#0",
    "transport.move_by_scan": "move delayed",  # it has no ORDER BY
    # the second read counts messages that stay, because the queue's varchar cannot hold them
    "move_due": "move delayed.Index_Due; read delayed.Index_Due#1",
    "next_due": "read delayed.Index_Due covered",
    # a task of a batch that was acknowledged ends here
    "fence": "read stream; read query_reader; absent acked rolled back",
    # the second of two streams of a query waits, and inserts nothing
    "enter_query": "update query_reader; insert query_reader caught",
    "find_receipt": "absent receipt committed",
    "begin_receipt": "insert receipt_page",
    "save_receipt": "insert receipt; insert receipt_page",
    "lock_stream": "update stream",
    "acknowledge": "update stream; insert acked caught",
    "store_plan": "read receipt.receipt_query; read stream.stream_query; update stream#2",
    "drop_receipt": "needs receipt; delete receipt_page; delete receipt",
    # the second of two sessions waits, and inserts nothing
    "new_sink": "insert dispatch_log caught",
    "stage": "insert staging#1 absent; insert staging_page",
    "settle": "read receipt.receipt_query covered; read stream; update receipt.receipt_query#1",
    "chunks": "read staging",
    "chunk_pages": "read staging_page",
    "discard": "delete staging; delete staging_page",
    # with UPDLOCK it would keep locks on rows that it reads and that are not abandoned
    "discard_abandoned": "scan staging; whole staging",
    "delete_old_sinks": "delete dispatch_log",
    "subscribed": "read subscriptions",
    "subscribe": "insert subscriptions#1 absent; update subscriptions#2",
    "transport.subscribe": "update subscriptions",
}
# statement → the one whose path it has
ALIKE = {"claim": "acknowledge", "close_batch": "acknowledge"}
# statements without a path, and why
NO_PATH = {
    "new_stream": "no other session knows the new id",
    "beat": "a row of this process, for which others wait a second at most",
    "forget_heartbeats": "rows of processes that ended; it waits a second at most",
    "remove_stream": "after lock_stream, of a stream that has ended",
    "record_action": "a new row, which no other session reads before the commit",
}


# ---------------------------------------------------------------- sessions

TASK = (
    "fence 1; find_receipt {n}; begin_receipt first-{n}; weigh {q}; receive {q}; save_receipt {n}"
)


def dispatch(sink: str, chunks: str, old: str = "", others: str = "") -> str:
    """
    Return what a driver runs to send chunks.

    Sinks in `old` left the chunk x, others are young.
    """
    return (
        f"sink_close {sink}; advance {sink}; chunks {chunks}; chunk_pages {chunks};"
        f" send sent-{sink}; discard {chunks}; discard_abandoned {others} / x;"
        f" delete_old_sinks {old}"
    )


# group → what each session runs: statements with the ids of rows, for each part of their paths.
# {n} is the number of the session, {q} and {d} are the rows of the queue and of delayed messages.
# An id with e at the start is a message that has expired.
GROUPS = {
    "queue": {
        "task": TASK,
        "divert": "find_large {q}; divert_large {q}; return_to_errors diverted-{n}",
        "retry": "take {q}; return_to_errors returned-{n}",
        "purge": "purge {q}",
        "purge-range": "purge_range {q}",
        "purge-expired": "purge_expired {q}",
        "browse": "weigh_page {q}; browse {q}",
        "send": "send enew-{n}",
        "endpoint-receives": "transport.receive {q}; return_to_errors to-{n}",
        "endpoint-purges": "transport.purge {q}",
        "endpoint-expires": "transport.purge_expired {q}",
    },
    "delayed": {
        "move": "move_due {d}; next_due {d}",
        "delay": "delay new-{n}",
        "endpoint-moves": "transport.move {d}",
        "endpoint-scans": "transport.move_by_scan {d}",
        "task": TASK.replace("{q}", "moved-1 moved-2"),
    },
    "stream": {
        "task": TASK,
        "attempt": TASK.replace("{n}", "1"),
        "acknowledge": "lock_stream 1; outcome 0 1 2 3; acknowledge 1; delete_receipts 0 1 2 3",
        "plan": "lock_stream 2; store_plan 0 1 2 3 / 1 2 / 2",  # of another source
        "enter": "enter_query 1",
        "enter-new": "enter_query new",
        "return": "lock_stream 1; drop_receipt 0; acknowledge 1; send returned-0",
        "dispatch": dispatch("a", "a").replace("; chunks", "; settle 0 1 / 1 / 0 1; chunks"),
        "endpoint-receives": "transport.receive {q}; return_to_errors to-{n}",
    },
    "sinks": {
        "stage": "sink_open a; stage a{n}",
        "begin": "new_sink new",
        "dispatch-a": dispatch("a", "a", "", "a b"),
        "dispatch-b": dispatch("b", "b", "", "a b"),
        "dispatch-x": dispatch("x", "x", "x"),
        "fails": dispatch("y", "", "x") + "; rollback",
        "dispatch-new": "new_sink new; " + dispatch("new", ""),
        "dispatch-also": "new_sink also; " + dispatch("also", ""),
    },
    "subscriptions": {
        "subscribe": "subscribed 1; subscribe 1",
        "subscribe-new": "subscribed; subscribe new-{n}",
        "unsubscribe": "unsubscribe 1",
        "publish": "subscribers 1 2",
        "endpoint-subscribes": "transport.subscribe 1",
        "endpoint-unsubscribes": "transport.unsubscribe 1",
        "endpoint-publishes": "transport.subscribers 1 2",
    },
}
PAIRS_ONLY = {"browse", "send", "delay", "divert"}  # no session waits twice for their locks
# the rows at the start
START = {
    "queue": "1 e2",
    "delayed": "1 2",
    "stream": "1 2",
    "query_reader": "1 2",
    "receipt": "0",  # the receipt of an earlier task
    "receipt_page": "0",
    "dispatch_log": "a b x y",
    "staging": "a b x",  # chunks of the sinks a and b, and one that was abandoned
    "staging_page": "a b x",
    "subscriptions": "1 2",
}
