"""Servers, logins and poolers as they are found: right whatever they set, or refused by name."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

import psycopg
import pytest
import stamina
from proxy import relayed
from servers import only

from sqlq_spark import errors
from sqlq_spark.admin import checks, problems, watch
from sqlq_spark.database import schema, transaction
from sqlq_spark.database.postgresql import drivers
from sqlq_spark.database.sessions import ATTEMPTS, Session, StateSession
from sqlq_spark.options import SourceOptions
from sqlq_spark.receive.driver import StreamDriver
from sqlq_spark.receive.offset import INITIAL
from sqlq_spark.receive.task import receive
from sqlq_spark.send import subscriptions
from sqlq_spark.testing import embedded
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.rows import NO_STREAM

from .conftest import TIMEOUT, Bench
from .dba import as_login
from .test_send import chunk, dispatch, stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlq_spark.database import Connection

    from .conftest import Bench

ALONE = only("postgresql", "settings that the other has not")
SETTINGS = [
    "default_transaction_isolation=serializable",
    "default_transaction_isolation=repeatable\\ read",
    "synchronous_commit=off",
    "lock_timeout=1",
    "search_path=nowhere",
    "standard_conforming_strings=off",
    "bytea_output=escape",
    "DateStyle=SQL,DMY",
    "IntervalStyle=sql_standard",
    "TimeZone=Asia/Kathmandu",
    "row_security=off",
]


def with_setting(url: str, setting: str) -> str:
    """The url of a session that begins with a setting, as one of a role that has it."""
    return f"{url}{'&' if '?' in url else '?'}options={quote(f'-c {setting}')}"


@ALONE
@pytest.mark.parametrize("setting", SETTINGS)
def test_what_a_login_sets_changes_nothing(bench: Bench, setting: str) -> None:
    """Isolation, names, texts and times are said in the statements, where they matter."""
    url = with_setting(bench.dotnet.url, setting)
    odd = bench.open("odd", url=url)
    dispatch(
        bench, stage(bench, chunk("é".encode(), lives=60_000), chunk(b"\x00\\")), connection=odd
    )

    got = bench.drain(bench.loop(url=url))

    assert got == ["é".encode(), b"\x00\\"]
    assert [each for each in problems.of_table(odd, bench.queue) if each.is_problem] == []


def test_what_was_received_outlives_a_crash() -> None:
    """Also of a server that need not wait for its disk: the rows must not be in the queue again."""
    with embedded.server() as server:
        url = with_setting(server.url, "synchronous_commit=off")
        queue = QueueAddress("orders", "public")
        options = SourceOptions.parse({"url": url, "queue": "orders"})
        with Session(options, "test") as session:
            schema.install(session.open())
            schema.create_queue(session.open(), queue)
            with psycopg.connect(server.url, autocommit=True) as dotnet:
                # the server's own writer comes seldom enough to lose the race
                dotnet.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        server.stop()
        server.start()
        with psycopg.connect(server.url) as dotnet:
            dotnet.execute("INSERT INTO orders VALUES (gen_random_uuid(), NULL, '{}', 'x')")
        with StateSession(options, "test") as session:
            loop = StreamDriver(options, time.monotonic, checks.at_start)
            end = loop.latest(INITIAL)
            (task,) = loop.tasks(end)
            got = receive(session.open(), task, origin=NO_STREAM)
            server.stop("immediate")
        server.start()
        with psycopg.connect(server.url) as dotnet:
            left = dotnet.execute("SELECT count(*) FROM orders").fetchone()
            held = dotnet.execute("SELECT messages FROM sqlqueue.receipt").fetchall()

    assert (got.num_rows, left, held) == (1, (0,), [(1,)])


@ALONE
@pytest.mark.parametrize(
    ("level", "used"),
    [
        ("off", "on"),
        ("local", "on"),
        ("on", "on"),
        ("remote_write", "remote_write"),
        ("remote_apply", "remote_apply"),
    ],
)
def test_a_commit_waits_for_synchronous_standbys(bench: Bench, level: str, used: str) -> None:
    """A login's own level is raised where a crash or a takeover could undo its commits."""
    table = bench.dotnet.dba.quoted(bench.queue)
    default = "current_setting('synchronous_commit')"
    bench.dotnet.dba.run(f"ALTER TABLE {table} ADD COLUMN level text DEFAULT {default}")
    url = with_setting(bench.dotnet.url, f"synchronous_commit={level}")

    dispatch(bench, stage(bench, chunk(b"x")), connection=bench.open("odd", url=url))

    with psycopg.connect(bench.dotnet.url) as dba:
        assert dba.execute(f"SELECT level FROM {table}".encode()).fetchall() == [(used,)]


