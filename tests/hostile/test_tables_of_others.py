"""
Tables that nobody named: commands and streams find them, and run no code of their owners.

`mallory` owns a schema with code that writes into `loot` who ran it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from sqlq_spark.cli import main

if TYPE_CHECKING:
    from conftest import Place

    from .conftest import Tenant, Tenants

SPY = """
CREATE TABLE {0}.loot (who text);
GRANT USAGE ON SCHEMA {0} TO PUBLIC;
GRANT INSERT ON {0}.loot TO PUBLIC;
CREATE FUNCTION {0}.steal() RETURNS boolean LANGUAGE plpgsql AS
    $$BEGIN INSERT INTO {0}.loot VALUES (current_user); RETURN true; END$$
"""
QUEUE = (
    "CREATE TABLE {0}.{1} (id uuid PRIMARY KEY, expires timestamp, headers text NOT NULL, "
    "body bytea, seq serial UNIQUE)"
)
DELAYED = 'CREATE TABLE {0}."{1}.Delayed" (headers text NOT NULL, body bytea, due timestamptz)'
DELAYED_VIEW = (
    """CREATE VIEW {0}."good.Delayed" AS SELECT '{{}}'::text AS headers, NULL::bytea AS body, """
    "now() AS due WHERE {0}.steal()"
)


@pytest.fixture
def mallory(tenants: Tenants) -> Tenant:
    """Give an attacker with a schema of its own, and code there."""
    made = tenants.tenant("Mallory")
    made.sql(SPY.format(made.login))
    return made


@pytest.fixture
def good(mallory: Tenant, place: Place) -> str:
    """Give a queue of the attacker's without any code, which a stream reads."""
    mallory.sql(QUEUE.format(mallory.login, "good"))
    name = f'"{mallory.login}"."good"'
    add_stream(mallory, place, name)
    return name


def add_stream(tenant: Tenant, place: Place, queue: str) -> None:
    """Add a row of a stream, as any reader may."""
    columns = f'"{place.state}".stream (stream, queue, driver)'
    tenant.sql(f"INSERT INTO {columns} VALUES (%s, %s, 'd')", queue, queue)


def run(place: Place, *words: str, code: int | None = None) -> list[dict[str, Any]]:
    """Run a command as the superuser; its JSON lines."""
    given = [*words, "--json", "--state-schema", place.state]
    result = CliRunner().invoke(main.app, given, env={"SQLQUEUE_URL": place.url})
    assert result.exit_code in ({0, 1} if code is None else {code}), result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def loot(tenant: Tenant) -> list[str]:
    """Who ran the attacker's code."""
    return [who for (who,) in tenant.sql(f"SELECT who FROM {tenant.login}.loot")]


# ---------------------------------------------------------------- delayed messages


def test_a_view_in_place_of_delayed_messages_is_not_read(
    place: Place, mallory: Tenant, good: str
) -> None:
    """Its queue is, and says so; who names the queue reads the view."""
    mallory.sql(DELAYED_VIEW.format(mallory.login))

    (look,) = run(place, "stats")
    run(place, "doctor")
    run(place, "report")

    assert loot(mallory) == []
    (found,) = [each for each in look["queues"] if each["queue"] == good]
    assert (found["read"], found["delayed"]) == (True, None)
    assert found["state"] == "delayed not read"
    assert any("a view" in each["found"] for each in look["problems"])
    run(place, "stats", good)
    assert loot(mallory) != []


def test_delayed_messages_of_another_owner_without_code_are_counted(
    place: Place, mallory: Tenant, good: str
) -> None:
    """They are sound."""
    mallory.sql(DELAYED.format(mallory.login, "good"))
    mallory.sql(f"INSERT INTO {mallory.login}.\"good.Delayed\" VALUES ('{{}}', NULL, now())")

    (look,) = run(place, "stats")

    (found,) = [each for each in look["queues"] if each["queue"] == good]
    assert (found["delayed"], found["state"]) == (1, "ok")


# ---------------------------------------------------------------- rows of streams


def test_a_stream_row_that_names_no_address_is_a_finding(
    place: Place, mallory: Tenant, good: str
) -> None:
    """`doctor` checks everything else as without the row."""
    add_stream(mallory, place, '"a')
    mallory.sql(f"DROP TABLE {good}")

    found = {each["where"]: each for each in run(place, "doctor", code=1)}

    assert found['"a']["name"] == "no_address"
    assert good in found
