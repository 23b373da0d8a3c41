"""The begin of the page: a table of all queues, and what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlq_spark.admin.formats import byte_size, estimate, quantity, span
from sqlq_spark.admin.page import page

if TYPE_CHECKING:
    from sqlq_spark.admin import watch
    from sqlq_spark.admin.report import Report

ABSENT = "-"


def overview(found: Report) -> str:
    """What is wrong, and a table of all queues."""
    if not found.queues:
        return page.paragraph("This login may read no table that has the columns of a queue.")
    names = ("queue", "state", "kind", "backlog", "oldest", "errors", "expired")
    rows = [row(each.look, found.errors.get(each.look.queue)) for each in found.queues]
    wrong = [
        (
            page.Mark(each.severity, each.severity),
            page.Wide("name", each.where),
            page.Wide("long", each.found),
            page.Wide("long", page.Mark("code", " ".join(each.fix.splitlines()))),
        )
        for each in found.look.problems
    ]
    note = (
        "Errors: messages in the error queues, by the queue where they failed. ~ marks an estimate."
    )
    parts = [page.table((*names, "delayed", "size"), rows), page.paragraph(note)]
    if wrong:
        parts += [
            page.heading(2, f"What is wrong: {quantity(len(wrong), 'problem')}"),
            page.table(("", "where", "what", "what to do"), wrong),
        ]
    return f'<section class="overview">{"".join(parts)}</section>'


def row(look: watch.QueueLook, errors: int | None) -> list[object]:
    """A queue's row in the table of all queues."""
    worst = min(look.problems, key=lambda each: each.rank, default=None)
    delayed = look.delayed
    return [
        page.Wide("name", look.queue),
        page.Mark("ok" if worst is None else worst.severity, look.state),
        page.Mark("kind", look.kind),
        page.Number(estimate(look.depth.messages, estimated=look.depth.estimated)),
        ABSENT if look.oldest is None else span(look.oldest),
        errors,
        look.depth.expired,
        None
        if delayed is None
        else page.Number(estimate(delayed.messages, estimated=delayed.estimated)),
        page.Number(byte_size(look.depth.bytes)),
    ]
