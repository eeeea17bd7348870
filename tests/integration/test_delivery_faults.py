"""Odd answers of webhooks, Slack and mail servers: each message's failure is its own, and other channels go on."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from aiosmtpd.controller import Controller
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jobs.nouns.window import DAY, HOUR, Calendar
from scheduler import daemon as daemon_module
from scheduler.clock import system_clock
from scheduler.daemon import CRASHES_MAX, Daemon
from scheduler.notify.deliver import EmailChannel, SlackChannel, WebhookChannel, deliver, email_channels
from scheduler.notify.mail import Mailing, mail
from scheduler.store import due, events, outbox
from scheduler.views.needs import needs, watch_needs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scheduler.store.engine import Database

NOW = 1_795_000_000
BODY = {"subject": "Training", "text": "ufm: done\n", "event": {"id": 1}}
RETRY = b"HTTP/1.1 429 Slow\r\nRetry-After: %s\r\nContent-Length: 0\r\n\r\n"
ANSWERS = [
    RETRY % b"\xb2",
    RETRY % (b"9" * 5_000),
    RETRY % (b"9" * 20),
    RETRY % b"9223372036854775000",
    RETRY % b"99999999",
    b"",
    b"\x00\xff\xfe",
    b"HTTP/9.9 99999999999999999999 x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: http://\xb2:99999/\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n[]",
    b"220 \xff\xfe\r\n",
    b"999 odd\r\n",
    b"220 x\r\n250-SIZE \xb2\r\n250 AUTH \xb2\r\n",
    b"421 " + b"x" * 9_000 + b"\r\n",
]


class Answers:
    """A server that answers whatever it is asked with the bytes of ``answer``, and hangs up."""

    def __init__(self) -> None:
        self.answer = b""
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.settimeout(0.05)
                    connection.sendall(self.answer)
                    connection.recv(1 << 16)
                except OSError:
                    continue

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()


@pytest.fixture(scope="module")
def odd() -> Iterator[Answers]:
    server = Answers()
    yield server
    server.close()


class Box:
    """A channel that keeps what it carries."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.texts: list[str] = []

    def send(self, key: str, body: Any) -> None:
        """Keep it."""
        self.keys.append(key)
        self.texts.append(str(body.get("text")))


