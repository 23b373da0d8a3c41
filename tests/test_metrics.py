"""The listener of queries: what it exports of Spark's events, and how."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from sqlq_spark.metrics import QueueMetrics, read_report, to_opentelemetry, to_textfile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

LAST = {"batch": 3, "emptyTasks": 1, "diverted": 2, "expired": 0, "forwarded": 0}
BOTH = {"query": "orders", "database": "shop", "queue": "Shop.Orders"}


def report(**more: object) -> dict[str, Any]:
    """What a source of one queue reports."""
    names = {"queue": '"public"."Shop.Orders"', "database": "shop", "name": "Shop.Orders"}
    return {**names, "backlog": 7, "oldestWaited": 2.5, "lastBatch": LAST, **more}


def progress(*reports: dict[str, Any], name: str | None = "orders") -> SimpleNamespace:
    """An event of a batch whose sources report this, and of a source of another kind."""
    sources = [SimpleNamespace(latestOffset=json.dumps(each)) for each in reports]
    sources.append(SimpleNamespace(latestOffset="12"))
    found = {"id": "q", "name": name, "batchDuration": 1500, "numInputRows": 4}
    return SimpleNamespace(progress=SimpleNamespace(sources=sources, **found))


def idle() -> SimpleNamespace:
    return SimpleNamespace(id="q")


class File:
    """Reads what a listener has written for Prometheus."""

    def __init__(self, path: Path) -> None:
        self.path = path / "orders.prom"
        self.listener = QueueMetrics(to_textfile(str(self.path)))

    def samples(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        for family in text_string_to_metric_families(self.path.read_text("utf-8")):
            for sample in family.samples:
                yield sample.name.removeprefix("sqlqueue_query_"), sample.labels, sample.value

    def value(self, name: str, **labels: str) -> float:
        wanted = {"query": "orders", **labels}
        [found] = [each for each in self.samples() if each[:2] == (name, wanted)]
        return found[2]


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path)


def test_gauges_fall_to_zero_when_a_query_idles(file: File) -> None:
    """Spark makes no batch of an empty queue, so no other event could lower them."""
    file.listener.onQueryProgress(progress(report()))
    assert file.value("backlog", **BOTH) == 7
    assert file.value("oldest_seconds", **BOTH) == 2.5
    assert file.value("batch_seconds") == 1.5
    assert file.value("empty_tasks") == 1

    file.listener.onQueryIdle(idle())

    assert file.value("backlog", **BOTH) == 0
    assert file.value("oldest_seconds", **BOTH) == 0
    assert file.value("batch_seconds") == 0
    assert file.value("empty_tasks") == 0


def test_a_queue_that_is_not_reported_any_more_is_empty(file: File) -> None:
    """With several queues, a report lists only those in which messages wait."""
    other = {"queue": '"x"."B"', "name": "x.B", "backlog": 1, "oldestWaited": None}
    file.listener.onQueryProgress(progress(report(queues=[report(), other])))
    file.listener.onQueryProgress(progress(report(queues=[other])))

    assert file.value("backlog", **BOTH) == 0
    assert file.value("backlog", query="orders", database="shop", queue="x.B") == 1


def test_two_sources_of_a_query_leave_each_other_alone(file: File) -> None:
    """Each has its own queues, also in one database."""
    other = report(queue='"public"."B", "public"."C"', queues=[])
    file.listener.onQueryProgress(progress(report(), other))

    assert file.value("backlog", **BOTH) == 7


def test_a_batch_is_counted_once(file: File) -> None:
    """Two events may report the same last batch."""
    for batch in (3, 3, 4):
        last = {**LAST, "batch": batch}
        file.listener.onQueryProgress(progress(report(lastBatch=last)))

    assert file.value("diverted_total") == 4
    assert file.value("rows_total") == 12


@pytest.mark.parametrize(("exception", "failed"), [(None, 0), ("java.lang.Error", 1)])
def test_the_end_of_a_query_is_exported(file: File, exception: str | None, failed: int) -> None:
    """`running` falls, and `failed` says whether an error ended it."""
    file.listener.onQueryStarted(SimpleNamespace(id="q", name="orders"))
    assert (file.value("running"), file.value("failed")) == (1, 0)

    file.listener.onQueryTerminated(SimpleNamespace(id="q", exception=exception))

    assert (file.value("running"), file.value("failed")) == (0, failed)


def test_a_query_without_a_name_has_its_id(file: File) -> None:
    """A line break in a queue's name begins no new line of the file."""
    file.listener.onQueryProgress(progress(report(name="a\nb"), name=None))

    [found] = [labels for name, labels, _ in file.samples() if name == "backlog"]
    assert found == {"query": "q", "database": "shop", "queue": "a·b"}


@pytest.mark.parametrize("text", [None, "", "12", '{"topic":{"0":3}}'])
def test_other_sources_are_left_alone(text: str | None) -> None:
    """Their offsets have other keys, or are no objects."""
    assert read_report(text) is None


def test_opentelemetry_gets_the_same() -> None:
    """Names have dots, and the meter's reader collects the values."""
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader]).get_meter("test")
    listener = QueueMetrics(to_opentelemetry(meter))
    listener.onQueryProgress(progress(report()))
    listener.onQueryIdle(idle())

    collected = reader.get_metrics_data()
    assert collected is not None
    data = json.loads(collected.to_json())
    [scope] = data["resource_metrics"][0]["scope_metrics"]
    found = {
        (metric["name"], tuple(sorted(point["attributes"].items()))): point["value"]
        for metric in scope["metrics"]
        for point in metric["data"]["data_points"]
    }
    query = (("query", "orders"),)
    assert found["sqlqueue.query.backlog", tuple(sorted(BOTH.items()))] == 0
    assert found["sqlqueue.query.diverted", query] == 2
    assert found["sqlqueue.query.rows", query] == 4
