"""The report as HTML: one page for browser and e-mail, light and dark, without script or outside resources. Pure.

E-mail clients drop SVG, so bars are plain elements; pictures come only where the page is a file.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scheduler.report.document import Document, Table
    from scheduler.report.report import Report

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1160px; margin: 0 auto; padding: 12px; }
body { overflow-wrap: anywhere; }
h1 { font-size: 1.4em; margin: .2em 0; } h2 { font-size: 1.1em; margin: 1.4em 0 .3em; }
.wide { overflow-x: auto; } .wide svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; } th, td { padding: 3px 8px; text-align: left; border-bottom: 1px solid #8886; }
th, td { white-space: nowrap; overflow-wrap: normal; } td { white-space: normal; min-width: 3em; }
.n { text-align: right; font-variant-numeric: tabular-nums; }
.bar { width: 80px; min-width: 80px; } .bar div { background: #0072b2; height: 8px; }
"""


def html_of(document: Document, pictures: Sequence[str] = ()) -> str:
    """Return a complete page; ``pictures`` are SVG texts of ours, shown below the summary."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(document.title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(document.title)}</h1><p>{escape(document.subtitle)}</p>",
    ]
    for index, section in enumerate(document.sections):
        parts.append(f"<h2>{escape(section.title)}</h2>")
        parts += [f"<p>{escape(line)}</p>" for line in section.lines]
        if section.table is not None:
            parts += _table(section.table)
        if index == 0:
            parts += [f'<div class="wide">{picture}</div>' for picture in pictures]
    return "\n".join([*parts, "</body></html>", ""])


def _table(table: Table) -> Iterator[str]:
    bars = bool(table.shares)
    marks = [' class="n"' if title.startswith(">") else "" for title in table.columns]
    heads = (f"<th{mark}>{escape(title.lstrip('>'))}</th>" for title, mark in zip(table.columns, marks, strict=True))
    yield f'<div class="wide"><table><tr>{"".join(heads)}{"<th></th>" if bars else ""}</tr>'
    for index, row in enumerate(table.rows):
        cells = "".join(f"<td{mark}>{escape(cell)}</td>" for cell, mark in zip(row, marks, strict=True))
        bar = _bar(table.shares[index]) if bars else ""
        yield f"<tr>{cells}{bar}</tr>"
    yield "</table></div>"


def _bar(share: float) -> str:
    return f'<td class="bar"><div style="width:{100 * min(1.0, max(0.0, share)):.0f}%"></div></td>'


def loss_svg(report: Report) -> str:
    """Return the held-out losses over steps, a line for each job; nothing when there are fewer than two points."""
    curves = [(job.name, job.losses) for job in report.jobs if len(job.losses) > 1]
    if not curves:
        return ""
    steps = [step for _, points in curves for step, _ in points]
    losses = [loss for _, points in curves for _, loss in points]
    low, high, left, right = min(losses), max(losses), min(steps), max(steps)

    def at(step: int, loss: float) -> str:
        x = 50 + 800 * (step - left) / max(1, right - left)
        return f"{x:.1f},{20 + 200 * (high - loss) / max(1e-9, high - low):.1f}"

    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1100 250" role="img" font-size="12">']
    parts.append("<title>Held-out loss over steps</title>")
    parts += [f'<text x="5" y="{y}" fill="currentColor">{loss:.3f}</text>' for y, loss in ((24, high), (224, low))]
    for index, (name, points) in enumerate(curves):
        colour = f"hsl({index * 137 % 360} 70% 45%)"
        line = " ".join(at(step, loss) for step, loss in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="870" y="{24 + 16 * index}" fill="{colour}">{escape(name)}</text>')
    return "".join([*parts, "</svg>"])
