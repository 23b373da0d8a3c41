"""Jobs in the session of the tests: the promises that need no kill."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from jobs.submit import delta_rows, module, sigterm_when

from sqlq_spark import checkpoints
from sqlq_spark.jobs import streams, table_writer
from sqlq_spark.jobs.queue_to_delta import table_name
from sqlq_spark.jobs.settings import BadSettings
from sqlq_spark.jobs.streams import spread
from sqlq_spark.options import SinkOptions

if TYPE_CHECKING:
    from pathlib import Path

    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark

PLACED = "Shop.Placed, Shop, Version=1.0.0.0;Shop.IEvent"
ODD = "../../Shop`Placed"
TYPES = [PLACED, "shop.placed", ODD, "Paid", "Paid"]  # of messages in turn


def received(queue: SparkQueue, folder: Path, **more: Any) -> Any:
    """Settings of queue_to_delta, and its module."""
    made = module("queue_to_delta")
    settings = made.Settings(
        url=queue.place.url,
        queues=queue.name,
        table=str(folder / "table"),
        checkpoint=str(folder / "checkpoint"),
        source={"stateSchema": queue.place.state},
        **more,
    )
    return made, settings


def numbers(table: Path) -> list[int]:
    """The numbers in the bodies of a table, sorted."""
    return sorted(int(row["body"][len('{"number":') : -1]) for row in delta_rows(table))


def test_a_run_that_ends_between_two_tables_is_finished_by_the_next(
    queue: SparkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables that have their share of the batch do not get it again."""
    made, settings = received(queue, queue.folder, split=True, names={"Paid": "paid"})
    monkeypatch.setattr(made, "MOST_TYPES", 1)
    queue.fill(0, 50)
    queue.dba.retype(queue.address, TYPES)
    append = table_writer.append_delta

    def failing(*given: Any) -> None:
        append(*given)
        reason = "the end"
        raise RuntimeError(reason)

    with monkeypatch.context() as patched:
        patched.setattr(table_writer, "append_delta", failing)
        with pytest.raises(Exception, match="the end"):
            made.run(queue.spark, settings)
    totals = made.run(queue.spark, settings)

    tables = {each.name: numbers(each) for each in (queue.folder / "table").iterdir()}
    assert totals["messages"] == 50
    assert set(tables) == {"paid", "other", table_name(ODD)}
    assert tables["paid"] == [each for each in range(50) if (each + 1) % 5 in {3, 4}]
    assert sorted(chain(*tables.values())) == [*range(50)]


def test_a_share_is_written_once_into_a_table_of_a_catalog(queue: SparkQueue) -> None:
    """Also by the write that creates it."""
    for _ in range(2):
        table_writer.append_delta(queue.spark.range(3), "default.split_paid", "a query", 0)

    assert queue.spark.table("default.split_paid").count() == 3
    queue.spark.sql("DROP TABLE default.split_paid")


def test_a_stream_that_runs_on_ends_after_its_batch(queue: SparkQueue) -> None:
    """By SIGTERM; its totals are those of its batches."""
    made, settings = received(queue, queue.folder, trigger="100 milliseconds")
    queue.fill(0, 10)

    with sigterm_when((queue.folder / "checkpoint" / "commits" / "0").exists):
        totals = made.run(queue.spark, settings)

    assert totals == {"messages": 10, "batches": 1}
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert len(delta_rows(queue.folder / "table")) == 10


def test_rows_become_json(queue: SparkQueue) -> None:
    """If the settings name no column; only rows that `where` allows, and only new ones."""
    made = module("delta_to_queue")
    settings = made.Settings(
        url=queue.place.url,
        table=str(queue.folder / "table"),
        checkpoint=str(queue.folder / "checkpoint"),
        where="id % 2 = 0",
        queue=queue.name,
        sink={"stateSchema": queue.place.state},
    )

    for first in (0, 4):
        rows = queue.spark.range(first, first + 4)
        rows.write.format("delta").mode("append").save(settings.table)
        made.run(queue.spark, settings)

    sent = queue.rows()
    assert sorted(body for _, body in sent) == [b'{"id":%d}' % each for each in (0, 2, 4, 6)]
    assert {headers["NServiceBus.ContentType"] for headers, _ in sent} == {"application/json"}


