"""A stand-in for the Hub on this machine: one repository of models, its listing in pages, files behind redirects.

It keeps the Hub's habits that cost people their evenings: signed addresses on another host that expire, answers 429
with a Retry-After, 200 where a range was asked for, connections that break off, files for some tokens only.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

COMMIT = "c0ffee" + "0" * 34
NAME = "org/tiny"
TOKEN = "hf_canary_of_the_tests"
_PAGE = 2


@dataclass
class Habits:
    """What it does to those who ask; counts go down with each time."""

    cut_after: int | None = None  # bytes of each answer, after which the connection breaks
    busy: int = 0  # answers 429 first
    expired: int = 0  # signed addresses that are over at once
    ignores_ranges: bool = False
    gated: bool = False  # files need the token; the listing does not
    garbage: bool = False  # other bytes of the same size
    longer: bool = False  # more bytes than listed
    leads_to: str = ""  # where files are said to be, instead of at the other host
    pages_at: str = ""  # the host of the listing's next page


@dataclass
class Seen:
    """What it was asked: bytes sent by path, and the authorization shown to each host."""

    sent: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    ranges: list[str] = field(default_factory=list)
    shown: list[tuple[str, str]] = field(default_factory=list)


class StandInHub:
    """Serves ``files``; those of ``large`` bytes and more as the Hub serves what LFS holds. A context manager."""

    def __init__(self, files: Mapping[str, bytes], large: int = 100) -> None:
        self.files, self.large = dict(files), large
        self.habits, self.seen = Habits(), Seen()
        self._lock = threading.Lock()
        self._hub, self._store = (_server(self, host) for host in ("hub", "store"))

    @property
    def endpoint(self) -> str:
        """Its address, as HF_ENDPOINT has it."""
        return f"http://127.0.0.1:{self._hub.server_port}"

    def __enter__(self) -> Self:
        self._threads = [threading.Thread(target=one.serve_forever, args=(0.01,)) for one in (self._hub, self._store)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in (self._hub, self._store):
            server.shutdown()
            server.server_close()
        for thread in self._threads:
            thread.join()

    def answer(self, host: str, request: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        found = urlsplit(request.path)
        with self._lock:
            self.seen.shown.append((host, request.headers.get("Authorization", "")))
            self.seen.asked[found.path] += 1
        if host == "store":
            self._bytes(request, unquote(found.path.removeprefix("/blob/")), found.query)
        elif self._down("busy"):
            _send(request, 429, b"slow down", {"Retry-After": "0"})
        elif found.path.startswith("/api/"):
            self._interface(request, found.path, parse_qs(found.query))
        else:
            self._resolve(request, found.path)

    def _interface(self, request: BaseHTTPRequestHandler, path: str, query: Mapping[str, list[str]]) -> None:
        rest = path.removeprefix(f"/api/models/{NAME}/")
        if rest in {"revision/main", f"revision/{COMMIT}"}:
            _send(request, 200, json.dumps({"id": NAME, "sha": COMMIT}).encode())
        elif rest == f"tree/{COMMIT}":
            place = int(query.get("cursor", ["0"])[0])
            rows = [{"type": "directory", "path": "any", "oid": "0" * 40, "size": 0}, *self._rows()]
            headers = {}
            if place + _PAGE < len(rows):
                base = self.habits.pages_at or self.endpoint
                headers["Link"] = f'<{base}{path}?recursive=true&cursor={place + _PAGE}>; rel="next"'
            _send(request, 200, json.dumps(rows[place : place + _PAGE]).encode(), headers)
        else:
            _send(request, 404, b"{}")

    def _rows(self) -> Iterator[dict[str, Any]]:
        for path, data in sorted(self.files.items()):
            git = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
            row: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": git}
            if len(data) >= self.large:
                row["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}
            yield row

    def _resolve(self, request: BaseHTTPRequestHandler, path: str) -> None:
        name = unquote(path.removeprefix(f"/{NAME}/resolve/{COMMIT}/"))
        if self.habits.gated and request.headers.get("Authorization") != f"Bearer {TOKEN}":
            _send(request, 403, b"", {"X-Error-Code": "GatedRepo"})
        elif name not in self.files:
            _send(request, 404, b"")
        elif len(self.files[name]) < self.large:
            self._bytes(request, name, "")
        else:
            signature = "over" if self._down("expired") else "good"
            store = self.habits.leads_to or f"http://127.0.0.1:{self._store.server_port}"
            _send(request, 302, b"", {"Location": f"{store}/blob/{path.rpartition('/')[2]}?signature={signature}"})

    def _bytes(self, request: BaseHTTPRequestHandler, name: str, query: str) -> None:
        if "over" in query:
            _send(request, 403, b"expired")
            return
        data = self.files[next(path for path in self.files if path.rpartition("/")[2] == name.rpartition("/")[2])]
        if self.habits.garbage:
            data = bytes(len(data))
        if self.habits.longer:
            data += b"x"
        asked = request.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        headers, code, whole = {}, 200, len(data)
        with self._lock:
            self.seen.ranges.append(asked)
        if asked and not self.habits.ignores_ranges:
            data, code = data[start:], 206
            headers["Content-Range"] = f"bytes {start}-{whole - 1}/{whole}"
        sent = data if self.habits.cut_after is None else data[: self.habits.cut_after]
        with self._lock:
            self.seen.sent[name.rpartition("/")[2]] += len(sent)
        _send(request, code, sent, {**headers, "Content-Length": str(len(data))})
        request.close_connection = True

    def _down(self, habit: str) -> bool:
        with self._lock:
            left: int = getattr(self.habits, habit)
            setattr(self.habits, habit, max(0, left - 1))
        return left > 0


def _server(hub: StandInHub, host: str) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.answer(host, self)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def _send(request: BaseHTTPRequestHandler, code: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
    request.send_response(code)
    for name, text in {"Content-Length": str(len(body)), **(headers or {})}.items():
        request.send_header(name, text)
    request.end_headers()
    try:
        request.wfile.write(body)
    except (BrokenPipeError, ConnectionResetError):
        request.close_connection = True  # whoever asked has heard enough
