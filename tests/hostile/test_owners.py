"""
Which tables are used: by owner, by what names the table, and by the login's rights.

Five roles own a table each. A session of an ordinary login, and one of a superuser, are led to each
table in six ways. A message that arrives means that the table was used.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from cli.database import own_database
from conformance.dba import as_login

from sqlq_spark import errors
from sqlq_spark.admin.script import endpoint, write_script
from sqlq_spark.database import schema
from sqlq_spark.database.sessions import Session, StateSession
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.receive.batch import Task
from sqlq_spark.receive.due import Mover
from sqlq_spark.receive.task import receive
from sqlq_spark.send import insert, subscriptions
from sqlq_spark.send.chunk import CHUNK_ROW, CHUNK_TOPICS
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.headers import EXCEPTION_INFO, FORWARD_DESTINATION, dumps
from sqlq_spark.wire.postgresql import POSTGRESQL
from sqlq_spark.wire.rows import NO_SPARK_BATCH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Place


OWNERS = ("own", "superuser", "database", "state", "other")
NAMED_BY = ("option", "column", "header", "subscription", "derived", "default")
LOGINS = ("ordinary", "superuser")
KNOWN = {"own", "superuser", "database", "state"}  # to an ordinary login
# login and what names the table → the owners whose tables are used. What only a header names, and a
# table of delayed messages, must have the owner of its queue, which is the superuser here.
USED = {
    ("ordinary", "option"): {*OWNERS},
    ("ordinary", "column"): KNOWN,
    ("ordinary", "header"): {"superuser"},
    ("ordinary", "subscription"): KNOWN,
    ("ordinary", "derived"): {"superuser"},
    ("ordinary", "default"): KNOWN,
    **{("superuser", named_by): {"own", "superuser"} for named_by in NAMED_BY},
}
QUEUE = """
CREATE TABLE {0} (id uuid PRIMARY KEY, expires timestamp, headers text NOT NULL, body bytea,
                  seq serial UNIQUE);
ALTER TABLE {0} OWNER TO {1};
GRANT ALL ON {0} TO PUBLIC
"""
BASE, ERRORS = '"root"."base"', '"root"."error"'
DELAYED, ROUTING = '"root"."base.Delayed"', '"root"."Routing"'
DEFAULT_ROUTING = 'public."SubscriptionRouting"'
TOPIC = "Shop.Placed"


@dataclass(frozen=True)
class World:
    """A database with five owners, whose tables anyone may use."""

    place: Place
    roles: dict[str, str]  # owner → role; `own` is the ordinary login
    urls: dict[str, str]  # login → url
    states: dict[str, str]  # login → a state schema that it accepts

    def role(self, owner: str, login: str) -> str:
        """The role of an owner. Tables of a superuser belong to the superuser itself."""
        own = owner == "own" and login == "superuser"
        return self.roles["superuser" if own else owner]

    def table(self, owner: str, login: str = "ordinary") -> str:
        """The queue of an owner, in a schema of that owner."""
        return f'"s_{self.role(owner, login)}"."q"'

    def given(self, login: str, **raw: str) -> dict[str, str]:
        """Options of a login."""
        return {"url": self.urls[login], "stateSchema": self.states[login], **raw}

    def own(self, table: str, owner: str, login: str) -> None:
        """Let an owner have a table of the superuser's schema."""
        self.place.sql(f"ALTER TABLE {table} OWNER TO {self.role(owner, login)}")

    def empty(self, *tables: str) -> None:
        self.place.sql(";".join(f"DELETE FROM {table}" for table in tables))

    def count(self, table: str) -> int:
        return int(self.place.sql(f"SELECT count(*) FROM {table}")[0][0])


