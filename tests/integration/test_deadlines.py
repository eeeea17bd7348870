"""A server that goes on byte by byte holds nobody for longer than the whole exchange may take."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request

import pytest
import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

import jobs.payload
from jobs.payload.deadline import Deadline, ProcessDeadline, exchange
from jobs.payload.lane.secret_values import SecretStore, fetch
from jobs.payload.scorers.chat import NoChatAnswer
from jobs.payload.scorers.chat import ask as ask_model
from jobs.payload.store import hub
from jobs.payload.store.hub import TemporaryFailure
from jobs.payload.store.presigned import PresignedTransport
from platforms.base import Unreachable
from platforms.kaggle.api.client import KaggleClient
from platforms.kaggle.api.wire import Wire
from platforms.kaggle.kernel import bootstrap
from platforms.kaggle.settings import Credentials
from platforms.skypilot.server import ApiServer
from platforms.skypilot.settings import read_settings as sky_settings
from platforms.targets.base import TargetUnreachable
from platforms.targets.vllm import Loopback
from scheduler.host.doctor import check_mail
from scheduler.notify.deliver import DeliveryFailed, EmailChannel, SlackChannel, WebhookChannel
from tests.lab.dripper import HEAD, Dripper
from tests.lab.patience import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BODY = {"subject": "Training", "text": "ufm: done\n", "event": {"id": 1}}


@pytest.fixture
def dripper() -> Iterator[Dripper]:
    server = Dripper()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a second of a deadline pass in a twentieth, and a piece of a transfer be as short as an answer."""
    monkeypatch.setattr("jobs.payload.store.presigned._PIECE_SECONDS", 4)
    monkeypatch.setattr("jobs.payload.store.presigned._PAUSES", ())
    monkeypatch.setattr("jobs.payload.scorers.chat._TIMEOUT_SECONDS", 4)
    monkeypatch.setattr("jobs.payload.lane.secret_values._TIMEOUT_SECONDS", 4)
    monkeypatch.setattr("platforms.kaggle.kernel.bootstrap._CALL_SECONDS", 4)
    real = threading.Timer
    monkeypatch.setattr("threading.Timer", lambda seconds, work: real(seconds / 20, work))


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 ", HEAD, HEAD + b"\r\n\r\n"], ids=["line", "word", "head", "body"])
def test_a_dripping_answer_ends_in_a_time_out(dripper: Dripper, first: bytes) -> None:
    dripper.first = first
    with pytest.raises(TimeoutError, match="no whole answer within 4 s"):
        exchange(Request(f"http://127.0.0.1:{dripper.port}/"), 4, 1 << 20)


def test_a_long_answer_is_refused_and_a_whole_one_is_returned_whatever_its_status(dripper: Dripper) -> None:
    dripper.first = b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n" + b"x" * 50
    with pytest.raises(ValueError, match="longer than 9 bytes"):
        exchange(Request(f"http://127.0.0.1:{dripper.port}/"), 400, 9)
    dripper.first = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 2\r\n\r\nno"
    answer = exchange(Request(f"http://127.0.0.1:{dripper.port}/"), 400, 9)
    assert (answer.status, answer.headers["location"], answer.body) == (302, "http://127.0.0.1:1/", b"no")


def test_what_is_watched_after_the_end_is_shut_at_once() -> None:
    def late() -> None:
        with ours, theirs, Deadline(0) as deadline:
            deadline._timer.join()
            deadline.watch(ours)
            assert ours.recv(1) == b""

    ours, theirs = socket.socketpair()
    with pytest.raises(TimeoutError):
        late()


def webhook(port: int) -> None:
    WebhookChannel(f"http://127.0.0.1:{port}/", "s" * 20, 4).send("key", BODY)


def slack(port: int) -> None:
    SlackChannel(f"http://127.0.0.1:{port}/", "", "", 4).send("key", BODY)


def bot(port: int) -> None:
    SlackChannel("", "token-of-a-bot", "#t", 4, f"http://127.0.0.1:{port}/").send("key", BODY)


def mail_channel(port: int) -> EmailChannel:
    return EmailChannel("127.0.0.1", port, False, "", "", "s@example.org", ("a@example.org",), 2)


def hub_page(port: int) -> None:
    hub.get(f"http://127.0.0.1:{port}/api", "", lambda answer: answer.read())


def served(port: int) -> None:
    Loopback("vllm", port, lambda: "", 4).lines("/metrics")


def sky(port: int) -> ApiServer:
    return ApiServer(sky_settings({"address": f"http://127.0.0.1:{port}", "call_seconds": "4"}, Path("/state")))


def presigned(port: int) -> PresignedTransport:
    address = f"http://127.0.0.1:{port}/a"
    post = {"below": "a", "url": address, "prefix": "", "fields": {}}
    return PresignedTransport({"gets": {"a": address}, "posts": [post], "folders": {}}, Path())


def chat(port: int) -> None:
    ask_model(f"http://127.0.0.1:{port}/v1", "m", "Hello", key="NO_KEY")


def parameters(port: int) -> None:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "AKIA")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "key")
        fetch(SecretStore("ssm", "/uff/", "eu-central-1", f"http://127.0.0.1:{port}"), ["A"])


def role(port: int) -> None:
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("AWS_ACCESS_KEY_ID", raising=False)
        environment.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{port}/role")
        fetch(SecretStore("ssm", "/uff/", "eu-central-1", ""), ["A"])