def ports_on(database: Database) -> Any:
    log = SimpleNamespace(warning=lambda *_, **__: None, info=lambda *_, **__: None)
    return SimpleNamespace(
        database=database, epoch=0, write=database.write, log=log, pools={}, clock=system_clock(), redact=str
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(answer=st.sampled_from(ANSWERS) | st.binary(max_size=200))
@example(answer=ANSWERS[0])
@example(answer=ANSWERS[1])
@example(answer=ANSWERS[2])
@example(answer=ANSWERS[4])
def test_an_odd_answer_is_the_failure_of_one_message(database: Database, odd: Answers, answer: bytes) -> None:
    """A header of one byte silenced all channels for good."""
    odd.answer = answer
    box, address = Box(), f"http://127.0.0.1:{odd.port}/"
    channels: dict[str, Any] = {
        "a-hook": WebhookChannel(address, "s" * 20, 1),
        "b-slack": SlackChannel(address, "", "", 1),
        "c-bot": SlackChannel("", "token-of-a-bot", "#t", 1, address),
        "d-mail": EmailChannel("127.0.0.1", odd.port, False, "", "", "s@example.org", ("a@example.org",), 1),
        "e-box": box,
    }
    with database.write() as tx:
        number = events.append(tx, "odd", "x", NOW)
        for name in channels:
            outbox.add(tx, "webhook", str(number), name, BODY, NOW)
    deliver(ports_on(database), channels, NOW)
    assert box.keys == [f"webhook-{number}"]
    with database.write() as tx:
        left = outbox.pending(tx, NOW + DAY)
        assert all(message.attempts and message.retry_at <= NOW + DAY for message in left)
        for message in outbox.pending(tx, outbox.NEVER - 1):
            outbox.sent(tx, message.id, NOW)


class Raises:
    """A channel with a fault of its own."""

    def send(self, key: str, body: Any) -> None:
        """Raise what no channel may."""
        raise OverflowError(f"Python int too large to convert to SQLite INTEGER: {key}")


def test_a_message_that_makes_its_channel_crash_keeps_no_other_waiting(database: Database) -> None:
    box = Box()
    with database.write() as tx:
        for period in ("1", "2"):
            for name in ("bad", "good"):
                outbox.add(tx, "alerts", period, name, BODY, NOW)
    deliver(ports_on(database), {"bad": Raises(), "good": box}, NOW)
    assert box.keys == ["alerts-1", "alerts-2"]
    with database.read() as tx:
        assert {message.attempts for message in outbox.pending(tx, NOW + DAY)} == {1}
        assert "OverflowError" in outbox.pending(tx, NOW + DAY)[0].why


def test_a_dead_channel_is_an_action_that_the_others_tell_once(database: Database) -> None:
    box, ports = Box(), ports_on(database)
    mailing = Mailing({"dead": Raises(), "live": box}, "UTC", Calendar("week", "UTC"), 900, None)
    mail(ports, mailing, NOW)
    with database.write() as tx:
        events.append(tx, "job.fail", "ufm", NOW + 1)
    for minute in range(0, 6 * 60, 5):
        mail(ports, mailing, NOW + minute * 60)
        watch_needs(ports, NOW + minute * 60, NOW - DAY)
    assert len(box.keys) == 2, "what happened, and that a channel is dead; that of that is no news"
    assert "dead: message not delivered" in box.texts[1]
    assert "Begin with: schedctl doctor" in box.texts[1]


def test_a_channel_that_fails_is_tried_again_after_a_minute_and_then_twice_as_late_up_to_an_hour(
    database: Database,
) -> None:
    ports, now, pauses = ports_on(database), NOW, []
    with database.write() as tx:
        outbox.add(tx, "alerts", "1", "dead", BODY, NOW)
    for _ in range(9):
        deliver(ports, {"dead": Raises()}, now)
        with database.read() as tx:
            (message,) = outbox.pending(tx, NOW + DAY)
        pauses.append(message.retry_at - now)
        now = message.retry_at
    assert pauses == [60, 120, 240, 480, 960, 1_920, HOUR, HOUR, HOUR]


def test_what_no_channel_takes_ends_after_five_days_as_an_action_for_a_person(database: Database) -> None:
    ports = ports_on(database)
    with database.write() as tx:
        outbox.add(tx, "alerts", "1", "dead", BODY, NOW)
    for hour in range(24 * 6):
        deliver(ports, {"dead": Raises()}, NOW + hour * HOUR)
    with database.read() as tx:
        assert outbox.pending(tx, NOW + 300 * DAY) == [], "tries end"
        told = events.tail(tx)
        assert [(event.kind, event.subject) for event in told] == [
            ("letter.failed", "alerts-1"),
            ("letter.given_up", "alerts-1"),
        ]
        why = "OverflowError: Python int too large to convert to SQLite INTEGER: alerts-1"
        assert [event.data for event in told] == [{"why": why, "channel": "dead"}] * 2
        (need,) = needs(tx, (), NOW - DAY, NOW + 6 * DAY)
        assert (need.what, need.subject) == ("message not delivered", "dead")
        assert needs(tx, (), NOW + 1, NOW + 9 * DAY) == [], "for a week"
    with database.write() as tx:
        outbox.add(tx, "alerts", "2", "dead", BODY, NOW + 6 * DAY)
    deliver(ports, {"dead": Box()}, NOW + 6 * DAY)
    with database.read() as tx:
        assert needs(tx, (), NOW - DAY, NOW + 6 * DAY) == [], "the channel is well again"


class Refusing:
    """A mail server that takes no message for b."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.taken: list[str] = []

    async def handle_RCPT(  # noqa: N802 - aiosmtpd's name and arguments
        self, server: Any, session: Any, envelope: Any, address: str, options: Any
    ) -> str:
        """Refuse one."""
        await asyncio.sleep(0)
        if address.startswith("b@"):
            return f"{self.code} no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 fine"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        """Keep it."""
        self.taken += envelope.rcpt_tos
        return "250 kept"


@contextmanager
def refusing(code: int) -> Iterator[tuple[Refusing, dict[str, Any]]]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    box = Refusing(code)
    server = Controller(box, hostname="127.0.0.1", port=port)
    server.start()
    to = ("a@example.org", "b@example.org", "c@example.org")
    try:
        yield box, email_channels(EmailChannel("127.0.0.1", port, False, "", "", "s@example.org", to, 10))
    finally:
        server.stop()


@pytest.mark.parametrize(("code", "tried"), [(550, False), (451, True)])
def test_a_refused_recipient_keeps_nothing_from_the_others_and_they_get_it_once(
    database: Database, code: int, tried: bool
) -> None:
    """The others got the same report again every hour, without end."""
    with refusing(code) as (box, channels):
        ports = ports_on(database)
        mailing = Mailing(channels, "UTC", Calendar("week", "UTC"), 900, None)
        with database.write() as tx:
            for name in channels:
                outbox.add(tx, "weekly-report", "2026-W47", name, BODY, NOW)
        for hour in range(9):
            mail(ports, mailing, NOW + hour * HOUR)
        assert sorted(box.taken) == ["a@example.org", "c@example.org"]
        with database.read() as tx:
            assert bool(outbox.pending(tx, NOW + DAY)) == tried
            (need,) = needs(tx, (), NOW - DAY, NOW + DAY)
        assert need.what == "message not delivered"
        assert "b@example.org" in need.why


def test_a_message_to_all_of_an_older_version_goes_to_each_of_them(database: Database) -> None:
    with refusing(550) as (box, channels):
        with database.write() as tx:
            outbox.add(tx, "weekly-report", "2026-W47", "email", BODY, NOW)
            due.set_due(tx, "alerts", NOW)
        for _ in range(2):
            mail(ports_on(database), Mailing(channels, "UTC", Calendar("week", "UTC"), 900, None), NOW)
        assert sorted(box.taken) == ["a@example.org", "c@example.org"]


def test_crashes_of_mail_are_none_of_the_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty crashes of mail between two cycles ended the daemon."""
    app: Any = SimpleNamespace(database=SimpleNamespace(explain=lambda _: None))
    daemon = Daemon(app, structlog.get_logger())
    monkeypatch.setattr(daemon_module.Daemon, "_ask_to_stop", lambda self: self._stop.set())

    def crash() -> None:
        raise ValueError("invalid literal for int()")

    for _ in range(2 * CRASHES_MAX):
        daemon._guarded(crash, counts=False)
    assert not daemon._stop.is_set()
    for _ in range(CRASHES_MAX):
        daemon._guarded(crash)
    assert daemon._stop.is_set()
