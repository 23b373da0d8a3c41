"""The commands that make what an endpoint needs, the script's roles, and the end of a queue."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from conformance.dba import as_login
from hostile.streams import Writer
from psycopg import errors
from waiting import until

from sqlq_spark.cli import endpoints
from sqlq_spark.database import migrations
from sqlq_spark.database.sessions import StateSession
from sqlq_spark.send.throttle import find_backlog

from .commands import without_psql
from .database import STREAM, address, as_role, count, own_database, put, received, tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Place

    from .commands import Run

PAGE = Path(__file__).parents[2] / "docs" / "dba.md"
ENDPOINT = ("shop", "shop.web1", "shop.web2", "shop.Retries", "error", "audit", "shop.Delayed")
ROLES = ("reader", "sender", "operator", "producer")
QUEUE, LATER, ROUTING = (
    f'"public"."{each}"' for each in ("Shop.Orders", "Later", "SubscriptionRouting")
)
ALL = ("--delayed", "--body-string", "--subscription-table", ROUTING)
# Statements that lock each table for another session. Only a plain SELECT does not wait for them.
EVERY_TABLE = """
SELECT string_agg(format('LOCK TABLE %%I.%%I IN EXCLUSIVE MODE', schemaname, tablename), ';')
  FROM pg_tables WHERE schemaname IN ('public', %s)
"""
SHAPE = """
SELECT table_name::text, column_name || data_type || is_nullable || (column_default IS NULL)
  FROM information_schema.columns WHERE table_schema IN ('public', 'sqlqueue')
UNION ALL SELECT tablename::text, indexdef FROM pg_indexes
 WHERE schemaname IN ('public', 'sqlqueue')
UNION ALL SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint
 WHERE connamespace::regnamespace::text IN ('public', 'sqlqueue') ORDER BY 1, 2
"""
OLD = "CREATE SCHEMA sqlqueue; CREATE TABLE sqlqueue.version AS SELECT 1 AS version"
ENTRY = "INSERT INTO sqlqueue.trail ({}, action, queue, messages) VALUES ({}, 'purge', 'q', 1)"
RECEIPT = (
    "INSERT INTO sqlqueue.receipt (stream, batch, task, queue, messages, expired, diverted,"
    " forwarded, bytes, unpacked, payload{}) VALUES ('s', 1, 1, 'q', 0, 0, 0, 0, 0, 0, ''{})"
)
FORGERIES = (
    ENTRY.format("login", "'x'"),
    ENTRY.format("at", "now()"),
    "DELETE FROM sqlqueue.trail",
    "UPDATE sqlqueue.trail SET messages = 0",
)


@pytest.fixture
def place(server: str) -> Iterator[Place]:
    """Give a database of its own."""
    with own_database(server) as made:
        yield made


@pytest.fixture
def owner(place: Place) -> str:
    """Give the url of the owner of the database, who is no superuser, and has CREATEROLE."""
    name = role(place, "dba")
    place.sql(f"CREATE ROLE {name} LOGIN CREATEROLE PASSWORD 'secret'")
    place.sql(f"ALTER DATABASE {place.connection.info.dbname} OWNER TO {name}")
    return as_login(place.url, name, "secret").url


def role(place: Place, name: str) -> str:
    """The name of a role of the test."""
    return f"{place.connection.info.dbname}_{name}"


def url_of(place: Place, name: str) -> str:
    """The url of a role of the test."""
    return as_role(place.url, role(place, name))


def script(run: Run, place: Place, *words: str) -> str:
    """Print the script for a queue and the roles of the test."""
    roles = [f"--{each}={role(place, each)}" for each in ROLES]
    state = () if "--state-schema" in words else ("--state-schema", "sqlqueue")
    return without_psql(run("script", *words, *state, *roles).out)


def execute(url: str, *texts: str) -> None:
    """Run texts as a login."""
    with psycopg.connect(url, autocommit=True) as connection:
        for text in texts:
            connection.execute(text.encode())


def refuses(url: str, *texts: str) -> None:
    """Make sure that a login may run none of the texts."""
    for text in texts:
        with pytest.raises(errors.InsufficientPrivilege):
            execute(url, text)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait until endpoints have read their subscriptions again."""
    monkeypatch.setattr(endpoints, "SUBSCRIBERS_KEPT", 0)


