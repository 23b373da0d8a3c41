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
    Look again and again until what is `wanted` is seen, or anything true; return it.

    The last look begins after the seconds, however long the machine stood still. The error also
    tells what `told` gives, as the end of a log.
    """
    end = time.monotonic() + seconds
    while True:
        late = time.monotonic() > end
        seen = look()
        if seen if wanted is None else seen == wanted:
            return seen
        if late:
            what = "" if wanted is None else f" {wanted!r}"
            lines = inspect.getsource(look).strip() if inspect.isfunction(look) else repr(look)
            raise AssertionError(
                f"waited {seconds:g} s for{what}: {lines}\nsaw last: {seen!r}\n{told()}"
            )
        time.sleep(0.02)
