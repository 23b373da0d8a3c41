"""docs/pipelines.md: its blocks are the files of conf/pipelines, which `spark-pipelines` runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from compat.pipeline import ROOT, Pipeline, killed_when_sent

from .page import blocks

if TYPE_CHECKING:
    from pathlib import Path

    from .shop import Shop


@pytest.mark.spark
@pytest.mark.faults
def test_the_pipeline_of_the_page_loses_and_repeats_nothing(shop: Shop, tmp_path: Path) -> None:
    """Killed with a batch sent; the compatibility run kills it with a batch received too."""
    shop.sqlqueue("create", "Shop.Billing")
    pipeline = Pipeline(tmp_path / "pipeline", shop.url)
    pipeline.copy()

    killed_when_sent(pipeline)


def test_the_code_of_the_page_is_that_of_the_example() -> None:
    """So one test runs both."""
    project = ROOT / "conf" / "pipelines"
    files = [path.read_text(encoding="utf-8") for path in project.rglob("*.py")]

    shown = [each.text for each in blocks("docs/pipelines.md") if each.language == "python"]
    assert len(shown) == len(files)
    assert all(any(text in file for file in files) for text in shown)
