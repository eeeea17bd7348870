"""Webhooks and rules: what happens is told once to whom it concerns, signed, and again until it was taken."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64encode
from contextlib import nullcontext
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any, cast

import pytest
from pydantic import ValidationError

from config.settings import RuleSettings, WebhookSettings
from jobs.nouns.window import Calendar
from jobs.payload.deadline import HttpAnswer
from scheduler.notify.deliver import (
    DELIVERY,
    SIGNATURE,
    DeliveryFailed,
    WebhookChannel,
    standard_signature,
    webhooks_of,
)
from scheduler.notify.mail import Mailing, mail
from scheduler.notify.rules import RULES, NotificationRule, rules_of
from scheduler.store import due, outbox
from tests.lab.outbox import NOW, happen, ports_on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scheduler.store.engine import Database

SECRET = "a-secret-of-the-webhook-0123456789"


class Receiver(ThreadingHTTPServer):
    """Keeps what is posted to it and answers as it is told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.posted: list[tuple[dict[str, str], bytes]] = []
        self.answer: tuple[int, dict[str, str]] = (204, {})

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}/hooks/a-token-in-the-path-9f3e"


class Handler(BaseHTTPRequestHandler):
    """Keeps and answers one request."""

    def do_POST(self) -> None:
        """Keep it."""
        server = cast("Receiver", self.server)
        body = self.rfile.read(int(self.headers["content-length"]))
        server.posted.append((dict(self.headers), body))
        code, headers = server.answer
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def mailing(receiver: Receiver, *rules: NotificationRule, **channels: Any) -> Mailing:
    hooks = {"webhook-board": WebhookChannel(receiver.address, SECRET, 5)}
    return Mailing(channels, "UTC", Calendar("week", "UTC", 0, 0), 900, None, rules, hooks)


def hook(*, kinds: tuple[str, ...] = ("*",), jobs: tuple[str, ...] = ("*",)) -> NotificationRule:
    return NotificationRule("board", kinds, jobs, ("webhook-board",), webhook=True)


def test_an_event_is_posted_once_as_json_with_a_signature_that_the_receiver_can_check(
    database: Database, receiver: Receiver
) -> None:
    ports, wanted = ports_on(database), mailing(receiver, hook(kinds=("job.*",)))
    happen(database, "job.finish", "before", NOW - 10)
    mail(ports, wanted, NOW)
    number = happen(database, "job.finish", "ufm", NOW + 5, step=200)
    happen(database, "pool.closed", "kaggle", NOW + 6)
    mail(ports, wanted, NOW + 30)
    assert len(receiver.posted) == 1, "at once"
    mail(ports, wanted, NOW + 100)
    mail(ports, wanted, NOW + 200)
    [(headers, body)] = receiver.posted
    assert json.loads(body) == {
        "id": number, "at": NOW + 5, "kind": "job.finish", "subject": "ufm", "jobs": ["ufm"], "by": "daemon",
        "data": {"step": 200},
    }  # fmt: skip
    instant, signed = (part.partition("=")[2] for part in headers[SIGNATURE].split(","))
    assert signed == hmac.new(SECRET.encode(), f"{instant}.".encode() + body, hashlib.sha256).hexdigest()
    assert headers[DELIVERY] == headers["Webhook-Id"] == f"webhook-{number}"
    assert headers["Webhook-Timestamp"] == instant
    assert headers["Webhook-Signature"] == standard_signature(SECRET, headers[DELIVERY], int(instant), body)
    assert headers["Content-Type"] == "application/json"


def test_standard_signatures_are_those_of_the_specification() -> None:
    example = b'{"test": 2432232314}'
    key, at = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330
    signed = standard_signature("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", key, at, example)
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    for own in ("whsec_no base64", "a2V5"):
        raw = hmac.new(own.encode(), f"{key}.{at}.".encode() + example, hashlib.sha256).digest()
        assert standard_signature(own, key, at, example) == f"v1,{b64encode(raw).decode()}"


