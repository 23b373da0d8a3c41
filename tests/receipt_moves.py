"""
The states of a receipt and the moves between them. The model compares all moves with them.

The package refuses one move: a settled receipt is not returned.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

State: TypeAlias = Literal["none", "held", "settled"]
Move: TypeAlias = Literal["save", "replay", "settle", "acknowledge", "return_", "drop"]

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
