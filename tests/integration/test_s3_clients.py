"""S3 that drips, floods or answers in odd ways: each call ends in time, in an error of the store."""

from __future__ import annotations

import itertools
import socket
import ssl
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from platforms.artifacts.base import StoreError, StoreUnreachable
from platforms.artifacts.s3.client import connect
from platforms.artifacts.s3.store import S3Store
from tests.lab.dripper import HEAD, Dripper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytest.importorskip("botocore", reason="boto3 is not installed")
pytestmark = pytest.mark.usefixtures("aws_credentials", "soon")

LONG = b'HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nETag: "tag"\r\n\r\n'
LENGTHS = (b"\xb2", b"abc", b"-1", b"9" * 5_000, b"4, 4", b"4\r\nLast-Modified: yesterday")
HEADS = (
    *(b"Content-Length: " + text for text in LENGTHS),
    b"Transfer-Encoding: chunked",
    b"Content-Length: 4\r\nx-amz-checksum-sha256: AAAA",
)
BODIES = (
    b"",
    b"abcd",
    b"<ListBucketResult><Contents><Size>4</Size></Contents></ListBucketResult>",
    b"<ListBucketResult><Contents><Key>a</Key><Size>\xc2\xb2</Size></Contents></ListBucketResult>",
    b"<ListMultipartUploadsResult><Upload><Key>a</Key></Upload></ListMultipartUploadsResult>",
    b"<ListMultipartUploadsResult><Upload><Initiated>yesterday</Initiated></Upload></ListMultipartUploadsResult>",
    b"<a>" * 3_000,
)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask once, for a moment."""
    monkeypatch.setattr("platforms.artifacts.s3.client._ATTEMPTS", 1)
    monkeypatch.setattr("platforms.artifacts.s3.client._EXCHANGE_SECONDS", 0.1)


@pytest.fixture(params=["http", "https"])
def dripper(request: pytest.FixtureRequest, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dripper]:
    """A server that drips, in plain text and with TLS."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    server = Dripper(context=context if request.param == "https" else None)
    yield server
    server.close()


class Server:
    """Gives every request the same answer; the first connection ends with it unless it is to ``stay``."""

    def __init__(self) -> None:
        self.answer, self.stay = b"", False
        self.connections: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self.connections.append(connection)
                with connection, suppress(OSError):
                    while connection.recv(1 << 16):
                        connection.sendall(self.answer)
                        if not self.stay:
                            connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End it."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


def store_at(address: str) -> S3Store:
    """Return a store at an endpoint of ours, which sends what has more than a kilobyte in parts."""
    return S3Store(connect("s3", region="eu-central-1", endpoint=address), "bucket", part_bytes=999)


def actions(store: S3Store, folder: Path) -> dict[str, Callable[[], Any]]:
    (folder / "long").write_bytes(b"x" * 2_500)
    return {
        "read": lambda: store.read("a/b"),
        "fetch": lambda: store.fetch("a/b", folder / "fetched"),
        "size": lambda: store.size("a/b"),
        "list": lambda: list(store.keys("a/")),
        "delete": lambda: store.delete("a/b"),
        "put": lambda: store.put("a/b", b"x"),
        "create": lambda: store.create("a/b", folder / "long"),
        "sweep": lambda: store.sweep(9e9),
    }


@pytest.mark.parametrize(
    ("action", "first"),
    [(action, first) for action in ("read", "list", "put", "size") for first in (HEAD, LONG)][:-1],
)
def test_no_s3_server_that_drips_holds_its_client(dripper: Dripper, tmp_path: Path, action: str, first: bytes) -> None:
    """Botocore's time-out counts from byte to byte: with one every half second a launch never ended."""
    dripper.first = first
    with pytest.raises(StoreUnreachable, match="Read timeout"):
        actions(store_at(dripper.address), tmp_path)[action]()


def test_a_slow_transfer_that_goes_on_is_not_cut_off(
    dripper: Dripper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platforms.artifacts.s3.client._PIECE_BYTES", 1)
    dripper.first = LONG.replace(b"1000000", b"15")
    assert store_at(dripper.address).read("a/b") == b"x" * 15


def test_every_exchange_of_a_connection_has_its_time(server: Server, tmp_path: Path) -> None:
    server.answer, server.stay = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", True
    store = store_at(server.address)
    for _ in range(4):
        assert store.read("a/b") == b"ok"
        threading.Event().wait(0.05)
    assert len(server.connections) == 1


def test_an_answer_without_end_is_refused(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platforms.artifacts.s3.client._ANSWER_BYTES_MAX", 1_000)
    server.answer = b"HTTP/1.1 200 OK\r\n\r\n<ListBucketResult><!--" + b"x" * 1_000 + b"--></ListBucketResult>"
    with pytest.raises(StoreUnreachable):
        [*store_at(server.address).keys("a/")]


@pytest.mark.parametrize("status", [b"200 OK", b"206 Part", b"204 Nothing", b"403 No", b"503 Slow"])
def test_odd_answers_are_errors_of_the_store(server: Server, tmp_path: Path, status: bytes) -> None:
    """A length of "²" or a missing field ended in errors that the daemon does not know."""
    store = store_at(server.address)
    for head, body in itertools.product(HEADS, BODIES):
        server.answer = b"HTTP/1.1 " + status + b"\r\n" + head + b"\r\n\r\n" + body
        for act in actions(store, tmp_path).values():
            with suppress(StoreError):
                act()
