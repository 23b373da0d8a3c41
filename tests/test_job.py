"""Jobs without Spark: settings, refused ones, hidden secrets, names of tables, exit codes."""

from __future__ import annotations

import io
import json
import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml  # comes with sqlfluff
from hypothesis import given as drawn
from hypothesis import strategies as st
from jobs.submit import module

from sqlq_spark.errors import QueueNotFound
from sqlq_spark.jobs import runner as job
from sqlq_spark.jobs import settings as job_settings
from sqlq_spark.jobs import streams
from sqlq_spark.jobs.error_triage import TriageSettings
from sqlq_spark.jobs.queue_to_delta import OTHER, QueueToDeltaSettings, application, table_name
from sqlq_spark.jobs.settings import BadSettings
from sqlq_spark.options import SinkOptions, SourceOptions

ROOT = Path(__file__).parent.parent
JOBS = sorted(path.stem for path in (ROOT / "jobs").glob("*.py"))
BARE = "postgresql://spark@localhost:5432/shop"
URL = "postgresql://spark:s3cret@localhost:5432/shop"
REST = ["--queue", "a", "--table", "t"]
WORDS = ["--url", URL, *REST]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove url and password from the environment, except the test's own."""
    for name in ("SQLQUEUE_URL", "SQLQUEUE_PASSWORD", "PGPASSWORD"):
        monkeypatch.delenv(name, raising=False)


def loaded(*words: str, kind: Any = TriageSettings) -> Any:
    """The settings of a command line, where the secret scope has a password."""
    with mock.patch.object(job_settings, "secret", lambda *name: "/".join(name)):
        return job_settings.load_settings("Do it.", kind, words)[0]


def file(folder: Path, text: str) -> str:
    """A file of settings."""
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def refused(*words: str) -> str:
    """The error of a wrong command line."""
    with pytest.raises(BadSettings) as error:
        loaded(*words)
    return str(error.value)


def test_a_flag_wins_over_the_file(tmp_path: Path) -> None:
    """What neither gives is the default. A table of the file is a flag that can be repeated."""
    own = f'url = "{URL}"\nqueue = "a"\ntable = "t"\ngroups = "x"\nlimit = 7\n'
    table = '[source]\npeekDelay = "1s"\nlimit = 3\nfailOnDataLoss = false\n'
    path = file(tmp_path, f"{own}retention_days = 1\n{table}")

    made = loaded("--settings", path, "--queue", "b", "--table=u", "--groups", "y, z")

    assert (made.queue, made.table, made.groups, made.limit) == ("b", "u", ("y", "z"), 7)
    assert (made.retention_days, made.trigger, made.log_level) == (1.0, "availableNow", "FATAL")
    assert made.source == {"peekDelay": "1s", "limit": "3", "failOnDataLoss": "false"}
    made = loaded(*WORDS, "--source", "peekDelay=2s", "--source", "queue=x=y")
    assert made.source == {"peekDelay": "2s", "queue": "x=y"}


def test_all_that_is_wrong_is_listed_at_once(tmp_path: Path) -> None:
    """Each line has the name, what was found and what was expected."""
    path = file(tmp_path, 'tabel = "a"\nlimit = 0\nretention_days = "much"\ngroups = ["x"]\n')

    said = refused("--settings", path, "--trigger", "soon", "--source", "peekDelay")

    assert [re.split(": (?:expected|did|give)", line)[0] for line in said.splitlines()] == [
        "flag --source is ['peekDelay']",
        "flag --trigger is 'soon'",
        f"setting groups in {path} is ['x']",
        f"setting limit in {path} is 0",
        "setting queue is missing",
        f"setting retention_days in {path} is 'much'",
        f"setting tabel in {path} is not known",
        "setting table is missing",
        "setting url is missing",
    ]
    old = file(tmp_path, 'error_queue = "e"\ntable = "t"\n')
    renamed = "setting error_queue in {} is not known: it is now called queue"
    assert renamed.format(old) in refused("--settings", old)
    assert "flag --error-queue is not known: it is now called --queue" in refused(
        "--error-queue", "e"
    )
    assert "flag --tabel is not known: did you mean --table?" in refused("--tabel", "a")
    assert "environment or a secret scope: password" in refused("--password", "x")
    assert "flag --settings is '/none': expected a TOML file" in refused("--settings", "/none")


