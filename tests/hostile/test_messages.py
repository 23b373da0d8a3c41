"""One bad message costs one message: size, bytes that are no text, and forgeries stop no stream."""

from __future__ import annotations

import struct
from base64 import b64decode
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pytest
from cli.database import own_database
from conformance.conftest import Bench, create_bench
from conformance.test_send import chunk, dispatch, stage
from payloads import forged

from sqlq_spark.admin import doctor, report, stats
from sqlq_spark.admin.messages import list_messages
from sqlq_spark.database import schema
from sqlq_spark.errors import PayloadRefused, SqlQueueError
from sqlq_spark.jobs import error_triage
from sqlq_spark.receive import browse, forward, poison
from sqlq_spark.wire import header_columns
from sqlq_spark.wire.headers import FORWARD_DESTINATION
from sqlq_spark.wire.payload import pack

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from conftest import Place

TYPED = (
    '{"NServiceBus.EnclosedMessageTypes":"Shop.Order",'
    '"NServiceBus.TimeSent":"2026-01-01 00:00:00:000000 Z"'
)
HUGE = "repeat('x', 270000000)"


def bench_at(place: Place) -> Bench:
    """Give a queue, an error queue and state tables in a place."""
    bench = create_bench(place.dotnet)
    schema.install(bench.connection)
    return bench


@pytest.fixture
def bench(place: Place) -> Iterator[Bench]:
    """Give a queue, an error queue and state tables."""
    made = bench_at(place)
    yield made
    made.close()


def put(place: Place, headers: str, body: str, table: str = "orders", late: str = "NULL") -> None:
    """Insert a message whose headers and body are made on the server."""
    place.sql(
        f'INSERT INTO "{place.schema}"."{table}" (id, expires, headers, body) '
        f"VALUES (gen_random_uuid(), {late}, {headers}, {body})"
    )


def drain(bench: Bench) -> list[bytes]:
    """Run a stream with an error queue until nothing waits."""
    return bench.drain(bench.stream_driver(errorQueue=bench.address("error")))


# ----- large headers ---------------------------------------------------------------------------


def test_headers_of_270_million_characters_stop_nothing(place: Place, bench: Bench) -> None:
    """They have 3 MB on disk. `stats`, `doctor` and a stream's look read their beginning."""
    put(place, f"'{TYPED},\"a\":\"' || {HUGE} || '\"}}'", "''", late="now() + interval '1 day'")
    put(place, f"'{TYPED}}}'", "'next'")
    options = bench.source_options(errorQueue=bench.address("error"))

    look = stats.take_look(bench.connection, [bench.queue_address], options)
    rows = [*report.read_headers(bench.connection, look.queues[0].depth, is_named=True)]
    findings = doctor.run_all_checks(bench.connection, [bench.queue])

    assert look.queues[0].oldest is not None
    assert len(rows) == 1
    assert [each.where for each in findings if each.name == "long_headers"] == [bench.queue_address]
    assert drain(bench) == [b"next"]
    assert place.sql(f'SELECT octet_length(headers) > 270000000 FROM "{place.schema}".error') == [
        (True,)
    ]


def test_a_header_name_that_spark_cannot_read_goes_to_the_error_queue(
    place: Place, bench: Bench
) -> None:
    """Otherwise a job could not send the message on, and would fail after each restart."""
    for name, body in (("n" * 50_001, "long"), ("n" * 50_000, "fine")):
        put(place, f"""'{TYPED},"{name}":"x"}}'""", f"'{body}'")

    assert drain(bench) == [b"fine"]
    assert place.sql(f'SELECT body FROM "{place.schema}".error') == [(b"long",)]


