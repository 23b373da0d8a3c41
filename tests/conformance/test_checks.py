"""Checks: each thing that can be wrong is made so, found, fixed by what the finding says, gone."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from recorded_connection import RecordedConnection
from servers import only
from waiting import until

from sqlq_spark.admin import checks, problems
from sqlq_spark.database import schema, transaction
from sqlq_spark.errors import NotAQueue, QueueNotFound, RightMissing
from sqlq_spark.receive.offset import INITIAL
from sqlq_spark.wire.headers import wire_time

from .conftest import TIMEOUT, Bench, bodies
from .dba import SHAPE
from .shapes import cases

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.admin.problems import Finding
    from sqlq_spark.database import Connection
    from sqlq_spark.wire.address import QueueAddress


def look(bench: Bench, queue: QueueAddress | None = None) -> list[Finding]:
    """What is wrong with a queue, as the doctor sees it."""
    found = checks.of_any_queue(bench.desk, queue or bench.queue)
    return [each for each in found if each.is_problem]


def wrong(bench: Bench, queue: QueueAddress | None = None) -> Finding:
    """The one thing that is wrong."""
    (found,) = look(bench, queue)
    assert found.where == bench.desk.printed(queue or bench.queue)
    return found


def run(bench: Bench, text: str) -> None:
    """Run what a finding says, as a DBA does."""
    bench.dotnet.dba.run(text)


def hurt(bench: Bench, queue: QueueAddress) -> None:
    """Make something wrong with a queue."""
    bench.dotnet.dba.on(queue, bench.dotnet.dba.shapes.hurt)


@pytest.mark.parametrize("name", cases("wrong"))
def test_what_is_wrong_is_found_and_its_fix_works(bare: Bench, name: str) -> None:
    """The statements can be run as they stand; what else there is stays right."""
    state = bare.dotnet.dba.shapes.wrong[name]
    bare.dotnet.dba.on(bare.queue, state.make)

    found = wrong(bare)

    assert (found.name, found.severity) == (state.name, state.severity)
    assert state.found in found.found
    run(bare, found.fix)
    assert look(bare) == []
    bare.dotnet.send(bare.queue, body=b"after")
    assert bodies(bare.receive(bare.task(None)))[-1] == b"after"


@only("postgresql", "an index that is built beside the traffic and may be left half done")
def test_an_index_that_failed_to_build_is_no_index(bare: Bench) -> None:
    """CONCURRENTLY leaves one behind, which is not used."""
    bare.dotnet.dba.on(bare.queue, "ALTER TABLE {queue} DROP CONSTRAINT orders_seq_key")
    bare.dotnet.send_many(bare.queue, [b"1", b"2"])
    bare.dotnet.dba.on(bare.queue, "UPDATE {queue} SET seq = 7")
    with pytest.raises(Exception, match="could not create unique index"):
        run(bare, wrong(bare).fix)

    assert (wrong(bare).name, wrong(bare).severity) == ("seq_index", "error")


@only("postgresql", "a transport that makes no index on Expires")
def test_expiring_messages_in_a_queue_as_the_transport_makes_it_are_nothing_wrong(
    bare: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """That a purge would read the table is a note; a stream that starts says nothing."""
    bare.dotnet.send(bare.queue, lives=3_600_000)
    caplog.set_level(logging.WARNING, logger="sqlq_spark")

    (found,) = checks.of_any_queue(bare.desk, bare.queue)
    bare.drain(bare.loop(transactionMode="none"))

    assert (found.name, found.severity) == ("expires_index", "note")
    assert caplog.records == []
    run(bare, found.fix)
    bare.dotnet.send(bare.queue, lives=3_600_000)
    assert checks.of_any_queue(bare.desk, bare.queue) == []


def test_expiring_messages_ask_for_an_index(bare: Bench) -> None:
    """Only where there are some; on PostgreSQL only in a table that takes a while to read."""
    bare.dotnet.dba.expires_index(bare.queue, there=False)
    assert look(bare) == []
    bare.dotnet.send(bare.queue, lives=3_600_000)
    bare.dotnet.dba.swell(bare.queue)

    found = wrong(bare)

    assert (found.name, found.severity) == ("expires_index", "warning")
    run(bare, found.fix)
    assert look(bare) == []


def test_hostile_names_are_quoted_in_a_fix(bare: Bench) -> None:
    """A finding's statements touch this table, and no other."""
    queue = bare.another('x"; DROP TABLE orders; --%s]')
    hurt(bare, queue)

    run(bare, wrong(bare, queue).fix)

    assert look(bare, queue) == []
    assert look(bare) == []


