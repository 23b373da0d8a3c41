"""
Two teams in one database, each with the rights that `sqlqueue script --domain` prints.

Neither reads, changes or hands out anything of the other, nor makes the other wait. A login that
may read everything can dump the database.
"""

from __future__ import annotations

import json
import secrets
import subprocess
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest
from conftest import Place
from typer.testing import CliRunner

from sqlq_spark.cli import main
from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import StateSession
from sqlq_spark.errors import (
    NotAQueue,
    NothingToSettle,
    RightMissing,
    StateRightMissing,
    StreamNotFound,
)
from sqlq_spark.receive import task as receive
from sqlq_spark.send.dispatch import lock_exclusive
from sqlq_spark.testing.embedded import _programs as programs
from sqlq_spark.wire.rows import Origin

from .conftest import make_login
from .streams import PUT, TIMEOUT, Stream, Writer, bodies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from sqlq_spark.testing import Database

TABLES = """
SELECT c.oid::regclass::text
  FROM pg_class AS c
 WHERE c.relnamespace = %s::text::regnamespace AND c.relkind = 'r'
 ORDER BY c.relname
"""
MODES = ("ACCESS EXCLUSIVE", "ROW EXCLUSIVE", "ACCESS SHARE")
# what one may try on a table; of each some need a right of their own
ATTACKS = (
    "SELECT count(*) FROM {0}",
    "DELETE FROM {0}",
    "INSERT INTO {0} DEFAULT VALUES",
    "TRUNCATE {0}",
    "LOCK TABLE {0} IN ACCESS SHARE MODE",
    "ALTER TABLE {0} ADD COLUMN x int",
    "GRANT SELECT ON {0} TO PUBLIC",
)


@dataclass(frozen=True, kw_only=True)
class Team:
    """A team of one login, with a queue that belongs to the superuser, as after a DBA's script."""

    name: str
    place: Place  # with its state schema
    url: str  # as its login
    queue: str
    connection: psycopg.Connection[Any]  # of its login

    @property
    def state(self) -> str:
        """Its state schema."""
        return self.place.state

    def stream(self, **raw: Any) -> Stream:
        """Begin a stream of its queue, or go on with one."""
        return Stream(self.place, self.url, self.queue, errorQueue=f"{self.name}_error", **raw)

    def writer(self, **raw: str) -> Writer:
        """Give its writer into its queue."""
        return Writer(self.place, self.url, self.queue, **raw)

    def refuses(self, text: str) -> None:
        """Make sure that its login may not run a statement."""
        refused = pytest.raises(psycopg.errors.InsufficientPrivilege)
        with refused, self.connection.transaction():
            self.connection.execute(text.encode())


@pytest.fixture
def teams(sqlqueue_database: Database) -> Iterator[tuple[Team, Team]]:
    """Give two teams; the second has a message, receipts, a sink and staged messages."""
    made: list[Team] = []
    url, names = sqlqueue_database.url, [f"{each}_{secrets.token_hex(4)}" for each in "ab"]
    with psycopg.connect(url, autocommit=True) as dba:
        for name in names:
            dba.execute(printed(name))
            place = Place(url=url, schema="public", state=f"sqlqueue_{name}", connection=dba)
            login = make_login(place, name, f"{name}_reader", f"{name}_sender")
            connection = psycopg.connect(login, autocommit=True)
            queue = f'"public"."{name}"'
            made.append(Team(name=name, place=place, url=login, queue=queue, connection=connection))
            place.sql(PUT.format(queue), b"order")
        try:
            yield made[0], made[1]
        finally:
            for team in made:
                team.connection.close()
                for role in (team.name, f"{team.name}_reader", f"{team.name}_sender"):
                    team.place.sql(f"DROP OWNED BY {role}")
                    team.place.sql(f"DROP ROLE {role}")


def printed(name: str, *more: str) -> bytes:
    """Print the script for a team's queue, which has the team's name."""
    words = ("script", name, "--error", f"{name}_error", "--delayed", "--domain", name, *more)
    result = CliRunner().invoke(main.app, words)
    assert result.exit_code == 0, result.output
    return result.stdout.encode()


def busy(team: Team) -> Stream:
    """Let a team have rows in its state tables: a receipt, a sink, and what it has staged."""
    stream = team.stream()
    assert stream.batch() == [b"order"]
    assert team.writer().send(b"sent", 1) == 1
    team.writer().stage(b"staged", 2)
    return stream


def rows(team: Team) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of a team's tables, as the superuser sees them."""
    names = [name for (name,) in team.place.sql(TABLES, team.state)]
    assert len(names) > 5
    return {name: team.place.sql(f"SELECT * FROM {name}") for name in (*names, team.queue)}


