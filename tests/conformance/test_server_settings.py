"""Sessions and servers in practice: settings, poolers, restarts, and processes that hang."""

from __future__ import annotations

from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

import psycopg
import pytest
import stamina
from proxy import relayed
from servers import only
from waiting import until

from sqlq_spark import errors
from sqlq_spark.admin import doctor, queue_checks, stats
from sqlq_spark.database import schema, sessions, transaction
from sqlq_spark.database.looks import SeqEnds
from sqlq_spark.database.sessions import ATTEMPTS, Session, StateSession
from sqlq_spark.options import SourceOptions
from sqlq_spark.receive.batch import Offset
from sqlq_spark.receive.receipts import acknowledge
from sqlq_spark.receive.task import receive
from sqlq_spark.send import dispatch as send
from sqlq_spark.send import subscriptions
from sqlq_spark.testing import embedded
from sqlq_spark.wire.rows import NO_SPARK_BATCH

from .conftest import TIMEOUT, Bench, bodies
from .test_send import chunk, dispatch, stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlq_spark.database import Connection

ALONE = only("postgresql", "settings that the other has not")
SETTINGS = [
    "default_transaction_isolation=serializable",
    "synchronous_commit=off",
    "lock_timeout=1",
    "search_path=nowhere",
    "standard_conforming_strings=off",
    "bytea_output=escape",
    "DateStyle=SQL,DMY",
    "IntervalStyle=sql_standard",
    "TimeZone=Asia/Kathmandu",
    "row_security=off",
    "quote_all_identifiers=on",
]


def with_settings(url: str, *settings: str) -> str:
    """The url of a session that begins with settings, as if its role had them."""
    options = " ".join(f"-c {each}" for each in settings)
    return f"{url}{'&' if '?' in url else '?'}options={quote(options)}"


@ALONE
def test_what_a_login_sets_changes_nothing(bench: Bench) -> None:
    """Statements set isolation, names, texts and times themselves, where they matter."""
    url = with_settings(bench.dotnet.url, *SETTINGS)
    odd = bench.open_connection("odd", url=url)
    dispatch(
        bench, stage(bench, chunk("é".encode(), lives=60_000), chunk(b"\x00\\")), connection=odd
    )

    got = bench.drain(bench.stream_driver(url=url))

    assert got == ["é".encode(), b"\x00\\"]
    assert [each for each in queue_checks.of_table(odd, bench.queue) if each.is_problem] == []