@pytest.fixture(scope="module")
def world(server: str) -> Iterator[World]:
    """Make the owners, their tables, and two state schemas."""
    with own_database(server) as place:
        name = place.connection.info.dbname
        superuser = place.connection.info.user
        roles = {owner: f"{name}_{owner}" for owner in OWNERS} | {"superuser": superuser}
        for owner in {*OWNERS} - {"superuser"}:
            place.sql(f"CREATE ROLE {roles[owner]} LOGIN PASSWORD 'secret'")
        place.sql(f"ALTER DATABASE {name} OWNER TO {roles['database']}")
        place.sql(f"ALTER SCHEMA public OWNER TO {superuser}")
        for role in roles.values():
            place.sql(f"CREATE SCHEMA s_{role} AUTHORIZATION {role}")
            place.sql(f"GRANT USAGE ON SCHEMA s_{role} TO PUBLIC")
            place.sql(QUEUE.format(f'"s_{role}"."q"', role))
        place.sql("CREATE SCHEMA root; GRANT USAGE ON SCHEMA root TO PUBLIC")
        for table in (BASE, ERRORS):
            place.sql(QUEUE.format(table, superuser))
        url = as_login(place.superuser, roles["own"], "secret").url
        made = World(
            place,
            roles,
            {"ordinary": url, "superuser": place.superuser},
            {"ordinary": "team", "superuser": "root_state"},
        )
        place.sql(f"CREATE SCHEMA team AUTHORIZATION {roles['state']}")
        owner_url = as_login(place.superuser, roles["state"], "secret").url
        for state, installer in (("team", owner_url), ("root_state", place.superuser)):
            options = SourceOptions.parse({"url": installer, "queue": "x", "stateSchema": state})
            with Session(options, "install") as session:
                connection = session.open()
                schema.install(connection)
                if installer == place.superuser:
                    schema.create_delayed(connection, POSTGRESQL.parse_address(BASE))
                    for routing in (ROUTING, DEFAULT_ROUTING):
                        subscriptions = POSTGRESQL.parse_address(routing)
                        schema.create_subscriptions(connection, subscriptions)
            place.sql(f"GRANT USAGE ON SCHEMA {state} TO PUBLIC")
            place.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA {state} TO PUBLIC")
        place.sql(f"GRANT ALL ON {DELAYED}, {ROUTING}, {DEFAULT_ROUTING} TO PUBLIC")
        place.sql("GRANT ALL ON ALL SEQUENCES IN SCHEMA root TO PUBLIC")
        for role in roles.values():
            place.sql(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA s_{role} TO PUBLIC")
        yield made


# ---------------------------------------------------------------- ways to a table


def send(options: SinkOptions, queue: str | None, topics: list[str] | None = None) -> None:
    """Send a message, as a sink whose rows name a queue or topics."""
    row = {"queue": queue, "headers": "{}", "body": b"secret", "lifetime": None}
    chunk = pa.Table.from_pylist([row], schema=CHUNK_ROW)
    if topics is not None:
        chunk = chunk.append_column(CHUNK_TOPICS, pa.array([topics], CHUNK_TOPICS.type))
    subscriptions.cache.drop(options)
    with Session(options, "test") as session:
        insert.send_in_transaction(session.open(), options, lambda inserts: inserts.insert(chunk))


def receive_all(options: SourceOptions) -> int:
    """Receive a queue as one task. Return how many messages came."""
    task = Task(
        queue=options.address,
        stream=None,
        batch=1,
        task=0,
        first=-(2**63),
        stop=2**63 - 1,
        messages=100,
        options=options,
    )
    with Session(options, "test") as session:
        return int(receive(session.open(), task, spark_batch=NO_SPARK_BATCH).rows.num_rows)


def by_option(world: World, login: str, owner: str) -> bool:
    """Send to the queue of an option, and receive from it."""
    table = world.table(owner, login)
    send(SinkOptions.parse(world.given(login, queue=table)), None)
    return receive_all(SourceOptions.parse(world.given(login, queue=table))) == 1


def by_column(world: World, login: str, owner: str) -> bool:
    """Send to the queue that a row names."""
    table = world.table(owner, login)
    send(SinkOptions.parse(world.given(login)), table)
    return world.count(table) == 1


def by_header(world: World, login: str, owner: str) -> bool:
    """Receive a message that is to be forwarded. A refused one is in the error queue."""
    table = world.table(owner, login)
    put = f"INSERT INTO {BASE} (id, headers, body) VALUES (gen_random_uuid(), %s, '')"
    world.place.sql(put, dumps({FORWARD_DESTINATION: table}))
    options = SourceOptions.parse(world.given(login, queue=BASE, errorQueue=ERRORS))
    assert receive_all(options) == 0
    for (text,) in world.place.sql(f"SELECT headers FROM {ERRORS}"):
        kind = json.loads(text)[f"{EXCEPTION_INFO}ExceptionType"].rpartition(".")[2]
        message = json.loads(text)[f"{EXCEPTION_INFO}Message"]
        raise getattr(errors, kind)(table=table, found=message, owner="", advice="", value="")
    return world.count(table) == 1


def by_subscription(world: World, login: str, owner: str) -> bool:
    """Publish to a queue that a subscription names."""
    table = world.table(owner, login)
    world.place.sql(f"INSERT INTO {ROUTING} VALUES (%s, 'e', '{TOPIC}')", table)
    options = SinkOptions.parse(world.given(login, subscriptionTable=ROUTING))
    send(options, None, [TOPIC])
    return world.count(table) == 1


def by_name_of_queue(world: World, login: str, owner: str) -> bool:
    """Move what is due out of the table of delayed messages of a superuser's queue."""
    world.own(DELAYED, owner, login)
    world.place.sql(f"INSERT INTO {DELAYED} (headers, body, due) VALUES ('{{}}', '', now())")
    options = SourceOptions.parse(world.given(login, queue=BASE, endpointTimeZone="UTC"))
    with Session(options, "test") as session:
        return Mover(options.address, options).move(session.open()).messages == 1


def by_default(world: World, login: str, owner: str) -> bool:
    """Publish by the table of subscriptions that nobody names."""
    world.own(DEFAULT_ROUTING, owner, login)
    world.place.sql(f"INSERT INTO {DEFAULT_ROUTING} VALUES (%s, 'e', '{TOPIC}')", BASE)
    send(SinkOptions.parse(world.given(login)), None, [TOPIC])
    return world.count(BASE) == 1


WAYS = {
    "option": by_option,
    "column": by_column,
    "header": by_header,
    "subscription": by_subscription,
    "derived": by_name_of_queue,
    "default": by_default,
}


@pytest.mark.parametrize(("login", "named_by", "owner"), [*product(LOGINS, NAMED_BY, OWNERS)])
def test_a_table_is_used_if_its_owner_is_trusted(
    world: World, login: str, named_by: str, owner: str
) -> None:
    """
    An ordinary login also uses a table that an option names.

    Any other table raises an error that names the owner.
    """
    queues = [world.table(each, login) for each in OWNERS]
    world.empty(*queues, BASE, ERRORS, DELAYED, ROUTING, DEFAULT_ROUTING)

    if owner in USED[login, named_by]:
        assert WAYS[named_by](world, login, owner)
        return

    with pytest.raises((errors.TableRefused, errors.SubscriberUnreachable)) as refused:
        WAYS[named_by](world, login, owner)
    assert world.role(owner, login) in str(refused.value)
    assert [world.count(queue) for queue in queues] == [0] * len(queues)


def test_an_error_has_the_value_that_ends_it(world: World) -> None:
    """It names the owner and the option. It first proposes an ordinary login to a superuser."""
    other, state = world.roles["other"], world.roles["state"]
    table = world.table("other")
    world.empty(table)
    given = world.given("ordinary", trustedOwners='"a,b"')
    with pytest.raises(errors.OwnerNotTrusted) as refused:
        send(SinkOptions.parse(given), table)
    assert refused.value.owner == other
    assert refused.value.value == f'"a,b",{other}'
    assert f"table {table} is not used: it belongs to {other}, who is not trusted. The" in str(
        refused.value
    )
    assert f"set trustedOwners to {refused.value.value}" in str(refused.value)
    with pytest.raises(errors.OwnerNotTrusted) as by_superuser:
        send(SinkOptions.parse(world.given("superuser", queue=world.table("state"))), None)
    assert by_superuser.value.owner == state
    assert "Use an ordinary login with the operator's role" in str(by_superuser.value)

    for login in LOGINS:
        send(SinkOptions.parse(world.given(login, trustedOwners=f'"a,b", {other}')), table)
    assert world.count(table) == 2


def test_a_descendant_keeps_the_rules(world: World) -> None:
    """Statements on the parent reach it, and its owner may add code to it."""
    parent, other = '"root"."parent"', world.roles["other"]
    world.place.sql(QUEUE.format(parent, world.roles["superuser"]))
    world.place.sql(f"CREATE TABLE root.child () INHERITS ({parent})")
    options = SourceOptions.parse(world.given("ordinary", queue=parent))
    assert receive_all(options) == 0

    world.place.sql(f"ALTER TABLE root.child OWNER TO {other}")

    with pytest.raises(
        errors.OwnerNotTrusted, match=r"descendant root\.child belongs to"
    ) as refused:
        receive_all(options)
    assert refused.value.owner == other


# ---------------------------------------------------------------- what a user sets


# who owns the queues of Spark and of two endpoints, who connects, and which options are needed
SET_UPS: dict[str, tuple[dict[str, str], str, str]] = {
    "a DBA's script owns all": (dict.fromkeys(("spark", "sales", "billing"), "dba"), "spark", ""),
    "all endpoints use one login": (
        dict.fromkeys(("spark", "sales", "billing"), "endpoints"),
        "endpoints",
        "",
    ),
    "Spark reads its own queue": ({"spark": "spark"}, "spark", ""),
    "each endpoint has its own login": (
        {"spark": "spark", "sales": "sales", "billing": "billing"},
        "spark",
        "sales,billing",
    ),
}


@pytest.mark.parametrize("set_up", SET_UPS)
def test_what_a_user_sets_is_enough(server: str, set_up: str) -> None:
    """Spark receives, diverts, moves due messages, replies and publishes with these settings."""
    owners, login, trusted = SET_UPS[set_up]
    with own_database(server) as place:
        database, dba = place.connection.info.dbname, place.connection.info.user
        roles = {name: f"{database}_{name}" for name in {*owners.values(), login} - {"dba"}}
        for role in roles.values():
            place.sql(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
        roles["dba"] = dba
        place.sql(write_script(endpoint(place.superuser, "x"), state="sqlqueue"))
        place.sql(f"GRANT sqlqueue_reader, sqlqueue_sender TO {roles[login]}")
        tables = [*owners, "spark.Delayed", "error"]
        with Session(SourceOptions.parse({"url": place.superuser, "queue": "x"}), "dba") as session:
            connection = session.open()
            for name in (*owners, "error"):
                schema.create_queue(connection, QueueAddress(name))
            schema.create_delayed(connection, QueueAddress("spark"))
            schema.create_subscriptions(connection, QueueAddress("SubscriptionRouting"))
        for name in tables:
            owner = owners.get(name, owners["spark"])
            place.sql(f'ALTER TABLE "{name}" OWNER TO {roles[owner]}')
        place.sql(
            "INSERT INTO \"SubscriptionRouting\" VALUES ('billing', 'Billing', 'Shop.Placed')"
        )
        place.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {roles[login]}")
        place.sql(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {roles[login]}")
        put = "INSERT INTO spark (id, headers, body) VALUES (gen_random_uuid(), %s, '')"
        place.sql(put, "[poison]")
        place.sql(put, "{}")
        place.sql("INSERT INTO \"spark.Delayed\" (headers, body, due) VALUES ('{}', '', now())")
        given = {"url": as_login(place.superuser, roles[login], "secret").url}
        if trusted:
            given["trustedOwners"] = ",".join(roles[name] for name in trusted.split(","))
        options = SourceOptions.parse(
            given | {"queue": "spark", "errorQueue": "error", "endpointTimeZone": "UTC"}
        )
        with StateSession(options, "test") as session:
            assert Mover(options.address, options).move(session.open()).messages == 1
        assert receive_all(options) == 2
        assert place.sql("SELECT count(*) FROM error") == [(1,)]
        if "sales" in owners:
            send(SinkOptions.parse(given), "sales")
            send(SinkOptions.parse(given), None, [TOPIC])
            counts = "SELECT (SELECT count(*) FROM sales), (SELECT count(*) FROM billing)"
            assert place.sql(counts) == [(1, 1)]
        place.sql("DROP SCHEMA sqlqueue CASCADE; DROP OWNED BY sqlqueue_reader, sqlqueue_sender")
