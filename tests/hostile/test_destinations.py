"""
A message, a column or a subscription names a table, whose owner is an attacker.

`mallory` owns a schema with a table that anyone may insert into, and code that an INSERT runs with
the rights of whoever inserts. What that code does is seen in `loot`.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest
from recorded_connection import RecordedConnection
from typer.testing import CliRunner
from waiting import until

from sqlq_spark.admin import doctor, return_to_source
from sqlq_spark.cli import main
from sqlq_spark.database import lock_table, schema, transaction
from sqlq_spark.database.sessions import Session
from sqlq_spark.database.trust import DELETE, INSERT, READ, use
from sqlq_spark.errors import (
    OwnerNotTrusted,
    ReceiptRefused,
    SubscriberUnreachable,
    TableRefused,
)
from sqlq_spark.jobs import table_writer
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.receive.batch import Task
from sqlq_spark.receive.due import Mover
from sqlq_spark.receive.task import receive
from sqlq_spark.send import insert
from sqlq_spark.send.chunk import CHUNK_ROW, CHUNK_TOPICS
from sqlq_spark.send.throttle import find_backlog
from sqlq_spark.wire.address import QueueAddress
from sqlq_spark.wire.headers import EXCEPTION_INFO, FAILED_Q, FORWARD_DESTINATION, dumps
from sqlq_spark.wire.payload import pack
from sqlq_spark.wire.postgresql import POSTGRESQL
from sqlq_spark.wire.rows import QUEUE_ROW, SparkBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Place

    from .conftest import Tenant, Tenants

TIMEOUT = 30.0
COLUMNS = "id uuid, expires timestamp, headers text NOT NULL, body bytea, seq serial"
# What mallory can put into its table trap; {0} is the schema. steal() and take() write into loot.
# ts_rewrite() is a built-in function that runs a text as SQL, with the rights of whoever calls it.
CODE = {
    "none": "SELECT",
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
    "default that runs a text": "{add} extra tsquery DEFAULT {text}",
    "check that runs a text": "{add} CHECK ({text} IS NOT NULL)",
    "volatile default": "{add} extra float DEFAULT random()",
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
    "child": "CREATE TABLE {0}.child () INHERITS ({trap})",
    "disabled trigger": """
        CREATE TRIGGER t BEFORE INSERT ON {trap} {spy}; ALTER TABLE {trap} DISABLE TRIGGER t
    """,
    "view of it": "CREATE VIEW {0}.v AS SELECT {0}.steal(headers) FROM {trap}",
    "default of a sequence": "CREATE SEQUENCE {0}.q; {add} extra int8 DEFAULT nextval('{0}.q')",
    "what a careful DBA adds": """
        {add} bodystring text GENERATED ALWAYS AS (encode(body, 'escape')) STORED,
            ADD made timestamp DEFAULT (now() AT TIME ZONE 'UTC'),
            ALTER id SET DEFAULT gen_random_uuid(), ADD extra text DEFAULT 'x',
            ADD CHECK (length(headers) < 1000000);
        CREATE INDEX ON {trap} (length(headers)) WHERE expires IS NOT NULL
    """,
}
# what a login with TRIGGER or REFERENCES can add to the table {1} of a superuser; it is refused
ADDED = {
    "trigger": "CREATE TRIGGER t BEFORE INSERT ON {1} FOR EACH ROW EXECUTE FUNCTION {0}.spy()",
    "definer": """
        ALTER FUNCTION {0}.spy() SECURITY DEFINER;
        CREATE TRIGGER t BEFORE INSERT ON {1} FOR EACH ROW EXECUTE FUNCTION {0}.spy()
    """,
    "condition of a trigger": """
        CREATE TRIGGER t BEFORE INSERT ON {1} FOR EACH ROW
            WHEN (query_to_xml('SELECT {0}.take()', true, true, '') IS NULL)
            EXECUTE FUNCTION suppress_redundant_updates_trigger()
    """,
    "arguments of a trigger": """
        CREATE TRIGGER t BEFORE INSERT ON {1} FOR EACH ROW
            EXECUTE FUNCTION tsvector_update_trigger('headers', 'pg_catalog.english', 'headers')
    """,
    "trigger of a statement": """
        CREATE TRIGGER t AFTER DELETE ON {1} EXECUTE FUNCTION {0}.spy()
    """,
    "foreign key": """
        CREATE TABLE {0}.refers (id uuid REFERENCES {1} ON DELETE CASCADE);
        CREATE TRIGGER t BEFORE DELETE ON {0}.refers FOR EACH ROW EXECUTE FUNCTION {0}.spy()
    """,
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

    def arm(self, kind: str = "trigger") -> None:
        """Let the attacker make the table, with some code or none."""
        login = self.mallory.login
        text = f"CREATE TABLE {self.trap} ({COLUMNS}); {SPY.format(login)}; {code(kind, login)}"
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

    def connection(self, url: str | None = None, **raw: str) -> Any:
        """Give a connection of the stream's login, or of another."""
        return self.stack.enter_context(Session(self.source(url, **raw), "test")).open()

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
        return receive(self.connection(**raw), task, spark_batch=SparkBatch()).rows

    def send(
        self, queue: str | None, connection: Any = None, topics: Any = None, /, **raw: str
    ) -> None:
        """Send a message to a table or topics, which its row or the option names."""
        given = {"url": self.shop.url, "stateSchema": self.place.state, **raw}
        options = SinkOptions.parse(given)
        rows = [{"queue": queue, "headers": "{}", "body": b"secret", "lifetime": None}]
        chunk = pa.Table.from_pylist(rows, schema=CHUNK_ROW)
        if topics is not None:
            chunk = chunk.append_column(CHUNK_TOPICS, topics)
        if connection is None:
            session = self.stack.enter_context(Session(options, "test"))
            connection = session.open()
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
def test_a_table_of_an_attacker_is_used_for_nothing(scene: Scene, kind: str) -> None:
    """A header or a column may not lead there. A superuser may not send there even by an option."""
    scene.arm(kind)
    superuser = scene.connection(scene.place.superuser)
    scene.forward(scene.trap)

    assert scene.receive().num_rows == 0
    for queue, connection, raw in (
        (scene.trap, None, {}),
        (None, superuser, {"queue": scene.trap, "url": scene.place.superuser}),
    ):
        with pytest.raises(TableRefused, match=scene.mallory.login):
            scene.send(queue, connection, None, **raw)
    scene.send(scene.trap, undeliverable=scene.table("error"))
    with pytest.raises(TableRefused, match=scene.mallory.login), transaction(superuser):
        use(superuser, [POSTGRESQL.parse_address(scene.trap)], READ)

    assert scene.loot() == []
    forwarded, sent = scene.errors()
    assert [each[FAILED_Q] for each in (forwarded, sent)] == [scene.trap] * 2
    kinds = {each[f"{EXCEPTION_INFO}ExceptionType"] for each in (forwarded, sent)}
    names = {each.rpartition(".")[2] for each in kinds}
    assert names <= {"OwnerNotTrusted", "TableRefused", "QueueNotWritable", "NotAQueue"}


