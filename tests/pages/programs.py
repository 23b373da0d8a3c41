"""
Command lines of other programs in the documents: their words are checked, nothing is started.

A change of ours can remove a module, a job, an extra or a switch that they name.
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
    Check the words of one command, or of several with `&&` between them.

    Raises:
        AssertionError: something that it names is not there.
    """
    if "&&" in words:
        at = words.index("&&")
        check(words[:at])
        check(words[at + 1 :])
        return
    program, *rest = words
    program = re.sub(r"^[\w.-]+/bin/", "", program)
    assert program in KNOWN, f"nothing checks {program!r}"
    KNOWN[program](rest)


def variable(name: str) -> None:
    """Check that a module of ours reads a variable of ours."""
    if name.startswith("SQLQ"):
        paths = (path for each in ("sqlq_spark", "jobs", "tests") for path in ROOT.rglob(each))
        texts = (file.read_text(encoding="utf-8") for path in paths for file in path.rglob("*.py"))
        assert any(name in text for text in texts), f"nothing reads {name}"


def submit(words: list[str]) -> None:
    """Check `spark-submit`: its flags, and the job with its own."""
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            job(word, [*rest])
            return
        assert word in SUBMIT, f"spark-submit has no {word}, or it is not listed here"
        value = next(rest)
        assert word != "--conf" or re.fullmatch(r"spark\.[\w.]+=.+", value), value
    raise AssertionError("spark-submit of nothing")


def job(path: str, words: list[str]) -> None:
    """Check the flags of a job, if it is one of ours."""
    if not path.startswith("jobs/"):
        return
    assert (ROOT / path).exists(), path
    text = (ROOT / "sqlq_spark" / path).read_text(encoding="utf-8")
    for word in words:
        field = f"\n    {word.removeprefix('--').replace('-', '_')}: "
        known = word in {"--dry-run", "--help", "--settings"} or field in text
        assert known or not word.startswith("--"), word
        assert not word.startswith("conf/") or (ROOT / word).exists(), word


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


OTHERS = (  # nothing to check
    *("git", "ruff", "mypy", "databricks", "venv-pack", "twine", "uv", "npm"),
    *("cd", "./initdb", "./pg_ctl"),
)
KNOWN: dict[str, Callable[[list[str]], object]] = {
    "spark-submit": submit,
    "python": python,
    "python3": python,
    "pip": pip,
    "pytest": pytest_,
    "sphinx-build": len,
    "sqlqueue": known_words,
    **dict.fromkeys(OTHERS, len),
    **{
        name: partial(job, f"jobs/{name.removeprefix('sqlqueue-').replace('-', '_')}.py")
        for name in PROJECT["project"]["scripts"]
        if "-" in name
    },
}
