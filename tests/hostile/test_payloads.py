"""What someone wrote into a receipt or a staged chunk is refused, with an error that names it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from conformance.conftest import TIMEOUT
from conformance.test_send import chunk, dispatch, stage
from payloads import forged

from sqlq_spark.database import transaction
from sqlq_spark.errors import PayloadRefused
from sqlq_spark.receive.receipts import drop, return_
from sqlq_spark.wire.payload import pack

from .test_messages import bench  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from conformance.conftest import Bench
    from conftest import Place

ROW = [
    *(None, b"i" * 16, b"\x00", bytes(8), None, struct.pack("<2i", 0, 2), b"{}"),
    *(None, struct.pack("<2i", 0, 4000), b"abc", None, bytes(8)),
]
OUTSIDE = forged([(1, ROW)])
BOMB = forged([(1, [*ROW[:8], struct.pack("<2i", 0, 1 << 30), bytes(1 << 30), None, bytes(8)])])
ATTACKS = {
    "a body from outside of the payload": (OUTSIDE, 57),
    "200 kB that become 1 GB": (BOMB, 57),
    "200 kB that become 1 GB, as it says": (BOMB, (1 << 30) + 54),
    "no payload": (b"garbage", 57),
}


def forge(place: Place, payload: bytes, size: int) -> None:
    """Rewrite the receipt, as a login may that has the rights on the row."""
    text = f'UPDATE "{place.state}".receipt SET payload = %s, unpacked = %s, messages = 1'
    place.sql(text, payload, size)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_forged_receipt_is_refused_by_its_task_and_by_a_return(
    place: Place,
    bench: Bench,  # noqa: F811
    name: str,
) -> None:
    """Nothing of it is delivered or put into the queue, and it can be dropped."""
    bench.dotnet.send(bench.queue, body=b"true")
    stream = bench.new_stream()
    task = bench.task(stream, messages=10, max_message_bytes=1 << 20)
    bench.receive(task)
    forge(place, *ATTACKS[name])

    with pytest.raises(PayloadRefused, match=f"the payload of receipt {stream}/1/0 in the state"):
        bench.receive(task)
    if name != "200 kB that become 1 GB, as it says":  # an operator's bound is that of any row
        with pytest.raises(PayloadRefused), transaction(bench.desk, timeout=TIMEOUT):
            return_(bench.desk, (stream, 1, 0), bench.queue)
    with transaction(bench.desk, timeout=TIMEOUT):
        assert drop(bench.desk, (stream, 1, 0)) == 1
    assert bench.seqs() == []


@pytest.mark.parametrize("kind", ["garbage", "another good one"])
def test_a_rewritten_chunk_is_not_sent(
    place: Place,
    bench: Bench,  # noqa: F811
    kind: str,
) -> None:
    """Also where it is a good one: the driver knows from the task what that has staged."""
    staged = stage(bench, chunk(b"true"))
    other = pack(chunk(b"forged")).bytes.to_pybytes()
    text = f'UPDATE "{place.state}".staging SET payload = %s'
    place.sql(text, b"garbage" if kind == "garbage" else other)

    with pytest.raises(PayloadRefused, match="the payload of staged chunk 0 of attempt"):
        dispatch(bench, staged)
    assert bench.seqs() == []
