"""Checks: each fault is made, found, and fixed by the statements of its finding."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
from recorded_connection import RecordedConnection
from servers import only
from waiting import until

from sqlq_spark.admin import doctor, queue_checks
from sqlq_spark.database import schema
from sqlq_spark.errors import (
    NotAQueue,
    QueueNotFound,
    RightMissing,
    StatementRefused,
)
from sqlq_spark.receive.batch import INITIAL
from sqlq_spark.wire.address import QueueAddress

from .conftest import Bench, bodies
from .test_send import chunk, dispatch, stage
from .transports import cases

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.admin.queue_checks import Finding


def look(bench: Bench, queue: QueueAddress | None = None) -> list[Finding]:
    """What is wrong with a queue, as the doctor sees it."""
    found = doctor.of_any_queue(bench.connection, queue or bench.queue)
    return [each for each in found if each.is_problem]


def wrong(bench: Bench, queue: QueueAddress | None = None) -> Finding:
    """The one thing that is wrong."""
    (found,) = look(bench, queue)
    assert found.where == bench.connection.printed(queue or bench.queue)
    return found


def run(bench: Bench, text: str) -> None:
    """Run what a finding says, as a DBA does."""
    bench.dotnet.dba.run(text)


@pytest.mark.parametrize("name", cases("wrong"))
def test_what_is_wrong_is_found_and_its_fix_works(bare: Bench, name: str) -> None:
    """The proposed statements can be run as they are printed, and break nothing else."""
    state = bare.dotnet.dba.shapes.wrong[name]
    bare.dotnet.dba.on(bare.queue, state.make)

    found = wrong(bare)

    assert (found.name, found.severity) == (name.partition(",")[0], state.severity)
    assert state.found in found.found
    run(bare, found.fix)
    assert look(bare) == []
    bare.dotnet.send(bare.queue, body=b"after")
    assert bodies(bare.receive(bare.task(None)))[-1] == b"after"


@only("postgresql", "an index that is built beside the traffic and may be left half done")
def test_an_index_that_failed_to_build_is_no_index_and_is_found(bare: Bench) -> None:
    """CREATE INDEX CONCURRENTLY leaves an index behind that the server does not use."""
    bare.dotnet.dba.on(bare.queue, "ALTER TABLE {queue} DROP CONSTRAINT orders_seq_key")
    bare.dotnet.send_many(bare.queue, [b"1", b"2"])
    bare.dotnet.dba.on(bare.queue, "UPDATE {queue} SET seq = 1")
    with pytest.raises(Exception, match="could not create unique index"):
        run(bare, wrong(bare).fix)

    found = {each.name: each for each in look(bare)}
    assert {name: each.severity for name, each in found.items()} == {
        "invalid_index": "warning",
        "seq_index": "error",
    }
    bare.dotnet.dba.on(bare.queue, "DELETE FROM {queue}")
    run(bare, found["invalid_index"].fix)
    run(bare, found["seq_index"].fix)
    assert look(bare) == []


PARTIAL = """
DROP INDEX "{schema}"."orders.Delayed_Due";
CREATE INDEX ON "{schema}"."orders.Delayed" (due) WHERE due > '2000-01-01'"""


@only("postgresql", "the DBA's statements")
@pytest.mark.parametrize(
    ("make", "name", "severity"),
    [
        ('DROP INDEX "{schema}"."orders.Delayed_Due"', "due_index", "warning"),
        (PARTIAL, "due_index", "warning"),
        ("ALTER TABLE {table} DROP COLUMN body", "delayed_column", "error"),
        ("ALTER TABLE {table} SET (autovacuum_enabled = off)", "delayed_autovacuum", "error"),
    ],
)
def test_the_delayed_table_is_checked(bare: Bench, make: str, name: str, severity: str) -> None:
    """Nothing is wrong without the table, and with one as we make it."""
    assert look(bare) == []
    schema.create_delayed(bare.connection, bare.queue)
    assert look(bare) == []
    table = bare.connection.printed(bare.delayed_table)
    run(bare, make.format(table=table, schema=bare.dotnet.schema))

    (found,) = look(bare)

    assert (found.name, found.severity, found.where) == (name, severity, table)
    run(bare, found.fix)
    assert look(bare) == []


def test_expiring_messages_ask_for_an_index(bare: Bench) -> None:
    """The index is proposed where messages expire, on PostgreSQL only in a large table."""
    dba = bare.dotnet.dba
    if bare.dotnet.makes_expires_index:
        dba.do("unindex_expires", bare.queue)
    assert look(bare) == []
    bare.dotnet.send(bare.queue, lives=3_600_000)
    if not bare.dotnet.makes_expires_index:
        assert look(bare) == []
        dba.on(bare.queue, dba.shapes.swell)

    found = wrong(bare)

    assert (found.name, found.severity) == ("expires_index", "warning")
    run(bare, found.fix)
    assert look(bare) == []


def test_what_a_login_may_not_see_is_noted_and_no_fix_grants_a_state_schema(bare: Bench) -> None:
    """The schema may be another team's. Without a right, old transactions stay unknown."""
    schema.install(bare.open_connection("install", stateSchema=str(bare.queue.schema)))
    with bare.login_with_rights() as (login, connection):
        findings = doctor.of_any_queue(connection, bare.queue)
        (found,) = doctor.of_server(connection)
        run(bare, found.fix)
        assert doctor.of_server(connection) == []

    fixes = [each.fix for each in findings if each.name.endswith("_right")]
    assert fixes
    assert all("your team's schema" in each and "GRANT" not in each for each in fixes)
    assert (found.name, found.severity) == ("sessions_right", "note")
    assert login.name in found.fix


