"""The site is built without a warning, and the notebook and the pipeline run."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from compat.pipeline import Pipeline, killed_when_sent

from .notebook import executed, printed, stored
from .page import ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path

    from .shop import Shop


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site in a folder of its own. Every warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    words = [
        *(sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"),
        *("--conf-dir", "docs", "--doctree-dir", str(folder / "doctrees")),
        *(".", str(folder / "html")),
    ]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_the_site_has_every_page(site: Path) -> None:
    """It has all pages, the notebook's outputs, and the API. A link to a folder is plain text."""
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    built = [(site / each.relative_to(ROOT)).with_suffix(".html") for each in pages]

    assert [each for each in built if not each.exists()] == []
    for page, words in {
        "index.html": "docs/index.html",
        "docs/api.html": 'id="sqlq_spark.functions.reply"',
        "docs/notebooks/ten_minutes.html": "BillOrder {'OrderId': 7",
    }.items():
        source = (site / page).read_text(encoding="utf-8")
        assert words in source + html.unescape(re.sub(r"<[^>]*>", "", source)), page
    assert 'href="../conf"' not in (site / "docs" / "jobs.html").read_text(encoding="utf-8")


@pytest.mark.spark
def test_the_notebook_prints_what_it_shows() -> None:
    """Its cells run in their order, in a process of their own."""
    found = printed(executed())

    assert found == printed(stored())
    assert any("|     7|  280|" in each for each in found)


@pytest.mark.spark
@pytest.mark.faults
def test_the_pipeline_of_the_page_loses_and_repeats_nothing(shop: Shop, tmp_path: Path) -> None:
    """It is killed after a batch was sent. Its files have the blocks of docs/pipelines.md."""
    files = [each.read_text("utf-8") for each in (ROOT / "conf" / "pipelines").rglob("*.py")]
    for shown in blocks("docs/pipelines.md", "example"):
        assert any(shown.text in each for each in files)
    shop.sqlqueue("create", "Shop.Billing")
    pipeline = Pipeline(tmp_path / "pipeline", shop.url)
    pipeline.copy()

    killed_when_sent(pipeline)
