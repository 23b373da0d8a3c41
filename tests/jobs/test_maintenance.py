"""maintenance: each step does its work, can be repeated, and reports what an operator must see."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from sqlq_spark.database import schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark.stand import Queue

    from jobs.submit import Desk

LATE = "now() AT TIME ZONE 'UTC' - interval '1 hour'"
PAST = datetime(2026, 1, 1, tzinfo=UTC)
STREAM = "0f0e0d0c-0000-4000-8000-000000000001"


def delay(queue: Queue, messages: int) -> str:
    """Store delayed messages that are due; gives their table."""
    queue.connected(lambda c: schema.create_delayed(c, queue.address))
    table = f'{queue.name[:-1]}.Delayed"'
    queue.place.sql(
        f"INSERT INTO {table} (headers, body, due) SELECT '{{}}', convert_to(n::text, 'UTF8'),"
        f" timestamptz({LATE}) + n * interval '1 ms' FROM generate_series(1, %s::int) AS n",
        messages,
    )
    return table


def leave_a_receipt(queue: Queue, days: float) -> None:
    """Insert a stream that was last seen some days ago, with a receipt."""
    seen = datetime.now(UTC) - timedelta(days=days)
    queue.dba.insert("stream", stream=STREAM, queue=queue.name, driver="d", seen=seen)
    counts = dict.fromkeys(("task", "expired", "diverted", "forwarded", "bytes", "unpacked"), 0)
    given = {"stream": STREAM, "batch": 1, "queue": queue.name, "messages": 7, "payload": b""}
    queue.dba.insert("receipt", **given | counts)


@pytest.fixture
def run(queue: Queue, desk: Desk) -> Any:
    """Give a function that runs the job here; it gives its code, its totals and its output."""

    def run(**settings: Any) -> tuple[int, dict[str, Any], str]:
        given = {"url": queue.place.url, "source": {"stateSchema": queue.place.state}} | settings
        done = desk.run("maintenance", given)
        return done.code, done.totals if done.out else {}, done.out + done.log

    return run


@pytest.fixture
def tenant(queue: Queue) -> Iterator[str]:
    """Give an ordinary role with a schema of the same name."""
    name = f"tenant_{secrets.token_hex(4)}"
    queue.place.sql(f"CREATE ROLE {name}")
    queue.place.sql(f"CREATE SCHEMA {name} AUTHORIZATION {name}")
    yield name
    queue.place.sql(f"DROP OWNED BY {name} CASCADE")
    queue.place.sql(f"DROP ROLE {name}")


@pytest.mark.faults
def test_killed_while_it_moves_each_message_is_there_once(queue: Queue, desk: Desk) -> None:
    """By spark-submit: each message that is due is in one of the two tables."""
    table = delay(queue, 250)
    queue.put("{}", expires=PAST)
    settings = {"queues": queue.name, "source": {"stateSchema": queue.place.state}}
    claim = f"INSERT INTO {queue.name} (id, headers) SELECT id, '' FROM {table} ORDER BY due"

    with psycopg.connect(queue.place.url) as other:
        other.execute(f"{claim} OFFSET 149 LIMIT 1".encode())  # the second batch waits for it
        moving = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
        desk.killed_when(lambda: queue.place.sql(moving, "%move_due%"), "maintenance", settings)
        other.rollback()
    before = queue.count()
    done = desk.submit("maintenance", settings)

    assert done.code == 0, done.log
    assert before == 100
    totals = [done.totals[name] for name in ("queues", "expired", "moved", "receipts")]
    assert totals == [1, 0, 150, []]
    found = queue.place.sql(f"SELECT convert_from(body, 'UTF8')::int FROM {queue.name} ORDER BY 1")
    assert [number for (number,) in found] == list(range(1, 251))
    assert queue.place.sql(f"SELECT count(*) FROM {table}") == [(0,)]


def test_what_a_killed_write_staged_is_deleted_after_a_week(queue: Queue, run: Any) -> None:
    """With its pages; what is younger, or has a name, stays."""
    weeks = {"write:old": 8, "write:young": 6, "app:old": 8}
    for sink, days in weeks.items():
        created = datetime.now(UTC) - timedelta(days=days)
        key = {"sink": sink, "batch": 0, "attempt": "a", "chunk": 0}
        queue.dba.insert("staging", **key, messages=1, payload=b"", created=created)
        queue.dba.insert("staging_page", **key, page=0, payload=b"")

    code, _, _ = run()

    assert code == 0
    for table in ("staging", "staging_page"):
        left = queue.place.sql(f"SELECT sink FROM {queue.place.state}.{table} ORDER BY 1")
        assert left == [("app:old",), ("write:young",)]


def test_receipts_that_a_dead_stream_left_are_listed(queue: Queue, run: Any) -> None:
    """With exit code 1; those of a stream that was seen since are not."""
    leave_a_receipt(queue, 8)

    code, found, _ = run()
    young, _, _ = run(receipts_days=9)

    assert (code, young, found["queues"]) == (1, 0, 1)
    (left,) = found["receipts"]
    expected = {"stream": STREAM, "queue": queue.name, "receipts": 1, "held": 7}
    assert expected.items() <= left.items()


def test_the_findings_of_the_doctor_are_reported(queue: Queue, run: Any) -> None:
    """A warning is exit code 0, an error 1; without state tables the other steps are done."""
    leave_a_receipt(queue, 3)
    warned = run()
    queue.put("{}", expires=PAST)
    queue.dba.drop_schema(queue.place.state)
    bare = run(queues=queue.name)
    queue.install()
    leave_a_receipt(queue, 3)
    queue.dba.drop(queue.address)
    gone = run()

    for (code, found, _), expected, name in (
        (warned, 0, "unseen_stream"),
        (bare, 1, "state"),
        (gone, 1, "absent"),
    ):
        assert code == expected
        assert name in {each["name"] for each in found["findings"]}
    assert (bare[1]["expired"], bare[1]["receipts"]) == (1, [])
    assert f"sqlqueue create '{queue.name}'" in gone[2]


def test_a_stream_names_no_queue_that_runs_code_of_its_owner(
    queue: Queue, tenant: str, run: Any
) -> None:
    """Each is skipped with a finding, and the job does the others; one that is named is trusted."""
    for table in ("victim", "good", "slow"):
        queue.place.sql(f'CREATE TABLE {tenant}."{table}" (LIKE {queue.name} INCLUDING ALL)')
        queue.place.sql(f"""INSERT INTO {tenant}."{table}" (id, expires, headers)
            VALUES (gen_random_uuid(), '2001-01-01', '{{}}')""")
        queue.place.sql(f'ALTER TABLE {tenant}."{table}" OWNER TO {tenant}')
    queue.place.sql(f"""
        SET ROLE {tenant};
        CREATE FUNCTION {tenant}.evil() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE 'run as %', current_user; END $$;
        CREATE TRIGGER t BEFORE DELETE ON {tenant}.victim
            FOR EACH ROW EXECUTE FUNCTION {tenant}.evil();
        CREATE VIEW {tenant}."slow.Delayed" AS
            SELECT '' AS headers, ''::bytea AS body, now() AS due;
        CREATE VIEW {tenant}.seen AS TABLE {tenant}.good;
        RESET ROLE""")
    queue.put("{}", expires=PAST)
    seen = datetime.now(UTC)
    names = [f'"{tenant}"."{table}"' for table in ("victim", "good", "slow", "seen")]
    for at, name in enumerate([queue.name, *names, '"a']):
        queue.dba.insert("stream", stream=f"{STREAM[:-1]}{at}", queue=name, driver="d", seen=seen)

    code, found, text = run()
    named, _, _ = run(queues=names[0])

    assert (code, found["expired"], queue.count()) == (1, 2, 0), text
    skipped = {
        each["where"]: each for each in found["findings"] if each["name"] == "not_maintained"
    }
    assert skipped.keys() == {names[0], *names[2:]}
    assert {each["severity"] for each in skipped.values()} == {"warning"}  # nothing was tried
    assert [each["where"] for each in found["findings"] if each["name"] == "no_address"] == ['"a']
    assert named == 3
    assert queue.place.sql(f"SELECT count(*) FROM {tenant}.good") == [(0,)]


def test_an_error_in_the_queue_of_one_stream_does_not_stop_the_others(
    queue: Queue, tenant: str, run: Any
) -> None:
    """Here a queue that another session has locked; it is a finding."""
    table = f'"{tenant}"."locked"'
    queue.place.sql(f"CREATE TABLE {table} (LIKE {queue.name} INCLUDING ALL)")
    queue.put("{}", expires=PAST)
    for at, name in enumerate([table, queue.name]):
        given = {"stream": f"{STREAM[:-1]}{at}", "queue": name, "driver": "d"}
        queue.dba.insert("stream", **given, seen=datetime.now(UTC))
    source = {"stateSchema": queue.place.state, "queryTimeout": "1s"}

    with psycopg.connect(queue.place.url) as other:
        other.execute(f"LOCK TABLE {table}".encode())
        code, found, text = run(source=source)

    assert (code, found["expired"], queue.count()) == (1, 1, 0), text
    assert (table, "not_maintained") in [
        (each["where"], each["name"]) for each in found["findings"]
    ]


@pytest.mark.parametrize(
    ("settings", "code", "sentence"),
    [
        ({"queues": "no where"}, 3, 'queue "public"."no where" was not found'),
        ({"receipts_days": -1}, 2, "expected a number of days above 0"),
        ({"source": {"stateSchem": "x"}}, 2, "stateSchema"),
    ],
)
def test_a_bad_setting_is_one_sentence(
    run: Any, settings: dict[str, Any], code: int, sentence: str
) -> None:
    """2 for settings, 3 for an error of the database."""
    found, _, text = run(**settings)

    assert (found, sentence in text) == (code, True), text
    assert "Traceback" not in text
