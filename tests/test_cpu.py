"""
The CPU time of the functions through which each message goes, compared with the recorded one.

A time says nothing on another machine. So each function is compared with fixed work of the same
kind, which is done in turns with it, in the same process: the figure is the ratio of their CPU
times, the best of five. `golden/cpu.json` holds the recorded ratios. A function fails if its ratio
is MOST times the recorded one. To record them again, on a quiet machine:

    python tests/test_cpu.py > tests/golden/cpu.json
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from bench import messages

from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.receive import pace
from sqlq_spark.send.sender import Sender
from sqlq_spark.wire import header_columns, payload
from sqlq_spark.wire.rows import QUEUE_ROW, random_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RECORDED = Path(__file__).parent / "golden" / "cpu.json"
MOST = 1.6  # a ratio fails from this multiple of the recorded one on
ROUNDS = 5
ROWS = 10_000  # as many as Spark gets in a batch
SENT = datetime(2026, 6, 30, 17, 5, 9, 123456, UTC)
READ = pa.schema([("id", pa.string()), ("headers", pa.string()), ("body", pa.binary())])
MAP = pa.map_(pa.string(), pa.string())


@dataclass(frozen=True)
class Hot:
    """A function and the fixed work with which it is compared."""

    run: Callable[[], object]
    yardstick: Callable[[], object]


# ---------------------------------------------------------------- what goes through the functions


@cache
def rows() -> pa.Table:
    """Return rows of a queue, as a task takes them."""
    orders = messages.orders(0, ROWS)
    ids = pa.array([each.tobytes() for each in random_ids(ROWS, seed=bytes(16))], pa.binary(16))
    expires = pa.nulls(ROWS, pa.timestamp("us"))
    seqs = pa.array(range(ROWS), pa.int64())
    return pa.table([ids, expires, orders["headers"], orders["body"], seqs], schema=QUEUE_ROW)


@cache
def batch() -> pa.RecordBatch:
    """Return the same rows as one batch."""
    (only,) = rows().combine_chunks().to_batches()
    return only


@cache
def texts() -> list[bytes]:
    """Return the header texts of the rows."""
    return [text.encode() for text in batch().column("headers").to_pylist()]


@cache
def frame() -> pa.RecordBatch:
    """Return rows that a user sends: a map of headers, and a body."""
    headers = header_columns.Headers(batch().column("headers")).map(MAP)
    return pa.RecordBatch.from_arrays([headers, batch().column("body")], ["headers", "body"])


@cache
def packed() -> bytes:
    """Return the payload of the rows."""
    stored: bytes = payload.pack(rows()).bytes.to_pybytes()
    return stored


# ---------------------------------------------------------------- the functions


def read_headers() -> None:
    """Parse the headers, look for poison, and read two of them, as a stream of json does."""
    headers = header_columns.Headers(batch().column("headers"))
    headers.poison()
    headers.text("NServiceBus.CorrelationId")
    headers.text("NServiceBus.ReplyToAddress")


def read_columns(schema: pa.Schema) -> None:
    """Make the columns that Spark reads."""
    header_columns.to_read_columns(batch(), schema, queue="orders")


def unpack() -> None:
    """Read a payload."""
    expected = payload.Expected(where="receipt", schema=QUEUE_ROW, most=1 << 30)
    payload.unpack(packed(), (), expected)


def send() -> None:
    """Make messages of a user's rows."""
    options = SinkOptions.parse({"url": "postgresql://host/shop", "queue": "orders"})
    sender = Sender(options=options, partition=0, seed=bytes(16), sent=SENT)
    for _ in sender.chunks([frame()]):
        pass


def plan() -> None:
    """Divide a batch among 64 queues, a hundred times."""
    queues = ", ".join(f"queue_{number}" for number in range(64))
    options = SourceOptions.parse({"url": "postgresql://host/shop", "queues": queues})
    backlogs = [pace.Backlog(100 * number, 1200.0, None) for number in range(64)]
    for turn in range(100):
        pace.quotas(backlogs, options, pace.Ramp(8), waited=0.0, turn=turn)


# ---------------------------------------------------------------- the yardsticks


def parse_texts() -> None:
    """Parse each header text with orjson, and read two headers of each."""
    for text in texts():
        headers = orjson.loads(text)
        headers.get("NServiceBus.CorrelationId")
        headers.get("NServiceBus.ReplyToAddress")


