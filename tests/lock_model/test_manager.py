"""The lock manager follows Microsoft's rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .explore import ESCALATION, explore
from .modes import COMPATIBLE, MODES
from .steps import Fact, Get, Mark, Marked, Put, Remove, Resource, Statement, Transaction

if TYPE_CHECKING:
    from .found import Found
    from .modes import Mode
    from .steps import Block, Ending, Step

KEY, OTHER = Resource("key", "table.index", "1"), Resource("key", "table.index", "2")
TABLE = Resource("table", "table")
APPLICATION = Resource("application", "sink a")
ROW = Fact("table", "1")


def session(
    name: str, *steps: Step, ending: Ending = "committed", priority: int = 0, last: Block = ()
) -> Transaction:
    """A transaction of one block; `last`: a block after it."""
    return Transaction(name, (Statement(name, (steps, last)),), ending, priority)


def waiting(found: Found) -> set[tuple[str, Resource]]:
    """Who waited for what."""
    return {(each.transaction, each.resource) for each in found.waits}


def endings(found: Found) -> set[tuple[Ending | None, ...]]:
    """How the sessions ended, in all interleavings."""
    return {ended for ended, _ in found.ends}


# ---------------------------------------------------------------- modes


def test_two_modes_exclude_each_other_both_ways() -> None:
    """Whichever of two sessions comes first."""
    for mode in MODES:
        for other in MODES:
            assert (other in COMPATIBLE[mode]) == (mode in COMPATIBLE[other]), (mode, other)


@pytest.mark.parametrize(
    ("parts", "whole"),
    [(("S", "IX"), "SIX"), (("U", "X"), "X"), (("RangeS-U", "X"), "RangeX-X")],
)
def test_what_a_session_holds_adds_up_to_the_mode_of_the_conversion(
    parts: tuple[Mode, Mode], whole: Mode
) -> None:
    """The manager needs no table of conversions."""
    beside = COMPATIBLE[parts[0]] & COMPATIBLE[parts[1]]

    assert beside == COMPATIBLE[whole]


@pytest.mark.parametrize(
    ("held", "wanted", "waits"),
    [
        ("U", "S", False),
        ("U", "U", True),
        ("IX", "IS", False),
        ("IX", "X", True),
        ("X", "S", True),
        ("RangeS-U", "RangeI-N", True),
        ("RangeS-U", "RangeS-U", True),
        ("X", "RangeI-N", False),
    ],
)
def test_a_session_waits_for_a_mode_that_excludes_its_own(
    held: Mode, wanted: Mode, *, waits: bool
) -> None:
    """As the matrix says."""
    found = explore([session("a", Get(KEY, held)), session("b", Get(KEY, wanted, kept=False))])

    assert (("b", KEY) in waiting(found)) == waits


# ---------------------------------------------------------------- order, conversion, duration


def test_a_request_waits_behind_an_earlier_one_and_a_conversion_does_not() -> None:
    """A deadlock of a reader, a writer and a second reader, which needs the order of requests."""
    reader = session("reader", Get(KEY, "S"), Get(OTHER, "X"))
    writer = session("writer", Get(KEY, "X"))
    second = session("second", Get(OTHER, "X"), Get(KEY, "S"))

    found = explore([reader, writer, second])
    alone = explore([reader, second])
    converts = explore([session("one", Get(KEY, "S"), Get(KEY, "X")), writer])

    assert any(len(each.cycle) == 3 for each in found.deadlocks)
    assert not alone.deadlocks
    assert not converts.deadlocks


def test_a_read_lock_that_is_not_kept_blocks_no_one() -> None:
    """READ COMMITTED returns it at once; REPEATABLEREAD keeps it."""
    writer = session("writer", Get(KEY, "X"))

    for kept in (False, True):
        found = explore([session("reader", Get(KEY, "S", kept=kept)), writer])

        assert (("writer", KEY) in waiting(found)) == kept


# ---------------------------------------------------------------- READPAST, application locks


def test_readpast_skips_a_key_and_waits_for_a_table() -> None:
    """And it leaves the block: nothing of that row is done."""
    skips = session("skips", Get(TABLE, "IX"), Get(KEY, "U", past=True), Remove(ROW))

    beside_row = explore([session("holds", Get(KEY, "X")), skips], [ROW])
    beside_table = explore([session("holds", Get(TABLE, "X")), skips], [ROW])

    assert waiting(beside_row) == {("holds", KEY)}
    assert {frozenset(), frozenset({ROW})} == {rows for _, rows in beside_row.ends}
    assert ("skips", TABLE) in waiting(beside_table)


def test_an_application_lock_is_held_until_the_transaction_ends() -> None:
    """As sp_getapplock with the owner Transaction."""
    one, two = (session(name, Get(APPLICATION, "X"), Put(Fact("t", name))) for name in "ab")

    found = explore([one, two])

    assert waiting(found) == {("a", APPLICATION), ("b", APPLICATION)}
    assert not found.deadlocks


# ---------------------------------------------------------------- deadlocks, undo


@pytest.mark.parametrize(("low", "victims"), [(-5, ("ours",)), (0, ("endpoint", "ours"))])
def test_the_session_of_the_lowest_priority_is_the_victim(
    low: int, victims: tuple[str, ...]
) -> None:
    """Between equals the server decides, so either may be ended."""
    ours = session("ours", Get(KEY, "X"), Put(ROW), Get(OTHER, "X"), priority=low)
    endpoint = session("endpoint", Get(OTHER, "X"), Get(KEY, "X"))

    found = explore([ours, endpoint])

    assert {each.victims for each in found.deadlocks} == {victims}
    assert (("committed", "deadlock") in endings(found)) == (low == 0)
    assert {ROW in rows for ended, rows in found.ends if ended[0] == "deadlock"} == {False}


def test_what_a_transaction_deleted_is_back_when_it_rolls_back() -> None:
    """And a session that waited for the row finds it."""
    undoes = session("undoes", Get(KEY, "X", fact=ROW), Remove(ROW), ending="rolled back")
    deletes = session("deletes", Get(KEY, "X", fact=ROW), Remove(ROW))

    found = explore([undoes, deletes], [ROW])

    assert {rows for _, rows in found.ends} == {frozenset()}
    assert ("deletes", KEY) in waiting(found)


def test_a_second_row_with_the_same_key_is_an_error() -> None:
    """Both insert: the second waits for the first, and then fails."""
    one, two = (session(name, Get(KEY, "X"), Put(ROW)) for name in "ab")

    assert endings(explore([one, two])) == {
        ("committed", "duplicate key"),
        ("duplicate key", "committed"),
    }


def test_a_table_variable_carries_rows_to_the_next_block() -> None:
    """What a block marked, a later one finds."""
    marks = session(
        "a", Get(KEY, "X", fact=ROW), Mark("1"), last=(Marked("1"), Put(Fact("t", "1")))
    )

    for rows in ((), (ROW,)):
        ((_, after),) = explore([marks], rows).ends
        assert (Fact("t", "1") in after) == bool(rows)


# ---------------------------------------------------------------- escalation


def test_many_locks_become_one_on_the_table_unless_others_use_it() -> None:
    """READPAST waits for that lock. The escalation itself never waits."""
    many = session("many", Get(TABLE, "IX"), Get(KEY, "X"), Get(OTHER, "X"))
    third = Resource("key", "table.index", "3")
    skips = session("skips", Get(TABLE, "IX"), Get(third, "U", past=True))

    few = explore([many, skips])
    found = explore([many, skips], escalation=2)

    assert ESCALATION == 5000
    assert not few.waits
    assert waiting(found) == {("skips", TABLE)}
    assert not found.deadlocks
