"""A stream of Spark and .NET endpoints on the same queues: every message is received once."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from waiting import until

if TYPE_CHECKING:
    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark

HALF = 60
HEADERS = {
    "NServiceBus.MessageIntent": "Send",
    "NServiceBus.ConversationId": "conversation",
    "NServiceBus.CorrelationId": "correlation",
    "NServiceBus.ReplyToAddress": '"public"."web"',
    "NServiceBus.OriginatingEndpoint": "web",
    "NServiceBus.TimeSent": "2026-06-30 17:05:09:123456 Z",
}


def test_a_stream_between_endpoints_passes_every_message_on_once(queue: SparkQueue) -> None:
    """One sends, one competes with the stream, and one receives from the stream's sink."""
    out = queue.another("out")
    rival = queue.dotnet.consumer()
    stream = queue.stream(peekDelay="100ms", maxMessagesPerTrigger=60).load()
    writer = (
        stream.drop("queue")
        .writeStream.format("sqlqueue")
        .options(**out.options, transactionMode="sendsAtomicWithReceive")
        .option("checkpointLocation", str(queue.folder / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
    )
    headers = [HEADERS | {"NServiceBus.MessageId": f"m-{at}"} for at in range(2 * HALF)]

    def send(at: int) -> None:
        queue.dotnet.send(queue.address, json.dumps(headers[at]), b"%d" % at)

    def compete() -> None:
        for at in range(HALF, 2 * HALF):
            send(at)
            if at % 2:
                taken.append(rival.receive(queue.address))

    for at in range(HALF):
        send(at)
    taken = [rival.receive(queue.address) for _ in range(HALF // 4)]
    with ThreadPoolExecutor(1) as beside:
        query = writer.start()
        try:
            until(out.count, told=query.exception)
            beside.submit(compete).result()
            until(lambda: [queue.count(), queue.state("receipt")], [0, 0], told=query.exception)
        finally:
            query.stop()

    passed = out.rows()
    assert query.exception() is None
    bodies = [each.body for each in taken if each] + [body for _, body in passed]
    assert Counter(bodies) == Counter(b"%d" % at for at in range(2 * HALF))
    assert [each for each, _ in passed] == [headers[int(body)] for _, body in passed]
    assert len(passed) >= HALF // 2
    assert queue.state("staging") == 0