def test_where_a_password_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the url, the file, the environment, or a secret scope of Databricks."""
    scope = ["--secret-scope", "shop", "--secret-key", "db"]
    given, other = file(tmp_path, 'password = "of the file"'), "sqlserver://spark@localhost/shop"
    passwords = [loaded("--url", BARE, *REST, *scope).password]
    for name in ("PGPASSWORD", "SQLQUEUE_PASSWORD"):
        monkeypatch.setenv(name, name)
        passwords += [loaded("--url", url, *REST).password for url in (BARE, other, URL)]
    passwords.append(loaded("--url", BARE, *REST, "--settings", given).password)

    ours = "SQLQUEUE_PASSWORD"
    assert passwords == ["shop/db", "PGPASSWORD", None, None, ours, ours, None, "of the file"]
    assert loaded("--url", f"{BARE}?%70assword=y", *REST).password is None
    with pytest.raises(BadSettings, match="variable SQLQUEUE_PASSWORD"):
        job_settings.secret("shop", "db")


SECRETS = [
    "postgresql://spark@localhost:5432/shop?password=s3cret&sslmode=require",
    "postgresql://spark:s3@cret/s3cret@localhost/shop",
    "postgresql://spark:x\\ns3cret@localhost/shop",
    "sqlserver://spark@localhost/shop?password={x;s3cret}&encrypt=yes",
    "postgresql://spark@localhost/shop?p%61%73sw%6FrD=s3cret&sslmode=require",
    "postgresql://spark@localhost/shop?sslpassword=s3cret&oauth_client_secret=s3cret",
]


def test_no_secret_is_shown(tmp_path: Path) -> None:
    """A url, a table, a repr and an error hide the password."""
    for url in SECRETS:
        path = file(tmp_path, f'password = "s3cret"\nurl = "{url}"\n[source]\nx = "{url}"\n')
        made = loaded("--settings", path, *REST)
        said = {name: job_settings.show_value(name, each) for name, each in vars(made).items()}

        assert "s3cret" not in str(said) + repr(replace(made, source={}))
        assert sorted(name for name in said if "***" in said[name]) == ["password", "source", "url"]
        # no part of an unusual url is shown
        assert ("localhost" in said["url"]) == (url not in SECRETS[1:3])
        wrong = f'url = ["{url}", [{{ url = "{url}" }}]]\npassword = ["s3cret"]\n'
        error = refused("--settings", file(tmp_path, wrong))
        assert "s3cret" not in error
        assert "password in" in error
    assert job_settings.show_value("source", {"Password": "s3cret"}) == "***"


def test_an_option_that_is_not_passed_is_named_with_its_table() -> None:
    """The error comes before Spark starts."""
    for title, name, said in (
        ("source", "peekDelays", "not known: did"),
        ("source", "Queue", "set by the job"),
        ("source", "password", "set by the job"),
        ("sink", "checkpointLocation", "set by the job"),
    ):
        more: dict[str, Any] = {title: {name: "x"}}
        made = TriageSettings(url=URL, queue="a", table="t", **more)
        with pytest.raises(BadSettings, match=rf"setting {name} in \[{title}\] is {said}"):
            made.raw_options(title, made, queue="a")


def test_an_error_is_one_sentence() -> None:
    """Our errors have one sentence, also within Spark's text. Others have their name."""
    ours = QueueNotFound(queue='"public"."Orders"', server="localhost")
    spark = RuntimeError(
        "[STREAM_FAILED] Query terminated: Traceback (most recent call last):\n"
        f'  File "x.py", line 1\nsqlq_spark.errors.QueueNotFound: {ours}\n\n\tat org.apache.spark\n'
    )
    named = RuntimeError("see sqlq_spark.options.parse: it fails\nmore")

    assert job.describe_failure(ours) == job.describe_failure(spark) == str(ours)
    assert job.describe_failure(named) == "RuntimeError: see sqlq_spark.options.parse: it fails"
    java = RuntimeError("An error occurred while calling o1.start.\n: a.B: [LOG] no\n\tat a.C")
    assert job.describe_failure(java) == "RuntimeError: a.B: [LOG] no"
    assert job.describe_failure(KeyError()) == "KeyError: without a message"


