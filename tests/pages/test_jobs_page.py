"""docs/jobs.md: the jobs that are there, and settings that they read."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml  # comes with sqlfluff

from sqlq_spark.jobs import runner
from sqlq_spark.jobs.settings import load
from sqlq_spark.options import SourceOptions
from sqlq_spark.receive.receipts import CEILING

from .page import ROOT, Block, blocks, read, table

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

PAGE = "docs/jobs.md"
JOBS = sorted(path.stem for path in (ROOT / "jobs").glob("*.py"))


def loaded(name: str) -> ModuleType:
    """A job's module, without running it."""
    return importlib.import_module(f"sqlq_spark.jobs.{name}")


def filled(name: str, path: Path) -> Any:
    """The settings that a job makes of a file."""
    return load("", loaded(name).Settings, ["--settings", str(path)])[0]


def test_the_page_lists_the_jobs_that_are_there() -> None:
    """All of them, each with its settings' file."""
    jobs = table(PAGE, "jobs")

    assert sorted(cell.strip("`") for cell in jobs.column()) == JOBS
    assert [name for name in JOBS if not (ROOT / "conf" / f"{name}.toml").exists()] == []
    assert [name for name in JOBS if not loaded(name).__doc__] == []


@pytest.mark.parametrize(
    "block", [each for each in blocks(PAGE) if each.language == "toml"], ids=lambda each: each.text
)
def test_the_settings_on_the_page_are_read_by_their_job(block: Block, tmp_path: Path) -> None:
    """Every name and value; the first line names the job."""
    path = tmp_path / "settings.toml"
    path.write_text(block.text, encoding="utf-8")
    name = block.text.partition("\n")[0].removeprefix("# ")

    settings = filled(name, path)

    assert settings.options()


def test_the_jobs_that_acknowledge_have_the_setting() -> None:
    """The others have none; each job that sends or receives messages is in the table."""
    rows = table("docs/failed.md", "acknowledging-jobs").rows
    said = {cell.strip("`"): answer.startswith("yes") for cell, answer, _ in rows}
    known = {name: "acknowledge_retries" in loaded(name).Settings.__annotations__ for name in JOBS}

    assert said == {name: given for name, given in known.items() if name != "maintenance"}


def test_the_exit_codes_are_those_of_the_frame() -> None:
    """By number, and none is left out."""
    codes = table(PAGE, "exit-codes")

    assert [int(each) for each in codes.column()] == [
        runner.GOOD,
        runner.FOUND,
        runner.USAGE,
        runner.FAILED,
    ]


def test_a_setting_between_backticks_is_one_of_a_job() -> None:
    """A name with an underscore, on this page; or one of the bundle."""
    known = set(JOBS) | set(re.findall(r"\b(\w+):", read("conf/databricks/databricks.yml")))
    for name in JOBS:
        known |= set(loaded(name).Settings.__dataclass_fields__)
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", read(PAGE)))

    assert named - known == set()


def test_the_rule_of_sizes_is_that_of_the_code() -> None:
    """The options and their defaults; what a task holds; the memory as in spark-defaults.conf."""
    rule = table(PAGE, "sizes")
    text, defaults = read(PAGE), read("conf/spark-defaults.conf")
    options = SourceOptions.parse({"url": "postgresql://a@b/c", "queue": "q"})

    assert [cell.strip("`") for cell in rule.column()] == [
        "maxConcurrency",
        "maxMessagesPerTrigger",
        "spark.executor.memoryOverhead",
    ]
    assert f"the default is {options.max_messages:,}" in text
    assert f"at most {CEILING >> 20} MiB" in text
    assert "340 MB" in defaults
    assert re.search(r"spark.executor.cores +4\nspark.executor.memoryOverhead +2g", defaults)


def test_the_targets_are_those_of_the_bundle() -> None:
    """In their order."""
    targets = table(PAGE, "targets")
    bundle = yaml.safe_load(read("conf/databricks/databricks.yml"))

    assert [cell.strip("`") for cell in targets.column()] == [*bundle["targets"]]
