"""Command lines in the documents: our names in them must exist. Nothing is started."""

from __future__ import annotations

import re
import shlex
import tomllib
from typing import Any

from typer.main import get_command

from sqlq_spark.cli import main

from .page import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMMONS = {"--dry-run", "--help", "--settings"}  # switches of each job
SOURCES = [file for each in ("sqlq_spark", "tests") for file in (ROOT / each).rglob("*.py")]


def lines(text: str) -> list[str]:
    """The commands of a block, a line each."""
    joined = re.sub(r"\\\n\s*", "", text).splitlines()
    return [each for each in joined if each.strip() and not each.startswith("#")]


def split(line: str) -> list[str]:
    """Split a command into words. A variable SQLQ… before it must be one that some code reads."""
    # not shlex's own comments, because it would begin one in the middle of a word
    words = shlex.split(re.sub(r"\s(?:#.*|>>? \S+$)", "", line))
    while "=" in words[0] and not words[0].startswith("-"):
        name = words.pop(0).partition("=")[0]
        read = name[:4] != "SQLQ" or any(name in each.read_text("utf-8") for each in SOURCES)
        assert read, f"nothing reads {name}"
    return words


def check_sqlqueue(words: list[str]) -> None:
    """Check the command and the switches of `sqlqueue …`, which may lack its arguments."""
    command: Any = get_command(main.app)
    for word in words:
        if hasattr(command, "commands") and not word.startswith("-"):
            assert word in command.commands, f"there is no {word}"
            command = command.commands[word]
        elif word.startswith("--"):
            names = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
            assert word in names | {"--help"}, f"{command.name} has no {word}"


def check(words: list[str]) -> None:
    """Check a command, or several joined by `&&`: files, modules and extras in it must exist."""
    if "&&" in words:
        at = words.index("&&")
        check(words[:at])
        words = words[at + 1 :]
    program = words[0].rpartition("/")[2]
    if program == "sqlqueue":
        check_sqlqueue(words[1:])
        return
    jobs = [program.removeprefix("sqlqueue-")] if program.startswith("sqlqueue-") else []
    assert not jobs or program in PROJECT["scripts"], program
    for word, value in zip(words, [*words[1:], ""], strict=True):
        if re.match(r"(jobs|conf|tests)/", word):
            assert (ROOT / word.partition("::")[0]).exists(), word
            jobs += re.findall(r"^jobs/(\w+)\.py$", word)
        if extras := re.search(r"\[([\w,]+)\]$", word):
            assert {*extras[1].split(",")} <= {*PROJECT["optional-dependencies"]}, word
        if word == "-m" and value.startswith(("tests", "sqlq_spark")):
            module = ROOT.joinpath(*value.split("."))
            assert module.is_dir() or module.with_suffix(".py").exists(), value
        if jobs and word.startswith("--") and word not in COMMONS:
            job = ROOT / "sqlq_spark" / "jobs" / f"{jobs[0].replace('-', '_')}.py"
            setting = f"\n    {word[2:].replace('-', '_')}: "
            assert setting in job.read_text(encoding="utf-8"), word
