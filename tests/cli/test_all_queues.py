"""Without a name commands find all queues, run no code of others, and show what is wrong."""

from __future__ import annotations

import re
import secrets
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest
from conformance.dba import as_login
from psycopg import sql

from sqlq_spark.admin import checks, inspect, problems
from sqlq_spark.database import schema
from sqlq_spark.database.sessions import Session
from sqlq_spark.options import SourceOptions
from sqlq_spark.testing import embedded

from .database import address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Place

    from .commands import Run

FAILED = (
    '{"headers": {"NServiceBus.FailedQ": "Shop", "NServiceBus.TimeSent": '
    '"2026-01-01 00:00:00:000000 Z"}, "body": ""}'
)
COLUMNS = "id uuid PRIMARY KEY, expires {0}, headers text NOT NULL, body bytea, seq serial UNIQUE"
# code of the owner that a SELECT could run; {0} is the table, {1} counts its calls
DANGERS = {
    "a policy": (
        "CREATE POLICY p ON {0} USING ({1}() > 0);"
        "ALTER TABLE {0} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY"
    ),
    "an index, a constraint or statistics": "CREATE INDEX ON {0} (({1}()))",
}
STATISTICS = "CREATE STATISTICS {2}.s ON ({1}()), seq FROM {0}"


def looked_at(run: Run, place: Place, *words: str) -> dict[str, dict[str, object]]:
    """The queues of the test's schema that `stats` finds, by table."""
    (look,) = run("stats", "--json", "--state-schema", place.state, *words).objects
    start = f'"{place.schema}".'
    return {
        each["queue"].removeprefix(start).strip('"'): each
        for each in look["queues"]
        if each["queue"].startswith(start)
    }


def test_all_queues_are_found_and_their_kind_is_shown(run: Run, place: Place) -> None:
    """Delayed tables are with their queue; views are no queues; hostile names change no screen."""
    orders, failed, odd = (address(place, each) for each in ("Shop", "failures", "x\x1b[2Jy"))
    run("create", orders, "--delayed")
    for each in (failed, odd, address(place, "Shop.error")):
        run("create", each)
    run("send", failed, stdin=FAILED)
    place.sql(f'CREATE VIEW "{place.schema}".seen AS SELECT * FROM {orders}')

    found = looked_at(run, place)
    table = run("stats", "--state-schema", place.state).out

    assert {name: each["kind"] for name, each in found.items()} == {
        "Shop": "queue",
        "Shop.error": "error queue",
        "failures": "error queue",
        "x\x1b[2Jy": "queue",
    }
    assert (found["Shop"]["delayed"], found["failures"]["delayed"]) == (0, None)
    assert found["Shop"]["state"] == "ok"
    assert "x·[2Jy" in table
    assert "\x1b" not in table


