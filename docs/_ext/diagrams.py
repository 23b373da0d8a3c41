"""
Mermaid diagrams: a fenced block `mermaid` becomes a picture in the browser.

The page loads mermaid's script from the site itself, so that it needs no internet. The build takes
the script from npm and keeps it in docs/_build. Where npm is missing or has no network, the pages
load the same file from a public server. The browser then checks it against SHA384.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.util.typing import ExtensionMetadata
    from sphinx.writers.html5 import HTML5Translator

log = logging.getLogger(__name__)

VERSION = "11.17.2"
SCRIPT = "mermaid.min.js"
SHA384 = "EOXBFmc3gx5mb+vn0vPvvGqACToJD24hhacX5Yx+8NUUQrHIle/Qi5Bg9o3zKwW2"
ELSEWHERE = f"https://cdn.jsdelivr.net/npm/mermaid@{VERSION}/dist/{SCRIPT}"
CACHE = Path(__file__).parent.parent / "_build" / "npm" / VERSION


class Diagram(nodes.General, nodes.Element):  # type: ignore[misc]
    """The text of one diagram."""


class Mermaid(SphinxDirective):
    """The fenced block."""

    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        """Keep the text as it is."""
        return [Diagram(text="\n".join(self.content))]


def visit(writer: HTML5Translator, node: Diagram) -> None:
    """Write what mermaid looks for; without JavaScript the text is shown."""
    writer.body.append(f'<pre class="mermaid">{writer.encode(node["text"])}</pre>\n')
    raise nodes.SkipNode


def leave_out(_writer: object, _node: Diagram) -> None:
    """Other builders have no diagrams."""
    raise nodes.SkipNode


def digest(file: Path) -> str:
    """The hash of a file, as a browser checks it."""
    return base64.b64encode(hashlib.sha384(file.read_bytes()).digest()).decode()


def unpacked() -> Path | None:
    """Give the script, from an earlier build or from npm; None where npm cannot be used."""
    script = CACHE / SCRIPT
    npm = shutil.which("npm")
    if not script.exists() and npm is not None:
        CACHE.mkdir(parents=True, exist_ok=True)
        pack = [npm, "pack", "--silent", "--pack-destination", str(CACHE), f"mermaid@{VERSION}"]
        done = subprocess.run(pack, capture_output=True, check=False)
        for archive in CACHE.glob("*.tgz") if done.returncode == 0 else ():
            with tarfile.open(archive) as files:
                found = files.extractfile(f"package/dist/{SCRIPT}")
                script.write_bytes(b"" if found is None else found.read())
            archive.unlink()
    return script if script.exists() and digest(script) == SHA384 else None


def bundle(app: Sphinx) -> None:
    """Put the script into the site."""
    script = unpacked() if app.config.diagrams_bundle and app.builder.format == "html" else None
    app.env.diagrams_bundled = script is not None  # type: ignore[attr-defined]
    if script is not None:
        folder = Path(app.outdir, "_static")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(script, folder / SCRIPT)
    else:
        log.info("diagrams: the pages load mermaid from %s", ELSEWHERE)


def load(
    app: Sphinx,
    _page: str,
    _template: str,
    _context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Load the script on pages with a diagram."""
    if doctree is None or not any(doctree.findall(Diagram)):
        return
    if app.env.diagrams_bundled:  # type: ignore[attr-defined]
        app.add_js_file(SCRIPT, loading_method="defer")
    else:
        app.add_js_file(
            ELSEWHERE,
            loading_method="defer",
            integrity=f"sha384-{SHA384}",
            crossorigin="anonymous",
        )
    app.add_js_file("diagrams.js", loading_method="defer")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Connect to the build."""
    app.add_config_value("diagrams_bundle", default=True, rebuild="html", types=[bool])
    out = (leave_out, None)
    app.add_node(Diagram, html=(visit, None), latex=out, text=out, man=out, texinfo=out)
    app.add_directive("mermaid", Mermaid)
    app.connect("builder-inited", bundle)
    app.connect("html-page-context", load)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
