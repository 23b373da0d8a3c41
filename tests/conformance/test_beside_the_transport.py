"""An endpoint beside our open receive or dispatch: neither makes the other wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sqlq_spark.database import schema
from sqlq_spark.send import dispatch
from sqlq_spark.send.insert import Inserts

from .test_send import chunk, stage
from .transport import Busy

if TYPE_CHECKING:
    from .conftest import Bench


def test_no_statement_of_an_endpoint_waits_for_our_open_receive(bench: Bench) -> None:
    """It passes over what we hold; only the purge of everything waits, as for any consumer."""
    delayed = schema.delayed_of(bench.queue)
    bench.dotnet.create_delayed(delayed)
    for at in range(10):
        bench.dotnet.send(bench.queue, body=b"%d" % at, lives=-1 if at in {2, 7} else None)
    bench.dotnet.store(delayed, body=b"due", delay=-1)
    hasty = bench.dotnet.consumer(patience=0.3)

    with bench.running(bench.task(bench.new_stream(), messages=6), "ours") as rows:
        assert rows.num_rows == 5
        assert hasty.peek(bench.queue) == 4
        assert hasty.purge_expired(bench.queue) == 1
        assert hasty.move(delayed, bench.queue) == 1
        hasty.send(bench.queue, body=b"sent")
        got = [hasty.receive(bench.queue) for _ in range(6)]
        with pytest.raises(Busy):
            hasty.purge(bench.queue)

    assert [each and each.body for each in got] == [b"6", b"8", b"9", b"due", b"sent", None]
    assert bench.seqs() == []


def test_no_statement_of_an_endpoint_waits_for_our_open_dispatch(bench: Bench) -> None:
    """What we are about to send is not there yet; what was there is served meanwhile."""
    bench.dotnet.send(bench.queue, body=b"before")
    staged, connection = stage(bench, chunk(b"ours")), bench.open("ours")
    hasty = bench.dotnet.consumer(patience=0.3)

    connection.rows("begin")
    dispatch.lock_exclusive(connection, "sink")
    inserts = Inserts(connection, bench.sink())
    for each in dispatch.read_chunks(connection, [staged]):
        inserts.insert(each)
    hasty.send(bench.queue, body=b"after")
    assert hasty.peek(bench.queue) >= 2
    during = [hasty.receive(bench.queue) for _ in range(3)]
    hasty.purge_expired(bench.queue)
    assert hasty.purge(bench.queue) == 0
    connection.rows("commit")

    assert [each and each.body for each in during] == [b"before", b"after", None]
    assert bench.bodies() == [b"ours"]
