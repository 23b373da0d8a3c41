"""maintenance: each step does its work, may be done again, and tells what someone must look at."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from jobs.submit import module, toml
from sqlq_spark.database import of, schema
from sqlq_spark.jobs import main as job

if TYPE_CHECKING:
    from pathlib import Path

    from spark.stand import Queue

    from jobs.submit import Desk

LATE = "now() AT TIME ZONE 'UTC' - interval '1 hour'"
PAST = datetime(2026, 1, 1, tzinfo=UTC)
STREAM = "0f0e0d0c-0000-4000-8000-000000000001"


def delay(queue: Queue, messages: int) -> str:
    """Let messages be due; gives their table."""
    connection = of(queue.place.url).connect(
        queue.place.url, application="test", timeout=20, state=queue.place.state
    )
    schema.create_delayed(connection, queue.address, timeout=20)
    connection.close()
    table = f'{queue.name[:-1]}.Delayed"'
    queue.place.sql(
        f"INSERT INTO {table} (headers, body, due) SELECT '{{}}', convert_to(n::text, 'UTF8'),"
        f" timestamptz({LATE}) + n * interval '1 ms' FROM generate_series(1, %s::int) AS n",
        messages,
    )
    return table


def forget(queue: Queue, days: float) -> None:
    """Let a stream hold a receipt, and not be seen for so long."""
    state = f'"{queue.place.state}"'
    queue.place.sql(
        f"INSERT INTO {state}.stream (stream, queue, driver, seen)"
        " VALUES (%s, %s, 'd', now() - make_interval(secs => %s))",
        STREAM,
        queue.name,
        days * 86_400,
    )
    queue.place.sql(
        f"INSERT INTO {state}.receipt"
        " (stream, batch, task, queue, messages, expired, diverted, forwarded, bytes, unpacked,"
        " payload) VALUES (%s, 1, 0, %s, 7, 0, 0, 0, 0, 0, '')",
        STREAM,
        queue.name,
    )


@pytest.fixture
def run(queue: Queue, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Give a way to run the job in this process; gives its code, totals and all that it said."""
    work = module("maintenance")

    def run(**settings: Any) -> tuple[int, dict[str, Any], str]:
        given = {"url": queue.place.url, "source": {"stateSchema": queue.place.state}} | settings
        path = tmp_path / "maintenance.toml"
        path.write_text(toml(given), encoding="utf-8")
        words = ["--settings", str(path)]
        code = job.main(work.__doc__, work.Settings, work.run, words, spark=False)
        said = capsys.readouterr()
        return code, json.loads(said.out.splitlines()[-1]) if said.out else {}, said.out + said.err

    return run


@pytest.mark.faults
def test_killed_while_it_moves_each_message_is_there_once(queue: Queue, desk: Desk) -> None:
    """Through spark-submit: what was expired is gone, what is due is in one of the two tables."""
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
    done = desk.run("maintenance", settings)

    assert done.code == 0, done.log
    assert before == 100
    assert {name: done.totals[name] for name in ("queues", "expired", "moved", "receipts")} == {
        "queues": 1,
        "expired": 0,
        "moved": 150,
        "receipts": [],
    }
    found = queue.place.sql(f"SELECT convert_from(body, 'UTF8')::int FROM {queue.name} ORDER BY 1")
    assert [number for (number,) in found] == list(range(1, 251))
    assert queue.place.sql(f"SELECT count(*) FROM {table}") == [(0,)]


def test_each_step_is_done_that_is_asked_for(queue: Queue, run: Any) -> None:
    """And no other; a queue without delayed messages has none to move."""
    steps = {"purge_expired": False, "move_due": False, "doctor": False}
    queue.put("{}", expires=PAST)

    code, none, _ = run(queues=queue.name, **steps)
    _, some, _ = run(queues=queue.name, **steps | {"purge_expired": True, "move_due": True})

    assert (code, none.keys()) == (0, {"job", "queues", "receipts", "found", "seconds"})
    assert (some["expired"], some["moved"], queue.count()) == (1, 0, 0)


def test_receipts_that_a_dead_stream_left_are_listed(queue: Queue, run: Any) -> None:
    """With exit code 1; those of a stream that was seen of late are none of ours."""
    forget(queue, 8)

    code, said, text = run(doctor=False)
    young, _, _ = run(doctor=False, receipts_days=9)

    assert (code, young) == (1, 0)
    assert said["queues"] == 1
    (left,) = said["receipts"]
    assert (left["stream"], left["queue"], left["receipts"], left["messages"]) == (
        STREAM,
        queue.name,
        1,
        7,
    )
    assert f"receipts left  {queue.name}: 7 messages of stream {STREAM}" in text


def test_what_the_doctor_finds_is_told(queue: Queue, run: Any) -> None:
    """An error is exit code 1, as a queue that a stream had and that is gone; a warning is 0."""
    forget(queue, 3)
    warned, said, _ = run()
    queue.place.sql(f"DROP TABLE {queue.name}")

    code, gone, text = run()

    assert warned == 0
    assert "unseen_stream" in {each["name"] for each in said["findings"]}
    assert code == 1
    assert "absent" in {each["name"] for each in gone["findings"]}
    assert f"sqlqueue create '{queue.name}'" in text


def test_without_state_tables_the_doctor_says_so(queue: Queue, run: Any) -> None:
    """The other steps are done for queues that are named."""
    queue.place.sql(f'DROP SCHEMA "{queue.place.state}" CASCADE')
    queue.put("{}", expires=PAST)

    code, said, _ = run(queues=queue.name)

    assert (code, said["expired"], said["receipts"]) == (1, 1, [])
    assert "state" in {each["name"] for each in said["findings"]}


@pytest.mark.parametrize(
    ("settings", "code", "told"),
    [
        ({"queues": "no where"}, 3, 'queue "public"."no where" was not found'),
        ({"receipts_days": -1}, 2, "expected a number of days, at least 0"),
        ({"source": {"stateSchem": "x"}}, 2, "stateSchema"),
    ],
)
def test_a_bad_setting_is_one_sentence(
    run: Any, settings: dict[str, Any], code: int, told: str
) -> None:
    """2 for what we were given, 3 for what the database said."""
    found, _, text = run(**settings)

    assert (found, told in text) == (code, True), text
    assert "Traceback" not in text