def test_create_and_the_script_make_all_queues_of_an_endpoint(run: Run, place: Place) -> None:
    """
    A second run adds what is missing, and a wrong name makes nothing.

    `--body-string` adds the body as text, and `--domain` names the state tables.
    """
    words = ("shop", "--instance", "web1", "--instance", "web2", "--qualifier", "Retries")
    more = (*words, "--error", "error", "--audit", "audit", "--body-string", "--delayed")
    wrong = run("create", *words, "--instance", "x" * 60)
    assert (wrong.code, tables(place)) == (2, set())
    assert "option --instance is" in wrong.err
    assert run("create", "shop").code == 0
    put(place, "shop", body=b"\xff")

    made = [run(*command).out for command in (("create", *more), ("install",)) * 2]

    queues = [address(place, table) for table in ENDPOINT]
    assert made[0].startswith("created in ")
    assert made[0].endswith(f": {', '.join(queues[1:])}; already there: {queues[0]}\n")
    assert made[2].startswith("already there in ")
    assert made[2].endswith(f": {', '.join(queues)}\n")
    (again,) = run("create", "shop", "--json").objects
    assert (again["queues"], again["created"]) == ([queues[0]], [])
    assert tables(place) == {*ENDPOINT}
    assert place.sql("SELECT bodystring FROM shop") == [("\\377",)]
    created = place.sql(SHAPE)
    place.sql("DROP SCHEMA sqlqueue, public CASCADE; CREATE SCHEMA public")
    place.sql(script(run, place, *more))
    assert place.sql(SHAPE) == created
    reads = run("script", QUEUE, LATER, "--error", "error", "--no-sender", "--domain", "bank").out
    assert reads.count('CREATE TABLE IF NOT EXISTS "public"."error"') == 1
    assert ('"bank_reader"' in reads, '_sender"' in reads) == (True, False)


# ---------------------------------------------------------------- who runs the script


@pytest.mark.parametrize("first", ["owner", "superuser"])
def test_the_owner_of_the_database_with_createrole_runs_the_script(
    run: Run, place: Place, owner: str, first: str
) -> None:
    """
    The script can be run again, for another domain, and after a superuser has run it.

    With the GRANTs that the documentation shows, another login can use the queue too.
    """
    operator, producer = (url_of(place, each) for each in ("operator", "producer"))

    def own_login(name: str) -> str:  # after SET ROLE it would still be a superuser's session
        place.sql(f"ALTER ROLE {role(place, name)} LOGIN PASSWORD 'secret'")
        return as_login(place.url, role(place, name), "secret").url

    trust = ("--trust", role(place, "dba"))  # a superuser does not trust the database's owner
    for url in (owner if first == "owner" else place.url, place.url):
        execute(url, script(run, place, QUEUE, *ALL, *trust))
    with pytest.raises(errors.UndefinedTable):
        execute(operator, f"SELECT FROM {LATER}")
    for url in (owner, owner, place.url):
        execute(url, script(run, place, LATER, "--state-schema", "second", *trust))
    execute(owner, "CREATE TABLE payroll (id int)")
    execute(operator, f"DELETE FROM {LATER}", "SELECT FROM sqlqueue.trail, second.trail")
    execute(url_of(place, "reader"), f"SELECT FROM {LATER}")
    refuses(operator, "SELECT FROM payroll")

    place.sql(f"DROP TABLE {LATER}; GRANT CREATE ON SCHEMA public TO {role(place, 'producer')}")
    assert run("create", "Shop.Later", "--url", own_login("producer")).code == 0
    (grants,) = re.findall(r"```sql\n(GRANT [^`]+ TO orders_operator;\n)```", PAGE.read_text())
    execute(producer, grants.replace("orders_operator", role(place, "operator")))
    put(place, '"Shop.Later"')
    assert run("purge", "Shop.Later", "--yes", "--url", own_login("operator")).code == 0