@pytest.mark.parametrize(("status", "why"), [(199, "answered 199"), (200, ""), (299, ""), (300, "answered 300")])
def test_any_answer_of_success_takes_an_event(status: int, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[tuple[str, str, bytes]] = []

    def exchange(request: Any, *_: Any) -> HttpAnswer:
        posted.append((request.method, request.full_url, request.data))
        return HttpAnswer(status, {"retry-after": "7"}, b"")

    monkeypatch.setattr("scheduler.notify.deliver.exchange", exchange)
    channel = WebhookChannel("https://example.org/x", SECRET, 5)
    with pytest.raises(DeliveryFailed, match=why) if why else nullcontext() as failed:
        channel.send("webhook-1", {"event": {"kind": "joué", "id": 1}})
    assert failed is None or failed.value.retry_seconds == 7
    assert posted == [("POST", "https://example.org/x", '{"id": 1, "kind": "joué"}'.encode())]


@pytest.mark.parametrize("kind", [OSError, ValueError, HTTPException])
def test_a_failure_that_repeats_address_and_secret_tells_neither(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise kind(f"no route to https://example.org/{SECRET}-too with {SECRET}")

    monkeypatch.setattr("scheduler.notify.deliver.exchange", fail)
    with pytest.raises(DeliveryFailed) as failed:
        WebhookChannel(f"https://example.org/{SECRET}-too", SECRET, 5).send("webhook-1", {"event": {"id": 1}})
    assert str(failed.value) == f"{kind.__name__}: no route to [secret] with [secret]"


def test_what_is_not_taken_is_tried_again_ever_later_under_the_same_name(
    database: Database, receiver: Receiver
) -> None:
    ports, wanted = ports_on(database, SECRET), mailing(receiver, hook())
    mail(ports, wanted, NOW)
    happen(database, "job.finish", "ufm", NOW + 1)
    happen(database, "job.finish", "ucm", NOW + 1)
    receiver.answer = (503, {"Retry-After": "500"})
    mail(ports, wanted, NOW + 100)
    assert len(receiver.posted) == 1  # who does not answer is not asked again for the next event of the same round
    with database.read() as tx:
        waiting = {message.period: message for message in outbox.pending(tx, NOW + 10_000) if message.kind == "webhook"}
        first = min(waiting.values(), key=lambda message: message.id)
    assert (first.attempts, first.retry_at, first.why) == (1, NOW + 600, "the webhook answered 503")
    receiver.answer = (200, {})
    mail(ports, wanted, NOW + 700)
    names = [headers[DELIVERY] for headers, _ in receiver.posted]
    assert names.count(names[0]) == 2
    assert len(set(names)) == 2  # the failed message is an event, which is told by no message


def test_rules_send_the_events_of_some_jobs_to_some_channels_in_one_message(
    database: Database, receiver: Receiver
) -> None:
    class Box:
        def __init__(self) -> None:
            self.sent: list[dict[str, Any]] = []

        def send(self, key: str, body: Any) -> None:
            self.sent.append(dict(body))

    slack, email = Box(), Box()
    rule = NotificationRule("managers", ("job.finish", "job.fail"), ("uf?", "uc*"), ("slack",))
    ports, wanted = ports_on(database), mailing(receiver, rule, slack=slack, email=email)
    mail(ports, wanted, NOW)
    for name in ("ufm", "ucm-long", "other"):
        happen(database, "job.finish", name, NOW + 1)
    happen(database, "job.start", "ufm", NOW + 1)
    mail(ports, wanted, NOW + 100)
    assert email.sent == []
    [message] = slack.sent
    assert message["text"].splitlines()[:2] == ["ufm: the job is done", "ucm-long: the job is done"]
    assert "other" not in message["text"]
    assert receiver.posted == []


def test_a_crash_between_two_rounds_tells_nothing_twice(database: Database, receiver: Receiver) -> None:
    ports, wanted = ports_on(database), mailing(receiver, hook())
    mail(ports, wanted, NOW)
    happen(database, "job.finish", "ufm", NOW + 1)
    mail(ports, wanted, NOW + 100)
    with database.write() as tx:  # as a backup from before the round would have it
        due.set_due(tx, RULES, NOW)
    mail(ports, wanted, NOW + 200)
    assert len(receiver.posted) == 1


def test_no_error_names_the_address_or_the_secret(receiver: Receiver) -> None:
    address = receiver.address
    receiver.answer = (302, {"Location": "http://127.0.0.1:1/elsewhere"})
    event = {"event": {"id": 1}}
    for channel in (WebhookChannel(address, SECRET, 5), WebhookChannel("http://127.0.0.1:1/" + "t" * 30, SECRET, 5)):
        with pytest.raises(DeliveryFailed) as caught:
            channel.send("webhook-1", event)
        assert SECRET not in str(caught.value)
        assert channel.address not in str(caught.value)
        assert SECRET not in repr(channel)
        assert channel.address not in repr(channel)
    assert len(receiver.posted) == 1  # the redirect was not followed


@pytest.mark.parametrize(
    "wrong",
    [
        {"token_url": "http://example.org/x"},
        {"token_url": "ftp://example.org/x"},
        {"token_url": "https:///x"},
        {"token_url": "http://127.0.0.1.evil.example/x"},
        {"secret": "short"},
        {"events": []},
        {"events": ["job .finish"]},
        {"jobs": [""]},
        {"name": "No Name"},
    ],
)
def test_settings_that_would_send_nothing_or_in_the_clear_are_refused(wrong: dict[str, Any]) -> None:
    right = {"name": "board", "token_url": "https://example.org/x", "secret": SECRET}
    assert WebhookSettings.model_validate(right).events == ("*",)
    with pytest.raises(ValidationError):
        WebhookSettings.model_validate(right | wrong)


def test_settings_become_rules_and_channels() -> None:
    hooks = [WebhookSettings.model_validate({"name": "board", "token_url": "https://example.org/x", "secret": SECRET})]
    rule = RuleSettings(name="done", events=("job.finish",), to=("apprise", "email"))
    one = RuleSettings(name="one", events=("job.*",), to=("slack", "email-5e6f7a8b"))
    names = ["email", "slack", "apprise-1a2b3c4d", "email-5e6f7a8b"]
    assert rules_of([rule, one], [], iter(names)) == (
        NotificationRule("done", ("job.finish",), ("*",), ("email", "apprise-1a2b3c4d", "email-5e6f7a8b")),
        NotificationRule("one", ("job.*",), ("*",), ("slack", "email-5e6f7a8b")),
    )
    found = rules_of([rule], hooks, names[:3])
    assert found == (
        NotificationRule("done", ("job.finish",), ("*",), ("email", "apprise-1a2b3c4d")),
        NotificationRule("board", ("*",), ("*",), ("webhook-board",), webhook=True),
    )
    assert webhooks_of(hooks) == {"webhook-board": WebhookChannel("https://example.org/x", SECRET, 10)}
