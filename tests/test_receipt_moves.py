"""The life of a receipt, by its table of moves."""

from __future__ import annotations

from typing import get_args

import pytest

from sqlq_spark.database.receipt_moves import (
    MOVES,
    STORED,
    Move,
    State,
    check_stored,
    next_state,
)
from sqlq_spark.errors import ReceiptMoveRefused, ReceiptSettled, SqlQueueError

STATES: tuple[State, ...] = get_args(State)
EVERY_MOVE: tuple[Move, ...] = get_args(Move)


def after(state: State) -> dict[Move, State]:
    """Where each move leads from a state."""
    return {move: MOVES[state, move] for move in EVERY_MOVE if (state, move) in MOVES}


def test_every_state_and_every_move_is_in_the_table() -> None:
    """A name that nothing leads to, or that nothing does, would be one too many."""
    assert {state for state, _ in MOVES} | {*MOVES.values()} == {*STATES}
    assert {move for _, move in MOVES} == {*EVERY_MOVE}


def test_a_receipt_begins_only_by_being_saved() -> None:
    """In the commit that deletes the messages; there is no other way in."""
    assert after("none") == {"save": "held"}


def test_a_receipt_is_saved_once() -> None:
    """A second save would forget what the first one holds."""
    assert [state for state in STATES if "save" in after(state)] == ["none"]


def test_what_is_settled_is_never_returned() -> None:
    """It was sent on: in its queue again it would be there twice."""
    assert "return_" in after("held")
    assert "return_" not in after("settled")


def test_only_a_settle_settles_and_nothing_undoes_it() -> None:
    """A settled receipt stays so until it is gone."""
    into = {(state, move) for (state, move), then in MOVES.items() if then == "settled"}

    assert {move for state, move in into if state != "settled"} == {"settle"}
    assert "held" not in after("settled").values()


@pytest.mark.parametrize("state", ["held", "settled"])
def test_a_replay_changes_nothing(state: State) -> None:
    """However often a task is tried again."""
    assert after(state)["replay"] == state


@pytest.mark.parametrize("state", ["held", "settled"])
def test_a_receipt_ends_by_its_ack_or_by_an_operator(state: State) -> None:
    """No task and no sink may forget it."""
    ends = {move for move, then in after(state).items() if then == "none"}

    assert ends - {"return_"} == {"acknowledge", "drop"}


KEY = ("a stream", 3, 0)


@pytest.mark.parametrize("move", EVERY_MOVE)
@pytest.mark.parametrize("state", STATES)
def test_a_move_that_is_not_listed_raises(state: State, move: Move) -> None:
    """The table is what the product obeys."""
    if (state, move) in MOVES:
        assert next_state(state, move, KEY) == MOVES[state, move]
        return

    with pytest.raises(SqlQueueError) as caught:
        next_state(state, move, KEY)
    returned = (state, move) == ("settled", "return_")
    assert type(caught.value) is (ReceiptSettled if returned else ReceiptMoveRefused)
    assert "receipt a stream/3/0" in str(caught.value)


@pytest.mark.parametrize("move", ["save", "return_"])
def test_a_statement_that_reads_no_state_may_not_do_every_move(move: Move) -> None:
    """It may meet a receipt in any stored state."""
    with pytest.raises(ReceiptMoveRefused, match=f"move {move} of the receipts"):
        check_stored(move, "the receipts")


@pytest.mark.parametrize("move", ["replay", "settle", "acknowledge", "drop"])
def test_the_other_moves_are_listed_for_every_stored_state(move: Move) -> None:
    """Therefore their statements need not look at the state."""
    check_stored(move, "the receipts")

    assert set(STORED) == {"held", "settled"}
