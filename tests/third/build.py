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
OPENED = "raw = drivers.connect(url, server"
OPENED_AS = 'raw = drivers.connect(url.replace("slashed://", "postgresql://", 1), server'


def in_code(cell: str) -> list[str]:
    """What a cell has in backticks, with the dialect's name filled in."""
    texts = re.findall(r"`([^`]+)`", cell)
    for form, name in FORMS.items():
        texts = [text.replace(form, name) for text in texts]
    return texts


def build(folder: Path) -> set[str]:
    """Copy the package and its tests, and take the steps; return the files that they name."""
    ignored = shutil.ignore_patterns("__pycache__", "_build")
    for folder_name in ("sqlq_spark", "tests", "docs"):
        shutil.copytree(ROOT / folder_name, folder / folder_name, ignore=ignored)
    for file_name in ("pyproject.toml", "CONTRIBUTING.md", "README.md", "CHANGELOG.md"):
        shutil.copy(ROOT / file_name, folder)
    named: set[str] = set()
    for new, model, _ in table("CONTRIBUTING.md", "dialect-files").rows:
        (target,), (source,) = in_code(new), in_code(model)
        make(folder, target, source)
        named.add(target)
    for where, entry, imported in table("CONTRIBUTING.md", "dialect-lists").rows:
        name, path = in_code(where)
        enter(folder / path, name, *in_code(entry), *in_code(imported))
        named.add(path)
    return named


def make(folder: Path, target: str, source: str) -> None:
    """Make a file or folder: the third database's own, or a copy of its model."""
    if target in OWN:
        shutil.copy(OWN[target], folder / target)
        return
    for path in (folder / source).iterdir():
        if path.suffix not in {".py", ".sql"}:
            continue
        text = path.read_text("utf-8")
        if path.suffix == ".py":
            for old, new in RENAMED.items():
                text = text.replace(old, new)
            if path.name == "connection.py":
                assert OPENED in text
                text = text.replace(OPENED, OPENED_AS)
        copied = folder / target / path.name
        copied.parent.mkdir(exist_ok=True)
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
