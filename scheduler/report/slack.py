"""The report as Slack blocks, inside Slack's limits: 50 blocks, headers of 150 and texts of 3000 characters. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scheduler.report.document import Document
from scheduler.report.text import aligned

_BLOCKS_MAX = 50
_TEXT_MAX = 2_900


def slack_of(document: Document) -> list[dict[str, Any]]:
    """Return the blocks of one message. What does not fit is left out, and the last block says so."""
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": document.title[:150]}},
        _text(_escaped(document.subtitle)),
    ]
    for section in document.sections:
        blocks += [_text(chunk) for chunk in _chunks([f"*{_escaped(section.title)}*", *map(_escaped, section.lines)])]
        if section.table is not None:
            lines = (_escaped(line) for line in aligned(section.table))
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


def _escaped(text: str) -> str:
    """Names must neither mention anybody nor end a code block."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("`", "'")