# ----- rights ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lacking", cases("to_receive"))
def test_each_right_to_receive_counts(bare: Bench, lacking: str) -> None:
    """All but one are not enough; who may receive need not send, and the other way round."""
    whole = bare.dotnet.dba.shapes.to_receive

    def found(*rights: str) -> dict[str, str]:
        with bare.login(*rights) as (_, connection):
            findings = checks.of_any_queue(connection, bare.queue)
        return {each.name: each.severity for each in findings}

    lacks = found(*(each for each in whole if each != lacking))

    assert lacks == {"receive_right": "error", "send_right": "error"}
    assert found(*whole) == {"send_right": "note"}
    assert found("INSERT") == {"receive_right": "note"}


def test_no_fix_grants_a_table_in_a_state_schema(bare: Bench) -> None:
    """It may be another team's: its logins are to be asked for a role."""
    schema.install(bare.open("install", stateSchema=str(bare.queue.schema)))
    with bare.login() as (_, connection):
        findings = checks.of_any_queue(connection, bare.queue)

    fixes = [each.fix for each in findings if each.name.endswith("_right")]
    assert fixes
    assert all("your team's schema" in each and "GRANT" not in each for each in fixes)


def test_a_login_that_may_not_see_other_sessions_is_noted(bare: Bench) -> None:
    """Without the right old transactions of others are not found."""
    with bare.login() as (login, connection):
        (found,) = checks.of_server(connection)

        assert (found.name, found.severity) == ("sessions_right", "note")
        assert found.fix.startswith("GRANT ")
        assert login.name in found.fix
        run(bare, found.fix)
        assert checks.of_server(connection) == []


class Forbidden(RecordedConnection):
    """A session whose server does not show the others, although the login has a right."""

    def __init__(self, inner: Connection) -> None:
        super().__init__(inner)
        self.asked = 0

    def around(self, statement: str, call: Callable[[], Any]) -> Any:
        """As RecordedConnection; the first look fails."""
        self.asked += statement == "check_server"
        if statement == "blockers" or (statement == "check_server" and self.asked == 1):
            raise RightMissing(statement=statement, reason="not allowed", fix="GRANT VIEW")
        return call()


def test_a_server_that_refuses_to_show_sessions_stops_no_stream(bare: Bench) -> None:
    """It is a note with the fix. What needs no right is checked again, without the sessions."""
    doctor, start = Forbidden(bare.desk), Forbidden(bare.desk)

    (note,) = checks.of_server(doctor)
    checks.at_start(start, bare.source())

    assert problems.blockers(doctor) == {}
    assert (note.name, note.severity, note.fix) == ("sessions_right", "note", "GRANT VIEW")
    assert (doctor.asked, start.asked) == (2, 2)


# ----- the server ------------------------------------------------------------------------------


def old(bench: Bench) -> list[Finding]:
    """Transactions that are open, of sessions of this test."""
    found = checks.of_server(bench.desk, older=0.0)
    return [each for each in found if bench.name in each.found]


def test_a_transaction_that_stays_open_is_found_and_can_be_ended(bench: Bench) -> None:
    """By its process, application and age; one that pins nothing is no matter."""
    other = bench.open("idler")
    other.rows("begin")
    assert old(bench) == []
    other.rows("new_stream", stream="x", queue_name="q", driver="d")

    (found,) = old(bench)

    assert (found.name, found.severity) == ("old_transaction", "warning")
    assert re.search(r"has had a transaction open for \d", found.found)
    assert checks.of_server(bench.desk) == []  # ten minutes
    run(bench, found.fix)
    until(lambda: bench.dotnet.sessions(f"{bench.name} idler"), 0)
    assert old(bench) == []


@only("postgresql", "autovacuum")
def test_a_server_without_autovacuum_is_found(bare: Bench) -> None:
    """And fixed without a restart."""

    def found(*names: str) -> list[Finding]:
        """Look until the server has read its settings again."""
        until(lambda: [each.name for each in checks.of_server(bare.desk)], [*names])
        return checks.of_server(bare.desk)

    run(bare, "ALTER SYSTEM SET autovacuum = off;\nSELECT pg_reload_conf()")
    try:
        (off,) = found("server_autovacuum")
        assert off.severity == "error"
        run(bare, off.fix)
        assert found() == []
    finally:
        run(bare, "ALTER SYSTEM RESET autovacuum;\nSELECT pg_reload_conf()")


