"""What users see changes only together with tests/golden/surface.txt."""

from __future__ import annotations

from pathlib import Path

import surface

GOLDEN = Path(__file__).parent / "golden" / "surface.txt"


def test_what_users_see_is_in_the_golden_file(server: str) -> None:
    """The file has metrics, commands with their JSON, and exports."""
    assert surface.facts(server) == GOLDEN.read_text("utf-8").splitlines()