# `"10000":""`, so often that they have more than 1 MiB; 200 kB on disk
TINY = "(SELECT string_agg('\"' || n || '\":\"\"', ',') FROM generate_series(10000, 130000) AS n)"


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the bytes of each header text that a task parses in its transaction."""
    sizes: list[int] = []
    read, parse = header_columns.Headers, header_columns.parse_headers

    def headers(texts: pa.Array) -> header_columns.Headers:
        sizes.extend(pc.binary_length(texts).to_pylist())
        return read(texts)

    def parse_one(text: str | None) -> dict[str, str | None] | None:
        sizes.append(len((text or "").encode()))
        return parse(text)

    monkeypatch.setattr(poison, "Headers", headers)
    monkeypatch.setattr(forward, "parse_headers", parse_one)
    return sizes


def test_a_million_bytes_of_tiny_headers_are_moved_unread(
    place: Place, bench: Bench, parsed: list[int]
) -> None:
    """To parse a megabyte takes half a second, with the transaction open."""
    put(place, f"'{{' || {TINY} || '}}'", "'tiny'")
    for at in range(3):
        put(place, f"'{TYPED}}}'", f"'{at}'")

    assert drain(bench) == [b"0", b"1", b"2"]
    assert place.sql(f'SELECT body FROM "{place.schema}".error') == [(b"tiny",)]
    assert parsed
    assert max(parsed) < 1000


def test_what_streams_move_for_its_headers_does_not_stop_error_triage(
    place: Place, bench: Bench, parsed: list[int]
) -> None:
    """The job has no error queue. It does not parse large headers to find their destination."""
    elsewhere = f'"{FORWARD_DESTINATION}":"nowhere"'
    put(place, f"'{{{elsewhere},' || {TINY} || '}}'", "'tiny'", table="error")
    put(place, f"'{{{elsewhere}}}'", "'small'", table="error")
    settings = error_triage.TriageSettings(
        url=bench.source_options().url,
        queue=bench.address("error"),
        table="t",
        checkpoint="c",
    )
    options = settings.read() | {"stateSchema": place.state}
    del options["url"]

    got = bench.drain(bench.stream_driver(None, **options))

    assert got == [b"tiny", b"small"]
    assert len(parsed) == 1
    assert max(parsed) < 1000


# ----- large rows ------------------------------------------------------------------------------


def test_a_row_that_the_server_cannot_send_goes_to_the_error_queue(
    place: Place, bench: Bench
) -> None:
    """Headers and body have 540 MB each. No client can get a row of more than 1 GB."""
    text = f"""
        CREATE TEMPORARY TABLE packed (value bytea);
        INSERT INTO packed SELECT convert_to(repeat('x', 540000000), 'UTF8');
        BEGIN;
        CREATE CAST (bytea AS text) WITHOUT FUNCTION;  -- to compress it once
        INSERT INTO "{place.schema}".orders (id, headers, body)
        SELECT gen_random_uuid(), value::text, value FROM packed;
        DROP CAST (bytea AS text);
        COMMIT;
    """
    place.sql(text)
    put(place, "'{}'", "'next'")

    assert drain(bench) == [b"next"]
    assert place.sql(
        f'SELECT octet_length(headers), octet_length(body) FROM "{place.schema}".error'
    ) == [(540_000_000, 540_000_000)]


def test_a_browse_leaves_out_what_is_too_large(
    place: Place, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning names the large message. The browse shows the others page by page."""
    for body in ("'1'", "convert_to(repeat('y', 2000), 'UTF8')", "'3'"):
        put(place, "'{}'", body)

    pages = browse.read_pages(bench.connection, bench.queue, 1, 4, narrow=False, largest=1000)

    assert [body for page in pages for body in page["body"].to_pylist()] == [b"1", b"3"]
    assert "messages larger than 1000 bytes are left out: seq 2" in caplog.text


# ----- bytes that are no text ------------------------------------------------------------------


@pytest.fixture
def ascii_bench(server: str) -> Iterator[Bench]:
    """Give a bench in a database that takes any bytes for text."""
    more = "TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
    with own_database(server, more=more) as place:
        made = bench_at(place)
        yield made
        made.close()


def put_bytes(bench: Bench, headers: bytes, body: str) -> None:
    """Insert a message whose headers are any bytes."""
    text = f"INSERT INTO {bench.queue_address} (id, headers, body) VALUES (gen_random_uuid(), "
    bench.dotnet.execute(text + "convert_from(%s, 'SQL_ASCII'), %s)", headers, body)


BAD, GOOD = b'{"a":"\xff\xfe"}', b'{"a":"\xc3\xa9"}'