def write_ids() -> None:
    """Write the ids in hexadecimal digits, and copy them to places of texts, with numpy."""
    id_bytes = np.frombuffer(batch().column("id").buffers()[1], np.uint8)
    digits = np.frombuffer(id_bytes.tobytes().hex().encode(), np.uint8).reshape(-1, 32)
    characters = np.full((ROWS, 36), ord("-"), np.uint8)
    characters[:, np.arange(32)] = digits


def compress() -> None:
    """Compress the headers and the bodies with Arrow's zstd."""
    codec = pa.Codec("zstd", compression_level=-3)
    for name in ("headers", "body"):
        codec.compress(batch().column(name).buffers()[2])


@cache
def compressed() -> list[tuple[pa.Buffer, int]]:
    """Return the compressed headers and bodies, and how large they were."""
    codec = pa.Codec("zstd", compression_level=-3)
    buffers = [batch().column(name).buffers()[2] for name in ("headers", "body")]
    return [(codec.compress(buffer), buffer.size) for buffer in buffers]


def decompress() -> None:
    """Decompress the headers and the bodies with Arrow's zstd, and check that they are UTF-8."""
    codec = pa.Codec("zstd")
    for buffer, size in compressed():
        codec.decompress(buffer, size)
    batch().column("headers").validate(full=True)


def join_texts() -> None:
    """Escape the texts of all headers and join them, with Arrow."""
    column = frame().column("headers")
    escaped = pc.replace_substring(column.items, "\\", "\\\\")
    quoted = pc.binary_join_element_wise('"', column.keys, '":"', escaped, '"', "")
    pc.binary_join(pa.ListArray.from_arrays(column.offsets, quoted), ",")


def divide() -> None:
    """Sort and add small numbers, in plain Python."""
    for turn in range(100):
        weights = sorted((number * turn % 64, number) for number in range(64))
        total = 0
        for weight, number in weights:
            total += max(1, weight * 100 // (number + 1))


HOT: Mapping[str, Hot] = {
    "headers": Hot(read_headers, parse_texts),
    "to_read_columns as json": Hot(lambda: read_columns(READ), write_ids),
    "to_read_columns as map": Hot(
        lambda: read_columns(pa.schema([("id", pa.string()), ("headers", MAP)])), parse_texts
    ),
    "pack": Hot(lambda: payload.pack(rows()), compress),
    "unpack": Hot(unpack, decompress),
    "frame and sender": Hot(send, join_texts),
    "pace": Hot(plan, divide),
}


# ---------------------------------------------------------------- the measurement


def cpu_time(work: Callable[[], object]) -> float:
    """Return the CPU seconds of all threads, of enough repetitions for the clock."""
    repetitions = 0
    started = time.process_time()
    while (elapsed := time.process_time() - started) < 0.02 or not repetitions:
        work()
        repetitions += 1
    return elapsed / repetitions


def ratio(hot: Hot) -> float:
    """Return the CPU time of a function in that of its yardstick: the best of each."""
    hot.run()
    hot.yardstick()
    rounds = [(cpu_time(hot.run), cpu_time(hot.yardstick)) for _ in range(ROUNDS)]
    return min(run for run, _ in rounds) / min(yardstick for _, yardstick in rounds)


def check(name: str) -> None:
    """Compare a function's ratio with the recorded one."""
    recorded = json.loads(RECORDED.read_text("utf-8"))[name]
    found = ratio(HOT[name])
    assert found < MOST * recorded, f"{name} takes {found / recorded:.2f} of its recorded CPU time"


@pytest.mark.parametrize("name", HOT)
def test_a_hot_function_takes_no_more_cpu_time_than_recorded(name: str) -> None:
    """It takes less than MOST times its recorded share of the yardstick's time."""
    check(name)


def test_headers_that_are_parsed_one_by_one_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no row is read in columns, the gate fails."""
    monkeypatch.setattr("sqlq_spark.wire.flat_json.MOST_MARKS", 0)

    with pytest.raises(AssertionError, match="headers takes"):
        check("headers")


def test_a_slower_compression_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """If payloads are compressed at zstd's default level, the gate fails."""
    monkeypatch.setattr(payload, "ZSTD", pa.Codec("zstd", compression_level=3))

    with pytest.raises(AssertionError, match="pack takes"):
        check("pack")


if __name__ == "__main__":
    figures = {name: round(ratio(hot), 3) for name, hot in HOT.items()}
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
