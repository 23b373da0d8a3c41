"""Options without Spark: what they mean for each database, and what cannot be meant."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Any

import pytest
import stamina

from sqlq_spark import errors
from sqlq_spark.cli.options import Shared
from sqlq_spark.database import sessions
from sqlq_spark.datasource import DefaultSource
from sqlq_spark.errors import BadOption, MisplacedOption, MissingOption, OptionOfOtherSource
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.connection import DatabaseOptions
from sqlq_spark.options.names import names_of, other_password_variables
from sqlq_spark.options.source import WRITE
from sqlq_spark.wire.address import POSTGRESQL, SQLSERVER, Names, QueueAddress

URL, SQLSERVER_URL = "postgresql://host/shop", "sqlserver://db:1433/shop"
KINDS = pytest.mark.parametrize("kind", [SourceOptions, SinkOptions])
Kind = type[SourceOptions | SinkOptions]


def parse(**raw: str) -> SourceOptions:
    """Read options for a database that nothing connects to."""
    return SourceOptions.parse({"url": URL, **raw})


# ----- queues ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queues", "names"),
    [
        ("orders", ['"public"."orders"']),
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
    other = parse(url=SQLSERVER_URL, queues='[a, b]@[sales], o"r"')
    assert other.names == ("a, b@[sales]", 'o"r"@[dbo]')


@pytest.mark.parametrize(
    ("raw", "most"),
    [
        ({"queues": "Shop, Shop.east1"}, [None, 1]),
        ({"queues": 'Shop.Orders.east1, "public"."Shop.Orders", Shop'}, [1, 1, None]),
        ({"queues": 'Shop, "sales"."Shop.east1", "sales"."Shop"'}, [None, 1, None]),
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


# ----- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "option", "sentence"),
    [
        (
            {"queues": "a,,b"},
            "queues",
            "expected names of queues, separated by commas (a name is missing beside a comma)",
        ),
        ({"queues": " "}, "queues", "option queues is ' ': expected names of queues"),
        ({"queues": '"a, b'}, "queues", "a double quote is not closed"),
        ({"queues": '5" disk, b'}, "queues", "put a name that holds one in double quotes"),
        ({"queues": '"a"x, b'}, "queues", "text follows the quote that closes"),
        ({"queues": "a, " + "x" * 56}, "queues", "the table has 56 UTF-8 bytes where 55 are"),
        ({"queues": 'a, "public"."a"'}, "queues", 'each queue once, but "public"."a" is twice'),
        ({"queues": "a, b", "queue": "a"}, "queues", 'nothing beside the one queue "public"."a"'),
        ({"queues": "a, b", "path": "c"}, "queues", 'nothing beside the one queue "public"."c"'),
        ({"queues": "a, b", "errorQueue": '"public"."b"'}, "errorQueue", "another queue than tho"),
        ({"queue": "a", "errorQueue": "a"}, "errorQueue", "expected another queue than the one"),
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
        ({"url": "mysql://user:hush@host/shop", "queue": "a"}, "url", "option url is "),
        ({"url": "user:hush@host", "queue": "a"}, "url", "option url is "),
    ],
)
def test_options_that_contradict_are_refused_with_what_is_expected(
    raw: dict[str, str], option: str, sentence: str
) -> None:
    """Before anything connects; no password is shown."""
    with pytest.raises(BadOption) as refused:
        parse(**raw)

    assert refused.value.option == option
    assert sentence in str(refused.value)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        *(("txnAppId", name, "without blanks at its ends") for name in ("a ", " a", "a\t")),
        *((name, "x\udcff", "") for name in ("txnAppId", "stateSchema", "messageType")),
    ],
)
def test_an_option_that_sql_server_would_change_is_refused(
    option: str, value: str, expected: str
) -> None:
    """It compares names without blanks at their ends, and no driver sends half a surrogate pair."""
    raw = {"url": SQLSERVER_URL, "queue": "q", "txnAppId": "a", "txnVersion": "1", option: value}

    with pytest.raises(BadOption, match=f"option {option} is .*{expected}"):
        SinkOptions.parse(raw)


def test_an_option_that_is_missing_is_explained() -> None:
    """For SQL too: who wrote the url in CREATE TABLE has given one, but Spark passed none on."""
    with pytest.raises(MissingOption, match="option queue is missing: give a queue's name, also"):
        parse()
    with pytest.raises(MissingOption, match=r"option url is missing: .*WITH \(url '…'\)"):
        SourceOptions.parse({"queue": "orders"})


def test_an_option_of_the_other_side_is_refused() -> None:
    """It has no effect; what Spark adds, or both may have, is accepted."""
    url = {"url": URL, "queue": "orders"}
    with pytest.raises(MisplacedOption) as read:
        SourceOptions.parse({**url, "MESSAGETYPE": "Shop.Placed"})
    with pytest.raises(MisplacedOption) as write:
        SinkOptions.parse({**url, "headersFormat": "json"})
    with pytest.raises(MisplacedOption):
        DatabaseOptions.parse(url)  # a command needs no queue

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


@KINDS
def test_an_option_of_another_source_is_refused(kind: Kind) -> None:
    """A job ported from Kafka or JDBC would run without its limits."""
    for name in OF_OTHERS.split():
        with pytest.raises(OptionOfOtherSource, match=f"option {name} is of another source"):
            kind.parse({"url": URL, "queue": "orders", name.lower(): "1"})


def test_the_options_of_a_table_are_refused_by_their_names() -> None:
    """Spark adds `provider` and `owner`; no value is in the error, for one may be a password."""
    given = {"url": URL, "password": "hush", "queue": "orders"}
    table = given | {f"option.{name}": text for name, text in given.items()}
    with pytest.raises(errors.OptionsOfTable) as refused:
        DefaultSource({**table, "provider": "sqlqueue", "owner": "lake"}).schema()

    assert "the options password, queue, url:" in str(refused.value)
    assert "hush" not in str(refused.value)
    assert "body binary" in DefaultSource({**given, "owner": "lake"}).schema()


# ----- what they become ------------------------------------------------------------------------


def test_min_concurrency_raises_what_was_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine of few cores."""
    monkeypatch.setattr(os, "cpu_count", lambda: 4)

    assert parse(queue="a").concurrency == 4
    assert parse(queue="a", minConcurrency="9").concurrency == 9
    assert parse(queue="a", minConcurrency="3", maxConcurrency="3").concurrency == 3


