"""
Jobs that are killed while they work, and started again: each message is there once.

All run at once under one spark-submit, each behind a gate of its own, and are killed together.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import placed
from pages.page import blocks
from spark.stand import Queue, numbered

from jobs import gate, together
from jobs.submit import ROOT, delta_rows, flags, run, settings, submitted
from sqlq_spark.database import schema
from sqlq_spark.jobs import error_triage
from sqlq_spark.wire.headers import CORRUPT_HEADERS, EXCEPTION_INFO, FAILED_Q, MESSAGE_ID, dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Place
    from pyspark.sql import SparkSession

    from jobs.submit import Ended

pytestmark = [pytest.mark.spark, pytest.mark.faults]


@dataclass
class World:
    """A job's place and folder, what it does there, and the moment when it is killed."""

    place: Place
    folder: Path
    spark: SparkSession
    stack: ExitStack  # closes at the end of all tests what lasts until then
    target: Any = None  # another queue or session
    job: str = ""
    moment: Callable[[], object] = bool
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Create the folder, a queue and an error queue."""
        self.folder.mkdir()
        self.table = self.folder / "table"
        self.queue = Queue(self.place, "orders").prepared()
        self.error = self.queue.another("error")

    def works(self, job: str, until: Callable[[], object], **more: Any) -> None:
        """Set what the job does, and when it is killed."""
        self.job, self.moment = job, until
        self.settings = settings(job, self.queue, self.folder, most=200, **more)

    def rerun(self, **more: Any) -> Ended:
        """Run the job to its end, in the session of the tests."""
        ended = run(self.job, **self.settings | more)
        assert ended.code in {0, 1}, ended.log
        return ended

    def left(self) -> list[int]:
        """How many received, staged and sent messages are left."""
        return [self.queue.count(), self.queue.state("receipt"), self.queue.state("staging")]


@pytest.fixture(scope="module")
def worlds(
    server: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, World]]:
    """Give the worlds of all jobs, each killed at its moment."""
    folder, made = tmp_path_factory.mktemp("killed"), dict[str, World]()
    orders = list[list[list[str]]]()
    with ExitStack() as stack:
        for fill in (received, sent, relayed, audited, returned, moved):
            name, place = fill.__name__, stack.enter_context(placed(server))
            made[name] = World(place, folder / name, spark, stack)
            fill(made[name])
        with ExitStack() as running:
            for each in made.values():
                direct, given = each.place.url, each.settings.items()
                way = running.enter_context(gate.opened(direct, each.moment)).url
                held = {name: way if text == direct else text for name, text in given}
                orders.append([[each.job, *flags(**held)]])
            program = Path(together.__file__), [json.dumps(orders)], folder
            process = running.enter_context(submitted(*program))
            process.until(lambda: all(each.moment() for each in made.values()))
        yield made


# ---------------------------------------------------------------- into tables, and back


def received(world: World) -> None:
    """The second batch is in the table. Its body that does not fit is in no error queue yet."""
    world.queue.fill(0, 399)
    world.queue.put(dumps({MESSAGE_ID: "unfit"}), b'{"number":"x"}')
    world.queue.fill(399, 500)
    world.queue.put("no json")
    offsets = world.folder / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.1.tmp").touch()  # as a kill in Spark's first write leaves it
    second = world.table / "_delta_log" / f"{1:020}.json"
    world.works("queue_to_delta", second.exists, schema="number INT NOT NULL")


def test_queue_to_delta_between_table_and_error_queue(worlds: dict[str, World]) -> None:
    """The table's columns have the values of the headers and of the body."""
    world = worlds["received"]
    before = world.error.count()

    world.rerun()

    rows = delta_rows(world.table)
    first = next(row for row in rows if row["seq"] == 1)
    assert before == 0
    assert sorted(row["number"] for row in rows) == [*range(500)]
    assert first["messageType"] == "Shop.PlaceOrder"
    assert first["sentAt"] == datetime(2026, 6, 30, 17, 5, 9, 123456)  # noqa: DTZ001 - as stored
    stored = world.error.dotnet.rows(world.error.address)
    found = [json.loads(row.headers or "") for row in stored]
    assert {headers.get(CORRUPT_HEADERS) for headers in found} == {"no json", None}
    assert "unfit" in {headers[MESSAGE_ID] for headers in found}
    assert world.left() == [0, 0, 0]


def add_orders(world: World, first: int, stop: int) -> None:
    """Add orders to a table with a change feed, as one commit of one file."""
    rows = world.spark.range(first, stop, numPartitions=1).selectExpr("concat('m-', id) AS name")
    writer = rows.write.format("delta").mode("append")
    writer.option("delta.enableChangeDataFeed", "true").save(str(world.table))


