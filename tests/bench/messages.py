"""
Realistic order messages, as a .NET endpoint of 9.1 writes them: 10-11 headers and a JSON body.

A message's number decides all of its values, so the same numbers always give the same messages.
Identifiers, prices and addresses differ from row to row. So the messages can be compressed as well
as those of a real queue, and no better: Arrow IPC with zstd shrinks them to a seventh. A message
has 1.2 kB in all.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa

SCHEMA = pa.schema([("id", pa.string()), ("headers", pa.string()), ("body", pa.binary())])

_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_BEGIN = datetime(2026, 5, 28, 20, 26, 40, tzinfo=UTC)
_HOSTS = [UUID(int=at * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128).hex for at in range(1, 5)]
_TYPE = (
    "Shop.Messages.Commands.{}, Shop.Messages, Version=1.4.0.0, Culture=neutral, "
    "PublicKeyToken=null"
)
_COMMANDS = ("PlaceOrder", "ChangeOrder")
_PRODUCTS = (
    *("Desk lamp", "Coffee mill", "Running shoes", "Notebook A5", "Water bottle", "USB-C cable"),
    "Tea, 250 g",
)
_FIRST_NAMES = (
    *("Anna", "Björn", "Chiara", "Dmitri", "Élodie", "Farid", "Greta", "Hiro", "Inés"),
    *("Jan", "Kofi"),
)
_LAST_NAMES = (
    *("Andersson", "Bianchi", "Costa", "Dubois", "Eriksen", "Fischer", "García"),
    *("Horváth", "Ito", "Jansen"),
)
_STREETS = (
    *("Harbour Road", "Kungsgatan", "Lindenstraße", "Rue des Écoles", "Via Roma"),
    "Market Square",
)
_CITIES = ["Göteborg", "Leipzig", "Lyon", "Porto", "Utrecht", "Verona", "Winchester"]


def orders(first: int, stop: int) -> pa.Table:
    """Write the messages with the numbers `first` … `stop - 1`, with a UUID text as id."""
    columns = zip(*(_order(number) for number in range(first, stop)), strict=True)
    return pa.table(list(columns), schema=SCHEMA)


def _order(number: int) -> tuple[str, str, bytes]:
    chance = Random(number)
    # messages follow each other by two milliseconds on average
    sent = _BEGIN + timedelta(microseconds=number * 2_000 + chance.randrange(2_000))
    return _uuid(chance), _headers(chance, sent), _body(chance, sent)


def _headers(chance: Random, sent: datetime) -> str:
    message, machine = _uuid(chance), chance.randrange(len(_HOSTS))
    headers = {
        "NServiceBus.MessageId": message,
        "NServiceBus.MessageIntent": "Send",
        "NServiceBus.ConversationId": _uuid(chance),
        "NServiceBus.CorrelationId": message,
        "NServiceBus.OriginatingMachine": f"SHOP-WEB-{machine + 1:02}",
        "NServiceBus.OriginatingEndpoint": "Shop.Web",
        "$.diagnostics.originating.hostid": _HOSTS[machine],
        "NServiceBus.ContentType": "application/json",
        "NServiceBus.EnclosedMessageTypes": _TYPE.format(chance.choice(_COMMANDS)),
        "NServiceBus.Version": "9.1.2",
        "NServiceBus.TimeSent": f"{sent:%Y-%m-%d %H:%M:%S:%f} Z",
    }
    if chance.random() < 1 / 8:  # one in eight messages is not of .NET, so it has no host id
        del headers["$.diagnostics.originating.hostid"]
    return _json(headers).replace("/", "\\/")


def _body(chance: Random, sent: datetime) -> bytes:
    lines = [_line(chance) for _ in range(chance.randint(1, 4))]
    order = {
        "OrderId": _uuid(chance),
        "CustomerId": chance.randrange(100_000, 1_000_000),
        "PlacedAt": f"{sent:%Y-%m-%dT%H:%M:%S.%f}Z",
        "Currency": "EUR",
        "Lines": lines,
        "Total": round(sum(line["Quantity"] * line["UnitPrice"] for line in lines), 2),
        "ShipTo": {
            "Name": f"{chance.choice(_FIRST_NAMES)} {chance.choice(_LAST_NAMES)}",
            "Street": f"{chance.choice(_STREETS)} {chance.randint(1, 240)}",
            "PostalCode": str(chance.randrange(10_000, 100_000)),
            "City": chance.choice(_CITIES),
            "Phone": f"+{chance.randrange(30_000_000_000, 49_000_000_000)}",
        },
        "GiftWrap": chance.random() < 1 / 2,
    }
    return _json(order).encode()


def _line(chance: Random) -> dict[str, Any]:
    return {
        "Sku": str(chance.randrange(1_000_000, 10_000_000)),
        "Name": chance.choice(_PRODUCTS),
        "Quantity": chance.randint(1, 5),
        "UnitPrice": chance.randrange(199, 20_199) / 100,
    }


def _uuid(chance: Random) -> str:
    return str(UUID(int=chance.getrandbits(128), version=4))
