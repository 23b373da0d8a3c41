"""The job maintenance: each step does its work, can be repeated, and reports what is wrong."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from conftest import ORDINARY

from jobs import submit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark.stand import Queue

PAST = datetime(2026, 1, 1, tzinfo=UTC)
STREAM = "0f0e0d0c-0000-4000-8000-00000000000"


def run(queue: Queue, *, timeout: str = "30s", **more: Any) -> tuple[int, dict[str, Any], str]:
    """Run the job in this process. Return its code, its totals and its output."""
    source = {"stateSchema": queue.place.state, "queryTimeout": timeout}
    done = submit.run("maintenance", url=queue.place.url, source=source, **more)
    return done.code, done.totals if done.out else {}, done.out + done.log


@pytest.fixture
def tenant(queue: Queue) -> Iterator[str]:
    """Give an ordinary role with a schema of the same name."""
    name = f"tenant_{secrets.token_hex(4)}"
    queue.place.sql(f"CREATE ROLE {name}")
    queue.place.sql(f"CREATE SCHEMA {name} AUTHORIZATION {name}")
    yield name
    queue.place.sql(f"DROP OWNED BY {name} CASCADE")
    queue.place.sql(f"DROP ROLE {name}")


def see(queue: Queue, *names: str, days: float = 0) -> None:
    """Set streams as seen some days ago, one for each queue."""
    seen = datetime.now(UTC) - timedelta(days=days)
    for at, name in enumerate(names):
        queue.dba.insert("stream", stream=f"{STREAM}{at}", queue=name, driver="d", seen=seen)


def leave_a_receipt(queue: Queue, days: float) -> None:
    """Set a stream as seen some days ago, with a receipt."""
    see(queue, queue.name, days=days)
    counts = dict.fromkeys(("task", "expired", "diverted", "forwarded", "bytes", "unpacked"), 0)
    given = {"stream": f"{STREAM}0", "batch": 1, "queue": queue.name, "messages": 7, "payload": b""}
    queue.dba.insert("receipt", **given | counts)


def test_what_a_killed_write_staged_is_deleted_after_a_week(queue: Queue) -> None:
    """The pages of its payload are deleted too. Younger chunks and those of a named write stay."""
    for sink, days in {"write:old": 8, "write:young": 6, "app:old": 8}.items():
        created = datetime.now(UTC) - timedelta(days=days)
        key = {"sink": sink, "sink_batch": 0, "attempt": "a", "chunk": 0}
        queue.dba.insert("staging", **key, messages=1, payload=b"", created=created)
        queue.dba.insert("staging_page", **key, page=0, payload=b"")

    code, _, _ = run(queue)

    assert code == 0
    for table in ("staging", "staging_page"):
        left = queue.place.sql(f"SELECT sink FROM {queue.place.state}.{table} ORDER BY 1")
        assert left == [("app:old",), ("write:young",)]


def test_receipts_and_findings_are_reported(queue: Queue) -> None:
    """
    A stream that gave no sign for long is exit code 1, a warning 0, an error 1.

    Without state tables the other steps are done; a queue that is named and absent is code 3.
    """
    leave_a_receipt(queue, 8)
    dead, warned = run(queue), run(queue, receipts_days=9)
    queue.put("{}", expires=PAST)
    queue.dba.drop_schema(queue.place.state)
    bare = run(queue, queues=queue.name)
    queue.install()
    leave_a_receipt(queue, 3)
    queue.dba.drop(queue.address)
    gone, named = run(queue), run(queue, queues=queue.name)

    (left,) = dead[1]["receipts"]
    expected = {"stream": f"{STREAM}0", "queue": queue.name, "receipts": 1, "held": 7}
    assert expected.items() <= left.items()
    assert dead[0] == 1
    for (code, found, _), wanted, name in (
        (warned, 0, "unseen_stream"),
        (bare, 1, "state"),
        (gone, 1, "absent"),
    ):
        assert code == wanted
        assert name in {each["name"] for each in found["findings"]}
    assert (bare[1]["expired"], bare[1]["receipts"]) == (1, [])
    assert f"sqlqueue create '{queue.name}'" in gone[2]
    assert named[0] == 3
    assert f"queue {queue.name} was not found" in named[2]


def test_a_stream_names_no_queue_that_runs_code_of_its_owner(queue: Queue, tenant: str) -> None:
    """
    Each is skipped with a finding, and the job does the others.

    A queue that an option names raises an error, because a superuser runs the job. A queue that
    another session has locked stops no other.
    """
    tables = ("victim", "good", "slow", "locked")
    for table in tables:
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
        GRANT USAGE ON SCHEMA {tenant} TO {ORDINARY};
        GRANT ALL ON ALL TABLES IN SCHEMA {tenant} TO {ORDINARY};
        RESET ROLE""")
    queue.put("{}", expires=PAST)
    names = {table: f'"{tenant}"."{table}"' for table in (*tables, "seen")}
    see(queue, *names.values(), queue.name, '"a')

    with psycopg.connect(queue.place.superuser) as other:
        other.execute(f"LOCK TABLE {names['locked']}".encode())
        code, found, text = run(queue, timeout="1s")
    named, _, _ = run(queue, queues=names["victim"])

    assert (code, found["expired"], queue.count()) == (1, 1, 0), text
    findings = found["findings"]
    skipped = {
        each["where"]: each["severity"] for each in findings if each["name"] == "not_maintained"
    }
    others = ("victim", "good", "slow", "seen")
    nothing_was_tried = {names[table]: "warning" for table in others}
    assert skipped == nothing_was_tried | {names["locked"]: "error"}
    assert [each["where"] for each in findings if each["name"] == "no_address"] == ['"a']
    assert named == 3
    assert queue.place.sql(f"SELECT count(*) FROM {tenant}.good") == [(1,)]
