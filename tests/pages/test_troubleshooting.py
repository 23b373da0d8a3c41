"""docs/guide/troubleshooting.md: each error has a row, with the text that it prints."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from sqlq_spark import errors
from sqlq_spark.datasource.write import StreamWriter
from sqlq_spark.errors import SqlQueueError

from .page import blocks, table, tables

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from .shop import Shop

PAGE = "docs/guide/troubleshooting.md"
OTHERS = {"symptoms", "spark"}  # tables of what is no error of the package
BASES = {"BadInput", "CheckpointFailure", "DatabaseFailure"}  # only classes below them are raised


class Dots(str):
    """Stands for a name, a number or a reason, however a template prints it."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return "…"

    def __repr__(self) -> str:
        return "…"


def printed(name: str) -> str:
    """What an error prints, with three dots for each of its facts."""
    template: str = getattr(errors, name).template
    named = {option: option for option in errors.NAMED_OPTIONS}
    return template.format_map(defaultdict(lambda: Dots("…"), named))


def spans(cell: str) -> list[str]:
    """The texts between backticks."""
    return re.findall(r"`([^`]+)`", cell)


def test_each_error_has_a_row_with_the_text_that_it_prints() -> None:
    """Under its name, and no row is for an error that is gone."""
    rows = {
        row_id: row[:2]
        for each in tables(PAGE)
        if each.id not in OTHERS
        for row_id, row in zip(each.ids, each.rows, strict=True)
    }
    with pytest.raises(SqlQueueError) as stray:
        StreamWriter.write(object.__new__(StreamWriter), iter([]))

    kinds = {name for name, each in vars(errors).items() if each.__class__ is type}
    assert rows.keys() == kinds - BASES
    assert all("template" not in vars(getattr(errors, name)) for name in BASES)
    for name, (error, text_and_cause) in rows.items():
        shown, text = spans(error)[0], spans(text_and_cause)[0]
        full = str(stray.value) if name == "SqlQueueError" else printed(str(name))
        assert shown == name
        assert text in full, name


@pytest.mark.spark
def test_spark_says_what_the_page_says(spark: SparkSession, shop: Shop, tmp_path: Path) -> None:
    """The errors that a session raises; those of other machines and set-ups were tried by hand."""
    logging.getLogger("py4j").setLevel(logging.WARNING)
    stream = spark.readStream.format("sqlqueue").options(url=shop.url).load("Shop.Orders")
    frame = spark.range(1).selectExpr("'{}' AS body")
    write = frame.write.format("sqlqueue").options(url=shop.url)
    into = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    into.trigger(availableNow=True).start().awaitTermination()
    two = stream.union(stream).writeStream.format("noop")
    started = two.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)

    for row_id, call in {
        "save-mode": lambda: write.save("Shop.Orders"),
        "direct-query": lambda: spark.sql("SELECT * FROM sqlqueue.`Shop.Orders`"),
        "stream-action": stream.count,
        "no-checkpoint": lambda: stream.writeStream.format("parquet").start(f"{tmp_path}/lake"),
        "continuous": lambda: into.trigger(continuous="1 second").start(),
        "sources": lambda: started.start().awaitTermination(),
    }.items():
        with pytest.raises(Exception, match=r"sqlqueue|stream|checkpoint") as raised:
            call()  # type: ignore[no-untyped-call]
        assert spans(table(PAGE, "spark").row(row_id)[1])[0] in str(raised.value), row_id


@pytest.mark.spark
def test_the_page_shows_the_python_of_a_worker(
    spark: SparkSession, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it stands on the page; in these tests both are one."""
    logging.getLogger("py4j").setLevel(logging.WARNING)
    shop.names["spark"] = spark
    capsys.readouterr()

    shop.run(*(each for each in blocks(PAGE) if each.language == "python"))

    assert capsys.readouterr().out.count("python") >= 2
