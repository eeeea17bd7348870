"""The report as HTML: one page for browser and e-mail, light and dark, without script or outside resources. Pure.

E-mail clients drop SVG, so bars are plain elements, and a letter's pictures are PNG that travel with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from scheduler.report.chart import STYLE
from scheduler.report.document import Document, Table
from scheduler.report.picture import Picture

WORDS_ON_ONE_LINE = 24
"""Cells with so many letters are not broken: dates, states, names."""

_FIGURES_AFTER = 4  # the headline, actions, models, hours and money, what is planned: all that is read first

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1160px; margin: 0 auto; padding: 12px; }
body { overflow-wrap: anywhere; background: Canvas; color: CanvasText; }
h1 { font-size: 1.4em; margin: .2em 0; } h2 { font-size: 1.1em; margin: 1.4em 0 .3em; }
.wide { overflow-x: auto; } .wide svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; } th, td { padding: 3px 8px; text-align: left; border-bottom: 1px solid #8886; }
th, td { white-space: nowrap; overflow-wrap: normal; } td { white-space: normal; min-width: 3em; }
.t { white-space: nowrap; } .n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
figure { margin: 1em 0; } figcaption { font-size: .93em; margin: 0 0 .3em; }
.figures { display: grid; gap: 0 2em; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.figures figure { min-width: 0; } .figures figure:nth-child(-n+2) { grid-column: 1 / -1; }
.figures figure img { background: #fff; }
.bar { width: 80px; min-width: 80px; } .bar div { background: #0072b2; height: 8px; }
@media (max-width: 480px) { body { font-size: 13px; } th, td { padding: 3px 4px; } .bar { display: none; } }
"""


def html_of(document: Document, figures: Sequence[tuple[str, str]] = ()) -> str:
    """Return a complete page; ``figures`` are captions with markup of ours, below what is read first."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(document.title)}</title><style>{_STYLE}{STYLE if figures else ''}</style></head><body>",
        f"<h1>{escape(document.title)}</h1><p>{escape(document.subtitle)}</p>",
    ]
    for index, section in enumerate(document.sections):
        parts.append(f"<h2>{escape(section.title)}</h2>")
        parts += [f"<p>{escape(line)}</p>" for line in section.lines]
        if section.table is not None:
            parts += _table(section.table)
        if index == _FIGURES_AFTER and figures:
            parts.append('<div class="figures">')
            parts += [
                f"<figure><figcaption>{escape(caption)}</figcaption>{markup}</figure>" for caption, markup in figures
            ]
            parts.append("</div>")
    return "\n".join([*parts, "</body></html>", ""])


def inline(pictures: Sequence[Picture]) -> list[tuple[str, str]]:
    """Return pictures as figures of a page that stands alone."""
    return [(picture.caption, f'<div class="wide">{picture.fluid}</div>') for picture in pictures]


def attached(pictures: Sequence[Picture]) -> list[tuple[str, str]]:
    """Return pictures as figures of a letter that carries them as parts of its own, named by content id."""
    fits = 'style="max-width:100%;height:auto"'
    return [
        (
            picture.caption,
            f'<img src="cid:{picture.name}" alt="{escape(picture.caption)}" width="{picture.width}" {fits}>',
        )
        for picture in pictures
    ]


def _table(table: Table) -> Iterator[str]:
    bars = bool(table.shares)
    marks = [' class="n"' if title.startswith(">") else "" for title in table.columns]
    heads = (f"<th{mark}>{escape(title.lstrip('>'))}</th>" for title, mark in zip(table.columns, marks, strict=True))
    yield f'<div class="wide"><table><tr>{"".join(heads)}{"<th></th>" if bars else ""}</tr>'
    for index, row in enumerate(table.rows):
        cells = "".join(f"<td{mark or _short(cell)}>{escape(cell)}</td>" for cell, mark in zip(row, marks, strict=True))
        bar = _bar(table.shares[index]) if bars else ""
        yield f"<tr>{cells}{bar}</tr>"
    yield "</table></div>"


def _short(cell: str) -> str:
    return ' class="t"' if len(cell) <= WORDS_ON_ONE_LINE else ""


def _bar(share: float) -> str:
    return f'<td class="bar"><div style="width:{100 * min(1.0, max(0.0, share)):.0f}%"></div></td>'
