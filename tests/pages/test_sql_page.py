"""docs/sql.md: its statements run as they stand, and those that fail have the page's error."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from .page import blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from .shop import Shop

pytestmark = pytest.mark.spark
OPTIONS = "OPTIONS (url '{url}', queue 'Shop.Orders')"
SEND = "OPTIONS (url '{url}', queue 'Shop.Billing', messageType 'Shop.BillOrder')"


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """Py4J logs every call at DEBUG, which pytest would keep."""
    logging.getLogger("py4j").setLevel(logging.WARNING)


@pytest.fixture
def sql(spark: SparkSession, shop: Shop) -> Iterator[SparkSession]:
    """Give a session with Spark's own catalog, and messages that wait; its tables are dropped."""
    shop.sqlqueue("create", "Shop.Billing")
    shop.fill('"Shop.Orders"', 5)
    session = spark.newSession()
    session.conf.set("spark.sql.catalog.spark_catalog", "builtin")
    yield session
    for each in session.catalog.listTables():
        if not each.isTemporary:
            session.sql(f"DROP TABLE `{each.name}`")


def run(spark: SparkSession, shop: Shop, text: str) -> list[Any]:
    """Run Spark SQL as a page writes it; gives the rows of the last statement."""
    rows: list[Any] = []
    for each in filter(str.strip, shop.ours(text).split(";\n")):
        rows = spark.sql(each).collect()
    return rows


def test_the_statements_of_the_page_run_as_they_stand(sql: SparkSession, shop: Shop) -> None:
    """Views and tables browse, `INSERT` sends, and a stream receives."""
    shop.names["spark"] = sql
    found: dict[str | None, list[Any]] = {}
    for each in blocks("docs/sql.md"):
        if each.language == "sql":
            found[each.id] = run(sql, shop, each.text)
        if each.id == "stream/view":
            assert shop.count('"Shop.Orders"') == 5  # all before it was a browse
        if each.language == "python":
            shop.run(each)
            shop.fill('"Shop.Orders"', 5)

    assert [row.number for row in found["browse/select"]] == [1, 2, 3, 4, 5]
    sent = shop.sql('SELECT headers, body FROM "Shop.Billing" ORDER BY seq')
    bodies = [json.loads(body)["OrderId"] for _, body in sent]
    assert (bodies[0], len(bodies), bodies[-1]) == (12, 7, 13)
    assert sum("Shop.Contracts.BillOrder" in headers for headers, _ in sent) == 6
    assert sql.read.parquet(str(shop.folder / "numbers")).count() == 5
    assert found["passwords/select"][0].messages == 10


@pytest.mark.parametrize(
    ("row", "text", "error"),
    [
        ("table-options", f"CREATE TABLE t USING sqlqueue {OPTIONS}", "OptionsOfTable"),
        ("create-as", f"CREATE TABLE t USING sqlqueue {SEND} AS SELECT 'x' body", "MissingOption"),
        ("write-options", f"CREATE TEMPORARY VIEW v USING sqlqueue {SEND}", "MisplacedOption"),
        ("overwrite", "INSERT OVERWRITE billing SELECT 'x'", "BadOption"),
        ("delete", "DELETE FROM queue", "does not support deletes"),
        ("function", "SELECT * FROM sqlqueue('x')", "UNRESOLVABLE_TABLE_VALUED_FUNCTION"),
        ("path", "SELECT * FROM sqlqueue.`x`", "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"),
        ("stream", "SELECT * FROM STREAM orders", "is not a temp view of streaming"),
    ],
)
def test_what_does_not_work_has_the_error_of_the_page(
    sql: SparkSession, shop: Shop, row: str, text: str, error: str
) -> None:
    """The error is raised, and nothing was sent; a table that is refused is not in the catalog."""
    for view, options in (("orders", OPTIONS), ("billing (body STRING)", SEND)):
        sql.sql(f"CREATE TEMPORARY VIEW {view} USING sqlqueue " + options.format(url=shop.url))
    sql.sql("CREATE TABLE queue (body BINARY) USING sqlqueue")

    with pytest.raises(Exception, match=error) as raised:
        sql.sql(text.format(url=shop.url)).collect()

    assert row
    assert error in f"{type(raised.value)} {raised.value}"
    assert shop.count('"Shop.Billing"') == 0
    assert not sql.catalog.tableExists("t")


def test_spark_stores_the_options_of_a_table_and_passes_them_to_nobody(
    sql: SparkSession, shop: Shop
) -> None:
    """The password is in the catalog, and a read has no url."""
    options = OPTIONS.format(url=shop.url).replace(")", ", password 'hush')")
    sql.sql(f"CREATE TABLE t (body BINARY) USING sqlqueue {options}")
    jvm: Any = sql
    catalog = jvm._jsparkSession.sharedState().externalCatalog()  # noqa: SLF001 - no other way in
    stored = catalog.getTable("default", "t").storage().properties()

    with pytest.raises(Exception, match="MissingOption") as raised:
        sql.sql("SELECT * FROM t").collect()

    assert "hush" in stored.toString()
    assert "WITH (url" in str(raised.value)


def test_a_table_cannot_be_read_through_the_catalog_of_delta(
    spark: SparkSession, sql: SparkSession
) -> None:
    """With `WITH` too; the table itself is there."""
    sql.sql("CREATE TABLE queue (body BINARY) USING sqlqueue")

    with pytest.raises(Exception, match="is not a valid Spark SQL Data Source"):
        spark.sql("SELECT * FROM queue WITH (url 'x', queue 'x')").collect()
