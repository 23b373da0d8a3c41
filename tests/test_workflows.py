"""The workflows, the linters before a commit and the templates of issues say what the pages say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from pages.page import ROOT, blocks
from pages.programs import lines

if TYPE_CHECKING:
    from pathlib import Path

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTION = re.compile(r"[\w-]+/[\w-]+@(v\d+|release/v1)")


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))["jobs"]
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in jobs(path).values() for step in job["steps"]]


def shown(page: str) -> list[str]:
    """The commands of a page."""
    return [x for each in blocks(page) if each.language == "sh" for x in lines(each.text)]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_the_commands_of_the_pages_and_no_others(path: Path) -> None:
    """Word for word, so that whoever reads the page can repeat the workflow on a machine."""
    documented = {*shown("CONTRIBUTING.md"), *shown("README.md")}

    assert {step["run"] for step in steps(path) if "run" in step} - documented == set()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_few_rights_an_end_and_says_that_it_never_ran(path: Path) -> None:
    """Each action has a version, and a job that tests/upgrade runs in has the history."""
    text = path.read_text("utf-8")
    uses = [step["uses"] for step in steps(path) if "uses" in step]

    assert "This workflow has never run" in text
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    assert [name for name, job in jobs(path).items() if "timeout-minutes" not in job] == []
    assert [each for each in uses if not ACTION.fullmatch(each)] == []
    assert "secrets." not in text
    for job in jobs(path).values():
        runs = " ".join(step.get("run", "") for step in job["steps"])
        if re.search(r"pytest -q -n|tests/upgrade|tests\.mutants", runs):
            assert job["steps"][0]["with"]["fetch-depth"] == 0


def test_each_environment_of_the_compatibility_run_has_its_python() -> None:
    """A job that runs it installs the versions of Python that its environments name."""
    from compat.environments import MATRIX  # noqa: PLC0415 - only here

    for path in WORKFLOWS:
        for job in jobs(path).values():
            for run in (step.get("run", "") for step in job["steps"]):
                if "tests.compat" not in run:
                    continue
                _, _, names = run.partition("--only ")
                wanted = {x.python for x in MATRIX if not names or x.name in names.split()}
                (setup,) = (x for x in job["steps"] if "setup-python" in x.get("uses", ""))
                assert wanted <= {*setup["with"]["python-version"].split()}, path


def test_the_linters_before_a_commit_are_those_of_ci() -> None:
    """The hook, `.ci/run` and the workflow start them by the same commands."""
    settings = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    hooks = {each["entry"] for part in settings["repos"] for each in part["hooks"]}
    ci = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    linters = jobs(ROOT / ".github" / "workflows" / "tests.yml")["linters"]["steps"]

    runs = {step["run"] for step in linters if "run" in step}
    assert {each for each in runs if "pip install" not in each} == hooks
    assert hooks <= {line.removesuffix(" &") for line in ci}


def test_a_report_of_a_fault_asks_for_versions_and_the_file_of_selftest() -> None:
    """The command of the template is one that exists."""
    text = (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text("utf-8")
    fields = {each.get("id"): each for each in yaml.safe_load(text)["body"]}

    assert fields["versions"]["validations"]["required"]
    assert "sqlqueue-selftest.json" in fields["selftest"]["attributes"]["label"]
    assert "`sqlqueue selftest --roles`" in fields["selftest"]["attributes"]["description"]


def test_no_text_names_an_index_that_has_no_such_package() -> None:
    """What is printed works from a clone or a wheel. Somebody else may take the name."""
    texts = {x: x.read_text("utf-8") for x in (ROOT / "sqlq_spark").rglob("*.py")}

    assert texts
    assert [str(path) for path, text in texts.items() if "'sqlq-spark[" in text] == []
