"""A small router before servers of models: one OpenAI-like address, a table of who answers for whom, and a fallback.

    python router.py --table table.json --port 8100 --admin-port 8101

A request names a model (`"model": "ufm"`). The table says which version answers for it now, `ufm@7`. If that one fails,
the main model answers; if that fails too, the version of ufm before. What failed a few times is left alone for a while,
then tried once. Each request goes to the server with the fewest under way. `X-Served-By` in an answer tells who it was.

The table is changed at the other port, which listens on this machine alone, by whoever names the generation that they
saw: of two who change it at once, one is asked to look again. An example, to be changed. Standard library only.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import threading
import time
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FAILURES_MAX = 3  # in a row, after which a version at a server is left alone
REST_SECONDS = 30.0
ANSWER_SECONDS = 120.0
BODY_MAX_BYTES = 8 << 20
PASSED_ON = {"/v1/chat/completions", "/v1/completions"}
HEADERS = ("Content-Type", "Content-Length")


class Stale(Exception):
    """The table has changed since it was looked at."""


class Table:
    """Who answers for whom, kept in a file that is replaced as a whole.

    `{"generation": 3, "main": "uff-main", "servers": ["http://127.0.0.1:8000"], "models": {"ufm": {"serves": "ufm@7",
    "last_good": "ufm@6"}}}`
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._turn = threading.Lock()
        self._document = json.loads(file.read_text(encoding="utf-8"))
        for key, kind in (("generation", int), ("main", str), ("servers", list), ("models", dict)):
            if not isinstance(self._document.get(key), kind):
                raise SystemExit(f"{file}: {key} is missing or no {kind.__name__}; see the first lines of router.py")

    def document(self) -> dict[str, Any]:
        """Return the table as it is now."""
        with self._turn:
            return json.loads(json.dumps(self._document))

    def point(self, model: str, to: str, expected_generation: int) -> int:
        """Let `to` answer for a model from now on; return the new generation. Raises Stale."""
        with self._turn:
            if expected_generation != self._document["generation"]:
                raise Stale
            row = self._document["models"].get(model, {})
            if row.get("serves") == to:
                return expected_generation
            changed = {"serves": to, "last_good": row.get("serves", "")}
            document = {**self._document, "generation": expected_generation + 1}
            document["models"] = {**document["models"], model: changed}
            fresh = self._file.with_suffix(".new")
            with fresh.open("w", encoding="utf-8") as stream:
                json.dump(document, stream, indent=1)
                stream.flush()
                os.fsync(stream.fileno())
            fresh.replace(self._file)
            self._document = document
            return expected_generation + 1

    def chain(self, model: str) -> list[str]:
        """Return who may answer for a model, the best first: its version, main's, its version before."""
        document = self.document()
        row, main = document["models"].get(model), document["models"].get(document["main"], {})
        if row is None:
            return []
        names = [row.get("serves"), main.get("serves"), row.get("last_good")]
        return list(dict.fromkeys(name for name in names if name))


class Health:
    """Who failed lately, and how many requests each has under way. A pair is a version at a server."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:  # noqa: TID251 - a program of its own
        self._now = now
        self._turn = threading.Lock()
        self._failed: dict[tuple[str, str], tuple[int, float]] = {}  # how often in a row, and when last
        self._under_way: dict[tuple[str, str], int] = {}

    def usable(self, name: str, servers: list[str]) -> list[str]:
        """Return the servers at which a version is worth trying, the least busy first."""
        with self._turn:
            rested = [server for server in servers if self._rested((name, server))]
            return sorted(rested, key=lambda server: sum(n for (_, at), n in self._under_way.items() if at == server))

    def _rested(self, pair: tuple[str, str]) -> bool:
        count, at = self._failed.get(pair, (0, 0.0))
        if count < FAILURES_MAX:
            return True
        if self._now() - at < REST_SECONDS:
            return False
        self._failed[pair] = (count, self._now())  # one may try; the others go on waiting
        return True

    @contextmanager
    def asking(self, name: str, server: str) -> Iterator[None]:
        """Count a request while the body runs."""
        with self._turn:
            self._under_way[name, server] = self._under_way.get((name, server), 0) + 1
        try:
            yield
        finally:
            with self._turn:
                self._under_way[name, server] -= 1

    def note(self, name: str, server: str, *, good: bool) -> None:
        """Remember how an attempt went."""
        with self._turn:
            if good:
                self._failed.pop((name, server), None)
            else:
                self._failed[name, server] = (self._failed.get((name, server), (0, 0.0))[0] + 1, self._now())

    def document(self) -> dict[str, Any]:
        """Return what is known, for people."""
        with self._turn:
            failed = {f"{name} at {server}": count for (name, server), (count, _) in self._failed.items()}
            busy = {f"{name} at {server}": count for (name, server), count in self._under_way.items() if count}
        return {"failures": failed, "under_way": busy}


class Answer(NamedTuple):
    """An answer of which the first byte is there."""

    name: str
    server: str
    response: http.client.HTTPResponse
    connection: http.client.HTTPConnection


def ask(path: str, body: dict[str, Any], name: str, server: str) -> Answer | None:
    """Ask a server for a version; None where it fails in a way that another may not."""
    parts = urlsplit(server)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_SECONDS)
    try:
        content = json.dumps({**body, "model": name}).encode()
        connection.request("POST", path, content, {"Content-Type": "application/json"})
        response = connection.getresponse()
    except (OSError, http.client.HTTPException):
        connection.close()
        return None
    if response.status == 404 or response.status >= 500 or response.status == 429:
        connection.close()
        return None
    return Answer(name, server, response, connection)


class Server(ThreadingHTTPServer):
    """A server whose handlers share the table and what is known of health; `key` is for those who change the table."""

    def __init__(self, at: tuple[str, int], handler: type[Quiet], table: Table, health: Health, key: str = "") -> None:
        super().__init__(at, handler)
        self.table, self.health, self.key = table, health, key


class Quiet(BaseHTTPRequestHandler):
    """JSON in, JSON out, and no line for each request."""

    timeout = ANSWER_SECONDS
    server: Server

    def body(self) -> dict[str, Any] | None:
        """Return the request's document; None when it has none that can be read."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > BODY_MAX_BYTES:
            return None
        try:
            found = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def tell(self, status: int, document: dict[str, Any]) -> None:
        """Answer with a document."""
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def refuse(self, status: int, why: str) -> None:
        """Answer that it is not done."""
        self.tell(status, {"error": {"message": why}})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's own name
        """Say nothing."""