@KINDS
@pytest.mark.parametrize(("server", "schema"), [("postgresql", "public"), ("sqlserver", "dbo")])
def test_options_travel_to_executors(kind: Kind, server: str, schema: str) -> None:
    """Pickled options are equal and have the same hash; their repr hides the password."""
    raw = {"password": "hush", "allowedDestinations": "orders, Shop.*", "queue": "Shop"}
    options = kind.parse({"url": f"{server}://host/shop", **raw})

    copy = pickle.loads(pickle.dumps(options))  # noqa: S301 - our own

    assert copy == options
    assert hash(copy) == hash(options)
    assert vars(copy) == vars(options)
    assert "hush" not in repr(copy)
    assert copy.allowed == (QueueAddress("orders", schema), QueueAddress("Shop.*", schema))


def test_options_are_read_without_pyarrow() -> None:
    """It takes a tenth of a second, and a process that only finds the format needs none."""
    program = "import sys, sqlq_spark.options; sys.exit('pyarrow' in sys.modules)"

    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("url", "added"),
    [
        (URL, "?password=hush%26%3B1"),
        (SQLSERVER_URL, "?password=hush%26%3B1"),
        # a port and an @ behind it only look like a password
        ("postgresql://[::1]:5432/shop?application_name=a@b", "&password=hush%26%3B1"),
        ("postgresql://h:5432/a?passfile=/x:y@z", "&password=hush%26%3B1"),
        # a password in the url wins
        ("postgresql://user:own@localhost/shop", ""),
        ("postgresql://localhost/shop?user=a&password=own", ""),
        ("sqlserver://user:own@localhost:1433/shop", ""),
    ],
)
def test_a_password_of_the_environment_is_added_to_a_url_without_one(
    url: str, added: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of either database; the options never show it."""
    without = Shared(url=url).database()
    monkeypatch.setenv("SQLQUEUE_PASSWORD", "hush&;1")
    found = Shared(url=url).database()

    assert (without.url, found.url) == (url, url + added)
    assert "hush" not in repr(found)


@pytest.mark.parametrize(
    ("url", "names", "others"),
    [
        ("POSTGRES://host/shop", POSTGRESQL, set()),
        (SQLSERVER_URL, SQLSERVER, {"PGPASSWORD"}),
    ],
)
def test_a_password_of_another_database_is_known(url: str, names: Names, others: set[str]) -> None:
    """A url's scheme, in any case, names the database; PGPASSWORD is for PostgreSQL alone."""
    assert names_of(url) is names
    assert other_password_variables(url) == others
    assert other_password_variables("") == {"PGPASSWORD"}


@pytest.mark.parametrize(
    ("names", "text", "other"),
    [
        (POSTGRESQL, "orders@machine", True),
        (POSTGRESQL, '"a@b"', False),
        (POSTGRESQL, "Shop.Orders", False),
        (SQLSERVER, '"sales"."orders"', True),
        (SQLSERVER, "Shop.Orders@[sales]", False),
    ],
)
def test_an_address_in_another_notation_is_recognised(
    names: Names, text: str, *, other: bool
) -> None:
    """The error of a return to source then says so."""
    assert names.is_of_other_database(text) is other


# ----- attempts --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "facts", "times"),
    [
        (errors.LockTimedOut, {"seconds": 30}, sessions.ATTEMPTS),
        (errors.LogFull, {"code": "9002"}, sessions.ATTEMPTS),
        (errors.Deadlock, {}, sessions.ATTEMPTS),
        (errors.ServerShort, {"code": "1105"}, sessions.ATTEMPTS),
        (errors.ConnectionLost, {}, sessions.ATTEMPTS),
        (errors.TimedOut, {"seconds": 30}, 1),
        (errors.StatementRefused, {"code": "2628"}, 1),
        (errors.StatementFailed, {"code": "824"}, 1),
    ],
)
def test_a_fault_that_may_pass_is_tried_again(
    kind: type[errors.DatabaseFailure],
    facts: dict[str, Any],
    times: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing else is."""
    seen: list[int] = []

    def work(_: object) -> None:
        seen.append(1)
        raise kind(statement="receive", reason="…", **facts)

    session = sessions.StateSession(parse(queue="q"), "test")
    monkeypatch.setattr(session, "open", lambda: None)
    with (
        stamina.set_testing(testing=True, attempts=sessions.ATTEMPTS, cap=True),  # no pauses
        pytest.raises(kind),
    ):
        session.run_with_retries(work)

    assert len(seen) == times