class Forbidden(RecordedConnection):
    """A session that may not see other sessions, although its login has the right to."""

    asked = 0

    def around(self, statement: str, call: Callable[[], Any]) -> Any:
        """Run the statement, but let the first look at sessions fail."""
        self.asked += statement == "check_server"
        if statement == "check_server" and self.asked == 1:
            raise RightMissing(statement=statement, reason="not allowed", fix="GRANT VIEW")
        return call()


def test_a_server_that_refuses_to_show_sessions_stops_no_stream(bare: Bench) -> None:
    """The finding is a note with a fix. The other checks run again, without the sessions."""
    operator, start = Forbidden(bare.connection), Forbidden(bare.connection)

    (note,) = doctor.of_server(operator)
    doctor.at_start(start, bare.source_options())

    assert (note.name, note.severity, note.fix) == ("sessions_right", "note", "GRANT VIEW")
    assert (operator.asked, start.asked) == (2, 2)


def old(bench: Bench) -> list[Finding]:
    """Findings of open transactions, of sessions of this test."""
    found = doctor.of_server(bench.connection, older=0.0)
    return [each for each in found if bench.session_prefix in each.found]


def test_a_transaction_that_stays_open_is_found_and_can_be_ended(bench: Bench) -> None:
    """
    The finding names its session and its age, and the fix ends the session.

    On PostgreSQL a transaction that holds nothing back is not reported.
    """
    other = bench.open_connection("idler")
    other.begin()
    if bench.dotnet.dialect == "postgresql":  # SQL Server lists a transaction as soon as it begins
        assert old(bench) == []
    other.run("new_stream", stream="x", queue_name="q", driver="d")

    (found,) = old(bench)

    assert (found.name, found.severity) == ("old_transaction", "warning")
    assert re.search(r"has had a transaction open for \d", found.found)
    assert doctor.of_server(bench.connection) == []  # ten minutes
    run(bench, found.fix)
    until(lambda: bench.dotnet.sessions(f"{bench.session_prefix} idler"), 0)
    assert old(bench) == []


PARTS = [
    *("stream", "receipt", "receipt_page", "staging", "staging_page", "dispatch_log"),
    *("trail", "version", "stream_query", "receipt_query"),
]


@only("postgresql", "the catalogue that the test reads")
def test_a_state_table_or_index_that_is_missing_is_found(bench: Bench) -> None:
    """The fix makes it as it was. An install leaves the other tables as they are."""
    state = bench.dotnet.state
    tables = [QueueAddress(part, state) for part in PARTS if not part.endswith("_query")]

    def made() -> list[list[tuple[Any, ...]]]:
        return [bench.dotnet.catalog(table) for table in tables]

    before = made()
    for part in PARTS:
        kind = "INDEX" if part.endswith("_query") else "TABLE"
        run(bench, f'DROP {kind} "{state}".{part}')
        (found,) = doctor.of_state(bench.connection)
        run(bench, found.fix)

        assert part in found.found
        assert doctor.of_state(bench.connection) == []
        assert made() == before, part


