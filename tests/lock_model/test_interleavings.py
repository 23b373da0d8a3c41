"""
Two and three sessions in every order of their steps: waits, deadlocks, and what is left.

Faults that the model found in earlier statements are planted again, and must be found.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest

from .plans import meet, meetings
from .table import GROUPS, PATHS, SHAPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .engine import Found

PURGES = (
    "divert endpoint-expires endpoint-purges endpoint-receives purge purge-expired purge-range"
    " retry send task"
)
SUBSCRIBES = "endpoint-subscribes endpoint-unsubscribes subscribe unsubscribe"
ABANDONED = "dispatch-a dispatch-b dispatch-new dispatch-also fails"
# group → a session and the statement in which it waits → whom it waits for
WAITS = {
    "queue": {
        "purge purge": PURGES,
        "purge-range purge_range": PURGES,
        "endpoint-purges transport.purge": PURGES,
        "endpoint-expires transport.purge_expired": PURGES,
    },
    "delayed": {
        "endpoint-scans transport.move_by_scan": "move delay endpoint-moves endpoint-scans",
    },
    "stream": {
        "task fence": "acknowledge enter return",
        "task find_receipt": "attempt",
        "task begin_receipt": "attempt",
        "attempt fence": "acknowledge enter return",
        "attempt find_receipt": "attempt task",
        "attempt begin_receipt": "attempt task",
        "acknowledge lock_stream": "acknowledge attempt dispatch return task",
        "return lock_stream": "acknowledge attempt dispatch return task",
        "plan lock_stream": "plan",
        "enter enter_query": "enter",
        "enter-new enter_query": "enter-new",
        "dispatch sink_close": "dispatch",
        "dispatch settle": "acknowledge attempt return task",
    },
    "sinks": {
        "begin new_sink": "begin dispatch-new",
        "dispatch-new new_sink": "begin dispatch-new",
        "dispatch-also new_sink": "dispatch-also",
        "stage sink_open": "dispatch-a",
        "dispatch-a sink_close": "dispatch-a stage",
        "dispatch-b sink_close": "dispatch-b",
        "fails sink_close": "fails",
        "dispatch-x sink_close": "dispatch-x fails",
        "dispatch-x chunks": ABANDONED,
        "dispatch-x chunk_pages": ABANDONED,
        "dispatch-x discard": ABANDONED,
    },
    "subscriptions": {
        "subscribe subscribed": SUBSCRIBES,
        "subscribe subscribe": "subscribe-new",
        "subscribe-new subscribed": "endpoint-subscribes",
        "subscribe-new subscribe": "subscribe subscribe-new",
        "unsubscribe unsubscribe": SUBSCRIBES,
        "publish subscribers": SUBSCRIBES,
        "endpoint-subscribes transport.subscribe": f"{SUBSCRIBES} subscribe-new publish"
        " endpoint-publishes",
        "endpoint-unsubscribes transport.unsubscribe": SUBSCRIBES,
        "endpoint-publishes transport.subscribers": SUBSCRIBES,
    },
}
# Deadlocks that are accepted, with their victims: one scans rows and then locks their keys in
# Index_RowVersion, the other seeks by that index. The server ends one with 1205, before its commit.
# Ours tries again.
ACCEPTED = {
    "purge purge-range": "purge purge-range",
    "purge endpoint-expires": "purge",
    "purge-range endpoint-purges": "purge-range",
    "endpoint-purges endpoint-expires": "endpoint-purges endpoint-expires",
}
KNOWN = {(frozenset(who.split()), frozenset(ends.split())) for who, ends in ACCEPTED.items()}


@cache
def met(group: str, sessions: int) -> list[tuple[tuple[str, ...], Found]]:
    return list(meetings(group, sessions))


def problems(group: str, names: Sequence[str], found: Found) -> set[str]:
    """Return what must not happen when some sessions of a group meet."""
    told = {
        f"{who} waits in {statement}"
        for who, statement, whom in found.waits
        if whom not in WAITS[group].get(f"{who} {statement}", "").split()
        and (len(names) == 2 or "READPAST" in SHAPES.get(statement, ""))
        and not who.startswith("endpoint")
    }
    for cycle, victims in found.deadlocks:
        accepted = any(known <= cycle for known, _ in KNOWN)
        told |= set() if accepted else {"deadlock"}
        if any(not name.startswith("endpoint") for name in cycle):
            told |= {f"{name} is a victim" for name in victims if name.startswith("endpoint")}
    for ended, rows in found.ends:
        receipts, acked, staged, pages = (
            {row.id for row in rows if row.of == of}
            for of in ("receipt", "acked", "staging", "staging_page")
        )
        happened = {
            # the other attempt finds the receipt, or it fails and runs again
            "no receipt": {*names} == {"attempt"} and receipts != {"0", "1"},
            "duplicate key": "duplicate key" in ended and "attempt" not in names,
            "stale receipt": acked and receipts and "acknowledge" in names,
            "half a row": staged != pages,
        }
        told |= {problem for problem, happens in happened.items() if happens}
    return told


@pytest.mark.parametrize("sessions", [2, 3])
@pytest.mark.parametrize("group", GROUPS)
def test_sessions_that_meet_do_no_harm(group: str, sessions: int) -> None:
    """In no order is there an unknown deadlock or wait, a stale receipt, or missing pages."""
    told = {names: problems(group, names, found) for names, found in met(group, sessions)}

    assert {names: each for names, each in told.items() if each} == {}


@pytest.mark.parametrize("group", GROUPS)
def test_the_tables_of_waits_and_deadlocks_are_exact(group: str) -> None:
    """A receive waits for no one. A hanging task holds up its batch and its other attempts."""
    waits = {each for _, found in met(group, 2) for each in found.waits}
    deadlocks = {each for _, found in met(group, 2) for each in found.deadlocks}

    assert waits == {
        (*waiter.split(), name) for waiter, names in WAITS[group].items() for name in names.split()
    }
    assert deadlocks == (KNOWN if group == "queue" else set())


# statement | its skeleton | its path | a group and sessions of it, and what goes wrong
FAULTS = {
    # if the database reads row versions, a plain SELECT waits for no one
    "fence | stream || stream task acknowledge": "stale receipt",
    "receive | queue(UPDLOCK) || queue task endpoint-receives": "task waits",
    # the delete locks the key in Index_Expires before the row, but a receive locks the row first
    "purge_expired || delete queue.Index_Expires | queue task purge-expired": "task waits",
    # HOLDLOCK locks the gap of an absent key
    "new_sink|dispatch_log(HOLDLOCK)|insert dispatch_log absent|sinks begin dispatch-also": "begin",
    "discard || delete staging_page; delete staging | sinks dispatch-x dispatch-b": "deadlock",
    "discard_abandoned||delete staging_page; delete staging | sinks fails dispatch-b": "half a row",
    # UPDLOCK keeps locks on rows that are not old
    "discard_abandoned | staging(UPDLOCK,READPAST) || sinks dispatch-a dispatch-b": "dispatch",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault is in the hints of a statement or in its path."""
    name, shape, path, meeting = map(str.strip, fault.split("|"))
    group, *names = meeting.split()
    monkeypatch.setitem(SHAPES, name, shape or SHAPES[name])
    monkeypatch.setitem(PATHS, name, path or PATHS[name])

    found = problems(group, names, meet(group, names, snapshot=True))
    assert any(problem.startswith(FAULTS[fault]) for problem in found)