@pytest.fixture
def attack(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Commands run as an ordinary login; another owns the tables. Give a function of the other."""
    names = [f"{kind}_{secrets.token_hex(4)}" for kind in ("owner", "victim")]
    for name in names:
        place.sql(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
        place.sql(f'GRANT USAGE, CREATE ON SCHEMA "{place.schema}" TO {name}')
    place.sql(f'CREATE SEQUENCE "{place.schema}".calls')
    place.sql(f'GRANT ALL ON "{place.schema}".calls TO PUBLIC')
    code = f'"{place.schema}".code'
    place.sql(f"SET ROLE {names[0]}")
    place.sql(
        f"CREATE FUNCTION {code}() RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS "
        f"$$BEGIN RETURN nextval('\"{place.schema}\".calls'); END$$"
    )
    monkeypatch.setenv("SQLQUEUE_URL", as_login(place.url, names[1], "secret").url)
    yield code
    place.sql("RESET ROLE")
    for name in names:
        place.sql(f"DROP OWNED BY {name} CASCADE")
        place.sql(f"DROP ROLE {name}")


def calls(place: Place) -> int:
    """How often the function was called, and no more from here on."""
    query = f'SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM "{place.schema}".calls'
    return int(place.sql(query)[0][0])


@pytest.mark.parametrize("danger", [*DANGERS, "statistics", "a type of a column"])
def test_looking_runs_no_code_of_another_owner(
    run: Run, place: Place, attack: str, danger: str
) -> None:
    """stats, doctor and report say why they do not read the table; who names it reads it."""
    table = address(place, "trap")
    kind = "timestamp"
    if danger == "a type of a column":
        kind = f'"{place.schema}".moment'
        place.sql(f"CREATE DOMAIN {kind} AS timestamp")
    place.sql(f"CREATE TABLE {table} ({COLUMNS.format(kind)})")
    place.sql(f"INSERT INTO {table} (id, headers) VALUES (gen_random_uuid(), '{{}}')")
    if danger != "a type of a column":
        text = DANGERS.get(danger, STATISTICS).format(table, attack, f'"{place.schema}"')
        for each in text.split(";"):
            place.sql(each)
        place.sql(f"GRANT EXECUTE ON FUNCTION {attack} TO PUBLIC")
    place.sql(f"GRANT SELECT ON {table} TO PUBLIC")
    before = calls(place)

    found = looked_at(run, place)["trap"]
    checked = run("doctor", "--json", "--state-schema", place.state).objects
    run("report", "--json", "--state-schema", place.state)

    assert calls(place) == before
    assert (found["read"], found["state"]) == (False, "not read")
    reasons = [each["found"] for each in checked if each["name"] == "not_read"]
    assert any("it could run code of its owner" in each for each in reasons)
    assert looked_at(run, place, table)["trap"]["read"] is True
    if danger != "a type of a column":
        assert calls(place) > before


def test_a_locked_queue_stops_no_other_and_says_who_locks_it(
    run: Run, queue: str, place: Place
) -> None:
    """Its fix ends the session; the report has the others' figures."""
    locked, poison = address(place, "Shop.Locked"), address(place, "Shop.Poison")
    run("create", locked)
    run("create", poison)
    place.sql(f"INSERT INTO {poison} (id, headers) VALUES (gen_random_uuid(), 'no JSON')")
    with closing(psycopg.connect(place.url, application_name="psql of X")) as other:
        other.execute(sql.SQL("LOCK TABLE {}").format(sql.Identifier(place.schema, "Shop.Locked")))

        found = looked_at(run, place)
        shown = run("stats", "--state-schema", place.state).out.partition("session ")[2]
        (page,) = run("report", "--json", "--state-schema", place.state).objects
        line, fix, *_ = shown.splitlines()
        place.sql(fix.strip())

    states = {name: each["state"] for name, each in found.items()}
    assert states == {"Shop.Orders": "ok", "Shop.Locked": "locked", "Shop.Poison": "poison"}
    assert re.search(r"'psql of X'\) has locked the whole table", line)
    assert {each["queue"] for each in page["queues"]} >= {queue, locked, poison}
    assert {"locked", "poison"} <= {each["name"] for each in page["problems"]}
    assert looked_at(run, place)["Shop.Locked"]["state"] == "ok"


def test_a_large_queue_is_estimated(
    run: Run, queue: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marked as such; never more than the seqs allow. A smaller one is counted."""
    place.sql(
        f"INSERT INTO {queue} (id, headers) SELECT gen_random_uuid(), '{{}}' "
        "FROM generate_series(1, 2000)"
    )
    place.sql(f"ANALYZE {queue}")
    counted = looked_at(run, place, queue)["Shop.Orders"]

    monkeypatch.setattr(inspect, "LARGEST_COUNTED_TABLE", 0)
    found = looked_at(run, place, queue)["Shop.Orders"]
    table = run("stats", queue, "--state-schema", place.state).out
    place.sql(f"DELETE FROM {queue} WHERE seq <= 1990")
    fewer = looked_at(run, place, queue)["Shop.Orders"]

    fields = ("messages", "estimated", "expired")
    assert [counted[each] for each in fields] == [2000, False, 0]
    assert [found[each] for each in fields] == [2000, True, None]
    assert "~2,000" in table
    assert [fewer[each] for each in fields] == [10, True, None]


def test_the_settings_of_state_are_checked(orders: str, place: Place) -> None:
    """The pages among them; each fix works."""
    options = SourceOptions.parse({"url": place.url, "queue": orders, "stateSchema": place.state})
    page = f'"{place.state}".receipt_page'
    with Session(options, "test") as session:
        assert checks.of_state(session.open()) == []
        place.sql(f"ALTER TABLE {page} SET (autovacuum_enabled = off)")
        place.sql(f'ALTER TABLE "{place.state}".staging SET UNLOGGED')
        place.sql(
            f'ALTER TABLE "{place.state}".stream SET (autovacuum_vacuum_threshold = 90000000)'
        )

        found = checks.of_state(session.open())
        for each in found:
            place.sql(each.fix)

        assert {each.name for each in found} == {
            "state_autovacuum",
            "state_unlogged",
            "state_late_autovacuum",
        }
        assert checks.of_state(session.open()) == []


def test_what_pins_rows_without_a_session_is_found() -> None:
    """A prepared transaction and a replication slot that no client uses; each fix works."""
    with embedded.server() as server:
        with psycopg.connect(server.url, autocommit=True) as dba:
            dba.execute("ALTER SYSTEM SET max_prepared_transactions = 5")
        server.stop()
        server.start()
        options = SourceOptions.parse({"url": server.url, "queue": "Shop"})
        with Session(options, "test") as session:
            connection = session.open()
            schema.create_queue(connection, options.address, body_string=False)
            with psycopg.connect(server.url) as manager:
                manager.execute('LOCK TABLE "Shop"')
                manager.execute("PREPARE TRANSACTION 'it''s mine'")
            with psycopg.connect(server.url, autocommit=True) as dba:
                dba.execute("SELECT pg_create_physical_replication_slot('standby', true)")

                found = {each.name: each for each in checks.of_server(connection, older=0.0)}
                ((lock,),) = problems.blockers(connection).values()
                for name in ("prepared_transaction", "replication_slot"):
                    dba.execute(found[name].fix.encode())

                assert "'it''s mine'" in found["prepared_transaction"].found
                assert lock.fix == found["prepared_transaction"].fix
                assert "keeps the WAL" in found["replication_slot"].found
                assert checks.of_server(connection, older=0.0) == []
