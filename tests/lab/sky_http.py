"""How the stand-in of SkyPilot's server is spoken to: its addresses over HTTP, and the faults that happen to calls."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs, urlsplit

from tests.lab.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lab.sky_server import Request, SkyServer

PATIENCE_SECONDS = 60


class Http(ThreadingHTTPServer):
    """Hands calls on to a stand-in."""

    daemon_threads = True

    def __init__(self, sky: SkyServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.sky = sky


class _Handler(BaseHTTPRequestHandler):
    """One call."""

    @property
    def _sky(self) -> SkyServer:
        return cast("Http", self.server).sky

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer what is asked at once."""
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        if parts.path == "/api/get":
            self._value(query["request_id"][0])
        elif parts.path == "/api/health":
            self._say(parts.path, lambda: (200, {"status": "healthy", "api_version": "62", "version": "0.14.1"}))
        elif parts.path == "/api/status":
            self._say(parts.path, lambda: (200, self._listed(query)))
        else:
            self._begin(parts.path, {})

    def do_POST(self) -> None:
        """Begin a request."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._begin(self.path, body)

    def _begin(self, path: str, body: dict[str, Any]) -> None:
        made: list[Request] = []
        if path == "/launch" and self._sky.complains:
            wrong = {"type": "missing", "loc": ["body", "cluster_name"], "msg": "Field required", "input": body}
            self._say(path, lambda: (422, {"detail": [wrong]}))
            return

        def begin() -> tuple[int, Any]:
            made.append(self._sky.begin(path, body))
            if path != "/logs":
                return 200, None
            made[0].done.wait(PATIENCE_SECONDS)
            return 200, json.loads(made[0].value) or ""

        self._say(path, begin, made, raw=path == "/logs")

    def _value(self, key: str) -> None:
        request = self._sky.requests.get(key)
        if request is None:
            self._say("", lambda: (404, {"detail": f"Request {key!r} not found"}))
            return
        request.done.wait(PATIENCE_SECONDS)
        told = {
            "request_id": key, "name": request.name, "status": request.status, "error": request.error,
            "return_value": request.value, "created_at": request.created_at, "cluster_name": request.cluster,
        }  # fmt: skip
        failed = request.status == "FAILED"
        self._say(request.name, lambda: (500, {"detail": told}) if failed else (200, told))

    def _listed(self, query: dict[str, list[str]]) -> list[dict[str, Any]]:
        found = []
        for one in sorted(self._sky.requests.values(), key=lambda one: -one.created_at):
            if query.get("cluster_name", [one.cluster]) != [one.cluster]:
                continue
            if one.finished_at is None or query.get("all_status") == ["true"]:
                found.append(
                        {
                            "request_id": one.id, "name": one.name, "status": one.status, "error": "null",
                            "created_at": one.created_at, "finished_at": one.finished_at,
                            "cluster_name": one.cluster or None,
                        }
                    )  # fmt: skip
        return found

    def _say(
        self,
        call: str,
        act: Callable[[], tuple[int, Any]],
        made: list[Request] | None = None,
        *,
        raw: bool = False,
    ) -> None:
        fault = self._sky.faults.take(call)
        if fault is Fault.DROP:
            self._hang_up()
            return
        if fault is Fault.SERVER_ERROR:
            status, told = 500, None
        else:
            status, told = act()
            if fault is Fault.DROP_AFTER_COMMIT:
                self._hang_up()
                return
            if fault is Fault.ERROR_AFTER_COMMIT:
                status, told, made = 500, None, None
        body = told.encode() if raw and isinstance(told, str) else json.dumps(told).encode()
        if status == 200 and isinstance(told, dict):
            body = self._sky.faults.twist(call, told) or body
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if made:
            self.send_header("x-skypilot-request-id", made[0].id)
        self.end_headers()
        self.wfile.write(body)

    def _hang_up(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True
