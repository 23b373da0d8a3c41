"""
Realistic order messages, as a .NET endpoint of 9.1 writes them: 10-11 headers and a JSON body.

Every value is a hash of the message's number, so the same numbers always give the same messages,
while identifiers, prices and addresses differ from row to row: a compressor finds in them what it
would find in a true queue, no more (Arrow IPC with zstd: a seventh). A message has 1.2 kB in all.
Built in columns: 100,000 take about a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.uint64]

SCHEMA = pa.schema([("id", pa.string()), ("headers", pa.string()), ("body", pa.binary())])

_EPOCH = 1_780_000_000_000_000  # microseconds since 1970: 28 May 2026
_MOST_LINES = 4  # of one order
_MACHINES = ("SHOP-WEB-01", "SHOP-WEB-02", "SHOP-WEB-03", "SHOP-WEB-04")
_ASSEMBLY = "Shop.Messages, Version=1.4.0.0, Culture=neutral, PublicKeyToken=null"
_TYPES = (
    f"Shop.Messages.Commands.PlaceOrder, {_ASSEMBLY}",
    f"Shop.Messages.Commands.ChangeOrder, {_ASSEMBLY}",
)
_PRODUCTS = (
    "Desk lamp",
    "Coffee mill",
    "Running shoes",
    "Notebook A5",
    "Water bottle",
    "USB-C cable",
    "Tea, 250 g",
)
_FIRST_NAMES = (
    "Anna",
    "Björn",
    "Chiara",
    "Dmitri",
    "Élodie",
    "Farid",
    "Greta",
    "Hiro",
    "Inés",
    "Jan",
    "Kofi",
)
_LAST_NAMES = (
    "Andersson",
    "Bianchi",
    "Costa",
    "Dubois",
    "Eriksen",
    "Fischer",
    "García",
    "Horváth",
    "Ito",
    "Jansen",
)
_STREETS = (
    "Harbour Road",
    "Kungsgatan",
    "Lindenstraße",
    "Rue des Écoles",
    "Via Roma",
    "Market Square",
)
_CITIES = ("Göteborg", "Leipzig", "Lyon", "Porto", "Utrecht", "Verona", "Winchester")


def orders(first: int, stop: int) -> pa.Table:
    """
    Write the order messages with the numbers from `first` up to, not including, `stop`.

    Args:
        first: number of the first message, >= 0.
        stop: number after the last one, >= first.

    Returns:
        A table of SCHEMA, stop - first rows: id (UUID text), headers (JSON), body (JSON bytes).
    """
    numbers = np.arange(first, stop, dtype=np.uint64)
    columns = [_uuid(numbers, 0), _headers(numbers), _body(numbers).cast(pa.binary())]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _headers(numbers: Numbers) -> pa.StringArray:
    message = _uuid(numbers, 1)
    host = _text(
        '"$.diagnostics.originating.hostid":"',
        pc.replace_substring(_uuid(numbers % np.uint64(len(_MACHINES)), 3), "-", ""),
        '",',
    )
    native = pa.array(_below(numbers, 4, 8) == 0)  # one in eight senders is not .NET: no host id
    return _text(
        '{"NServiceBus.MessageId":"',
        message,
        '","NServiceBus.MessageIntent":"Send","NServiceBus.ConversationId":"',
        _uuid(numbers, 2),
        '","NServiceBus.CorrelationId":"',
        message,
        '","NServiceBus.OriginatingMachine":"',
        pa.array(_MACHINES).take(pa.array(numbers % np.uint64(len(_MACHINES)))),
        '","NServiceBus.OriginatingEndpoint":"Shop.Web",',
        pc.if_else(native, "", host),
        '"NServiceBus.ContentType":"application\\/json","NServiceBus.EnclosedMessageTypes":"',
        _choice(_TYPES, numbers, 5),
        '","NServiceBus.Version":"9.1.2","NServiceBus.TimeSent":"',
        _time_sent(numbers),
        '"}',
    )


def _body(numbers: Numbers) -> pa.StringArray:
    count = _below(numbers, 10, _MOST_LINES) + 1
    total = np.zeros(len(numbers), dtype=np.int64)
    lines: list[str | pa.StringArray] = []
    for at in range(_MOST_LINES):
        quantity = 1 + _below(numbers, 20 + at, 5)
        cents = 199 + _below(numbers, 30 + at, 20_000)
        there = count > at
        total += np.where(there, quantity * cents, 0)
        lines.append(pc.if_else(pa.array(there), _line(numbers, at, quantity, cents), ""))
    return _text(
        '{"OrderId":"',
        _uuid(numbers, 6),
        '","CustomerId":',
        _integer(100_000 + _below(numbers, 11, 900_000)),
        ',"PlacedAt":"',
        pc.strftime(_sent(numbers), "%Y-%m-%dT%H:%M:%S"),
        'Z","Currency":"EUR","Lines":[',
        *lines,
        '],"Total":',
        _money(total),
        ',"ShipTo":{"Name":"',
        _choice(_FIRST_NAMES, numbers, 12),
        " ",
        _choice(_LAST_NAMES, numbers, 13),
        '","Street":"',
        _choice(_STREETS, numbers, 14),
        " ",
        _integer(1 + _below(numbers, 15, 240)),
        '","PostalCode":"',
        _integer(10_000 + _below(numbers, 16, 90_000)),
        '","City":"',
        _choice(_CITIES, numbers, 17),
        '","Phone":"+',
        _integer(30_000_000_000 + _below(numbers, 18, 19_000_000_000)),
        '"},"GiftWrap":',
        _choice(("false", "true"), numbers, 19),
        "}",
    )


def _line(
    numbers: Numbers, at: int, quantity: NDArray[np.int64], cents: NDArray[np.int64]
) -> pa.StringArray:
    return _text(
        ',{"Sku":"' if at else '{"Sku":"',
        _integer(1_000_000 + _below(numbers, 40 + at, 9_000_000)),
        '","Name":"',
        _choice(_PRODUCTS, numbers, 50 + at),
        '","Quantity":',
        _integer(quantity),
        ',"UnitPrice":',
        _money(cents),
        "}",
    )


def _hash(numbers: Numbers, salt: int) -> Numbers:
    """Mix number and salt by splitmix64 (Steele, Lea, Flood 2014), which passes for random."""
    mixed = (numbers + np.uint64((salt << 40) + 1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return cast("Numbers", mixed ^ (mixed >> np.uint64(31)))


def _below(numbers: Numbers, salt: int, bound: int) -> NDArray[np.int64]:
    return (_hash(numbers, salt) % np.uint64(bound)).astype(np.int64)


def _uuid(numbers: Numbers, salt: int) -> pa.StringArray:
    halves = np.stack([_hash(numbers, salt), _hash(numbers, salt + 100)], axis=1)
    raw = halves.view(np.uint8).reshape(-1, 16)
    raw[:, 6] = raw[:, 6] & 0x0F | 0x40  # version 4
    raw[:, 8] = raw[:, 8] & 0x3F | 0x80  # variant of RFC 9562
    digits = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    text = digits[np.stack([raw >> 4, raw & 15], axis=2)].reshape(-1, 32)
    text = np.ascontiguousarray(np.insert(text, [8, 12, 16, 20], ord("-"), axis=1))
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * text.shape[1]
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(text))


def _time_sent(numbers: Numbers) -> pa.StringArray:
    """Print in the transport's form, which has a colon before the microseconds."""
    text = pc.strftime(_sent(numbers), "%Y-%m-%d %H:%M:%S")
    return _text(pc.replace_substring(text, ".", ":"), " Z")


def _sent(numbers: Numbers) -> pa.TimestampArray:
    """Let one message follow the other by two milliseconds, unevenly."""
    micros = _EPOCH + numbers.astype(np.int64) * 2_000 + _below(numbers, 7, 2_000)
    return pa.array(micros).cast(pa.timestamp("us"))


def _choice(values: Sequence[str], numbers: Numbers, salt: int) -> pa.StringArray:
    return pa.array(values).take(pa.array(_below(numbers, salt, len(values))))


def _integer(values: NDArray[np.int64]) -> pa.StringArray:
    return pa.array(values).cast(pa.string())


def _money(cents: NDArray[np.int64]) -> pa.StringArray:
    hundredths = pa.array([f"{at:02d}" for at in range(100)])
    return _text(_integer(cents // 100), ".", hundredths.take(pa.array(cents % 100)))


def _text(*parts: str | pa.StringArray) -> pa.StringArray:
    return pc.binary_join_element_wise(*parts, "")
