"""The report as plain text and as Markdown. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scheduler.report.document import Document, Table


def text_of(document: Document) -> str:
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
        yield "  ".join(
            cell.rjust(width) if at_right else cell.ljust(width) for cell, width, at_right in cells
        ).rstrip()


def markdown_of(document: Document) -> str:
    """Return Markdown with pipe tables; whatever names hold is escaped."""
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
