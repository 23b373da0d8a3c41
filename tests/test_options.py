"""Options of a stream, without Spark: what several queues mean, and what cannot be meant."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest

from sqlq_spark.datasource import DefaultSource
from sqlq_spark.errors import (
    BadOption,
    MisplacedOption,
    MissingOption,
    OptionOfOtherSource,
    OptionsOfTable,
)
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.source import WRITE
from sqlq_spark.wire.address import QueueAddress


def parse(**raw: str) -> SourceOptions:
    """Read options for a database that nothing connects to."""
    return SourceOptions.parse({"url": "postgresql://host/shop", **raw})


@pytest.mark.parametrize(
    ("queues", "names"),
    [
        ("orders", ['"public"."orders"']),
        ("orders,billing", ['"public"."orders"', '"public"."billing"']),
        (" Shop.Orders ,\n\tbilling ", ['"public"."Shop.Orders"', '"public"."billing"']),
        ('"sales"."a, b", c', ['"sales"."a, b"', '"public"."c"']),
        ('"a""", """,b"', ['"public"."a"""', '"public".""",b"']),
        ('say "a, b"!, c', ['"public"."say ""a, b""!"', '"public"."c"']),
        ('" a "', ['"public"." a "']),
    ],
)
def test_queues_are_separated_by_commas_outside_quotes(queues: str, names: list[str]) -> None:
    """Blanks around a name are not part of it; a comma belongs to a name that stands alone."""
    assert parse(queues=queues).names == tuple(names)
    assert parse(queue="orders, billing").address == QueueAddress("orders, billing")


@pytest.mark.parametrize(
    ("raw", "option", "sentence"),
    [
        (
            {"queues": "a,,b"},
            "queues",
            "expected names of queues, separated by commas (a name is missing beside a comma)",
        ),
        ({"queues": "a,"}, "queues", "a name is missing beside a comma"),
        ({"queues": ","}, "queues", "a name is missing beside a comma"),
        ({"queues": " "}, "queues", "option queues is ' ': expected names of queues"),
        ({"queues": '"a, b'}, "queues", "a double quote is not closed"),
        ({"queues": '5" disk, b'}, "queues", "put a name that holds one in double quotes"),
        ({"queues": '"a"x, b'}, "queues", "text follows the quote that closes"),
        ({"queues": "a, " + "x" * 56}, "queues", "the table has 56 UTF-8 bytes where 55 are"),
        (
            {"queues": 'a, b, "public"."a"'},
            "queues",
            'expected each queue once, but "public"."a" is twice',
        ),
        (
            {"queues": "a, b", "queue": "a"},
            "queues",
            'expected nothing beside the one queue "public"."a"',
        ),
        (
            {"queues": "a, b", "path": "c"},
            "queues",
            'expected nothing beside the one queue "public"."c"',
        ),
        (
            {"queues": "a, b", "errorQueue": '"public"."b"'},
            "errorQueue",
            "expected another queue than those read",
        ),
        (
            {"queue": "a", "errorQueue": '"public"."a"'},
            "errorQueue",
            "expected another queue than the one read",
        ),
        (
            {"queue": "a", "minConcurrency": "5", "maxConcurrency": "4"},
            "minConcurrency",
            "option minConcurrency is '5': expected at most 4, the maximum",
        ),
        (
            {"queue": "a", "minConcurrency": "0"},
            "minConcurrency",
            "option minConcurrency is '0': expected a whole number of at least 1",
        ),
    ],
)
def test_options_that_contradict_are_refused_with_what_is_expected(
    raw: dict[str, str], option: str, sentence: str
) -> None:
    """Before anything connects."""
    with pytest.raises(BadOption) as refused:
        parse(**raw)

    assert refused.value.option == option
    assert sentence in str(refused.value)
    with pytest.raises(
        MissingOption, match="option queue is missing: give a queue's name, also as"
    ):
        parse()


def test_min_concurrency_raises_what_was_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine of few cores."""
    monkeypatch.setattr(os, "cpu_count", lambda: 4)

    assert parse(queue="a").concurrency == 4
    assert parse(queue="a", minConcurrency="9").concurrency == 9
    assert parse(queue="a", minConcurrency="3", maxConcurrency="3").concurrency == 3


@pytest.mark.parametrize(
    ("raw", "most"),
    [
        ({"queues": "Shop, Shop.east1"}, [None, 1]),
        ({"queues": 'Shop.Orders.east1, "public"."Shop.Orders", Shop'}, [1, 1, None]),
        ({"queues": 'Shop, "sales"."Shop.east1", "sales"."Shop"'}, [None, 1, None]),
        ({"queues": 'Shop, "sales"."Shop.east1"'}, [None, None]),
        ({"queues": "Shop, Shopping, ShopX.east1, .Shop"}, [None] * 4),
        ({"queues": "Shop, Shop.east1", "maxConcurrency": "8"}, [None, None]),
        ({"queue": "Shop.east1"}, [None]),
    ],
)
def test_an_instances_callbacks_are_read_by_one_task(
    raw: dict[str, str], most: list[int | None]
) -> None:
    """A queue named as another of its schema, a dot and more; unless the user says how many."""
    options = parse(**raw)

    assert [options.most_tasks(each) for each in options.addresses] == most