def test_a_role_may_connect_where_public_may_not(run: Run, place: Place, owner: str) -> None:
    """The owner's script grants CONNECT. With `--login` it also makes the login a member."""
    place.sql(f"REVOKE CONNECT ON DATABASE {place.connection.info.dbname} FROM PUBLIC")
    login = role(place, "spark")
    place.sql(f"CREATE ROLE {login} LOGIN PASSWORD 'secret'")
    spark = as_login(place.url, login, "secret").url
    with pytest.raises(psycopg.OperationalError, match="CONNECT"):
        execute(spark, "SELECT")

    execute(owner, script(run, place, QUEUE, "--login", login))

    execute(spark, f"SELECT FROM {QUEUE}", "SELECT FROM sqlqueue.dispatch_log")
    place.sql(f"DROP ROLE {login}")  # before its owner is dropped, who granted the membership


def test_the_login_that_installed_removes_everything(run: Run, place: Place, owner: str) -> None:
    """The page's statements drop the state tables and both roles, though it is no superuser."""
    execute(owner, script(run, place, QUEUE, *ALL, "--state-schema", "sqlqueue_orders"))
    page = (PAGE.parent / "dba.md").read_text("utf-8")
    (text,) = re.findall(r"<!-- block: remove/tables -->\n```sql\n([^`]+)```", page)

    execute(owner, text.replace(" orders_", f" {role(place, '')}"))

    found = "SELECT rolname FROM pg_roles WHERE rolname IN (%s, %s)"
    assert place.sql(found, role(place, "reader"), role(place, "sender")) == []
    assert place.sql("SELECT to_regnamespace('sqlqueue_orders')") == [(None,)]


def test_a_script_waits_for_no_table_of_a_stream_and_gives_up_on_another(
    run: Run, place: Place, owner: str
) -> None:
    """
    A stream may hold locks on state tables and queues of any name.

    A script that needs another locked table gives up after its time limit.
    """
    state = 'O\'Brien "%s" $do$ (1)'
    words = (*ALL, "--state-schema", state)
    again, later = (script(run, place, each, *words) for each in ('O\'B "$do$";\n(1)', LATER))
    execute(owner, again)
    ((locks,),) = place.sql(EVERY_TABLE, state)

    with psycopg.connect(place.url) as stream:
        stream.execute(locks.encode())
        execute(owner, again)
        stream.execute(f"LOCK TABLE {ROUTING} IN ACCESS EXCLUSIVE MODE".encode())
        with pytest.raises(errors.LockNotAvailable):
            execute(owner, later)

    assert locks.count("LOCK TABLE") == 13
    assert place.sql("SELECT to_regclass(%s)", LATER) == [(None,)]


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (OLD, f"version 1, expected 3 to {migrations.STATE_VERSION}(?s:.*)be lost"),
        ("SELECT", "permission denied to create role"),
    ],
)
def test_a_script_that_fails_changes_nothing(
    run: Run, place: Place, owner: str, before: str, reason: str
) -> None:
    """It fails on state tables of another release, and if its login may make no roles."""
    execute(owner, before)
    if before == "SELECT":
        place.sql(f"ALTER ROLE {role(place, 'dba')} NOCREATEROLE")

    with pytest.raises(psycopg.Error, match=reason):
        execute(owner, script(run, place, QUEUE))

    assert place.sql("SELECT to_regclass(%s)", QUEUE) == [(None,)]


def test_a_script_does_nothing_in_another_database(run: Run, place: Place, owner: str) -> None:
    """It fails if it names another database. In its own database it makes the queue."""
    name = 'O\'Brien "%" $do$'
    with pytest.raises(errors.RaiseException, match=re.escape(f"expected {name}")):
        execute(owner, script(run, place, QUEUE, "--database", name))
    before = tables(place)

    execute(owner, script(run, place, QUEUE, "--database", place.connection.info.dbname))

    assert before == set()
    assert tables(place) == {"Shop.Orders"}


