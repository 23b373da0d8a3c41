"""The tables of the documents have the names that the code has: columns, options, jobs, errors."""

from __future__ import annotations

import importlib
import re
import sys
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import yaml  # comes with sqlfluff
from pyspark.sql.types import StructType

from sqlq_spark import errors
from sqlq_spark.admin.selftest import CHECKS
from sqlq_spark.admin.stats import QUEUE_COLUMNS, STREAM_COLUMNS
from sqlq_spark.database.postgresql import TOKENS
from sqlq_spark.database.postgresql import url as postgresql_url
from sqlq_spark.database.sqlserver import url as sqlserver_url
from sqlq_spark.datasource.write import StreamWriter
from sqlq_spark.jobs import runner
from sqlq_spark.jobs.settings import load_settings, settings_of
from sqlq_spark.options import SinkOptions, SourceOptions
from sqlq_spark.options.connection import SERVICES
from sqlq_spark.options.fields import option_names
from sqlq_spark.options.source import COLUMNS
from sqlq_spark.send.frame import WRITTEN, check_frame

from .page import ROOT, blocks, read, table
from .programs import PROJECT, check, split

if TYPE_CHECKING:
    from pathlib import Path

    from sqlq_spark.admin.formats import ShownColumn

JOBS = {
    path.stem: importlib.import_module(f"sqlq_spark.jobs.{path.stem}")
    for path in (ROOT / "jobs").glob("*.py")
}
BUNDLE = yaml.safe_load(read("conf/databricks/databricks.yml"))
TROUBLES = "docs/guide/troubleshooting.md"
BASES = {"BadInput", "CheckpointFailure", "DatabaseFailure"}  # only classes below them are raised
URL = "postgresql://host/shop"
METRICS = set(
    read("tests/golden/surface.txt").partition("\nmetrics: ")[2].split("\n")[0].split(", ")
)


def names(cells: list[str]) -> set[str]:
    """The names between backticks."""
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def options(kind: type) -> set[str]:
    """The options that users may set."""
    return {*option_names(kind).values(), "user", "password"} - {"checkpointLocation"}


def shown(columns: tuple[ShownColumn, ...]) -> set[str]:
    """The columns that a table on the terminal, or the page of `report`, has."""
    return {each.name for each in columns if each.only not in {"json", "metrics"}}


@pytest.mark.parametrize(
    ("page", "table_id", "known"),
    [
        ("jobs", "jobs", {*JOBS}),
        ("guide/databricks", "targets", {*BUNDLE["targets"]}),
        ("failed", "acknowledging-jobs", {*JOBS} - {"maintenance"}),
        ("columns", "write-columns", {*WRITTEN}),
        ("metrics", "metrics", METRICS),
        ("glossary", "stats", shown(QUEUE_COLUMNS)),
        ("glossary", "stats-streams", shown(STREAM_COLUMNS)),
        ("security", "credentials", {*SERVICES, "package.module:function"}),
        ("security", "tls", {"verify-full", "verify-ca", *postgresql_url.WEAK}),
        ("guide/checkpoints", "read-changes", options(SourceOptions)),
        ("guide/checkpoints", "write-changes", options(SinkOptions)),
    ],
)
def test_a_table_has_a_row_for_each_name(page: str, table_id: str, known: set[str]) -> None:
    """It has no row for another name. `known` is what the code has."""
    values = {"sslmode", "PGSSLMODE", "none", "receiveOnly", ".schema(…)"}

    assert names(table(f"docs/{page}.md", table_id).column()) - values == known


# ---------------------------------------------------------------- the format


def test_the_columns_of_a_read_and_of_a_write_have_their_types() -> None:
    """A wrong type in a write raises an error with the type that the page names."""
    read_columns = table("docs/columns.md", "read-columns").rows

    assert {row[0].strip("`"): row[1] for row in read_columns} == COLUMNS
    for cell, kind, _ in table("docs/columns.md", "write-columns").rows:
        with pytest.raises(errors.BadFrame, match=re.escape(f"expected {kind}")):
            check_frame({"body": "binary", cell.strip("`"): "boolean"}, queue=True)


def test_what_the_pages_name_of_sql_server_and_of_credentials_is_there() -> None:
    """They name parameters of a url, checks of selftest, extras and services."""
    with pytest.raises(errors.BadOption) as refused:
        sqlserver_url.Target.parse("sqlserver://host/shop?nope=1")
    parameters = names(table("docs/sqlserver.md", "url-parameters").column())
    checks = re.findall(r"`([a-z_]+)`", " ".join(table("docs/sqlserver.md", "checked").column(2)))

    assert parameters <= set(re.findall(r"\w+", str(refused.value)))
    assert {*checks} - {"sp_tableoption"} <= {each.__name__ for each in CHECKS}
    assert {*SERVICES} <= PROJECT["optional-dependencies"].keys() & TOKENS.keys()


