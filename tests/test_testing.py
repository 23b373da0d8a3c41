"""The plugin of pytest: the code of its page, and its fixtures."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from pages.page import blocks

from sqlq_spark.testing import Database, Message, Queue, frame
from sqlq_spark.testing.queues import VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent


@pytest.mark.spark
def test_the_tests_of_the_page_pass(
    spark: SparkSession, server: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run in the session of this process, which they would stop at their end."""
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    monkeypatch.setenv(VARIABLE, server)
    frame(spark, []).count()  # what this imports outlives the run below, which forgets modules
    code = {each.id: each.text for each in blocks("docs/testing.md") if each.id}
    pytester.makepyfile(pipeline=code["testing/pipeline"], test_pipeline=code["testing/tests"])
    pytester.syspathinsert()

    done = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "sqlq_spark.testing.plugin")

    done.assert_outcomes(passed=2)


def test_two_processes_of_xdist_share_nothing(
    server: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin imports nothing heavy. Each test has a database, and none is left."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv(VARIABLE, server)
    pytester.makeini("[pytest]")  # otherwise pytest would use a file above this folder
    pytester.makeconftest(
        "import sys\n"
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'adbc_driver_manager'}\n"
        "assert 'sqlq_spark.testing.plugin' in sys.modules and not heavy & {*sys.modules}\n"
    )
    pytester.makepyfile(
        "import pytest\n"
        "@pytest.mark.parametrize('number', range(4))\n"
        "def test_queue(number, sqlqueue_queue):\n"
        "    sqlqueue_queue.send({'number': number})\n"
        "    assert [each.json for each in sqlqueue_queue.messages()] == [{'number': number}]\n"
    )

    done = pytester.runpytest_subprocess("-n", "2", "-p", "sqlq_spark.testing.plugin")

    done.assert_outcomes(passed=4)
    with psycopg.connect(server) as connection:
        left = "SELECT 1 FROM pg_database WHERE datname LIKE 'sqlqueue_test_%'"
        assert connection.execute(left).fetchall() == []


def test_what_was_sent_waits_in_its_order(sqlqueue_queue: Queue) -> None:
    """Bodies and headers are as given, also those of poison. A time without a zone is refused."""
    with pytest.raises(ValueError, match="has no time zone: add tzinfo=UTC"):
        sqlqueue_queue.send(Message(expires=datetime(2030, 1, 1)))  # noqa: DTZ001
    expires = datetime(2030, 6, 30, 17, 5, tzinfo=UTC)
    sqlqueue_queue.send(
        b"\x00bytes",
        "text",
        {"OrderId": 7},
        Message(None, corrupt_headers="[]", expires=expires),
        Message({}, message_type="Shop.PlaceOrder", headers={"NServiceBus.MessageId": "m-1"}),
    )

    found = sqlqueue_queue.messages()

    assert found == sqlqueue_queue.messages()
    assert [each.body for each in found] == [b"\x00bytes", b"text", b'{"OrderId": 7}', None, b"{}"]
    assert [each.seq for each in found] == [1, 2, 3, 4, 5]
    assert (found[3].headers, found[3].corrupt_headers, found[3].expires) == (None, "[]", expires)
    assert found[4].message_type == "Shop.PlaceOrder"
    own = found[4].headers or {}
    assert (own["NServiceBus.MessageId"], own["NServiceBus.CorrelationId"]) == ("m-1", "m-1")


@pytest.mark.spark
def test_a_frame_is_what_a_read_of_the_same_messages_gives(
    spark: SparkSession, sqlqueue_database: Database
) -> None:
    """Columns and types are the same, in order, and so are the values but for the row's id."""
    queue = sqlqueue_database.queue("Shop.Orders")
    own: dict[str, str | None] = {"NServiceBus.ReplyToAddress": "Shop.Web", "none": None}
    later = datetime.now(UTC) + timedelta(days=1)
    queue.send(Message({"OrderId": 7}, headers=own, expires=later), Message(None))
    queue.send(Message(b"x", corrupt_headers="not JSON"))
    for headers in ("map", "json"):
        options = {"headersFormat": headers}

        read = spark.read.format("sqlqueue").options(**queue.options | options).load()
        made = frame(spark, queue.messages(), **options)

        assert made.schema == read.schema
        assert made.drop("id").collect() == read.drop("id").orderBy("seq").collect()
    assert frame(spark, []).count() == 0