# ----- state tables and streams ----------------------------------------------------------------


@pytest.mark.parametrize(("version", "fix"), [(99, "in the folder of the"), (1, "stop the")])
def test_state_tables_of_another_release_are_found(bench: Bench, version: int, fix: str) -> None:
    """Those of a newer one ask for an upgrade; those of an older one have to go."""
    bench.dotnet.dba.change("version", version=version)

    (found,) = checks.of_state(bench.desk)

    assert (found.name, found.severity) == ("state", "error")
    assert found.fix.startswith(fix)
    assert f"have version {version}, but this release supports" in found.found


PARTS = [
    *("stream", "receipt", "receipt_page", "staging", "staging_page", "dispatch_log"),
    *("trail", "version", "stream_query", "receipt_query"),
]


@only("postgresql", "the catalogue that the test reads")
@pytest.mark.parametrize("part", PARTS)
def test_a_state_table_or_index_that_is_missing_is_found(bench: Bench, part: str) -> None:
    """Beside the others, which an install leaves as they are; its statement makes it as it was."""
    dba, state, is_index = bench.dotnet.dba, bench.dotnet.state, part.endswith("_query")
    before = bench.dotnet.execute(SHAPE.format(state))
    dba.run(f'DROP {"INDEX" if is_index else "TABLE"} "{state}".{part}')

    (found,) = checks.of_state(bench.desk)
    dba.run(found.fix)

    assert part in found.found
    assert checks.of_state(bench.desk) == []
    assert bench.dotnet.execute(SHAPE.format(state)) == before


def test_a_version_that_somebody_deleted_is_found(bench: Bench) -> None:
    """With the statement that writes it again; no install does."""
    bench.dotnet.dba.forget("version")

    (found,) = checks.of_state(bench.desk)
    bench.dotnet.dba.run(found.fix)

    assert (found.name, found.severity) == ("state", "error")
    assert checks.of_state(bench.desk) == []


def test_a_stream_that_went_away_with_receipts_is_found(bench: Bench) -> None:
    """Until they are returned; one that was seen lately, or holds nothing, is no matter."""
    bench.dotnet.send_many(bench.queue, [b"1", b"2"])
    idle, stream = bench.new_stream(), bench.new_stream()
    bench.receive(bench.task(stream))
    assert checks.of_streams(bench.desk) == []
    bench.dotnet.dba.age("stream", "seen", hours=25)

    (found,) = checks.of_streams(bench.desk)

    what = (found.name, found.severity, found.where)
    assert what == ("unseen_stream", "warning", bench.printed)
    assert "holds 2 messages in 1 receipt" in found.found
    assert found.fix.startswith("start the query once with its checkpoint")
    words = f"--stream {stream} --state-schema {bench.dotnet.state}"
    for command in ("return", "drop"):
        assert f"sqlqueue receipts {command} {words}" in found.fix
    assert idle not in found.fix
    bench.ack(stream, 1)
    assert checks.of_streams(bench.desk) == []


# ----- at the start of a stream ----------------------------------------------------------------


def headers(**named: str) -> str:
    """Headers as an endpoint writes them."""
    inner = ",".join(f'"NServiceBus.{name}":"{value}"' for name, value in named.items())
    return f"{{{inner}}}"


