"""
Command lines of other programs in the documents: their words are checked, nothing is started.

What is checked is what a change of ours can make wrong: a module, a job, an extra or a switch that
is no longer there.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from typer.main import get_command

from sqlq_spark.cli import main

from .page import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
# of spark-submit, those that the documents use
SUBMIT = {
    "--archives",
    "--conf",
    "--files",
    "--master",
    "--name",
    "--packages",
    "--properties-file",
    "--py-files",
}


def split(line: str) -> list[str]:
    """The words of a command, without variables that stand before it."""
    # shlex would see a comment in the middle of a word
    words = shlex.split(re.sub(r"\s(?:#.*|>>? \S+$)", "", line))
    while "=" in words[0] and not words[0].startswith("-"):
        variable(words.pop(0).partition("=")[0])
    return words


def known_words(words: list[str]) -> None:
    """
    Check the command and the switches of `sqlqueue …` as the text of a page names them.

    Raises:
        AssertionError: a command or a switch is not known.
    """
    command: Any = get_command(main.app)
    path = ["sqlqueue"]
    for word in words:
        if hasattr(command, "commands") and not word.startswith("-"):
            assert word in command.commands, f"{' '.join(path)} has no {word}"
            command = command.commands[word]
            path.append(word)
        elif word.startswith("--"):
            names = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
            assert word in names | {"--help"}, f"{' '.join(path)} has no {word}"


def check(words: list[str]) -> None:
    """
    Check the words of one command.

    Raises:
        AssertionError: something that it names is not there.
    """
    words = [re.sub(r"^[\w.-]+/bin/", "", word) for word in words]
    if "&&" in words:
        at = words.index("&&")
        check(words[:at])
        check(words[at + 1 :])
        return
    known: dict[str, Callable[[list[str]], object]] = {
        "spark-submit": submit,
        "python": python,
        "python3": python,
        "pip": pip,
        "pytest": pytest_,
        "git": len,
        "ruff": len,
        "mypy": len,
        "databricks": len,
        "venv-pack": len,
        "twine": len,
        "uv": len,
        "sqlqueue": known_words,
        **{
            name: partial(settings_of, name)
            for name in PROJECT["project"]["scripts"]
            if "-" in name
        },
    }
    assert words[0] in known, f"nothing checks {words[0]!r}"
    known[words[0]](words[1:])


def variable(name: str) -> None:
    """A variable of the environment that some module of ours reads, or the system's."""
    if name.startswith("SQLQ"):
        texts = (path.read_text(encoding="utf-8") for path in sources())
        assert any(name in text for text in texts), f"nothing reads {name}"


def sources() -> list[Path]:
    """The Python files of package, jobs and tests."""
    folders = ("sqlq_spark", "jobs", "tests")
    return [path for folder in folders for path in ROOT.glob(f"{folder}/**/*.py")]


def submit(words: list[str]) -> None:
    """Check `spark-submit`: its flags, and the job with its own."""
    rest = iter(words)
    job = None
    for word in rest:
        if not word.startswith("--"):
            job = word
            break
        assert word in SUBMIT, f"spark-submit has no {word}, or it is not listed here"
        value = next(rest)
        assert word != "--conf" or re.fullmatch(r"spark\.[\w.]+=.+", value), value
    assert job is not None, "spark-submit of nothing"
    if job.startswith("jobs/"):
        assert (ROOT / job).exists(), job
        text = (ROOT / "sqlq_spark" / job).read_text(encoding="utf-8")
        for word in rest:
            field = f"\n    {word.removeprefix('--').replace('-', '_')}: "
            frames = {"--dry-run", "--help", "--settings"}
            assert not word.startswith("--") or word in frames or field in text, word
            assert not word.startswith("conf/") or (ROOT / word).exists(), word


def settings_of(command: str, words: list[str]) -> None:
    """Check the flags of a job's own command."""
    module = command.removeprefix("sqlqueue-").replace("-", "_")
    submit([f"jobs/{module}.py", *words])


def python(words: list[str]) -> None:
    """Check `python -m …`, or a script of the tree."""
    if words[0] != "-m":
        assert (ROOT / words[0]).exists(), words[0]
        return
    module, *rest = words[1:]
    if module in {"venv", "build", "pip"}:
        return
    if module == "pytest":
        pytest_(rest)
        return
    path = ROOT.joinpath(*module.split("."))
    found = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__main__.py"
    assert found.exists() or find_spec(module) is not None, module
    text = found.read_text(encoding="utf-8")
    for word in rest:
        assert not word.startswith("--") or word in text, f"{module} has no {word}"


def pip(words: list[str]) -> None:
    """Check the extras of `pip install`."""
    for word in words:
        for extra in re.findall(r"\[([\w,]+)\]$", word):
            assert set(extra.split(",")) <= PROJECT["project"]["optional-dependencies"].keys(), word


def pytest_(words: list[str]) -> None:
    """Check the paths that pytest is given."""
    for word in words:
        if word.startswith("tests/"):
            assert (ROOT / word.partition("::")[0]).exists(), word
