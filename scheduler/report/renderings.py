"""Renderings of a report document: plain text, Markdown, HTML, and the blocks of a Slack message. Pure."""

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from scheduler.report.chart import STYLE
from scheduler.report.document import ReportDocument, Table
from scheduler.report.picture import Picture

WORDS_ON_ONE_LINE = 24
"""Cells of at most this many characters are not wrapped, for example dates, states and names."""

_FIGURES_AFTER = 4  # figures follow the section with this index, the plan of the next seven days

_STYLE = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
_BLOCKS_MAX = 50
_TEXT_MAX = 2_900


def text_of(document: ReportDocument) -> str:
    """Return plain text; tables are aligned with spaces."""
    lines = [document.title, "=" * len(document.title), document.subtitle, ""]
    for section in document.sections:
        lines += [section.title, "-" * len(section.title), *section.lines]
        if section.table is not None:
            lines += aligned(section.table)
        lines.append("")
    return "\n".join(lines)


def aligned(table: Table) -> Iterator[str]:
    """Yield the lines of a table, columns aligned."""
    titles = tuple(title.lstrip(">") for title in table.columns)
    right = [title.startswith(">") for title in table.columns]
    widths = [max(map(len, column)) for column in zip(titles, *table.rows, strict=True)]
    for row in (titles, *table.rows):
        cells = zip(row, widths, right, strict=True)
        padded = (cell.rjust(width) if at_right else cell.ljust(width) for cell, width, at_right in cells)
        yield "  ".join(padded).rstrip()


def markdown_of(document: ReportDocument) -> str:
    """Return Markdown with pipe tables; special characters are escaped."""
    lines = [f"# {_escaped(document.title)}", "", _escaped(document.subtitle), ""]
    for section in document.sections:
        lines += [f"## {_escaped(section.title)}", ""]
        if section.lines:
            lines += [*(f"- {_escaped(line)}" for line in section.lines), ""]
        if section.table is not None:
            columns = section.table.columns
            lines.append(f"| {' | '.join(title.lstrip('>') for title in columns)} |")
            lines.append(f"|{'|'.join('---:' if title.startswith('>') else '---' for title in columns)}|")
            lines += [f"| {' | '.join(map(_escaped, row))} |" for row in section.table.rows]
            lines.append("")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", text)


def html_of(document: ReportDocument, figures: Sequence[tuple[str, str]] = ()) -> str:
    """Return a complete page. ``figures`` are (caption, trusted markup) and follow the first sections."""
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
            parts += [f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>" for caption, svg in figures]
            parts.append("</div>")
    return "\n".join([*parts, "</body></html>", ""])


def inline(pictures: Sequence[Picture]) -> list[tuple[str, str]]:
    """Return pictures as figures with inline SVG, for a stand-alone page."""
    return [(picture.caption, f'<div class="wide">{picture.fluid}</div>') for picture in pictures]


def attached(pictures: Sequence[Picture]) -> list[tuple[str, str]]:
    """Return pictures as figures that refer to attachments of a message by content ID."""
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
        width = f"{100 * min(1.0, max(0.0, table.shares[index])):.0f}%" if bars else ""
        yield f"<tr>{cells}" + (f'<td class="bar"><div style="width:{width}"></div></td></tr>' if bars else "</tr>")
    yield "</table></div>"


def _short(cell: str) -> str:
    return ' class="t"' if len(cell) <= WORDS_ON_ONE_LINE else ""


def slack_of(document: ReportDocument) -> list[dict[str, Any]]:
    """Return the blocks of one message. Blocks beyond Slack's limit are left out; the last block then says so."""
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": document.title[:150]}},
        _text(_in_slack(document.subtitle)),
    ]
    for section in document.sections:
        blocks += [_text(chunk) for chunk in _chunks([f"*{_in_slack(section.title)}*", *map(_in_slack, section.lines)])]
        if section.table is not None:
            lines = (_in_slack(line) for line in aligned(section.table))
            blocks += [_text(f"```{chunk}```") for chunk in _chunks(lines)]
    if len(blocks) > _BLOCKS_MAX:
        blocks = [*blocks[: _BLOCKS_MAX - 1], _text("More than fits here: see `schedctl report weekly`")]
    return blocks


def _text(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}}


def _chunks(lines: Iterable[str]) -> list[str]:
    chunks: list[str] = []
    for line in lines:
        short = line[:_TEXT_MAX]
        if chunks and len(chunks[-1]) + len(short) + 1 <= _TEXT_MAX:
            chunks[-1] += f"\n{short}"
        else:
            chunks.append(short)
    return chunks


def _in_slack(text: str) -> str:
    """Return text escaped for Slack, so that a name can neither mention a person nor end a code block."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("`", "'")
