"""Bad input: one clear sentence reaches the user, and nothing is touched."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from servers import only

from spark.stand import Queue, finish, message_ids, numbered, texts
from sqlq_spark.database import schema as install

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TIME = "expected a time of at least 100ms, as 1s"
WHOLE = "expected a whole number of at least 1"
NEW_QUEUE = "orders"


def said(spark: SparkSession, options: dict[str, str]) -> str:
    """What `load` says to these options; Spark asks for the schema, and so reads them, at once."""
    with pytest.raises(PySparkException) as refused:
        spark.readStream.format("sqlqueue").options(**options).load()
    return str(refused.value)


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("peekDelay", "10ms", f"option peekDelay is '10ms': {TIME}"),
        ("peekDelay", "soon", f"option peekDelay is 'soon': {TIME}"),
        ("maxConcurrency", "0", f"option maxConcurrency is '0': {WHOLE}"),
        ("maxConcurrency", "two", f"option maxConcurrency is 'two': {WHOLE}"),
        ("maxMessagesPerTrigger", "0", f"option maxMessagesPerTrigger is '0': {WHOLE}"),
        ("maxMessagesPerTrigger", "-5", f"option maxMessagesPerTrigger is '-5': {WHOLE}"),
        ("maxMessagesPerTrigger", "1e5", f"option maxMessagesPerTrigger is '1e5': {WHOLE}"),
        ("minMessagesPerTrigger", "1.5", f"option minMessagesPerTrigger is '1.5': {WHOLE}"),
        (
            "minMessagesPerTrigger",
            "200000",
            "option minMessagesPerTrigger is '200000': expected at most 100000, the maximum",
        ),
        (
            "maxBytesPerTrigger",
            "0",
            "option maxBytesPerTrigger is '0': expected bytes, at least 1, as 67108864 or 64m",
        ),
        ("maxTriggerDelay", "15", "option maxTriggerDelay is '15': expected a time, as 15m"),
        (
            "queryTimeout",
            "0s",
            "option queryTimeout is '0s': expected a time from 1s to 1d, as 30s",
        ),
        ("headersFormat", "xml", "option headersFormat is 'xml': expected map or json"),
        (
            "transactionMode",
            "scope",
            "option transactionMode is 'scope': expected receiveOnly or none",
        ),
        ("purgeOnStartup", "yes", "option purgeOnStartup is 'yes': expected true or false"),
        ("failOnDataLoss", "1", "option failOnDataLoss is '1': expected true or false"),
        ("stateSchema", "", "option stateSchema is '': expected the schema of the state tables"),
        ("errorQueue", " ", "option errorQueue is ' ': expected a queue's name"),
        (
            "errorQueue",
            "orders",
            'option errorQueue is \'"public"."orders"\': expected another queue',
        ),
        (
            "maxMessagesPerTriger",
            "5",
            "option maxmessagespertriger is not known: did you mean maxMessagesPerTrigger?",
        ),
        ("peek_delay", "5s", "option peek_delay is not known: did you mean peekDelay?"),
        ("header", "json", ""),  # not near enough: Spark's own sources know such names
        (
            "url",
            "mysql://user@host/db",
            "option url is 'mysql://…': expected postgresql://user@host:5432/database",
        ),
        (
            "url",
            "host=db password=hush",
            "option url is '…': expected postgresql://user@host:5432/database",
        ),
        ("queue", "x" * 56, "the table has 56 UTF-8 bytes where 55 are the most"),
        ("queue", "🚀" * 14, "the table has 56 UTF-8 bytes where 55 are the most"),
        ("queue", '"a"b', "text follows the quote that closes at character 3"),
        ("queue", "", "option queue is '': expected a queue's name, also as .load(name)"),
    ],
)
def test_a_bad_value_is_named_with_one_that_would_do(
    spark: SparkSession, option: str, value: str, sentence: str
) -> None:
    """`load` fails at once: no server is needed."""
    options = {"url": "postgresql://nobody@nowhere.invalid/x", "queue": NEW_QUEUE, option: value}
    if not sentence:
        spark.readStream.format("sqlqueue").options(**options).load()
        return

    assert sentence in said(spark, options)


def test_what_is_missing_is_named(spark: SparkSession) -> None:
    """No url, no queue, half of a transaction's name."""
    url = "postgresql://nobody@nowhere.invalid/x"

    assert "option url is missing: give postgresql://user@host:5432/database" in said(
        spark, {"queue": "orders"}
    )
    assert "option queue is missing: give a queue's name, also as .load(name)" in said(
        spark, {"url": url}
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"delivery": "twice"},
            "option delivery is 'twice': expected exactlyOnce or atLeastOnce",
        ),
        ({"deliverry": "x"}, "option deliverry is not known: did you mean delivery?"),
        ({"intent": "Shout"}, "option intent is 'Shout': expected Send, Publish or Reply"),
        (
            {"timeToBeReceived": "-00:00:01"},
            ("option timeToBeReceived is '-00:00:01': expected hh:mm:ss, at most 24.20:31:23"),
        ),
    ],
)
def test_a_bad_sink_option_is_named(
    spark: SparkSession, options: dict[str, str], sentence: str
) -> None:
    """The same for a writer; Delta's catalog refuses txnAppId without txnVersion by itself."""
    frame = spark.createDataFrame([("",)], "body string").write.format("sqlqueue").mode("append")
    given = {"url": "postgresql://nobody@nowhere.invalid/x", "queue": "orders"} | options

    with pytest.raises(PySparkException) as refused:
        frame.options(**given).save()

    assert sentence in str(refused.value)


