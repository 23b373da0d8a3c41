"""The live screen of `sqlqueue stats --watch`, and its lines without a terminal."""

from __future__ import annotations

import sys
from collections import deque
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sqlq_spark.admin.formats import ago, byte_size, clean, estimate, quantity, span
from sqlq_spark.admin.watch import UNKNOWN, Flow, flows, lag, paces, to_json
from sqlq_spark.cli.screens.queues import STYLES, state_of
from sqlq_spark.cli.screens.screen import (
    NO_QUEUES,
    number,
    out,
    plain,
    print_json,
    say,
    say_error,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from sqlq_spark.admin.watch import Look, QueueLook

BARS = "▁▂▃▄▅▆▇█"
SHOWN = 6  # problems of a live screen
SPARKS = 40  # looks in the sparkline of a queue
LEGEND = (
    "in/s: growth of the highest seq. out/s: in/s less the change of the backlog. "
    "lag: waiting and held messages. Press Ctrl-C to end."
)


class Shower(Protocol):
    """Shows look after look."""

    def __enter__(self) -> object:
        """Begin."""

    def __exit__(self, *_: object) -> None:
        """End."""

    def show(self, before: Look | None, now: Look) -> None:
        """Show a look; `before` is the previous one."""

    def fail(self, text: str) -> None:
        """Report an error; another look will follow."""


class Lines(AbstractContextManager["Lines"]):
    """Lines of text."""

    def __exit__(self, *_: object) -> None:
        """End."""

    def show(self, before: Look | None, now: Look) -> None:
        """Print a line for each queue."""
        for text in lines(before, now):
            say(text)
        sys.stdout.flush()

    def fail(self, text: str) -> None:
        """Print the error on standard error."""
        say_error(f"{text} Trying again." if text.endswith(".") else f"{text}. Trying again.")


class JsonLines(Lines):
    """A line of JSON for each look."""

    def show(self, before: Look | None, now: Look) -> None:
        """Print a line."""
        print_json(to_json(before, now))
        sys.stdout.flush()


class Screen(AbstractContextManager["Screen"]):
    """Replaces each look by the next one, and restores the terminal at the end."""

    def __init__(self, interval: float) -> None:
        """
        Begin.

        Args:
            interval: seconds between two looks.
        """
        self._interval = interval
        self._live = Live(console=out(), screen=True, auto_refresh=False)
        self._backlogs: dict[str, deque[int]] = {}

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, before: Look | None, now: Look) -> None:
        """Show a look."""
        for each in now.queues:
            line = self._backlogs.setdefault(each.queue, deque(maxlen=SPARKS))
            line.append(each.depth.messages)
        head = Text.assemble((f"{now.at:%H:%M:%S} UTC", "bold"), f"  every {self._interval:g} s")
        parts: list[RenderableType] = [head, Text(), self._queues(before, now), Text()]
        parts += [*problems(now), Text()] if now.problems else []
        parts += [streams(before, now), Text(), Text(LEGEND, "dim")]
        self._live.update(Group(*parts), refresh=True)

    def fail(self, text: str) -> None:
        """Show an error until the next look."""
        again = "Trying again. Press Ctrl-C to end."
        self._live.update(Text(f"{clean(text)}\n\n{again}", "red"), refresh=True)

    def _queues(self, before: Look | None, now: Look) -> RenderableType:
        table = table_of_numbers(
            "backlog", "oldest", "in/s", "out/s", "expired", "delayed", "due", "receipts"
        )
        table.add_column("held", justify="right")
        table.add_column("size", justify="right")
        table.add_column("kind", no_wrap=True)
        table.add_column("state", no_wrap=True)
        table.add_column("queue", no_wrap=True, overflow="ellipsis", ratio=1)
        found = flows(before, now)
        for each in now.queues:
            line = Text(sparkline(self._backlogs[each.queue]), "cyan")
            name = Text.assemble(clean(each.queue), "  ", line)
            table.add_row(
                *map(plain, cells(each, found[each.queue])), each.kind, state_of(each), name
            )
        return table if now.queues else Text(NO_QUEUES)


def cells(each: QueueLook, its: Flow = UNKNOWN) -> list[object]:
    """A queue's figures, in the order of the table's columns."""
    delayed = each.delayed
    return [
        number(estimate(each.depth.messages, estimated=each.depth.estimated)),
        None if each.oldest is None else span(each.oldest),
        rate(its.incoming),
        rate(its.outgoing),
        each.depth.expired,
        None
        if delayed is None
        else number(estimate(delayed.messages, estimated=delayed.estimated)),
        None if delayed is None else delayed.due,
        each.receipts,
        each.held,
        byte_size(each.depth.bytes),
    ]


def problems(now: Look) -> list[RenderableType]:
    """What is wrong, errors first, each with what to do."""
    found: list[RenderableType] = []
    for each in now.problems[:SHOWN]:
        line = f"  {clean(each.where)}: {clean(each.found)}"
        found.append(Text.assemble((each.severity, STYLES[each.severity]), line))
        found.append(Text(f"    {clean(' '.join(each.fix.splitlines()))}", "cyan"))
    if rest := len(now.problems) - SHOWN:
        more = f"{quantity(rest, 'more problem')}: run `sqlqueue doctor`"
        found += [Text(more, "dim")] if rest > 0 else []
    return found


def streams(before: Look | None, now: Look) -> RenderableType:
    """The table of streams."""
    if now.streams is None:
        return Text("no streams: this login sees no state tables", "dim")
    table = table_of_numbers("lag", "messages/s", "receipts", "held", "seen")
    table.add_column("stream", no_wrap=True)
    table.add_column("queue", no_wrap=True, overflow="ellipsis", ratio=1)
    found = paces(before, now)
    for each in now.streams:
        figures = [lag(each, now), rate(found.get(each.stream)), each.receipts, each.held]
        row = [*figures, ago(each.seen), each.stream, each.queue]
        table.add_row(*map(plain, row))
    return table if now.streams else Text("no streams", "dim")


def table_of_numbers(*names: str) -> Table:
    """A table whose columns hold numbers."""
    table = Table(box=None, header_style="bold", pad_edge=False, expand=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def rate(value: float | None) -> str | None:
    """Messages per second, with one decimal place below ten."""
    if value is None:
        return None
    return f"{value:,.1f}" if value < 10 else f"{value:,.0f}"  # noqa: PLR2004


def sparkline(values: Iterable[int]) -> str:
    """A line of bars; the largest value has the highest bar, and 0 the lowest."""
    values = [*values]
    most = max(values, default=0) or 1
    return "".join(BARS[min(len(BARS) - 1, value * len(BARS) // most)] for value in values)


def lines(before: Look | None, now: Look) -> list[str]:
    """A look as lines of text, one for each queue."""
    found = flows(before, now)
    names = ("backlog", "oldest", "in/s", "out/s", "expired", "delayed", "due", "receipts", "held")
    found_lines = []
    for each in now.queues:
        values = cells(each, found[each.queue])[: len(names)]
        text = ", ".join(
            f"{name} {'-' if value is None else value}"
            for name, value in zip(names, values, strict=True)
        )
        found_lines.append(f"{now.at:%Y-%m-%d %H:%M:%S} {each.queue}: {text}, {each.state}")
    return found_lines or [f"{now.at:%Y-%m-%d %H:%M:%S} {NO_QUEUES}"]
