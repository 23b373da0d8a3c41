"""The life of a receipt, by its table of moves."""

from __future__ import annotations

from typing import get_args

from sqlq_spark.database.receipt_moves import (
    MOVES,
    STORED,
    Move,
    State,
)

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
