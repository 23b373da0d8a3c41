"""
Two and three sessions in every order: who waits, who deadlocks, and what is left.

Each fault that the model found in earlier statements has a test with both: it is found in those of
before.py, and not in the statements as they are.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest

from . import transactions as ours
from .before import BEFORE, Before
from .explore import explore
from .groups import GROUPS, START, World, meetings, worlds
from .statements import SHAPES, Ours
from .steps import Fact
from .transport import ON_TABLES, Endpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .found import Deadlock, Found
    from .steps import Transaction

# Deadlocks that are accepted: their transactions, and why. The server ends one of them with 1205,
# before its commit. Ours has the lower priority and tries again; see TRANSIENT in database/.
ORDER = (
    "one scans rows and then locks their keys in Index_RowVersion, the other seeks by that index"
)
ACCEPTED = {
    frozenset({"purge", "purge_range"}): f"purgeOnStartup beside `sqlqueue purge`: {ORDER}",
    frozenset({"purge", "endpoint purges expired"}): f"purgeOnStartup: {ORDER}",
    frozenset({"purge_range", "endpoint purges"}): f"`sqlqueue purge`: {ORDER}",
    frozenset({"endpoint purges", "endpoint purges expired"}): f"both the transport's: {ORDER}",
}
# statements that wait for no row: they skip it
NEVER_WAIT = {
    *("weigh", "receive", "take", "find_large", "divert_large", "browse"),
    *("purge_expired", "move_due", "next_due", "discard_abandoned", "delete_old_sinks"),
}


@cache
def met(group: str, sessions: int) -> list[tuple[list[Transaction], Found]]:
    """All that sessions of a group do to each other; three sessions on one database, few rows."""
    at = worlds() if sessions == 2 else [worlds()[0].small()]
    return [meeting for each in at for meeting in meetings(group, sessions, each)]


def deadlocks(group: str, sessions: int) -> Iterator[Deadlock]:
    """All deadlocks in a group."""
    return (each for _, found in met(group, sessions) for each in found.deadlocks)


def names(deadlock: Deadlock) -> frozenset[str]:
    """The transactions of a cycle."""
    return frozenset(name for name, _ in deadlock.cycle)


@pytest.mark.parametrize("sessions", [2, 3])
@pytest.mark.parametrize("group", GROUPS)
def test_no_sessions_deadlock_except_those_that_are_accepted(group: str, sessions: int) -> None:
    """Ours with the transport's, and ours with each other; the victim is never an endpoint."""
    for each in deadlocks(group, sessions):
        assert any(known <= names(each) for known in ACCEPTED), each
        if any(not name.startswith("endpoint") for name in names(each)):
            assert not any(name.startswith("endpoint") for name in each.victims)


def test_every_deadlock_that_is_listed_happens() -> None:
    """Else its line must go."""
    assert {names(each) for each in deadlocks("queue", 2)} == set(ACCEPTED)


@pytest.mark.parametrize("sessions", [2, 3])
@pytest.mark.parametrize("group", GROUPS)
def test_a_statement_that_skips_locked_rows_never_waits_for_one(group: str, sessions: int) -> None:
    """A receive, beside whatever else runs on its queue."""
    for _, found in met(group, sessions):
        for each in found.waits:
            assert each.transaction.startswith("endpoint") or each.statement not in NEVER_WAIT, each


@pytest.mark.parametrize("group", GROUPS)
def test_a_plan_that_deletes_index_by_index_changes_nothing(group: str) -> None:
    """The server may choose it for many rows."""
    at = World(Ours(SHAPES, by_index=True), Endpoint(ON_TABLES, by_index=True))
    found = [found for _, found in meetings(group, 2, at)]

    assert {names(each) for some in found for each in some.deadlocks} <= set(ACCEPTED)
    for each in (each for some in found for each in some.waits):
        assert each.transaction.startswith("endpoint") or each.statement not in NEVER_WAIT, each


@pytest.mark.parametrize("group", GROUPS)
def test_no_row_is_inserted_twice(group: str) -> None:
    """Of two sessions with one new sink, one inserts and the other waits; attempts see below."""
    for made, found in met(group, 3):
        attempts = {each.name for each in made} >= {"task", "attempt"} or (
            [each.name for each in made].count("attempt") > 1
        )
        assert attempts or not any("duplicate key" in ended for ended, _ in found.ends)