# ---------------------------------------------------------------- what the server says


def fails(spark: SparkSession, options: dict[str, str]) -> str:
    """What browsing says."""
    with pytest.raises(PySparkException) as refused:
        spark.read.format("sqlqueue").options(**options).load().count()
    return str(refused.value)


def moved(url: str, **parts: str) -> str:
    """Change parts of a url."""
    return urlunsplit(urlsplit(url)._replace(**parts))


@only("postgresql", "sentences of that server and its driver")
def test_server_not_reachable(spark: SparkSession, queue: Queue) -> None:
    """Nobody listens at that port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"postgresql://postgres:hush@127.0.0.1:{port}/shop"

    found = fails(spark, queue.options | {"url": url})

    assert f"no connection to postgresql://127.0.0.1:{port}/shop: " in found
    assert "Connection refused" in found
    assert "Check host, port and firewall in the url" in found


@only("postgresql", "sentences of that server and its driver")
def test_wrong_password(spark: SparkSession, queue: Queue) -> None:
    """Of the url, or of the option, which wins."""
    place = urlsplit(queue.place.url)
    wrong = moved(queue.place.url, netloc=f"{place.username}:wrong@{place.hostname}:{place.port}")
    sentence = (
        f"refused the login: password authentication failed for user "
        f'"{place.username}". Check user and password.'
    )

    assert sentence in fails(spark, queue.options | {"url": wrong})
    assert sentence in fails(spark, queue.options | {"password": "wrong"})
    assert (
        spark.read.format("sqlqueue")
        .options(**queue.options | {"url": wrong, "password": str(place.password)})
        .load()
        .count()
        == 0
    )


@only("postgresql", "sentences of that server and its driver")
def test_absent_database(spark: SparkSession, queue: Queue) -> None:
    """The error names it."""
    found = fails(spark, queue.options | {"url": moved(queue.place.url, path="/absent")})

    assert 'database "absent" does not exist. Create the database, or name another' in found


def test_absent_queue(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    """For a frame, a stream and a sink."""
    absent = Queue(queue.place, "absent")
    sentence = f"queue {absent.name} was not found in {queue.dotnet.dialect}://"
    fix = "Create it with `sqlqueue create`, or grant this login the rights"
    frame = spark.createDataFrame([("",)], "body string")
    stream = absent.stream(spark).load().writeStream.format("noop")

    with pytest.raises(StreamingQueryException) as streamed:
        finish(stream, tmp_path / "checkpoint")
    with pytest.raises(PySparkException) as sent:
        absent.send(frame)

    for found in (fails(spark, absent.options), str(streamed.value), str(sent.value)):
        assert sentence in found
        assert fix in found


def test_state_tables_not_installed(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    """For a stream and a sink: before a message is touched."""
    queue.fill(0, 5)
    options = {"stateSchema": "not_there"}
    stream = queue.stream(spark, **options).load().writeStream.format("noop")

    with pytest.raises(StreamingQueryException) as streamed:
        finish(stream, tmp_path / "checkpoint")
    with pytest.raises(PySparkException) as sent:
        queue.send(spark.createDataFrame([("",)], "body string"), **options)

    for found in (str(streamed.value), str(sent.value)):
        assert "the state tables were not found in schema not_there of " in found
        assert "Run `sqlqueue install` once, name their schema in the option stateSchema" in found
    assert queue.ids() == numbered(0, 5)


def test_state_tables_of_a_newer_release(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    """The older release keeps its hands off."""
    queue.fill(0, 5)
    state = queue.place.state
    queue.dba.change("version", version=99)
    stream = queue.stream(spark).load().writeStream.format("noop")

    with pytest.raises(StreamingQueryException) as streamed:
        finish(stream, tmp_path / "checkpoint")
    with pytest.raises(PySparkException) as sent:
        queue.send(spark.createDataFrame([("",)], "body string"))

    sentence = (
        f"the state tables in schema {state} have version 99, but this release supports "
        f"{install.VERSION}. Upgrade sqlq-spark here."
    )
    assert sentence in str(streamed.value)
    assert sentence in str(sent.value)
    assert queue.ids() == numbered(0, 5)


@pytest.fixture
def clerk(queue: Queue) -> Iterator[dict[str, str]]:
    """Give a login that may enter both schemas, and nothing else."""
    login = queue.dba.login()
    for schema in (queue.place.schema, queue.place.state):
        queue.dba.admit(login, schema)
    yield {"user": login.name, "password": login.password}
    queue.dba.drop_login(login)


def grant(queue: Queue, clerk: dict[str, str], said: str, granted: list[str]) -> str:
    """Do what the error says, which must be something new."""
    found = re.search(r"A DBA can fix this with: (GRANT [^\n]+? TO the_user)", said)
    assert found is not None, said
    assert found[1] not in granted, f"{found[1]} did not help: {said}"
    queue.dba.run(found[1].replace("the_user", clerk["user"]))
    return found[1]


def test_each_missing_right_is_named_until_all_are_there(
    spark: SparkSession, queue: Queue, clerk: dict[str, str], tmp_path: Path
) -> None:
    """The error holds the GRANT; a DBA who runs what it says gets to a working stream."""
    queue.fill(0, 5)
    table = str(tmp_path / "table")
    stream = queue.stream(spark, **clerk).load()
    granted: list[str] = []

    for attempt in range(8):
        writer = stream.writeStream.format("parquet").option("path", table)
        try:
            finish(writer, tmp_path / "checkpoint")
            break
        except StreamingQueryException as refused:
            granted.append(grant(queue, clerk, str(refused), granted))
            assert queue.count() == 5, attempt

    assert sorted(message_ids(spark.read.parquet(table).collect())) == sorted(numbered(0, 5))
    assert f"GRANT SELECT, DELETE, UPDATE (seq) ON {queue.name} TO the_user" in granted


def test_a_sink_without_rights_sends_nothing(
    spark: SparkSession, queue: Queue, clerk: dict[str, str]
) -> None:
    """INSERT on the queue and USAGE on its sequence are told one after the other."""
    frame = spark.createDataFrame([("",)], "body string")
    granted: list[str] = []

    for _ in range(8):
        try:
            queue.send(frame, **clerk)
            break
        except PySparkException as refused:
            assert queue.count() == 0
            granted.append(grant(queue, clerk, str(refused), granted))

    assert queue.count() == 1


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    "table",
    [
        "Shop.Orders",
        'say "hi"',
        "orders; DROP TABLE orders; --",
        "line\nbreak\ttab",
        "🚀 Bestellungen",
        "it's {queue} %s :name $1 \\ /*",
        "x" * 55,
    ],
)
def test_any_legal_name_works_end_to_end(
    spark: SparkSession, queue: Queue, tmp_path: Path, table: str
) -> None:
    """Sent, browsed and received; the neighbour `orders` is not touched."""
    odd = Queue(queue.place, table)
    odd.create()
    queue.fill(0, 1)
    sent = spark.createDataFrame([("m-7", "{}"), ("m-8", "{}")], "id string, body string")
    got: list[str] = []

    odd.send(sent)
    odd.send(sent.selectExpr("replace(id, 'm-', 'n-') AS id", "body"), delivery="atLeastOnce")
    browsed = odd.reader(spark).load().select("queue").distinct().collect()
    stream = odd.stream(spark).load().writeStream
    finish(
        stream.foreachBatch(lambda frame, _: got.extend(message_ids(frame.collect()))),
        tmp_path / "checkpoint",
    )

    assert [row.queue for row in browsed] == [odd.name]
    assert sorted(got) == ["m-7", "m-8", "n-7", "n-8"]
    assert [odd.count(), queue.count()] == [0, 1]


def test_a_plain_name_may_hold_dots(spark: SparkSession, queue: Queue) -> None:
    """`Shop.Orders` is a table of the default schema, not a table `Orders` of a schema `Shop`."""
    options = queue.options | texts({"queue": "Shop.Orders"})

    default = {"postgresql": '"public"."Shop.Orders"', "sqlserver": "Shop.Orders@[dbo]"}
    assert f"queue {default[queue.dotnet.dialect]} was not found" in fails(spark, options)
