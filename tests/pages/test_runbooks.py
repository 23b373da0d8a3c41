"""The pages for operators and DBAs, followed on a real database in the state that they expect."""

from __future__ import annotations

import re
import secrets
from contextlib import closing
from itertools import product
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
import yaml
from cli.commands import without_psql
from prometheus_client.parser import text_string_to_metric_families

from sqlq_spark import errors

from . import locks
from .page import blocks, read, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.samples import Sample

    from .shop import Shop, Stream

ORDERS, RECEIPTS = '"Shop.Orders"', "sqlqueue.receipt"
STREAM = "8f14e45f-ceea-467f-a0d9-0d3f6d3b2c11"  # the stream's id in the pages
MESSAGE = "8f14e45f-ceea-467f-a0d9-0d3f6d3b2c12"
# option of a read → a value that is not its default
CHANGES = {
    "url": "{other}",
    "headersFormat": "json",
    "errorQueue": "error",
    "maxConcurrency": "3",
    "maxMessagesPerTrigger": "2",
    "transactionMode": "none",
}
STAGING = "sqlqueue.staging", "sqlqueue.staging_page"
EXPIRED = "UPDATE \"Shop.Orders\" SET expires = '2020-01-01'"
FULL = "SELECT setval('\"Shop.Orders_seq_seq\"', 2000000000)"
PUBLISHED = "CREATE PUBLICATION everything FOR ALL TABLES"
POISON = f"""
INSERT INTO error (id, headers, body) SELECT '{MESSAGE}', json_build_object(
    'NServiceBus.MessageId', '{MESSAGE}', 'NServiceBus.EnclosedMessageTypes', 'SqlQueue.Poison',
    'NServiceBus.FailedQ', '"public"."Shop.Orders"', 'SqlQueue.CorruptHeaders', '[oops'), 'x'
"""
FAILED = """
INSERT INTO error (id, headers) SELECT gen_random_uuid(), json_build_object(
    'NServiceBus.FailedQ', '"public"."Shop.Orders"',
    'NServiceBus.ExceptionInfo.ExceptionType', kind)
FROM unnest(ARRAY['System.InvalidOperationException', 'System.InvalidOperationException',
                  'System.TimeoutException']) AS kind
"""

SCRIPT = ["script", "Shop.Orders", "--delayed", "--error", "error"]
SCRIPT += ["--subscription-table", "SubscriptionRouting", "--domain"]
CATALOGUE = r"""
SELECT oid::regclass::text,
       (SELECT string_agg(acl::text, ' ') FROM aclexplode(relacl) AS acl WHERE grantee <> relowner)
  FROM pg_class WHERE oid >= 16384
UNION ALL SELECT nspname, nspacl::text FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%'
UNION ALL SELECT proname, proacl::text FROM pg_proc WHERE oid >= 16384
UNION ALL SELECT rolname, '' FROM pg_roles
ORDER BY 1, 2
"""


@pytest.fixture
def stream(shop: Shop) -> Iterator[Stream]:
    """Give a stream that has received 3 messages. Its batch is open, and its id is the pages'."""
    shop.fill(ORDERS, 3)
    with closing(shop.stream()) as made:
        made.batch()
        shop.words = {STREAM: made.id}
        yield made


@pytest.mark.parametrize(
    ("section", "before", "said"),
    [
        ("operations/look-first", "", "report.html"),
        ("operations/taken-over", "", "{stream}"),
        ("operations/poison", POISON, "[oops"),
        ("operations/failed", FAILED, "2 messages returned"),
        ("operations/backlog", EXPIRED, "no problems found"),
        ("operations/disk-full", EXPIRED, "2 expired messages deleted"),
        ("operations/seq", FULL, "no problems found"),
        ("operations/snapshot", "", "[(False,)]"),
        ("operations/dropped-queue", 'DROP TABLE "Shop.Orders"', "Shop.Orders"),
        ("retention/publications", PUBLISHED, "'staging_page'"),
        ("upgrade/beside", "", "sqlqueue_next"),
        ("upgrade/version", "", "[(5,)]"),
        ("upgrade/upgrade", "", "are there already, version 5"),
        ("upgrade/back", "", "were changed from version 5 to version 3"),
        ("restore/compare", "", "{stream}"),
        ("dba/watch", "", "sqlqueue driver Shop.Orders"),
        ("dba/watch", "", "1, Decimal('3')"),
        ("load/waits", "", ""),
        ("load/vacuum", "", ""),
    ],
)
def test_the_commands_of_a_runbook(
    shop: Shop, stream: Stream, section: str, before: str, said: str
) -> None:
    """Each command ends as the page says, and one of them prints what it found or did."""
    page, group = section.split("/")
    shop.fill(ORDERS, 2)
    shop.sql(before)

    shop.run(*blocks(f"docs/{page}.md", group))

    assert said.format(stream=stream.id) in shop.seen
    assert shop.count("error") == [before == FAILED]  # one failed with another exception