def notes(url: str) -> list[str]:
    """The state schemas that `doctor` names as not looked into."""
    result = CliRunner().invoke(main.app, ["doctor", "--json"], env={"SQLQUEUE_URL": url})
    found = [json.loads(line) for line in result.stdout.splitlines()]
    unread = [each["found"].split()[2] for each in found if each["name"] == "state_unread"]
    return [each for each in unread if each != "sqlqueue"]


def test_a_team_can_do_nothing_with_the_tables_of_another(teams: tuple[Team, Team]) -> None:
    """By no statement, on no table of its schema, and not on its queue; nor does it join it."""
    a, b = teams
    busy(b)
    before = rows(b)
    a.place.sql("ANALYZE")

    for table in before:
        for attack in ATTACKS:
            a.refuses(attack.format(table))
    a.refuses(f"CREATE TABLE {b.state}.extra (x int)")
    a.refuses(f"CREATE FUNCTION {b.state}.extra() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    a.refuses(f"DROP SCHEMA {b.state} CASCADE")
    for role in ("reader", "sender"):
        a.refuses(f"SET ROLE {b.name}_{role}")
        a.refuses(f"GRANT {b.name}_{role} TO {a.name}")
    seen = "SELECT * FROM pg_stats WHERE schemaname = %s OR tablename = %s"
    assert a.connection.execute(seen, [b.state, b.name]).fetchall() == []
    assert rows(b) == before


def test_no_option_leads_a_team_to_the_state_of_another(teams: tuple[Team, Team]) -> None:
    """The error has no GRANT, and names the roles of the team that one may ask."""
    a, b = teams
    theirs = busy(b)
    before = rows(b)
    receipt = f'"{b.state}"."receipt"'

    for work in (
        a.stream(stateSchema=b.state).plan,
        a.stream(stateSchema=b.state, end=theirs.end).receive,
        lambda: a.writer(stateSchema=b.state).send(b"x", 2),
        Stream(a.place, a.url, receipt).plan,
        lambda: Writer(a.place, a.url, receipt).send(b"x", 2),
    ):
        with pytest.raises(StateRightMissing, match=rf"\({b.name}_reader, {b.name}_sender\)") as no:
            work()
        assert "GRANT" not in str(no.value)
    with pytest.raises(NotAQueue):
        Stream(a.place, a.url, a.queue, errorQueue=receipt).plan()
    with pytest.raises(StreamNotFound):
        a.stream(end=theirs.end).receive()
    with pytest.raises(RightMissing, match=f'GRANT .* ON "public"."{b.name}"'):
        Stream(a.place, a.url, b.queue).plan()
    assert rows(b) == before


def test_no_command_leads_a_team_to_the_state_of_another(teams: tuple[Team, Team]) -> None:
    """It fails, changes nothing and prints no GRANT on the schema."""
    a, b = teams
    stream = ("--stream", busy(b).name, "--yes")
    before = rows(b)

    for words in (
        ("receipts", "list"),
        ("receipts", "return", *stream),
        ("receipts", "drop", *stream),
        ("trail",),
        ("install",),
        ("doctor",),
        ("doctor", f'"{b.state}"."receipt"'),
    ):
        given = [*words, "--state-schema", b.state]
        result = CliRunner().invoke(main.app, given, env={"SQLQUEUE_URL": a.url})
        said = f"{result.output}{result.exception}"
        assert (result.exit_code, b.state in said) == (1, True), words
        assert not [line for line in said.splitlines() if "GRANT" in line and b.state in line]
    assert rows(b) == before


def test_equal_names_in_two_teams_are_apart(teams: tuple[Team, Team]) -> None:
    """The id of a stream, a txnAppId, and the id of a query, all of which others can see."""
    a, b = teams
    stream = b.stream()
    stream.plan()
    driver = f"INSERT INTO {a.state}.stream (stream, queue, driver) VALUES (%s, %s, 'd')"
    a.connection.execute(driver.encode(), [stream.name, a.queue])

    ours = a.stream(end=stream.end)
    assert ours.receive(Origin(query_id="query", query_batch=9_000)) == []
    assert a.writer().send(b"ours", 9_000) == 1
    assert stream.receive(Origin(query_id="query", query_batch=0)) == [b"order"]
    assert b.writer().send(b"theirs", 0) == 1

    assert bodies(a.place, a.queue) == [b"order", b"ours"]
    assert bodies(b.place, b.queue) == [b"theirs"]


def test_a_sink_in_another_domain_than_its_source_sends_nothing(teams: tuple[Team, Team]) -> None:
    """With sendsAtomicWithReceive it finds neither a stream nor a receipt of the query."""
    a, b = teams
    origin, mode = Origin(query_id="query", query_batch=0), "sendsAtomicWithReceive"
    stream = a.stream()
    stream.plan()
    assert stream.receive(origin) == [b"order"]
    same, other = a.writer(transactionMode=mode), b.writer(transactionMode=mode)

    with pytest.raises(NothingToSettle, match=f"no stream and no receipt in schema {b.state} "):
        other.dispatch(replace(other.stage(b"sent", 0), origin=origin))
    assert same.dispatch(replace(same.stage(b"sent", 0), origin=origin)) == 1

    assert (bodies(b.place, b.queue), bodies(a.place, a.queue)) == ([b"order"], [b"sent"])


@contextmanager
def open_transactions(a: Team) -> Iterator[None]:
    """Hold what a task and a dispatch of a team hold before they commit."""
    stream = a.stream()
    stream.plan()
    (task,) = stream.loop.tasks(stream.end)
    with StateSession(a.writer().options, "holds") as session:
        holder = session.open()
        with transaction(holder, timeout=TIMEOUT):
            receive.fence(holder, task)
            lock_exclusive(holder, Writer.sink)
            yield


@contextmanager
def strongest_locks(a: Team) -> Iterator[None]:
    """Hold the strongest lock that a team's login can take on each table."""
    names = [name for (name,) in a.place.sql(TABLES, a.state)]
    held: list[str] = []
    with psycopg.connect(a.url) as session, session.transaction():
        for name, mode in product((*names, a.queue), MODES):
            with suppress(psycopg.errors.InsufficientPrivilege), session.transaction():
                session.execute(f"LOCK TABLE {name} IN {mode} MODE".encode())
                held.append(mode)
        assert held.count("ACCESS EXCLUSIVE") > 2
        yield


@pytest.mark.parametrize("hold", [open_transactions, strongest_locks])
def test_no_lock_of_a_team_makes_another_wait(
    teams: tuple[Team, Team], hold: Callable[[Team], AbstractContextManager[None]]
) -> None:
    """Neither its streams nor its writes, although both have one txnAppId."""
    a, b = teams
    stream = b.stream()

    with hold(a):
        assert stream.batch() == [b"order"]
        b.place.sql(PUT.format(b.queue), b"second")
        assert stream.batch() == [b"second"]
        assert b.writer().send(b"sent", 7) == 1

    assert bodies(b.place, b.queue) == [b"sent"]


def test_one_operator_may_enter_several_domains(teams: tuple[Team, Team]) -> None:
    """Each script that names its role grants one more; `doctor` and `retire` look at all these."""
    a, b = teams
    operator = f"{a.name}_operator"
    try:
        a.place.sql(printed(a.name, "--operator", operator).decode())
        url = make_login(a.place, f"{operator}_login", operator)
        one = notes(url)
        a.place.sql(printed(b.name, "--operator", operator).decode())

        assert (one, notes(url)) == ([b.state], [])
    finally:
        for role in (f"{operator}_login", operator):
            a.place.sql(f"DROP OWNED BY {role}")
            a.place.sql(f"DROP ROLE {role}")


def test_a_login_that_may_read_everything_dumps_and_restores_the_database(
    teams: tuple[Team, Team], server: str, tmp_path: Path
) -> None:
    """`pg_dump` needs no right but `pg_read_all_data`, and leaves out no row."""
    _, b = teams
    busy(b)
    url = make_login(b.place, backup := f"{b.name}_backup", "pg_read_all_data")
    copy = f"{b.name}_copy"
    restored = urlsplit(server)._replace(path=f"/{copy}").geturl()
    with psycopg.connect(server, autocommit=True) as dba:
        dba.execute(f"CREATE DATABASE {copy}".encode())
        try:
            program("pg_dump", "--format=custom", f"--file={tmp_path / 'dump'}", url)
            program("pg_restore", f"--dbname={restored}", "--exit-on-error", str(tmp_path / "dump"))

            with psycopg.connect(restored, autocommit=True) as connection:
                again = replace(b, place=replace(b.place, connection=connection))
                assert rows(again) == rows(b)
        finally:
            dba.execute(f"DROP DATABASE {copy} WITH (FORCE)".encode())
            dba.execute(f"DROP ROLE {backup}".encode())


def program(name: str, *words: str) -> None:
    """Run a program of PostgreSQL."""
    done = subprocess.run([programs() / name, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
