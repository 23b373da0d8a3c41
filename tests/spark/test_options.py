"""Bad input: one clear sentence reaches the user, and no message is touched."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from servers import only

from spark.stand import message_ids, numbered
from sqlq_spark.database import schema
from sqlq_spark.errors import BadInput, BadOption
from sqlq_spark.options import SinkOptions, SourceOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark

TIME = "expected a time of at least 100ms, as 1s"
WHOLE = "expected a whole number of at least 1"
NOWHERE = {"url": "postgresql://nobody@nowhere.invalid/x", "queue": "orders"}


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("peekDelay", "10ms", TIME),
        ("peekDelay", "soon", TIME),
        ("maxConcurrency", "0", WHOLE),
        ("maxMessagesPerTrigger", "-5", WHOLE),
        ("maxMessagesPerTrigger", "1e5", WHOLE),
        ("minMessagesPerTrigger", "1.5", WHOLE),
        ("minMessagesPerTrigger", "200000", "expected at most 100000, the maximum"),
        ("maxBytesPerTrigger", "0", "expected bytes, at least 1, as 67108864 or 64m"),
        ("maxTriggerDelay", "15", "expected a time, as 15m"),
        ("queryTimeout", "0s", "expected a time from 1s to 1d, as 30s"),
        ("headersFormat", "xml", "expected map or json"),
        ("transactionMode", "scope", "expected receiveOnly or none"),
        ("purgeOnStartup", "yes", "expected true or false"),
        ("failOnDataLoss", "1", "expected true or false"),
        ("stateSchema", "", "expected the schema of the state tables"),
        ("errorQueue", " ", "expected a queue's name"),
        ("queue", "", "expected a queue's name, also as .load(name)"),
        ("queue", "x" * 56, "the table has 56 UTF-8 bytes where 55 are the most"),
        ("queue", "🚀" * 14, "the table has 56 UTF-8 bytes where 55 are the most"),
        ("queue", '"a"b', "text follows the quote that closes at character 3"),
        ("delivery", "twice", "expected exactlyOnce or atLeastOnce"),
        ("intent", "Shout", "expected Send, Publish or Reply"),
        ("timeToBeReceived", "-00:00:01", "expected hh:mm:ss, at most 24.20:31:23"),
    ],
)
def test_the_error_of_a_bad_value_says_what_is_expected(
    option: str, value: str, expected: str
) -> None:
    """Of an option of a read or of a write."""
    kind = SinkOptions if option in {"delivery", "intent", "timeToBeReceived"} else SourceOptions

    with pytest.raises(BadOption) as refused:
        kind.parse(NOWHERE | {option: value})

    assert str(refused.value).startswith(f"option {option} is {value!r}: ")
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("maxmessagespertriger", "5", "is not known: did you mean maxMessagesPerTrigger?"),
        ("peek_delay", "5s", "is not known: did you mean peekDelay?"),
        ("url", "mysql://user@host/db", "is 'mysql://…': expected postgresql://user@host:5432/"),
        ("url", "host=db password=hush", "is '…': expected postgresql://user@host:5432/database"),
        ("url", None, "is missing: give postgresql://user@host:5432/database"),
    ],
)
def test_a_likely_typo_and_a_bad_url_raise_an_error(
    option: str, value: str | None, sentence: str
) -> None:
    """Names that are less alike are not refused: Spark's own sources know them."""
    given = NOWHERE | {"header": "json", option: value}

    with pytest.raises(BadInput, match=re.escape(f"option {option} {sentence}")):
        SourceOptions.parse({name: text for name, text in given.items() if text is not None})


def test_spark_reports_a_bad_option_at_once(spark: SparkSession) -> None:
    """`load` reads the options, and so does a write before it runs; no server is needed."""
    frame = spark.createDataFrame([("",)], "body string").write.format("sqlqueue").mode("append")

    spark.readStream.format("sqlqueue").options(**NOWHERE, header="json").load()
    with pytest.raises(PySparkException, match=f"option peekDelay is 'soon': {TIME}"):
        spark.readStream.format("sqlqueue").options(**NOWHERE, peekDelay="soon").load()
    with pytest.raises(PySparkException, match="option queue is missing: give a queue's name"):
        spark.readStream.format("sqlqueue").option("url", NOWHERE["url"]).load()
    with pytest.raises(PySparkException, match=r"deliverry is not known: did you mean delivery\?"):
        frame.options(**NOWHERE, deliverry="x").save()


# ---------------------------------------------------------------- what the server says


def browse_error(spark: SparkSession, options: dict[str, str]) -> str:
    """The error of a browse that must fail."""
    with pytest.raises(PySparkException) as refused:
        spark.read.format("sqlqueue").options(**options).load().count()
    return str(refused.value)