@pytest.mark.usefixtures("owner")
def test_a_script_uses_no_role_to_which_another_adds_members(run: Run, place: Place) -> None:
    """
    The script fails if another login has ADMIN on a role, unless `--trust` names that login.

    A plain member is allowed.
    """
    reader, other = (role(place, each) for each in ("reader", "dba"))
    place.sql(f"CREATE ROLE {reader}; GRANT {reader} TO {other}")
    place.sql(script(run, place, QUEUE))
    place.sql(f"GRANT {reader} TO {other} WITH ADMIN OPTION")

    with pytest.raises(errors.RaiseException, match=f"role {reader} gets members by {other}"):
        execute(place.url, script(run, place, LATER))
    before = tables(place)
    execute(place.url, script(run, place, LATER, "--trust", other))

    assert "Later" not in before
    assert "Later" in tables(place)


# ---------------------------------------------------------------- what each role may do


def test_each_role_does_its_work(run: Run, place: Place) -> None:
    """A reader receives and diverts, a sender sends exactly once, and an operator runs commands."""
    hostile, topic = 'Er"ror; --', ("Shop.Placed", "--endpoint", "Lake")
    errors = '"public"."Er""ror; --"'
    place.sql(script(run, place, QUEUE, *ALL, "--error", errors))
    as_reader, as_sender, as_operator, as_producer = (
        ("--url", url_of(place, each)) for each in ROLES
    )
    execute(as_producer[1], f"INSERT INTO {QUEUE} (id, headers) VALUES (gen_random_uuid(), 'no')")
    put(place, QUEUE)

    assert received(place, messages=10, url=as_reader[1], errors=hostile) == [b""]
    [[headers]] = place.sql(f"SELECT headers FROM {errors}")
    assert json.loads(headers)["SqlQueue.CorruptHeaders"] == "no"
    assert "_reader may not delay messages" in run("doctor", QUEUE, *as_reader).out

    assert run("subscribe", *topic, "--queue", QUEUE).code == 0
    writer = Writer(place, as_sender[1], QUEUE)
    assert (writer.send(b"x", 0), writer.send(b"x", 0)) == (1, 0)
    assert run("send", "--topic", "Shop.Placed", *as_sender, stdin='{"body": "x"}').code == 0
    assert place.sql(f"SELECT body FROM {QUEUE}") == [(b"x",)] * 2
    with StateSession(writer.options, "sender") as session:
        backlog = find_backlog(session.open(), writer.options, {("queue", QUEUE)})
    assert str(backlog).startswith("2 messages wait in ")
    refused = run("subscribe", *topic, "--queue", QUEUE, *as_sender)
    assert f"GRANT SELECT, INSERT, UPDATE ON {ROUTING} TO the_user" in refused.err
    assert "_sender may not receive from it" in run("doctor", QUEUE, *as_sender).out

    lines = '{"body": "1"}\n{"body": "2", "delay": "00:00:00"}'
    for words in (
        *(("send", QUEUE), ("move-due", QUEUE), ("stats", QUEUE), ("browse", errors)),
        *(("receipts", "list"), ("receipts", "return", "--stream", STREAM, "--yes")),
        *(("purge-expired", QUEUE), ("purge", QUEUE, "--yes"), ("doctor", QUEUE)),
        *(("subscribe", *topic, "--queue", QUEUE), ("unsubscribe", *topic, "--yes")),
    ):
        assert run(*words, *as_operator, stdin=lines).code == 0, words
    assert run("create", LATER, *as_operator).code == 3


