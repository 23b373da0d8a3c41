"""Rows that real .NET endpoints wrote: this package reads them, and writes the same bytes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from wire import Case, golden

from sqlq_spark.send.own_headers import OwnMaps, OwnTexts
from sqlq_spark.wire import headers as wire
from sqlq_spark.wire.address import POSTGRESQL
from sqlq_spark.wire.header_columns import HEADER_COLUMNS, Headers
from sqlq_spark.wire.headers import full_name, split_types

ROWS = golden()
TEXTS = pa.array([case.headers for case in ROWS], pa.string())
READ = [dict(case.read or {}) for case in ROWS]
MAP = pa.map_(pa.string(), pa.string())
EACH = pytest.mark.parametrize("case", ROWS, ids=lambda case: case.name)

SHOP = "Shop.Contracts"
ADDRESSES = {wire.REPLY_TO_ADDRESS, wire.FAILED_Q}
TIMES = {
    wire.TIME_SENT,
    wire.DELIVER_AT,
    wire.TIME_OF_FAILURE,
    wire.PROCESSING_STARTED,
    wire.PROCESSING_ENDED,
    f"{wire.RETRIES}.Timestamp",
}


@EACH
def test_both_writers_write_the_bytes_of_the_endpoint(case: Case) -> None:
    """Row by row and in columns, from the same headers in their order."""
    read = dict(case.read or {})
    maps = pa.array([list(read.items())], MAP)

    assert wire.dumps(read) == case.headers
    assert [f"{{{text}}}" for text in OwnMaps(maps).members().to_pylist()] == [case.headers]
    assert OwnTexts(pa.array([case.headers])).objects.to_pylist() == [case.headers]


def test_readers_in_columns_find_all_headers() -> None:
    """As a map, and one header alone; none is poison."""
    found = Headers(TEXTS)

    assert found.map(MAP).to_pylist() == [list(each.items()) for each in READ]
    assert not any(found.poison().to_pylist())
    for name in [*HEADER_COLUMNS.values(), wire.ENCLOSED_MESSAGE_TYPES, wire.FAILED_Q]:
        assert found.text(name).to_pylist() == [each.get(name) for each in READ]


@EACH
def test_times_lifetimes_and_addresses_are_read_and_written_back(case: Case) -> None:
    """Every time, the one lifetime, and each address, which is canonical."""
    read = dict(case.read or {})

    for name in TIMES & read.keys():
        assert wire.wire_time(wire.parse_wire_time(read[name] or "")) == read[name]
    for name in ADDRESSES & read.keys():
        assert POSTGRESQL.print_address(POSTGRESQL.parse_address(read[name] or "")) == read[name]
    if lifetime := read.get(wire.TIME_TO_BE_RECEIVED):
        assert (wire.parse_span(lifetime), wire.format_span(20_000)) == (20_000, lifetime)


def test_types_of_commands_and_events_are_their_topics() -> None:
    """Full names, in the order in which the endpoint wrote them."""
    found = [
        [full_name(each) for each in split_types(read[wire.ENCLOSED_MESSAGE_TYPES])]
        for read in READ
    ]

    assert {tuple(each) for each in found} == {
        (f"{SHOP}.PlaceOrder",),
        (f"{SHOP}.FailOrder",),
        (f"{SHOP}.ShortLived",),
        (f"{SHOP}.AskPrice",),
        (f"{SHOP}.IShopEvent",),
        (f"{SHOP}.OrderPlaced", f"{SHOP}.IShopEvent"),
        (f"{SHOP}.RushOrderPlaced", f"{SHOP}.IShopEvent", f"{SHOP}.OrderPlaced"),
    }
