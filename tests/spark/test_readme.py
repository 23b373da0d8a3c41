"""
The code in README and of the functions runs as it stands.

Only where the database is and where the files go is replaced.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from pages.page import blocks

from sqlq_spark.database.schema import create_queue, install
from sqlq_spark.database.sessions import Session
from sqlq_spark.options import SourceOptions

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Place
    from pyspark.sql import SparkSession

QUEUES = ("Shop.Orders", "Shop.Billing")
ASK = """
INSERT INTO public."Shop.Orders" (id, headers, body) VALUES (gen_random_uuid(),
    '{"NServiceBus.MessageId":"question","NServiceBus.ReplyToAddress":"Shop.Billing"}', '')
"""
ANSWERS = """
SELECT count(*)::int FROM public."Shop.Billing"
 WHERE headers::json ->> 'NServiceBus.RelatedTo' = 'question'
"""


def code(block: str, url: str, folder: Path) -> str:
    """A block, by its id; its database and folders replaced by ours."""
    found = [*blocks("README.md", block), *blocks("docs/functions.md", block)]
    ours = found[0].text.replace("postgresql://user@host:5432/shop", url)
    ours = re.sub(r'\n *\.option\("password", "…"\)|, password="…"', "", ours)
    return ours.replace("/lake/", f"{folder}/")


@pytest.mark.spark
def test_the_code_of_the_readme_runs(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    """What is sent to one queue is there, and what waited in the other is in the table."""
    receive, send, answer = (
        code(block, place.url, tmp_path) for block in ("receive", "send", "reply")
    )
    given = {"url": place.url, "queue": QUEUES[0]}
    with Session(SourceOptions.parse(given), "test", state=False) as session:
        install(session.open(), timeout=30)
        for queue in QUEUES:
            address = SourceOptions.parse(given | {"queue": queue}).address
            create_queue(session.open(), address, timeout=30)
    try:
        names: dict[str, object] = {"spark": spark}
        exec(send.replace("Shop.Billing", "Shop.Orders"), names)  # noqa: S102
        exec(receive, names)  # noqa: S102
        exec(send, names)  # noqa: S102
        received = spark.read.parquet(str(tmp_path / "orders"))
        billing = place.sql('SELECT headers, body FROM public."Shop.Billing"')
        place.sql(ASK)
        exec(answer, names)  # noqa: S102
        names["query"].processAllAvailable()  # type: ignore[attr-defined]
        names["query"].stop()  # type: ignore[attr-defined]
        answers = place.sql(ANSWERS)

        assert answers == [(1,)]
        assert received.select("body").distinct().count() == 1000
        assert len({bytes(body) for _, body in billing}) == 1000
        assert all("Shop.Contracts.OrderPlaced" in headers for headers, _ in billing)
    finally:
        for queue in QUEUES:
            place.sql(f'DROP TABLE IF EXISTS public."{queue}"')
        place.sql("DROP SCHEMA IF EXISTS sqlqueue CASCADE")
