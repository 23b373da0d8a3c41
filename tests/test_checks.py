"""How long messages live by their headers, and when a stream pauses longer than that."""

from __future__ import annotations

from datetime import datetime

import pytest

from sqlq_spark.admin.problems import short_lifetimes

EXPIRES = datetime(2026, 6, 30, 17, 5, 19, 500_000)  # noqa: DTZ001 - as the column has it
SENT = "2026-06-30 17:05:09:000000 Z"


@pytest.mark.parametrize(
    ("headers", "peek_delay", "shortest"),
    [
        ([], 100.0, []),
        ([(SENT, None)], 100.0, ["10.5"]),
        ([(SENT, "00:00:07")], 100.0, ["7"]),
        ([(None, "1.00:00:00")], 100.0, []),
        ([(None, None)], 100.0, []),
        ([("soon", None), (SENT, "soon")], 100.0, []),  # untrusted text counts for nothing
        ([(SENT, "-00:00:07"), (SENT, "00:00:00")], 100.0, []),  # sent as expired
        ([(SENT, None)], 10.5, []),
        ([(None, "00:00:05"), (None, "00:00:00.9"), (None, None)], 1.0, ["0.9"]),
    ],
)
def test_only_a_life_shorter_than_the_pause_is_reported(
    headers: list[tuple[str | None, str | None]], peek_delay: float, shortest: list[str]
) -> None:
    """By the shortest of them; TimeToBeReceived takes precedence."""
    expiring = [(EXPIRES, *each) for each in headers]

    found = short_lifetimes("orders", expiring, peek_delay)

    assert [each.found.split()[3] for each in found] == shortest
    assert all((each.name, each.severity) == ("peek_delay", "warning") for each in found)
