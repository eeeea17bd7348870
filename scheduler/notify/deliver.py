"""Delivery of outbox messages by e-mail, Slack, webhooks and the services that Apprise supports.

A message is marked as sent after its channel accepted it. After a crash between these two steps the message is sent
again, which cannot be avoided. An e-mail then has the same Message-ID, so mail programs show it once.
"""

import hashlib
import hmac
import json
import re
import smtplib
import socket
import ssl
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from email.message import EmailMessage
from http.client import HTTPException
from typing import IO, Any, Protocol
from urllib.parse import urlencode, urlsplit
from urllib.request import Request

from config.settings import WebhookSettings
from jobs.child_process import OF_A_PERSON, child_environment, run_child
from jobs.payload.bounds import INSTANT_MAX, digits, read_json
from jobs.payload.deadline import Deadline, HttpAnswer, exchange
from jobs.payload.redact import Redact, Redactor
from scheduler.clock import real_now
from scheduler.service.outside.ports import Ports
from scheduler.store import events, lease, outbox
from scheduler.store.errors import StoreFailure
from scheduler.store.outbox import OutboxMessage

_RETRY_BASE_SECONDS = 60
_RETRY_CAP_SECONDS = 3_600
_ASKED_MAX_SECONDS = 86_400  # longest delay for which a service may ask
_TRIED_SECONDS, _TRIES = 5 * 86_400, 48  # like mail servers; both must be exceeded, so down time gives up no message
_ANSWER_MAX_BYTES = 1 << 20
_EXCHANGES = 3  # the deadline of a message is this many time-outs, because sending has several steps
_PICTURES_MAX = 10  # of a message in Slack
_APPRISE_SECONDS, _APPRISE_CHARACTERS = 60, 300
_APPRISE = """
import json, sys
try:
    from apprise import Apprise
except ImportError:
    sys.exit("apprise is missing; install the extra `notify`")
address, title, text = json.load(sys.stdin)
post = Apprise()
if not post.add(address):
    sys.exit("Apprise does not know this kind of address; see report.apprise.token_urls")
sys.exit(0 if post.notify(body=text, title=title, body_format="text") else 1)
"""
EMAIL = "email"
WEBHOOK_PREFIX = "webhook-"
SIGNATURE, DELIVERY = "X-Uff-Signature", "X-Uff-Delivery"
GIVEN_UP = "letter.given_up"


class DeliveryFailed(Exception):
    """A channel did not accept a message; ``retry_seconds`` is the delay that the service asked for.

    ``for_good``: a retry of this message is useless. ``code`` is the error code of the service.
    """

    def __init__(self, why: str, retry_seconds: int = 0, *, for_good: bool = False, code: str = "") -> None:
        super().__init__(why)
        self.retry_seconds = retry_seconds
        self.for_good = for_good
        self.code = code


class Channel(Protocol):
    """Sends messages. ``body`` is a rendered report, an ``event``, or only ``subject`` and ``text``."""

    def send(self, key: str, body: Mapping[str, Any]) -> str | None:
        """Send a message; retries have the same ``key``. Return what was left out and why. Raises DeliveryFailed."""


class _Smtp(smtplib.SMTP):
    """An SMTP connection with a total deadline from its first byte."""

    def __init__(self, deadline: Deadline, host: str, port: int, seconds: int) -> None:
        self._deadline = deadline
        super().__init__(host, port, timeout=seconds)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return self._deadline.watch(super()._get_socket(host, port, timeout))  # type: ignore[misc] # as SMTP_SSL does

    def getreply(self) -> tuple[int, bytes]:
        """Read one reply of the server; smtplib limits the length of each line, not their number."""
        if self.file is None and self.sock is not None:
            self.file = _Lines(self.sock.makefile("rb"))
        return super().getreply()


