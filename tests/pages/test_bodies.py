"""The page of bodies: its SQL gives the JSON beside it, and its Python gives what it says."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from send.frames import frame, headers, sender

from sqlq_spark.datasource.write import StreamWriter
from sqlq_spark.errors import BadOption
from sqlq_spark.options import SinkOptions
from sqlq_spark.wire.headers import begins_with_interface

from .page import blocks, read, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

PAGE = "docs/bodies.md"
ROWS = table(PAGE, "json")
URL = "postgresql://host/shop"


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session in UTC, as the page says."""
    name = "spark.sql.session.timeZone"
    before = spark.conf.get(name)
    spark.conf.set(name, "UTC")
    yield spark
    spark.conf.set(name, before or "UTC")


@pytest.mark.spark
def test_each_sql_of_the_page_gives_its_body(session: SparkSession) -> None:
    """Word for word, right and wrong ones."""
    sql = [re.fullmatch("`(.*)`", row[1])[1] for row in ROWS.rows]  # type: ignore[index]
    (found,) = session.sql("SELECT " + ", ".join(sql)).collect()

    assert [f"`{body}`" for body in found] == ROWS.column(2)


@pytest.mark.spark
def test_the_python_of_the_page_gives_what_it_says(session: SparkSession) -> None:
    """JSON as in the sentence below it, XML of one element each, and a body with a mark is read."""
    marked = "\ufeff" + '{"OrderId":12,"Total":19.90}'
    received = session.createDataFrame([(marked.encode(),)], "body binary")
    names = {"spark": session, "received": received}
    for block in blocks(PAGE):
        exec(compile(block.text, block.name, "exec"), names)  # noqa: S102 - the page's own code
    made = SimpleNamespace(**names)

    (((body,),), ((xml,),), ((order,),)) = (
        each.collect() for each in (made.bodies, made.orders, made.placed)
    )
    assert f"This gives `{body}`." in read(PAGE)
    assert re.sub(r"\s", "", xml) == (
        "<BillOrder><OrderId>12</OrderId><State>Paid</State></BillOrder>"
    )
    assert json.loads(marked[1:])["OrderId"] == order.OrderId


def test_types_in_a_wrong_order_are_rejected_where_that_is_certain() -> None:
    """And warned of where only the names say so."""
    rows = dict(zip(table(PAGE, "types").ids, table(PAGE, "types").column(), strict=True))
    texts = {name: text.strip("`") for name, text in rows.items()}

    for name in ("right", "interface-first"):
        assert SinkOptions.parse({"url": URL, "messageType": texts[name]}).message_type
    assert [begins_with_interface(texts[name]) for name in ("right", "interface-first")] == [
        False,
        True,
    ]
    for name in ("twice", "blank"):
        with pytest.raises(BadOption, match="or several joined by ;, each once"):
            SinkOptions.parse({"url": URL, "messageType": texts[name]})
    options = SinkOptions.parse({"url": URL, "queue": "q", "messageType": texts["interface-first"]})
    with mock.patch("sqlq_spark.datasource.write.warn_once") as warning:
        StreamWriter(options, StructType().add("body", "binary"))
    assert "handles each message twice" in warning.call_args[0][0]


def test_the_ids_of_the_page_are_those_of_the_sink() -> None:
    """New ones, those of a column, and those of a message that is passed on."""
    batch = frame(
        3,
        id=["invoice-7", "invoice-7", None],
        headers=pa.array(["{}", '{"NServiceBus.MessageId":"from there"}', "{}"]),
    )

    found = [each["NServiceBus.MessageId"] for each in headers(sender().messages(batch, 0))]

    assert found[:2] == ["invoice-7", "from there"]
    assert len(found[2] or "") == 36
