"""
A wait that ends when a condition does: look, pause, look again, and log what it waits for.

It has no end of its own. Spark ends the process of a task when its query is stopped.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("sqlq_spark")

REMINDER = 600.0  # seconds after which a wait is logged again


@dataclass(frozen=True)
class Reason:
    """What a wait waits for."""

    text: str
    pause: float  # seconds until another look is worthwhile


class Look(Protocol):
    """Looks whether there is still a reason to wait."""

    def __call__(self, *, exact: bool) -> Reason | None:
        """Return the reason, or None; `exact`: the text is for a log line."""


def wait_while(
    look: Look,
    name: str,
    *,
    level: int = logging.WARNING,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """
    Return when there is no reason to wait any more.

    It logs one line when the wait begins, a warning every REMINDER seconds, and one line at the
    end.

    Args:
        look: is asked for the reason; it holds no transaction open afterwards.
        name: of what waits, for the log.
        level: of the first line and the last.
        clock: monotonic seconds.
        sleep: passes seconds.
    """
    began = clock()
    reason = look(exact=True)
    if reason is None:
        return
    log.log(level, "%s waits: %s", name, reason.text)
    remind = began + REMINDER
    while reason is not None:
        sleep(reason.pause)
        late = clock() >= remind
        reason = look(exact=late)
        if late and reason is not None:
            log.warning("%s still waits, %d s: %s", name, clock() - began, reason.text)
            remind = clock() + REMINDER
    log.log(level, "%s waited %.1f s and goes on", name, clock() - began)