class Public(Quiet):
    """What answers users."""

    def do_GET(self) -> None:
        """List the models."""
        if self.path != "/v1/models":
            self.refuse(404, "there is nothing here")
            return
        names = sorted(self.server.table.document()["models"])
        self.tell(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in names]})

    def do_POST(self) -> None:
        """Let the first of the chain that can answer a request."""
        body = self.body()
        if body is None or self.path not in PASSED_ON:
            self.refuse(400, f"write a JSON document to one of {', '.join(sorted(PASSED_ON))}")
            return
        chain = self.server.table.chain(str(body.get("model")))
        if not chain:
            self.refuse(404, f"the table has no model {body.get('model')!r}")
        elif not any(self.passed(body, name) for name in chain):
            self.refuse(503, f"none of {', '.join(chain)} answers")

    def passed(self, body: dict[str, Any], name: str) -> bool:
        """Let a version answer wherever it can; tell whether it did."""
        health = self.server.health
        for server in health.usable(name, self.server.table.document()["servers"]):
            with health.asking(name, server):
                answer = ask(self.path, body, name, server)
                health.note(name, server, good=answer is not None)
                if answer is not None:
                    self.pass_on(answer)
                    return True
        return False

    def pass_on(self, answer: Answer) -> None:
        """Send an answer as it comes, so that streams stay streams."""
        self.close_connection = True
        with closing(answer.connection):
            self.send_response(answer.response.status)
            for header in HEADERS:
                if value := answer.response.getheader(header):
                    self.send_header(header, value)
            self.send_header("X-Served-By", answer.name)
            self.end_headers()
            while piece := answer.response.read1(1 << 16):
                self.wfile.write(piece)
                self.wfile.flush()


class Admin(Quiet):
    """What answers whoever deploys."""

    def do_GET(self) -> None:
        """Show the table, and who failed lately."""
        if self.allowed():
            self.tell(200, {**self.server.table.document(), "health": self.server.health.document()})

    def do_POST(self) -> None:
        """Change who answers for a model."""
        body = self.body()
        if not self.allowed():
            return
        words = [body.get(key) for key in ("model", "to")] if body else []
        expected = body.get("expected_generation") if body else None
        if self.path != "/admin/point" or not all(isinstance(word, str) and word for word in words) or expected is None:
            self.refuse(400, "write model, to and expected_generation to /admin/point")
            return
        try:
            self.tell(200, {"generation": self.server.table.point(words[0], words[1], expected)})
        except Stale:
            self.refuse(409, f"the table has changed, its generation is {self.server.table.document()['generation']}")

    def allowed(self) -> bool:
        """Tell whether the request has the token that is asked for, if any is."""
        key = self.server.key
        if not key or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self.refuse(401, "a bearer token is missing or wrong")
        return False


def main() -> None:
    """Run until interrupted."""
    parser = argparse.ArgumentParser(description="A small router before servers of models.")
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--admin-port", type=int, default=8101)
    options = parser.parse_args()
    key = os.environ.get("ROUTER_KEY", "")
    table, health = Table(options.table), Health()
    servers = [
        Server((options.host, options.port), Public, table, health),
        Server(("127.0.0.1", options.admin_port), Admin, table, health, key),
    ]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    ports = [server.server_address[1] for server in servers]
    print(f"answers on {options.host}:{ports[0]}, is changed on 127.0.0.1:{ports[1]}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
