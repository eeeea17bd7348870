"""Resumable uploads: PUT with Content-Range, 308 with Range, and an honest answer to ``bytes */N``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler

    from platforms.emulators.kaggle.place import Place
    from platforms.emulators.kaggle.storage import Blob

_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)")


def receive(handler: BaseHTTPRequestHandler, place: Place, token: str, *, interrupt: bool) -> None:
    """Take in a PUT for the blob ``token``. With ``interrupt``, keep half of it and answer 503."""
    data = _read_body(handler)
    with place.lock:
        blob = place.storage.blobs.get(token)
        if blob is None:
            _respond(handler, 404)
            return
        match = _RANGE.fullmatch(handler.headers.get("Content-Range", ""))
        if match is not None and match[1] is None:
            _respond_progress(handler, blob)
            return
        _keep(blob, data[: len(data) // 2] if interrupt else data, int(match[1]) if match else 0)
        if interrupt:
            _respond(handler, 503)
        else:
            _respond_progress(handler, blob)


def _keep(blob: Blob, data: bytes, first: int) -> None:
    with blob.path.open("r+b") as stream:
        stream.seek(first)
        stream.write(data)
        stream.truncate()
    blob.done = blob.path.stat().st_size == blob.size


def _respond_progress(handler: BaseHTTPRequestHandler, blob: Blob) -> None:
    have = blob.path.stat().st_size
    if blob.done:
        _respond(handler, 200)
    else:
        _respond(handler, 308, f"bytes=0-{have - 1}" if have else "")


def _respond(handler: BaseHTTPRequestHandler, status: int, reached: str = "") -> None:
    handler.send_response(status)
    if reached:
        handler.send_header("Range", reached)
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def _read_body(handler: BaseHTTPRequestHandler) -> bytes:
    if handler.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    pieces = []
    while size := int(handler.rfile.readline().split(b";")[0], 16):
        pieces.append(handler.rfile.read(size))
        handler.rfile.readline()
    handler.rfile.readline()
    return b"".join(pieces)
