"""Purging: all that waits, or what has expired; never what a consumer holds, never half a batch."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from recorded_connection import RecordedConnection
from waiting import until

from sqlq_spark.admin.inspect import depth
from sqlq_spark.admin.purge import purge_expired, purge_parts
from sqlq_spark.database import transaction
from sqlq_spark.errors import Deadlock, TimedOut
from sqlq_spark.receive.driver import purge
from sqlq_spark.receive.offset import INITIAL

from .conftest import TIMEOUT, Bench

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def fill(bench: Bench, lives: Sequence[int | None]) -> None:
    """Send messages that are numbered from 0."""
    for at, each in enumerate(lives):
        bench.dotnet.send(bench.queue, body=b"%d" % at, lives=each)


def test_a_purge_waits_for_consumers_and_fails_as_a_whole(bare: Bench) -> None:
    """A message that someone handles is theirs; nothing is deleted but by the commit."""
    fill(bare, [None] * 3)

    session = bare.session("purge", queryTimeout="1s")
    with bare.dotnet.hold(bare.queue, bare.seqs()[1:2]), pytest.raises(TimedOut):
        # a session that was idle for so long is ended, which is another matter
        session.run_with_retries(partial(purge, queues=[bare.queue]))

    assert len(bare.seqs()) == 3


@pytest.mark.parametrize("index", [False, True])
def test_only_what_has_expired_is_purged(bare: Bench, *, index: bool) -> None:
    """By the database's clock; what a consumer holds is not waited for, but found the next time."""
    bare.dotnet.dba.expires_index(bare.queue, there=index)
    fill(bare, [None, -1, 3_600_000, 0, -86_400_000])
    purged = partial(purge_expired, bare.desk, bare.queue)

    with bare.dotnet.hold(bare.queue, bare.seqs()[1:2]):
        assert list(purged()) == [2]

    assert bare.bodies() == [b"0", b"1", b"2"]
    assert list(purged()) == [1]
    assert bare.bodies() == [b"0", b"2"]


@pytest.mark.parametrize(("expired", "batches"), [(0, []), (2, [2]), (3, [3]), (7, [3, 3, 1])])
def test_batches_are_full_but_the_last(bare: Bench, expired: int, batches: list[int]) -> None:
    """And none is empty."""
    fill(bare, [-1] * expired + [None])

    assert list(purge_expired(bare.desk, bare.queue, batch=3)) == batches
    assert len(bare.seqs()) == 1


class Victim(RecordedConnection):
    """A session whose first delete is undone to end a deadlock."""

    undone = False

    def around(self, statement: str, call: Callable[[], Any]) -> Any:
        """As RecordedConnection; the delete runs before it is undone."""
        found = call()
        if statement.startswith("purge_") and not self.undone:
            self.undone = True
            raise Deadlock(statement=statement, reason="victim")
        return found


def test_a_batch_that_deadlocks_is_deleted_again(bare: Bench) -> None:
    """By ranges and by expiry; each message is counted once."""
    fill(bare, [-1] * 2 + [None] * 3)

    with transaction(bare.desk, timeout=TIMEOUT):
        waits = depth(bare.desk, bare.queue)
    expired, rest = Victim(bare.desk), Victim(bare.desk)

    assert list(purge_expired(expired, bare.queue)) == [2]
    assert sum(purge_parts(rest, bare.queue, waits)) == 3
    assert expired.undone
    assert rest.undone
    assert bare.seqs() == []


def test_purge_on_startup_says_how_much_and_waits_for_consumers(
    bare: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """What a consumer holds and gives back is purged too, for it came before the start."""
    fill(bare, [None] * 3)
    caplog.set_level(logging.WARNING, logger="sqlq_spark")
    loop = bare.loop(purgeOnStartup="true", transactionMode="none")

    with bare.dotnet.hold(bare.queue, bare.seqs()[:1]):
        started = bare.thread(lambda: loop.latest(INITIAL))
        until(lambda: bare.dotnet.waiting("sqlqueue driver orders"))

    assert started.result(timeout=TIMEOUT) == INITIAL
    assert bare.seqs() == []
    (record,) = caplog.records
    assert record.getMessage() == f"{bare.printed}: 3 messages purged (purgeOnStartup=true)"


def test_available_now_with_a_purge_freezes_its_end_after_it(bare: Bench) -> None:
    """Nothing that was purged is waited for, and what comes later is for the next run."""
    fill(bare, [None] * 3)
    loop = bare.loop(purgeOnStartup="true", transactionMode="none")

    loop.freeze()
    fill(bare, [None])

    assert bare.drain(loop) == []
    assert len(bare.seqs()) == 1