def sent(world: World) -> None:
    """A batch is sent, and two wait in the change feed."""
    for first in range(0, 600, 200):
        add_orders(world, first, first + 200)
    world.works(
        "delta_to_queue",
        world.queue.count,
        changes="feed",
        columns={"body": "concat_ws(' ', _change_type, _commit_version)", "id": "name"},
        delta={"startingVersion": 0, "maxFilesPerTrigger": 1},
    )


def test_delta_to_queue_between_two_batches(worlds: dict[str, World]) -> None:
    """Rows that were added after the kill are sent too."""
    world = worlds["sent"]
    before = world.queue.count()
    add_orders(world, 600, 700)

    totals = world.rerun().totals

    assert (world.folder / "checkpoint" / "sqlqueue_target").exists()
    assert before < 600
    assert totals["messages"] <= 700
    rows = {(headers[MESSAGE_ID], body) for headers, body in world.queue.rows()}
    assert rows == {(f"m-{at}", b"insert %d" % (at // 200)) for at in range(700)}
    assert world.left() == [700, 0, 0]


ODD = ["date", "bodySize", "body", "immediateRetries", "retried", "failed"]
EXPECTED = {
    "messageId": "one",
    "messageType": "Shop.PlaceOrder",
    "processingMachine": "SALES-01",
    "sentAt": datetime(2025, 6, 30, 17, 5, 9, 623456),  # noqa: DTZ001 - INT96 has no zone
    "deliverAt": None,
    "processingTime": 0.250001,
    "criticalTime": 0.626545,
    "delayedRetries": None,
    "retried": False,
    "failed": False,
    "bodySize": 2,
    "body": b"{}",
}


def audited(world: World) -> None:
    """The first batch is in the table."""

    def put(body: bytes | None = b"{}", **headers: str) -> None:
        named = {f"NServiceBus.{name}": text for name, text in headers.items()}
        world.queue.put(json.dumps(named), body)

    put(
        MessageId="one",
        EnclosedMessageTypes="Shop.PlaceOrder, Shop, Version=1.0.0.0",
        ProcessingMachine="SALES-01",
        TimeSent="2025-06-30 17:05:09:623456 Z",
        ProcessingStarted="2025-06-30 17:05:10:000000 Z",
        ProcessingEnded="2025-06-30 17:05:10:250001 Z",
    )
    put(b"x" * 2000, ProcessingEnded="0001-01-01 00:00:00:000000 Z", Retries="x")
    put(ProcessingEnded="9999-12-31 23:59:59:999999 Z", FLRetries="2")
    put(None, ProcessingEnded="no time", FailedQ="Shop.Sales")
    world.queue.put("[]")
    world.queue.fill(0, 295)
    first = world.table / "_delta_log" / f"{0:020}.json"
    world.works("audit_to_delta", first.exists, body_limit="1k")


def test_audit_to_delta_between_two_batches(worlds: dict[str, World]) -> None:
    """Odd headers stop nothing. For a date too old or in the future that of the receipt is used."""
    world = worlds["audited"]
    today = world.place.sql("SELECT (now() AT TIME ZONE 'UTC')::date")[0][0]
    left = world.queue.count()

    totals = world.rerun().totals

    assert 0 < left <= totals["messages"] <= 300
    rows = sorted(delta_rows(world.table), key=lambda row: row["seq"])
    assert [row["seq"] for row in rows] == [*range(1, 301)]
    assert world.left() == [0, 0, 0]
    one, ancient, ahead, failed, poison = rows[:5]
    assert {name: one[name] for name in EXPECTED} == EXPECTED
    assert [ancient[name] for name in ODD[1:]] == [2000, None, None, False, False]
    assert [ahead[name] for name in ODD[1:]] == [2, b"{}", 2, True, False]
    assert [failed[name] for name in ODD[1:]] == [None, None, None, False, True]
    assert all(row["date"] >= str(today) for row in (one, ancient, ahead, failed, poison))


# ---------------------------------------------------------------- from queue to queue

EXACT = '{"NServiceBus.MessageId":"a\\/b","n":null}'


def relayed(world: World) -> None:
    """A batch is sent, and the job has not received the answer."""
    world.queue.put(EXACT, b"\x00\xff")
    world.queue.put("{}", None)
    world.queue.put("no json", b"poison")
    world.queue.fill(0, 1000)
    there = world.stack.enter_context(placed(world.place.superuser))
    world.target = Queue(there, "orders").prepared()
    to = {"target_url": there.url, "target_schema": there.schema}
    world.works("relay", world.target.count, sink={"stateSchema": there.state}, **to)


def test_relay_between_two_batches(worlds: dict[str, World]) -> None:
    """Each message arrives once, and its headers are equal byte for byte. Poison stays behind."""
    world = worlds["relayed"]
    between = world.target.count()

    world.rerun()

    assert 0 < between < 1002
    assert (world.folder / "checkpoint" / "sqlqueue_target").exists()
    rows = world.target.dotnet.rows(world.target.address)
    found = {row.headers: row.body for row in rows}
    assert found[EXACT] == b"\x00\xff"
    assert [*found.values()].count(b"") == 1
    assert len({*world.target.ids()}) == len(rows) == 1002
    assert {*numbered(0, 1000)} < {*world.target.ids()}
    assert world.left() == [0, 0, 0]
    stored = world.error.dotnet.rows(world.error.address)
    assert [json.loads(row.headers or "")[CORRUPT_HEADERS] for row in stored] == ["no json"]


def returned(world: World) -> None:
    """Failures of a group are repaired as docs/failed.md does, and sent, but not marked."""
    sources, rows = [*[world.queue.name] * 5001, "nowhere"], []
    for at, source in enumerate(sources):
        kind = {f"{EXCEPTION_INFO}ExceptionType": f"System.{'Bad' if at == 5000 else 'Late'}"}
        headers = dumps({MESSAGE_ID: f"m-{at}", "tenant": "a/b", FAILED_Q: source} | kind)
        rows.append((f"row-{at}", headers, b'{"Currency":"EURO","n":%d}' % at, at, "error"))
    kinds = "id string, headers string, body binary, seq bigint, queue string"
    frame = error_triage.failures(world.spark.createDataFrame(rows, kinds)).coalesce(1)
    frame.write.format("delta").save(str(world.table))
    late = delta_rows(world.table)[0]["digest"]
    [repair] = blocks("docs/failed.md", "repair")
    text = repair.text.replace("/lake/failures", str(world.table))
    world.spark.sql(text.replace("0123456789abcdef", late))
    world.works("error_triage", world.queue.count, mode="retry", groups=late)


def test_error_triage_between_a_return_and_its_mark(worlds: dict[str, World]) -> None:
    """Repaired messages are sent once. Others stay, and the exit code is 1."""
    world = worlds["returned"]
    between = delta_rows(world.table)

    done = world.rerun(ids="m-5000")

    assert sum(row["request"] is not None for row in between) == 5000
    assert not any(row["returned"] for row in between)
    assert [done.totals["resumed"], done.totals["returned"], done.code] == [5000, 1, 1]
    assert [*done.totals["staying"].values()] == [1]
    found = {headers[MESSAGE_ID]: body for headers, body in world.queue.rows()}
    expected = {f"m-{at}": b'{"Currency":"EUR","n":%d}' % at for at in range(5000)}
    expected["m-5000"] = b'{"Currency":"EURO","n":5000}'
    assert found == expected
    marked = (row["messageId"] for row in delta_rows(world.table) if row["returned"])
    assert sorted(marked) == sorted(world.queue.ids()) == sorted(expected)
    assert all([*headers] == [MESSAGE_ID, "tenant"] for headers, _ in world.queue.rows())
    assert world.left() == [5001, 0, 0]


HELD = "FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE '%move_due%'"


def moved(world: World) -> None:
    """A trigger holds the second batch of delayed messages while it is moved."""
    queue = world.queue
    queue.connected(lambda c: schema.create_delayed(c, queue.address))
    table = f'{queue.name[:-1]}.Delayed"'
    world.place.sql(f"""
        INSERT INTO {table} (headers, body, due)
        SELECT '{{}}', convert_to(n::text, 'UTF8'),
               timestamptz(now() AT TIME ZONE 'UTC' - interval '1 hour') + n * interval '1 ms'
          FROM generate_series(1, 250) AS n""")
    world.place.sql(f"""
        CREATE FUNCTION "{world.place.schema}".hold() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.body = '150' THEN PERFORM pg_catalog.pg_sleep(3600); END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER hold BEFORE INSERT ON {queue.name}
           FOR EACH ROW EXECUTE FUNCTION "{world.place.schema}".hold()""")
    world.works("maintenance", lambda: world.place.sql(f"SELECT {HELD}"))


def test_maintenance_while_it_moves(worlds: dict[str, World], tmp_path: Path) -> None:
    """Each due message is in one of the two tables. The second run is by spark-submit."""
    world = worlds["moved"]
    world.place.sql(f"SELECT pg_terminate_backend(pid) {HELD}")
    world.place.sql(f"DROP TRIGGER hold ON {world.queue.name}")
    before = world.queue.count()

    program = ROOT / "jobs" / "maintenance.py"
    with submitted(program, flags(**world.settings), tmp_path) as running:
        done = running.ended()

    assert done.code == 0, done.log
    assert (before, done.totals["moved"]) == (100, 150)
    assert sorted(int(body) for _, body in world.queue.rows()) == [*range(1, 251)]
    assert world.queue.beside("orders.Delayed").count() == 0
