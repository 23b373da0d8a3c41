"""
conf: what stands there is what the jobs take, and what Spark knows.

The bundle was held against the JSON schema of the Databricks command line 1.9.0 (bundle/schema of
its repository) and the classes of databricks-bundles 1.22.1 for each job of each target: no error.
Neither may be shipped here. It was deployed nowhere.
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import servers
import yaml  # comes with sqlfluff
from jobs.submit import module

from sqlq_spark.jobs import settings

ROOT = Path(__file__).parent.parent
CONF = ROOT / "conf"
BUNDLE = yaml.safe_load((CONF / "databricks" / "databricks.yml").read_text(encoding="utf-8"))
JOBS = BUNDLE["resources"]["jobs"]
VARIABLES: dict[str, dict[str, Any]] = BUNDLE["variables"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REFERENCE = re.compile(r"\$\{([^}]+)\}")
# what a deployment must say
GIVEN = {
    "url": "postgresql://lake@db.example:5432/shop",
    "target_url": "sqlserver://lake@db.example:1433/shop",
}


def filled(text: str) -> str:
    """A text with its variables."""
    values = {name: each.get("default", GIVEN.get(name)) for name, each in VARIABLES.items()}
    return REFERENCE.sub(lambda found: str(values[found[1].removeprefix("var.")]), text)


@pytest.mark.parametrize("name", sorted(JOBS))
def test_the_bundle_gives_a_job_what_it_takes(name: str) -> None:
    """Its parameters are read as the job reads them, and each password is of the scope."""
    (task,) = JOBS[name]["tasks"]
    given = task["python_wheel_task"]
    kind = module(name).Settings

    with mock.patch.object(settings, "secret", lambda scope, key: f"{scope}/{key}"):
        found, _ = settings.load("", kind, [*map(filled, given["parameters"])])

    assert found.options()
    assert given["package_name"] == PROJECT["name"].replace("-", "_")
    assert PROJECT["scripts"][given["entry_point"]] == f"sqlq_spark.jobs.{name}:main"
    fields = [field for field in kind.__dataclass_fields__ if field.endswith("password")]
    passwords = {getattr(found, field) for field in fields}
    assert passwords <= {"sqlqueue/password", "sqlqueue/target-password"}
    assert len(passwords) == len(fields) > 0


def test_every_job_runs_somewhere_once_with_a_checkpoint_of_its_own() -> None:
    """In each target, with the wheel of this project; not before one variable allows it."""
    parameters = [each["tasks"][0]["python_wheel_task"]["parameters"] for each in JOBS.values()]
    flags = [word for each in parameters for word in each if word.startswith("--checkpoint=")]

    assert len(flags) == len(set(flags)) == len(JOBS) - 1  # maintenance has none
    assert set(JOBS) == {path.stem for path in (ROOT / "jobs").glob("*.py")}
    assert {each["max_concurrent_runs"] for each in JOBS.values()} == {1}
    assert {each["schedule"]["pause_status"] for each in JOBS.values()} == {"${var.schedules}"}
    assert VARIABLES["schedules"]["default"] == "PAUSED"
    assert (CONF / "databricks" / BUNDLE["artifacts"]["sqlq_spark"]["path"]).resolve() == ROOT
    assert {name for name, each in VARIABLES.items() if "default" not in each} == set(GIVEN)
    for target, its in BUNDLE["targets"].items():
        assert set(its["resources"]["jobs"]) == set(JOBS)
        for each in its["resources"]["jobs"].values():
            (task,) = each["tasks"]
            kind = "environment" if target == "serverless" else "job_cluster"
            (place,) = each[f"{kind}s"]
            assert task[f"{kind}_key"] == place[f"{kind}_key"]
            assert "../../dist/*.whl" in str(place if target == "serverless" else task)


def test_sparks_defaults_are_those_of_the_bundles_cluster_and_of_the_tested_delta() -> None:
    """The jar of Delta fits the tested packages."""
    lines = (CONF / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    defaults = dict(line.split(None, 1) for line in lines if line.strip() and line[0] != "#")
    relay = BUNDLE["targets"]["dev"]["resources"]["jobs"]["relay"]

    assert relay["job_clusters"][0]["new_cluster"]["spark_conf"].items() <= defaults.items()
    spark = ".".join(version("pyspark").split(".")[:2])
    delta = f"io.delta:delta-spark_{spark}_2.13:{version('delta-spark')}"
    assert defaults["spark.jars.packages"] == delta


def test_a_server_of_compose_is_local_and_its_password_comes_from_the_environment() -> None:
    """No password is in the file, or in what compose shows; SQL Server is the suites' own."""
    services = yaml.safe_load((CONF / "compose.yaml").read_text())["services"]
    for name, variable in (("sqlserver", "MSSQL_SA_PASSWORD"), ("postgresql", "POSTGRES_PASSWORD")):
        (port,) = services[name]["ports"]
        assert re.fullmatch(r"127\.0\.0\.1:\$\{\w+_PORT:-(\d+)\}:\1", port)
        given = services[name]["environment"][variable]
        assert re.fullmatch(rf"\$\{{{variable}:\?[^}}]+\}}", given)
    command = services["sqlserver"]["healthcheck"]["test"][1]
    assert '-P "$$MSSQL_SA_PASSWORD"' in command  # one $ would be filled in
    assert "READ_COMMITTED_SNAPSHOT ON" in command  # as Azure SQL's
    assert services["sqlserver"]["image"] == servers.IMAGE