def test_a_stream_warns_once_of_what_is_wrong_with_each_queue(
    bare: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """With the fix, when its driver first works; then it goes on."""
    queues = [bare.queue, bare.errors]
    for queue in queues:
        hurt(bare, queue)
        bare.dotnet.send_many(queue, [b"1", b"2"])
    caplog.set_level(logging.WARNING, logger="sqlq_spark")
    names = [bare.desk.printed(queue) for queue in queues]
    raw = {"maxMessagesPerTrigger": "2", "maxConcurrency": "1", "transactionMode": "none"}

    got = bare.drain(bare.loop(None, queues=", ".join(names), **raw))

    assert sorted(got) == [b"1", b"1", b"2", b"2"]
    texts = [record.getMessage() for record in caplog.records]
    for name, text in zip(names, texts, strict=True):
        assert text.startswith(f"{name}: {bare.dotnet.dba.shapes.hurt_found.found}")
        assert "Fix: ALTER TABLE" in text


def test_a_stream_on_a_sound_queue_warns_of_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """And looks with three statements for each queue and one for the server, once."""
    caplog.set_level(logging.WARNING, logger="sqlq_spark")
    bench.watched = True
    loop = bench.loop()

    loop.latest(INITIAL)
    loop.latest(INITIAL)

    assert caplog.records == []
    looked = [each for each in bench.said if each.startswith("check_")]
    assert looked == ["check_server", "check_rows", "check_queue", "check_owner"]


def test_a_pause_longer_than_messages_live_is_warned_of(
    bare: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """By the header TimeToBeReceived, or by the column and when it was sent."""
    bare.dotnet.dba.expires_index(bare.queue, there=True)
    hour = 3_600_000  # milliseconds
    bare.dotnet.send(bare.queue, headers(TimeSent=wire_time(datetime.now(UTC))), lives=hour)
    caplog.set_level(logging.WARNING, logger="sqlq_spark")

    for _ in range(2):
        bare.loop(peekDelay="5s", transactionMode="none").latest(INITIAL)
        bare.dotnet.send(bare.queue, headers(TimeToBeReceived="00:00:04.5000000"), lives=hour)

    (record,) = caplog.records
    assert record.getMessage() == (
        f"{bare.printed}: messages expire after 4.5 s, and a stream with peekDelay 5 s may read "
        "them too late. Fix: set the option peekDelay to less than 4.5 s (at least 100ms), "
        "or send with a longer timeToBeReceived"
    )


def test_an_error_queue_that_takes_no_message_ends_a_stream_at_its_start(bare: Bench) -> None:
    """Absent, or no queue: before a message is received, not at the first poison message."""
    errors = bare.beside("absent")
    bare.dotnet.send(bare.queue)
    loop = bare.loop(errorQueue=bare.address("absent"), transactionMode="none")

    with pytest.raises(QueueNotFound, match=r"absent.*sqlqueue create"):
        loop.latest(INITIAL)
    bare.dotnet.dba.make_another(errors)
    with pytest.raises(NotAQueue, match="absent"):
        loop.latest(INITIAL)
    bare.dotnet.dba.drop(errors)
    bare.dotnet.create(errors)

    assert loop.latest(INITIAL) != INITIAL


# ----- an owner of the queue ------------------------------------------------------------------


SAGA = '{"NServiceBus.SagaId":"7","NServiceBus.SagaType":"Shop.Saga"}'
TIMEOUT_OF_SAGA = '{"NServiceBus.SagaId":"7","NServiceBus.IsSagaTimeoutMessage":"True"}'
CONTROL = '{"NServiceBus.ControlMessage":"True"}'


def owner(bench: Bench) -> str:
    """What is found about an owner."""
    with transaction(bench.desk, timeout=TIMEOUT):
        return "".join(each.found for each in problems.of_owner(bench.desk, bench.queue))


def starting(bench: Bench, caplog: pytest.LogCaptureFixture, **raw: str) -> str:
    """Start a stream, and return what it logs."""
    caplog.clear()
    caplog.set_level(logging.WARNING, logger="sqlq_spark")
    checks.at_start(bench.desk, bench.source(**raw))
    return caplog.text


@pytest.mark.parametrize("headers", [SAGA, TIMEOUT_OF_SAGA, CONTROL])
def test_messages_that_only_their_endpoint_can_handle_are_signs(
    bare: Bench, headers: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream warns, unless the option silences it; a row that is no JSON does not matter."""
    bare.dotnet.send(bare.queue, headers='{"NServiceBus.SagaId')
    bare.dotnet.send(bare.queue, headers='{"x":"\\"NServiceBus.SagaId\\":"}')
    assert "shared_queue" not in starting(bare, caplog)
    assert owner(bare) == ""
    for _ in range(2):
        bare.dotnet.send(bare.queue, headers=headers)

    warned, sign = starting(bare, caplog), "messages among the first messages: 2"

    assert sign in owner(bare)
    assert sign in warned
    assert "warnIfShared=false" in warned
    assert sign not in starting(bare, caplog, warnIfShared="false")


@pytest.mark.parametrize("more", ['"NServiceBus.ProcessingEnded":"x"', '"NServiceBus.FailedQ":"x"'])
def test_copies_in_an_audit_or_error_queue_are_no_signs(bare: Bench, more: str) -> None:
    """They have the headers of the messages that were handled or failed elsewhere."""
    bare.dotnet.send(bare.queue, headers=f"{TIMEOUT_OF_SAGA[:-1]},{more}}}")

    assert owner(bare) == ""
