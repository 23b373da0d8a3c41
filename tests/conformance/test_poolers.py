"""Behind a pooler that lends a session for a transaction: no statement is torn apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from proxy import relayed
from servers import only

from sqlq_spark.admin import checks, watch
from sqlq_spark.database import schema
from sqlq_spark.errors import StateNotInstalled
from sqlq_spark.send import subscriptions
from sqlq_spark.wire.address import QueueAddress

from .conftest import TIMEOUT
from .test_send import chunk, dispatch, stage

if TYPE_CHECKING:
    from .conftest import Bench

POOLED = only("postgresql", "poolers of PostgreSQL lend sessions for a transaction")


@POOLED
def test_between_transactions_only_whole_statements_are_sent(bench: Bench) -> None:
    """To receive, send, look, subscribe and install; what is prepared might be gone by then."""
    timeout, topics = TIMEOUT, QueueAddress("SubscriptionRouting", bench.dotnet.schema)
    bench.dotnet.send_many(bench.queue, [b"1", b"2", b"3"])

    with relayed(bench.dotnet.url) as (url, relay):
        pooled = bench.open("pooled", url=url)
        schema.install(pooled, timeout=timeout)
        schema.create_queue(pooled, bench.queue, timeout=timeout, body_string=True)
        schema.create_delayed(pooled, bench.queue, timeout=timeout)
        names = {"topics": ["Shop.Placed"], "endpoint": "Lake", "queue": bench.queue}
        subscriptions.subscribe(pooled, topics, timeout=timeout, **names)  # type: ignore[arg-type]
        got = bench.drain(bench.loop(url=url, delayedDelivery="true"))
        sent = dispatch(bench, stage(bench, chunk(b"4"), batch=1), connection=pooled)
        found = checks.run_all_checks(pooled, [bench.queue])
        look = watch.look(pooled, [bench.printed], bench.source(url=url))

    assert (got, sent, look.queues[0].depth.messages) == ([b"1", b"2", b"3"], 1, 1)
    problems = [each.name for each in found if each.is_problem]
    assert problems == []
    assert relay.torn == []
    assert relay.whole > 20


@POOLED
def test_a_statement_that_fails_outside_a_transaction_leaves_none_open(bench: Bench) -> None:
    """The pooler would keep its session for us, and the next statement find it aborted."""
    with relayed(bench.dotnet.url) as (url, relay):
        pooled = bench.open("pooled", url=url, stateSchema="nowhere")
        with pytest.raises(StateNotInstalled):
            pooled.rows("version")
        found = pooled.rows("clock")

    assert len(found) == 1
    assert relay.torn == []
