"""Jobs in the session of the tests: the promises that need no kill."""

from __future__ import annotations

import signal
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from jobs.submit import delta_rows, module, run, settings, sigterm_when

from sqlq_spark import checkpoints
from sqlq_spark.jobs import audit_to_delta, streams, table_writer
from sqlq_spark.jobs.queue_to_delta import table_name
from sqlq_spark.jobs.settings import BadSettings
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.wire.headers import ENCLOSED_MESSAGE_TYPES, EXCEPTION_INFO, MESSAGE_ID, dumps

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark

RETRY = "ServiceControl.Retry."


def receiving(queue: SparkQueue, **more: Any) -> tuple[Any, Any]:
    """The module queue_to_delta, and its settings."""
    made = module("queue_to_delta")
    given = settings("queue_to_delta", queue, queue.folder, **{"error_queue": None} | more)
    return made, made.main.kind(**given)


def guid(number: int) -> str:
    """The id by which ServiceControl knows a message that it returned."""
    return f"00000000-0000-0000-0000-{number:012}"


def put(queue: SparkQueue, body: bytes | None, name: str, kind: str, **retry: str) -> None:
    """Send a message with an id and a type."""
    headers = {f"{RETRY}{each}": text for each, text in retry.items()}
    queue.put(dumps({MESSAGE_ID: name, ENCLOSED_MESSAGE_TYPES: kind, **headers}), body)


def numbers(table: Path) -> list[int]:
    """The numbers in the bodies of a table, sorted."""
    return sorted(int(row["body"][len('{"number":') : -1]) for row in delta_rows(table))


def reasons(queue: SparkQueue) -> dict[str, str]:
    """The reason of each message of an error queue, by its id."""
    name = f"{EXCEPTION_INFO}Message"
    return {str(each[MESSAGE_ID]): str(each[name]) for each, _ in queue.rows()}


# ---------------------------------------------------------------- bodies in columns

DDL = """
    number INT NOT NULL, name STRING, total DECIMAL(10, 2), due TIMESTAMP, day DATE,
    ratio DOUBLE, customer STRUCT<id: BIGINT NOT NULL, tags: ARRAY<STRING>>,
    items ARRAY<STRUCT<sku: STRING NOT NULL, count: INT>>, prices MAP<STRING, INT>
"""
MOMENT = datetime(2026, 1, 2, 2, 4, 5, 123000)  # noqa: DTZ001 - as stored
GOOD: list[tuple[bytes, dict[str, Any]]] = [
    (b'{"number":2,"name":"a","more":{"x":[1]}}', {"number": 2, "name": "a"}),
    ("\ufeff".encode() + b' {"number":3} \n', {"number": 3, "name": None}),
    (b'{"number":4,"day":"2026-01-02","customer":null}', {"day": date(2026, 1, 2)}),
    (b'{"number":6,"due":"2026-01-02T03:04:05.123+01:00","name":8}', {"due": MOMENT, "name": "8"}),
    (
        b'{"number":8,"customer":{"id":9,"tags":["x"]},"items":[],"prices":{"a":1}}',
        {"customer": {"id": 9, "tags": ["x"]}, "items": [], "prices": [("a", 1)]},
    ),
    (b'{"number":1,"number":9}', {"number": 9}),
    (b'{"number":9,"name":"7e123456","total":1e2}', {"name": "7e123456", "total": Decimal(100)}),
]
EMPTY, UTF8, OBJECT, LARGE = "empty", "not UTF-8", "not one JSON object", "an exponent of four"
BAD: list[tuple[bytes | None, str]] = [
    (None, EMPTY),
    (b"  ", OBJECT),
    (b'[{"number":1}]', OBJECT),
    (b'{"number":1', OBJECT),
    (b'{"number":1}{"number":2}', OBJECT),
    (b'{"number":1},"body":{"number":2}', OBJECT),
    (b'{"number":1,"z":' + b"[" * 3000 + b"]" * 3000 + b"}", OBJECT),
    (b'{"number":' + b"9" * 2000 + b"}", OBJECT),
    (b'{"number":1,"name":"\xff"}', UTF8),
    ('{"number":1}'.encode("utf-16"), UTF8),
    (b'{"number":"1"}', "number is not int"),
    (b'{"number":1,"total":123456789012.5}', "total is not decimal(10,2)"),
    (b'{"number":1,"total":1e100000000,"total":1}', LARGE),
    (b'{"number":1,"day":"soon","due":"later"}', "due is not timestamp, day is not date"),
    (b'{"number":1,"customer":{"id":"x"}}', "customer is not struct<"),
    (b'{"Number":1}', "number is missing or null"),
    (b'{"number":1,"items":[{"sku":"a"},{"count":1}]}', "items[].sku is missing or null"),
]


