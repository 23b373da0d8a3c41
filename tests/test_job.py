"""A job's frame without Spark: settings, what is refused, what is blanked, exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sqlq_spark.errors import QueueNotFound
from sqlq_spark.jobs import runner as job
from sqlq_spark.jobs import settings as job_settings
from sqlq_spark.jobs import streams
from sqlq_spark.jobs.settings import days, pairs, setting, texts
from sqlq_spark.options.fields import Reader, count, flag

ROOT = Path(__file__).parent.parent
URL = "postgresql://spark:s3cret@localhost:5432/shop"
DAYS = "a number of days above 0, at most 36500"
BARE = "postgresql://spark@localhost:5432/shop"
FORMS = "The database: postgresql://user@host:5432/database or sqlserver://user@host:1433/database."


@dataclass(frozen=True, kw_only=True)
class Settings(job_settings.DatabaseSettings, job_settings.StreamSettings):
    """What the job of these tests takes."""

    queues: str = setting("Which.")
    names: tuple[str, ...] = setting("Several.", texts, default=())
    most: int = setting("How many.", Reader("at least 1", count.read), default=5)
    share: float = setting("Of 100%.", days, default=0.5)
    split: bool = setting("Apart.", flag, default=False)
    checkpoint: str | None = setting("Where.", default=None)  # type: ignore[assignment]
    source: dict[str, str] = setting("More.", pairs)
    sink: dict[str, str] = setting("More.", pairs)

    def options(self) -> job_settings.Opened:
        """Nothing is opened."""
        return []


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No url and no password but the test's own."""
    for name in ("SQLQUEUE_URL", "SQLQUEUE_PASSWORD", "PGPASSWORD"):
        monkeypatch.delenv(name, raising=False)


def loaded(*words: str, secret: dict[tuple[str, str], str] | None = None) -> Settings:
    """The settings of a command line."""
    read = mock.patch.object(job_settings, "secret", lambda *name: (secret or {})[name])
    with read if secret else nullcontext():
        return job_settings.load("Do it.", Settings, words)[0]


def file(folder: Path, text: str) -> str:
    """A file of settings."""
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def refused(*words: str) -> str:
    """What is said of a command line that is wrong."""
    with pytest.raises(job_settings.BadSettings) as error:
        loaded(*words)
    return str(error.value)


# ---------------------------------------------------------------- reading


def test_a_flag_wins_over_the_file(tmp_path: Path) -> None:
    """What neither gives is the default; a table of the file is a flag that is repeated."""
    path = file(
        tmp_path,
        f'url = "{URL}"\nqueues = "a"\nnames = "x"\nmost = 7\nshare = 1\n[source]\n'
        'peekDelay = "1s"\nmaxConcurrency = 3\nfailOnDataLoss = false\n',
    )

    made = loaded("--settings", path, "--queues", "b", "--split=true", "--names", "y, z")

    assert (made.queues, made.names, made.most, made.share) == ("b", ("y", "z"), 7, 1.0)
    assert (made.split, made.trigger, made.log_level) == (True, "availableNow", "FATAL")
    assert made.source == {"peekDelay": "1s", "maxConcurrency": "3", "failOnDataLoss": "false"}
    made = loaded("--url", URL, "--queues=a", "--source", "peekDelay=2s", "--source", "queue=x=y")
    assert made.source == {"peekDelay": "2s", "queue": "x=y"}


def test_all_that_is_wrong_is_listed_at_once(tmp_path: Path) -> None:
    """Each by its name, with what was found and what was expected."""
    path = file(tmp_path, 'quues = "a"\nmost = 0\nshare = "much"\nnames = ["x"]\nsplit = 1\n')

    said = refused("--settings", path, "--trigger", "soon")

    assert said.splitlines() == [
        "flag --trigger is 'soon': expected availableNow, or a time, for example 10s",
        f"setting most in {path} is 0: expected at least 1",
        f"setting names in {path} is ['x']: expected texts, separated by commas",
        "setting queues is missing: give --queues: Which.",
        f"setting quues in {path} is not known: did you mean queues?",
        f"setting share in {path} is 'much': expected {DAYS}",
        f"setting split in {path} is 1: expected true or false",
        f"setting url is missing: give --url, or environment variable SQLQUEUE_URL: {FORMS}",
    ]
    expected = f"flag --settings is '{path}': expected a TOML file (Invalid value"
    assert refused("--settings", file(tmp_path, "a =")).startswith(expected)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--quues", "a"], "flag --quues is not known: did you mean --queues?"),
        (["--password", "x"], "(Set only in the file, the environment or a secret scope: passw"),
        (["--pasword", "x"], "flag --pasword is not known: expected one of --"),
        (["--settings", "/none"], "flag --settings is '/none': expected a TOML file ([Errno 2] No"),
        (["--source", "peekDelay"], "flag --source is ['peekDelay']: expected a table of NAME = v"),
        (["--most", "many"], "flag --most is 'many': expected at least 1"),
        (["--share", "true"], "flag --share is 'true': expected a number of days"),
        (["--split", "maybe"], "flag --split is 'maybe': expected true or false"),
        (["--queues", " "], "flag --queues is ' ': expected text"),
    ],
)
def test_a_flag_that_is_wrong(words: list[str], said: str) -> None:
    """It is named."""
    assert said in refused("--url", URL, *words)


