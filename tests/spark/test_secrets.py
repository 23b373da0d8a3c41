"""No password in any plan, progress, log, error or traceback, however it was given or changed."""

from __future__ import annotations

import json
import os
import secrets
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit, urlunsplit

import pytest
from jobs.submit import started
from pyspark.errors import PySparkException
from rotation import rotation
from servers import only
from waiting import until

from spark import driver
from spark.stand import numbered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Place
    from pyspark.sql.streaming.query import StreamingQuery

    from spark.stand import SparkQueue

pytestmark = pytest.mark.spark

LOG4J = """
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c: %m%n%ex
"""


@dataclass(frozen=True)
class Login:
    """A login whose password has characters that urls and SQL must quote."""

    user: str
    password: str
    ways: dict[str, dict[str, str]]  # how a user may give it

    def shown_in(self, text: str) -> list[str]:
        """The lines that show the password, in any spelling."""
        known = (self.password, quote(self.password), quote(self.password, safe=""), "pA55")
        return [line for line in text.splitlines() if any(each in line for each in known)]


@pytest.fixture
def login(queue: SparkQueue) -> Iterator[Login]:
    """Give a login of its own to a test."""
    made = queue.dba.login(password=f"pA55 &w%rd'@/:{secrets.token_hex(4)}", all="yes")
    user, password = made.name, made.password
    at = urlsplit(queue.place.url)
    where = f"{at.hostname}:{at.port}"
    plain, own, other = (
        urlunsplit(at._replace(netloc=f"{known}{where}"))
        for known in ("", f"{user}:{quote(password, safe='')}@", f"{user}:wrong@")
    )
    query = f"{plain}?user={user}&password={quote(password)}"
    ways = {
        "url": {"url": own},
        "query": {"url": query},
        "option": {"url": plain, "user": user, "password": password},
        "both": {"url": other, "password": password},  # the option wins
    }
    yield Login(user, password, ways)
    queue.dba.drop_login(made)


def shown(query: StreamingQuery, queue: SparkQueue) -> str:
    """What a query stores and reports."""
    files = (each for each in queue.checkpoint.rglob("*") if each.is_file())
    stored = [each.read_text(encoding="utf-8", errors="replace") for each in files]
    return "\n".join([*stored, *(each.json for each in query.recentProgress), repr(query.status)])