def test_checkpoint_lost(shop: Shop, stream: Stream) -> None:
    """The messages of its receipts are shown, returned or dropped, and the stream is removed."""
    listed, returned, dropped, removed = blocks("docs/operations.md", "checkpoint-lost")
    shop.sql("UPDATE sqlqueue.receipt SET query_id = 'of-spark', spark_batch = 7")

    shop.run(listed)
    (row,) = (line.split() for line in shop.printed.splitlines() if stream.id in line)
    assert row[:6] == [stream.id, "1", "0", "of-spark", "7", "3"]
    shop.run(returned)
    assert "3 messages returned" in shop.printed
    assert shop.count(ORDERS, RECEIPTS) == [3, 0]

    with closing(shop.stream()) as again:
        assert len(again.batch()) == 3
    shop.words = {STREAM: again.id}
    shop.run(dropped)
    assert "3 messages dropped" in shop.printed
    shop.sql("UPDATE sqlqueue.stream SET seen = now() - interval '1 hour'")  # it has ended
    shop.sql("UPDATE sqlqueue.heartbeat SET beat = now() - interval '1 hour'")
    shop.run(removed)
    assert shop.count(ORDERS, RECEIPTS) == [0, 0]
    assert shop.sql("SELECT stream FROM sqlqueue.stream WHERE removed IS NULL") == [(stream.id,)]


# ---------------------------------------------------------------- docs/guide/checkpoints.md


def test_the_rules_of_prometheus_find_what_stats_writes(shop: Shop, stream: Stream) -> None:
    """
    The rules on the page are YAML. Each selects a sample, and its labels are in the samples.

    The one of streams that are gone fires when the stream has given no sign for an hour.
    """
    shop.fill(ORDERS, 1, TimeSent="2026-11-15 09:00:00:000000 Z")
    shop.sql("UPDATE sqlqueue.stream SET query_name = 'orders'")
    [rules] = blocks("docs/guide/monitoring.md", "rules")
    [group] = yaml.safe_load(rules.text)["groups"]
    expressions = {each["alert"]: each["expr"] for each in group["rules"]}
    gone = selectors(expressions["StreamGone"])

    written = shop.sqlqueue("stats", "--openmetrics", "-")
    runs = select(written, *gone)
    shop.sql("UPDATE sqlqueue.stream SET seen = now() - interval '1 hour'")
    shop.sql("UPDATE sqlqueue.heartbeat SET beat = now() - interval '1 hour'")
    ended = select(shop.sqlqueue("stats", "--openmetrics", "-"), *gone)

    for alert, expression in expressions.items():
        found = selectors(expression)
        assert len(found) == len(re.findall(r"sqlqueue_\w+(?=[{\[ ])", expression)), alert
        assert all(select(written, each) for each in found), alert
    assert [sample.value for sample in (*runs, *ended)] == [1, 0]
    assert runs[0].labels["stream"] == stream.id
    for label in re.findall(r"by \((.+?)\)", expressions["StreamGone"])[0].split(", "):
        assert runs[0].labels[label]


def selectors(expression: str) -> list[re.Match[str]]:
    """Find the gauges of ours in a rule, with the one condition on a label that each may have."""
    condition = r'(?:\{(?P<label>\w+)(?P<operator>!?=)"(?P<text>.*?)"\})?'
    return [*re.finditer(rf"(?P<gauge>\bsqlqueue_\w+){condition}", expression)]


def select(written: str, *wanted: re.Match[str]) -> list[Sample]:
    """Select the samples of a page of gauges, as Prometheus does."""
    families = text_string_to_metric_families(written)
    return [
        sample
        for family in families
        for sample in family.samples
        for each in wanted
        if sample.name == each["gauge"]
        and (
            each["label"] is None
            or (sample.labels[each["label"]] == each["text"]) == (each["operator"] == "=")
        )
    ]


def test_options_of_a_read_hold_from_the_next_batch_on(shop: Shop) -> None:
    """The open batch keeps its messages, whatever limits, columns or modes change."""
    shop.fill(ORDERS, 3)
    stream = shop.stream()
    received = stream.batch()
    for name, value in CHANGES.items():
        shop.fill(ORDERS, 4)
        other = shop.url.replace("127.0.0.1", "localhost")
        stream = stream.again(**{name: value.format(other=other)})

        assert stream.received() == received, name
        received = stream.batch()
        assert len(received) == (2 if "maxMessagesPerTrigger" in stream.raw else 4), name
    stream.loop.latest(stream.offset)
    stream.close()

    assert shop.count(RECEIPTS) == [0]


