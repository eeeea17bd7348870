"""Assets: style sheet, script and icon, named by their content so that browsers may keep them for ever."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException
from fastapi.responses import Response

from scheduler.report.chart import STYLE

_FOLDER = Path(__file__).with_name("static")
_TYPES = {"style.css": "text/css", "live.js": "text/javascript", "icon.svg": "image/svg+xml"}


@cache
def content(name: str) -> bytes:
    """Return one of the assets; the style sheet has the charts' own style in it. Raises KeyError."""
    if name not in _TYPES:
        raise KeyError(name)
    text = (_FOLDER / name).read_bytes()
    return STYLE.encode() + text if name == "style.css" else text


@cache
def address(name: str) -> str:
    """Return where an asset is found. Raises KeyError."""
    return f"/assets/{hashlib.sha256(content(name)).hexdigest()[:12]}/{name}"


def router() -> APIRouter:
    """Return the route of all assets."""
    routes = APIRouter()

    @routes.get("/assets/{version}/{name}", include_in_schema=False)
    def asset(version: str, name: str) -> Any:
        if name not in _TYPES or address(name) != f"/assets/{version}/{name}":
            raise HTTPException(404, "Not Found")
        kept = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(content(name), media_type=_TYPES[name], headers=kept)

    return routes