@ALONE
def test_a_server_that_takes_no_writes_is_an_error_and_may_be_browsed(bench: Bench) -> None:
    """A standby, or a primary no more: the session is opened again, for there may be another."""
    url = with_setting(bench.dotnet.url, "default_transaction_read_only=on")
    bench.dotnet.send(bench.queue)
    odd = bench.open("odd", url=url)

    with pytest.raises(errors.ReadOnly, match="target_session_attrs=read-write"):
        dispatch(bench, stage(bench, chunk(b"1")), connection=odd)

    with transaction(odd, timeout=TIMEOUT):
        assert odd.rows("top", tables={"queue": bench.queue}) == [(1, 1)]


@ALONE
def test_an_older_server_is_refused(bare: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which would do."""
    monkeypatch.setattr(drivers, "OLDEST", 99)

    with pytest.raises(
        errors.ServerTooOld, match=r" is PostgreSQL \d+\.\d+, but 99 or later is needed"
    ):
        bare.open()


@ALONE
def test_statement_pooling_is_refused(bench: Bench) -> None:
    """At once, and with what would do."""
    with relayed(bench.dotnet.url, begins=False) as (url, _):
        session = bench.session(url=url)
        with pytest.raises(
            errors.StatementPooling, match="pool_mode=transaction or pool_mode=session"
        ):
            session.run_with_retries(lambda connection: connection.rows("clock"))


def count_tries(session: Session, before: Callable[[int], object]) -> list[int]:
    """Note each attempt of a session to connect; `before` is told its number."""
    tried: list[int] = []
    connect = session._connect  # noqa: SLF001 - how often it is tried shows nowhere else

    def counted() -> object:
        tried.append(1)
        before(len(tried))
        return connect()

    session._connect = counted  # type: ignore[method-assign,assignment] # noqa: SLF001
    return tried


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("reached", [False, True])
def test_a_server_that_is_gone_is_waited_for_where_others_were_there(*, reached: bool) -> None:
    """A standby may be taking over; a url that led nowhere yet is an error at once."""
    options = SourceOptions.parse({"url": "postgresql://127.0.0.1:1/shop", "queue": "orders"})
    with StateSession(options, "test", reached=reached) as session:
        tried = count_tries(session, lambda _: None)
        with pytest.raises(errors.NotReachable):
            session.run_with_retries(lambda connection: connection.rows("clock"))

    assert len(tried) == (ATTEMPTS if reached else 1)


@ALONE
def test_a_server_that_restarts_is_waited_for_longer(caplog: pytest.LogCaptureFixture) -> None:
    """Also by a new session of the process, with a line in the log; another url fails at once."""
    with (
        embedded.server() as server,
        stamina.set_testing(testing=True, attempts=10 * ATTEMPTS, cap=True),
    ):
        options = SourceOptions.parse({"url": server.url, "queue": "orders"})
        tried: list[int] = []

        class Counting(Session):
            """Starts the server after more attempts than other failures have."""

            def open(self) -> Connection:
                tried.append(1)
                if len(tried) == 2 * ATTEMPTS:
                    server.start()
                return super().open()

        with Counting(options, "test") as old, Counting(options, "test") as new:
            old.run_with_retries(lambda connection: connection.rows("clock"))
            server.stop()
            found = new.run_with_retries(lambda connection: connection.rows("clock"))
            again = old.run_with_retries(lambda connection: connection.rows("clock"))
            server.stop()
            other = SourceOptions.parse({"url": f"{server.url}?user=x", "queue": "orders"})
            with Counting(other, "test") as wrong, pytest.raises(errors.NotReachable):
                wrong.run_with_retries(lambda connection: connection.rows("clock"))

    assert (len(found), len(again)) == (1, 1)
    assert "connecting again, for up to 90 s" in caplog.text
    assert len(tried) == 2 * ATTEMPTS + 3  # a lost connection, its second attempt, the other url


@ALONE
def test_a_server_without_a_free_connection_is_waited_for(bench: Bench) -> None:
    """Also by a session that has reached no server yet; the error has the server's sentence."""
    role = f"full_{secrets.token_hex(4)}"
    url = as_login(bench.dotnet.url, role, "x").url
    options = SourceOptions.parse({"url": url, "queue": bench.printed})

    def allow(tries: int) -> None:
        if tries == ATTEMPTS - 1:
            dba.execute(f"ALTER ROLE {role} CONNECTION LIMIT 1".encode())

    with psycopg.connect(bench.dotnet.url, autocommit=True) as dba:
        dba.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x' CONNECTION LIMIT 0".encode())
        try:
            with Session(options, "test") as session:
                tried = count_tries(session, allow)
                found = session.run_with_retries(lambda connection: connection.rows("clock"))
            dba.execute(f"ALTER ROLE {role} CONNECTION LIMIT 0".encode())
            with pytest.raises(errors.ServerShort, match=r"53300.*too many connections for role"):
                bench.open("full", url=url)
        finally:
            dba.execute(f"DROP ROLE {role}".encode())

    assert len(found) == 1
    assert len(tried) == ATTEMPTS - 1


# ----- behind a pooler ------------------------------------------------------------------------


POOLED = only("postgresql", "poolers of PostgreSQL lend sessions for a transaction")


@POOLED
def test_between_transactions_only_whole_statements_are_sent(bench: Bench) -> None:
    """To receive, send, look, subscribe and install; what is prepared might be gone by then."""
    topics = bench.beside("SubscriptionRouting")
    bench.dotnet.send_many(bench.queue, [b"1", b"2", b"3"])

    with relayed(bench.dotnet.url) as (url, relay):
        pooled = bench.open("pooled", url=url)
        schema.install(pooled)
        schema.create_queue(pooled, bench.queue, body_string=True)
        schema.create_delayed(pooled, bench.queue)
        names = {"topics": ["Shop.Placed"], "endpoint": "Lake", "queue": bench.queue}
        subscriptions.subscribe(pooled, topics, **names)  # type: ignore[arg-type]
        got = bench.drain(bench.loop(url=url, delayedDelivery="true"))
        sent = dispatch(bench, stage(bench, chunk(b"4"), batch=1), connection=pooled)
        found = checks.run_all_checks(pooled, [bench.queue])
        look = watch.look(pooled, [bench.printed], bench.source(url=url))

    assert (got, sent, look.queues[0].depth.messages) == ([b"1", b"2", b"3"], 1, 1)
    problems = [each.name for each in found if each.is_problem]
    assert problems == []
    assert relay.torn == []
    assert relay.whole > 20


@POOLED
def test_a_statement_that_fails_outside_a_transaction_leaves_none_open(bench: Bench) -> None:
    """The pooler would keep its session for us, and the next statement find it aborted."""
    with relayed(bench.dotnet.url) as (url, relay):
        pooled = bench.open("pooled", url=url, stateSchema="nowhere")
        with pytest.raises(errors.StateNotInstalled):
            pooled.rows("version")
        found = pooled.rows("clock")

    assert len(found) == 1
    assert relay.torn == []