class _Lines:
    """Reads the lines that a server sends in one connection, up to a total number of bytes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._left = stream, _ANSWER_MAX_BYTES

    def readline(self, limit: int) -> bytes:
        line = self._stream.readline(limit)
        self._left -= len(line)
        if self._left < 0:
            raise OSError(f"the answers are longer than {_ANSWER_MAX_BYTES:,} bytes")
        return line

    def close(self) -> None:
        self._stream.close()


@dataclass(frozen=True, slots=True)
class EmailChannel:
    """A mail server. ``authority`` is the CA file for its certificate; None uses the CAs of this machine.

    Recipients that need their own retries each have their own channel.
    """

    host: str
    port: int
    starttls: bool
    user: str
    password: str = field(repr=False)
    sender: str
    recipients: tuple[str, ...]
    timeout_seconds: int
    authority: str | None = None

    @contextmanager
    def opened(self) -> Iterator[smtplib.SMTP]:
        """Yield a connection, encrypted and logged in if so configured. The deadline covers everything sent through it.

        Raises OSError, SMTPException, ValueError.
        """
        with (
            Deadline(_EXCHANGES * self.timeout_seconds) as deadline,
            _Smtp(deadline, self.host, self.port, self.timeout_seconds) as server,
        ):
            if self.starttls:
                server.starttls(context=ssl.create_default_context(cafile=self.authority))
            if self.user:
                server.login(self.user, self.password)
            yield server

    def send(self, key: str, body: Mapping[str, Any]) -> None:
        """Send plain text with an HTML alternative; the Message-ID is derived from the key."""
        message = EmailMessage()
        message["Message-ID"] = f"<{key}@uff-scheduler>"
        message["Subject"] = " ".join(str(body["subject"]).split())
        message["From"] = self.sender
        message["To"] = ", ".join(self.recipients)
        message.set_content(body["text"])
        if "html" in body:
            message.add_alternative(body["html"], subtype="html")
            page = message.get_body(("html",))
            if page is not None:
                for name, picture in body.get("pictures", {}).items():
                    page.add_related(b64decode(picture), "image", "png", cid=f"<{name}>", filename=f"{name}.png")
        try:
            with self.opened() as server:
                refused = server.send_message(message)
        except smtplib.SMTPRecipientsRefused as error:
            for_good = all(code >= 500 for code, _ in error.recipients.values())
            why = Redactor([self.password])(f"refused: {error.recipients}")
            raise DeliveryFailed(why, for_good=for_good) from None
        except (OSError, ValueError, smtplib.SMTPException) as error:
            raise DeliveryFailed(Redactor([self.password])(f"{type(error).__name__}: {error}")) from None
        if refused:
            raise DeliveryFailed(f"refused for {', '.join(sorted(refused))}")


@dataclass(frozen=True, slots=True)
class SlackChannel:
    """A Slack webhook, or the token and channel of a bot. Tests set ``base_url`` to another server."""

    webhook: str = field(repr=False)
    token: str = field(repr=False)
    channel: str
    timeout_seconds: int
    base_url: str = "https://slack.com/api/"

    def send(self, key: str, body: Mapping[str, Any]) -> str | None:
        """Send a message as blocks; a bot also posts the pictures in its thread."""
        del key
        blocks = body.get("blocks")
        # With blocks the text is shown in notifications only; without blocks it is the message.
        message = {"text": body["subject"], "blocks": blocks} if blocks else {"text": body["text"]}
        if not self.webhook:
            posted, _ = self.call("chat.postMessage", channel=self.channel, **message)
            return self._add_pictures(posted.get("channel"), posted.get("ts"), body)
        self._exchange(self.webhook, json.dumps(message).encode(), {"Content-Type": "application/json"})
        return None

    def call(self, method: str, **words: Any) -> tuple[dict[str, Any], Mapping[str, str]]:
        """Call Slack's API as the bot; return the answer and its headers. Raises DeliveryFailed."""
        texts = {name: word if isinstance(word, str) else json.dumps(word) for name, word in words.items()}
        access = {"Authorization": f"Bearer {self.token}"}
        answer = self._exchange(f"{self.base_url}{method}", urlencode(texts).encode(), access)
        document = _document(answer.body)
        if document.get("ok") is not True:
            code = str(document.get("error", "no word of its API"))[:100]
            raise DeliveryFailed(f"Slack answered {answer.status} {code}", code=code)
        return document, answer.headers

    def _exchange(self, address: str, data: bytes, headers: Mapping[str, str]) -> HttpAnswer:
        answer = _post(address, data, headers, self.timeout_seconds, [self.token, self.webhook])
        if answer.status != 200:
            code = str(_document(answer.body).get("error", ""))[:100]
            raise DeliveryFailed(f"Slack answered {answer.status} {code}", asked_seconds(answer.headers), code=code)
        return answer

    def _add_pictures(self, channel: object, thread: object, body: Mapping[str, Any]) -> str | None:
        """Upload the pictures; return why they were left out, if so. A failure must not repeat the posted message."""
        names = list(body.get("pictures", {}))[:_PICTURES_MAX]
        if not names or not isinstance(channel, str):
            return None
        captions, files = body.get("captions", {}), []
        try:
            for name in names:
                picture = b64decode(body["pictures"][name])
                place, _ = self.call("files.getUploadURLExternal", filename=f"{name}.png", length=len(picture))
                address = str(place.get("upload_url"))
                if urlsplit(address).scheme not in {"https", urlsplit(self.base_url).scheme}:
                    raise DeliveryFailed("Slack names no place for pictures")
                self._exchange(address, picture, {"Content-Type": "application/octet-stream"})
                files.append({"id": place.get("file_id"), "title": captions.get(name, name)})
            self.call("files.completeUploadExternal", files=files, channel_id=channel, thread_ts=thread)
        except DeliveryFailed as error:
            hint = "; the bot needs the scope files:write" if error.code == "missing_scope" else ""
            return f"without its pictures: {error}{hint}"
        return None


