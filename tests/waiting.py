"""Waiting for a condition. If it never becomes true, the error shows what was seen last."""

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
    Call `look` until it returns what is `wanted`, by default any true value. Return that value.

    The last call begins after `seconds`. The error also has the text of `told`, as a log's end.
    """
    end = time.monotonic() + seconds
    while True:
        late = time.monotonic() > end
        seen = look()
        if seen if wanted is None else seen == wanted:
            return seen
        if late:
            lines = inspect.getsource(look).strip() if inspect.isfunction(look) else repr(look)
            what = f"waited {seconds:g} s for {'' if wanted is None else wanted!r}: {lines}"
            raise AssertionError(f"{what}\nsaw last: {seen!r}\n{told()}")
        time.sleep(0.02)