@pytest.mark.parametrize("kind", ADDED)
def test_what_a_login_without_the_table_adds_is_refused(scene: Scene, kind: str) -> None:
    """A table's owner may have granted TRIGGER and REFERENCES to that login."""
    scene.arm("none")
    audit, mallory = scene.table("audit"), scene.mallory
    scene.place.sql(f"""
        GRANT SELECT, INSERT, DELETE, UPDATE ON {audit} TO {scene.shop.login};
        GRANT TRIGGER, REFERENCES ON {audit} TO {mallory.login};
        GRANT USAGE ON SCHEMA {scene.place.schema} TO {mallory.login};
        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {mallory.login} TO PUBLIC
    """)
    scene.put(audit)
    mallory.sql(ADDED[kind].format(mallory.login, audit))
    connection, address = scene.connection(), POSTGRESQL.parse_address(audit)

    with pytest.raises(TableRefused), transaction(connection):
        use(connection, [address], DELETE)
    if kind == "foreign key":  # allowed for a send, which deletes no row
        scene.send(audit)
    else:
        with pytest.raises(TableRefused):
            scene.send(audit)

    assert scene.loot() == []
    findings = doctor.of_any_queue(connection, address)
    (found,) = [one for one in findings if one.name in {"not_read", "not_received"}]
    assert mallory.login in found.found or "condition or arguments" in found.found


