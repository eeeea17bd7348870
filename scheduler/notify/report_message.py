"""A report as a message that is complete in itself, so that a retry sends the same."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from jobs.payload.redact import Redact
from scheduler.report.document import document_of
from scheduler.report.picture import Picture, find_font, png_of
from scheduler.report.renderings import attached, html_of, slack_of, text_of
from scheduler.report.report import Report


def message_of(report: Report, pictures: Sequence[Picture] = ()) -> dict[str, Any]:
    """Return the body of a report's message: plain JSON types, ``pictures`` as base64 PNG by content id."""
    document = document_of(report)
    drawn = _drawn(pictures)
    return {
        "subject": document.subject,
        "text": text_of(document),
        "html": html_of(document, attached([picture for picture in pictures if picture.name in drawn])),
        "blocks": slack_of(document),
        "pictures": drawn,
        "captions": {picture.name: picture.caption for picture in pictures if picture.name in drawn},
    }


def redacted(body: Mapping[str, Any], redact: Redact) -> dict[str, Any]:
    """Return a message's body without known secrets. Its pictures stay: they show names, hours and losses alone."""

    def quiet(value: Any) -> Any:
        match value:
            case str():
                return redact(value)
            case dict():
                return {name: quiet(inner) for name, inner in value.items()}
            case list() | tuple():
                return [quiet(inner) for inner in value]
            case _:
                return value

    return {name: value if name == "pictures" else quiet(value) for name, value in body.items()}


def _drawn(pictures: Sequence[Picture]) -> dict[str, str]:
    """Draw what can be drawn here: without a font or the extra `report` a message has its bars alone."""
    font = find_font() if pictures else None
    if font is None:
        return {}
    try:
        return {picture.name: b64encode(png_of(picture.fixed, font)).decode() for picture in pictures if picture.fixed}
    except ImportError:
        return {}