def test_an_option_of_the_other_side_is_refused() -> None:
    """It has no effect; what Spark adds, or both may have, is accepted."""
    url = {"url": "postgresql://host/shop", "queue": "orders"}
    with pytest.raises(MisplacedOption) as read:
        SourceOptions.parse({**url, "MESSAGETYPE": "Shop.Placed"})
    with pytest.raises(MisplacedOption) as write:
        SinkOptions.parse({**url, "headersFormat": "json"})

    text = "option {} has no effect on a {}: set it on {}"
    assert str(read.value) == text.format("messageType", "read", WRITE)
    assert str(write.value) == text.format(
        "headersFormat", "write", "spark.read or spark.readStream"
    )
    for kind in (SourceOptions, SinkOptions):
        kind.parse(
            {**url, "path": "orders", "paths": "[]", "checkpointLocation": "/c", "mergeSchema": "x"}
        )


OF_OTHERS = (
    "subscribe subscribePattern assign startingOffsets endingOffsets startingTimestamp "
    "endingTimestamp startingOffsetsByTimestamp endingOffsetsByTimestamp maxOffsetsPerTrigger "
    "minOffsetsPerTrigger minPartitions maxRecordsPerPartition includeHeaders kafka.group.id "
    "topic dbtable query driver fetchsize batchsize isolationLevel numPartitions partitionColumn "
    "lowerBound upperBound subscriptionId topicId projectId numFetchPartitions "
    "deleteSubscriptionOnStreamStop"
)


@pytest.mark.parametrize("name", OF_OTHERS.split())
@pytest.mark.parametrize("kind", [SourceOptions, SinkOptions])
def test_an_option_of_another_source_is_refused(
    kind: type[SourceOptions | SinkOptions], name: str
) -> None:
    """A job ported from Kafka or JDBC would run without its limits."""
    with pytest.raises(OptionOfOtherSource, match=f"option {name} is of another source"):
        kind.parse({"url": "postgresql://host/shop", "queue": "orders", name.lower(): "1"})


def test_a_command_has_options_of_the_database_alone() -> None:
    """It needs no queue, and an option of a read or a write raises an error."""
    options = DatabaseOptions.parse({"url": "postgresql://host/shop", "queryTimeout": "5s"})
    with pytest.raises(MisplacedOption):
        DatabaseOptions.parse({"url": "postgresql://host/shop", "queue": "orders"})

    assert options.query_timeout == 5.0
    assert options.allowed == ()


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (SourceOptions, {"queues": "Shop, Shop.east1", "errorQueue": "error"}),
        (SinkOptions, {"queue": "Shop", "delayedQueue": "Shop.Delayed", "legacyColumns": "true"}),
    ],
)
@pytest.mark.parametrize(("server", "schema"), [("postgresql", "public"), ("sqlserver", "dbo")])
def test_options_travel_to_executors(
    kind: type[SourceOptions | SinkOptions], raw: dict[str, str], server: str, schema: str
) -> None:
    """Pickled options are equal and have the same hash; their repr hides the password."""
    more = {"password": "hush", "allowedDestinations": "orders, Shop.*"}
    options = kind.parse({"url": f"{server}://host/shop", **more, **raw})

    copy = pickle.loads(pickle.dumps(options))  # noqa: S301 - our own

    assert copy == options
    assert hash(copy) == hash(options)
    assert vars(copy) == vars(options)
    assert "hush" not in repr(copy)
    assert copy.allowed == (QueueAddress("orders", schema), QueueAddress("Shop.*", schema))


def test_the_options_of_a_table_are_refused_by_their_names() -> None:
    """Spark adds `provider` and `owner`; no value is in the error, for one may be a password."""
    given = {"url": "postgresql://host/shop", "password": "hush", "queue": "orders"}
    table = given | {f"option.{name}": text for name, text in given.items()}
    with pytest.raises(OptionsOfTable) as refused:
        DefaultSource({**table, "provider": "sqlqueue", "owner": "lake"}).schema()

    assert "the options password, queue, url:" in str(refused.value)
    assert "hush" not in str(refused.value)
    assert "body binary" in DefaultSource({**given, "owner": "lake"}).schema()


def test_a_url_that_is_missing_is_explained_for_sql_too() -> None:
    """Who wrote it in CREATE TABLE has given one, and Spark did not pass it on."""
    with pytest.raises(MissingOption, match=r"option url is missing: .*WITH \(url '…'\)"):
        SourceOptions.parse({"queue": "orders"})


def test_options_are_read_without_pyarrow() -> None:
    """It takes a tenth of a second, and a process that only finds the format needs none."""
    program = "import sys, sqlq_spark.options; sys.exit('pyarrow' in sys.modules)"

    subprocess.run([sys.executable, "-c", program], check=True)
