"""Messages through a real SMTP server with TLS, a password and refusals, and a stand-in for Slack that overloads."""

from __future__ import annotations

import json
import smtplib
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from email import message_from_bytes
from functools import partial
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qs, unquote_plus

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from jobs.nouns.window import DAY, HOUR
from jobs.payload.deadline import Deadline, HttpAnswer
from scheduler.host.doctor import check_mail
from scheduler.notify.deliver import (
    AppriseChannel,
    DeliveryFailed,
    EmailChannel,
    SlackChannel,
    WebhookChannel,
    asked_seconds,
    deliver,
    email_channels,
)
from scheduler.store import events, outbox
from scheduler.store.engine import Database
from scheduler.views.needs import needs
from tests.lab.dripper import Dripper

NOW = 1_795_000_000
CANARY = "canary-password-0123"
BODY = {"subject": "Training report", "text": "goodput 93.2%\n", "html": "<p>goodput 93.2%</p>"}


class Mailbox:
    """Refuses the first ``refusals`` messages with 451 and keeps the others."""

    def __init__(self) -> None:
        self.refusals = 0
        self.messages: list[bytes] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        """Keep or refuse one message."""
        if self.refusals:
            self.refusals -= 1
            return "451 try again later"
        self.messages.append(envelope.content)
        return "250 kept"