@dataclass(frozen=True, slots=True)
class AppriseChannel:
    """A service that Apprise supports, given by its URL."""

    address: str = field(repr=False)

    @property
    def name(self) -> str:
        """The name of the channel, derived from a digest of the address, so that it does not reveal the address."""
        return f"apprise-{hashlib.sha256(self.address.encode()).hexdigest()[:8]}"

    def send(self, key: str, body: Mapping[str, Any]) -> None:
        """Send plain text in a child process, because Apprise's time-outs apply to single reads only."""
        del key
        message = json.dumps([self.address, str(body["subject"]), str(body["text"])]).encode()
        words = (sys.executable, "-P", "-c", _APPRISE)
        try:
            done = run_child(words, _APPRISE_SECONDS, child_environment(OF_A_PERSON), standard_input=message)
        except (OSError, subprocess.TimeoutExpired) as error:
            why = f"no end within {_APPRISE_SECONDS} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
            raise DeliveryFailed(f"Apprise could not deliver: {why}") from None
        if done.returncode:
            reason = Redactor([self.address, *re.split(r"\W+", self.address)])(done.stderr.decode(errors="replace"))
            raise DeliveryFailed(
                (reason.strip().splitlines() or ["Apprise could not deliver"])[-1][:_APPRISE_CHARACTERS]
            )


@dataclass(frozen=True, slots=True)
class WebhookChannel:
    """A webhook with its shared secret. ``X-Uff-Signature: t=INSTANT,v1=HEX`` signs ``INSTANT.BODY``.

    HEX is HMAC-SHA256 with the secret. INSTANT is the time of sending, so that a receiver can detect replays.
    ``X-Uff-Delivery`` is the same for all retries of an event. The headers of Standard Webhooks are sent as well.
    """

    address: str = field(repr=False)
    secret: str = field(repr=False)
    timeout_seconds: int

    def send(self, key: str, body: Mapping[str, Any]) -> None:
        """Send one event. Raises DeliveryFailed unless the status is 200 to 299."""
        now = int(real_now())
        data = json.dumps(body["event"], sort_keys=True, ensure_ascii=False).encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "uff-scheduler",
            DELIVERY: key,
            SIGNATURE: signature(self.secret, now, data),
            "webhook-id": key,
            "webhook-timestamp": str(now),
            "webhook-signature": standard_signature(self.secret, key, now, data),
        }
        answer = _post(self.address, data, headers, self.timeout_seconds, [self.address, self.secret])
        if not 200 <= answer.status < 300:
            raise DeliveryFailed(f"the webhook answered {answer.status}", asked_seconds(answer.headers))


def signature(secret: str, at: int, data: bytes) -> str:
    """Return the value of the signature header for ``data`` sent at ``at`` (UTC seconds)."""
    signed = hmac.new(secret.encode(), f"{at}.".encode() + data, hashlib.sha256).hexdigest()
    return f"t={at},v1={signed}"


def standard_signature(secret: str, key: str, at: int, data: bytes) -> str:
    """Return the ``webhook-signature`` of https://www.standardwebhooks.com. A secret ``whsec_BASE64`` is decoded."""
    raw = secret.encode()
    if secret.startswith("whsec_"):
        with suppress(ValueError):  # not base64: a custom secret that happens to have this prefix
            raw = b64decode(secret.removeprefix("whsec_"), validate=True)
    signed = hmac.new(raw, f"{key}.{at}.".encode() + data, hashlib.sha256).digest()
    return f"v1,{b64encode(signed).decode()}"


def webhooks_of(wanted: Iterable[WebhookSettings]) -> dict[str, Channel]:
    """Return a channel for each webhook of the settings."""
    return {
        WEBHOOK_PREFIX + hook.name: WebhookChannel(
            hook.token_url.get_secret_value(), hook.secret.get_secret_value(), hook.timeout_seconds
        )
        for hook in wanted
    }


def _post(address: str, data: bytes, headers: Mapping[str, str], seconds: int, secrets: Sequence[str]) -> HttpAnswer:
    """Post to an address and return the answer. Raises DeliveryFailed with ``secrets`` removed from its text."""
    try:
        request = Request(address, data, dict(headers), method="POST")  # noqa: S310 - the settings take https only
        return exchange(request, seconds, _ANSWER_MAX_BYTES)
    except (OSError, ValueError, HTTPException) as error:
        raise DeliveryFailed(Redactor(secrets)(f"{type(error).__name__}: {error}")) from None


