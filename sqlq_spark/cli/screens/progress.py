"""Progress bars on standard error, on a terminal only."""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from sqlq_spark.admin.formats import part, quantity
from sqlq_spark.cli.options import CTRL_C
from sqlq_spark.cli.screens.screen import say_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(bar_width=30),
    TextColumn("{task.fields[count]}"),
    TimeElapsedColumn(),
)


@contextmanager
def progress(
    what: str, total: int | None = None, *, quiet: bool, done: str | None = None
) -> Iterator[Callable[[int], None]]:
    """
    Show a progress bar.

    Args:
        what: what is counted, for example `message`.
        total: how many there will be; None if that is not known.
        quiet: show no bar.
        done: what was done with those that are counted, for example `deleted`. If it is set, Ctrl-C
            prints how many there were.

    Returns:
        A function that adds a number to the bar.
    """
    console = Console(stderr=True)
    gone = 0
    of = "" if total is None else f" of {total:,}"
    try:
        hidden = quiet or not sys.stderr.isatty()
        bars = Progress(*COLUMNS, console=console, disable=hidden, transient=quiet)
        with nullcontext() if hidden else bars:  # before rich 15 a disabled one ends with a newline
            bar = bars.add_task(f"{what}s", total=total, count=f"0{of}")

            def advance(more: int) -> None:
                nonlocal gone
                gone += more
                bars.update(bar, completed=gone, count=f"{gone:,}{of}")

            yield advance
    except CTRL_C:
        if done is not None:
            counted = quantity(gone, what) if total is None else part(gone, total, what)
            say_error(f"stopped: {counted} {done}")
        raise


def follow(
    batches: Iterable[int], what: str, total: int | None, *, quiet: bool, done: str | None = None
) -> int:
    """Show the progress of batches by their numbers of messages; returns the sum."""
    gone = 0
    with progress(what, total, quiet=quiet, done=done) as advance:
        for count in batches:
            gone += count
            advance(count)
    return gone