def test_the_totals_are_the_last_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are JSON. A job that looks for problems ends with exit code 1 if it found one."""
    monkeypatch.setattr(streams, "session", lambda *_: nullcontext())
    for found, code in ((0, 0), (3, 1)):
        made = job.Job("", TriageSettings, lambda *_, found=found: {"found": found})
        assert made.main([*WORDS, "--checkpoint", "/c"]) == code
        said = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert said["found"] == found
        assert said["seconds"] >= 0


def test_no_character_of_the_totals_ends_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows writes into a file in an encoding that lacks most of them; the totals are UTF-8."""
    monkeypatch.setattr(streams, "session", lambda *_: nullcontext())
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, "cp1252"))

    def run(*_: object) -> dict[str, str]:
        job.print_line("łódź")
        return {"queue": "łódź"}

    assert job.Job("", TriageSettings, run).main([*WORDS, "--checkpoint", "/c"]) == 0

    line, totals = out.getvalue().splitlines()
    assert line.decode("cp1252") == r"\u0142ód\u017a"
    assert json.loads(totals.decode())["queue"] == "łódź"


def test_the_settings_in_conf_fit_their_job() -> None:
    """A file has all settings but login and log level, some as comments, and the Delta release."""
    for name in JOBS:
        path, kind = ROOT / "conf" / f"{name}.toml", module(name).main.kind
        made, _ = job_settings.load_settings("", kind, ["--settings", str(path)])

        assert made.options()
        listed = re.findall(r"^(?:# )?\[?(\w+)(?: =|\])", path.read_text("utf-8"), re.MULTILINE)
        missing = {each.name for each in job_settings.settings_of(kind)} - {*listed, "log_level"}
        assert [each for each in missing if not each.endswith(("user", "password"))] == [], name
    spark = ".".join(version("pyspark").split(".")[:2])
    delta = f"io.delta:delta-spark_{spark}_2.13:{version('delta-spark')}\n"
    assert delta in (ROOT / "conf/spark-defaults.conf").read_text(encoding="utf-8")


BUNDLE = yaml.safe_load((ROOT / "conf/databricks/databricks.yml").read_text(encoding="utf-8"))
VARIABLES = {name: each.get("default") for name, each in BUNDLE["variables"].items()}
VARIABLES |= {"url": BARE, "target_url": "sqlserver://lake@db.example:1433/shop"}


def test_the_bundle_gives_each_job_what_it_takes() -> None:
    """Its parameters are read as the job reads them, and the checkpoint is its own."""
    checkpoints = set()
    for name in JOBS:
        given = BUNDLE["resources"]["jobs"][name]["tasks"][0]["python_wheel_task"]["parameters"]
        words = [
            re.sub(r"\$\{var\.(\w+)\}", lambda its: str(VARIABLES[its[1]]), it) for it in given
        ]
        found = loaded(*words, kind=module(name).main.kind)
        assert found.options()
        checkpoints.add(getattr(found, "checkpoint", None))
    assert len(checkpoints) == len(JOBS)  # maintenance has none


# ---------------------------------------------------------------- the tables of queue_to_delta


def tables(**more: Any) -> Any:
    """TriageSettings of queue_to_delta."""
    given = {"url": "postgresql:///s", "queues": "q", "table": "t", "checkpoint": "c"}
    return QueueToDeltaSettings(**given | more)


