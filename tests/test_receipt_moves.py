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


def test_the_table_of_moves_keeps_its_laws() -> None:
    """Every state and move is used, and the moves hold what the guarantees need."""
    assert {state for state, _ in MOVES} | {*MOVES.values()} == {*STATES}
    assert {move for _, move in MOVES} == {*EVERY_MOVE}
    # a receipt begins once, in the commit that deletes the messages
    assert after("none") == {"save": "held"}
    assert [state for state in STATES if "save" in after(state)] == ["none"]
    # a settled receipt was sent on: returned, its messages would be there twice
    assert "return_" in after("held")
    assert "return_" not in after("settled")
    into = {(state, move) for (state, move), then in MOVES.items() if then == "settled"}
    assert {move for state, move in into if state != "settled"} == {"settle"}
    assert "held" not in after("settled").values()
    for state in STORED:
        assert after(state)["replay"] == state
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


def test_a_statement_that_reads_no_state_may_do_only_some_moves() -> None:
    """Those that are listed for every stored state, because it may meet a receipt in any."""
    for move in EVERY_MOVE:
        if move in {"save", "return_"}:
            with pytest.raises(ReceiptMoveRefused, match=f"move {move} of the receipts"):
                check_stored(move, "the receipts")
        else:
            check_stored(move, "the receipts")

    assert set(STORED) == {"held", "settled"}