# ---------------------------------------------------------------- the DBA's pages


@pytest.fixture
def team(shop: Shop) -> Iterator[str]:
    """Give the url of a team's login. Its domain is the pages' `orders`, under another name."""
    name = f"team_{secrets.token_hex(4)}"
    login, roles = f"spark_{name}", f"{name}_reader, {name}_sender"
    shop.words = {
        "--domain orders": f"--domain {name}",
        "sqlqueue_orders": f"sqlqueue_{name}",
        "orders_": f"{name}_",
        "spark_orders": login,
    }
    script, made = blocks("docs/for-the-dba.md", "setup")
    shop.run(script)
    shop.sql(without_psql(shop.printed))
    shop.run(made)
    shop.sql(f"ALTER ROLE {login} PASSWORD 'x'")
    parts = urlsplit(shop.url)
    host = parts.netloc.rpartition("@")[2]
    try:
        yield urlunsplit(parts._replace(netloc=f"{login}:x@{host}"))
    finally:
        shop.sql(f"DROP OWNED BY {roles}, {login}")
        shop.sql(f"DROP ROLE {roles}, {login}")


def test_who_has_rights_and_who_is_in_two_domains_is_listed(shop: Shop, team: str) -> None:
    """The login of a team is listed for its own state schema, and for others with its rights."""
    rights = blocks("docs/isolation.md", "check")
    login, state = str(urlsplit(team).username), shop.words["sqlqueue_orders"]
    shop.run(*rights)
    assert [row for row in shop.rows if login in row] == [(state, login, False)]

    shop.sql(f"GRANT USAGE ON SCHEMA sqlqueue TO {login}")
    shop.run(*rights)
    assert [row[0] for row in shop.rows if login in row] == ["sqlqueue", state]


def test_a_stream_is_stopped_and_continues(shop: Shop, team: str) -> None:
    """It fails without its right or its login. With both it receives the rest."""
    shop.fill(ORDERS, 4)
    state = shop.words["sqlqueue_orders"]
    limits = {"stateSchema": state, "maxMessagesPerTrigger": "2", "errorQueue": "error"}
    with closing(shop.stream(url=team, **limits)) as stream:
        first = stream.batch()
        stream.offset = stream.loop.latest(stream.offset)
        assert "no problems found" in shop.sqlqueue("doctor", "Shop.Orders", "--url", team)
        shop.run(*blocks("docs/emergency.md", "stop"))
        with pytest.raises(errors.RightMissing):
            stream.received()
        find, no_login, end = blocks("docs/emergency.md", "all")
        with closing(psycopg.connect(team, application_name="sqlqueue driver of another")):
            shop.run(find)
            assert shop.rows == [(shop.words["spark_orders"],)]
            shop.run(no_login, end)
            assert "sqlqueue driver of another" in [row[2] for row in shop.rows]
    with closing(stream.again()) as refused, pytest.raises(errors.LoginRefused):
        refused.batch()

    shop.run(*blocks("docs/emergency.md", "continue"))
    with closing(stream.again()) as restarted:
        rest = [*restarted.received(), *restarted.batch()]
    assert {*first, *rest} == {b'{"number":%d}' % n for n in range(1, 5)}


def test_one_message_is_shown_and_deleted(shop: Shop) -> None:
    """The message is in a queue, in a receipt, and in what a dead write staged."""
    in_queue, in_receipt = blocks("docs/retention.md", "one")
    from_queue, from_receipt, from_staging, vacuum = blocks("docs/retention.md", "delete")
    shop.fill(ORDERS, 3)
    shop.sql(f"INSERT INTO {ORDERS} (id, headers, body) VALUES ('{MESSAGE}', '{{}}', 'secret')")

    shop.run(in_queue)
    assert [row[4] for row in shop.rows] == ["secret"]
    with closing(shop.stream()) as stream:
        stream.batch()
    shop.words = {STREAM: stream.id}
    shop.run(in_receipt)
    assert "body: secret" in shop.printed
    for table_name, batch in product(STAGING, (7, 8)):
        shop.sql(f"INSERT INTO {table_name} VALUES ('app:nightly', {batch}, 'a', 0, 1, '')")
    shop.run(from_receipt, from_queue, from_staging, vacuum)
    assert shop.count(ORDERS, RECEIPTS, *STAGING) == [3, 0, 1, 1]


# ---------------------------------------------------------------- docs/dba.md