def test_a_dry_run_finds_mistakes(queue: SparkQueue, capsys: pytest.CaptureFixture[str]) -> None:
    """And changes nothing."""
    made, table = module("delta_to_queue"), str(queue.folder / "table")
    queue.spark.sql("SELECT 'a' AS name").write.format("delta").save(table)
    given = {
        "url": queue.place.url,
        "table": table,
        "queue": queue.name,
        "columns": "id=name",
        "checkpoint": str(queue.folder / "checkpoint"),
        "sink": f"stateSchema={queue.place.state}",
    }
    flags = ["--dry-run", *(word for name, text in given.items() for word in (f"--{name}", text))]

    for words, code, said in [
        ([], 0, "columns: body string, id string"),
        (["--columns", "id=nmae"], 3, "nmae"),
        (["--queue", "Shop.None"], 3, "Shop.None"),
        (["--table", "/no/table"], 2, "table /no/table does not exist"),
        (["--columns", "bdoy=name"], 2, "setting bdoy in [columns]: expected one of body, id,"),
    ]:
        ended = made.main.main([*flags, *words])
        out = capsys.readouterr()
        assert (ended, said in out.out + out.err) == (code, True), out
    assert queue.count() == 0
    assert not (queue.folder / "checkpoint").exists()


def test_an_open_batch_is_not_sent_to_another_dispatch_log(queue: SparkQueue) -> None:
    """
    It may have been sent. After a run that ended well the target may be changed.

    Two names of one host are the same dispatch log.
    """
    checkpoint = queue.folder / "checkpoint"
    first, second = (
        SinkOptions.parse({**queue.options, "stateSchema": state})
        for state in (queue.place.state, f"{queue.place.state}_2")
    )
    replace(queue, place=replace(queue.place, state=second.state_schema)).install()

    streams.bind(queue.spark, str(checkpoint), first)
    for log in ("offsets", "commits"):
        (checkpoint / log).mkdir()
    (checkpoint / "offsets" / "10").write_text("v1\n", encoding="utf-8")
    (checkpoint / "commits" / "9").write_text("v1\n", encoding="utf-8")
    streams.bind(queue.spark, str(checkpoint), first)
    same = replace(first, url=first.url.replace("127.0.0.1", "localhost"))
    streams.bind(queue.spark, str(checkpoint), same)
    with pytest.raises(BadSettings, match=rf"batch 10 is open.*Schema {first.state_schema}\."):
        streams.bind(queue.spark, str(checkpoint), second)
    streams.bind(queue.spark, str(checkpoint), replace(second, delivery="atLeastOnce"))
    (checkpoint / "commits" / "10").write_text("v1\n", encoding="utf-8")
    streams.bind(queue.spark, str(checkpoint), second)

    noted = checkpoints.text(queue.spark, f"{checkpoint}/sqlqueue_target")
    assert noted.endswith(f", stateSchema {second.state_schema}")


