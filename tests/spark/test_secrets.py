"""No password in any plan, progress, log, error or traceback, however it was given."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit, urlunsplit

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from spark import driver
from spark.stand import Queue, finish

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

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
def login(queue: Queue) -> Iterator[Login]:
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


@pytest.mark.parametrize("way", ["url", "query", "option"])
def test_plans_and_progress(  # noqa: PLR0917 - fixtures
    spark: SparkSession,
    queue: Queue,
    login: Login,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    way: str,
) -> None:
    """Of a frame, a write and a stream, in every mode of explain."""
    queue.fill(0, 20)
    out = Queue(queue.place, "out")
    out.create()
    given = queue.options | login.ways[way]
    frame = spark.read.format("sqlqueue").options(**given).load()
    stream = spark.readStream.format("sqlqueue").options(**given).load().drop("queue")

    for mode in ("extended", "codegen", "cost", "formatted"):
        frame.explain(mode=mode)
    frame.explain(extended=True)
    stream.explain(extended=True)
    writer = stream.writeStream.format("sqlqueue").options(**out.options | login.ways[way])
    query = finish(writer, tmp_path / "checkpoint")
    query.explain(extended=True)
    shown = capsys.readouterr().out
    progress = "".join(each.json for each in query.recentProgress)
    checkpoint = "".join(
        path.read_text(encoding="utf-8", errors="replace")
        for path in (tmp_path / "checkpoint").rglob("*")
        if path.is_file()
    )

    assert "sqlqueue" in shown
    assert out.count() == 20
    assert json.loads(query.recentProgress[0].json)["numInputRows"] == 20
    assert '"bounds"' in checkpoint
    for text in (shown, progress, checkpoint, repr(frame), repr(query.status)):
        assert login.shown_in(text) == []


@pytest.mark.parametrize("way", ["url", "query", "option"])
@pytest.mark.parametrize("wrong", ["queue", "port", "option", "login", "state", "frame"])
def test_errors(  # noqa: PLR0917 - two lists of cases
    spark: SparkSession, queue: Queue, login: Login, tmp_path: Path, way: str, wrong: str
) -> None:
    """The sentence, the Python traceback and the JVM's, for what may go wrong on each side."""
    given = queue.options | login.ways[way]
    queue.dba.drop(queue.address)
    if wrong == "port":
        given["url"] = given["url"].replace(f":{urlsplit(queue.place.url).port}/", ":9/")
    elif wrong == "option":
        given["peekDelay"] = "10ms"
    elif wrong == "login":
        given = {key: text.replace("pA55", "XpA55") for key, text in given.items()}
    elif wrong == "state":
        given["stateSchema"] = "not_there"
    column = "text" if wrong == "frame" else "body"

    with pytest.raises(PySparkException) as read:
        spark.read.format("sqlqueue").options(**given).schema(
            "nope int" if wrong == "frame" else "seq bigint"
        ).load().collect()
    with pytest.raises(PySparkException) as sent:
        spark.createDataFrame([("",)], f"{column} string").write.format("sqlqueue").options(
            **{key: text for key, text in given.items() if key != "peekDelay"}
            | ({"delivery": "never"} if wrong == "option" else {})
        ).mode("append").save()
    errors: list[BaseException] = [read.value, sent.value]
    if wrong not in {"option", "frame"}:
        stream = spark.readStream.format("sqlqueue").options(**given).load()
        with pytest.raises(StreamingQueryException) as streamed:
            finish(stream.writeStream.format("noop"), tmp_path / "checkpoint")
        errors.append(streamed.value)

    for error in errors:
        text = "".join(traceback.format_exception(error)) + repr(error) + str(error.args)
        assert login.shown_in(text) == []


def test_logs(queue: Queue, login: Login, tmp_path: Path) -> None:
    """All that driver and workers write at INFO, of two good batches and a bad one."""
    queue.fill(0, 20)
    queue.put('{"NServiceBus.MessageId":"m-20"}', None)  # refused by the sink, in a task
    out = Queue(queue.place, "out")
    out.create()
    log, log4j = tmp_path / "log", tmp_path / "log4j2.properties"
    log4j.write_text(LOG4J.format(log=log), encoding="utf-8")
    job = {
        "options": queue.options | login.ways["url"] | {"maxMessagesPerTrigger": "10"},
        "sink": "sqlqueue",
        "out": out.options | login.ways["option"],
        "checkpoint": str(tmp_path / "checkpoint"),
        "log": "INFO",
        "settings": {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log4j}"},
    }

    done = subprocess.run(
        [sys.executable, driver.__file__, json.dumps(job)],
        capture_output=True,
        text=True,
        check=False,
    )

    written = log.read_text(encoding="utf-8", errors="replace")
    assert out.count() == 20, done.stderr[-3000:]
    assert done.returncode == 1
    assert "MicroBatchExecution" in written
    assert "body is null" in written
    assert login.shown_in(written + done.stdout + done.stderr) == []
