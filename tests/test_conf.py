"""
conf: what stands there is what the jobs take, and what Spark knows.

The bundle was held against the JSON schema of the Databricks command line, which may not be
shipped here; that its keys are right is therefore no promise of these tests, that its values are
is: each job's parameters are read as the job reads them.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml  # comes with sqlfluff
from jobs.submit import module

from sqlq_spark.job_words import load, parse_words

ROOT = Path(__file__).parent.parent
CONF = ROOT / "conf"
BUNDLE = yaml.safe_load((CONF / "databricks" / "databricks.yml").read_text(encoding="utf-8"))
JOBS = BUNDLE["resources"]["jobs"]
REFERENCE = re.compile(r"\$\{([^}]+)\}")
# what a deployment must say
GIVEN = {
    "url": "postgresql://lake@db.example:5432/shop",
    "target_url": "sqlserver://lake@db.example:1433/shop",
}


def read(job: str, *words: str) -> Any:
    """Read a command line as the job does, up to what it would open."""
    kind = module(job).Settings
    found = load(kind, parse_words("", kind, words), lambda scope, key: f"{scope}/{key}")
    found.options()
    return found


def texts(value: Any) -> list[str]:
    """Every text in a structure."""
    if isinstance(value, dict):
        return [text for each in value.values() for text in texts(each)]
    if isinstance(value, list):
        return [text for each in value for text in texts(each)]
    return [value] if isinstance(value, str) else []


def filled(text: str) -> str:
    """A text with its variables."""
    values = {name: each.get("default", GIVEN.get(name)) for name, each in variables().items()}
    return REFERENCE.sub(lambda found: str(values[found[1].removeprefix("var.")]), text)


def variables() -> dict[str, dict[str, Any]]:
    """The bundle's variables."""
    found: dict[str, dict[str, Any]] = BUNDLE["variables"]
    return found


def test_every_job_has_settings_and_a_place_in_the_bundle() -> None:
    """And nothing else has."""
    jobs = {path.stem for path in (ROOT / "jobs").glob("*.py")}

    assert jobs == {path.stem for path in CONF.glob("*.toml")} == set(JOBS)


# ---------------------------------------------------------------- the bundle


@pytest.mark.parametrize("name", sorted(JOBS))
def test_the_bundle_gives_a_job_what_it_takes(name: str) -> None:
    """The file is there, its parameters are read, the password comes from the secret scope."""
    (task,) = JOBS[name]["tasks"]
    given = task["spark_python_task"]

    found = read(name, *map(filled, given["parameters"]))

    assert (CONF / "databricks" / given["python_file"]).resolve() == ROOT / "jobs" / f"{name}.py"
    passwords = {
        field: getattr(found, field)
        for field, each in type(found).__dataclass_fields__.items()
        if each.metadata["secret"]
    }
    assert passwords
    assert set(passwords.values()) <= {"sqlqueue/password", "sqlqueue/target-password"}
    assert len(set(passwords.values())) == len(passwords)
    assert [each["whl"] for each in task["libraries"]] == ["../../dist/*.whl"]
    assert task["job_cluster_key"] in {
        each["job_cluster_key"] for each in JOBS[name]["job_clusters"]
    }


def test_each_checkpoint_is_one_jobs_own() -> None:
    """Two jobs on one would take it from each other; so would two runs of one."""
    flags = [
        word
        for each in JOBS.values()
        for word in each["tasks"][0]["spark_python_task"]["parameters"]
        if word.startswith("--checkpoint=")
    ]

    assert len(flags) == len(set(flags)) == len(JOBS) - 1  # maintenance has none
    assert {each["max_concurrent_runs"] for each in JOBS.values()} == {1}


def test_no_schedule_runs_before_someone_lets_it() -> None:
    """By one variable for all of them."""
    assert {each["schedule"]["pause_status"] for each in JOBS.values()} == {"${var.schedules}"}
    assert variables()["schedules"]["default"] == "PAUSED"


def test_every_variable_is_declared_and_used() -> None:
    """Those without a default are what the head of the file says."""
    used = {name for text in texts(BUNDLE) for name in REFERENCE.findall(text)}
    declared = {f"var.{name}" for name in variables()}
    required = {name for name, each in variables().items() if "default" not in each}

    assert {name for name in used if name.startswith("var.")} == declared
    assert used - declared == {"bundle.name", "bundle.target"}
    assert required == set(GIVEN)
    assert all(
        each["description"].endswith(".") or "://" in each["description"]
        for each in variables().values()
    )


def test_the_bundle_takes_along_what_it_runs() -> None:
    """A file outside the bundle's folder must be named to be synchronised."""
    folders = {(CONF / "databricks" / each).resolve() for each in BUNDLE["sync"]["paths"]}

    assert folders == {ROOT / "jobs"}
    assert (CONF / "databricks" / BUNDLE["artifacts"]["sqlq_spark"]["path"]).resolve() == ROOT
    assert {name: each["mode"] for name, each in BUNDLE["targets"].items()} == {
        "dev": "development",
        "prod": "production",
    }


# ---------------------------------------------------------------- Spark


def defaults() -> dict[str, str]:
    """spark-defaults.conf, as spark-submit reads it."""
    text = (CONF / "spark-defaults.conf").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return dict(line.split(None, 1) for line in lines)


def test_the_bundles_cluster_is_set_as_sparks_defaults_are() -> None:
    """But for what Databricks brings or sizes by itself."""
    given = variables()["cluster"]["default"]["spark_conf"]

    assert given.items() <= defaults().items()
    assert defaults().keys() - given.keys() == {
        "spark.databricks.delta.snapshotPartitions",
        "spark.executor.cores",
        "spark.executor.memoryOverhead",
        "spark.jars.packages",
        "spark.sql.catalog.spark_catalog",
        "spark.sql.extensions",
    }


def test_the_jar_of_delta_is_the_one_that_is_tested() -> None:
    """It fits the delta-spark and the pyspark that the tests run with."""
    spark = ".".join(version("pyspark").split(".")[:2])

    assert defaults()["spark.jars.packages"] == (
        f"io.delta:delta-spark_{spark}_2.13:{version('delta-spark')}"
    )