@pytest.mark.parametrize("way", ["url", "query", "option", "both"])
def test_plans_and_progress(
    queue: SparkQueue, login: Login, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    """Plans of a frame, a write and a stream hide the password, in every mode of explain."""
    queue.fill(0, 20)
    out = queue.another("out")
    given = queue.options | login.ways[way]
    frame = queue.spark.read.format("sqlqueue").options(**given).load()
    stream = queue.spark.readStream.format("sqlqueue").options(**given).load().drop("queue")

    for mode in ("extended", "codegen", "cost", "formatted"):
        frame.explain(mode=mode)
    stream.explain(extended=True)
    writer = stream.writeStream.format("sqlqueue").options(**out.options | login.ways[way])
    query = queue.finish(writer)
    query.explain(extended=True)
    explained, stored = capsys.readouterr().out, shown(query, queue)

    assert "sqlqueue" in explained
    assert out.count() == 20
    assert '"bounds"' in stored
    assert login.shown_in(f"{explained}\n{stored}\n{frame!r}") == []


@pytest.mark.parametrize(
    ("way", "wrong"),
    [
        *(("url", wrong) for wrong in ("queue", "port", "login", "state", "option", "frame")),
        *((way, wrong) for way in ("query", "option") for wrong in ("port", "login")),
    ],
)
def test_errors(queue: SparkQueue, login: Login, way: str, wrong: str) -> None:
    """The sentences and tracebacks of a browse, a write and a stream hide the password."""
    queue.dba.drop(queue.address)
    given = queue.options | login.ways[way]
    port = f":{urlsplit(queue.place.url).port}/"
    given |= {
        "port": {"url": given["url"].replace(port, ":9/")},
        "login": {key: text.replace("pA55", "XpA55") for key, text in given.items()},
        "state": {"stateSchema": "not_there"},
        "option": {"queryTimeout": "soon"},
    }.get(wrong, {})
    columns, body = ("nope int", "text") if wrong == "frame" else ("seq bigint", "body")
    rows = queue.spark.createDataFrame([("",)], f"{body} string")
    reader, stream = (
        each.format("sqlqueue").options(**given).schema(columns)
        for each in (queue.spark.read, queue.spark.readStream)
    )

    for work in (
        lambda: reader.load().collect(),
        rows.write.format("sqlqueue").options(**given).mode("append").save,
        lambda: queue.finish(stream.load().writeStream.format("noop")),
    ):
        with pytest.raises(PySparkException) as refused:
            work()
        error = refused.value
        text = "".join(traceback.format_exception(error)) + repr(error) + str(error.args)
        assert login.shown_in(text) == []


def test_logs(queue: SparkQueue, login: Login) -> None:
    """Driver and workers log good batches and a bad one at INFO, without the password."""
    queue.fill(0, 20)
    queue.put('{"NServiceBus.MessageId":"m-20"}', None)  # refused by the sink, in a task
    out = queue.another("out")
    log, log4j = queue.folder / "log4j", queue.folder / "log4j2.properties"
    log4j.write_text(LOG4J.format(log=log), encoding="utf-8")
    relay = {
        "options": queue.options | login.ways["url"] | {"maxMessagesPerTrigger": "10"},
        "sink": "sqlqueue",
        "out": out.options | login.ways["option"],
        "checkpoint": str(queue.checkpoint),
    }
    settings = {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log4j}"}
    job = {"streams": [relay], "log": "INFO", "settings": settings}

    words = [sys.executable, driver.__file__, json.dumps(job)]
    with started(words, queue.folder, dict(os.environ)) as running:
        done = running.ended()

    written = log.read_text(encoding="utf-8", errors="replace")
    assert out.count() == 20, done.log[-3000:]
    assert done.code == 1
    assert "MicroBatchExecution" in written
    assert "body is null" in written
    assert login.shown_in(written + done.out + done.log) == []


@only("postgresql", "the option credentials")
def test_a_stream_and_a_sink_go_on_while_their_password_changes(
    queue: SparkQueue, place: Place
) -> None:
    """Each message arrives once, the query never stops, and no password is stored or shown."""
    out, size = queue.another("out"), 50
    with rotation(place, queue.folder) as rotating:
        given = rotating.options
        stream = queue.spark.readStream.format("sqlqueue").options(**queue.options | given).load()
        writer = stream.drop("queue").writeStream.format("sqlqueue").options(**out.options | given)
        query = writer.option("checkpointLocation", str(queue.checkpoint)).start()
        try:
            for number, how in enumerate(("not", "at once", "late", "fails")):
                queue.fill(number * size, (number + 1) * size)
                before = len(rotating.calls)
                if how in {"at once", "late"}:
                    rotating.change()
                if how == "at once":
                    rotating.publish()
                if how == "fails":
                    rotating.withdraw()
                if how != "not":
                    rotating.end_sessions()  # as a restart of the server does
                if how in {"late", "fails"}:  # two logins are refused
                    until(lambda: len(rotating.calls) >= before + 2)  # noqa: B023
                    rotating.publish()
                until(out.count, (number + 1) * size, told=query.exception)
        finally:
            query.stop()

        assert query.exception() is None
        assert sorted(out.ids()) == sorted(numbered(0, 4 * size))
        assert queue.count() == 0
        assert {call.partition(" ")[2] for call in rotating.calls} == {rotating.url}
        assert len({call.partition(" ")[0] for call in rotating.calls}) >= 2  # processes
        assert rotating.shown_in(shown(query, queue)) == []
