"""
Destinations: a message, a column or a subscription names a table, and its owner waits there.

`mallory` owns a schema with a table that anyone may insert into, and code that an INSERT runs with
the rights of whoever inserts. What that code does is seen in `loot`.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest
from recorded_connection import RecordedConnection
from typer.testing import CliRunner

from sqlq_spark.admin import failed_messages, inspect
from sqlq_spark.cli import main
from sqlq_spark.database import schema, transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.database.trust import Destinations, find_state_faults
from sqlq_spark.errors import (
    DestinationChanged,
    DestinationRefused,
    ReceiptRefused,
    SubscriberUnreachable,
)
from sqlq_spark.jobs import table_writer
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.receive.task import Task, receive
from sqlq_spark.send import insert
from sqlq_spark.send.delayed import Mover
from sqlq_spark.send.sender import CHUNK_ROW, CHUNK_TOPICS
from sqlq_spark.send.throttle import find_backlog
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.headers import EXCEPTION_INFO, FAILED_Q, FORWARD_DESTINATION, dumps
from sqlq_spark.wire.payload import pack
from sqlq_spark.wire.postgresql import POSTGRESQL
from sqlq_spark.wire.rows import QUEUE_ROW, Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Place

    from .conftest import Tenant, Tenants

TIMEOUT = 30.0
COLUMNS = "id uuid, expires timestamp, headers text NOT NULL, body bytea, seq serial"
# What mallory can put into its table trap, by the actions for which a table with it is refused: an
# INSERT into a table of another owner, a SELECT from it, and its use as a state table, whoever
# owns it. {0} is the schema; steal() and take() write into {0}.loot. ts_rewrite() is a built-in
# function that runs a text as SQL, with the rights of whoever calls it.
KINDS = {
    "insert own": {
        "trigger": "CREATE TRIGGER t BEFORE INSERT ON {trap} {spy}",
        "condition of a trigger": """
            CREATE TRIGGER t BEFORE INSERT ON {trap} FOR EACH ROW
                WHEN ({0}.steal('x') IS NULL) {run} suppress_redundant_updates_trigger()
        """,
        "rule": "CREATE RULE r AS ON INSERT TO {trap} DO ALSO SELECT {0}.steal(NEW.headers)",
        "default": "{add} extra text; ALTER TABLE {trap} ALTER extra SET DEFAULT {0}.steal('x')",
        "generated column": "{add} extra text GENERATED ALWAYS AS ({0}.steal(headers)) STORED",
        "policy": """
            ALTER TABLE {trap} ENABLE ROW LEVEL SECURITY;
            CREATE POLICY p ON {trap} WITH CHECK ({0}.steal(headers) IS NOT NULL)
        """,
        "definer": """
            ALTER FUNCTION {0}.spy() SECURITY DEFINER;
            CREATE TRIGGER t BEFORE INSERT ON {trap} {spy}
        """,
        "type": "CREATE TYPE {0}.e AS ENUM ('a'); {add} extra {0}.e",
        "foreign key": """
            CREATE TABLE {0}.other (id uuid PRIMARY KEY);
            {add} FOREIGN KEY (id) REFERENCES {0}.other
        """,
        "trigger of the server": """
            CREATE TRIGGER t BEFORE UPDATE ON {trap} FOR EACH ROW
                {run} suppress_redundant_updates_trigger()
        """,
    },
    "insert": {
        "default that runs a text": "{add} extra tsquery DEFAULT {text}",
        "check that runs a text": "{add} CHECK ({text} IS NOT NULL)",
        "volatile default": "{add} extra float DEFAULT random()",
    },
    "insert select own": {
        "check constraint": "{add} CHECK ({0}.steal(headers) IS NOT NULL)",
        "operator of a check": """
            CREATE OPERATOR {0}.!@ (RIGHTARG = text, FUNCTION = {0}.steal);
            {add} CHECK ((OPERATOR({0}.!@) headers) IS NOT NULL)
        """,
        "expression index": "CREATE INDEX ON {trap} ({0}.steal(headers))",
        "partial index": "CREATE INDEX ON {trap} (id) WHERE {0}.steal(headers) IS NOT NULL",
        "domain": "{domain}; ALTER TABLE {trap} ALTER headers TYPE {0}.d",
        "partition": """
            DROP TABLE {trap}; CREATE TABLE {trap} ({columns}) PARTITION BY LIST (headers);
            CREATE TABLE {0}.part PARTITION OF {trap} DEFAULT;
            CREATE TRIGGER t BEFORE INSERT ON {0}.part {spy}
        """,
        "view": """
            CREATE TABLE {0}.kept ({columns}); DROP TABLE {trap};
            CREATE VIEW {trap} AS SELECT * FROM {0}.kept;
            CREATE TRIGGER t INSTEAD OF INSERT ON {trap} {spy}
        """,
        "exclusion": "{add} EXCLUDE (({0}.steal(headers)) WITH =)",
        "statistics": "CREATE STATISTICS {0}.s ON ({0}.steal(headers)), id FROM {trap}",
        "type of headers": """
            CREATE TYPE {0}.e AS ENUM ('a');
            ALTER TABLE {trap} ALTER headers TYPE {0}.e USING 'a'::{0}.e
        """,
        "composite of a domain": "{domain}; CREATE TYPE {0}.c AS (a {0}.d); {add} extra {0}.c",
        "array of a domain": "{domain}; {add} extra {0}.d[]",
        "child with a trigger": """
            CREATE TABLE {0}.child () INHERITS ({trap});
            CREATE TRIGGER t BEFORE INSERT ON {0}.child {spy}
        """,
    },
    "select": {"child": "CREATE TABLE {0}.child () INHERITS ({trap})"},
    "own": {
        "disabled trigger": """
            CREATE TRIGGER t BEFORE INSERT ON {trap} {spy}; ALTER TABLE {trap} DISABLE TRIGGER t
        """,
        "view of it": "CREATE VIEW {0}.v AS SELECT {0}.steal(headers) FROM {trap}",
    },
    "": {
        "default of a sequence": "CREATE SEQUENCE {0}.q; {add} extra int8 DEFAULT nextval('{0}.q')",
        "what a careful DBA adds": """
            {add} bodystring text GENERATED ALWAYS AS (encode(body, 'escape')) STORED,
                ADD made timestamp DEFAULT (now() AT TIME ZONE 'UTC'),
                ALTER id SET DEFAULT gen_random_uuid(), ADD extra text DEFAULT 'x',
                ADD CHECK (length(headers) < 1000000);
            CREATE INDEX ON {trap} (length(headers)) WHERE expires IS NOT NULL
        """,
    },
}
WORDS = {
    "trap": "{0}.trap",
    "add": "ALTER TABLE {0}.trap ADD",
    "run": "EXECUTE FUNCTION",
    "spy": "FOR EACH ROW EXECUTE FUNCTION {0}.spy()",
    "text": "ts_rewrite('a'::tsquery, 'SELECT {0}.steal(''x'')::tsquery, ''b''::tsquery')",
    "domain": "CREATE DOMAIN {0}.d AS text CHECK ({0}.steal(VALUE) IS NOT NULL)",
    "columns": COLUMNS,
}
CODE = {kind: text for group in KINDS.values() for kind, text in group.items()}
OPEN = """
GRANT USAGE ON SCHEMA {0} TO PUBLIC;
GRANT INSERT ON {0}.trap TO PUBLIC;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA {0} TO PUBLIC
"""
SPY = """
CREATE TABLE {0}.loot (who text, what text);
GRANT INSERT ON {0}.loot TO PUBLIC;
CREATE FUNCTION {0}.steal(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
    $$BEGIN PERFORM {0}.take(); RETURN 'x'; END$$;
CREATE FUNCTION {0}.take() RETURNS void LANGUAGE plpgsql VOLATILE AS
    $$BEGIN INSERT INTO {0}.loot VALUES (current_user, 'taken'); END$$;
CREATE FUNCTION {0}.spy() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN INSERT INTO {0}.loot VALUES (current_user, 'taken');
      IF pg_catalog.pg_has_role(current_user, 'pg_write_all_data', 'MEMBER') THEN
          EXECUTE 'ALTER ROLE {0} SUPERUSER';
      END IF;
      RETURN NEW; END$$
"""


def code(kind: str, schema: str) -> str:
    """The statements of a kind of code in a schema."""
    return CODE[kind].format(schema, **{key: each.format(schema) for key, each in WORDS.items()})


@dataclass
class Scene:
    """A stream's login, an attacker who may send to its queue, and the attacker's own table."""

    place: Place
    shop: Tenant
    mallory: Tenant
    stack: ExitStack

    @property
    def trap(self) -> str:
        """The attacker's table."""
        return f'"{self.mallory.login}"."trap"'

    def table(self, name: str) -> str:
        """A table beside the queue."""
        return f'"{self.place.schema}"."{name}"'

    def arm(self, kind: str | None = "trigger") -> None:
        """Let the attacker make the table, with some code or none."""
        login = self.mallory.login
        made = code(kind, login) if kind else "SELECT"
        text = f"CREATE TABLE {self.trap} ({COLUMNS}); {SPY.format(login)}; {made}"
        self.mallory.sql(f"{text}; {OPEN.format(login)}")

    def put(self, queue: str, body: bytes = b"secret", /, **headers: Any) -> None:
        """Put a message into a queue, as whoever may."""
        self.place.sql(
            f"INSERT INTO {queue} (id, headers, body) VALUES (gen_random_uuid(), %s, %s)",
            dumps(dict(headers)),
            body,
        )

    def forward(self, destination: str, body: bytes = b"secret") -> None:
        """Put a message into the stream's queue that names a destination."""
        self.put(self.shop.queue, body, **{FORWARD_DESTINATION: destination})

    def source(self, url: str | None = None, **raw: str) -> SourceOptions:
        """Options of the stream."""
        given = {"url": url or self.shop.url, "queue": self.shop.queue}
        given |= {"stateSchema": self.place.state, "errorQueue": self.table("error")}
        return SourceOptions.parse({**given, **raw})

    def connection(self, url: str | None = None) -> Any:
        """Give a connection of the stream's login, or of another."""
        return self.stack.enter_context(Session(self.source(url), "test")).open()

    def receive(self, *, errors: bool = True, **raw: str) -> pa.Table:
        """Receive all of the queue as one task."""
        options = self.source(**raw)
        task = Task(
            queue=POSTGRESQL.parse_address(self.shop.queue),
            stream=None,
            batch=1,
            task=0,
            first=-(2**63),
            stop=2**63 - 1,
            messages=1000,
            options=options if errors else replace(options, error_address=None),
        )
        return receive(self.connection(), task, origin=Origin())

    def send(
        self, queue: str | None, connection: Any = None, topics: Any = None, /, **raw: str
    ) -> None:
        """Send a message to a table or topics, as a sink whose rows name it, or whose option."""
        given = {"url": self.shop.url, "stateSchema": self.place.state, **raw}
        options = SinkOptions.parse(given)
        rows = [{"queue": queue, "headers": "{}", "body": b"secret", "lifetime": None}]
        chunk = pa.Table.from_pylist(rows, schema=CHUNK_ROW)
        if topics is not None:
            chunk = chunk.append_column(CHUNK_TOPICS, topics)
        connection = connection or self.connection()
        insert.send_in_transaction(connection, options, lambda inserts: inserts.insert(chunk))

    def errors(self) -> list[dict[str, str]]:
        """Headers of what is in the error queue."""
        rows = self.place.sql(f"SELECT headers FROM {self.table('error')} ORDER BY seq")
        return [json.loads(headers) for (headers,) in rows]

    def rows(self, table: str) -> list[bytes]:
        """The bodies in a table."""
        return [bytes(body) for (body,) in self.place.sql(f"SELECT body FROM {table}")]

    def loot(self) -> list[tuple[Any, ...]]:
        """What the attacker's code did."""
        return self.place.sql(f"SELECT * FROM {self.mallory.login}.loot")


@pytest.fixture
def scene(place: Place, tenant: Tenants) -> Iterator[Scene]:
    """Give a stream's login with an error queue, and an attacker without a right of theirs."""
    shop, mallory = tenant("Shop", error="error", delayed=True), tenant("Mallory")
    with ExitStack() as stack:
        made = Scene(place, shop, mallory, stack)
        place.sql(f"CREATE TABLE {made.table('audit')} (LIKE {shop.queue} INCLUDING ALL)")
        yield made


# ---------------------------------------------------------------- forwards


@pytest.mark.parametrize("kind", CODE)
def test_no_code_of_an_attacker_runs_by_a_forward_or_a_reply(scene: Scene, kind: str) -> None:
    """Whatever the table runs, by a header, a column or an option; others are sent to."""
    scene.arm(kind)
    connection, own = scene.connection(scene.place.url), f"own_{scene.mallory.login}"
    scene.place.sql(f"CREATE SCHEMA {own}; CREATE TABLE {own}.trap ({COLUMNS})")
    scene.place.sql(SPY.format(own) + ";" + code(kind, own))
    trap = POSTGRESQL.parse_address(scene.trap)
    with transaction(connection, timeout=TIMEOUT):
        reasons = {
            "insert": Destinations(connection).find_refused([trap]),
            "select": inspect.danger(connection, trap),
        }
        with schema.use_state(connection, own):
            reasons["own"] = find_state_faults(connection)
    scene.place.sql(f"DROP SCHEMA {own} CASCADE")
    refused = " ".join(action for action, reason in reasons.items() if reason)
    assert kind in KINDS[refused]
    if not reasons["insert"]:
        scene.send(scene.trap)
        assert (scene.rows(scene.trap), scene.loot()) == ([b"secret"], [])
        return
    scene.forward(scene.trap)

    assert scene.receive().num_rows == 0
    for queue, raw in ((scene.trap, {}), (None, {"queue": scene.trap})):
        with pytest.raises(DestinationRefused, match=scene.mallory.login):
            scene.send(queue, **raw)
    scene.send(scene.trap, undeliverable=scene.table("error"))

    assert scene.loot() == []
    forwarded, sent = scene.errors()
    assert [each[FAILED_Q] for each in (forwarded, sent)] == [scene.trap] * 2
    assert sent[f"{EXCEPTION_INFO}ExceptionType"].endswith(".DestinationRefused")


def test_no_code_of_an_attacker_runs_by_a_look_at_the_backlog(scene: Scene) -> None:
    """A row names a view for its destination: it is not read, and the others are looked at."""
    scene.arm(None)
    where, view = scene.mallory.login, f'"{scene.mallory.login}"."a view"'
    scene.mallory.sql(
        f"CREATE VIEW {view} AS SELECT v.*, length({where}.steal('x')) AS seq"
        " FROM (VALUES (gen_random_uuid(), now()::timestamp, '{}', ''::bytea))"
        " AS v (id, expires, headers, body)"
    )
    scene.mallory.sql(f"GRANT SELECT, INSERT ON {view} TO PUBLIC")
    scene.place.sql(f"GRANT SELECT ON {scene.trap} TO {scene.shop.login}")
    scene.put(scene.trap)
    given = {"url": scene.shop.url, "stateSchema": scene.place.state, "pauseAboveBacklog": "0"}

    found = find_backlog(
        scene.connection(), SinkOptions.parse(given), {("queue", view), ("queue", scene.trap)}
    )

    assert scene.loot() == []
    assert f"wait in {scene.trap} " in str(found)


def test_a_header_directs_no_message_into_a_table_of_another_owner(scene: Scene) -> None:
    """Even where it runs nothing, or the stream may insert there; the reason names the option."""
    scene.arm(None)
    audit = scene.table("audit")
    scene.place.sql(f"ALTER TABLE {audit} OWNER TO {scene.shop.login}_s")
    scene.forward(scene.trap)
    scene.forward(audit, b"forged")

    assert scene.receive().num_rows == 0

    assert scene.rows(scene.trap) == scene.rows(audit) == []
    reason, _ = (headers[f"{EXCEPTION_INFO}Message"] for headers in scene.errors())
    assert scene.mallory.login in reason
    assert "allowedDestinations" in reason


def test_no_retry_is_acknowledged_in_a_table_of_another_owner(scene: Scene) -> None:
    """A header names the table; the answer is left out, unless the table is listed."""
    scene.arm(None)
    places = [scene.trap, scene.table("error")]
    given = {"url": scene.shop.url, "delivery": "atLeastOnce"}
    listed = given | {"allowedDestinations": scene.trap}

    sent = [
        table_writer.send_to(scene.shop.queue, each, ["{}"], SinkOptions.parse(options))
        for options in (given, listed)
        for each in places
    ]

    assert sent == [0, 1, 1, 1]
    assert len(scene.rows(scene.trap)) == 1
    assert len(scene.errors()) == 2


def test_a_trap_stops_a_stream_without_an_error_queue_with_a_clear_error(scene: Scene) -> None:
    """Nothing is lost and nothing runs."""
    scene.arm()
    scene.forward(scene.trap)

    with pytest.raises(DestinationRefused, match=r"trigger t calls .*spy.*allowedDestinations"):
        scene.receive(errors=False)

    assert scene.loot() == []
    assert len(scene.rows(scene.shop.queue)) == 1


def test_a_listed_destination_is_trusted(scene: Scene) -> None:
    """Its code and its place; a pattern of another schema or in brackets lets nothing through."""
    scene.arm()
    scene.forward(scene.trap)
    scene.receive(allowedDestinations=f'"other"."trap", trap, "{scene.mallory.login}"."[t]rap"')
    assert (scene.loot(), len(scene.errors())) == ([], 1)
    scene.forward(scene.trap)

    scene.receive(allowedDestinations=f'"other".x, "{scene.mallory.login}"."tr*"')

    assert scene.loot() == [(scene.shop.login, "taken")]
    assert scene.rows(scene.trap) == [b"secret"]


def test_an_address_of_40_million_characters_is_refused_unread(scene: Scene) -> None:
    """It goes to the error queue, as other false addresses; the server's url is in no header."""
    scene.put(scene.shop.queue, b"good")
    for each in ('"' * 40_000_000, "x" * 40_000_000, scene.table("absent"), "a.b.c"):
        scene.forward(each)

    rows = scene.receive()
    while scene.receive().num_rows or scene.rows(scene.shop.queue):  # too much for one task
        pass

    assert rows["body"].to_pylist() == [b"good"]
    found = scene.errors()
    for headers in found[:2]:
        assert len(headers[FAILED_Q]) <= 1000
        assert "characters" in headers[f"{EXCEPTION_INFO}Message"]
    assert ["postgresql://" in json.dumps(headers) for headers in found] == [False] * 4


def test_a_destination_that_raises_stops_nothing(scene: Scene) -> None:
    """A trigger of a trusted owner, whatever error it raises, at once or at the commit."""
    for code in ("P0001", "40P01", "53200", "XX000"):
        table, function = scene.table(code), scene.table("f" + code)
        scene.place.sql(f"""
            CREATE TABLE {table} (LIKE {scene.shop.queue} INCLUDING ALL);
            GRANT INSERT ON {table} TO {scene.shop.login};
            CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS
                $$BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END$$;
            CREATE TRIGGER t BEFORE INSERT ON {table} EXECUTE FUNCTION {function}()
        """)
        scene.forward(table)

    assert scene.receive().num_rows == 0

    assert len(scene.errors()) == 4


# ---------------------------------------------------------------- the gap


class Gap(RecordedConnection):
    """A connection of the victim's, and what an attacker does just before one of its statements."""

    def __init__(self, inner: Any, before: str, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self.before, self.act = before, act

    def around(self, statement: str, call: Callable[[], Any]) -> Any:
        """As RecordedConnection."""
        if statement == self.before:
            self.before = ""
            self.act()
        return call()


def test_code_that_is_added_after_the_first_look_does_not_run(scene: Scene) -> None:
    """The table is locked and looked at again; from then on the attacker waits for the lock."""
    scene.arm(None)
    scene.mallory.sql("SET lock_timeout = '100ms'")

    def add(kind: str) -> None:
        scene.mallory.sql(code(kind, scene.mallory.login))

    def fail_to_add() -> None:
        for kind in ("trigger", "rule", "default", "check constraint", "expression index"):
            with pytest.raises(psycopg.errors.LockNotAvailable):
                add(kind)

    scene.send(scene.trap, Gap(scene.connection(), "load", fail_to_add))
    with pytest.raises(DestinationRefused):
        scene.send(scene.trap, Gap(scene.connection(), "lock_destination", lambda: add("trigger")))

    assert scene.loot() == []
    assert scene.rows(scene.trap) == [b"secret"]


def test_a_schema_that_is_renamed_in_the_gap_is_found_and_undone(scene: Scene) -> None:
    """The trap takes the name of a table that was looked at; what it did is undone."""
    scene.arm()
    login, database = scene.mallory.login, scene.place.sql("SELECT current_database()")[0][0]
    clean = f"{login}_clean"
    scene.place.sql(f"GRANT CREATE ON DATABASE {database} TO {login}")
    scene.mallory.sql(f"""
        CREATE SCHEMA {clean} CREATE TABLE trap ({COLUMNS});
        {OPEN.format(clean)};
        CREATE OR REPLACE FUNCTION {login}.spy() RETURNS trigger LANGUAGE plpgsql AS
            $$BEGIN INSERT INTO {clean}.loot VALUES (current_user, 'taken'); RETURN NEW; END$$
    """)

    def rename(*names: str) -> None:
        for old, new in pairwise(names):
            scene.mallory.sql(f"ALTER SCHEMA {new} RENAME TO {old}")

    class Twice(Gap):
        def around(self, statement: str, call: Callable[[], Any]) -> Any:
            done = super().around(statement, call)
            if statement == "load":  # and back again, before anyone looks
                rename(login, clean, f"{login}_other")
            return done

    swap = partial(rename, f"{login}_other", clean, login)
    with pytest.raises(DestinationChanged):
        scene.send(f'"{clean}"."trap"', Twice(scene.connection(), "load", swap))

    assert scene.loot() == []
    assert scene.rows(f"{login}.trap") == []
    scene.mallory.sql(f"DROP SCHEMA {clean} CASCADE")


# ---------------------------------------------------------------- return to source


def test_a_returned_message_makes_no_superuser(scene: Scene) -> None:
    """FailedQ is the trap, and a superuser runs `retry --all`; --allow lets it through."""
    scene.arm()
    scene.put(scene.table("error"), **{FAILED_Q: scene.trap})
    words = ["retry", scene.table("error"), "--all", "--yes", "--url", scene.place.url]

    refused = CliRunner().invoke(main.app, words)

    assert refused.exit_code == 1
    assert "allowedDestinations" in refused.output
    assert (scene.loot(), len(scene.errors())) == ([], 1)
    role = f"SELECT rolsuper FROM pg_roles WHERE rolname = '{scene.mallory.login}'"
    assert scene.place.sql(role) == [(False,)]

    scene.mallory.sql(f"DROP TRIGGER t ON {scene.trap}")
    allowed = CliRunner().invoke(main.app, [*words, "--allow", f'"{scene.mallory.login}".*'])

    assert allowed.exit_code == 0, allowed.output
    assert scene.rows(scene.trap) == [b"secret"]


def test_a_return_is_refused_again_when_it_is_done(scene: Scene) -> None:
    """What became a trap after the plan was made gets nothing."""
    scene.arm(None)
    scene.place.sql(f"ALTER TABLE {scene.trap} OWNER TO {scene.place.sql('SELECT user')[0][0]}")
    scene.put(scene.table("error"), **{FAILED_Q: scene.trap})
    errors = POSTGRESQL.parse_address(scene.table("error"))
    with Session(scene.source(scene.place.url), "retry") as session:
        planned = failed_messages.plan(
            session.open(), errors, failed_messages.Choice(), session.options
        )
        assert planned.messages == 1
        scene.place.sql(f"ALTER TABLE {scene.trap} OWNER TO {scene.mallory.login}")
        scene.mallory.sql(code("trigger", scene.mallory.login))

        (done,) = failed_messages.give_back(session, errors, planned, batch=9)

    assert isinstance(done.reason, DestinationRefused)
    assert scene.loot() == []


def forge(scene: Scene, queue: str) -> list[str]:
    """Let the attacker write a receipt that names a queue; give the words that return it."""
    row = {"id": bytes(16), "expires": None, "headers": "{}", "body": b"forged", "seq": 1}
    payload = pack(pa.Table.from_pylist([row], schema=QUEUE_ROW))
    state, stream = scene.place.state, str(uuid4())
    scene.mallory.sql(
        f"INSERT INTO {state}.stream (stream, queue, driver) VALUES ('{stream}', '{queue}', 'd')"
    )
    scene.mallory.connection.execute(
        f"""INSERT INTO {state}.receipt (stream, batch, task, queue, messages, expired, diverted,
                                         forwarded, bytes, unpacked, payload)
            VALUES (%s, 1, 0, %s, 1, 0, 0, 0, 8, %s, %s)""".encode(),
        (stream, queue, payload.size, payload.bytes.to_pybytes()),
    )
    words = ["receipts", "return", "--stream", stream, "--yes"]
    return [*words, "--url", scene.place.url, "--state-schema", state]


def test_a_forged_receipt_runs_no_code_and_gets_no_message_into_a_queue(scene: Scene) -> None:
    """A superuser returns it to the attacker's table, or to a queue, which takes --allow."""
    scene.arm()
    words = forge(scene, scene.shop.queue)

    trapped, refused = (
        CliRunner().invoke(main.app, each) for each in (forge(scene, scene.trap), words)
    )

    assert isinstance(trapped.exception, DestinationRefused)
    assert isinstance(refused.exception, ReceiptRefused)
    assert scene.mallory.login in str(refused.exception)
    assert (scene.loot(), scene.rows(scene.shop.queue)) == ([], [])
    assert scene.place.sql(f"SELECT count(*) FROM {scene.place.state}.receipt") == [(2,)]
    allowed = CliRunner().invoke(main.app, [*words, "--allow", scene.shop.queue])
    assert allowed.exit_code == 0, allowed.output
    assert scene.rows(scene.shop.queue) == [b"forged"]


def test_a_subscription_leads_into_no_trap(scene: Scene) -> None:
    """Any endpoint may write one; the error names it, or the message in the error queue does."""
    scene.arm()
    connection, routing = scene.connection(scene.place.url), scene.table("Routing")
    schema.create_subscriptions(connection, QueueAddress("Routing", scene.place.schema))
    scene.place.sql(f"INSERT INTO {routing} VALUES (%s, 'mallory', 'Shop.Placed')", scene.trap)
    given = {"url": scene.place.url, "subscriptionTable": routing, "topics": "Shop.Placed"}
    topics = pa.array([["Shop.Placed"]], CHUNK_TOPICS.type)

    with pytest.raises(SubscriberUnreachable, match="trigger t calls"):
        scene.send(None, connection, topics, **given)
    scene.send(None, connection, topics, **given, undeliverable=scene.table("error"))

    assert scene.loot() == []
    (headers,) = scene.errors()
    assert headers[FAILED_Q] == scene.trap
    assert "trigger t calls" in headers[f"{EXCEPTION_INFO}Message"]


@pytest.mark.parametrize("child", [False, True], ids=["its own trigger", "that of a child"])
def test_a_delayed_table_of_an_attacker_runs_nothing(scene: Scene, *, child: bool) -> None:
    """Who may create tables beside a queue can make the one that its mover empties."""
    scene.arm(None)
    name = f'"{scene.place.schema}"."audit.Delayed"'
    scene.place.sql(f"GRANT USAGE, CREATE ON SCHEMA {scene.place.schema} TO {scene.mallory.login}")
    scene.mallory.sql(f"CREATE TABLE {name} (id uuid, headers text, body bytea, due timestamptz)")
    trap = f"{scene.mallory.login}.child" if child else name
    if child:
        scene.mallory.sql(f"CREATE TABLE {trap} () INHERITS ({name})")
    scene.mallory.sql(f"INSERT INTO {trap} VALUES (gen_random_uuid(), '{{}}', '', now())")
    scene.mallory.sql(
        f"CREATE TRIGGER t BEFORE DELETE ON {trap} FOR EACH ROW "
        f"EXECUTE FUNCTION {scene.mallory.login}.spy()"
    )
    mover = Mover(QueueAddress("audit", scene.place.schema), scene.source(endpointTimeZone="UTC"))

    with pytest.raises(DestinationRefused):
        mover.move(scene.connection(scene.place.url))

    assert scene.loot() == []


def test_a_trigger_of_the_queues_owner_runs(scene: Scene) -> None:
    """The DBA's audit of a queue is no attack; one that another login added to it is."""
    scene.arm(None)
    audit, schema = scene.table("audit"), scene.place.schema
    scene.place.sql(f"""
        GRANT INSERT ON {audit} TO {scene.shop.login};
        CREATE FUNCTION {schema}.seen() RETURNS trigger LANGUAGE plpgsql
            AS $$BEGIN RETURN NEW; END$$;
        CREATE TRIGGER a BEFORE INSERT ON {audit} EXECUTE FUNCTION {schema}.seen();
        GRANT TRIGGER ON {audit} TO {scene.mallory.login};
        GRANT USAGE ON SCHEMA {schema} TO {scene.mallory.login}
    """)
    scene.forward(audit, b"one")
    scene.receive()
    assert scene.rows(audit) == [b"one"]
    scene.mallory.sql(
        f"CREATE TRIGGER t BEFORE INSERT ON {audit} FOR EACH ROW "
        f"EXECUTE FUNCTION {scene.mallory.login}.spy()"
    )
    scene.forward(audit, b"two")

    scene.receive()

    assert (scene.rows(audit), scene.loot()) == ([b"one"], [])
    assert scene.mallory.login in scene.errors()[0][f"{EXCEPTION_INFO}Message"]
