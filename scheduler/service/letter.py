"""Letter: a report as a message that is complete in itself, so that a retry sends the same."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any

from scheduler.report.document import document_of
from scheduler.report.html import attached, html_of
from scheduler.report.picture import find_font, png_of
from scheduler.report.slack import slack_of
from scheduler.report.text import text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.report.picture import Picture
    from scheduler.report.report import Report


def letter_of(report: Report, pictures: Sequence[Picture] = ()) -> dict[str, Any]:
    """Return the body of a report's letter: plain JSON types, ``pictures`` as base64 PNG by content id."""
    document = document_of(report)
    drawn = _drawn(pictures)
    return {
        "subject": document.title,
        "text": text_of(document),
        "html": html_of(document, attached([picture for picture in pictures if picture.name in drawn])),
        "blocks": slack_of(document),
        "pictures": drawn,
        "captions": {picture.name: picture.caption for picture in pictures if picture.name in drawn},
    }


def _drawn(pictures: Sequence[Picture]) -> dict[str, str]:
    """Draw what can be drawn here: without a font or the extra `report` a letter has its bars alone."""
    font = find_font() if pictures else None
    if font is None:
        return {}
    try:
        return {picture.name: b64encode(png_of(picture.fixed, font)).decode() for picture in pictures if picture.fixed}
    except ImportError:
        return {}