@pytest.fixture
def smtp(certificate: Path) -> Iterator[tuple[Mailbox, EmailChannel]]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    box = Mailbox()

    def check(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        return AuthResult(success=data.password == CANARY.encode())

    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    server = Controller(
        box,
        hostname="127.0.0.1",
        port=port,
        tls_context=context,
        require_starttls=True,
        auth_required=True,
        authenticator=check,
    )
    server.start()
    try:
        to = ("a@example.org", "b@example.org")
        yield box, EmailChannel("localhost", port, True, "u", CANARY, "s@example.org", to, 10, str(certificate))
    finally:
        server.stop()


class Journal:
    """A log that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __getattr__(self, level: str) -> Any:
        return lambda event, **fields: self.lines.append(f"{level} {event} {fields}")


def ports_on(database: Database) -> Any:
    return cast(
        "Any", SimpleNamespace(database=database, epoch=0, write=database.write, log=Journal(), pools={}, redact=str)
    )


def put(database: Database, channel: str = "email", at: int = NOW) -> bool:
    with database.write() as tx:
        return outbox.add(tx, "weekly-report", "2026-W47", channel, BODY, at)


def waiting(database: Database, now: int = NOW + 30 * DAY) -> list[outbox.OutboxMessage]:
    with database.read() as tx:
        return outbox.pending(tx, now)


def test_a_message_refused_twice_arrives_once_and_the_password_is_nowhere(
    database: Database, smtp: tuple[Mailbox, EmailChannel]
) -> None:
    box, channel = smtp
    box.refusals = 2
    ports = ports_on(database)
    assert put(database)
    now = NOW
    for _ in range(6):
        deliver(ports, {"email": channel}, now)
        now += HOUR
    (message,) = box.messages
    found = message_from_bytes(message)
    assert found["Message-ID"] == "<weekly-report-2026-W47@uff-scheduler>"
    assert [part.get_content_type() for part in found.walk()][1:] == ["text/plain", "text/html"]
    assert waiting(database) == []
    assert not put(database)
    with database.read() as tx:
        happened = events.tail(tx)
    assert [event.kind for event in happened] == ["letter.failed"]
    assert CANARY not in f"{happened}{ports.log.lines}{channel}{box.messages}"


def test_a_failed_message_waits_longer_each_time(database: Database, smtp: tuple[Mailbox, EmailChannel]) -> None:
    box, channel = smtp
    box.refusals = 2
    put(database)
    deliver(ports_on(database), {"email": channel}, NOW)
    (message,) = waiting(database)
    assert (message.attempts, message.retry_at) == (1, NOW + 60)
    deliver(ports_on(database), {"email": channel}, NOW + 59)
    deliver(ports_on(database), {"email": channel}, NOW + 60)
    assert waiting(database)[0].retry_at == NOW + 60 + 120


def test_a_crash_between_sending_and_marking_repeats_the_message_under_the_same_id(
    database: Database, smtp: tuple[Mailbox, EmailChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    box, channel = smtp
    put(database)
    with monkeypatch.context() as patch:
        patch.setattr(outbox, "sent", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            deliver(ports_on(database), {"email": channel}, NOW)
    deliver(ports_on(database), {"email": channel}, NOW)
    assert len({message_from_bytes(message)["Message-ID"] for message in box.messages}) == 1
    assert len(box.messages) == 2


def test_a_message_names_sender_recipients_and_subject_and_has_its_pictures_beside_its_page(
    smtp: tuple[Mailbox, EmailChannel],
) -> None:
    box, channel = smtp
    channel.send("key", {**BODY, "subject": "two\nlines ", "pictures": {"week": "iVBORw0KGgo="}})
    found = message_from_bytes(box.messages[0])
    assert [found[name] for name in ("Subject", "From", "To")] == [
        "two lines",
        "s@example.org",
        "a@example.org, b@example.org",
    ]
    parts = [part for part in found.walk() if part.get_content_maintype() != "multipart"]
    text, page, picture = (part.get_payload(decode=True) for part in parts)
    assert (text, page) == (b"goodput 93.2%\r\n", b"<p>goodput 93.2%</p>\r\n")
    assert (parts[2].get_content_type(), picture) == ("image/png", b"\x89PNG\r\n\x1a\n")
    assert (parts[2]["Content-ID"], parts[2].get_filename()) == ("<week>", "week.png")


@pytest.mark.parametrize(("codes", "for_good"), [((500,), True), ((499,), False), ((550, 451), False)])
def test_a_message_is_refused_for_good_when_no_recipient_may_ever_get_it(
    smtp: tuple[Mailbox, EmailChannel], monkeypatch: pytest.MonkeyPatch, codes: tuple[int, ...], for_good: bool
) -> None:
    refused = {f"{code}@example.org": (code, f"{code} {CANARY}".encode()) for code in codes}

    def refuse(*_: Any) -> Any:
        raise smtplib.SMTPRecipientsRefused(refused)

    monkeypatch.setattr(smtplib.SMTP, "send_message", refuse)
    with pytest.raises(DeliveryFailed, match=r"refused: .*@example\.org") as failed:
        smtp[1].send("key", BODY)
    assert failed.value.for_good == for_good
    assert CANARY not in str(failed.value)
    monkeypatch.setattr(smtplib.SMTP, "send_message", lambda *_: dict(sorted(refused.items(), reverse=True)))
    with pytest.raises(DeliveryFailed, match=f"refused for {', '.join(sorted(refused))}") as failed:
        smtp[1].send("key", BODY)
    assert not failed.value.for_good


@contextmanager
def slack(answers: list[tuple[int, dict[str, str]]]) -> Iterator[tuple[str, list[Any]]]:
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append(body)
            status, headers = answers.pop(0) if answers else (200, {})
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            place = f"http://127.0.0.1:{server.server_port}/upload"
            word = {
                "ok": status == 200,
                "channel": "C1",
                "ts": "1.5",
                "upload_url": place,
                "file_id": "F1",
                "files": [],
            }
            self.wfile.write(json.dumps(word | ({} if status == 200 else {"error": "missing_scope"})).encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("bot", [False, True])
def test_slack_is_asked_again_when_it_says_and_takes_the_message_once(database: Database, bot: bool) -> None:
    with slack([(429, {"Retry-After": "600"}), (500, {})]) as (address, got):
        channel = SlackChannel("" if bot else f"{address}{CANARY}", CANARY if bot else "", "#t", 10, address)
        ports = ports_on(database)
        put(database, "slack")
        deliver(ports, {"slack": channel}, NOW)
        assert waiting(database)[0].retry_at == NOW + 600
        deliver(ports, {"slack": channel}, NOW + 600)
        assert len(waiting(database)) == 1
        for _ in range(2):
            deliver(ports, {"slack": channel}, NOW + DAY)
    assert len(got) == 3
    assert waiting(database) == []
    assert CANARY not in f"{ports.log.lines}{channel}"


def test_a_bot_puts_the_pictures_into_a_thread_and_goes_without_them_when_it_may_not(database: Database) -> None:
    body = {
        **BODY,
        "blocks": [{"type": "divider"}],
        "pictures": {"week": "iVBORw0KGgo="},
        "captions": {"week": "The week"},
    }
    with slack([]) as (address, got):
        assert SlackChannel("", CANARY, "#t", 10, address).send("key", body) is None
    posted, asked, picture, completed = got
    assert parse_qs(posted) == {
        b"channel": [b"#t"],
        b"text": [b"Training report"],
        b"blocks": [b'[{"type": "divider"}]'],
    }
    assert parse_qs(asked) == {b"filename": [b"week.png"], b"length": [b"8"]}
    assert picture == b"\x89PNG\r\n\x1a\n"
    files = b'[{"id": "F1", "title": "The week"}]'
    assert parse_qs(completed) == {b"files": [files], b"channel_id": [b"C1"], b"thread_ts": [b"1.5"]}
    with slack([(200, {}), (403, {})]) as (address, got):
        ports = ports_on(database)
        with database.write() as tx:
            outbox.add(tx, "weekly-report", "2026-W47", "slack", body, NOW)
        deliver(ports, {"slack": SlackChannel("", CANARY, "#t", 10, address)}, NOW)
    assert waiting(database) == [], "the message stands, and is not sent again"
    assert any("letter.incomplete" in line and "files:write" in line for line in ports.log.lines)
    assert CANARY not in f"{ports.log.lines}"


@pytest.mark.parametrize("status", [200, 403])
@pytest.mark.parametrize(
    ("body", "code"),
    [(b'{"error": "%s"}' % (b"x" * 400), "x" * 100), (b'{"ok": 1}', ""), (b"[" * 99_999, ""), (b"0", "")],
)
def test_the_word_of_slack_for_a_failure_is_kept(
    body: bytes, code: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.notify.deliver.exchange", lambda *_: HttpAnswer(status, {"retry-after": "7"}, body))
    with pytest.raises(DeliveryFailed) as failed:
        SlackChannel("", CANARY, "#t", 10).call("chat.postMessage")
    code = code or ("no word of its API" if status == 200 else "")
    assert (str(failed.value), failed.value.code) == (f"Slack answered {status} {code}", code)
    assert failed.value.retry_seconds == (0 if status == 200 else 7)


@pytest.mark.parametrize("place", ["http://example.org/up", "file:///etc/passwd", None])
def test_pictures_go_only_to_a_place_that_is_encrypted(place: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def exchange(request: Any, *_: Any) -> HttpAnswer:
        asked.append(request.full_url)
        return HttpAnswer(200, {}, json.dumps({"ok": True, "channel": "C1", "ts": "1", "upload_url": place}).encode())

    monkeypatch.setattr("scheduler.notify.deliver.exchange", exchange)
    left_out = SlackChannel("", CANARY, "#t", 10).send("key", {**BODY, "pictures": {"week": "iVBORw0KGgo="}})
    assert left_out == "without its pictures: Slack names no place for pictures"
    methods = ("chat.postMessage", "files.getUploadURLExternal")
    assert asked == [f"https://slack.com/api/{method}" for method in methods]


def test_a_bot_shows_ten_pictures_of_a_message_at_most() -> None:
    names = [f"week-{number}" for number in range(12)]
    with slack([]) as (address, got):
        body = {**BODY, "blocks": [{"type": "divider"}], "pictures": dict.fromkeys(names, "iVBORw0KGgo=")}
        assert SlackChannel("", CANARY, "#t", 10, address).send("key", body) is None
    assert len(got) == 1 + 2 * 10 + 1
    assert [name for name in names if f"title%22%3A+%22{name}%22".encode() in got[-1]] == names[:10]


def test_every_exchange_has_a_limit_of_time_and_size(
    smtp: tuple[Mailbox, EmailChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[tuple[float, int]] = []

    def exchange(_: Any, seconds: float, bytes_max: int) -> HttpAnswer:
        limits.append((seconds, bytes_max))
        return HttpAnswer(200, {}, b'{"ok": true}')

    monkeypatch.setattr("scheduler.notify.deliver.exchange", exchange)
    monkeypatch.setattr("scheduler.notify.deliver.exchange", exchange)
    SlackChannel("https://example.org/hook", "", "", 7).send("key", BODY)
    with_picture = {**BODY, "pictures": {"week": "iVBORw0KGgo="}}
    SlackChannel("", CANARY, "#t", 8).send("key", with_picture)  # an answer without a channel: no place for pictures
    WebhookChannel("https://example.org/hook", CANARY, 9).send("key", {"event": {}})
    assert limits == [(7, 1 << 20), (8, 1 << 20), (9, 1 << 20)]
    watched: list[float] = []

    class Watched(Deadline):
        def __init__(self, seconds: float) -> None:
            watched.append(seconds)
            super().__init__(seconds)

    monkeypatch.setattr("scheduler.notify.deliver.Deadline", Watched)
    _, channel = smtp
    with channel.opened() as server:
        assert (server.timeout, watched) == (10, [30])


def test_a_child_of_apprise_has_a_minute_and_its_last_words_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    said = [b"first\n" + b"x" * 400 + b"\n", b" \n", b"\xff"]

    def run(words: Any, seconds: float, *_: Any, standard_input: bytes) -> subprocess.CompletedProcess[bytes]:
        asked.append((seconds, json.loads(standard_input)))
        return subprocess.CompletedProcess(words, 1, b"", said.pop(0))

    monkeypatch.setattr("scheduler.notify.deliver.run_child", run)
    for why in ("x" * 300, "Apprise could not deliver", "\ufffd"):
        with pytest.raises(DeliveryFailed) as failed:
            AppriseChannel("json://example.org/").send("key", BODY)
        assert str(failed.value) == why
    monkeypatch.setattr("scheduler.notify.deliver.run_child", lambda *_, **__: Path("/nowhere").stat())
    with pytest.raises(DeliveryFailed, match=r"Apprise could not deliver: .*No such file"):
        AppriseChannel("json://example.org/").send("key", BODY)
    assert asked == [(60, ["json://example.org/", BODY["subject"], BODY["text"]])] * 3


@pytest.mark.parametrize("bot", [False, True])
def test_slack_shows_every_line_of_an_alert(database: Database, bot: bool) -> None:
    alert = {"subject": "Training: ufm: the job failed", "text": "ufm: the job failed\nucm: the job failed\n"}
    with slack([]) as (address, got):
        SlackChannel("" if bot else address, CANARY if bot else "", "#t", 10, address).send("alerts-1", alert)
    said = unquote_plus(got[0].decode())
    assert "ufm: the job failed" in said
    assert "ucm: the job failed" in said


def test_apprise_carries_a_message_once_and_its_address_stands_nowhere(database: Database) -> None:
    """Through the real library, to a server that fails first."""
    with slack([(500, {})]) as (address, got):
        channel = AppriseChannel(f"{address.replace('http', 'json')}{CANARY}")
        ports = ports_on(database)
        put(database, channel.name)
        deliver(ports, {channel.name: channel}, NOW)
        assert len(waiting(database)) == 1
        for _ in range(2):
            deliver(ports, {channel.name: channel}, NOW + DAY)
    assert [json.loads(body)["title"] for body in got] == ["Training report"] * 2
    assert "goodput 93.2%" in json.loads(got[1])["message"]
    assert waiting(database) == []
    assert CANARY not in f"{ports.log.lines}{channel}{channel.name}"


def test_an_address_that_apprise_does_not_know_is_told_without_the_address() -> None:
    with pytest.raises(DeliveryFailed, match="does not know") as failed:
        AppriseChannel(f"nowhere://{CANARY}").send("key", BODY)
    assert CANARY not in str(failed.value)


def test_a_server_that_drips_holds_no_message_of_apprises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.notify.deliver._APPRISE_SECONDS", 2)
    server = Dripper()
    try:
        with pytest.raises(DeliveryFailed, match="no end within 2 s"):
            AppriseChannel(f"json://127.0.0.1:{server.port}/").send("key", BODY)
    finally:
        server.close()


def test_a_mail_server_that_never_ends_its_answer_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its lines is short, and smtplib keeps them all: 2 GB came within six seconds."""
    monkeypatch.setattr("scheduler.notify.deliver._ANSWER_MAX_BYTES", 1_000)
    server = Dripper(b"220-a line of a greeting\r\n" * 50)
    try:
        channel = EmailChannel("127.0.0.1", server.port, False, "", "", "s@example.org", ("a@example.org",), 100)
        with pytest.raises(DeliveryFailed, match="longer than 1,000 bytes"):
            channel.send("key", BODY)
    finally:
        server.close()


def test_the_answers_of_a_conversation_with_a_mail_server_have_one_limit(
    smtp: tuple[Mailbox, EmailChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have 94 bytes at most each, 143 before the encryption and 202 after it."""
    box, channel = smtp
    monkeypatch.setattr("scheduler.notify.deliver._ANSWER_MAX_BYTES", 150)
    with pytest.raises(DeliveryFailed, match="longer than 150 bytes"):
        channel.send("key", BODY)
    assert box.messages == []


def test_a_message_is_tried_for_five_days_and_48_times_at_least(database: Database) -> None:
    """Down time and a clock that was wrong are no tries."""

    def given_up() -> int:
        with database.read() as tx:
            return sum(event.kind == "letter.given_up" for event in events.tail(tx, 0))

    put(database)
    put(database, "slack", NOW + 1)
    channels = {"email": Away(), "slack": Away()}
    for hour in range(120):
        deliver(ports_on(database), channels, NOW + hour * HOUR)
    assert given_up() == 0
    deliver(ports_on(database), channels, NOW + 5 * DAY)
    assert given_up() == 1, "the other is younger by a second"
    for day in (6, 9):
        deliver(ports_on(database), channels, NOW + day * DAY)
        assert given_up() == 2


def test_a_message_that_was_tried_seldom_is_not_given_up(database: Database) -> None:
    put(database)
    for day in range(48):
        deliver(ports_on(database), {"email": Away()}, NOW + day * DAY)
    assert len(waiting(database, NOW + 90 * DAY)) == 1
    deliver(ports_on(database), {"email": Away()}, NOW + 48 * DAY)
    assert waiting(database, NOW + 90 * DAY) == []


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "99999999"}, DAY),
        ({"RETRY-AFTER": " 7 "}, 7),
        ({"retry-after": ["5", "6"]}, 5),
        ({"retry-after": []}, 0),
        ({"retry-after": "Fri, 27 Nov 2026 23:41:02 GMT"}, 0),
        ({"retry": "7"}, 0),
    ],
)
def test_a_service_is_left_alone_for_as_long_as_it_says_and_a_day_at_most(
    headers: dict[str, Any], seconds: int
) -> None:
    assert asked_seconds(headers) == seconds


def test_recipients_have_channels_whose_names_stay() -> None:
    """The outbox keeps the names: with others, what waits would wait for ever."""
    one = EmailChannel("localhost", 25, True, "u", CANARY, "s@example.org", ("a@example.org",), 10)
    other = replace(one, recipients=("b@example.org",))
    both = replace(one, recipients=one.recipients + other.recipients)
    assert email_channels(one) == {"email": one}
    assert email_channels(both) == {"email-e16bfe08": one, "email-c12c6545": other}
    assert AppriseChannel("json://example.org/").name == "apprise-f3ec9580"


def test_a_message_that_keeps_failing_is_told_in_the_next_report(database: Database) -> None:
    put(database)
    for attempt in range(3):
        with database.read() as tx:
            assert [need.what for need in needs(tx, (), 0, NOW)] == []
        deliver(ports_on(database), {"email": Away()}, NOW + attempt * DAY)
    with database.read() as tx:
        (need,) = needs(tx, (), 0, NOW)
    assert (need.what, need.subject) == ("message not delivered", "email")
    assert need.why == "1 message, 3 tries: nobody listens"


class Away:
    """A channel that never takes anything."""

    def send(self, key: str, body: Any) -> None:
        """Fail."""
        raise DeliveryFailed("nobody listens")


def test_a_server_that_is_away_is_a_failure_in_words(tmp_path: Path) -> None:
    channel = EmailChannel("127.0.0.1", 1, False, "", "", "s@example.org", ("a@example.org",), 2)
    with pytest.raises(DeliveryFailed, match="refused"):
        channel.send("key", BODY)


@pytest.mark.parametrize("error", [partial(smtplib.SMTPAuthenticationError, 535), ValueError])
def test_a_mail_server_that_repeats_the_password_tells_nobody(
    smtp: tuple[Mailbox, EmailChannel], error: Callable[[str], Exception]
) -> None:
    """Some servers answer a refused login, or a message, with what they were sent."""
    _, channel = smtp

    def login(_: Any, user: str, password: str, **__: Any) -> Any:
        raise error(f"{user} is not let in with {password}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(smtplib.SMTP, "login", login)
        with pytest.raises(DeliveryFailed, match="is not let in with") as failed:
            channel.send("alerts-1", BODY)
        found = check_mail(channel)
    assert CANARY not in str(failed.value)
    assert "[secret]" in str(failed.value)
    assert CANARY not in found.found


@pytest.mark.parametrize("kind", [OSError, ValueError, HTTPException])
@pytest.mark.parametrize("bot", [False, True])
def test_a_failure_of_slack_that_repeats_its_address_tells_nobody(
    bot: bool, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"https://127.0.0.1/{CANARY}"

    def fail(*_: Any, **__: Any) -> Any:
        raise kind(f"no route to {CANARY if bot else address}")

    monkeypatch.setattr("scheduler.notify.deliver.exchange", fail)
    channel = SlackChannel("" if bot else address, CANARY if bot else "", "#t", 10)
    with pytest.raises(DeliveryFailed, match=r"no route to \[secret\]") as failed:
        channel.send("alerts-1", BODY)
    assert CANARY not in str(failed.value)
