"""
The site: Sphinx with MyST and Furo, from the Markdown files of the repository.

    sphinx-build -W --keep-going -c docs . docs/_build/html

The source folder is the root of the repository, so that a link from a page to README.md or to a
file of conf/ means the same on the site and in the repository.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sphinx.highlighting import lexer_classes

import sqlq_spark

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "sqlq_spark"
author = "the authors of sqlq_spark"
release = version = sqlq_spark.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_nb"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**"]
exclude_patterns = ["docs/_*", "**/.*", ".*", "build", "dist", "sqlq_spark", "tests"]
nitpicky = True  # an error that a docstring names must exist
nitpick_ignore_regex = [("py:class", ".*")]  # types of Spark and of Python

# ---------------------------------------------------------------- Markdown

myst_heading_anchors = 4  # GitHub's names for headings
lexer_classes["mermaid"] = lexer_classes["none"]  # diagrams.js draws what is text here
nb_execution_mode = "off"  # a test runs the notebook and compares its outputs

# ---------------------------------------------------------------- docstrings

napoleon_google_docstring = True
napoleon_numpy_docstring = False
autodoc_member_order = "bysource"
add_module_names = False
python_maximum_signature_line_length = 80
autodoc_typehints = "signature"
default_role = "code"  # `text` in a docstring is code, as in Markdown
autodoc_default_options = {"members": True}

# ---------------------------------------------------------------- HTML

html_theme = "furo"
html_title = f"sqlq_spark {release}"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["site.css"]
html_js_files = [("diagrams.js", {"defer": "defer"})]
html_copy_source = False
html_show_sphinx = False
html_additional_pages = {"index": "to_front_page.html"}

# ---------------------------------------------------------------- the repository

# folders that pages link to: the site has no page for them
FOLDERS = r"\[([^]]+)\]\((?:\.\./)+(?:conf|jobs|sqlq_spark/database/\w+)\)"


def prepare(_app: Sphinx, page: str, source: list[str]) -> None:
    """Make the lists of docs/index.md the navigation, and links to folders plain text."""
    text = source[0]
    if page == root_doc:
        for section, links in re.findall(r"^### (.+)\n\n((?:- .+\n)+)", text, flags=re.MULTILINE):
            pages = "\n".join(re.findall(r"\]\((.+)\)", links))
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {section}\n\n{pages}\n```\n"
    source[0] = re.sub(FOLDERS, r"\1", source[0])


def setup(app: Sphinx) -> None:
    """Connect to the build."""
    app.connect("source-read", prepare)
