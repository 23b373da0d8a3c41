"""
A listener that exports what the progress of streaming queries says of queues, also while they idle.

    from sqlq_spark.metrics import QueueMetrics, to_textfile

    spark.streams.addListener(QueueMetrics(to_textfile("/var/lib/node_exporter/orders.prom")))

The extra `prometheus` or `opentelemetry` installs the client library. Any object with the methods
of `Export` can be used instead.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.streaming.listener import StreamingQueryListener

from sqlq_spark.errors import MissingPackage, clean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.metrics import Meter
    from prometheus_client import CollectorRegistry

Labels = dict[str, str]
Source = tuple[str, str]
Queue = tuple[str, str]  # database and name

# metric → what it is; in Prometheus each begins with `sqlqueue_query_`
GAUGES = {
    "backlog": "Messages that wait in a queue.",
    "oldest_seconds": "Age of the message with the lowest seq, by its TimeSent.",
    "batch_seconds": "How long the last batch took.",
    "empty_tasks": "Tasks of the last acknowledged batch that received nothing.",
    "seen_seconds": "Unix time of the last event of the query.",
    "running": "1 while the query runs, else 0.",
    "failed": "1 after the query has ended with an error, else 0.",
}
COUNTERS = {
    "rows": "Rows of batches, of all sources.",
    "diverted": "Messages that receives moved to the error queue.",
    "expired": "Expired messages that receives dropped.",
    "forwarded": "Delayed messages that receives passed on to other queues.",
}
PUSH_TIMEOUT = 5.0  # seconds: Spark's events wait for a listener


class Export(Protocol):
    """Where metrics go. The same metric always has the same labels."""

    def gauge(self, name: str, value: float, labels: Labels) -> None:
        """Set one of GAUGES."""

    def count(self, name: str, value: float, labels: Labels) -> None:
        """Add to one of COUNTERS."""

    def flush(self) -> None:
        """Publish the values. This is called after each event of Spark."""


class QueueMetrics(StreamingQueryListener):
    """
    Exports the metrics of all queries of a session that read queues.

    The label `query` is the query's name, or its id if it has no name. Metrics of a queue also have
    `database` and `queue`, which are plain names.
    """

    def __init__(self, export: Export) -> None:
        """Create the listener of one session."""
        self.export = export
        self._names: dict[str, str] = {}  # id of a query → its label
        # A source is the id of its query and its queues.
        self._queues: dict[Source, set[Queue]] = {}  # those that were seen
        self._counted: dict[Source, int] = {}  # the last batch whose counts were added

    def onQueryStarted(self, event: Any) -> None:  # noqa: ANN401 - classic and Connect differ
        """Export that the query runs."""
        query = str(event.id)
        self._names[query] = event.name or query
        self._set(query, "running", 1)
        self._set(query, "failed", 0)
        self._note(query)

    def onQueryProgress(self, event: Any) -> None:  # noqa: ANN401
        """Export the figures of a batch, and what waits behind it."""
        progress = event.progress
        query = str(progress.id)
        self._names[query] = progress.name or query
        self._set(query, "batch_seconds", progress.batchDuration / 1000)
        self.export.count("rows", progress.numInputRows, self._labels(query))
        for source in progress.sources:
            report = read_report(source.latestOffset)
            if report is not None:
                self._export_source(query, report)
        self._note(query)

    def onQueryIdle(self, event: Any) -> None:  # noqa: ANN401
        """Let the gauges of the query's queues fall to zero, because it has nothing to receive."""
        query = str(event.id)
        for name in ("batch_seconds", "empty_tasks"):
            self._set(query, name, 0)
        for source, queues in self._queues.items():
            if source[0] == query:
                self._export_queues(query, queues, {})
        self._note(query)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: ANN401
        """Export that the query has ended, and whether by an error."""
        query = str(event.id)
        self._set(query, "running", 0)
        self._set(query, "failed", 0 if event.exception is None else 1)
        self._note(query)

    def _export_source(self, query: str, report: Mapping[str, Any]) -> None:
        source = query, report["queue"]
        database = clean(report["database"])
        waiting = {
            (database, clean(queue["name"])): queue for queue in report.get("queues", [report])
        }
        known = self._queues.setdefault(source, set())
        known.update(waiting)
        self._export_queues(query, known, waiting)  # nothing waits in a queue that is not reported
        last = report.get("lastBatch", {"batch": 0})
        if last["batch"] > self._counted.get(source, 0):
            self._counted[source] = last["batch"]
            self._set(query, "empty_tasks", last["emptyTasks"])
            for name in ("diverted", "expired", "forwarded"):
                self.export.count(name, last[name], self._labels(query))

    def _export_queues(
        self,
        query: str,
        queues: set[Queue],
        waiting: Mapping[Queue, Mapping[str, Any]],
    ) -> None:
        for key in sorted(queues):
            found = waiting.get(key, {})
            labels = self._labels(query) | {"database": key[0], "queue": key[1]}
            self.export.gauge("backlog", found.get("backlog", 0), labels)
            self.export.gauge("oldest_seconds", found.get("oldestWaited") or 0.0, labels)

    def _set(self, query: str, name: str, value: float) -> None:
        self.export.gauge(name, value, self._labels(query))

    def _labels(self, query: str) -> Labels:
        return {"query": clean(self._names.get(query, query))}

    def _note(self, query: str) -> None:
        self._set(query, "seen_seconds", time.time())
        self.export.flush()


