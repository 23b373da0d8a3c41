"""Columns of texts that Spark declares in other ways: collated, CHAR(n), VARCHAR(n)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    DataType,
    MapType,
    StringType,
    StructType,
    VarcharType,
)

from sqlq_spark.datasource.write import BatchWriter
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.source import COLUMNS as READ
from sqlq_spark.send.frame import COLUMNS, TOPICS, check_frame
from sqlq_spark.send.sender import Sender
from sqlq_spark.spark_api import column_types, padded_texts, to_arrow_schema

from .frames import MAP, URL, frame, headers

if TYPE_CHECKING:
    from collections.abc import Callable

# what Spark has for CHAR(n) and VARCHAR(n) in a table: a string, unless
# spark.sql.preserveCharVarcharTypeInfo is set
DECLARED = "__CHAR_VARCHAR_TYPE_STRING"
TEXTS: dict[str, DataType] = {
    "collated": StringType("UTF8_LCASE"),
    "char": CharType(10),
    "varchar": VarcharType(10),
}
# column → its type around a text
AROUND: dict[str, Callable[[DataType], DataType]] = {
    **{name: lambda text: text for name, (_, kinds) in COLUMNS.items() if "string" in kinds},
    "headers (map)": lambda text: MapType(StringType(), text),
    "headers (name)": lambda text: MapType(text, StringType()),
    "topics": ArrayType,
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("column", AROUND)
def test_a_text_is_accepted_however_it_is_declared(column: str, text: str) -> None:
    """Every column of a write that may be a text, or hold texts, is tried."""
    schema = StructType().add(column.split(maxsplit=1)[0], AROUND[column](TEXTS[text]))

    check_frame({"body": "binary", **column_types(schema)}, queue=True)


@pytest.mark.parametrize("text", TEXTS)
def test_a_read_gives_texts_as_they_are_asked_for(text: str) -> None:
    """Their values are the same as those of a plain string."""
    kinds = {"string": TEXTS[text], "map<string,string>": MapType(StringType(), TEXTS[text])}
    schema, plain = StructType(), StructType()
    for name, kind in READ.items():
        if kind in kinds:
            schema = schema.add(name, kinds[kind])
            plain = plain.add(
                name, StringType() if kind == "string" else MapType(StringType(), StringType())
            )

    SourceOptions.parse({"url": URL, "queue": "orders"}).check_columns(column_types(schema))

    assert to_arrow_schema(schema) == to_arrow_schema(plain)


PADDED: dict[str, Any] = {
    "body": ["{}   ", " x"],
    "id": ["m-1 ", None],
    "headers": pa.array([[("key ", "value ")], None], MAP),
    "correlationId": ["c ", " "],
    "replyToAddress": ["replies  ", None],
    "timeToBeReceived": ["00:30:00  ", None],
    "topics": pa.array([None, ["Shop.A  ", "Shop.B "]], TOPICS),
    "queue": ["Out       ", None],
}
KEY, VALUE = ("headers", "key"), ("headers", "value")


def declare(text: DataType, *, kept: bool) -> StructType:
    """Give the schema of PADDED, with names of headers as VARCHAR."""
    schema = StructType()
    for name in PADDED:
        kind = {
            "headers": MapType(VarcharType(9), text),
            "topics": ArrayType(text),
        }.get(name, text)
        plain = {"headers": MapType(StringType(), StringType()), "topics": ArrayType(StringType())}
        if kept:
            schema = schema.add(name, kind)
        else:
            metadata = {DECLARED: kind.simpleString()}
            schema = schema.add(name, plain.get(name, StringType()), metadata=metadata)
    return schema


@pytest.mark.parametrize("kept", [True, False])
def test_the_blanks_that_spark_adds_to_char_are_not_sent(*, kept: bool) -> None:
    """Blanks in VARCHAR and STRING belong to the value, also beside CHAR in one map."""
    options = SinkOptions.parse({"url": URL})
    writer = BatchWriter(options, declare(CharType(10), kept=kept))
    batch = frame(2, **PADDED)
    whole = pa.concat_batches([batch.slice(1), batch, batch.slice(0, 1)])

    chunk = Sender(options=options, partition=0, padded=writer.padded).messages(
        whole.slice(1, 2), 0
    )
    same = Sender(options=options, partition=0).messages(
        frame(2, id=["m-1 ", "m-2"], queue=["a", "b"]), 0
    )

    assert chunk["queue"].to_pylist() == ["Out", None]
    assert chunk["body"].to_pylist() == [b"{}", b" x"]
    assert chunk["topics"].to_pylist() == [None, ["Shop.A", "Shop.B"]]
    assert chunk["lifetime"].to_pylist() == [1_800_000, None]
    first, second = headers(chunk)
    assert first["key "] == "value"
    assert first["NServiceBus.MessageId"] == "m-1"
    assert first["NServiceBus.ReplyToAddress"] == '"public"."replies"'
    assert [first["NServiceBus.CorrelationId"], second["NServiceBus.CorrelationId"]] == ["c", ""]
    assert headers(same)[0]["NServiceBus.MessageId"] == "m-1 "


def test_only_char_is_padded() -> None:
    """The type declares CHAR, or the field's metadata does."""
    char = {(name, "") for name in PADDED if name != "headers"} | {VALUE}

    assert padded_texts(declare(CharType(10), kept=True)) == char
    assert padded_texts(declare(CharType(10), kept=False)) == char
    for text in (VarcharType(10), StringType("UTF8_LCASE"), StringType()):
        assert padded_texts(declare(text, kept=True)) == frozenset()
        assert padded_texts(declare(text, kept=False)) == frozenset()
    names = MapType(CharType(4), StringType())
    assert padded_texts(StructType().add("headers", names).add("body", BinaryType())) == {KEY}