@ALONE
@pytest.mark.parametrize(
    ("level", "used"), [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")]
)
def test_a_commit_waits_for_synchronous_standbys(bench: Bench, level: str, used: str) -> None:
    """Dispatch and receive raise the level where a crash or a takeover could undo the commit."""
    url = with_settings(bench.dotnet.url, f"synchronous_commit={level}")
    tables = [bench.dotnet.quoted(bench.queue), f'"{bench.dotnet.state}".receipt']
    for table in tables:
        default = "current_setting('synchronous_commit')"
        bench.dotnet.dba.run(f"ALTER TABLE {table} ADD COLUMN level text DEFAULT {default}")
    odd = bench.open_connection("odd", url=url)

    def levels() -> list[tuple[str]]:
        return [
            row for table in tables for row in bench.dotnet.execute(f"SELECT level FROM {table}")
        ]

    dispatch(bench, stage(bench, chunk(b"x")), connection=odd)
    assert levels() == [(used,)]
    bench.receive(bench.task(bench.new_stream()), odd)
    assert levels() == [(used,)]


@ALONE
def test_a_server_that_takes_no_writes_is_an_error_and_may_be_browsed(bench: Bench) -> None:
    """It is a standby, or no primary any more. The error says how a url finds another server."""
    url = with_settings(bench.dotnet.url, "default_transaction_read_only=on")
    bench.dotnet.send(bench.queue)
    odd = bench.open_connection("odd", url=url)

    with pytest.raises(errors.ReadOnly, match="target_session_attrs=read-write"):
        dispatch(bench, stage(bench, chunk(b"1")), connection=odd)

    with transaction(odd, timeout=TIMEOUT):
        ends = odd.row("top", SeqEnds, tables={"queue": bench.queue})
        assert ends == SeqEnds(first=1, last=1)


@ALONE
def test_statement_pooling_is_refused(bench: Bench) -> None:
    """The first statement fails, and the error names the pool mode that works."""
    with relayed(bench.dotnet.url, begins=False) as (url, _):
        session = bench.new_session(url=url)
        with pytest.raises(errors.StatementPooling, match="pool_mode=transaction"):
            session.run_with_retries(lambda connection: connection.value("clock"))


@ALONE
def test_quoted_names_are_named_where_a_pooler_refuses_options(bench: Bench) -> None:
    """The error names quote_all_identifiers. Without a pooler a startup option turns it off."""
    with bench.login_with_rights() as (login, _):
        bench.dotnet.dba.run(f"ALTER ROLE {login.name} SET quote_all_identifiers = on")
        assert clock(bench.new_session("quoted", url=login.url)) == 1
        with relayed(login.url, options=False) as (url, _):
            pooled = bench.new_session("pooled", url=url)
            with pytest.raises(errors.NamesQuoted, match="SET quote_all_identifiers = off"):
                clock(pooled)


def limited(bench: Bench, limit: str) -> str:
    """The url of a session with a limit for each transaction, as a DBA sets it on a login."""
    known = "SELECT 1 FROM pg_settings WHERE name = 'transaction_timeout'"
    if not bench.dotnet.execute(known):
        pytest.skip("PostgreSQL before 17 has no transaction_timeout")
    return with_settings(bench.dotnet.url, f"transaction_timeout={limit}")


@ALONE
@pytest.mark.parametrize("is_between", [True, False])
def test_a_time_limit_of_the_login_is_named_at_once(bench: Bench, *, is_between: bool) -> None:
    """It ends a statement, or a session between two, without a SQLSTATE. There is no retry."""
    session = bench.new_session("limited", url=limited(bench, "300ms"))
    attempts = []

    def work(connection: Connection) -> None:
        attempts.append(1)
        with transaction(connection):
            bench.connection.begin()
            bench.connection.run("install_lock", state_name="r")
            if is_between:
                until(lambda: bench.dotnet.sessions(f"{bench.session_prefix} limited"), 0)
            connection.run("install_lock", state_name="r")

    with pytest.raises(errors.TransactionLimited, match=r"transaction_timeout = 0\.3 s"):
        session.run_with_retries(work)
    bench.connection.run("rollback")

    assert attempts == [1]


@ALONE
def test_a_time_limit_below_query_timeout_is_found(bench: Bench) -> None:
    """The fix sets the limit for this login in this database. A longer limit is accepted."""
    for limit, names in (("1s", ["transaction_limit"]), ("2h", []), ("0", [])):
        connection = bench.open_connection(f"limit {limit}", url=limited(bench, limit))
        found = [each for each in doctor.of_server(connection) if each.is_problem]

        assert [each.name for each in found] == names
        assert all("SET transaction_timeout = 0" in each.fix for each in found)
    bench.dotnet.dba.run(
        doctor.of_server(bench.open_connection("x", url=limited(bench, "1s")))[0].fix
    )


@ALONE
@pytest.mark.parametrize(
    ("limit", "kind", "text"),
    [
        ("300ms", errors.StatementLimited, r"this login has statement_timeout = 0\.3 s"),
        ("1min", errors.TimedOut, "took longer than 0.5 s"),
        ("0", errors.TimedOut, "took longer than 0.5 s"),
    ],
)
def test_the_stricter_time_limit_of_a_statement_holds(
    bench: Bench, limit: str, kind: type[errors.TimedOut], text: str
) -> None:
    """It is the login's or that of queryTimeout. The error names the one that ended it."""
    url = with_settings(bench.dotnet.url, f"statement_timeout={limit}")
    limited_one = bench.open_connection("limited", url=url)
    with transaction(bench.connection):
        bench.connection.run("install_lock", state_name="r")
        with pytest.raises(kind, match=text) as caught, transaction(limited_one, timeout=0.5):
            limited_one.run("install_lock", state_name="r")

    assert type(caught.value) is kind


@ALONE
def test_no_notice_is_printed(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    """One notice is about a name that is too long, and a trigger sends one with a body."""
    table = bench.dotnet.quoted(bench.queue)
    bench.dotnet.dba.run(f"""
        CREATE FUNCTION "{bench.dotnet.schema}".say() RETURNS trigger LANGUAGE plpgsql AS
        $$BEGIN RAISE WARNING 'body %', NEW.body; RETURN NEW; END$$;
        CREATE TRIGGER say BEFORE INSERT ON {table}
            FOR EACH ROW EXECUTE FUNCTION "{bench.dotnet.schema}".say()""")
    connection = bench.open_connection("é" * 60)

    dispatch(bench, stage(bench, chunk(b"x")), connection=connection)

    assert bench.dotnet.execute(f"SELECT count(*) FROM {table}")[0][0] == 1
    assert capfd.readouterr().err == ""


def clock(session: Session) -> int:
    """Run a statement, with retries where they can help. Return how many rows it gave."""
    return len(session.run_with_retries(lambda connection: connection.values("clock")))


@ALONE
def test_a_server_that_restarts_is_waited_for_longer(caplog: pytest.LogCaptureFixture) -> None:
    """A new session of the process waits too, and the log has a line. Another url fails at once."""
    with (
        embedded.run_server() as server,
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
            clock(old)
            server.stop()
            assert (clock(new), clock(old)) == (1, 1)
            server.stop()
            other = SourceOptions.parse({"url": f"{server.url}&user=x", "queue": "orders"})
            with Counting(other, "test") as wrong, pytest.raises(errors.NotReachable):
                clock(wrong)
            # and then: `old` on its lost connection, `old` again, and `wrong`
            assert len(tried) == 2 * ATTEMPTS + 3
            with (
                Counting(other, "test", was_reached=True) as task,
                pytest.raises(errors.NotReachable),
            ):
                clock(task)  # `was_reached` says that the stream's driver has reached the url

    assert "connecting again, for up to 90 s" in caplog.text
    assert len(tried) > 3 * ATTEMPTS


POOLED = only("postgresql", "poolers of PostgreSQL lend sessions for a transaction")


@POOLED
def test_between_transactions_only_whole_statements_are_sent(bench: Bench) -> None:
    """A prepared statement might be gone. A statement that fails leaves no transaction open."""
    topics = bench.table_beside("SubscriptionRouting")
    bench.dotnet.dba.do("own", bench.queue)
    bench.dotnet.send_many(bench.queue, [b"1", b"2", b"3"])

    with relayed(bench.dotnet.url) as (url, relay):
        pooled = bench.open_connection("pooled", url=url)
        schema.install(pooled)
        schema.create_queue(pooled, bench.queue, body_string=True)
        schema.create_delayed(pooled, bench.queue)
        names = {"topics": ["Shop.Placed"], "endpoint": "Lake", "queue": bench.queue}
        subscriptions.subscribe(pooled, topics, **names)  # type: ignore[arg-type]
        got = bench.drain(bench.stream_driver(url=url, delayedDelivery="true"))
        sent = dispatch(bench, stage(bench, chunk(b"4"), batch=1), connection=pooled)
        found = doctor.run_all_checks(pooled, [bench.queue])
        look = stats.take_look(pooled, [bench.queue_address], bench.source_options(url=url))
        absent = bench.open_connection("absent", url=url, stateSchema="nowhere")
        with pytest.raises(errors.StateNotInstalled):
            absent.value("version")
        assert absent.value("clock") is not None

    assert (got, sent, look.queues[0].depth.messages) == ([b"1", b"2", b"3"], 1, 1)
    assert [each.name for each in found if each.is_problem] == []
    assert relay.torn == []
    assert relay.whole > 20


# ----- sessions of workers: one leaves its connection to the next, and never a broken one ---------


class Workers:
    """Workers of one process, and the connections that one leaves to the next."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.name, self.idle = bench, f"{bench.session_prefix} own", sessions.Idle()

    def session(self, name: str = "task", **raw: str) -> Session:
        """Begin a session as a worker does."""
        return StateSession(
            self.bench.source_options(**raw), f"{self.name} {name}", keep_connection=True
        )

    def use(self, session: Session | None = None) -> Connection:
        """Use a session as a worker does."""
        with session or self.session() as used:
            return used.run_with_retries(lambda connection: connection)

    def kept(self) -> int:
        """How many connections the process keeps, after the others have ended."""
        kept = len(self.idle._kept)  # noqa: SLF001 - what a user never sees
        until(lambda: self.bench.dotnet.sessions(self.name), kept)
        return kept


@pytest.fixture
def workers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    """Give a process that keeps nothing yet; close what it kept."""
    made = Workers(bench)
    monkeypatch.setattr(sessions, "idle_connections", made.idle)
    monkeypatch.setattr(sessions, "IDLE", 600.0)  # none is closed in the middle of a test
    yield made
    for connection, timer in list(made.idle._kept.values()):  # noqa: SLF001 - end with the test
        timer.cancel()
        connection.close()


def test_a_session_takes_the_connection_of_the_one_before(workers: Workers) -> None:
    """The connection gets a new name. Sessions with other options do not get it."""
    first = workers.use()

    with workers.session("second") as second, workers.session() as third:
        assert second.open() is first
        assert first.application == f"sqlqueue {workers.name} second"
        assert third.open() is not first
    assert workers.kept() == 1
    for name, value in {"stateSchema": "x", "queryTimeout": "7s", "password": "x"}.items():
        assert workers.idle.take(workers.session(**{name: value})._key) is None  # noqa: SLF001


def test_only_sessions_of_workers_that_did_not_fail_are_kept(workers: Workers) -> None:
    """A failed worker closes its connection, and so do a command and a driver."""
    with pytest.raises(ZeroDivisionError), workers.session() as session:
        session.run_with_retries(lambda connection: connection.value("version") / 0)
    workers.use(StateSession(workers.bench.source_options(), f"{workers.name} command"))

    assert workers.kept() == 0


def test_a_kept_connection_that_died_is_replaced(workers: Workers) -> None:
    """The next session gets a new connection, and reports nothing."""
    dead = workers.use()
    workers.bench.dotnet.kill(workers.name)

    with workers.session() as session:
        assert session.run_with_retries(lambda alive: alive.value("version"))
        assert session.open() is not dead


def test_an_idle_connection_is_closed(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that has nothing to do holds no session of the database for long."""
    first = workers.use()
    assert workers.kept() == 1

    monkeypatch.setattr(sessions, "IDLE", 0.2)
    assert workers.use() is first

    until(workers.kept, 0)


# ----- processes that hang: a session begins a COPY, and neither reads nor writes ----------------

SOON = 1.0  # seconds
READS = "COPY (SELECT repeat('x', 1000000) FROM generate_series(1, 1000)) TO STDOUT"
WRITES = 'COPY "{state}".staging_page FROM STDIN'
TASK = """
    SELECT 1 FROM "{state}".stream FOR SHARE;
    INSERT INTO "{state}".receipt_page SELECT stream, 1, 0, -1, '' FROM "{state}".stream"""
CHUNK = 'SELECT 1 FROM "{state}".dispatch_log FOR SHARE'
DISPATCH = 'SELECT 1 FROM "{state}".dispatch_log FOR UPDATE'


@contextmanager
def hanging(bench: Bench, name: str, locks: str, copy: str) -> Iterator[int]:
    """Lock rows in a session of that name, and begin a statement that never ends. Give its pid."""
    with closing(psycopg.connect(bench.dotnet.url, application_name=f"sqlqueue {name}")) as session:
        session.execute(locks.format(state=bench.dotnet.state).encode())
        session.pgconn.send_query(copy.format(state=bench.dotnet.state).encode())
        pid = session.info.backend_pid
        until(lambda: is_there(bench, pid, "AND state = 'active' AND wait_event IS NOT NULL"))
        yield pid


def is_there(bench: Bench, pid: int, more: str = "") -> bool:
    """Whether a session exists."""
    return bool(bench.dotnet.execute(f"SELECT 1 FROM pg_stat_activity WHERE pid = %s {more}", pid))


def works(bench: Bench) -> tuple[str, dict[str, Callable[[], object]]]:
    """A stream, and all work that waits for its rows: an attempt, its driver, and a sink."""
    stream, short = bench.new_stream(), {"queryTimeout": f"{SOON}s"}
    bench.store_empty_plan(stream, 1)
    bench.dotnet.send(bench.queue, "{}", b"received")
    session = bench.new_session("waits", **short)
    stage_ = partial(send.stage, session, [chunk(b"sent")], sink="app:sink", sink_batch=0)
    staged, again = stage_(), session.run_with_retries

    def ack(connection: Connection) -> int:
        with transaction(connection, timeout=SOON):
            return acknowledge(connection, Offset(stream=stream, batch=1), bench.claim).batch

    def attempt() -> list[bytes]:
        task = bench.task(stream)
        return bodies(again(partial(receive, task=task, spark_batch=NO_SPARK_BATCH)).rows)

    return stream, {
        "attempt": attempt,
        "acknowledge": lambda: again(ack),
        "stage": stage_,
        "dispatch": lambda: again(
            partial(send.dispatch, staged=[staged], options=bench.sink_options(**short))
        ),
    }


HANGS = only("postgresql", "no session of SQL Server may end another")
DISPATCHES, STAGES = "dispatch app:sink/0", "sink app:sink/0/1"


@HANGS
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "case",
    [
        ("attempt", "{} 1/0", TASK, READS),
        ("acknowledge", "{} 1/0", TASK, WRITES),
        ("stage", DISPATCHES, DISPATCH, READS),
        ("dispatch", STAGES, CHUNK, WRITES),
        ("dispatch", DISPATCHES, DISPATCH, WRITES),
    ],
)
def test_a_session_that_hangs_is_ended(
    bench: Bench, caplog: pytest.LogCaptureFixture, case: tuple[str, str, str, str]
) -> None:
    """A session that waits for it ends it, logs that, and goes on."""
    (stream, do), (work, name, locks, copy) = works(bench), case
    name = name.format(stream)

    with hanging(bench, name, locks, copy) as pid:
        found = do[work]()
        assert not is_there(bench, pid)

    assert work == "stage" or found in (1, [b"received"])
    assert f"ended sqlqueue {name} (pid {pid})" in caplog.text


@HANGS
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("work", "name", "locks", "copy"),
    [
        ("attempt", "{} 1/0", TASK, "SELECT pg_sleep(1000)"),
        ("attempt", "00000000-0000-0000-0000-000000000000 1/0", TASK, WRITES),
        ("dispatch", "sink app:sink2/0/1", CHUNK, WRITES),
    ],
)
def test_no_other_is_ended(bench: Bench, work: str, name: str, locks: str, copy: str) -> None:
    """A session that works, or is of another stream or sink, is not ended."""
    stream, do = works(bench)

    with hanging(bench, name.format(stream), locks, copy) as pid:
        with pytest.raises(errors.TimedOut, match="Raise the option queryTimeout"):
            do[work]()
        assert is_there(bench, pid)
        bench.dotnet.execute("SELECT pg_terminate_backend(%s)", pid)
