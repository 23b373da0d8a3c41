"""The pages of the guide on running a stream: their code as it stands, with a real Spark."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
from waiting import until

from .page import blocks, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .shop import Shop

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """Py4J logs every call at DEBUG, which pytest would keep."""
    logging.getLogger("py4j").setLevel(logging.WARNING)


def named(cells: list[str]) -> set[str]:
    """What stands between backticks at the start of cells."""
    return {found[1] for cell in cells if (found := re.match(r"`(\w+)`", cell))}


def test_a_listener_sends_what_the_table_of_alerts_names(spark: SparkSession, shop: Shop) -> None:
    """Of the second batch and later ones, when another batch was acknowledged; and its end."""
    PAGE = "docs/guide/monitoring.md"  # noqa: N806
    listener, query = blocks(PAGE, "listener") + blocks(PAGE, "query")
    sent: list[tuple[str, Any, dict[str, Any]]] = []
    shop.names["spark"] = spark
    shop.run(listener)
    shop.names["send"] = lambda name, value, **tags: sent.append((name, value, tags))
    try:
        shop.fill('"Shop.Orders"', 5)
        shop.run(query)
        until(lambda: any(name == "backlog" for name, _, _ in sent))
        shop.fill('"Shop.Orders"', 7)
        until(lambda: any(name == "diverted" for name, _, _ in sent))
        shop.names["query"].stop()
        until(lambda: any(name == "failed" for name, _, _ in sent))
    finally:
        spark.streams.removeListener(shop.names["listener"])
    shop.run(*blocks(PAGE, "database"))

    queues = {tags["queue"] for name, _, tags in sent if name == "backlog"}
    assert named(table(PAGE, "alerts").column()) <= {name for name, _, _ in sent}
    assert {tags["query"] for _, _, tags in sent} == {"orders"}
    assert queues == {'"public"."Shop.Orders"'}
    assert {value for name, value, _ in sent if name in {"failed", "diverted"}} == {0}
    assert sum(value for name, value, _ in sent if name == "rows") == 12


def test_a_checkpoint_is_moved_and_shows_its_stream(
    spark: SparkSession, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    """The query continues on the moved folder; the id on the page is that of the stream's row."""
    PAGE = "docs/guide/checkpoints.md"  # noqa: N806
    move, which = blocks(PAGE, "move") + blocks(PAGE, "which")
    shop.names["spark"] = spark
    shop.fill('"Shop.Orders"', 5)
    code, _, again = move.text.rpartition("\n\n\n")
    assert again.count("receive(") == 2

    shop.do("python", code)
    first, *rest = again.splitlines()
    shop.do("python", first)
    shop.fill('"Shop.Orders"', 7)
    shop.do("python", "\n".join(rest))
    capsys.readouterr()
    shop.run(which)
    shown = capsys.readouterr().out
    shop.run(*blocks(PAGE, "new"))

    streams = shop.sql("SELECT stream::text FROM sqlqueue.stream")
    assert spark.read.parquet(str(shop.folder / "orders")).count() == 12
    assert [name for (name,) in streams] == re.findall(r"\b[0-9a-f-]{36}\b", shown)
    assert "no receipts" in shop.printed


def test_the_format_is_found_and_browsed(
    spark: SparkSession, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a new cluster is checked with, which deletes nothing."""
    PAGE = "docs/guide/databricks.md"  # noqa: N806
    shop.names["spark"] = spark
    shop.fill('"Shop.Orders"', 5)
    capsys.readouterr()

    shop.run(*blocks(PAGE, "check"))
    shown = capsys.readouterr().out
    shop.run(*blocks("docs/guide/versions.md", "options"))

    assert shown.split() == ["5"]
    assert shop.names["orders"].isStreaming
    assert shop.count('"Shop.Orders"') == 5
