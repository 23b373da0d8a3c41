"""Two teams in one database, each with the rights that `sqlqueue script --domain` prints."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from cli.database import own_database
from typer.testing import CliRunner

from sqlq_spark.cli import main
from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import StateSession
from sqlq_spark.errors import NotAQueue, RightMissing, StateRightMissing, StreamNotFound
from sqlq_spark.receive import task as receive
from sqlq_spark.send.dispatch import lock_exclusive

from .conftest import make_login
from .streams import PUT, TIMEOUT, Stream, Writer, bodies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from conftest import Place

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


@dataclass(frozen=True)
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
def teams(server: str) -> Iterator[tuple[Team, Team]]:
    """Give two teams in a database of their own, each with a message."""
    with own_database(server) as made, ExitStack() as stack:
        found = []
        for letter in "ab":
            name = f"{made.connection.info.dbname}_{letter}"
            made.sql(printed(name))
            login = make_login(made, name, f"{name}_reader", f"{name}_sender")
            connection = stack.enter_context(psycopg.connect(login, autocommit=True))
            place, queue = replace(made, state=f"sqlqueue_{name}"), f'"public"."{name}"'
            found.append(Team(name, place, login, queue, connection))
            made.sql(PUT.format(queue), b"order")
        yield found[0], found[1]


def printed(name: str, *more: str) -> str:
    """Print the script for a team's queue, which has the team's name."""
    words = ("script", name, "--error", f"{name}_error", "--delayed", "--domain", name, *more)
    result = CliRunner().invoke(main.app, words)
    assert result.exit_code == 0, result.output
    return result.stdout


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


def test_no_option_or_command_leads_a_team_to_the_state_of_another(
    teams: tuple[Team, Team],
) -> None:
    """Nothing changes. An error has no GRANT, and names the roles of the team that one may ask."""
    a, b = teams
    theirs = busy(b)
    before = rows(b)
    receipt, state = f'"{b.state}"."receipt"', {"stateSchema": b.state}

    for work in (
        a.stream(**state).plan,
        a.stream(**state, end=theirs.end).receive,
        lambda: a.writer(**state).send(b"x", 2),
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
    result = CliRunner().invoke(main.app, ["doctor", "--json"], env={"SQLQUEUE_URL": a.url})
    found = map(json.loads, result.stdout.splitlines())
    unread = [each["found"].split()[2] for each in found if each["name"] == "state_unread"]
    assert unread == [b.state]
    stream = f"--stream {theirs.name} --yes"
    for line in (
        *("receipts list", f"receipts return {stream}", f"receipts drop {stream}", "trail"),
        *("install", "doctor", f"doctor {receipt}"),
    ):
        words = [*line.split(), "--state-schema", b.state]
        result = CliRunner().invoke(main.app, words, env={"SQLQUEUE_URL": a.url})
        said = f"{result.output}{result.exception}"
        assert (result.exit_code, b.state in said) == (1, True), line
        assert not re.search(rf"GRANT.*{b.state}", said), line
    assert rows(b) == before


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