def test_no_role_reads_or_forges_what_is_not_its_own(run: Run, place: Place) -> None:
    """The server writes the login of receipts and entries. Only an operator reads the trail."""
    place.sql(script(run, place, QUEUE))
    reader, sender, operator, producer = (url_of(place, each) for each in ROLES)
    refuses(producer, f"SELECT FROM {QUEUE}", "SELECT FROM sqlqueue.version")
    refuses(sender, f"SELECT headers FROM {QUEUE}")
    refuses(operator, *FORGERIES)
    refuses(reader, *FORGERIES, "SELECT FROM sqlqueue.trail")
    refuses(reader, RECEIPT.format(", login", ", 'x'"), "UPDATE sqlqueue.receipt SET login = 'x'")
    refuses(reader, "SELECT nextval('\"Shop.Orders_seq_seq\"')")
    execute(reader, 'SELECT last_value FROM "Shop.Orders_seq_seq"')  # as availableNow does
    execute(reader, RECEIPT.format("", ""))
    put(place, QUEUE)

    assert run("purge", QUEUE, "--yes", "--url", reader).code == 0
    (found,) = run("trail", "--json", "--url", operator).objects

    assert (found["login"], found["messages"]) == (role(place, "reader"), 1)


# ---------------------------------------------------------------- subscriptions


def test_subscriptions_are_made_listed_and_ended(run: Run, place: Place, orders: str) -> None:
    """
    `subscribe` makes the table, may be repeated, and replaces an older queue.

    One wrong topic stops the whole command.
    """
    table, other = address(place, "SubscriptionRouting"), address(place, "other")
    run("create", other)
    web = ("--endpoint", "Shop.Web")

    wrong = run("subscribe", "Shop.Placed", "Shop.Paid, Shop", *web, "--queue", orders)
    absent = place.sql(f"SELECT to_regclass('{table}')")
    made = [
        run("subscribe", "Shop.Placed", "Shop.Paid", *web, "--queue", queue, "--json")
        for queue in (other, orders, orders)
    ]
    place.sql(f"INSERT INTO {table} VALUES ('x', E'odd\\x1b[31m', 'Shop.IEvent')")
    shown, (one,) = run("subscribers").out, run("subscribers", "Shop.Paid", "--json").objects
    refused = run("unsubscribe", "Shop.Placed", *web, stdin="n\n")
    ended = run("unsubscribe", "Shop.Placed", *web, "--yes")
    rest = run("unsubscribe", "Shop.placed", "Shop.Paid", *web, "--yes", "--json")

    assert (wrong.code, absent) == (2, [(None,)])
    assert [each["topic"] for each in made[-1].objects] == ["Shop.Placed", "Shop.Paid"]
    replaced = [[each["replaced"] for each in answer.objects] for answer in made]
    assert replaced == [[None] * 2, [other] * 2, [None] * 2]
    assert [answer.err.count(f"queue {other} gets no ") for answer in made] == [0, 2, 0]
    assert one == {"topic": "Shop.Paid", "endpoint": "Shop.Web", "address": orders}
    assert all(text in shown for text in ("odd·[31m", "Shop.Placed", orders))
    asked = f"This will end the subscription of Shop.Web with {orders} to Shop.Placed.\n"
    assert (refused.code, refused.out, ended.code) == (1, asked, 0)
    assert (rest.code, [each["topic"] for each in rest.objects]) == (1, ["Shop.Paid"])
    assert "Shop.Web is not subscribed to Shop.placed; " in rest.err
    assert count(place, table) == 1


def test_an_endpoint_of_the_same_name_is_not_replaced_in_silence(run: Run, place: Place) -> None:
    """A warning names the queue that is replaced. Another spelling is the same queue."""
    place.sql("CREATE SCHEMA sales")
    mine, theirs = ('"public"."Shop.Web"', '"sales"."Shop.Web"')
    web = ("Shop.Placed", "--endpoint", "Shop.Web", "--queue")
    for queue in (mine, theirs):
        assert run("create", queue).code == 0
    run("subscribe", *web, theirs)

    taken = run("subscribe", *web, mine)
    place.sql(f"UPDATE {ROUTING} SET queueaddress = '\"Shop.Web\"'")
    same = run("subscribe", *web, mine)
    place.sql(f"UPDATE {ROUTING} SET queueaddress = E'odd\\x1b\"[31m'")
    odd = run("subscribe", *web, mine)

    assert "replaced" in taken.out
    assert theirs in taken.out
    assert taken.err.startswith(f"queue {theirs} gets no Shop.Placed any more: ")
    assert (same.err, theirs in same.out) == ("", False)
    assert odd.err.startswith("queue odd·")
    assert {each.code for each in (taken, same, odd)} == {0}


