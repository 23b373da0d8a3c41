"""Tables that nobody named: commands and streams find them, and run no code of their owners."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cli.conftest import run

from sqlq_spark.admin import checks
from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import SubscriptionsRefused
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.send.subscriptions import Subscription, check_table, list_subscriptions, unsubscribe
from sqlq_spark.wire.address import POSTGRESQL

if TYPE_CHECKING:
    from cli.commands import Run
    from conftest import Place

    from .conftest import Tenant, Tenants

__all__ = ["run"]  # the fixture

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
TRAP = """
CREATE FUNCTION {0}.code() RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS
    $$BEGIN PERFORM {0}.steal(); RETURN 1; END$$;
INSERT INTO {0}.trap (id, headers) VALUES (gen_random_uuid(), '{{}}');
CREATE INDEX ON {0}.trap (({0}.code()));
TRUNCATE {0}.loot; GRANT EXECUTE ON FUNCTION {0}.code() TO PUBLIC
"""
DELAYED = 'CREATE TABLE {0}."{1}.Delayed" (headers text NOT NULL, body bytea, due timestamptz)'
DELAYED_VIEW = (
    """CREATE VIEW {0}."good.Delayed" AS SELECT '{{}}'::text AS headers, NULL::bytea AS body, """
    "now() AS due WHERE {0}.steal()"
)


@pytest.fixture
def mallory(tenant: Tenants) -> Tenant:
    """Give an attacker with a schema of its own, and code there."""
    made = tenant("Mallory")
    made.sql(SPY.format(made.login))
    return made


@pytest.fixture
def good(mallory: Tenant, place: Place) -> str:
    """Give a queue of the attacker's without any code, which a stream reads."""
    mallory.sql(QUEUE.format(mallory.login, "good"))
    name = f'"{mallory.login}"."good"'
    add_stream(mallory, place, name)
    return name


def add_stream(reader: Tenant, place: Place, queue: str) -> None:
    """Add a row of a stream, as any reader may."""
    columns = f'"{place.state}".stream (stream, queue, driver)'
    reader.sql(f"INSERT INTO {columns} VALUES (%s, %s, 'd')", queue, queue)


def loot(tenant: Tenant) -> list[str]:
    """Who ran the attacker's code."""
    return [who for (who,) in tenant.sql(f"SELECT who FROM {tenant.login}.loot")]


# ---------------------------------------------------------------- queues, delayed messages


def test_queues_and_delayed_messages_that_run_code_are_not_read(
    run: Run, mallory: Tenant, good: str
) -> None:
    """stats, doctor and report say why; who names the queue reads it."""
    for name in ("trap", "sound"):
        mallory.sql(QUEUE.format(mallory.login, name))
    mallory.sql(TRAP.format(mallory.login))
    mallory.sql(DELAYED_VIEW.format(mallory.login))
    mallory.sql(DELAYED.format(mallory.login, "sound"))
    mallory.sql(f"INSERT INTO {mallory.login}.\"sound.Delayed\" VALUES ('{{}}', NULL, now())")

    (look,) = run("stats", "--json").objects
    doctor = run("doctor", "--json").objects
    run("report", "--json")

    assert loot(mallory) == []
    names = {f'"{mallory.login}"."{name}"': name for name in ("good", "trap", "sound")}
    found = {names[each["queue"]]: each for each in look["queues"] if each["queue"] in names}
    assert {name: (its["read"], its["delayed"], its["state"]) for name, its in found.items()} == {
        "good": (True, None, "delayed not read"),
        "trap": (False, None, "not read"),
        "sound": (True, 1, "ok"),
    }
    assert any("a view" in each["found"] for each in look["problems"])
    reasons = [each["found"] for each in doctor if each["name"] == "not_read"]
    assert any("it could run code of its owner" in each for each in reasons)
    for name in (good, f'"{mallory.login}"."trap"'):
        run("stats", name)
        assert loot(mallory) != []
        mallory.sql(f"TRUNCATE {mallory.login}.loot")


# ---------------------------------------------------------------- rows of streams


def test_a_stream_row_that_names_no_address_is_a_finding(
    run: Run, place: Place, mallory: Tenant, good: str
) -> None:
    """`doctor` checks everything else as without the row."""
    add_stream(mallory, place, '"a')
    mallory.sql(f"DROP TABLE {good}")

    found = {each["where"]: each for each in run("doctor", "--json").objects}

    assert found['"a']["name"] == "no_address"
    assert good in found


# ---------------------------------------------------------------- state tables


