"""A stream of Spark and .NET endpoints on the same queues: every message is received once."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from conformance import transport
from conformance.endpoint import Endpoint, Incoming
from waiting import until

if TYPE_CHECKING:
    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark

HALF = 60


def drained(endpoint: Endpoint) -> list[Incoming]:
    """Let an endpoint handle all that waits."""
    found: list[Incoming] = []
    while endpoint.receive(found.append):
        pass
    return found


def test_a_stream_between_endpoints_passes_every_message_on_once(queue: SparkQueue) -> None:
    """One sends, one competes with the stream, and one receives from the stream's sink."""
    out = queue.another("out")
    database = transport.of(queue.dotnet.dialect, queue.place.url, queue.place.schema)
    stream = queue.stream(peekDelay="100ms", maxMessagesPerTrigger=60).load()
    writer = (
        stream.drop("queue")
        .writeStream.format("sqlqueue")
        .options(**out.options, transactionMode="sendsAtomicWithReceive")
        .option("checkpointLocation", str(queue.folder / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
    )

    with (
        Endpoint(database, "web", older=True) as web,
        Endpoint(database, queue.table) as rival,
        Endpoint(database, out.table) as billing,
        ThreadPoolExecutor(1) as beside,
    ):
        rival.install()
        sent = [web.send(queue.name, b"%d" % at) for at in range(HALF)]
        taken: list[Incoming] = []
        while len(taken) < HALF // 4:
            assert rival.receive(taken.append)

        def compete() -> None:
            for at in range(HALF, 2 * HALF):
                sent.append(web.send(queue.name, b"%d" % at))
                if at % 2:
                    rival.receive(taken.append)

        query = writer.start()
        try:
            until(out.count, told=query.exception)
            beside.submit(compete).result()
            until(lambda: [queue.count(), queue.state("receipt")], [0, 0], told=query.exception)
        finally:
            query.stop()
        passed = drained(billing)
        failed = rival.return_to_source()

    assert query.exception() is None
    assert failed is None
    assert Counter(each.message_id for each in taken + passed) == Counter(
        each["NServiceBus.MessageId"] for each in sent
    )
    given = {each["NServiceBus.MessageId"]: each for each in sent}
    assert [each.headers for each in passed] == [given[each.message_id] for each in passed]
    assert len(passed) >= HALF // 2
    assert queue.state("staging") == 0
