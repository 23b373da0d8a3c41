"""Waiting for a condition; if it never holds, the error shows what was seen last."""

from __future__ import annotations

import inspect
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
PATIENCE = 120.0  # seconds; nothing takes so long, but a machine may be busy, or stand still


def until(
    look: Callable[[], T],
    wanted: object = None,
    *,
    seconds: float = PATIENCE,
    told: Callable[[], object] = str,
) -> T:
    """
    Look again and again until there is something to be seen.

    Args:
        look: what is looked at.
        wanted: what must be seen; None: anything that counts as true.
        seconds: how long; the last look begins after them, however long the machine stood still.
        told: what the error tells too, as the end of a log.

    Returns:
        What was seen.
    """
    end = time.monotonic() + seconds
    while True:
        late = time.monotonic() > end
        seen = look()
        if seen if wanted is None else seen == wanted:
            return seen
        if late:
            what = "" if wanted is None else f" {wanted!r}"
            raise AssertionError(
                f"waited {seconds:g} s for{what}: {source(look)}\nsaw last: {seen!r}\n{told()}"
            )
        time.sleep(0.02)


def source(look: Callable[[], object]) -> str:
    """The lines in which a look stands."""
    try:
        return inspect.getsource(look).strip()
    except (OSError, TypeError):
        return repr(look)