def test_state_tables_of_an_untrusted_owner_are_not_read(
    run: Run, place: Place, mallory: Tenant
) -> None:
    """`doctor` and `retire` name their schema; it runs no code, and keeps no queue."""
    queue = f'"{place.schema}"."gone"'
    place.sql(QUEUE.format(f'"{place.schema}"', '"gone"'))
    text = "CREATE VIEW {0}.{1} AS SELECT 1 AS version WHERE {0}.steal()"
    for table in ("version", "stream", "receipt", "receipt_page", "staging_page", "trail"):
        mallory.sql(text.format(mallory.login, table))
        mallory.sql(f"GRANT ALL ON {mallory.login}.{table} TO PUBLIC")

    found = run("doctor", "--json", own=False).objects
    (retired,) = run("retire", queue, "--yes", "--json", own=False).objects

    assert loot(mallory) == []
    (unread,) = [each["found"] for each in found if each["name"] == "state_unread"]
    assert mallory.login in unread
    assert f"belongs to {mallory.login}; " in unread
    assert retired["dropped"] == [queue]
    assert retired["unread"] == [mallory.login]


# ---------------------------------------------------------------- subscriptions

# what an owner can put in place of the transport's table, {0} is its schema and {1} the table
SUBSCRIPTIONS = {
    "view": "CREATE VIEW {1} AS SELECT 'q'::text AS queueaddress, 'e'::text AS endpoint, "
    "'Shop.Placed'::text AS topic WHERE {0}.steal(); GRANT ALL ON {1} TO PUBLIC",
    "policy": "CREATE TABLE {1} (queueaddress text, endpoint text, topic text);"
    "INSERT INTO {1} VALUES ('q', 'e', 'Shop.Placed'); ALTER TABLE {1} ENABLE ROW LEVEL SECURITY;"
    "CREATE POLICY p ON {1} USING ({0}.steal());"
    "GRANT SELECT (topic, endpoint, queueaddress) ON {1} TO PUBLIC",
    "none": "CREATE TABLE {1} (queueaddress varchar(200) NOT NULL, endpoint varchar(200) NOT NULL,"
    "topic varchar(200) NOT NULL, PRIMARY KEY (endpoint, topic));"
    "INSERT INTO {1} VALUES ('q', 'e', 'Shop.Placed'); GRANT SELECT ON {1} TO PUBLIC",
}


def publish(place: Place, url: str, table: str) -> list[Subscription]:
    """Read the subscriptions as a publisher does."""
    given = {"url": url, "queue": "x", "stateSchema": place.state, "subscriptionTable": table}
    options = SinkOptions.parse(given)
    with Session(options, "test") as session, transaction(session.open(), timeout=30):
        return list_subscriptions(session.open(), options.subscription_address)


@pytest.mark.parametrize("kind", SUBSCRIPTIONS)
def test_subscriptions_that_run_code_are_not_read(
    run: Run, place: Place, tenant: Tenants, mallory: Tenant, kind: str
) -> None:
    """Neither by a stream's start, nor by a publisher or a command; those that run nothing are."""
    shop, table = tenant("Shop"), f'"{place.schema}"."SubscriptionRouting"'
    add_stream(shop, place, shop.queue)
    place.sql(f'GRANT USAGE, CREATE ON SCHEMA "{place.schema}" TO {mallory.login}')
    mallory.sql(SUBSCRIPTIONS[kind].format(mallory.login, table))
    if kind == "none":
        view = f'"{place.schema}".all_subscriptions'
        place.sql(f"CREATE VIEW {view} AS SELECT * FROM {table}; GRANT SELECT ON {view} TO PUBLIC")
        expected = [Subscription("Shop.Placed", "e", "q")]
        assert publish(place, shop.url, table) == publish(place, shop.url, view) == expected
        return
    shop.sql(f"SELECT topic, endpoint, queueaddress FROM {table}")
    assert loot(mallory) == [shop.login]
    place.sql(f"TRUNCATE {mallory.login}.loot")

    given = {"url": shop.url, "queue": shop.queue, "stateSchema": place.state}
    with Session(options := SourceOptions.parse(given), "test") as session:
        checks.at_start(session.open(), options)
        with pytest.raises(SubscriptionsRefused):
            publish(place, shop.url, table)
        with pytest.raises(SubscriptionsRefused):
            check_table(session.open(), POSTGRESQL.parse_address(table))
        with pytest.raises(SubscriptionsRefused):
            unsubscribe(session.open(), POSTGRESQL.parse_address(table), "Shop.Placed", "e")
    named = [run("doctor", "--json", *more).objects for more in ([shop.queue], [])]

    assert loot(mallory) == []
    if kind == "view":  # a superuser has no policies
        for found in named:
            (refused,) = [each for each in found if each["name"] == "subscribers_refused"]
            assert refused["where"] == table