def test_no_code_of_an_attacker_runs_by_a_look_at_the_backlog(scene: Scene) -> None:
    """A row names a view as its destination. It is not read, and the other queues are."""
    scene.arm("none")
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

    options = SinkOptions.parse(given | {"trustedOwners": where})
    with Session(options, "test") as session:
        found = find_backlog(session.open(), options, {("queue", view), ("queue", scene.trap)})

    assert scene.loot() == []
    assert f"wait in {scene.trap} " in str(found)


def test_a_header_directs_no_message_into_a_table_of_another_owner(scene: Scene) -> None:
    """
    It is refused even if the table runs no code, and the stream has the right to insert.

    The reason names the option that allows it.
    """
    scene.arm("none")
    audit, owner = scene.table("audit"), f"{scene.shop.login}_s"
    scene.place.sql(f"ALTER TABLE {audit} OWNER TO {owner}")
    scene.forward(scene.trap)
    scene.forward(audit, b"forged")

    assert scene.receive(trustedOwners=owner).num_rows == 0

    assert scene.rows(scene.trap) == scene.rows(audit) == []
    other, place = (headers[f"{EXCEPTION_INFO}Message"] for headers in scene.errors())
    assert f"set trustedOwners to {owner},{scene.mallory.login}" in other
    assert f"it belongs to {owner}, and {scene.shop.queue} to another owner" in place
    assert "allowedDestinations" in place


def test_no_retry_is_acknowledged_in_a_table_of_another_owner(scene: Scene) -> None:
    """A header names the table, and no answer is sent unless the table is listed."""
    scene.arm("none")
    places = [scene.trap, scene.table("error")]
    given = {"url": scene.shop.url, "delivery": "atLeastOnce"}
    given |= {"trustedOwners": scene.mallory.login}  # a trusted owner alone is not enough
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
    """The message stays in the queue, and no code runs."""
    scene.arm()
    scene.forward(scene.trap)

    with pytest.raises(OwnerNotTrusted, match=f"it belongs to {scene.mallory.login}"):
        scene.receive(errors=False)

    assert scene.loot() == []
    assert len(scene.rows(scene.shop.queue)) == 1


def test_a_listed_destination_is_trusted(scene: Scene) -> None:
    """Its code runs. Another schema, or brackets in the pattern, allow nothing."""
    scene.arm()
    scene.forward(scene.trap)
    scene.receive(allowedDestinations=f'"other"."trap", trap, "{scene.mallory.login}"."[t]rap"')
    assert (scene.loot(), len(scene.errors())) == ([], 1)
    scene.forward(scene.trap)

    scene.receive(allowedDestinations=f'"other".x, {scene.trap}')

    assert scene.loot() == [(scene.shop.login, "taken")]
    assert scene.rows(scene.trap) == [b"secret"]


def test_an_address_as_long_as_headers_may_be_is_refused_unread(scene: Scene) -> None:
    """It goes to the error queue, as other false addresses; the server's url is in no header."""
    scene.put(scene.shop.queue, b"good")
    for each in ('"' * 500_000, "x" * 1_000_000, scene.table("absent"), "a.b.c"):
        scene.forward(each)

    rows = scene.receive()

    assert scene.rows(scene.shop.queue) == []
    assert rows["body"].to_pylist() == [b"good"]
    found = scene.errors()
    for headers in found[:2]:
        assert len(headers[FAILED_Q]) <= 1000
        assert "characters" in headers[f"{EXCEPTION_INFO}Message"]
    assert ["postgresql://" in json.dumps(headers) for headers in found] == [False] * 4


