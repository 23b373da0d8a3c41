"""
The table of contents: the navigation of the site, and the lists of docs/index.md.

    python docs/_ext/contents.py

writes the lists of docs/index.md; `--check` only compares them. A page that does not exist is left
out. Sphinx warns about a page that is not named here.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.util.typing import ExtensionMetadata

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "index.md"

# section → pages, as paths without their ending
CONTENTS = {
    "Guide for the data engineer": [
        "docs/guide/trial",
        "docs/notebooks/ten_minutes",
        "docs/guide/kafka",
        "docs/guide/read-and-write",
        "docs/guide/changing-options",
        "docs/guide/sinks",
        "docs/guide/bodies",
        "docs/guide/raw-table",
        "docs/guide/send",
        "docs/guide/sizing",
        "docs/guide/databricks",
        "docs/guide/monitoring",
        "docs/guide/troubleshooting",
        "docs/guide/checkpoints",
        "docs/testing",
        "docs/guide/versions",
    ],
    "Reference": [
        "docs/sqlqueue",
        "docs/functions",
        "docs/sql",
        "docs/pipelines",
        "docs/iceberg",
        "docs/jobs",
        "docs/commandline",
        "docs/api",
        "docs/versions",
        "docs/diagrams",
    ],
    "Messages": [
        "docs/bodies",
        "docs/failed",
        "docs/delayed",
        "docs/transactions",
        "docs/migration",
    ],
    "For the .NET team": ["docs/for-the-dotnet-team", "docs/dotnet"],
    "For the DBA": [
        "docs/for-the-dba",
        "docs/dba",
        "docs/security",
        "docs/sqlserver",
        "docs/load",
        "docs/isolation",
        "docs/retention",
        "docs/restore",
        "docs/standby",
        "docs/emergency",
        "docs/upgrade",
    ],
    "Operations": ["docs/operations", "docs/growth"],
    "Project": ["README", "CHANGELOG", "CONTRIBUTING"],
}


def present(pages: list[str]) -> list[str]:
    """Those of the pages that exist."""
    return [each for each in pages if file(each).exists()]


def file(page: str) -> Path:
    """Where a page is."""
    found = ROOT / f"{page}.md"
    return found if found.exists() else ROOT / f"{page}.ipynb"


def title(page: str) -> str:
    """Give the first heading of a page."""
    text = file(page).read_text(encoding="utf-8")
    if file(page).suffix == ".ipynb":
        text = "".join(json.loads(text)["cells"][0]["source"])
    return next(line for line in text.splitlines() if line.startswith("# ")).removeprefix("# ")


def link(page: str) -> str:
    """A line of a list of docs/index.md."""
    target = file(page).relative_to(ROOT).as_posix()
    path = target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"
    return f"- [{title(page)}]({path})\n"


def lists(text: str) -> str:
    """Fill in the list below each heading of the front page that is a section."""
    parts = re.split(r"^### (.+)\n\n(?:- .*\n)*\n*", text, flags=re.MULTILINE)
    if parts[1::2] != [*CONTENTS]:
        message = f"the headings of docs/index.md are {parts[1::2]}: expected {[*CONTENTS]}"
        raise ValueError(message)
    found = [f"### {name}\n\n{''.join(map(link, present(CONTENTS[name])))}" for name in CONTENTS]
    return "\n".join([parts[0].rstrip("\n") + "\n", *found])


def navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """Add the navigation to the front page, where nobody sees it."""
    if page != "docs/index":
        return
    for section, pages in CONTENTS.items():
        names = "\n".join(f"/{each}" for each in present(pages))
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {section}\n\n{names}\n```\n"


def outdated(*_: object) -> list[str]:
    """Read the front page in every build, because it names pages that may be new."""
    return ["docs/index"]


def setup(app: Sphinx) -> ExtensionMetadata:
    """Connect to the build."""
    app.connect("env-get-outdated", outdated)
    app.connect("source-read", navigation)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    old = INDEX.read_text(encoding="utf-8")
    new = lists(old)
    if "--check" not in sys.argv:
        INDEX.write_text(new, encoding="utf-8")
    elif new != old:
        sys.exit("docs/index.md lacks pages: run python docs/_ext/contents.py")
