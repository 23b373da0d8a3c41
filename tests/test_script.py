"""The script that a DBA runs changes only together with the golden files."""

from __future__ import annotations

from pathlib import Path

import pytest
import script_texts

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("dialect", "file"),
    [
        ("postgresql", "docs/script-postgresql.sql"),
        ("sqlserver", "tests/golden/script-sqlserver.sql"),
    ],
)
def test_the_script_is_the_golden_one(dialect: str, file: str) -> None:
    """script_texts.py writes both files. DBAs read that of PostgreSQL."""
    assert script_texts.golden(dialect) == (ROOT / file).read_text("utf-8")
