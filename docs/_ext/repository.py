"""
Links from a page to a file or folder of the repository lead to a page that shows it.

A folder's page lists its files, and each file has a page with its text. The addresses are those of
the repository: `conf/relay.toml.html` and `conf/index.html`.
"""

from __future__ import annotations

import html
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment
    from sphinx.util.typing import ExtensionMetadata

LANGUAGES = {
    ".conf": "text",
    ".json": "json",
    ".py": "python",
    ".sql": "sql",
    ".toml": "toml",
    ".txt": "text",
    ".yaml": "yaml",
    ".yml": "yaml",
}


class LinkFiles(SphinxTransform):
    """Before MyST looks for the targets of links."""

    default_priority = 999

    def apply(self, **_: object) -> None:
        """Replace links to files and folders that are no pages of the site."""
        shown = linked(self.env)[self.env.docname] = set()
        folder = Path(self.env.doc2path(self.env.docname)).parent
        for each in [*self.document.findall(is_link)]:
            path = folder / each["reftarget"]
            target = os.path.relpath(path, self.env.srcdir)
            if not (path.is_dir() or path.suffix in LANGUAGES) or target.startswith(".."):
                continue
            shown.add(target)
            uri = each["reftarget"] + ("/index.html" if path.is_dir() else ".html")
            link = nodes.reference("", "", *each.children, internal=True, refuri=uri)
            each.replace_self(link)


def is_link(node: nodes.Node) -> bool:
    """Whether a node is a link by a path."""
    kinds = (addnodes.pending_xref, addnodes.download_reference)
    return isinstance(node, kinds) and node.get("reftype") == "myst" and not node.get("refdomain")


def linked(env: BuildEnvironment) -> dict[str, set[str]]:
    """Page → paths that it links to."""
    if not hasattr(env, "repository_links"):
        env.repository_links = {}  # type: ignore[attr-defined]
    found: dict[str, set[str]] = env.repository_links  # type: ignore[attr-defined]
    return found


def purge(_app: Sphinx, env: BuildEnvironment, page: str) -> None:
    """Drop what a page linked to before it changed."""
    linked(env).pop(page, None)


def files(folder: Path) -> list[Path]:
    """The files of a folder that can be shown."""
    found = sorted(folder.rglob("*"))
    return [each for each in found if each.suffix in LANGUAGES and each.is_file()]


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Make the pages of all folders and files that are linked to."""
    root = Path(app.srcdir)
    paths = {root / path for found in linked(app.env).values() for path in found}
    folders = sorted(path for path in paths if path.is_dir())
    shown = {each for folder in folders for each in files(folder)}
    for folder in folders:
        yield page(app, folder / "index", folder, listing(folder))
    for file in sorted(shown | {path for path in paths if path.is_file()}):
        yield page(app, file, file, text(app, file))


def page(app: Sphinx, at: Path, of: Path, body: str) -> tuple[str, dict[str, Any], str]:
    """One page, named as the file or folder that it shows."""
    title = of.relative_to(app.srcdir).as_posix()
    heading = f"<h1>{html.escape(title)}</h1>\n"
    name = at.relative_to(app.srcdir).as_posix()
    return name, {"title": title, "body": heading + body, "toc": ""}, "page.html"


def listing(folder: Path) -> str:
    """The list of a folder's files."""
    names = [html.escape(each.relative_to(folder).as_posix()) for each in files(folder)]
    items = (f'<li><a href="{each}.html"><code>{each}</code></a></li>\n' for each in names)
    return f"<ul>\n{''.join(items)}</ul>\n"


def text(app: Sphinx, file: Path) -> str:
    """A file's text in colours."""
    language = LANGUAGES[file.suffix]
    lines = file.read_text(encoding="utf-8")
    highlighter = app.builder.highlighter  # type: ignore[attr-defined]
    coloured: str = highlighter.highlight_block(lines, language, force=True)
    return coloured


def setup(app: Sphinx) -> ExtensionMetadata:
    """Connect to the build."""
    app.add_transform(LinkFiles)
    app.connect("env-purge-doc", purge)
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": False}
