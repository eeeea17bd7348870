"""Letters: the weekly reports as they were sent, out of the outbox and not made anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import HTTPException

from scheduler.service.alerts import WEEKLY
from scheduler.store import outbox
from scheduler.web.shapes import Letter

if TYPE_CHECKING:
    from scheduler.web.source import Source

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; frame-ancestors 'none'; sandbox"
)
"""A letter brings its styles and pictures with it, and may do nothing else."""


def letter(source: Source, week: str, channel: str) -> Letter:
    """Return the words of a week's letter to a channel. Raises HTTPException 404."""
    sent, body = _found(source, week, channel)
    return Letter(week=week, channel=channel, sent=sent, subject=body["subject"], text=body["text"])


def page(source: Source, week: str, channel: str) -> str | None:
    """Return the letter as its reader saw it, its pictures within; None for one that was words alone.

    Raises HTTPException 404.
    """
    body = _found(source, week, channel)[1]
    html = body.get("html")
    # Slack and Apprise have the same body, and show the words of it.
    if html is None or channel != "email":
        return None
    for name, picture in body.get("pictures", {}).items():
        html = html.replace(f'"cid:{name}"', f'"data:image/png;base64,{picture}"')
    return str(html)


def _found(source: Source, week: str, channel: str) -> tuple[int | None, dict[str, Any]]:
    with source.read() as tx:
        found = outbox.words(tx, WEEKLY, week, channel)
    if found is None:
        raise HTTPException(404, f"no report of {week} was written for {channel}")
    if not found[1]:
        raise HTTPException(
            404, f"what the letter of {week} said was forgotten, as retention.letters in the settings says"
        )
    return found
