"""Readers who keep the page waiting, over real sockets: unfinished headers, endless bodies, answers nobody takes."""

from __future__ import annotations

import select
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn

from scheduler.web.actors import Bearer
from scheduler.web.guard import Guard
from scheduler.web.server import ServerLimits, bounded
from tests.lab.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
Serve = "Callable[..., int]"


async def page(scope: Any, receive: Any, send: Any) -> None:
    """Answer at once, with as many bytes as the path says, and read no body."""
    size = int(scope["path"].strip("/") or 2)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(size).encode())]})
    await send({"type": "http.response.body", "body": b"x" * size})


@pytest.fixture
def serve() -> Iterator[Callable[..., int]]:
    """Serves the page behind its guard with limits of the test's own; returns the port."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def begin(app: Any = page, bearer: Bearer | None = None, **limits: Any) -> int:
        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(
            Guard(app, frozenset(), bearer),
            **bounded(ServerLimits(**limits)),
            log_config=None,
            lifespan="off",
            ws="none",
            timeout_keep_alive=1,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        running.append((server, thread))
        port: int = listening.getsockname()[1]
        return port

    yield begin
    for server, thread in running:
        server.should_exit = server.force_exit = True
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def talk(port: int, *pieces: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
    for piece in pieces:
        connection.sendall(piece)
    return connection


def everything(connection: socket.socket) -> bytes:
    """Return what comes until the other side ends it; a time-out fails the test."""
    found = b""
    while True:
        try:
            piece = connection.recv(65_536)
        except ConnectionResetError:
            return found
        if not piece:
            return found
        found += piece


@pytest.mark.parametrize("said", [b"", b"G", HEAD, HEAD + b"Cookie: a"])
def test_a_header_that_is_never_finished_ends_with_the_connection(serve: Callable[..., int], said: bytes) -> None:
    with talk(serve(request_seconds=0.2), said) as connection:
        assert everything(connection) == b""


def test_dripping_header_lines_gains_no_time(serve: Callable[..., int]) -> None:
    with talk(serve(request_seconds=0.3), HEAD) as connection:
        connection.settimeout(0.05)
        for number in range(600):
            try:
                connection.sendall(f"X-{number}: a\r\n".encode())
                assert connection.recv(100) == b""
                break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("the connection was kept")


def test_a_second_request_is_not_waited_for_longer_than_the_first(serve: Callable[..., int]) -> None:
    with talk(serve(request_seconds=0.2), HEAD + b"\r\n") as connection:
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        connection.sendall(HEAD)
        everything(connection)


def test_several_requests_on_one_connection_are_answered(serve: Callable[..., int]) -> None:
    with talk(serve(request_seconds=5), (HEAD + b"\r\n") * 2 + HEAD + b"Connection: close\r\n\r\n") as connection:
        assert everything(connection).count(b"HTTP/1.1 200") == 3


def test_a_header_without_end_is_refused(serve: Callable[..., int]) -> None:
    with talk(serve(header_bytes_max=4_096)) as connection:
        connection.sendall(HEAD + b"X: " + b"a" * 5_000)  # little more: what is left unread would undo the answer
        assert everything(connection).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_a_body_that_nobody_wants_ends_with_the_answer(serve: Callable[..., int], method: bytes) -> None:
    head = method + b" / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    with talk(serve(request_seconds=0.5), head) as connection:
        for _ in range(1 << 20):
            try:
                connection.sendall(b"400\r\n" + b"a" * 1_024 + b"\r\n")
            except OSError:
                break
        else:
            pytest.fail("a body of a gibibyte was taken")


def test_an_answer_that_is_not_taken_is_given_up(serve: Callable[..., int]) -> None:
    port = serve(answer_seconds=0.3)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.connect(("127.0.0.1", port))
        connection.sendall(b"GET /50000000 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        ends = select.poll()
        ends.register(connection, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        assert ends.poll(30_000), "the server waits for a reader who does not read"


def test_too_many_connections_do_not_keep_a_reader_out(serve: Callable[..., int]) -> None:
    port = serve(request_seconds=60, connections_max=5)
    silent = [talk(port, HEAD) for _ in range(20)]
    with talk(port, HEAD + b"Connection: close\r\n\r\n") as reader:
        assert everything(reader).startswith(b"HTTP/1.1 200")
    assert everything(silent[0]) == b""  # the oldest went first
    for connection in silent:
        connection.close()


def sign_in(bearer: Bearer | None = None) -> Any:
    from fastapi import FastAPI
    from jinja2 import DictLoader, Environment

    from scheduler.web.guard import sign_in_routes

    site = FastAPI()
    environment = Environment(loader=DictLoader({"sign_in.html": "wrong: {{ wrong }}"}), autoescape=True)
    site.include_router(sign_in_routes(bearer or Bearer("t" * 40), environment))
    return site


def test_an_endless_sign_in_is_cut_off(serve: Callable[..., int]) -> None:
    port = serve(sign_in(), request_seconds=0.5)
    head = b"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    with talk(port, head + (b"400\r\n" + b"a" * 1_024 + b"\r\n") * 5) as connection:
        assert everything(connection).startswith(b"HTTP/1.1 413")
    with talk(port, head + b"5\r\ntoken\r\n") as connection:
        assert everything(connection) == b""


def test_a_cookie_is_out_of_reach_for_scripts_and_for_other_sites(serve: Callable[..., int]) -> None:
    body = b"token=" + b"t" * 40
    head = b"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    with talk(serve(sign_in()), head + body) as connection:
        (cookie,) = [line for line in everything(connection).split(b"\r\n") if line.lower().startswith(b"set-cookie")]
    assert {b"httponly", b"samesite=lax"} <= {part.strip().lower() for part in cookie.split(b";")}
    assert b"t" * 40 not in cookie


def test_guesses_are_counted_by_the_connection_whatever_their_headers_say(serve: Callable[..., int]) -> None:
    bearer = Bearer("t" * 40)
    port = serve(sign_in(bearer), bearer, connections_max=500)

    def code(start: str, token: str, number: int) -> int:
        headers = f"Host: 127.0.0.1\r\nX-Forwarded-For: 192.0.2.{number}\r\nForwarded: for=192.0.2.{number}\r\n"
        body = f"token={token}" if start.startswith("POST") else ""
        shown = "" if body else f"Authorization: Bearer {token}\r\n"
        request = f"{start} HTTP/1.1\r\n{headers}{shown}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        with talk(port, request.encode()) as connection:
            return int(everything(connection).split()[1])

    assert [code("POST /sign-in", "guess", each) for each in range(5)] == [401] * 5
    assert [code("GET /api/v1/status", "guess", each) for each in range(5)] == [401] * 5
    for start in ("POST /sign-in", "GET /api/v1/status"):
        assert [code(start, token, 99) for token in ("guess", "t" * 40)] == [429, 429]