@only("postgresql", "sentences of that server and its driver")
def test_server_not_reachable(queue: SparkQueue) -> None:
    """No server listens at that port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"postgresql://postgres:hush@127.0.0.1:{port}/shop"

    found = browse_error(queue.spark, queue.options | {"url": url})

    assert f"no connection to postgresql://127.0.0.1:{port}/shop: " in found
    assert "Connection refused" in found
    assert "Check host, port and firewall in the url" in found


@only("postgresql", "sentences of that server and its driver")
def test_a_login_or_a_database_that_is_wrong(queue: SparkQueue) -> None:
    """The option `password` takes precedence over the password in the url."""
    given = urlsplit(queue.place.url)
    netloc = f"{given.username}:wrong@{given.hostname}:{given.port}"
    wrong = {"url": urlunsplit(given._replace(netloc=netloc))}
    absent = {"url": urlunsplit(given._replace(path="/absent"))}
    refused = (
        "refused the login: password authentication failed for user "
        f'"{given.username}". Check user and password.'
    )

    assert refused in browse_error(queue.spark, queue.options | wrong)
    assert refused in browse_error(queue.spark, queue.options | {"password": "wrong"})
    assert queue.reader(**wrong, password=given.password).load().count() == 0
    assert 'database "absent" does not exist. Create the database, or name another' in browse_error(
        queue.spark, queue.options | absent
    )


@pytest.mark.parametrize("broken", ["queue", "state", "version"])
def test_what_is_not_installed(queue: SparkQueue, broken: str) -> None:
    """A stream and a write report it before a message is touched."""
    queue.fill(0, 5)
    used, options, database = queue, {}, f" was not found in {queue.dotnet.dialect}://"
    if broken == "queue":
        used = queue.beside("absent")
        fix = "Create it with `sqlqueue create`, or grant this login the rights"
        sentences = [f"queue {used.name}{database}", fix]
        assert fix in browse_error(queue.spark, used.options)
    elif broken == "state":
        options = {"stateSchema": "not_there"}
        fix = "Run `sqlqueue install` once, set the option stateSchema to your team's schema"
        sentences = ["the state tables were not found in schema not_there of ", fix]
    else:
        queue.dba.change("version", version=99)
        found = f"the state tables in schema {queue.place.state} have version 99, but this release"
        sentences = [f"{found} supports {schema.VERSION}. Upgrade sqlq-spark here."]
    stream = used.stream(**options).load().writeStream.format("noop")

    with pytest.raises(StreamingQueryException) as streamed:
        queue.finish(stream)
    with pytest.raises(PySparkException) as sent:
        used.send(queue.spark.createDataFrame([("",)], "body string"), **options)

    for found in (str(streamed.value), str(sent.value)):
        assert [each for each in sentences if each not in found] == []
    assert queue.ids() == numbered(0, 5)


@pytest.fixture
def clerk(queue: SparkQueue) -> Iterator[dict[str, str]]:
    """Give a login that may enter both schemas, and belongs to the team of the state schema."""
    login = queue.dba.login()
    queue.dba.enlist(login)
    for each in (queue.place.schema, queue.place.state):
        queue.dba.admit(login, each)
    yield {"user": login.name, "password": login.password}
    queue.dba.drop_login(login)


def error_of(work: Callable[[], object]) -> str | None:
    """The error of Spark that some work ends with; None if it is done."""
    try:
        work()
    except PySparkException as refused:
        return str(refused)
    return None


def grants_until_done(queue: SparkQueue, user: str, work: Callable[[], object]) -> list[str]:
    """Repeat the work, and run the GRANT of each error; gives the grants."""
    granted: list[str] = []
    before = queue.count()
    while error := error_of(work):
        found = re.search(r"A DBA can fix this with: (GRANT [^\n]+? TO the_user)", error)
        assert found is not None, error
        assert found[1] not in granted, f"{found[1]} did not help: {error}"
        assert queue.count() == before
        queue.dba.run(found[1].replace("the_user", user))
        granted.append(found[1])
    return granted


def test_each_missing_right_is_named_until_all_are_there(
    queue: SparkQueue, clerk: dict[str, str]
) -> None:
    """The error has the GRANT; a DBA who runs each gets a working sink, then a working stream."""
    frame = queue.spark.createDataFrame([("m-0",)], "id string").selectExpr("id", "'' AS body")
    stream = queue.stream(**clerk).load()

    granted = grants_until_done(queue, clerk["user"], lambda: queue.send(frame, **clerk))
    sent = queue.count()
    granted += grants_until_done(queue, clerk["user"], lambda: queue.into_table(stream))

    assert sent == 1
    assert message_ids(queue.landed()) == ["m-0"]
    assert f"GRANT SELECT, DELETE, UPDATE (seq) ON {queue.name} TO the_user" in granted


@pytest.mark.parametrize(
    "name",
    [
        """it's "{queue}" %s :name $1 \\ /*; DROP TABLE orders; --""",
        "🚀 line\nbreak\ttab",
        "x" * 55,
    ],
)
def test_any_legal_name_works_end_to_end(queue: SparkQueue, name: str) -> None:
    """Sent, browsed and received; the queue `orders` beside it is not touched."""
    odd = queue.another(name)
    queue.fill(0, 1)
    sent = queue.spark.createDataFrame([("m-7", "{}"), ("m-8", "{}")], "id string, body string")

    odd.send(sent)
    odd.send(sent.selectExpr("replace(id, 'm-', 'n-') AS id", "body"), delivery="atLeastOnce")
    browsed = odd.reader().load().select("queue").distinct().collect()
    queue.into_table(odd.stream().load())

    assert [row.queue for row in browsed] == [odd.name]
    assert sorted(message_ids(queue.landed())) == ["m-7", "m-8", "n-7", "n-8"]
    assert [odd.count(), queue.count()] == [0, 1]