# ---------------------------------------------------------------- tasks and batches


def left(found: Found, table: str) -> set[frozenset[str]]:
    """The rows of a table that may be left."""
    return {frozenset(each.id for each in rows if each.table == table) for _, rows in found.ends}


def stale(found: Found) -> bool:
    """Whether a receipt may be left of a batch that was acknowledged."""
    return any(
        Fact("acked", "1") in rows and any(each.table == "receipt" for each in rows)
        for _, rows in found.ends
    )


@pytest.mark.parametrize("sessions", [2, 3])
def test_a_task_of_an_acknowledged_batch_never_receives(sessions: int) -> None:
    """No one would read its receipt."""
    acknowledged = [
        found
        for made, found in met("stream", sessions)
        if any(each.name == "acknowledge" for each in made)
    ]

    assert acknowledged
    assert not any(map(stale, acknowledged))


def test_with_a_fence_that_only_reads_a_stale_task_receives() -> None:
    """Where the database reads row versions, a plain SELECT waits for no one."""
    facts = [*(Fact("stream", each) for each in "12"), Fact("queue", "1")]

    for shape, fails in (
        (SHAPES["fence"], False),
        ("SELECT SELECT stream", True),
    ):
        on = Ours(SHAPES | {"fence": shape}, snapshot=True)
        found = explore([ours.task(on, ["1"]), ours.acknowledge(on, ["1"])], facts)

        assert stale(found) == fails


@pytest.mark.parametrize("snapshot", [False, True])
def test_of_two_attempts_of_a_task_one_leaves_the_receipt(*, snapshot: bool) -> None:
    """The other waits for it, and then has found it or fails, so that it runs again."""
    attempt = ours.task(Ours(SHAPES, snapshot), ["1", "e2"])
    found = explore([attempt, attempt], START)

    assert not found.deadlocks
    assert {"begin_receipt"} <= {each.statement for each in found.waits}
    assert {frozenset(ended) for ended, _ in found.ends} == {
        frozenset({"committed"}),
        frozenset({"committed", "duplicate key"}),
    }
    assert all("1" in rows for rows in left(found, "receipt"))


def test_without_readpast_a_receive_waits() -> None:
    """For an endpoint that handles a message."""
    shape = SHAPES["receive"].replace("READPAST,", "")
    on, at = Ours(SHAPES | {"receive": shape}), worlds()[0]
    found = explore([ours.task(on, ["1"]), at.endpoint.receive(["1"])], START)

    assert {each.statement for each in found.waits if each.transaction == "task"} == {"receive"}


def test_tasks_of_a_batch_do_not_wait_for_each_other() -> None:
    """Their receipts have keys of their own, and no gap is locked."""
    assert not explore([ours.task(Ours(SHAPES), [], number=n) for n in "78"], START).waits


# ---------------------------------------------------------------- purges


def test_a_purge_that_locks_the_table_makes_a_receive_wait_and_does_not_deadlock() -> None:
    """READPAST does not skip that lock. Here three rows are as many as 5,000."""
    on, rows = Ours(SHAPES), ["1", "e2", "3"]
    made = [ours.purge(on, rows), ours.task(on, rows[:2])]
    found = explore(made, [*START, Fact("queue", "3")], escalation=3)
    tables = {each.resource.of for each in found.waits if each.statement == "weigh"}

    assert tables == {"queue"}
    assert not found.deadlocks
    assert not any(each.statement == "receive" for each in found.waits)


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("snapshot", [False, True])
def test_a_purge_of_expired_messages_and_a_receive_do_not_deadlock(
    *, snapshot: bool, clustered: bool
) -> None:
    """A purge that deleted by Index_Expires locked its key first, and a receive the row first."""
    for kind, shapes, fails in ((Before, BEFORE, True), (Ours, SHAPES, False)):
        on = kind(shapes, snapshot, clustered)
        found = explore([ours.task(on, ["1", "e2"]), ours.purge_expired(on, ["1", "e2"])], START)

        assert {each.cycle for each in found.deadlocks} == (
            {(("purge_expired", "purge_expired"), ("task", "receive"))} if fails else set()
        )
        assert ({each.statement for each in found.waits} >= {"receive"}) == fails
        assert all("1" not in rows for rows in left(found, "queue")) != fails