def test_types_in_a_wrong_order_are_rejected_where_that_is_certain() -> None:
    """Where only the names tell, a warning is logged."""
    types = table("docs/bodies.md", "types")

    def warned(row: str) -> bool:
        options = {"url": URL, "queue": "q", "messageType": types.row(row)[0].strip("`")}
        with mock.patch("sqlq_spark.datasource.write.warn_once") as warning:
            StreamWriter(SinkOptions.parse(options), StructType().add("body", "binary"))
        return "handles each message twice" in str(warning.call_args)

    assert (warned("right"), warned("interface-first")) == (False, True)
    for row in ("twice", "blank"):
        with pytest.raises(errors.BadOption, match="or several joined by ;, each once"):
            warned(row)


# ---------------------------------------------------------------- jobs, errors


def test_the_settings_on_the_page_are_read_by_their_job(tmp_path: Path) -> None:
    """Every name and value can be read. The first line of a block names its job."""
    path = tmp_path / "settings.toml"
    for block in (each for each in blocks("docs/jobs.md") if each.language == "toml"):
        path.write_text(block.text, encoding="utf-8")
        name = block.text.partition("\n")[0].removeprefix("# ")

        settings: Any = load_settings("", JOBS[name].main.kind, ["--settings", str(path)])[0]
        assert settings.options(), name


def test_the_page_of_jobs_has_their_names_and_codes() -> None:
    """It has settings and exit codes. Another page says which jobs acknowledge retries."""
    known = {*JOBS} | set(re.findall(r"\b(\w+):", read("conf/databricks/databricks.yml")))
    known = known | {each.name for job in JOBS.values() for each in settings_of(job.main.kind)}
    acknowledging = table("docs/failed.md", "acknowledging-jobs").rows
    codes = [int(each) for each in table("docs/jobs.md", "exit-codes").column()]

    assert set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", read("docs/jobs.md"))) - known == set()
    assert codes == [runner.GOOD, runner.FOUND_PROBLEMS, runner.USAGE, runner.FAILED]
    assert {name.strip("`") for name, answer in acknowledging if answer.startswith("yes")} == {
        name for name, job in JOBS.items() if hasattr(job.main.kind, "acknowledge_retries")
    }


def test_the_airflow_task_tries_again_only_where_that_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The exit code of the job decides. The workflow on the same page is YAML that runs pytest."""
    task, workflow, _ = blocks("docs/orchestration.md")
    fail = type("AirflowFailException", (Exception,), {})
    sdk = mock.Mock(dag=lambda **_: lambda _: bool, task=lambda **_: lambda made: made)
    for name in ("airflow", "airflow.sdk", "airflow.sdk.exceptions"):
        monkeypatch.setitem(sys.modules, name, sdk)
    sdk.AirflowFailException = fail
    names: dict[str, Any] = {}
    exec(task.text, names)  # noqa: S102
    kinds = {runner.FOUND_PROBLEMS: fail, runner.USAGE: fail, runner.FAILED: RuntimeError}

    for code, kind in kinds.items():
        names["JOB"] = ["sh", "-c", f"exit {code}"]
        with pytest.raises(kind, match=f"exit code {code}"):
            names["receive"]()
    names["JOB"] = ["true"]
    names["receive"]()
    assert yaml.safe_load(workflow.text)["jobs"]["test"]["steps"][-1] == {"run": "pytest"}


def test_the_application_of_kubernetes_starts_a_job_with_settings_that_it_has() -> None:
    """Its password is in the variable that the job reads, and its settings are where it looks."""
    spec = yaml.safe_load(read("conf/spark-application.yaml"))["spec"]
    job = spec["mainApplicationFile"].removeprefix("local:///opt/shop/")
    [variable], [mount] = spec["driver"]["env"], spec["driver"]["configMaps"]

    check(split(" ".join([f"{variable['name']}=x spark-submit", job, *spec["arguments"]])))
    folder, _, name = spec["arguments"][1].rpartition("/")
    assert folder == mount["path"]
    assert (ROOT / "conf" / name).exists()


def test_each_error_has_a_row_with_the_text_that_it_prints() -> None:
    """The text follows the name of the error. No row is for an error that is gone."""
    rows = dict(re.findall(r"`(\w+)`<br>`([^`]+)`", read(TROUBLES)))
    types = {name: each for name, each in vars(errors).items() if isinstance(each, type)}
    kinds = {name for name, each in types.items() if issubclass(each, errors.SqlQueueError)}

    assert rows.keys() == kinds - BASES
    for name in rows.keys() - {"SqlQueueError"}:
        template: str = getattr(errors, name).template
        # the page has three dots for each fact, and options by their names
        facts = re.sub(rf"\{{({'|'.join(errors.NAMED_OPTIONS)})\}}", r"\1", template)
        assert rows[name] in re.sub(r"\{[^}]*\}", "…", facts)
