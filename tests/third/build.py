"""
A copy of the package with a third dialect, made by the steps of CONTRIBUTING's "A new dialect".

The database's folder is a copy of its model under another name. The other files are beside this
one, because they hold what is the third database's own.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

from pages.page import ROOT, table

if TYPE_CHECKING:
    from pathlib import Path

HERE = ROOT / "tests" / "third"
OWN = {
    "sqlq_spark/wire/third.py": HERE / "wire.py",
    "tests/conformance/transport_third.py": HERE / "transport.py",
}
FORMS = {"<name>": "third", "<NAME>": "THIRD", "<Name>": "Third"}
# what a copy of the model calls itself
RENAMED = {
    "sqlq_spark.database.postgresql": "sqlq_spark.database.third",
    "sqlq_spark.wire.postgresql": "sqlq_spark.wire.third",
    "POSTGRESQL": "THIRD",
}
# the driver knows only its own scheme
OPENED = "raw = drivers.open_session(url, server"
OPENED_AS = 'raw = drivers.open_session(url.replace("slashed://", "postgresql://", 1), server'


def in_code(cell: str) -> list[str]:
    """The part of a cell in backticks, with the dialect's name filled in."""
    texts = re.findall(r"`([^`]+)`", cell)
    for form, name in FORMS.items():
        texts = [text.replace(form, name) for text in texts]
    return texts


def files() -> dict[str, str]:
    """The files and folders of the first step: new → model."""
    rows = table("CONTRIBUTING.md", "dialect-files").rows
    return {in_code(new)[0]: in_code(model)[0] for new, model, _ in rows}


def lists() -> list[tuple[str, str, str, str]]:
    """The lists of the second step: the file and the list's name, the entry, and its import."""
    found = []
    for where, entry, imported in table("CONTRIBUTING.md", "dialect-lists").rows:
        name, path = in_code(where)
        found.append((path, name, in_code(entry)[0], in_code(imported)[0]))
    return found


def steps() -> set[str]:
    """All files and folders that the steps name."""
    return {*files(), *(path for path, *_ in lists())}


def build(folder: Path) -> None:
    """Copy the package and its tests, and take the steps."""
    ignored = shutil.ignore_patterns("__pycache__", "_build")
    for name in ("sqlq_spark", "tests", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "CONTRIBUTING.md", "README.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    assert {*OWN} < {*files()}
    for target, source in files().items():
        make(folder, target, source)
    for path, name, entry, imported in lists():
        enter(folder / path, name, entry, imported)


def make(folder: Path, target: str, source: str) -> None:
    """Make a file or folder: the third database's own, or a copy of its model."""
    if target in OWN:
        shutil.copy(OWN[target], folder / target)
        return
    for path in (folder / source).rglob("*"):
        if path.suffix not in {".py", ".sql"}:
            continue
        text = path.read_text("utf-8")
        if path.suffix == ".py":
            for old, new in RENAMED.items():
                text = text.replace(old, new)
            if path.name == "connection.py":
                assert OPENED in text
                text = text.replace(OPENED, OPENED_AS)
        copied = folder / target / path.relative_to(folder / source)
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_text(text, "utf-8")


def enter(path: Path, name: str, entry: str, imported: str) -> None:
    """Add an entry at the end of a list that has a line for each, and its import at the top."""
    text = path.read_text("utf-8")
    text, entered = re.subn(
        rf"(?ms)^({name}: [^\n]+ = \(\n.*?)^\)$", rf"\g<1>    {entry},\n)", text, count=1
    )
    assert entered == 1, f"{path} has no list {name} with a line for each entry"
    text = text.replace("\nif TYPE_CHECKING:", f"\n{imported}\n\nif TYPE_CHECKING:", 1)
    assert imported in text
    path.write_text(text, "utf-8")