def test_a_destination_that_raises_stops_nothing(scene: Scene) -> None:
    """A trigger raises any error, and the message goes to the error queue."""
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
    """A connection of the victim. An attacker acts just before one of its statements."""

    def __init__(self, inner: Any, before: str, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self.before, self.act = before, act

    def around(self, statement: str, call: Callable[[], Any]) -> Any:
        """Let the attacker act before the chosen statement, and run the statement."""
        if statement == self.before:
            self.before = ""
            self.act()
        return call()


def test_a_trigger_that_is_added_beside_a_send_does_not_run(scene: Scene) -> None:
    """Before the lock it is found. After the lock the attacker, who holds TRIGGER, waits."""
    scene.arm("none")
    audit = scene.table("audit")
    scene.place.sql(f"""
        GRANT INSERT ON {audit} TO {scene.shop.login};
        GRANT TRIGGER, REFERENCES ON {audit} TO {scene.mallory.login};
        GRANT USAGE ON SCHEMA {scene.place.schema} TO {scene.mallory.login}
    """)
    scene.mallory.sql("SET lock_timeout = '100ms'")
    add = [ADDED[kind].format(scene.mallory.login, audit) for kind in ("trigger", "foreign key")]

    def fail_to_add() -> None:
        for text in add:
            with pytest.raises(psycopg.errors.LockNotAvailable):
                scene.mallory.sql(text)
            scene.mallory.connection.rollback()

    for statement in ("table_owners", "load"):
        scene.send(audit, Gap(scene.connection(), statement, fail_to_add))
    before = Gap(scene.connection(), "lock_insert", lambda: scene.mallory.sql(add[0]))
    with pytest.raises(OwnerNotTrusted, match="trigger t of it calls a function of"):
        scene.send(audit, before)

    assert scene.loot() == []
    assert scene.rows(audit) == [b"secret"] * 2


@pytest.mark.parametrize("statement", ["lock_insert", "table_owners", "load"])
def test_a_schema_that_is_renamed_beside_a_send_leads_into_no_trap(
    scene: Scene, statement: str
) -> None:
    """The trap gets the name of a superuser's table, in a schema that the attacker owns."""
    scene.arm()
    login, database = scene.mallory.login, scene.place.sql("SELECT current_database()")[0][0]
    clean = f"{login}_clean"
    scene.place.sql(f"""
        GRANT CREATE ON DATABASE {database} TO {login};
        CREATE SCHEMA {clean} CREATE TABLE trap ({COLUMNS});
        {OPEN.format(clean)};
        ALTER SCHEMA {clean} OWNER TO {login}
    """)

    def swap() -> None:
        for old, new in pairwise((f"{login}_other", clean, login)):
            scene.mallory.sql(f"ALTER SCHEMA {new} RENAME TO {old}")

    gap = Gap(scene.connection(), statement, swap)
    with pytest.raises(OwnerNotTrusted, match=f"belongs to {login}"):
        scene.send(f'"{clean}"."trap"', gap)

    if gap.before:  # the send was refused before it ran that statement
        swap()
    assert scene.place.sql(f"SELECT * FROM {clean}.loot") == []
    assert scene.rows(f"{clean}.trap") == scene.rows(f"{login}_other.trap") == []
    scene.place.sql(f"DROP SCHEMA {clean} CASCADE; DROP SCHEMA {login}_other CASCADE")
    scene.place.sql(f"CREATE SCHEMA {login} AUTHORIZATION {login}")


def test_a_table_that_is_swapped_beside_a_send_is_refused_or_stays(scene: Scene) -> None:
    """Its owner may drop it before the lock, and has to wait after it."""
    scene.arm("none")
    login = scene.mallory.login
    again = f"DROP TABLE {scene.trap}; CREATE TABLE {scene.trap} ({COLUMNS}); {OPEN.format(login)}"
    again += f"; {code('trigger', login)}"
    scene.mallory.sql("SET lock_timeout = '100ms'")
    given = {"trustedOwners": login}  # so only the lock can prevent the swap

    def fail_to_swap() -> None:
        with pytest.raises(psycopg.errors.LockNotAvailable):
            scene.mallory.sql(again)
        scene.mallory.connection.rollback()

    for statement in ("table_owners", "load"):
        scene.send(scene.trap, Gap(scene.connection(None, **given), statement, fail_to_swap))
    swap = Gap(scene.connection(), "lock_insert", lambda: scene.mallory.sql(again))
    with pytest.raises(OwnerNotTrusted):
        scene.send(scene.trap, swap)

    assert scene.loot() == []
    assert scene.rows(scene.trap) == []


def test_an_index_that_is_built_beside_a_send_runs_nothing(scene: Scene) -> None:
    """CREATE INDEX CONCURRENTLY waits for no INSERT, and an INSERT runs what it is to index."""
    scene.arm("none")
    login, table = scene.mallory.login, scene.trap
    build = f"CREATE INDEX CONCURRENTLY built ON {table} ({login}.steal(headers))"
    begun = f"SELECT count(*) FROM pg_index WHERE indrelid = '{table}'::regclass AND indisready"
    with ThreadPoolExecutor(1) as pool, transaction(connection := scene.connection()):
        lock_table(connection, POSTGRESQL.parse_address(table), "insert")
        building = pool.submit(scene.mallory.sql, build)
        until(lambda: scene.place.sql(f"SELECT to_regclass('{login}.built')") != [(None,)])
        assert scene.place.sql(begun) == [(0,)]  # it waits for this transaction to end

        with pytest.raises(OwnerNotTrusted):
            use(connection, [POSTGRESQL.parse_address(table)], INSERT)
    building.result()

    with pytest.raises(OwnerNotTrusted):
        scene.send(table)
    assert (scene.loot(), scene.rows(table)) == ([], [])


# ---------------------------------------------------------------- return to source


def test_a_returned_message_makes_no_superuser(scene: Scene) -> None:
    """FailedQ is the trap, and a superuser runs `retry --all`. Only --allow returns it."""
    scene.arm()
    scene.put(scene.table("error"), **{FAILED_Q: scene.trap})
    words = ["retry", scene.table("error"), "--all", "--yes", "--url", scene.place.superuser]

    refused = CliRunner().invoke(main.app, words)

    assert refused.exit_code == 1
    assert f"set trustedOwners to {scene.mallory.login}" in refused.output
    assert (scene.loot(), len(scene.errors())) == ([], 1)
    role = f"SELECT rolsuper FROM pg_roles WHERE rolname = '{scene.mallory.login}'"
    assert scene.place.sql(role) == [(False,)]

    scene.mallory.sql(f"DROP TRIGGER t ON {scene.trap}")
    allowed = CliRunner().invoke(main.app, [*words, "--allow", scene.trap])

    assert allowed.exit_code == 0, allowed.output
    assert scene.rows(scene.trap) == [b"secret"]


def test_a_return_is_refused_again_when_it_is_done(scene: Scene) -> None:
    """A table that got another owner after the plan gets nothing."""
    scene.arm("none")
    audit = scene.table("audit")
    scene.put(scene.table("error"), **{FAILED_Q: audit})
    errors = POSTGRESQL.parse_address(scene.table("error"))
    with Session(scene.source(scene.place.superuser), "retry") as session:
        planned = return_to_source.plan_return(session.open(), errors, return_to_source.Choice())
        assert planned.messages == 1
        scene.place.sql(f"ALTER TABLE {audit} OWNER TO {scene.mallory.login}")

        (done,) = return_to_source.give_back(session, errors, planned, batch=9)

    assert isinstance(done.reason, OwnerNotTrusted)
    assert scene.rows(audit) == []


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
    return [*words, "--url", scene.place.superuser, "--state-schema", state]


def test_a_forged_receipt_runs_no_code_and_gets_no_message_into_a_queue(scene: Scene) -> None:
    """A superuser cannot return it to the attacker's table or to a queue, except with --allow."""
    scene.arm()
    words = forge(scene, scene.shop.queue)

    trapped, refused = (
        CliRunner().invoke(main.app, each) for each in (forge(scene, scene.trap), words)
    )

    assert isinstance(trapped.exception, OwnerNotTrusted)
    assert isinstance(refused.exception, ReceiptRefused)
    assert scene.mallory.login in str(refused.exception)
    assert (scene.loot(), scene.rows(scene.shop.queue)) == ([], [])
    assert scene.place.sql(f"SELECT count(*) FROM {scene.place.state}.receipt") == [(2,)]
    allowed = CliRunner().invoke(main.app, [*words, "--allow", scene.shop.queue])
    assert allowed.exit_code == 0, allowed.output
    assert scene.rows(scene.shop.queue) == [b"forged"]


def test_a_subscription_leads_into_no_trap(scene: Scene) -> None:
    """Any endpoint may write one. The error, or the message in the error queue, names it."""
    scene.arm()
    connection, routing = scene.connection(scene.place.superuser), scene.table("Routing")
    schema.create_subscriptions(connection, QueueAddress("Routing", scene.place.schema))
    scene.place.sql(f"INSERT INTO {routing} VALUES (%s, 'mallory', 'Shop.Placed')", scene.trap)
    given = {"url": scene.place.superuser, "subscriptionTable": routing, "topics": "Shop.Placed"}
    topics = pa.array([["Shop.Placed"]], CHUNK_TOPICS.type)

    with pytest.raises(SubscriberUnreachable, match="set trustedOwners to"):
        scene.send(None, connection, topics, **given)
    scene.send(None, connection, topics, **given, undeliverable=scene.table("error"))

    assert scene.loot() == []
    (headers,) = scene.errors()
    assert headers[FAILED_Q] == scene.trap
    assert f"belongs to {scene.mallory.login}" in headers[f"{EXCEPTION_INFO}Message"]


@pytest.mark.parametrize("child", [False, True], ids=["its own trigger", "that of a child"])
def test_a_delayed_table_of_an_attacker_runs_nothing(scene: Scene, *, child: bool) -> None:
    """Any login that may create tables beside a queue can make the table that its mover empties."""
    scene.arm("none")
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

    with pytest.raises(OwnerNotTrusted):
        mover.move(scene.connection(scene.place.superuser))

    assert scene.loot() == []


def test_a_trigger_of_the_queues_owner_runs(scene: Scene) -> None:
    """The DBA's audit of a queue is allowed. A trigger that another login added is not."""
    scene.arm("none")
    audit, schema = scene.table("audit"), scene.place.schema
    scene.place.sql(f"""
        GRANT INSERT ON {audit} TO {scene.shop.login};
        CREATE TABLE {schema}.seen (login name);
        CREATE FUNCTION {schema}.seen() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
            AS $$BEGIN INSERT INTO {schema}.seen VALUES (session_user); RETURN NEW; END$$;
        CREATE TRIGGER a BEFORE INSERT ON {audit} EXECUTE FUNCTION {schema}.seen();
        GRANT TRIGGER ON {audit} TO {scene.mallory.login};
        GRANT USAGE ON SCHEMA {schema} TO {scene.mallory.login}
    """)
    scene.forward(audit, b"one")
    scene.receive()
    assert scene.rows(audit) == [b"one"]
    assert scene.place.sql(f"SELECT count(*) FROM {schema}.seen") == [(1,)]
    scene.mallory.sql(
        f"CREATE TRIGGER t BEFORE INSERT ON {audit} FOR EACH ROW "
        f"EXECUTE FUNCTION {scene.mallory.login}.spy()"
    )
    scene.forward(audit, b"two")

    scene.receive()

    assert (scene.rows(audit), scene.loot()) == ([b"one"], [])
    assert scene.mallory.login in scene.errors()[0][f"{EXCEPTION_INFO}Message"]
