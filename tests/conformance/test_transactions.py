"""An error in a transaction, or in an attempt within it, undoes all of its work, and no more."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from recorded_connection import HarshConnection

from sqlq_spark import errors
from sqlq_spark.database import Work, attempt, transaction
from sqlq_spark.wire.rows import rising_ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.database import Connection

    from .conftest import Bench


def load(bench: Bench, connection: Connection, body: bytes) -> None:
    """Insert a message."""
    row = {"id": rising_ids(1), "headers": ["{}"], "body": [body]}
    connection.load(bench.queue, pa.table(row))


def fail_in_python(_bench: Bench, _connection: Connection) -> None:
    """Raise an error that no statement caused."""
    raise ValueError


def fail_in_sql(bench: Bench, connection: Connection) -> None:
    """Raise an error of a statement."""
    connection.value("purge", tables={"queue": bench.table_beside("absent")})


FAILURES = {"in Python": fail_in_python, "in SQL": fail_in_sql}


@pytest.mark.parametrize("where", FAILURES)
def test_an_error_in_an_attempt_undoes_only_the_attempt(bench: Bench, where: str) -> None:
    """The transaction goes on, although the error is caught outside of the attempt."""
    connection, fail = bench.connection, FAILURES[where]
    with transaction(connection):
        load(bench, connection, b"before")
        with suppress(ValueError, errors.DatabaseFailure), attempt(connection):
            load(bench, connection, b"undone")
            fail(bench, connection)
        assert connection.work is Work.TRANSACTION
        load(bench, connection, b"after")

    assert bench.waiting_bodies() == [b"before", b"after"]


@pytest.mark.parametrize("where", FAILURES)
@pytest.mark.parametrize("is_in_attempt", [False, True])
def test_an_error_in_a_transaction_undoes_all_of_it(
    bench: Bench, where: str, *, is_in_attempt: bool
) -> None:
    """The session can be used again."""
    connection, fail = bench.connection, FAILURES[where]

    def work() -> None:
        with transaction(connection):
            load(bench, connection, b"undone")
            if is_in_attempt:
                with attempt(connection):
                    fail(bench, connection)
            fail(bench, connection)

    with pytest.raises((ValueError, errors.DatabaseFailure)):
        work()
    assert connection.work is Work.NONE
    with transaction(connection):
        load(bench, connection, b"next")

    assert bench.waiting_bodies() == [b"next"]


def test_a_transaction_that_an_attempt_has_ended_does_not_go_on(bench: Bench) -> None:
    """Its error is raised, even if the caller suppresses it. The session can be used again."""
    connection = HarshConnection(bench.connection)

    def work() -> None:
        with transaction(connection):
            load(bench, connection, b"undone")
            with suppress(errors.DatabaseFailure), attempt(connection):
                fail_in_sql(bench, connection)
            load(bench, connection, b"never sent")

    with pytest.raises(errors.QueueNotFound):
        work()
    assert connection.work is Work.NONE
    with transaction(connection):
        load(bench, connection, b"next")

    assert bench.waiting_bodies() == [b"next"]


def test_an_error_that_is_suppressed_without_an_attempt_is_a_fault(bench: Bench) -> None:
    """The server has undone the transaction, so nothing is left to commit."""
    connection = bench.connection

    def work() -> None:
        with transaction(connection):
            load(bench, connection, b"undone")
            with suppress(errors.DatabaseFailure):
                fail_in_sql(bench, connection)

    with pytest.raises(AssertionError, match="was suppressed in a transaction"):
        work()
    assert bench.waiting_bodies() == []


def test_the_error_of_a_wait_has_its_limit(bench: Bench) -> None:
    """The error has the limit of this wait, also where it is shorter than that of the statement."""
    connection = bench.connection

    def wait() -> None:
        with transaction(connection):
            connection.set_lock_timeout(0.2)
            connection.value("purge", tables={"queue": bench.queue})

    with bench.dotnet.locked(bench.queue), pytest.raises(errors.TimedOut) as caught:
        wait()

    assert caught.value.seconds == 0.2


def test_what_looks_once_more_before_the_commit_may_undo_all(bench: Bench) -> None:
    """An error in Python undoes the transaction too. The next transaction does not look again."""
    connection = bench.connection
    looks: list[str] = []

    def look(fails: bool) -> Callable[[], None]:  # noqa: FBT001
        def again() -> None:
            looks.append("looked")
            if fails:
                raise ValueError

        return again

    for fails in (True, False):
        with suppress(ValueError), transaction(connection):
            load(bench, connection, b"fails" if fails else b"is sent")
            connection.before_commit.append(look(fails))
    with transaction(connection):
        load(bench, connection, b"without a look")

    assert looks == ["looked", "looked"]
    assert bench.waiting_bodies() == [b"is sent", b"without a look"]