# ---------------------------------------------------------------- secrets


def test_where_a_password_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file, else the environment, ours first, else the secret scope of Databricks."""
    words = ["--url", BARE, "--queues", "a", "--secret-scope", "shop", "--secret-key", "db"]
    scope = {("shop", "db"): "from the scope"}
    path = file(tmp_path, 'password = "from the file"')

    passwords = [loaded(*words, secret=scope).password]
    for name in ("PGPASSWORD", "SQLQUEUE_PASSWORD"):
        monkeypatch.setenv(name, f"from {name}")
        passwords.append(loaded(*words, secret=scope).password)
    passwords.append(loaded(*words, "--settings", path).password)

    assert passwords == [
        "from the scope",
        "from PGPASSWORD",
        "from SQLQUEUE_PASSWORD",
        "from the file",
    ]
    with pytest.raises(job_settings.BadSettings, match="variable SQLQUEUE_PASSWORD"):
        job_settings.secret("shop", "db")


@pytest.mark.parametrize(
    ("url", "variable", "password"),
    [
        (BARE, "PGPASSWORD", "x"),
        (URL, "PGPASSWORD", None),
        (f"{BARE}?password=y", "SQLQUEUE_PASSWORD", None),
        (f"{BARE}?%70assword=y", "SQLQUEUE_PASSWORD", None),
        ("sqlserver://spark@localhost:1433/shop", "PGPASSWORD", None),
        ("sqlserver://spark@localhost:1433/shop", "SQLQUEUE_PASSWORD", "x"),
    ],
)
def test_a_password_of_another_database(
    url: str, variable: str, password: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in the url wins over the environment; that of PostgreSQL goes nowhere else."""
    monkeypatch.setenv(variable, "x")

    assert loaded("--url", url, "--queues", "a").password == password


@pytest.mark.parametrize(
    "url",
    [
        URL,
        "postgresql://spark@localhost:5432/shop?password=s3cret&sslmode=require",
        "sqlserver://spark:s3cret@localhost:1433/shop?encrypt=yes",
        "postgresql://spark:s3@cret/s3cret@localhost/shop",
        "postgresql://spark:x\\ns3cret@localhost/shop",
        "sqlserver://spark@localhost/shop?password={x;s3cret}&encrypt=yes",
        "postgresql://spark@localhost/shop?%70assword=s3cret",
        "postgresql://spark@localhost/shop?p%61%73sw%6FrD=s3cret&sslmode=require",
        "postgresql://spark@localhost/shop?sslpassword=s3cret",
        "postgresql://spark@localhost/shop?oauth_client_secret=s3cret",
    ],
)
def test_no_secret_is_shown(url: str, tmp_path: Path) -> None:
    """Not of the url, not of a table, not by repr."""
    path = file(
        tmp_path, f'password = "s3cret"\nurl = "{url}"\nqueues = "a"\n[source]\nx = "{url}"\n'
    )
    made = loaded("--settings", path)

    said = {name: job_settings.show(name, each) for name, each in vars(made).items()}

    assert "s3cret" not in str(said)
    assert sorted(name for name in said if "***" in said[name]) == ["password", "source", "url"]
    assert "localhost" in said["url"]
    assert "s3cret" not in repr(replace(made, source={}))
    without = loaded("--url", "postgresql://localhost/shop", "--queues", "a")
    assert job_settings.show("password", without.password) == "None"
    assert job_settings.show("source", {"Password": "s3cret"}) == "***"


def test_no_error_shows_a_secret(tmp_path: Path) -> None:
    """It only says that a password is wrong; a url is shown without its own, also in a list."""
    password = file(tmp_path, f'url = "{URL}"\nqueues = "a"\npassword = ["s3cret"]\n')
    expected = f"setting password in {password} is ***: expected text"
    assert refused("--settings", password) == expected
    url = file(tmp_path, f'url = ["{URL}", [{{ url = "{URL}" }}]]\nqueues = "a"\n')
    said = refused("--settings", url)
    assert "s3cret" not in said
    assert "spark:***@localhost" in said


# ---------------------------------------------------------------- options of source and sink


def test_what_is_passed_to_the_data_source() -> None:
    """A job's own options and those of its table, as the data source spells them."""
    table = {"PEEKDELAY": "2s", "maxMessagesPerTrigger": "10"}

    settings = Settings(url=URL, queues="a", source=table)

    raw = settings.raw_options("source", queues="a", errorQueue=None, failOnDataLoss=True)

    assert raw == {
        "url": URL,
        "queues": "a",
        "failOnDataLoss": "true",
        "peekDelay": "2s",
        "maxMessagesPerTrigger": "10",
    }