def read_report(text: str | None) -> dict[str, Any] | None:
    """Read what a source of this package reports. Return None for any other source."""
    if not text or not text.startswith("{"):
        return None
    found: dict[str, Any] = json.loads(text)
    return found if {"queue", "backlog", "database"} <= found.keys() else None


# ---------------------------------------------------------------- Prometheus


class PrometheusExport:
    """Holds the metrics in a registry of their own, and publishes it after each event."""

    def __init__(self, publish: Callable[[CollectorRegistry], object]) -> None:
        """Create the export. `publish` gets the registry after each event."""
        try:
            import prometheus_client  # noqa: PLC0415 - an extra
        except ImportError:
            raise MissingPackage(package="prometheus-client", extra="prometheus") from None
        self.registry = prometheus_client.CollectorRegistry()
        self._client = prometheus_client
        self._publish = publish
        self._metrics: dict[str, Any] = {}

    def gauge(self, name: str, value: float, labels: Labels) -> None:
        """Set a gauge `sqlqueue_query_…`."""
        self._metric(name, self._client.Gauge, GAUGES[name], labels).set(value)

    def count(self, name: str, value: float, labels: Labels) -> None:
        """Add to a counter `sqlqueue_query_…_total`."""
        self._metric(name, self._client.Counter, COUNTERS[name], labels).inc(value)

    def flush(self) -> None:
        """Publish all metrics."""
        self._publish(self.registry)

    def _metric(self, name: str, kind: Any, text: str, labels: Labels) -> Any:  # noqa: ANN401
        if name not in self._metrics:
            self._metrics[name] = kind(
                f"sqlqueue_query_{name}", text, [*labels], registry=self.registry
            )
        return self._metrics[name].labels(**labels)


def to_textfile(path: str) -> PrometheusExport:
    """
    Export to a file for the textfile collector of Prometheus's node exporter.

    The file is replaced after each event. Its name must end with `.prom`. Needs the extra
    `prometheus`.
    """

    def write(registry: CollectorRegistry) -> None:
        from prometheus_client import write_to_textfile  # noqa: PLC0415 - an extra

        write_to_textfile(path, registry)

    return PrometheusExport(write)


def to_pushgateway(address: str, job: str) -> PrometheusExport:
    """
    Export to a pushgateway of Prometheus, as `host:9091`, under the label `job`.

    Give each application its own `job`, because a push replaces all metrics of its job. Needs the
    extra `prometheus`.
    """

    def push(registry: CollectorRegistry) -> None:
        from prometheus_client import push_to_gateway  # noqa: PLC0415 - an extra

        push_to_gateway(address, job=job, registry=registry, timeout=PUSH_TIMEOUT)

    return PrometheusExport(push)


# ---------------------------------------------------------------- OpenTelemetry


class OpenTelemetryExport:
    """Hands the metrics to the instruments of a meter, as `sqlqueue.query.backlog`."""

    def __init__(self, meter: Meter) -> None:
        """Create the export. The meter's provider decides when and where metrics are sent."""
        self._meter = meter
        self._instruments: dict[str, Any] = {}

    def gauge(self, name: str, value: float, labels: Labels) -> None:
        """Set a gauge."""
        self._instrument(name, self._meter.create_gauge, GAUGES[name]).set(value, labels)

    def count(self, name: str, value: float, labels: Labels) -> None:
        """Add to a counter."""
        self._instrument(name, self._meter.create_counter, COUNTERS[name]).add(value, labels)

    def flush(self) -> None:
        """Do nothing: the meter's reader collects at its own times."""

    def _instrument(self, name: str, create: Callable[..., Any], text: str) -> Any:  # noqa: ANN401
        if name not in self._instruments:
            self._instruments[name] = create(f"sqlqueue.query.{name}", description=text)
        return self._instruments[name]


def to_opentelemetry(meter: Meter | None = None) -> OpenTelemetryExport:
    """
    Export to OpenTelemetry, by the given meter or by the one of the global provider.

    Needs the extra `opentelemetry`.
    """
    try:
        from opentelemetry import metrics  # noqa: PLC0415 - an extra
    except ImportError:
        raise MissingPackage(package="opentelemetry-sdk", extra="opentelemetry") from None
    return OpenTelemetryExport(meter or metrics.get_meter("sqlq_spark"))
