"""What our sessions do: each function is one transaction, statement by statement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .steps import Fact, Needs, Statement, Transaction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .statements import Ours
    from .steps import Ending

LOW = -5  # SET DEADLOCK_PRIORITY LOW


def ours(name: str, *statements: Statement, ending: Ending = "committed") -> Transaction:
    """Return a transaction of ours, which is the victim of any deadlock with an endpoint."""
    return Transaction(name, statements, ending, LOW)


# ---------------------------------------------------------------- queues


def task(on: Ours, rows: Sequence[str], *, number: str = "1", name: str = "task") -> Transaction:
    """A receive task."""
    return ours(
        name,
        on.fence(),
        on.find_receipt(number),
        on.begin_receipt(number),
        *on.receive(rows),
        on.save_receipt(number),
    )


def divert_large(on: Ours, rows: Sequence[str]) -> Transaction:
    """A task without receipts moves what is too large to the error queue."""
    found = on.select("find_large", "queue", rows, by="Index_RowVersion")
    gone = on.delete("divert_large", "queue", rows, by="Index_RowVersion")
    return ours("divert_large", found, gone, on.load("errors", "diverted"))


def retry(on: Ours, rows: Sequence[str]) -> Transaction:
    """`sqlqueue retry` takes messages of one queue and sends them to another."""
    taken = on.delete("take", "queue", rows, by="Index_RowVersion")
    return ours("retry", taken, on.load("errors", "returned"))


def purge(on: Ours, rows: Sequence[str]) -> Transaction:
    """The option purgeOnStartup scans the table."""
    return ours("purge", on.delete("purge", "queue", rows))


def purge_range(on: Ours, rows: Sequence[str]) -> Transaction:
    """`sqlqueue purge`, by RowVersion."""
    return ours("purge_range", on.delete("purge_range", "queue", rows, by="Index_RowVersion"))


def purge_expired(on: Ours, rows: Sequence[str]) -> Transaction:
    """`sqlqueue purge --expired`."""
    return ours("purge_expired", on.purge_expired(rows))


def move_due(on: Ours, rows: Sequence[str], *, by: str = "Index_Due") -> Transaction:
    """The mover; `by` empty: a scan under stale statistics."""
    after = on.select("next_due", "delayed", rows, by="Index_Due", covered=True)
    return ours(f"move_due {by}".strip(), on.move_due(rows, by=by), after)


def browse(on: Ours, rows: Sequence[str]) -> Transaction:
    """A page of a browse."""
    page = on.select("browse", "queue", rows, by="Index_RowVersion")
    return ours("browse", page)


def send(on: Ours, row: str) -> Transaction:
    """delivery=atLeastOnce inserts into the queue."""
    return ours("send", on.load("queue", row))


def delay(on: Ours, row: str) -> Transaction:
    """A delayed message is stored."""
    return ours("delay", on.load("delayed", row))


# ---------------------------------------------------------------- streams


def acknowledge(on: Ours, tasks: Sequence[str]) -> Transaction:
    """The driver closes the batch and plans the next one."""
    return ours(
        "acknowledge",
        on.update("lock_stream", "stream", "1"),
        on.select("outcome", "receipt", tasks),
        on.acknowledge(),
        on.delete_pages_and_rows("delete_receipts", "receipt", tasks),
    )


def plan(on: Ours, stream: str, receipts: Sequence[str]) -> Transaction:
    """The driver of another source of the same query plans a batch."""
    return ours("plan", on.update("lock_stream", "stream", stream), on.store_plan(stream, receipts))


def return_(on: Ours, number: str) -> Transaction:
    """An operator puts a receipt's messages back; its batch is closed."""
    there = Statement("drop_receipt", ((Needs(Fact("receipt", number), otherwise="committed"),),))
    return ours(
        "return_",
        on.update("lock_stream", "stream", "1"),
        there,
        on.delete_pages_and_rows("drop_receipt", "receipt", [number]),
        on.acknowledge(),
        on.load("queue", f"returned {number}"),
    )


# ---------------------------------------------------------------- sinks


def begin_sink(on: Ours, sink: str) -> Transaction:
    """A task makes the row of a new sink, before its first chunk."""
    return ours(f"begin {sink}", on.new_sink(sink))


def stage(on: Ours, sink: str, chunk: str) -> Transaction:
    """A task stages one chunk."""
    lock = on.select("sink_open", "dispatch_log", [sink])
    return ours(f"stage {sink}", lock, on.stage(chunk))


def dispatch(
    on: Ours,
    sink: str,
    chunks: Sequence[str],
    *,
    abandoned: Sequence[str] = (),
    others: Sequence[str] = (),
    old: Sequence[str] = (),
    settles: Sequence[str] = (),
    new: bool = False,
    ending: Ending = "committed",
) -> Transaction:
    """
    The driver sends what was staged.

    Args:
        on: the tables.
        sink: who sends.
        chunks: of the batch.
        abandoned: chunks of any sink that are older than a week.
        others: chunks of any sink that are younger.
        old: sinks that are older than a week.
        settles: receipts of its micro-batch.
        new: whether the sink has no row yet.
        ending: how it ends.
    """
    return ours(
        f"dispatch {sink}",
        *([on.new_sink(sink)] if new else []),
        on.update("sink_close", "dispatch_log", sink),
        on.update("advance", "dispatch_log", sink),
        *([on.settle(settles)] if settles else []),
        on.select("chunks", "staging", chunks),
        on.select("chunk_pages", "staging_page", chunks),
        on.load("queue", f"sent {sink}"),
        on.delete_pages_and_rows("discard", "staging", chunks),
        on.discard_abandoned(abandoned, others),
        on.delete("delete_old_sinks", "dispatch_log", old),
        ending=ending,
    )


def subscribe(on: Ours, row: str) -> Transaction:
    """An endpoint subscribes."""
    return ours("subscribe", on.subscribe(row))


def unsubscribe(on: Ours, row: str) -> Transaction:
    """An endpoint unsubscribes."""
    return ours("unsubscribe", on.delete("unsubscribe", "subscriptions", [row]))


def subscribers(on: Ours, rows: Sequence[str]) -> Transaction:
    """A publisher reads them."""
    return ours("subscribers", on.select("subscribers", "subscriptions", rows))