def test_a_stream_warns_once_for_each_queue(bare: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """The first look at a queue warns. The fix quotes a hostile name."""
    queues = [bare.queue, bare.create_queue('x"; DROP TABLE orders; --%s]')]
    shapes = bare.dotnet.dba.shapes
    for queue in queues:
        bare.dotnet.dba.on(queue, shapes.wrong[shapes.hurt].make)
        bare.dotnet.send_many(queue, [b"1", b"2"])
    caplog.set_level(logging.WARNING, logger="sqlq_spark")
    names = [bare.connection.printed(queue) for queue in queues]
    raw = {"maxMessagesPerTrigger": "2", "maxConcurrency": "1", "transactionMode": "none"}

    got = bare.drain(bare.stream_driver(None, queues=", ".join(names), **raw))

    assert sorted(got) == [b"1", b"1", b"2", b"2"]
    texts = [record.getMessage() for record in caplog.records]
    for name, text in zip(names, texts, strict=True):
        assert text.startswith(f"{name}: {shapes.wrong[shapes.hurt].found}")
        assert "Fix: ALTER TABLE" in text
    for queue in reversed(queues):
        run(bare, wrong(bare, queue).fix)
        assert look(bare, queue) == []


def test_an_error_queue_that_takes_no_message_ends_a_stream_at_its_start(bare: Bench) -> None:
    """An absent table, or one that is no queue, is an error before a message is received."""
    errors = bare.table_beside("absent")
    bare.dotnet.send(bare.queue)
    loop = bare.stream_driver(errorQueue=bare.address("absent"), transactionMode="none")

    with pytest.raises(QueueNotFound, match=r"absent.*sqlqueue create"):
        loop.latest(INITIAL)
    bare.dotnet.dba.do("archive", errors)
    with pytest.raises(NotAQueue, match="absent"):
        loop.latest(INITIAL)
    bare.dotnet.dba.drop(errors)
    bare.dotnet.create(errors)

    assert loop.latest(INITIAL) != INITIAL


SIGNS = [
    '{"NServiceBus.SagaId":"7","NServiceBus.SagaType":"Shop.Saga"}',
    '{"NServiceBus.SagaId":"7","NServiceBus.IsSagaTimeoutMessage":"True"}',
    '{"NServiceBus.ControlMessage":"True"}',
]
NO_SIGNS = [
    '{"NServiceBus.SagaId',
    '{"x":"\\"NServiceBus.SagaId\\":"}',
    # copies in an audit or error queue
    f'{SIGNS[1][:-1]},"NServiceBus.ProcessingEnded":"x"}}',
    f'{SIGNS[1][:-1]},"NServiceBus.FailedQ":"x"}}',
]


@pytest.mark.parametrize("headers", SIGNS)
def test_signs_of_an_owner(bare: Bench, headers: str, caplog: pytest.LogCaptureFixture) -> None:
    """A stream warns about them unless warnIfShared=false. Failures of other queues are no sign."""
    caplog.set_level(logging.WARNING, logger="sqlq_spark")

    def starting(**raw: str) -> str:
        caplog.clear()
        doctor.at_start(bare.connection, bare.source_options(**raw))
        return caplog.text

    for each in NO_SIGNS:
        bare.dotnet.send(bare.queue, headers=each)
    assert "shared_queue" not in starting()
    with bare.transaction():
        assert queue_checks.of_owner(bare.connection, bare.queue) == []
    for _ in range(2):
        bare.dotnet.send(bare.queue, headers=headers)

    warned, sign = starting(), "messages among the first messages: 2"

    assert sign in warned
    assert "warnIfShared=false" in warned
    assert sign not in starting(warnIfShared="false")


# ---------------------------------------------------------------- a sequence that is behind


def test_the_fix_of_poison_is_that_of_its_queue(bench: Bench) -> None:
    """For an error queue the fix is not `errorQueue`, because no stream reads such a queue."""
    for queue in (bench.queue, bench.error_queue):
        bench.dotnet.send(queue, "[]")

    fixes = [wrong(bench, queue).fix for queue in (bench.queue, bench.error_queue)]

    assert ["set errorQueue" in fix for fix in fixes] == [True, False]
    assert ['"Poison messages"' in fix for fix in fixes] == [False, True]


COPIED = "INSERT INTO {queue} (id, headers, seq) SELECT gen_random_uuid(), '{}', n"


@only("postgresql", "rows that are inserted with their seq")
def test_the_error_of_a_seq_that_is_taken_leads_to_the_fix(bench: Bench) -> None:
    """After a copy of rows each send fails until the sequence is set. Poison skips taken seqs."""
    for queue in (bench.queue, bench.error_queue):
        bench.dotnet.dba.on(queue, f"{COPIED} FROM generate_series(1, 500) AS n")
    staged = stage(bench, chunk(b"ours"))
    bench.dotnet.dba.on(bench.queue, "UPDATE {queue} SET headers = '[]' WHERE seq = 500")

    with pytest.raises(StatementRefused) as sent:
        dispatch(bench, staged)

    assert f"the sequence of {bench.queue_address} is behind" in str(sent.value)
    (found,) = [each for each in look(bench, bench.queue) if each.name == "sequence_behind"]
    assert found.fix.startswith("SELECT setval('")
    run(bench, found.fix)
    assert look(bench, bench.queue) == []
    assert dispatch(bench, staged) == 1
    assert bench.dotnet.rows(bench.queue)[-1].seq == 501
    assert bench.receive(bench.task(None, error_address=bench.error_queue)).num_rows == 500
    assert bench.dotnet.rows(bench.error_queue)[-1].seq == 501
    assert [each.name for each in look(bench, bench.error_queue)] == []


@only("postgresql", "a column whose numbers end early")
@pytest.mark.parametrize(("last", "is_far"), [(1_700_000_000, False), (2_000_000_000, True)])
def test_a_sequence_is_not_set_near_the_end_of_its_type(
    bare: Bench, last: int, *, is_far: bool
) -> None:
    """One row far ahead uses up no seqs. It is shown, and no change of type is proposed."""
    bare.dotnet.send(bare.queue)
    bare.dotnet.dba.on(bare.queue, COPIED.replace(" n", f" {last}"))

    found = wrong(bare)

    table = bare.dotnet.quoted(bare.queue).replace('"', "")
    shown = f"SELECT id, expires, seq FROM {table} WHERE seq = {last}"
    severity = "warning" if is_far else "error"
    assert (found.name, found.severity) == ("sequence_behind", severity)
    assert f"the highest seq is {last}, but the sequence has given no more than 1" in found.found
    assert (found.fix == shown) == is_far
    run(bare, found.fix)
    assert (look(bare) == []) == (not is_far)


@only("postgresql", "a table that another maker of queues makes")
def test_a_sequence_behind_is_found_where_seqs_repeat(bare: Bench) -> None:
    """Sends do not fail there, but the sequence gives out the same seqs again."""
    bare.dotnet.dba.on(
        bare.queue,
        "ALTER TABLE {queue} DROP CONSTRAINT orders_seq_key;"
        "CREATE INDEX idx_orders_seq ON {queue} (seq);"
        f"{COPIED} FROM generate_series(1, 500) AS n",
    )

    assert "seq repeats where the sequence meets one that is taken" in wrong(bare).found
    run(bare, wrong(bare).fix)
    assert look(bare) == []


@only("postgresql", "rights on a sequence")
def test_a_login_that_may_not_see_the_sequence_gets_no_guess(bare: Bench) -> None:
    """A sequence that the login cannot see is not reported as behind."""
    bare.dotnet.dba.on(bare.queue, f"{COPIED} FROM generate_series(1, 500) AS n")

    with bare.login_with_rights("SELECT, DELETE, UPDATE") as (_, connection):
        found = doctor.of_any_queue(connection, bare.queue)

    assert [each for each in found if each.name == "sequence_behind"] == []
