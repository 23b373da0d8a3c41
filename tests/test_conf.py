"""
conf: what stands there is what the jobs take, and what Spark knows.

The bundle was held against the JSON schema of the Databricks command line 1.9.0 (bundle/schema of
its repository) and the classes of databricks-bundles 1.22.1 for each job of each target: no error.
Neither may be shipped here. These tests hold its values to the code: each job's parameters are read
as the job reads them. It was deployed nowhere.
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml  # comes with sqlfluff
from jobs.submit import module

from sqlq_spark.jobs import settings

ROOT = Path(__file__).parent.parent
CONF = ROOT / "conf"
BUNDLE = yaml.safe_load((CONF / "databricks" / "databricks.yml").read_text(encoding="utf-8"))
JOBS = BUNDLE["resources"]["jobs"]
TARGETS = BUNDLE["targets"]
VARIABLES: dict[str, dict[str, Any]] = BUNDLE["variables"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REFERENCE = re.compile(r"\$\{([^}]+)\}")
# what a deployment must say
GIVEN = {
    "url": "postgresql://lake@db.example:5432/shop",
    "target_url": "sqlserver://lake@db.example:1433/shop",
}


def read(job: str, *words: str) -> Any:
    """Read a command line as the job does, up to what it would open."""
    kind = module(job).Settings
    with mock.patch.object(settings, "secret", lambda scope, key: f"{scope}/{key}"):
        found, _ = settings.load("", kind, words)
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
    values = {name: each.get("default", GIVEN.get(name)) for name, each in VARIABLES.items()}
    return REFERENCE.sub(lambda found: str(values[found[1].removeprefix("var.")]), text)


# ---------------------------------------------------------------- the bundle


@pytest.mark.parametrize("name", sorted(JOBS))
def test_the_bundle_gives_a_job_what_it_takes(name: str) -> None:
    """The entry point is its own, its parameters are read, the password is from the scope."""
    (task,) = JOBS[name]["tasks"]
    given = task["python_wheel_task"]

    found = read(name, *map(filled, given["parameters"]))

    assert given["package_name"] == PROJECT["name"].replace("-", "_")
    assert PROJECT["scripts"][given["entry_point"]] == f"sqlq_spark.jobs.{name}:main"
    passwords = {
        field: getattr(found, field)
        for field in type(found).__dataclass_fields__
        if field.endswith("password")
    }
    assert passwords
    assert set(passwords.values()) <= {"sqlqueue/password", "sqlqueue/target-password"}
    assert len(set(passwords.values())) == len(passwords)


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_each_job_of_a_target_has_somewhere_to_run(target: str) -> None:
    """With the wheel: a cluster of its own, or an environment of serverless compute."""
    found = TARGETS[target]["resources"]["jobs"]

    assert set(found) == set(JOBS)
    for each in found.values():
        (task,) = each["tasks"]
        if target == "serverless":
            (place,) = each["environments"]
            assert place["spec"]["dependencies"] == ["../../dist/*.whl"]
            assert task["environment_key"] == place["environment_key"]
        else:
            (place,) = each["job_clusters"]
            assert task["libraries"] == [{"whl": "../../dist/*.whl"}]
            assert task["job_cluster_key"] == place["job_cluster_key"]
        assert task["task_key"] == "run"  # by which it is merged with the job's


def test_a_target_for_each_runtime() -> None:
    """By the key of Databricks; of serverless compute by the version of the environment."""
    default = VARIABLES["spark_version"]["default"]
    runtimes = {
        name: each.get("variables", {}).get("spark_version", default)
        for name, each in TARGETS.items()
    }

    assert runtimes["dev"] == runtimes["lts_17_3"] == "17.3.x-scala2.13"
    assert runtimes["lts_18"] == "18.x-scala2.13"
    assert {name: each["mode"] for name, each in TARGETS.items()} == {
        "dev": "development",
        "lts_17_3": "production",
        "lts_18": "production",
        "serverless": "production",
    }


@pytest.mark.parametrize("path", ["conf/databricks/databricks.yml", "docs/jobs.md"])
def test_the_commands_give_what_the_bundle_does_not(path: str) -> None:
    """Each command of the bundle has the variables without a default, and a target."""
    text = re.sub(r"\\\n#? *", "", (ROOT / path).read_text(encoding="utf-8"))
    commands = re.findall(r"^(?:#\s+)?(databricks bundle .*)$", text, re.MULTILINE)

    assert {each.split()[2] for each in commands} >= {"deploy", "run"}
    for each in commands:
        assert set(re.findall(r"--var (\w+)=", each)) == set(GIVEN)
        assert re.search(r"--target (\w+)", each)[1] in TARGETS  # type: ignore[index]
    default = {name: each.get("default") for name, each in VARIABLES.items()}
    for command in (
        "secrets create-scope {secret_scope}",
        "secrets put-secret sqlqueue {secret_key}",
        "secrets put-secret sqlqueue {target_secret_key}",
        "schemas create {schema} {catalog}",
        "volumes create {catalog} {schema} {volume} MANAGED",
    ):
        assert f"databricks {command}".format(**default) in text


def test_every_job_is_in_the_bundle_with_a_checkpoint_of_its_own() -> None:
    """One run at a time, and no schedule before one variable allows it; from this project."""
    names = {path.stem for path in (ROOT / "jobs").glob("*.py")}
    flags = [
        word
        for each in JOBS.values()
        for word in each["tasks"][0]["python_wheel_task"]["parameters"]
        if word.startswith("--checkpoint=")
    ]

    assert len(flags) == len(set(flags)) == len(JOBS) - 1  # maintenance has none
    assert names == {path.stem for path in CONF.glob("*.toml")} == set(JOBS)
    assert {each["max_concurrent_runs"] for each in JOBS.values()} == {1}
    assert {each["schedule"]["pause_status"] for each in JOBS.values()} == {"${var.schedules}"}
    assert VARIABLES["schedules"]["default"] == "PAUSED"
    assert (CONF / "databricks" / BUNDLE["artifacts"]["sqlq_spark"]["path"]).resolve() == ROOT


def test_every_variable_is_declared_and_used() -> None:
    """Those without a default are what the head of the file says."""
    used = {name for text in texts(BUNDLE) for name in REFERENCE.findall(text)}
    declared = {f"var.{name}" for name in VARIABLES}
    required = {name for name, each in VARIABLES.items() if "default" not in each}

    assert {name for name in used if name.startswith("var.")} == declared
    assert used - declared == {"bundle.name", "bundle.target"}
    assert required == set(GIVEN)
    assert all(
        each["description"].endswith(".") or "://" in each["description"]
        for each in VARIABLES.values()
    )


# ---------------------------------------------------------------- Spark


def defaults() -> dict[str, str]:
    """spark-defaults.conf, as spark-submit reads it."""
    text = (CONF / "spark-defaults.conf").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return dict(line.split(None, 1) for line in lines)


def test_the_bundles_cluster_is_set_as_sparks_defaults_are() -> None:
    """But for what Databricks brings or sizes; the jar of Delta fits the tested packages."""
    cluster = TARGETS["dev"]["resources"]["jobs"]["relay"]["job_clusters"][0]["new_cluster"]
    given = cluster["spark_conf"]

    assert given.items() <= defaults().items()
    assert defaults().keys() - given.keys() == {
        "spark.databricks.delta.snapshotPartitions",
        "spark.executor.cores",
        "spark.executor.memoryOverhead",
        "spark.jars.packages",
        "spark.sql.catalog.spark_catalog",
        "spark.sql.extensions",
    }

    spark = ".".join(version("pyspark").split(".")[:2])
    assert defaults()["spark.jars.packages"] == (
        f"io.delta:delta-spark_{spark}_2.13:{version('delta-spark')}"
    )