def test_bodies_become_columns_or_go_to_the_error_queue(
    queue: SparkQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """
    Bad ones have reason, headers and id. A retry that fails again is not acknowledged.

    The totals count them, and a warning names the error queue and the most frequent reason.
    """
    error, control = queue.another("error"), queue.another("ServiceControl")
    made, given = receiving(queue, schema=DDL, error_queue=error.name)
    for at, (body, _) in enumerate([*GOOD, *BAD]):
        retry = {"UniqueMessageId": guid(at), "AcknowledgementQueue": control.name}
        put(queue, body, f"m-{at}", "Shop.Placed", **retry)

    totals = made.run(queue.spark, given)

    rows = sorted(delta_rows(queue.folder / "table"), key=lambda row: row["seq"])
    assert totals["messages"] == len(GOOD) + len(BAD)
    assert (totals["failed"], totals["error_queue"]) == (len(BAD), error.name)
    [warning] = [each for each in caplog.messages if "does not fit the schema went to" in each]
    assert f"{len(BAD)} messages whose body does not fit the schema went to {error.name}" in warning
    assert "the body is not one JSON object: " in warning
    assert [row["body"] for row in rows] == [body for body, _ in GOOD]
    for row, (_, expected) in zip(rows, GOOD, strict=True):
        assert {name: row[name] for name in expected} == expected
    failed = reasons(error)
    assert sorted(failed) == sorted(f"m-{len(GOOD) + at}" for at in range(len(BAD)))
    for at, (body, words) in enumerate(BAD, len(GOOD)):
        assert words in failed[f"m-{at}"], body
    headers = error.rows()[0][0]
    assert headers["NServiceBus.FailedQ"] == queue.whole_name
    assert headers[f"{EXCEPTION_INFO}ExceptionType"] == "sqlq_spark.UnfitBody"
    assert sorted(body for _, body in error.rows()) == sorted(body or b"" for body, _ in BAD)
    assert control.count() == len(GOOD)


def test_a_run_that_ends_between_two_tables_is_finished_by_the_next(
    queue: SparkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Tables and the error queue that have their share of the batch do not get it again.

    A type with a schema always has a table. Of the others the most frequent ones have tables. A
    field whose name the table has already gets another.
    """
    error, odd, placed = queue.another("error"), "../../Shop`Free", "number INT,\n  Id STRING"
    made, given = receiving(
        queue,
        split=True,
        schemas={"Shop.Placed": placed, "Shop.Moved": placed, "Shop.Paid": "total INT"},
        names={"Shop.Placed": "orders", "Shop.Moved": "orders"},
        error_queue=error.name,
    )
    monkeypatch.setattr(made, "MOST_TYPES", 1)
    bodies = [
        ("Shop.Placed, Shop, Version=1.0.0.0;Shop.IEvent", b'{"number":1,"Id":"a"}'),
        ("Shop.Moved", b'{"number":2}'),
        ("Shop.Paid", b'{"total":3}'),
        ("Shop.Paid", b'{"total":"x"}'),
        *[(odd, b"<xml/>")] * 2,
        ("shop.placed", b""),
    ]
    for at, (kind, body) in enumerate(bodies):
        put(queue, body, f"m-{at}", kind)

    for place, name in (
        (table_writer, "append_delta"),
        (made.bodies, "reason"),
        (table_writer, "report_retries"),
    ):
        done = getattr(place, name)

        def end(*given: Any, done: Any = done, **named: Any) -> None:
            done(*given, **named)
            raise RuntimeError("the end")

        monkeypatch.setattr(place, name, end)
        with pytest.raises(Exception, match="the end"):
            made.run(queue.spark, given)
        monkeypatch.setattr(place, name, done)
    totals = made.run(queue.spark, given)

    tables = {each.name: delta_rows(each) for each in (queue.folder / "table").iterdir()}
    assert totals["messages"] == len(bodies)
    assert tables.keys() == {"orders", table_name("Shop.Paid"), table_name(odd), "other"}
    orders = sorted(tables["orders"], key=lambda row: row["seq"])
    assert [(row["number"], row["body_Id"]) for row in orders] == [(1, "a"), (2, None)]
    assert [row["total"] for row in tables[table_name("Shop.Paid")]] == [3]
    assert [row["body"] for row in tables[table_name(odd)]] == [b"<xml/>"] * 2
    assert [row["messageType"] for row in tables["other"]] == ["shop.placed"]
    assert reasons(error) == {"m-3": "the body does not fit: total is not int"}
    assert error.count() == 1


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"schema": "number INTT"}, "setting schema is 'number INTT': expected DDL"),
        ({"schema": "a CHAR(5)"}, "expected DDL, for example number INT"),
        ({"schema": "Id INT, body_id INT"}, "setting schema has a column twice: body_Id, body_id"),
        (
            {"split": True, "schemas": {"Shop.A": "a INT", "Shop.B": "b BAD"}},
            "setting Shop.B in [schemas] is 'b BAD'",
        ),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_at_the_start(
    queue: SparkQueue, given: dict[str, Any], expected: str
) -> None:
    """The job fails before its stream starts, and receives nothing."""
    queue.fill(0, 1)
    made, given = receiving(queue, error_queue=queue.another("error").name, **given)

    with pytest.raises(BadSettings) as error:
        made.run(queue.spark, given)

    assert expected in str(error.value)
    assert queue.count() == 1


# ---------------------------------------------------------------- tables


def test_a_share_is_written_once_into_a_table_of_a_catalog(queue: SparkQueue) -> None:
    """The write that creates the table counts as the first one."""
    for _ in range(2):
        table_writer.append_delta(queue.spark.range(3), "default.split_paid", "a query", 0)

    assert queue.spark.table("default.split_paid").count() == 3
    queue.spark.sql("DROP TABLE default.split_paid")


def test_rows_become_json(queue: SparkQueue) -> None:
    """They do so if the settings name no column. Only new rows that `where` allows are sent."""
    given = settings("delta_to_queue", queue, queue.folder, where="id % 2 = 0")

    for first in (0, 4):
        rows = queue.spark.range(first, first + 4)
        rows.write.format("delta").mode("append").save(given["table"])
        assert run("delta_to_queue", **given).code == 0

    sent = queue.rows()
    assert sorted(body for _, body in sent) == [b'{"id":%d}' % each for each in (0, 2, 4, 6)]
    assert {headers["NServiceBus.ContentType"] for headers, _ in sent} == {"application/json"}


@pytest.mark.parametrize("received", ["receivedAt", "received"])
def test_old_rows_are_deleted(spark: SparkSession, tmp_path: Path, received: str) -> None:
    """A row's age counts from its arrival, so an endpoint whose clock is behind loses nothing."""
    table = str(tmp_path / "table")
    ages = spark.createDataFrame([(40, 40), (0, 0), (30, 30), (9000, 0)], "ended int, arrived int")
    now = "current_timestamp() - make_dt_interval"
    frame = ages.selectExpr("*", f"{now}(arrived) AS {received}", f"to_date({now}(ended)) AS date")
    given: dict[str, Any] = {"url": "postgresql:///", "table": table, "checkpoint": "c"}
    settings = audit_to_delta.AuditSettings(**given, retention_days=30)

    before = audit_to_delta.delete_old(spark, settings)
    frame.coalesce(1).write.format("delta").partitionBy("date").save(table)
    without = audit_to_delta.delete_old(spark, audit_to_delta.AuditSettings(**given))
    after = audit_to_delta.delete_old(spark, settings)

    assert [before, without, after] == [{}, {}, {"deletedMessages": 1}]
    rest = spark.read.format("delta").load(table).collect()
    assert sorted(row.ended for row in rest) == [0, 30, 9000]


def test_a_stream_that_runs_on_deletes_after_each_batch_and_ends_by_sigterm(
    queue: SparkQueue,
) -> None:
    """
    The stream ends after its batch, and its totals are those of all batches.

    Poison is counted too, which went to the error queue and not into the table.
    """
    table, commits = queue.folder / "table", queue.checkpoint / "commits"
    error = queue.another("error").name
    more = {"trigger": "100 milliseconds", "retention_days": 1e-6, "error_queue": error}
    yesterday = datetime.now(UTC) - timedelta(days=1)
    ended = yesterday.strftime("%Y-%m-%d %H:%M:%S:%f Z")
    given = settings("audit_to_delta", queue, queue.folder, most=1, **more)
    queue.put("no json")
    for _ in range(2):
        queue.put(dumps({"NServiceBus.ProcessingEnded": ended}))
    queue.put("{}")

    with sigterm_when((commits / "3").exists):
        totals = audit_to_delta.run(queue.spark, audit_to_delta.AuditSettings(**given))

    counts = {"messages": 3, "batches": 3, "failed": 1, "deletedMessages": 2}
    assert totals == {**counts, "error_queue": error}
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert len(delta_rows(table)) == 1


def test_a_table_that_exists_keeps_its_columns(queue: SparkQueue) -> None:
    """Bodies and new names are for new tables. The job prints the setting that adds bodies."""
    table = queue.folder / "table"
    given = settings("audit_to_delta", queue, queue.folder)
    kept = {"limited": {"body_limit": "1"}, "all": {}}
    old = "id STRING, timeSent TIMESTAMP, received TIMESTAMP, date DATE"
    queue.spark.createDataFrame([], old).write.format("delta").partitionBy("date").save(str(table))

    queue.put("{}", b"old")
    done = run("audit_to_delta", **given)
    assert done.code == 0
    assert f"table {table} has no column body" in done.log
    (row,) = delta_rows(table)
    assert {"timeSent", "received"} <= row.keys()
    assert not {"sentAt", "receivedAt", "body"} & row.keys()
    for name, more in kept.items():
        queue.put("{}", b"new")
        own = {"table": str(queue.folder / name), "checkpoint": str(queue.folder / f"{name}_c")}
        assert run("audit_to_delta", **given | own | more).code == 0
    made = {name: delta_rows(queue.folder / name)[0] for name in kept}
    assert [row["body"] for row in made.values()] == [None, b"new"]
    assert {"sentAt", "receivedAt"} <= made["all"].keys()


def test_forged_types_and_dates_make_no_tables_and_partitions_without_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Later types are rows of `other`. A repeated batch is divided as before."""
    made = module("queue_to_delta")
    given = made.QueueToDeltaSettings(
        url="postgresql:///s",
        queues="q",
        table=str(tmp_path / "t"),
        checkpoint=str(tmp_path / "c"),
        split=True,
        most_tables=3,
        names={"Named": "named"},
    )

    def shares(number: int, *types: str) -> set[str]:
        rows = spark.createDataFrame([(each,) for each in types], "messageType string")
        return {name for name, _, _ in made.Appender(given).shares(rows, number)}

    a, b, c, d = map(table_name, "ABCD")
    assert shares(0, "A", "A", "B") == {a, b}
    assert shares(1, "D", "D", "C", "Named") == {d, "other", "named"}
    assert shares(1, "D", "D", "C", "Named") == {d, "other", "named"}
    assert shares(2, "A", "B", "C", "D", "E") == {a, b, d, "other"}
    assert c not in shares(3, "C")

    times = ["0001-01-01 00:00:00:000000 Z", "2001-02-03 00:00:00:000000 Z"]
    texts = [({"NServiceBus.ProcessingEnded": time},) for time in times]
    columns = "headers map<string,string>, id string, seq bigint, correlationId string, "
    kind = columns + "corruptHeaders string, body binary"
    frame = spark.createDataFrame([(*text, "i", 1, None, None, b"") for text in texts], kind)
    audited = audit_to_delta.audit_rows(frame, 0)
    assert audited.where("date <> to_date(receivedAt)").count() == 0


# ---------------------------------------------------------------- the stream


def test_a_dry_run_finds_mistakes(queue: SparkQueue) -> None:
    """It prints the columns or the error, and changes nothing."""
    send, receive = "delta_to_queue", "queue_to_delta"
    ddl, absent = {"schema": "number INT, Body INT"}, {"error_queue": "Shop.None"}
    queue.another("error")
    queue.spark.sql("SELECT 'a' AS name").write.format("delta").save(f"{queue.folder}/table")

    for job, more, code, said in (
        (send, {"columns": {"id": "name"}}, 0, "columns: body string, id string"),
        (send, {"columns": {"id": "nmae"}}, 3, "nmae"),
        (send, {"table": "/no/table"}, 2, "table /no/table does not exist"),
        (receive, ddl | absent, 3, "Shop.None"),
        (receive, ddl, 0, "receivedAt timestamp, number int, body_Body int"),
    ):
        ended = run(job, **settings(job, queue, queue.folder, **more), dry_run=True)
        assert (ended.code, said in ended.out + ended.log) == (code, True), ended
    assert queue.count() == 0
    assert not queue.checkpoint.exists()


def test_an_open_batch_is_not_sent_to_another_dispatch_log(queue: SparkQueue) -> None:
    """
    It may have been sent. After a run that ended well the target may be changed.

    Two names of one host are the same dispatch log.
    """
    place = str(queue.checkpoint)
    first = SinkOptions.parse(queue.options)
    second = replace(first, state_schema=f"{queue.place.state}_2")
    replace(queue, place=replace(queue.place, state=second.state_schema)).install()

    streams.bind_checkpoint(queue.spark, place, first)
    for log, batch in (("offsets", 10), ("commits", 9)):
        (queue.checkpoint / log).mkdir()
        (queue.checkpoint / log / f"{batch}").write_text("v1\n", encoding="utf-8")
    same = replace(first, url=first.url.replace("127.0.0.1", "localhost"))
    streams.bind_checkpoint(queue.spark, place, same)
    with pytest.raises(BadSettings, match=rf"batch 10 is open.*Schema {first.state_schema}\."):
        streams.bind_checkpoint(queue.spark, place, second)
    streams.bind_checkpoint(queue.spark, place, replace(second, delivery="atLeastOnce"))
    (queue.checkpoint / "commits" / "10").write_text("v1\n", encoding="utf-8")
    streams.bind_checkpoint(queue.spark, place, second)

    noted = checkpoints.read_text(queue.spark, f"{place}/sqlqueue_target")
    assert noted.endswith(f", stateSchema {second.state_schema}")


def test_a_stream_of_one_batch_is_started_until_nothing_is_left(
    queue: SparkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Spark 4.1 needs several runs. Each message comes once.

    Only the first run purges, as purgeOnStartup asks. What comes after it waits, or a queue
    that is filled without end would keep the job.
    """
    made, given = receiving(queue, headers_format="json", most=100)
    given = replace(given, source=given.source | {"purgeOnStartup": "true"})
    runs: list[int] = []
    watch = streams.watch

    def once(writer: Any, settings: Any) -> Any:
        runs.append(len(runs))
        writer = writer.option("checkpointLocation", settings.checkpoint)
        return writer.trigger(once=True).start()

    def filling(*args: Any) -> streams.Tally:
        tally = watch(*args)
        queue.fill(100 * len(runs), 100 * len(runs) + 150)  # more than a run receives
        return tally

    monkeypatch.setattr(streams, "start", once)
    monkeypatch.setattr("sqlq_spark.spark_api.DRAINS_AT_ONCE", False)
    monkeypatch.setattr(streams, "watch", filling)
    queue.fill(0, 100)
    totals = made.run(queue.spark, given)

    # 150 wait after the first run, and are received by two more
    assert (totals["messages"], totals["batches"], len(runs)) == (200, 2, 3)
    assert numbers(queue.folder / "table") == sorted([*range(100, 250), *range(200, 250)])


def test_a_job_receives_with_the_clusters_tasks(queue: SparkQueue) -> None:
    """A number in the settings wins. Replies to one instance need one task."""
    read = {"url": queue.place.url, "queue": queue.name}
    own = {**read, "maxConcurrency": "7"}

    assert streams.spread(queue.spark, read) == {**read, "clusterCores": "2"}  # local[2]
    assert streams.spread(queue.spark, own) == own
    told = {**read, "clusterCores": "3"}
    assert streams.spread(queue.spark, told) == told
    instance = {"url": queue.place.url, "queues": "orders, orders.one", "clusterCores": "3"}
    options = SourceOptions.parse(instance)
    assert options.concurrency == 3
    assert [options.most_tasks(each) for each in options.addresses] == [None, 1]


def test_retries_are_acknowledged_after_the_write(
    queue: SparkQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """
    Each answer goes to the queue in the header. A failed answer is logged, and fails nothing.

    An author's id, which is no GUID of ServiceControl, is not answered.
    """
    control, locked = queue.another("ServiceControl"), queue.another("locked")
    made, given = receiving(queue)
    addresses = [control.name, control.name, queue.beside("gone").name, locked.name, '"a', ""]
    for at, address in enumerate(addresses):
        retry = {"UniqueMessageId": guid(at), "AcknowledgementQueue": address}
        put(queue, b'{"number":%d}' % at, f"m-{at}", "Shop.Placed", **retry)

    with queue.dba.closed(locked.address):
        made.run(queue.spark, given)
    forged = {"UniqueMessageId": "order-7", "AcknowledgementQueue": control.name}
    put(queue, b'{"number":6}', "m-6", "Shop.Placed", **forged)
    made.run(queue.spark, given)
    retry["AcknowledgementQueue"] = control.name
    put(queue, b'{"number":7}', "m-7", "Shop.Placed", **retry)
    made.run(queue.spark, replace(given, acknowledge_retries=False))

    assert numbers(queue.folder / "table") == [*range(8)]
    answers = [headers for headers, body in control.rows() if body == b""]
    assert sorted(str(each[f"{RETRY}UniqueMessageId"]) for each in answers) == [guid(0), guid(1)]
    assert {each["NServiceBus.ControlMessage"] for each in answers} == {"True"}
    assert [control.count(), locked.count(), queue.count()] == [2, 0, 0]
    said = [text for text in caplog.messages if "acknowledged" in text]
    assert [reason for reason in ("gone", "locked", '"a') if reason not in "".join(said)] == []
    assert said[-1] == "3 of 5 retries were not acknowledged"