def test_the_locks_of_statements_are_those_of_their_comments() -> None:
    """`python -m tests.pages.locks` prints the table."""
    assert f"<!-- locks -->\n{locks.table()}<!-- /locks -->" in read("docs/dba.md")


def test_whoever_holds_the_key_of_the_page_keeps_an_installer_waiting(shop: Shop) -> None:
    """The page has the key for the schema `sqlqueue`."""
    shop.run(*blocks("docs/dba.md", "advisory"))
    with closing(psycopg.connect(shop.url)) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", shop.rows[0])
        shop.sqlqueue("install", "--query-timeout", "1s", code=3)


def test_the_script_beside_the_page_is_what_the_command_prints(shop: Shop) -> None:
    """Its first line is the command. The page links to it."""
    script = read("docs/script-postgresql.sql")
    command = script.splitlines()[0].removeprefix("-- sqlqueue ").split()

    assert shop.sqlqueue(*command) == script
    assert "](script-postgresql.sql)" in read("docs/dba.md")


def test_the_rights_on_the_page_of_sql_server_are_those_that_the_script_grants(shop: Shop) -> None:
    """The statements are equal and in the same order."""
    script = shop.sqlqueue(*SCRIPT, "orders", "--dialect", "sqlserver")
    granted, listed = (
        re.findall(r"^GRANT [^;]+_(?:reader|sender)\W;$", text, flags=re.MULTILINE)
        for text in (script, read("docs/sqlserver.md"))
    )

    assert len(listed) > 10
    assert listed == granted


def test_an_observer_sees_streams_and_no_body(shop: Shop, stream: Stream) -> None:
    """With the grants of the page a login looks at what runs. It reads and deletes no message."""
    login = f"watch_{secrets.token_hex(4)}"
    parts = urlsplit(shop.url)
    place = f"{login}:x@{parts.netloc.rpartition('@')[2]}"
    of_observer = "--url", urlunsplit(parts._replace(netloc=place))
    shop.words = {"sqlqueue_orders": "sqlqueue", "on_call": login}
    shop.fill(ORDERS, 1, "secret")
    shop.sql(f"CREATE ROLE {login} LOGIN PASSWORD 'x'")
    try:
        shop.run(*blocks("docs/dba.md", "rights"))

        assert "no problems found" in shop.sqlqueue("doctor", *of_observer)
        for command in ("streams", "receipts"):
            assert stream.id in shop.sqlqueue(command, "list", "--json", *of_observer)
        shop.sqlqueue("trail", *of_observer)
        for words in (["stats"], ["browse"], ["purge", "--yes"]):
            assert "secret" not in shop.sqlqueue(*words, "Shop.Orders", *of_observer, code=3)
        shop.sqlqueue("receipts", "show", stream.id, *of_observer, code=3)
        shop.sql(f"GRANT SELECT (id, expires, headers, seq) ON {ORDERS} TO {login}")
        shop.sqlqueue("stats", "Shop.Orders", *of_observer, code=3)
    finally:
        shop.sql(f"DROP OWNED BY {login}")
        shop.sql(f"DROP ROLE {login}")


def test_the_page_names_each_state_table(shop: Shop) -> None:
    """The names are those of the tables that `install` makes."""
    installed = shop.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'sqlqueue'")

    rows = " ".join(table("docs/dba.md", "state-tables").column())
    assert {(name,) for name in re.findall(r"`(\w+)`", rows)} == {*installed}


def test_what_the_page_removes_leaves_no_trace(shop: Shop) -> None:
    """The catalogue is as it was before us: relations, functions, grants, roles."""
    name = f"team_{secrets.token_hex(4)}"
    shop.sql("DROP SCHEMA sqlqueue CASCADE")
    shop.sql(
        'CREATE TABLE "SubscriptionRouting" (queueaddress text, endpoint text, topic text, '
        "PRIMARY KEY (endpoint, topic)) WITH (fillfactor = 100)"
    )
    before = shop.sql(CATALOGUE)
    shop.sql(without_psql(shop.sqlqueue(*SCRIPT, name)))
    shop.sqlqueue("create", "Lake")
    shop.sqlqueue("subscribe", "Shop.OrderPlaced", "--endpoint", "Lake", "--queue", "Lake")
    shop.fill(ORDERS, 10)
    with closing(shop.stream(stateSchema=f"sqlqueue_{name}")) as stream:
        stream.batch()
        stream.batch()
    during = shop.sql(CATALOGUE)

    shop.words = {"sqlqueue_orders": f"sqlqueue_{name}", "orders_": f"{name}_"}
    shop.run(*blocks("docs/dba.md", "remove"))

    assert len(during) > len(before) + 20
    assert shop.sql(CATALOGUE) == before
    assert shop.count('"SubscriptionRouting"') == [0]
