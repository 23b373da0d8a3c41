"""
The states of a receipt and the moves between them.

Each move is looked up here before it is done. Tests read the same table.

A move that MOVES does not list raises an error.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from sqlq_spark.errors import ReceiptMoveRefused, ReceiptSettled

State: TypeAlias = Literal["none", "held", "settled"]
Move: TypeAlias = Literal["save", "replay", "settle", "acknowledge", "return_", "drop"]

ReceiptKey: TypeAlias = tuple[str, int, int]  # stream, batch and task

# fmt: off
MOVES: Final[dict[tuple[State, Move], State]] = {
    # state      move             next         who
    ("none",    "save"):         "held",     # a task, in the commit that deletes the messages
    ("held",    "replay"):       "held",     # any later attempt of that task
    ("held",    "settle"):       "settled",  # the sink's driver, in the commit that sends
    ("settled", "settle"):       "settled",  # a second sink of the same micro-batch
    ("settled", "replay"):       "settled",  # a later attempt
    ("held",    "acknowledge"):  "none",     # the driver, when Spark has the batch in its log
    ("held",    "return_"):      "none",     # an operator: the messages are in the queue again
    ("held",    "drop"):         "none",     # an operator: the messages are gone
    ("settled", "acknowledge"):  "none",     # the driver; sent on already, so never returned
    ("settled", "drop"):         "none",     # an operator
}
# fmt: on

STORED: Final[tuple[State, ...]] = tuple(each for each in get_args(State) if each != "none")


def stored_state(*, settled: bool) -> State:
    """Name the state of a receipt that is in the table."""
    return "settled" if settled else "held"


def name_receipt(receipt: ReceiptKey) -> str:
    """Name a receipt for errors."""
    stream, batch, task = receipt
    return f"receipt {stream}/{batch}/{task}"


def next_state(state: State, move: Move, receipt: ReceiptKey) -> State:
    """
    Look up where a move of one receipt leads.

    Raises:
        ReceiptSettled: a settled receipt cannot be returned.
        ReceiptMoveRefused: any other move that MOVES does not list.
    """
    if (state, move) in MOVES:
        return MOVES[state, move]
    if (state, move) == ("settled", "return_"):
        raise ReceiptSettled(*receipt)
    raise ReceiptMoveRefused(name_receipt(receipt), move, state)


def check_stored(move: Move, receipts: str) -> None:
    """
    Look up a move that a statement makes without reading the receipts' states.

    The receipts may be in any stored state. Therefore the move must be listed for each of them.

    Args:
        move: what the statement does.
        receipts: what the error calls them.

    Raises:
        ReceiptMoveRefused: MOVES does not list the move for a stored state.
    """
    for state in STORED:
        if (state, move) not in MOVES:
            raise ReceiptMoveRefused(receipts, move, state)