# ---------------------------------------------------------------- retire


def test_a_queue_is_unsubscribed_and_dropped_with_its_delayed_table(
    run: Run, place: Place, orders: str
) -> None:
    """Each step asks first. A queue with messages needs a flag, and other subscribers stay."""
    other, delayed = (address(place, name) for name in ("Shop.Billing", "Shop.Orders.Delayed"))
    run("create", other)
    run("create", orders, "--delayed")
    for queue in (orders, other):
        run("subscribe", "Shop.Placed", "Shop.Paid", "--endpoint", queue, "--queue", queue)
    run("send", orders, stdin='{"body": "1"}\n{"body": "2", "delay": "01:00:00"}')

    refused = run("retire", orders, stdin="n\n")
    kept = run("subscribers", "--json").objects
    stopped = run("retire", orders, stdin="y\n")
    asked = run("retire", orders, "--discard-messages", stdin="n\n")
    left = tables(place)
    (done,) = run("retire", orders, "--yes", "--discard-messages", "--json").objects
    (entry,) = run("trail", "--json").objects

    assert (refused.code, stopped.code, asked.code, len(kept)) == (1, 1, 1, 4)
    assert f"This will end 2 subscriptions of {orders}." in refused.out
    assert f"queue {orders} was not dropped: 2 messages would be lost; " in stopped.err
    assert {"Shop.Orders", "Shop.Orders.Delayed"} < left
    assert done["dropped"] == [delayed, orders]
    assert tables(place) == {"Shop.Billing", "SubscriptionRouting"}
    assert {each["address"] for each in run("subscribers", "--json").objects} == {other}
    assert (entry["action"], entry["queue"], entry["messages"]) == ("retire", orders, 2)


def test_a_queue_of_which_a_stream_has_receipts_is_never_dropped(
    run: Run, place: Place, orders: str
) -> None:
    """Where no state schema is named, `retire` and `doctor` look into every one."""
    other = replace(place, state="other")
    words = ("--state-schema", other.state)
    assert run("install", *words).code == 0
    put(place, orders, times=2)
    received(other, messages=2)
    place.sql(f"ALTER TABLE {other.state}.receipt SET (autovacuum_enabled = off)")

    found = run("doctor", orders, "--no-warn-if-shared", "--json", own=False).objects
    refused = run("retire", orders, "--yes", "--discard-messages", own=False)
    run("receipts", "drop", "--stream", STREAM, "--yes", *words)
    done = run("retire", orders, "--yes", own=False)

    assert any(other.state in each["found"] for each in found)
    assert refused.code == 1
    assert f"receipt {STREAM}/1/0 with 2 messages of it is open" in refused.err
    assert (done.code, tables(place)) == (0, set())


@pytest.mark.parametrize(("ending", "code"), [("COMMIT", 1), ("ROLLBACK", 0)])
def test_a_message_that_arrives_meanwhile_is_not_lost(
    run: Run, place: Place, orders: str, ending: str, code: int
) -> None:
    """If a message was sent before the lock, the queue is not dropped."""
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s::regclass"
    insert = f"INSERT INTO {orders} (id, headers) VALUES (gen_random_uuid(), '{{}}')"

    def end(early: psycopg.Connection[Any]) -> None:
        until(lambda: place.sql(waiting, orders) == [(1,)])
        early.execute(ending.encode())

    with psycopg.connect(place.url, autocommit=True) as early, ThreadPoolExecutor(1) as pool:
        early.execute(f"BEGIN; {insert}".encode())
        ended = pool.submit(end, early)
        retired = run("retire", orders, "--yes")
        ended.result()

    assert retired.code == code
    assert ("1 message would be lost" in retired.err, "Shop.Orders" in tables(place)) == (
        (code == 1,) * 2
    )
