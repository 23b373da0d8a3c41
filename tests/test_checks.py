"""How long messages live by their headers, and when a stream pauses longer than that."""

from __future__ import annotations

from datetime import datetime

import pytest

from sqlq_spark.admin.problems import lifetime, short_lifetimes

EXPIRES = datetime(2026, 6, 30, 17, 5, 19, 500_000)  # noqa: DTZ001 - as the column has it
SENT = "2026-06-30 17:05:09:000000 Z"


@pytest.mark.parametrize(
    ("sent", "lives", "seconds"),
    [
        (SENT, None, 10.5),
        (SENT, "00:00:07", 7.0),
        (None, "1.00:00:00", 86_400.0),
        ("soon", None, None),
        (SENT, "soon", None),
        (SENT, "-00:00:07", None),
    ],
)
def test_a_lifetime_follows_from_the_headers(
    sent: str | None, lives: str | None, seconds: float | None
) -> None:
    """A header that cannot be read counts for nothing: it is untrusted text."""
    assert lifetime(EXPIRES, sent, lives) == seconds


@pytest.mark.parametrize(
    ("lives", "peek_delay", "shortest"),
    [
        ([1.0], 1.0, []),
        ([5.0, 0.9, None], 1.0, ["0.9"]),
        ([0.0, -3.0, 20.0], 10.0, []),  # sent as expired: no stream is in time for it
    ],
)
def test_only_a_life_shorter_than_the_pause_is_reported(
    lives: list[float | None], peek_delay: float, shortest: list[str]
) -> None:
    """By the shortest of them."""
    found = list(short_lifetimes("orders", lives, peek_delay))

    assert [each.found.split()[3] for each in found] == shortest
    assert all((each.name, each.severity) == ("peek_delay", "warning") for each in found)