def kaggle(port: int) -> Wire:
    return Wire(Credentials("the test", token="t"), f"http://127.0.0.1:{port}", 4)


def kaggle_file(port: int) -> None:
    kaggle(port).put("http://localhost/a", Path(__file__), 0, 4, lambda _: None)


def kaggle_notebook(port: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        patch.setenv("KAGGLE_API_ENVIRONMENT", "LOCALHOST")
        patch.setenv("KAGGLE_API_V1_TOKEN", os.devnull)
        patch.syspath_prepend(Path(jobs.payload.__file__).parents[1])
        bootstrap.is_there("me/data")


REFUSAL = b"HTTP/1.1 400 Bad\r\nContent-Length: 1000000\r\n\r\n"
LONG = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nX-Skypilot-Request-ID: 1\r\n\r\n"
CLIENTS: list[tuple[Callable[[int], Any], type[Exception]]] = [
    (chat, NoChatAnswer),
    (parameters, ConnectionError),
    (role, ConnectionError),
    (lambda port: KaggleClient(kaggle(port), 1, 0).week(), Unreachable),
    (kaggle_file, Unreachable),
    (kaggle_notebook, TimeoutError),
]


@pytest.mark.parametrize(
    ("client", "failure", "first"),
    [
        (webhook, DeliveryFailed, HEAD),
        (slack, DeliveryFailed, HEAD),
        (bot, DeliveryFailed, HEAD),
        (lambda port: mail_channel(port).send("key", BODY), DeliveryFailed, b"220-"),
        (hub_page, TemporaryFailure, HEAD),
        (served, TargetUnreachable, HEAD),
        *((lambda port: sky(port).health(), Unreachable, first) for first in (HEAD, LONG)),
        (lambda port: sky(port).log("c"), Unreachable, LONG),
        (lambda port: sky(port).launch("c", {}), Unreachable, LONG),
        *((lambda port: presigned(port).read("a"), ConnectionError, first) for first in (HEAD, LONG, REFUSAL)),
        (lambda port: presigned(port).verify("a", "0" * 64), ConnectionError, LONG),
        (lambda port: presigned(port).put("a", b"weights"), ConnectionError, HEAD),
        *((client, failure, first) for client, failure in CLIENTS for first in (HEAD, LONG)),
        (lambda port: list(kaggle(port).stream("log", 4, 100)), Unreachable, HEAD),
    ],
)
def test_no_client_is_held_by_a_dripping_server(
    dripper: Dripper, client: Callable[[int], Any], failure: type[Exception], first: bytes
) -> None:
    """A webhook that sent a header byte every half second held a message for as long as it liked."""
    dripper.first = first
    with pytest.raises(failure):
        client(dripper.port)


@pytest.mark.parametrize("first", [HEAD, LONG])
def test_a_library_that_tries_again_is_not_held_by_a_dripping_server(dripper: Dripper, first: bytes) -> None:
    """Clients of the Hub and of MLflow open connections of their own, in threads too, and repeat failed calls."""
    dripper.first = first
    answers: list[requests.Response] = []

    def ask_again_and_again(_: int) -> None:
        session = requests.Session()
        session.mount("http://", HTTPAdapter(max_retries=Retry(9, backoff_factor=60, allowed_methods=None)))
        answers.append(session.get(f"http://127.0.0.1:{dripper.port}/"))

    with pytest.raises(TimeoutError, match="within 4 s"), ProcessDeadline(4), ThreadPoolExecutor(2) as pool:
        list(pool.map(ask_again_and_again, range(2)))
    assert answers == []
    with socket.create_connection(("127.0.0.1", dripper.port)) as later:
        assert later.recv(1), "a deadline that is over ends no later connection"


def test_no_handshake_drips_for_ever(dripper: Dripper) -> None:
    dripper.first = b"\x16\x03\x03\x40\x00"  # TLS: a record of 16 KiB follows
    with pytest.raises(TimeoutError, match="no whole answer within 4 s"):
        exchange(Request(f"https://127.0.0.1:{dripper.port}/"), 4, 1 << 20)


def test_doctor_is_not_held_by_a_mail_server(dripper: Dripper) -> None:
    dripper.first = b"220-"
    assert "no whole answer" in check_mail(mail_channel(dripper.port)).found


def test_a_hub_that_asks_for_patience_for_ever_is_given_up_after_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(threading.Event, "wait", lambda _, seconds: waits.append(seconds))

    def work() -> None:
        raise TemporaryFailure("the Hub answers 429", 99_999_999)

    with pytest.raises(ConnectionError, match="429"):
        hub.retry("https://hub", work)
    assert sum(waits) == hub._PATIENCE_SECONDS


def test_what_is_long_has_its_time_for_each_piece() -> None:
    """A transfer of gigabytes takes hours, and is none that drips."""
    ours, theirs = socket.socketpair()
    with ours, theirs, Deadline(4) as deadline:
        deadline.watch(ours)
        for _ in range(3):
            timer = deadline._timer
            deadline.renew()
            until(lambda: deadline._timer is not timer, "the next seconds")  # noqa: B023 - of this turn
        theirs.sendall(b"x")
        assert ours.recv(1) == b"x"


def test_no_descriptor_is_left_behind(dripper: Dripper) -> None:
    dripper.first = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    before = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(3):
        exchange(Request(f"http://127.0.0.1:{dripper.port}/"), 400, 9)
    assert until(lambda: len([*Path("/proc/self/fd").iterdir()]) <= before, "the ends of the server's connections")
