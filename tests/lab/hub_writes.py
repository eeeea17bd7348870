"""A stand-in for what the Hub does when somebody writes: repositories, large files by LFS, commits and tags.

It holds what it is sent against its digests, as the real one does, and refuses whoever has not its token.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "hf_canary_that_may_write"


@dataclass
class HubWrites:
    """What it has: repositories with their commits, tags, and large files by digest."""

    port: int = 0
    private: dict[str, bool] = field(default_factory=dict)
    branches: dict[str, dict[str, list[str]]] = field(default_factory=dict)  # by repository: branch to commits
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)  # by commit
    tags: dict[str, str] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    breaks: bool = False  # it answers 500 to commits

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def head(self, name: str, branch: str = "main") -> dict[str, bytes]:
        """Return the files of a branch's newest commit."""
        commits = self.branches[name][branch]
        return self.files[commits[-1]] if commits else {}

    def answer(self, method: str, path: str, data: bytes) -> tuple[int, Any]:
        """Return status and document of a call."""
        parts = path.strip("/").split("/")
        if parts[0] == "large":
            if hashlib.sha256(data).hexdigest() != parts[1]:
                return 400, {"error": "other bytes than were announced"}
            self.large[parts[1]] = data
            return 200, {}
        if path == "/api/repos/create":
            body = json.loads(data)
            name = f"{body['organization']}/{body['name']}" if body.get("organization") else body["name"]
            if name in self.private:
                return 409, {"error": "You already created this model repo", "url": f"{self.address}/{name}"}
            self.private[name] = bool(body.get("private")) or body.get("visibility") == "private"
            self.branches[name] = {"main": []}
            return 200, {"url": f"{self.address}/{name}", "name": name}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path.endswith(".git/info/lfs/objects/batch"):
            return 200, {"transfer": "basic", "objects": [self._wanted(one) for one in json.loads(data)["objects"]]}
        if parts[:2] == ["api", "models"] and len(parts) > 4:
            return self._of_repository("/".join(parts[2:4]), method, parts[4:], data)
        return 404, {"error": f"{method} {path} is not known here"}

    def _wanted(self, told: dict[str, Any]) -> dict[str, Any]:
        found = {"oid": told["oid"], "size": told["size"]}
        if told["oid"] in self.large:
            return found
        return {**found, "actions": {"upload": {"href": f"{self.address}/large/{told['oid']}", "header": {}}}}

    def _of_repository(self, name: str, method: str, parts: list[str], data: bytes) -> tuple[int, Any]:
        if name not in self.branches:
            return 404, {"error": "Repository not found"}
        what, branch = parts[0], unquote(parts[1])
        if what == "preupload":
            wanted = json.loads(data)["files"]
            modes = ["lfs" if one["path"].endswith(".safetensors") else "regular" for one in wanted]
            told = zip(wanted, modes, strict=True)
            return 200, {"files": [{"path": o["path"], "uploadMode": m, "shouldIgnore": False} for o, m in told]}
        if what == "branch":
            known = branch in self.branches[name]
            self.branches[name].setdefault(branch, list(self.branches[name]["main"]))
            return (409, {"error": "Reference already exists"}) if known else (200, {})
        if what == "tree":
            files = self.head(name, branch)
            return 200, [{"type": "file", "path": p, "oid": "0" * 40, "size": len(d)} for p, d in files.items()]
        if what == "tag":
            tag = json.loads(data)["tag"]
            if tag in self.tags:
                return 409, {"error": "Tag reference exists already"}
            self.tags[tag] = branch
            return 200, {}
        if what == "commit":
            return self._commit(name, branch, [json.loads(line) for line in data.splitlines()])
        if what == "revision" and method == "GET":
            commits = self.branches[name].get(branch, [])
            return 200, {"id": name, "sha": commits[-1] if commits else "0" * 40, "siblings": []}
        return 404, {"error": f"{what} is not known here"}

    def _commit(self, name: str, branch: str, lines: list[dict[str, Any]]) -> tuple[int, Any]:
        if self.breaks:
            return 500, {"error": "Internal Error"}
        files = dict(self.head(name, branch))
        for line in lines[1:]:
            told = line["value"]
            if line["key"] == "file":
                files[told["path"]] = base64.b64decode(told["content"])
            elif line["key"] == "lfsFile":
                if told["oid"] not in self.large:
                    return 400, {"error": "a large file is not there"}
                files[told["path"]] = self.large[told["oid"]]
            elif line["key"] == "deletedFile":
                files.pop(told["path"], None)
        commit = f"{len(self.files) + 1:040x}"
        self.files[commit] = files
        self.branches[name][branch].append(commit)
        return 200, {"success": True, "commitOid": commit, "commitUrl": f"{self.address}/{name}/commit/{commit}"}


@contextmanager
def hub_that_is_written_to() -> Iterator[HubWrites]:
    """Serve until the body ends."""
    told = HubWrites()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            data = self._sent()
            path = urlsplit(self.path).path
            if path.startswith("/large/") or self.headers.get("Authorization") == f"Bearer {TOKEN}":
                status, document = told.answer(self.command, path, data)
            else:
                status, document = 401, {"error": "Invalid username or password."}
            answer = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def _sent(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found = b""
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return found

        do_GET = do_POST = do_PUT = _serve  # noqa: N815 - the library finds them by these names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's own name
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