def test_who_waits_for_a_task_that_hangs() -> None:
    """Its other attempts, and who closes or settles its batch; not other tasks, nor endpoints."""
    waiting = {
        (each.transaction, each.statement)
        for made, found in met("stream", 2)
        if made[0].name == "task" or made[1].name == "task"
        for each in found.waits
        if "task" in each.holders and each.transaction != "task"
    }

    assert waiting == {
        ("attempt", "find_receipt"),
        ("attempt", "begin_receipt"),
        ("acknowledge", "lock_stream"),
        ("return_", "lock_stream"),
        ("dispatch a", "settle"),
    }


# ---------------------------------------------------------------- sinks


def test_new_sinks_do_not_wait_for_each_other() -> None:
    """HOLDLOCK on a sink that is absent kept the gap locked, where others were to be inserted."""
    for on, waits in ((Before(BEFORE), True), (Ours(SHAPES), False)):
        found = explore([ours.dispatch(on, sink, sink, new=True) for sink in ("new", "other")])

        assert bool(found.waits) == waits
        assert not found.deadlocks


def test_tasks_of_one_new_sink_wait_only_for_its_row() -> None:
    """The second finds the row of the first; their chunks are staged side by side."""
    on = Ours(SHAPES)
    begun = explore([ours.begin_sink(on, "new") for _ in "ab"])
    staged = explore([ours.stage(on, "new", chunk) for chunk in "ab"])

    assert begun.waits
    assert {ended for ended, _ in begun.ends} == {("committed", "committed")}
    assert not staged.waits


def test_dispatches_that_delete_abandoned_chunks_do_not_wait_for_each_other() -> None:
    """Each read the pages of all others, and found those of the other's own batch locked."""
    for on, fails in ((Before(BEFORE), True), (Ours(SHAPES), False)):
        made = [ours.dispatch(on, s, [s], abandoned=["x"], others=["a", "b"]) for s in "ab"]
        found = explore(made, START)

        assert bool(found.deadlocks) == fails
        assert bool(found.waits) == fails
        assert frozenset() in left(found, "staging")


def test_abandoned_rows_and_their_pages_are_deleted_together() -> None:
    """A row that was locked while pages were deleted, and free afterwards, left its pages."""
    for on, fails in ((Before(BEFORE), True), (Ours(SHAPES), False)):
        undone = ours.dispatch(on, "a", [], abandoned=["x"], ending="rolled back")
        found = explore([undone, ours.dispatch(on, "b", [], abandoned=["x"])], START)
        apart = [
            rows
            for _, rows in found.ends
            if (Fact("staging", "x") in rows) != (Fact("staging_page", "x") in rows)
        ]

        assert bool(apart) == fails


def test_a_driver_that_discards_old_chunks_does_not_deadlock_with_others() -> None:
    """Pages before rows in one, and rows before pages in the other: both delete rows first now."""
    pages_first = SHAPES | {"discard": BEFORE["discard"]}

    for shapes, fails in ((pages_first, True), (SHAPES, False)):
        on = Ours(shapes)
        late = ours.dispatch(on, "x", ["x"])
        found = explore([late, ours.dispatch(on, "b", [], abandoned=["x"])], START)

        assert bool(found.deadlocks) == fails


def test_locks_on_rows_that_are_not_old_are_returned() -> None:
    """With UPDLOCK the other dispatches would wait for their own chunks."""
    shape = SHAPES["discard_abandoned"].replace("READPAST", "UPDLOCK,READPAST")

    for shapes, waits in ((SHAPES | {"discard_abandoned": shape}, True), (SHAPES, False)):
        on = Ours(shapes)
        made = [ours.dispatch(on, "a", ["a"]), ours.dispatch(on, "b", [], others=["a"])]

        assert bool(explore(made, START).waits) == waits
