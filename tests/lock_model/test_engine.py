"""The lock manager follows Microsoft's rules."""

from __future__ import annotations

import re

import pytest

from .engine import COMPATIBLE, End, Get, Place, Transaction, explore


def test_two_modes_exclude_each_other_both_ways() -> None:
    """Whichever of two sessions comes first."""
    for mode, beside in COMPATIBLE.items():
        assert {other for other, modes in COMPATIBLE.items() if mode in modes} == beside


def session(name: str, script: str) -> Transaction:
    """Take locks: `X1` on the key 1, `X0` on the table; `-` is not kept, `?` is READPAST."""
    steps = (
        Get(Place("t", at.strip("0")), mode, past=flag == "?", kept=flag != "-")
        for mode, at, flag in re.findall(r"(\D+)(\d)(\S?) ?", script)
    )
    lines = [("", step, at) for at, step in enumerate(steps, 1)]
    return Transaction(name, [*lines, ("", End("committed"), 0)])


@pytest.mark.parametrize(
    ("sessions", "waiting", "cycle"),
    [
        ("U1, S1", "", ""),
        ("U1, U1", "ab", ""),
        ("S1, X1", "ab", ""),
        ("IX0, IS0", "", ""),
        ("IX0, X0", "ab", ""),
        ("RangeS-U1, RangeI-N1", "ab", ""),
        ("X1, RangeI-N1", "", ""),
        # READ COMMITTED returns the lock at once
        ("S1-, X1", "a", ""),
        # READPAST skips a key, and waits for a table
        ("U1?, X1", "b", ""),
        ("IX0 U1?, X0", "ab", ""),
        ("X1 X2, X2 X1", "ab", "ab"),
        # a request waits behind an earlier one, and a conversion does not
        ("S1 X2, X2 S1", "ab", ""),
        ("S1 X2, X2 S1, X1", "abc", "abc"),
        ("S1 X1, X1", "ab", ""),
    ],
)
def test_who_waits_and_who_deadlocks(sessions: str, waiting: str, cycle: str) -> None:
    """By the matrix, in the order of requests."""
    found = explore(list(map(session, "abc", sessions.split(", "))))

    assert {who for who, _, _ in found.waits} == set(waiting)
    assert max((names for names, _ in found.deadlocks), default=set(), key=len) == set(cycle)