def one_batch_a_run(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let a stream end after one micro-batch, as on Spark 4.1; gives the runs that were started."""
    runs: list[int] = []

    def once(writer: Any, settings: Any) -> Any:
        runs.append(len(runs))
        writer = writer.option("checkpointLocation", settings.checkpoint)
        return writer.trigger(once=True).start()

    monkeypatch.setattr(streams, "start", once)
    monkeypatch.setattr("sqlq_spark.spark_api.DRAINS_AT_ONCE", False)
    return runs


def test_a_stream_of_one_batch_is_started_until_nothing_is_left(
    queue: SparkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message once; purgeOnStartup purges before the first run only."""
    made, settings = received(queue, queue.folder, form="json")
    queue.fill(0, 5)
    more = {"maxMessagesPerTrigger": "100", "purgeOnStartup": "true"}
    settings = replace(settings, source=settings.source | more)
    runs = one_batch_a_run(monkeypatch)
    totals = made.run(queue.spark, settings)
    assert (totals["messages"], len(runs)) == (0, 1)

    queue.fill(0, 250)
    settings = replace(settings, source={**settings.source, "purgeOnStartup": "false"})
    totals = made.run(queue.spark, settings)

    assert (totals["messages"], totals["batches"], len(runs)) == (250, 3, 4)
    assert numbers(queue.folder / "table") == [*range(250)]


def test_a_queue_that_is_filled_without_end_does_not_keep_a_job(
    queue: SparkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends when it received the messages that waited after its first run."""
    made, settings = received(queue, queue.folder, form="json")
    settings = replace(settings, source=settings.source | {"maxMessagesPerTrigger": "100"})
    runs = one_batch_a_run(monkeypatch)
    watch = streams.watch

    def filling(*args: Any) -> streams.Tally:
        queue.fill(100 * len(runs), 100 * len(runs) + 100)  # as much as a run receives
        return watch(*args)

    queue.fill(0, 100)
    monkeypatch.setattr(streams, "watch", filling)
    totals = made.run(queue.spark, settings)

    assert (totals["messages"], len(runs)) == (200, 2)
    assert queue.count() == 100


def test_a_job_receives_with_the_clusters_tasks(queue: SparkQueue) -> None:
    """Unless the settings have a number; replies to one instance need one task."""
    read = {"url": queue.place.url, "queue": queue.name}
    own = {**read, "maxConcurrency": "7"}

    assert spread(queue.spark, read) == {**read, "maxConcurrency": "2"}  # local[2]
    assert spread(queue.spark, {**read, "minConcurrency": "3"})["maxConcurrency"] == "3"
    assert spread(queue.spark, own) == own
    instance = {"url": queue.place.url, "queues": 'orders, "orders.one"'}
    assert spread(queue.spark, instance) == instance


@pytest.mark.parametrize(("form", "split"), [("json", False), ("map", True)])
def test_retries_are_acknowledged_after_the_write(
    queue: SparkQueue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    form: str,
    *,
    split: bool,
) -> None:
    """Each to the queue in its header; one that cannot be sent is logged, and fails nothing."""
    control, locked = queue.another("ServiceControl"), queue.another("locked")
    addresses = [control.name, control.name, queue.beside("gone").name, locked.name, '"a', ""]
    made, settings = received(queue, queue.folder, form=form, split=split)
    for number, address in enumerate(addresses):
        retry = {"UniqueMessageId": f"u-{number}", "AcknowledgementQueue": address}
        headers = {f"ServiceControl.Retry.{name}": text for name, text in retry.items()}
        queue.put(json.dumps(headers), b'{"number":%d}' % number)

    with monkeypatch.context() as patched:
        patched.delattr(table_writer, "acknowledge")
        with pytest.raises(Exception, match="acknowledge"):
            made.run(queue.spark, settings)
    with queue.dba.closed(locked.address):
        totals = made.run(queue.spark, settings)
    queue.put("{}", b'{"number":6}')
    made.run(queue.spark, replace(settings, acknowledge_retries=False))

    table = queue.folder / "table"
    assert totals["messages"] == 6
    assert numbers(table / "other" if split else table) == [*range(7)]
    answers = [headers for headers, body in control.rows() if body == b""]
    found = [str(headers["ServiceControl.Retry.UniqueMessageId"]) for headers in answers]
    assert sorted(found) == ["u-0", "u-1"]
    assert control.count() == 2
    assert {headers["NServiceBus.ControlMessage"] for headers in answers} == {"True"}
    assert [locked.count(), queue.count()] == [0, 0]
    said = [each.getMessage() for each in caplog.records if "acknowledged" in each.getMessage()]
    assert [reason for reason in ("gone", "locked", '"a') if reason not in "".join(said)] == []
    assert said[-1] == "3 of 5 retries were not acknowledged"
    if not split:  # one name of all writes, so that a checkpoint can be used with both sinks
        assert writers(table) == [(0, True), (1, True)]


def writers(table: Path) -> list[tuple[int, bool]]:
    """The batches that a Delta table has, and whether the name of the write is the query's id."""
    query = json.loads((table.parent / "checkpoint" / "metadata").read_text())["id"]
    lines = chain(*(log.read_text().splitlines() for log in table.glob("_delta_log/*.json")))
    found = [each["txn"] for each in map(json.loads, lines) if "txn" in each]
    return sorted((each["version"], each["appId"] == query) for each in found)