def _document(body: bytes) -> dict[str, Any]:
    """Return the JSON object of Slack's answer; empty for anything else."""
    try:
        value = read_json(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def email_channels(channel: EmailChannel) -> dict[str, Channel]:
    """Return one channel per recipient, by name, so that a refused recipient does not affect the others."""
    if len(channel.recipients) == 1:
        return {EMAIL: channel}
    return {
        f"{EMAIL}-{hashlib.sha256(recipient.encode()).hexdigest()[:8]}": replace(channel, recipients=(recipient,))
        for recipient in channel.recipients
    }


def asked_seconds(headers: Mapping[str, Any]) -> int:
    """Return the seconds of a ``Retry-After`` header, at most a day; 0 if it is not a number of seconds."""
    wanted = {name.lower(): value for name, value in headers.items()}.get("retry-after", 0)
    wanted = wanted[0] if isinstance(wanted, list) and wanted else wanted
    return min(digits(str(wanted).strip(), INSTANT_MAX) or 0, _ASKED_MAX_SECONDS)


def redacted(body: Mapping[str, Any], redact: Redact) -> dict[str, Any]:
    """Return a message body without known secrets. Pictures are kept, since they show only names, hours and losses."""

    def quiet(value: Any) -> Any:
        match value:
            case str():
                return redact(value)
            case dict():
                return {name: quiet(inner) for name, inner in value.items()}
            case list() | tuple():
                return [quiet(inner) for inner in value]
            case _:
                return value

    return {name: value if name == "pictures" else quiet(value) for name, value in body.items()}


def share_among_recipients(ports: Ports, channels: Mapping[str, Channel], now: int) -> None:
    """Replace each message to all recipients, as older versions wrote it, by one message per recipient."""
    named = [name for name in channels if name.startswith(f"{EMAIL}-")]
    if EMAIL in channels or not named:
        return
    with ports.database.read() as tx:
        shared = [message for message in outbox.pending(tx, now) if message.channel == EMAIL]
    for message in shared:
        with ports.write() as tx:
            for name in named:
                outbox.add(tx, message.kind, message.period, name, message.body, now)
            outbox.sent(tx, message.id, now)


def deliver(ports: Ports, channels: Mapping[str, Channel], now: int) -> None:
    """Send the waiting messages. Failures are retried for five days, at least hourly; the first failure is an event.

    An error in one message affects that message only. Raises Fenced if another daemon has the lease and sends them.
    """
    with ports.database.read() as tx:
        lease.fence(tx, ports.epoch)
        waiting = outbox.pending(tx, now)
    failed: set[str] = set()
    for message in waiting:
        channel = channels.get(message.channel)
        if message.channel in failed:
            continue  # a channel that does not answer is tried once in a round, not once per message
        if channel is None:
            continue  # the channel is not configured: the message waits until it is again
        if message is not waiting[0]:  # sending the earlier messages may be slow, and another daemon may send this one
            with ports.database.read() as tx:
                lease.fence(tx, ports.epoch)
                if not outbox.waits(tx, message.id):
                    continue
        try:
            # Redact again, because the message may be older than the secret, or an older version wrote it.
            left_out = channel.send(f"{message.kind}-{message.period}", redacted(message.body, ports.redact))
        except DeliveryFailed as error:
            _failed(ports, message, error, now)
            if not error.for_good:
                failed.add(message.channel)
            continue
        except StoreFailure:
            raise
        except Exception as error:  # noqa: BLE001 - an unexpected answer or message must not stop the others
            _failed(ports, message, DeliveryFailed(f"{type(error).__name__}: {error}"), now)
            continue
        with ports.write() as tx:
            outbox.sent(tx, message.id, now)
        ports.log.info("letter.sent", kind=message.kind, period=message.period, channel=message.channel)
        if left_out:
            ports.log.warning("letter.incomplete", kind=message.kind, channel=message.channel, why=left_out)


def _failed(ports: Ports, message: OutboxMessage, error: DeliveryFailed, now: int) -> None:
    pause = min(_RETRY_CAP_SECONDS, _RETRY_BASE_SECONDS << min(message.attempts, 10))
    given_up = error.for_good or (message.attempts >= _TRIES and now - message.created_at >= _TRIED_SECONDS)
    retry_at = outbox.NEVER if given_up else now + max(pause, error.retry_seconds)
    why = ports.redact(str(error))
    ports.log.warning("letter.failed", kind=message.kind, channel=message.channel, why=why, retry_at=retry_at)
    with ports.write() as tx:
        outbox.failed(tx, message.id, retry_at, why)
        if given_up or not message.attempts:
            kind = GIVEN_UP if given_up else "letter.failed"
            events.append(tx, kind, f"{message.kind}-{message.period}", now, why=why, channel=message.channel)