def test_headers_that_are_no_utf_8_are_poison_byte_for_byte(ascii_bench: Bench) -> None:
    """The next message is received, and all looks work. Without an error queue they have U+FFFD."""
    bench, sent = ascii_bench, b'{"NServiceBus.TimeSent":"\xff"}'
    for headers in (BAD, GOOD):
        put_bytes(bench, headers, "")
    task = bench.task(bench.new_stream())
    rows = bench.receive(task)
    assert rows["headers"].to_pylist() == ['{"a":"\ufffd\ufffd"}', '{"a":"é"}']
    assert bench.receive(task).equals(rows)
    for headers, body in ((BAD, "bad"), (GOOD, "good"), (b"[]", "poison"), (sent, "sent")):
        put_bytes(bench, headers, body)
    look = stats.take_look(bench.connection, [bench.queue_address], bench.source_options())
    list(report.read_headers(bench.connection, look.queues[0].depth, is_named=True))
    doctor.run_all_checks(bench.connection, [bench.queue])
    shown = [*list_messages(bench.connection, bench.queue, limit=9)]

    got = drain(bench)

    assert [each.headers for each in shown[:2]] == [{"a": "\ufffd\ufffd"}, {"a": "é"}]
    assert got == [b"good"]
    moved = bench.error_queue_headers()
    assert [*moved] == [b"bad", b"poison", b"sent"]
    assert moved[b"poison"]["SqlQueue.CorruptHeaders"] == "[]"
    for name, octets in ((b"bad", BAD), (b"sent", sent)):
        assert b64decode(moved[name]["SqlQueue.CorruptHeadersBase64"]) == octets
        assert "SqlQueue.CorruptHeaders" not in moved[name]


# ----- what someone wrote into a receipt or a staged chunk ----------------------------------------

ROW = [
    *(None, b"i" * 16, b"\x00", bytes(8), None, struct.pack("<2i", 0, 2), b"{}"),
    *(None, struct.pack("<2i", 0, 4000), b"abc", None, bytes(8)),
]


def test_a_forged_receipt_is_refused_by_its_task_and_by_a_return(
    place: Place, bench: Bench
) -> None:
    """It can be dropped. An operator may return a large body whose size is stated."""
    bomb = [*ROW[:8], struct.pack("<2i", 0, 1 << 30), bytes(1 << 30), None, bytes(8)]
    large = forged([(1, bomb)])  # 200 kB that become 1 GB
    outside = forged([(1, ROW)])  # a body from outside of the payload
    text = f'UPDATE "{place.state}".receipt SET payload = %s, unpacked = %s, messages = 1'
    for payload, size in ((outside, 57), (large, 57), (b"garbage", 57), (large, (1 << 30) + 54)):
        bench.dotnet.send(bench.queue, body=b"true")
        stream = bench.new_stream()
        task = bench.task(stream, messages=10, max_message_bytes=1 << 20)
        bench.receive(task)
        place.sql(text, payload, size)

        with pytest.raises(PayloadRefused, match=f"the payload of receipt {stream}/1/0 in the"):
            bench.receive(task)
        if size == 57:
            with pytest.raises(PayloadRefused):
                bench.return_receipt(stream)
        assert bench.drop_receipt(stream) == 1
        assert bench.waiting_seqs() == []


@pytest.mark.parametrize("kind", ["garbage", "another good one"])
def test_a_rewritten_chunk_is_not_sent(place: Place, bench: Bench, kind: str) -> None:
    """The other payload may be valid. The driver compares it with what its task has reported."""
    staged = stage(bench, chunk(b"true"))
    other = pack(chunk(b"forged")).bytes.to_pybytes()
    text = f'UPDATE "{place.state}".staging SET payload = %s'
    place.sql(text, b"garbage" if kind == "garbage" else other)

    with pytest.raises(PayloadRefused, match="the payload of staged chunk 0 of attempt"):
        dispatch(bench, staged)
    assert bench.waiting_seqs() == []


@pytest.mark.parametrize("law", ["octet_length(body) < 3", "headers::json ->> 'a' IS NULL"])
def test_the_error_of_a_constraint_quotes_no_message(place: Place, bench: Bench, law: str) -> None:
    """The server's own text quotes the row, or a word of it."""
    place.sql(f'ALTER TABLE "{place.schema}".orders ADD CHECK ({law})')
    rows = chunk(b"secret").set_column(1, "headers", [["{secret}"]])

    with pytest.raises(SqlQueueError) as refused:
        dispatch(bench, stage(bench, rows))
    assert b"secret".hex() not in str(refused.value)
    assert "secret" not in str(refused.value)