@pytest.mark.parametrize(
    ("title", "table", "said"),
    [
        ("source", {"peekDelays": "1s"}, "setting peekDelays in [source] is not known: did"),
        ("source", {"Queues": "b"}, "setting Queues in [source] is set by the job"),
        ("source", {"password": "x"}, "setting password in [source] is set by the job"),
        ("sink", {"quue": "b"}, "setting quue in [sink] is not known: did you mean queue?"),
        ("sink", {"checkpointLocation": "b"}, "setting checkpointLocation in [sink] is set"),
    ],
)
def test_an_option_that_is_not_passed(title: str, table: dict[str, str], said: str) -> None:
    """It is named, with the table where it stands, before Spark starts."""
    given: dict[str, Any] = {"url": URL, "queues": "a", title: table}

    with pytest.raises(job_settings.BadSettings) as error:
        Settings(**given).raw_options(title, queues="a")

    assert str(error.value).startswith(said)


# ---------------------------------------------------------------- how it ends


def test_an_error_is_one_sentence() -> None:
    """Ours in one sentence, also where only Spark's text of it is left; others by their name."""
    ours = QueueNotFound(queue='"public"."Orders"', server="localhost")
    spark = RuntimeError(
        "[STREAM_FAILED] Query terminated: Traceback (most recent call last):\n"
        f'  File "x.py", line 1\nsqlq_spark.errors.QueueNotFound: {ours}\n\n\tat org.apache.spark\n'
    )
    named = RuntimeError("see sqlq_spark.options.parse: it fails\nmore")

    assert job.sentence(ours) == job.sentence(spark) == str(ours)
    assert job.sentence(named) == "RuntimeError: see sqlq_spark.options.parse: it fails"
    assert job.sentence(KeyError()) == "KeyError: without a message"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--help"], 0, "Set only in the file, the environment or a secret scope: password."),
        ([], 2, "setting table is missing: give --table"),
        (["--url", "ftp://x:s3cret@y", "--queues=a", "--table=b", "--checkpoint=c"], 2, "ftp://…"),
    ],
)
def test_a_job_that_does_not_get_to_spark(words: list[str], code: int, said: str) -> None:
    """It says why and ends by its code, without a trace."""
    path = ROOT / "jobs" / "queue_to_delta.py"
    ended = subprocess.run(
        [sys.executable, str(path), *words], capture_output=True, text=True, check=False
    )

    assert ended.returncode == code
    assert said in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    assert "s3cret" not in ended.stderr


def test_without_pyspark_a_job_says_what_to_install() -> None:
    """Every job on Spark, by its exit code and without a trace."""
    program = (
        "import sys\n"
        "from importlib import import_module, metadata\n"
        "def missing(name): raise metadata.PackageNotFoundError(name)\n"
        "metadata.version, sys.modules['pyspark'] = missing, None\n"
        "for name in sys.argv[1:]:\n"
        "    print(import_module(f'sqlq_spark.jobs.{name}').main.main([]))\n"
    )
    names = sorted({path.stem for path in (ROOT / "jobs").glob("*.py")} - {"maintenance"})

    ended = subprocess.run(
        [sys.executable, "-c", program, *names], capture_output=True, text=True, check=True
    )

    assert ended.stdout.split() == ["2"] * len(names)
    said = "package pyspark is not installed. Run: pip install 'sqlq-spark[spark]'"
    assert ended.stderr.splitlines() == [f"{name}: {said}" for name in names]


@pytest.mark.parametrize(("found", "code"), [(0, 0), (3, 1)])
def test_the_totals_are_the_last_line(
    found: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As JSON; a job that looks ends by 1 when it found something."""
    monkeypatch.setattr(streams, "session", lambda *_: nullcontext())
    made = job.Job("", Settings, lambda *_: {"found": found})

    ended = made.main(["--url", URL, "--queues", "a"])

    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert ended == code
    assert said["found"] == found
    assert said["seconds"] >= 0


def test_without_java_or_delta_a_job_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before Spark starts, and before anything is received."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - slow to import

    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)  # of another test
    made, words = job.Job("", Settings, lambda *_: {}), ["--url", URL, "--queues", "a"]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "delta", None)
        assert made.main(words) == 2
    assert "add --properties-file conf/spark-defaults.conf" in capsys.readouterr().err

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert made.main(words) == 2
    assert f"JAVA_HOME is {tmp_path}, without bin/java. Install" in capsys.readouterr().err


# ---------------------------------------------------------------- conf/


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "jobs").glob("*.py")))
def test_the_settings_in_conf_fit_their_job(name: str) -> None:
    """Each of the job's settings stands there, be it as a comment, but login and log level."""
    from jobs.submit import module  # noqa: PLC0415 - imports pyspark

    path = ROOT / "conf" / f"{name}.toml"
    kind = module(name).Settings
    lines = path.read_text(encoding="utf-8").splitlines()
    words = [re.match(r"(?:# )?\[?(\w+)(?: =|\])", line) for line in lines]

    made, _ = job_settings.load("", kind, ["--settings", str(path)])

    assert made.options()
    names = {each.name for each in fields(kind)} - {"log_level"}
    listed = {found[1] for found in words if found}
    assert {name for name in names if not name.endswith(("user", "password"))} <= listed
