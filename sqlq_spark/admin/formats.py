"""Formats of numbers, sizes and times, for reports and terminals."""

from __future__ import annotations

from datetime import UTC, datetime


def clean(text: str) -> str:
    """Replace control characters, which could change the terminal."""
    return "".join(each if each.isprintable() else "·" for each in text)


def quantity(how_many: int, what: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{how_many:,} {what}{'' if how_many == 1 else 's'}"


def estimate(how_many: int, *, estimated: bool) -> str:
    """`2,000`, or `~2,000` if it is an estimate."""
    return f"~{how_many:,}" if estimated else f"{how_many:,}"


def part(how_many: int, total: int, what: str) -> str:
    """`1 of 2,000 messages`, `1 of 1 message`."""
    return f"{how_many:,} of {quantity(total, what)}"


def span(seconds: float) -> str:
    """A time span in its two largest units: `2 h 5 min`."""
    for unit, length, small, less in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if seconds >= length:
            whole_units, rest = divmod(int(seconds), length)
            return f"{whole_units} {unit} {rest // less} {small}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004


def byte_size(size: float) -> str:
    """A number of bytes: `1.5 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:  # noqa: PLR2004
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def ago(moment: datetime) -> str:
    """How long ago, by this machine's clock: `5 min ago`."""
    seconds = max(0, int((datetime.now(UTC) - moment).total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"
