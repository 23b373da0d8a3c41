"""
Tables that nobody named: commands and streams find them, and run no code of their owners.

`mallory` owns a schema with code that writes into `loot` who ran it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from sqlq_spark.admin import checks
from sqlq_spark.cli import main
from sqlq_spark.database import transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.errors import SubscriptionsRefused
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.send.subscriptions import Subscription, check_table, list_subscriptions, unsubscribe
from sqlq_spark.wire.address import POSTGRESQL

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
    return run_anywhere(place, *words, "--state-schema", place.state, code=code)


def run_anywhere(place: Place, *words: str, code: int | None = None) -> list[dict[str, Any]]:
    """Run a command as the superuser that is given no state schema; its JSON lines."""
    result = CliRunner().invoke(main.app, [*words, "--json"], env={"SQLQUEUE_URL": place.url})
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


# ---------------------------------------------------------------- state tables


def test_state_tables_of_an_untrusted_owner_are_not_read(place: Place, mallory: Tenant) -> None:
    """`doctor` and `retire` name their schema; it runs no code, and keeps no queue."""
    queue = f'"{place.schema}"."gone"'
    place.sql(QUEUE.format(f'"{place.schema}"', '"gone"'))
    text = "CREATE VIEW {0}.{1} AS SELECT 1 AS version WHERE {0}.steal()"
    for table in ("version", "stream", "receipt", "receipt_page", "staging_page", "trail"):
        mallory.sql(text.format(mallory.login, table))
        mallory.sql(f"GRANT ALL ON {mallory.login}.{table} TO PUBLIC")

    found = run_anywhere(place, "doctor")
    (retired,) = run_anywhere(place, "retire", queue, "--yes", code=0)

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
    "'Shop.Placed'::text AS topic WHERE {0}.steal()",
    "policy": "CREATE TABLE {1} (queueaddress text, endpoint text, topic text);"
    "INSERT INTO {1} VALUES ('q', 'e', 'Shop.Placed');"
    "ALTER TABLE {1} ENABLE ROW LEVEL SECURITY;"
    "CREATE POLICY p ON {1} USING ({0}.steal())",
}
GRANTS = {
    "table": "GRANT ALL ON {1} TO PUBLIC",
    "columns": "GRANT SELECT (topic, endpoint, queueaddress) ON {1} TO PUBLIC",
}
PLAIN = (
    "CREATE TABLE {1} (queueaddress varchar(200) NOT NULL, endpoint varchar(200) NOT NULL, "
    "topic varchar(200) NOT NULL, PRIMARY KEY (endpoint, topic));"
    "INSERT INTO {1} VALUES ('\"nowhere\"', 'e', 'Shop.Placed'); GRANT SELECT ON {1} TO PUBLIC"
)


def add_subscriptions(mallory: Tenant, place: Place, *texts: str) -> str:
    """Let the attacker make the table of subscriptions beside the shop's queue; its address."""
    table = f'"{place.schema}"."SubscriptionRouting"'
    place.sql(f'GRANT USAGE, CREATE ON SCHEMA "{place.schema}" TO {mallory.login}')
    for text in texts:
        mallory.sql(text.format(mallory.login, table))
    return table


def publish(place: Place, url: str, table: str) -> list[Subscription]:
    """Read the subscriptions as a publisher does."""
    given = {"url": url, "queue": "x", "stateSchema": place.state, "subscriptionTable": table}
    options = SinkOptions.parse(given)
    with Session(options, "test") as session, transaction(session.open(), timeout=30):
        return list_subscriptions(session.open(), options.subscription_address)


def start(place: Place, tenant: Tenant) -> None:
    """Check a stream's queue as at its start."""
    options = SourceOptions.parse(
        {"url": tenant.url, "queue": tenant.queue, "stateSchema": place.state}
    )
    with Session(options, "test") as session:
        checks.at_start(session.open(), options)


@pytest.mark.parametrize("grant", GRANTS)
@pytest.mark.parametrize("kind", SUBSCRIPTIONS)
def test_subscriptions_that_run_code_are_not_read(
    place: Place, tenants: Tenants, mallory: Tenant, kind: str, grant: str
) -> None:
    """Neither by a stream's start, which goes on, nor by a publisher or a command, which fail."""
    shop = tenants.tenant("Shop")
    add_stream(shop, place, shop.queue)
    table = add_subscriptions(mallory, place, SUBSCRIPTIONS[kind], GRANTS[grant])
    text = f"SELECT topic, endpoint, queueaddress FROM {table}"
    shop.sql(text)
    assert loot(mallory) == [shop.login]
    place.sql(f"TRUNCATE {mallory.login}.loot")

    start(place, shop)
    with pytest.raises(SubscriptionsRefused):
        publish(place, shop.url, table)
    with Session(SinkOptions.parse({"url": shop.url}), "test") as session:
        with pytest.raises(SubscriptionsRefused):
            check_table(session.open(), POSTGRESQL.parse_address(table))
        with pytest.raises(SubscriptionsRefused):
            unsubscribe(session.open(), POSTGRESQL.parse_address(table), "Shop.Placed", "e")
    words = ("doctor", "--subscription-table", table)
    named = [run(place, *words, *more) for more in ([shop.queue], [])]

    assert loot(mallory) == []
    if kind == "view":  # a superuser has no policies
        for found in named:
            (refused,) = [each for each in found if each["name"] == "subscribers_refused"]
            assert refused["where"] == table


def test_subscriptions_of_another_owner_without_code_are_read(
    place: Place, tenants: Tenants, mallory: Tenant
) -> None:
    """As of a .NET endpoint's own login; and a view that a superuser made."""
    shop = tenants.tenant("Shop")
    table = add_subscriptions(mallory, place, PLAIN)
    view = f'"{place.schema}".all_subscriptions'
    place.sql(f"CREATE VIEW {view} AS SELECT * FROM {table}")
    place.sql(f"GRANT SELECT ON {view} TO PUBLIC")

    expected = [Subscription("Shop.Placed", "e", '"nowhere"')]
    assert publish(place, shop.url, table) == publish(place, shop.url, view) == expected
