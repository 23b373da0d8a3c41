"""The script that a DBA runs changes only together with the golden files."""

from __future__ import annotations

from pathlib import Path

import pytest
import script_texts

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("dialect", ["postgresql", "sqlserver"])
def test_the_script_is_the_golden_one(dialect: str) -> None:
    """script_texts.py writes both files."""
    golden = (GOLDEN / f"script-{dialect}.sql").read_text("utf-8")

    assert script_texts.golden(dialect) == golden
