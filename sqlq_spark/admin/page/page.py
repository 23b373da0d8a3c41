"""
Parts of an HTML page: SVG charts, tables, tiles; without scripts and external resources.

Every text (names of queues, types, exceptions) is untrusted and is escaped here, and only here:
these functions take text and return HTML. The page's content security policy forbids scripts and
requests.

A plot fills the available width. Its labels are text of a fixed size, so that they can be read on a
phone.
"""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from sqlq_spark.admin.formats import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
LONGEST = 300  # characters of one text that a page shows
TICKS = 4


@dataclass(frozen=True, slots=True)
class Mark:
    """A cell that has a style of page.css: `error`, `warning`, `ok`, `kind`, `code`."""

    style: str
    value: str


@dataclass(frozen=True, slots=True)
class Wide:
    """A cell with enough room for a `name` or a `long` text."""

    style: str
    value: str | Mark


@dataclass(frozen=True, slots=True)
class Number:
    """A number that is text already."""

    value: str


def text(value: object) -> str:
    """An untrusted text as HTML: escaped, without control characters, cut if it is too long."""
    found = clean(str(value))
    return html.escape(found if len(found) <= LONGEST else found[:LONGEST] + "…")


def whole(title: str, *parts: str) -> str:
    """A complete page."""
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def heading(level: int, value: str) -> str:
    """A heading."""
    return f"<h{level}>{text(value)}</h{level}>"


def paragraph(value: str) -> str:
    """A paragraph."""
    return f"<p>{text(value)}</p>"


def tiles(figures: Iterable[tuple[str, str]]) -> str:
    """The main figures: name and value."""
    inner = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(much)}</dd></div>" for name, much in figures
    )
    return f'<dl class="tiles">{inner}</dl>'


def figure(title: str, note: str, *parts: str) -> str:
    """A chart with its title and a note."""
    caption = f"<figcaption><strong>{text(title)}</strong> {text(note)}</figcaption>"
    return f"<figure>{caption}{''.join(parts)}</figure>"


def table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with right-aligned numbers."""
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in names)
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def cell(value: object) -> str:
    """One cell of a table."""
    if value is None:
        return '<td class="number">-</td>'
    if isinstance(value, Wide):
        return cell(value.value).replace("<td>", f'<td class="{text(value.style)}">', 1)
    if isinstance(value, Mark):
        return f'<td><span class="{text(value.style)}">{text(value.value)}</span></td>'
    if isinstance(value, Number):
        return f'<td class="number">{text(value.value)}</td>'
    if isinstance(value, int):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{text(value)}</td>"


def details(title: str, part: str) -> str:
    """A part that opens on a click."""
    return f"<details><summary>{text(title)}</summary>{part}</details>"


# ---------------------------------------------------------------- charts


def bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """Horizontal bars: label, value and note of each; the largest value has the full width."""
    most = max((value for _, value, _ in rows), default=0) or 1
    inner = "".join(
        f'<li><span class="label">{text(label)}</span><span class="much">{text(said)}</span>'
        f'<svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="rest" width="100" height="1"/>'
        f'<rect class="one" width="{100 * value / most:.2f}" height="1"/></svg></li>'
        for label, value, said in rows
    )
    return f'<ul class="bars">{inner}</ul>'


def columns(counts: Sequence[float], *, unit: str, ends: Sequence[str], said: str) -> str:
    """Vertical bars over time; `ends` are the labels below, from left to right."""
    top = nice(max(counts, default=0))
    width = 100 / max(1, len(counts))
    shapes = "".join(
        f'<rect class="one" x="{at * width + width * 0.08:.3f}" width="{width * 0.84:.3f}" '
        f'y="{100 - 100 * count / top:.3f}" height="{100 * count / top:.3f}"/>'
        for at, count in enumerate(counts)
        if count
    )
    return plot(shapes, top=top, unit=unit, ends=ends, said=said)


def plot(shapes: str, *, top: float, unit: str, ends: Sequence[str], said: str) -> str:
    """Shapes in a field of 100 by 100, y downwards, with axes; `said` is for screen readers."""
    values = [top * at / TICKS for at in range(TICKS, -1, -1)]
    marks = "".join(f"<span>{text(short(value))}</span>" for value in values)
    grid = "".join(
        f'<path class="grid" d="M0 {100 * at / TICKS:g}H100"/>' for at in range(TICKS + 1)
    )
    below = "".join(f"<span>{text(end)}</span>" for end in ends)
    return (
        f'<div class="plot"><div class="unit">{text(unit)}</div><div class="marks">{marks}</div>'
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{text(said)}">{grid}{shapes}</svg><div class="ends">{below}</div></div>'
    )


def nice(most: float) -> float:
    """The end of an axis: a number whose quarters have few digits."""
    if most <= TICKS:
        return TICKS
    power = 10.0 ** math.floor(math.log10(most))
    return next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= most)


def short(value: float) -> str:
    """A number in few characters: 1.5 k, 20 M."""
    for unit in ("", " k", " M", " G"):
        if value < 1000:  # noqa: PLR2004
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g} T"
