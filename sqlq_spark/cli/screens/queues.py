"""Screens of queues: findings, depths, delayed messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from sqlq_spark.admin.formats import byte_size, clean, estimate, span
from sqlq_spark.cli.screens.screen import BODY, NO_QUEUES, number, out, say, show, type_and_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlq_spark.admin.inspect import DelayedMessage
    from sqlq_spark.admin.problems import Finding, Severity
    from sqlq_spark.admin.watch import QueueLook

STYLES: dict[Severity, str] = {"error": "bold red", "warning": "bold yellow", "note": "dim"}


def show_findings(findings: Sequence[Finding]) -> None:
    """Show findings, errors first, each with the statements that fix it, one per line."""
    console = out()
    for each in sorted(findings, key=lambda each: each.rank):
        style = STYLES[each.severity]
        line = Text.assemble((each.severity, style), f"  {clean(each.where)}: {clean(each.found)}")
        console.print(line, soft_wrap=True)
        for fix in each.fix.splitlines():
            console.print(Text(f"    {clean(fix)}", "cyan"), soft_wrap=True)
    if not any(each.is_problem for each in findings):
        console.print(Text("no problems found", "green"))


def show_queues(queues: Sequence[QueueLook]) -> None:
    """Show queues and their delayed messages."""
    if not queues:
        say(NO_QUEUES)
        return
    rows = (
        (
            number(estimate(each.depth.messages, estimated=each.depth.estimated)),
            None if each.oldest is None else span(each.oldest),
            each.depth.expired,
            None
            if each.delayed is None
            else number(estimate(each.delayed.messages, estimated=each.delayed.estimated)),
            None if each.delayed is None else each.delayed.due,
            byte_size(each.depth.bytes),
            each.depth.first,
            each.depth.last,
            each.kind,
            state_of(each),
            each.queue,
        )
        for each in queues
    )
    names = (
        "messages",
        "oldest",
        "expired",
        "delayed",
        "due",
        "size",
        "first seq",
        "last seq",
        "kind",
        "state",
        "queue",
    )
    show(names, rows, "queues")


def state_of(each: QueueLook) -> Text:
    """A queue's state, in the colour of its worst problem."""
    worst = min(each.problems, key=lambda one: one.rank, default=None)
    return Text(clean(each.state), "green" if worst is None else STYLES[worst.severity])


def show_delayed(messages: Iterable[DelayedMessage]) -> None:
    """Show delayed messages, one per row."""
    rows = (
        (
            each.due,
            *type_and_time(each.headers),
            byte_size(len(each.body or b"")),
            None if each.body is None else each.body[:BODY].decode(errors="replace"),
        )
        for each in messages
    )
    show(("due", "type", "sent", "size", "body"), rows, "delayed messages")
