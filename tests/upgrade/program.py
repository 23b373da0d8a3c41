"""
Jobs that receive or relay, by whichever release of the package PYTHONPATH names.

    python program.py '[{"kind": "receive", "options": {…}, "folder": "…", "stop": 3}, …]'

`receive` writes the ids of each batch into a file with the batch's number, so that a batch that
runs again replaces its file. `relay` sends what it receives into another queue. Both run until what
waits is received, or, with `interval`, until they are killed. With `stop`, a batch of that number
touches the file `reached` and waits to be killed before it writes. `write` sends a frame by a name.
All streams of the list run at the same time, and the failure of one does not end the others.

It uses only what all releases have.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import sqlq_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

SETTINGS: dict[str, Any] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    "spark.ui.enabled": "false",
}


def receive(frame: DataFrame, job: dict[str, Any]) -> StreamingQuery:
    """Write the ids of each batch into a file of its own."""
    folder = Path(job["folder"])
    landed = folder / "landed"
    landed.mkdir(parents=True, exist_ok=True)

    def write(batch: DataFrame, number: int) -> None:
        ids = sorted(
            row[0] for row in batch.selectExpr("headers['NServiceBus.MessageId']").collect()
        )
        if number == job.get("stop"):
            (folder / "reached").touch()
            time.sleep(600)
        place = landed / f"{number}.json"
        place.with_suffix(".new").write_text(json.dumps(ids))
        place.with_suffix(".new").replace(place)

    return start(frame.writeStream.foreachBatch(write), job)


def relay(frame: DataFrame, job: dict[str, Any]) -> StreamingQuery:
    """Send each message on, into the queue of the option `queue` of `sink`."""
    sent = frame.select("headers", "body")
    return start(sent.writeStream.format("sqlqueue").options(**job["sink"]), job)


def write(spark: SparkSession, job: dict[str, Any]) -> None:
    """Write five messages by the name `nightly`, as its version 7."""
    names = [(json.dumps({"NServiceBus.MessageId": f"nightly-{number}"}),) for number in range(5)]
    frame = spark.createDataFrame(names, "headers string")
    headers = "from_json(headers, 'map<string,string>') AS headers"
    sent = frame.selectExpr(headers, "CAST('{}' AS binary) AS body")
    options = {**job["sink"], "txnAppId": "nightly", "txnVersion": "7"}
    sent.write.format("sqlqueue").mode("append").options(**options).save()


def start(writer: Any, job: dict[str, Any]) -> StreamingQuery:
    """Start the query."""
    interval = job.get("interval")
    trigger = {"processingTime": interval} if interval else {"availableNow": True}
    query: StreamingQuery = (
        writer.option("checkpointLocation", f"{job['folder']}/checkpoint")
        .trigger(**trigger)
        .start()
    )
    return query


def main() -> None:
    """Run the jobs of the first argument; exit with 1 if one failed."""
    jobs = json.loads(sys.argv[1])
    spark = SparkSession.builder.master("local[2]").config(map=SETTINGS).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    # Spark looks for formats once in a JVM. If that fails, on a busy machine, it never looks again.
    sqlq_spark.register(spark)
    kinds = {"receive": receive, "relay": relay}
    queries = []
    for job in jobs:
        Path(job["folder"]).mkdir(parents=True, exist_ok=True)
        if job["kind"] == "write":
            write(spark, job)
            continue
        frame = spark.readStream.format("sqlqueue").options(**job["options"]).load()
        queries.append(kinds[job["kind"]](frame, job))
    has_failed = False
    for query in queries:
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            has_failed = True
            print(error, file=sys.stderr)  # noqa: T201 - a program's output
    sys.exit(has_failed)


if __name__ == "__main__":
    main()
