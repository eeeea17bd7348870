"""A session whose store answers badly: it asks again where that may help, and says what is over."""

import hashlib
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from jobs.payload.store.presigned import PresignedTransport


class Faulty(BaseHTTPRequestHandler):
    """Does what the script says, one answer for each request."""

    script: ClassVar[list[Callable[[BaseHTTPRequestHandler], None]]] = []

    def do_GET(self) -> None:
        """Follow the script."""
        type(self).script.pop(0)(self)

    def log_message(self, *words: Any) -> None:
        """Say nothing."""


def answer(code: int, body: bytes = b"", length: int | None = None) -> Callable[[BaseHTTPRequestHandler], None]:
    def run(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        handler.send_header("Content-Length", str(len(body) if length is None else length))
        handler.end_headers()
        handler.wfile.write(body)

    return run


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server that follows a script, and a session whose one key lies there."""
    monkeypatch.setattr("jobs.payload.store.presigned._PAUSES", (0.0, 0.0))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Faulty)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/a"
    yield PresignedTransport({"gets": {"a": url}, "posts": [], "folders": {}}, Path())
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    "trouble",
    [*map(answer, (408, 429, 500, 502, 503, 504)), answer(200, b"wei", 7)],
    ids=["408", "429", "500", "502", "503", "504", "cut off"],
)
def test_passing_trouble_is_asked_again(
    faulty: PresignedTransport, tmp_path: Path, trouble: Callable[[BaseHTTPRequestHandler], None]
) -> None:
    Faulty.script = [trouble, trouble, answer(200, b"weights")]
    assert faulty.fetch("a", tmp_path / "copy") == hashlib.sha256(b"weights").hexdigest()
    assert (tmp_path / "copy").read_bytes() == b"weights"
    assert Faulty.script == []


def test_lasting_trouble_is_an_error_after_bounded_tries(faulty: PresignedTransport) -> None:
    Faulty.script = [answer(503)] * 4
    with pytest.raises(ConnectionError):
        faulty.read("a")
    assert len(Faulty.script) == 1


def test_rights_that_are_over_are_told_at_once(faulty: PresignedTransport) -> None:
    Faulty.script = [answer(403), answer(200)]
    with pytest.raises(PermissionError, match="may have expired"):
        faulty.read("a")
    assert len(Faulty.script) == 1
