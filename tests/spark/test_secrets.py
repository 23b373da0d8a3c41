"""No password in any plan, progress, log, error or traceback, however it was given."""

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

from spark import driver

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    url: str  # of the test's database, with this login
    plain: str  # the same without any

    @property
    def ways(self) -> dict[str, dict[str, str]]:
        """How a user may give it."""
        return {
            "url": {"url": self.url},
            "query": {"url": f"{self.plain}?user={self.user}&password={quote(self.password)}"},
            "option": {"url": self.plain, "user": self.user, "password": self.password},
        }

    def shown_in(self, text: str) -> list[str]:
        """The lines that give it away, in any spelling."""
        known = (self.password, quote(self.password), quote(self.password, safe=""), "pA55")
        return [line for line in text.splitlines() if any(each in line for each in known)]


@pytest.fixture
def login(queue: SparkQueue) -> Iterator[Login]:
    """Give a login of its own to a test."""
    made = queue.dba.login(password=f"pA55 &w%rd'@/:{secrets.token_hex(4)}", all="yes")
    user, password = made.name, made.password
    at = urlsplit(queue.place.url)
    where = f"{at.hostname}:{at.port}"
    known = f"{user}:{quote(password, safe='')}@{where}"
    yield Login(
        user,
        password,
        urlunsplit(at._replace(netloc=known)),
        urlunsplit(at._replace(netloc=where)),
    )
    queue.dba.drop_login(made)


WAYS = pytest.mark.parametrize("way", ["url", "query", "option"])


@WAYS
def test_plans_and_progress(
    queue: SparkQueue,
    login: Login,
    capsys: pytest.CaptureFixture[str],
    way: str,
) -> None:
    """Of a frame, a write and a stream, in every mode of explain."""
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
    shown = capsys.readouterr().out
    progress = "".join(each.json for each in query.recentProgress)
    files = (path for path in (queue.folder / "checkpoint").rglob("*") if path.is_file())
    checkpoint = "".join(path.read_text(encoding="utf-8", errors="replace") for path in files)

    assert "sqlqueue" in shown
    assert out.count() == 20
    assert json.loads(query.recentProgress[0].json)["numInputRows"] == 20
    assert '"bounds"' in checkpoint
    for text in (shown, progress, checkpoint, repr(frame), repr(query.status)):
        assert login.shown_in(text) == []


@WAYS
@pytest.mark.parametrize("wrong", ["queue", "port", "login", "state", "option", "frame"])
def test_errors(queue: SparkQueue, login: Login, way: str, wrong: str) -> None:
    """The sentence, the Python traceback and the JVM's, of a browse, a write and a stream."""
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
    reader = queue.spark.read.format("sqlqueue").options(**given).schema(columns)
    frame = queue.spark.createDataFrame([("",)], f"{body} string").write.format("sqlqueue")
    stream = queue.spark.readStream.format("sqlqueue").options(**given).schema(columns)

    for work in (
        lambda: reader.load().collect(),
        lambda: frame.options(**given).mode("append").save(),
        lambda: queue.finish(stream.load().writeStream.format("noop")),
    ):
        with pytest.raises(PySparkException) as refused:
            work()
        error = refused.value
        text = "".join(traceback.format_exception(error)) + repr(error) + str(error.args)
        assert login.shown_in(text) == []


def test_logs(queue: SparkQueue, login: Login) -> None:
    """All that driver and workers write at INFO, of two good batches and a bad one."""
    queue.fill(0, 20)
    queue.put('{"NServiceBus.MessageId":"m-20"}', None)  # refused by the sink, in a task
    out = queue.another("out")
    log, log4j = queue.folder / "log4j", queue.folder / "log4j2.properties"
    log4j.write_text(LOG4J.format(log=log), encoding="utf-8")
    relay = {
        "options": queue.options | login.ways["url"] | {"maxMessagesPerTrigger": "10"},
        "sink": "sqlqueue",
        "out": out.options | login.ways["option"],
        "checkpoint": str(queue.folder / "checkpoint"),
    }
    java = f"-Dlog4j2.configurationFile=file:{log4j}"
    settings = {"spark.driver.extraJavaOptions": java}
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
