"""Fit a text table to a given width: optional columns are dropped, and long text is wrapped, or cut off in a pipe.

A column is a title with marks before it. ``>`` aligns numbers to the right; ``~`` allows text to be wrapped; ``-``
allows the column to be dropped when space is short, and each further ``-`` drops it earlier. ``_`` marks a command to
copy, which is printed in full on a separate line below its row.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

_ROOM_COLUMNS = 30  # optional columns are dropped until each text column that can be wrapped has this width
_LEAST_COLUMNS = 12  # minimum width of such a column, even if lines then get too long
_LINES_MOST = 6  # per row; longer text is cut off
_GAP = "  "
_MARKS = ">~-_"


@dataclass(frozen=True, slots=True)
class Column:
    """A column. One with a higher ``goes`` is dropped earlier, one with 0 never; ``below`` is the mark ``_``."""

    title: str
    right: bool
    wraps: bool
    goes: int
    below: bool = False


def column_of(marked: str) -> Column:
    """Return the column for a title with marks, such as ``-->step``."""
    title = marked.lstrip(_MARKS)
    marks = marked[: len(marked) - len(title)]
    return Column(title, ">" in marks, "~" in marks, marks.count("-"), "_" in marks)


def drawn(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    width: int | None,
    *,
    one_line: bool,
    paint: Callable[[str, str], str],
) -> Iterator[str]:
    """Yield the title line and the lines of the rows, at most ``width`` characters wide; None for no limit.

    ``one_line`` cuts long text off with an ellipsis instead of wrapping it. ``paint(text, cell)`` colours the padded
    text of a cell. Columns without ``~`` are never cut off, so lines can get wider than ``width``.
    """
    titles = [column.title for column in columns]
    natural = [max(map(width_of, cells)) for cells in zip(titles, *rows, strict=True)]
    kept = [index for index, column in enumerate(columns) if width is None or not column.below]
    widths = natural
    if width is not None:
        empty = {index for index in kept if rows and not any(row[index] for row in rows)}
        kept = _kept_columns(columns, natural, kept, empty, width)
        widths = _widths(columns, natural, kept, width)
    for number, cells in enumerate((titles, *rows)):
        broken = [[cells[index]] if width is None else _folded(cells[index], widths[index], one_line) for index in kept]
        for height in range(max(map(len, broken), default=0)):
            padded = []
            for index, lines in zip(kept, broken, strict=True):
                text = lines[height] if height < len(lines) else ""
                space = " " * (widths[index] - width_of(text))
                aligned = space + text if columns[index].right else text + space
                padded.append(paint(aligned, cells[index]) if number and text else aligned)
            yield _GAP.join(padded).rstrip()
        for cell, column in zip(cells, columns, strict=True):
            if number and width is not None and column.below and cell:
                yield _GAP + cell


def width_of(text: str) -> int:
    """Return the width of a text in terminal columns; ideographs take two, combining marks none."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cut_off(text: str, width: int) -> str:
    """Return the text cut off at ``width`` columns, with an ellipsis in place of the rest."""
    return text if width_of(text) <= width else _head(text, width - 1).rstrip() + "…"


def wrapped(text: str, width: int) -> list[str]:
    """Return the text in lines of at most ``width`` columns; only words that are too long are split."""
    if width_of(text) <= width:
        return [text]
    lines, line = [], ""
    for whole in text.split():
        word = whole
        if line and width_of(f"{line} {word}") > width:
            lines.append(line)
            line = ""
        while width_of(word) > width:
            head = _head(word, width)
            lines.append(head)
            word = word[len(head) :]
        line = f"{line} {word}" if line else word
    return [*lines, line]


def _kept_columns(
    columns: Sequence[Column], natural: Sequence[int], displayed: Sequence[int], empty: set[int], width: int
) -> list[int]:
    """Return which of ``displayed`` to keep. Optional ones go as needed: empty ones first, then by ``goes``."""
    kept = list(displayed)
    may_go = sorted(
        (index for index in kept if columns[index].goes), key=lambda index: (index in empty, columns[index].goes, index)
    )
    while may_go and sum(_roomy(columns[index], natural[index]) + len(_GAP) for index in kept) - len(_GAP) > width:
        kept.remove(may_go.pop())
    return kept


def _least(column: Column, natural: int) -> int:
    return min(natural, _LEAST_COLUMNS) if column.wraps else natural


def _roomy(column: Column, natural: int) -> int:
    return min(natural, _ROOM_COLUMNS) if column.wraps else natural


def _widths(columns: Sequence[Column], natural: Sequence[int], kept: Sequence[int], width: int) -> list[int]:
    """Return the width of each column; columns that can be wrapped share the space that the others leave."""
    widths = [min(room, width) if column.wraps else room for column, room in zip(columns, natural, strict=True)]
    soft = [index for index in kept if columns[index].wraps and widths[index] > _least(columns[index], natural[index])]
    over = sum(widths[index] + len(_GAP) for index in kept) - len(_GAP) - width
    while over > 0 and soft:
        widest = max(soft, key=lambda index: widths[index])
        widths[widest] -= 1
        over -= 1
        soft = [index for index in soft if widths[index] > _least(columns[index], natural[index])]
    return widths


def _folded(text: str, width: int, one_line: bool) -> list[str]:
    """Return the lines of a cell: a single line if ``one_line``, otherwise at most ``_LINES_MOST``."""
    if one_line:
        return [cut_off(text, width)]
    lines = wrapped(text, width)
    if len(lines) > _LINES_MOST:
        lines[_LINES_MOST - 1 :] = [cut_off(lines[_LINES_MOST - 1] + " …", width)]
    return lines


def _head(text: str, width: int) -> str:
    """Return the longest prefix of at most ``width`` columns, but at least one character."""
    used = 0
    for index, character in enumerate(text):
        used += width_of(character)
        if used > width and index:
            return text[:index]
    return text