ERROR = {"error_queue": "error"}
SPLIT = {"split": True, **ERROR}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"schema": "a INT"}, "setting error_queue is missing: messages whose body does not fit"),
    ({"schema": "a INT", **SPLIT}, "setting schema is for one table: with split use [schemas]"),
    ({"schemas": {"A": "a INT"}, **ERROR}, "settings names and schemas need split = true"),
    ({"schemas": {"A": "none.ddl"}, **SPLIT}, "setting A in [schemas] is 'none.ddl': expected"),
    (
        {"schemas": {"A": "a INT"}, "names": {"A": "both", "B": "both"}, **SPLIT},
        "setting names gives B and A the table both: expected the same schema for both",
    ),
    (
        {"schemas": {"A": "a INT"}, "names": {"A": "other"}, **SPLIT},
        "setting names gives A and other types the table other: expected the same schema",
    ),
    ({"format": "iceberg", "table": "/lake/t"}, "setting table is '/lake/t': expected a name"),
]


def test_settings_that_do_not_go_together() -> None:
    """The error names each of them, with what is expected."""
    for given, expected in REFUSED:
        with pytest.raises(BadSettings, match=re.escape(expected)):
            tables(**given)


def test_a_schema_of_a_file_and_where_failures_go(tmp_path: Path) -> None:
    """It is read once, without a byte order mark; failures have the state tables of the read."""
    path = tmp_path / "order.ddl"
    path.write_text("\ufeff\nnumber INT\n", encoding="utf-8")
    source = {"stateSchema": "mine", "allowedDestinations": "a*", "maxMessagesPerTrigger": "5"}

    made = tables(schema=str(path), source=source, **ERROR)
    path.unlink()
    found = SinkOptions.parse(made.failures("name", 7))

    assert made.ddl == {"": "number INT"}
    assert (found.state_schema, found.delivery, found.txn_version) == ("mine", "exactlyOnce", 7)
    assert [each.table for each in (found.address, *found.allowed) if each] == ["error", "a*"]


@drawn(st.text(st.characters(exclude_categories=[]), max_size=300))
def test_a_name_of_a_table_is_harmless(message_type: str) -> None:
    """It is short, has letters, digits and underscores, and is not `other`."""
    name = table_name(message_type)

    assert re.fullmatch(r"[a-z0-9_]{8,69}", name)
    assert name == table_name(message_type) != OTHER


def test_what_looks_alike_is_kept_apart() -> None:
    """Names of tables ignore case. Writes differ by stream, share, rules and schema."""
    types = ["Shop.Placed", "shop.placed", "Shop_Placed", "Shop`Placed", "../Shop.Placed", "Ü", ""]
    rules: list[dict[str, Any]] = [
        {},
        {"names": {"A": "a"}},
        {"names": {"A": "b"}},
        {"headers_format": "json"},
    ]
    writes: list[tuple[str, dict[str, Any]]] = [
        (each, {"split": True, **more}) for each in ("paid", "Paid") for more in rules
    ]
    writes += [("t", {"schema": schema, **ERROR}) for schema in ("a INT", "b INT")]
    known = {application(query, name, tables(**its)) for query in "12" for name, its in writes}
    one, other = (tables(split=True, names=dict.fromkeys(order, "a")) for order in ("AB", "BA"))

    assert len({table_name(each).lower() for each in types}) == len(types)
    assert len(known) == 2 * len(writes)
    assert application("1", "x", one) == application("1", "x", other)


@pytest.mark.parametrize(
    ("given", "limit"), [({}, 256 << 20), ({"MAXMESSAGEBYTES": "512m"}, 512 << 20)]
)
def test_the_only_limit_of_error_triage_is_that_of_messages(
    given: dict[str, str], limit: int
) -> None:
    """It follows maxMessageBytes in the table of options, in upper or lower case."""
    settings = TriageSettings(
        url="postgresql://host/shop", queue="error", table="t", checkpoint="c", source=given
    )
    options = SourceOptions.parse(settings.read())

    assert (options.max_header_bytes, options.max_message_bytes) == (limit, limit)
    assert not options.limits_headers
