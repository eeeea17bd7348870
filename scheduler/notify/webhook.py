"""Webhook: one event as JSON to an address of a person's choice, signed so that the receiver can tell it is ours."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any
from urllib.request import Request

from config.settings import RuleSettings, WebhookSettings
from jobs.payload.deadline import exchange
from jobs.payload.redact import Redactor
from scheduler.clock import real_now
from scheduler.notify.deliver import Channel, DeliveryFailed, asked_seconds
from scheduler.notify.rules import NotificationRule

_PREFIX = "webhook-"
_ANSWER_MAX_BYTES = 1 << 20
SIGNATURE, DELIVERY = "X-Uff-Signature", "X-Uff-Delivery"


@dataclass(frozen=True, slots=True)
class WebhookChannel:
    """An address and the secret it shares with us. ``X-Uff-Signature: t=INSTANT,v1=HEX`` signs ``INSTANT.BODY``.

    HEX is HMAC-SHA256 with the secret; INSTANT, when it was sent, lets a receiver refuse what somebody sends again.
    ``X-Uff-Delivery`` is the same whenever one event is tried again. The headers of Standard Webhooks say the same.
    """

    address: str = field(repr=False)
    secret: str = field(repr=False)
    timeout_seconds: int

    def send(self, key: str, body: Mapping[str, Any]) -> None:
        """Deliver one event. Raises DeliveryFailed for anything but an answer of 200 to 299."""
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
        hidden = Redactor([self.address, self.secret])
        try:
            request = Request(self.address, data, headers, method="POST")  # noqa: S310 - the settings take https only
            answer = exchange(request, self.timeout_seconds, _ANSWER_MAX_BYTES)
        except (OSError, HTTPException, ValueError) as error:
            raise DeliveryFailed(hidden(f"{type(error).__name__}: {error}")) from None
        if not 200 <= answer.status < 300:
            raise DeliveryFailed(f"the webhook answered {answer.status}", asked_seconds(answer.headers))


def signature(secret: str, at: int, data: bytes) -> str:
    """Return the header that signs ``data`` as sent at ``at``, UTC seconds."""
    signed = hmac.new(secret.encode(), f"{at}.".encode() + data, hashlib.sha256).hexdigest()
    return f"t={at},v1={signed}"


def standard_signature(secret: str, key: str, at: int, data: bytes) -> str:
    """Return the ``webhook-signature`` of https://www.standardwebhooks.com. A secret ``whsec_BASE64`` is decoded."""
    raw = secret.encode()
    if secret.startswith("whsec_"):
        with suppress(ValueError):  # no base64: somebody's own secret that begins like one
            raw = b64decode(secret.removeprefix("whsec_"), validate=True)
    signed = hmac.new(raw, f"{key}.{at}.".encode() + data, hashlib.sha256).digest()
    return f"v1,{b64encode(signed).decode()}"


def webhooks_of(wanted: Iterable[WebhookSettings]) -> dict[str, Channel]:
    """Return a channel for each webhook of the settings."""
    return {
        _PREFIX + hook.name: WebhookChannel(
            hook.token_url.get_secret_value(), hook.secret.get_secret_value(), hook.timeout_seconds
        )
        for hook in wanted
    }


def rules_of(
    rules: Iterable[RuleSettings], webhooks: Iterable[WebhookSettings], channels: Iterable[str]
) -> tuple[NotificationRule, ...]:
    """Return the rules of the settings, each with the names of the ``channels`` that it sends to."""
    names = list(channels)
    chosen = [
        # Apprise's channels are named by their addresses, which the settings keep to themselves.
        NotificationRule(
            rule.name,
            rule.events,
            rule.jobs,
            tuple(name for name in names if name in rule.to or name.partition("-")[0] in rule.to),
        )
        for rule in rules
    ]
    hooks = [
        NotificationRule(hook.name, hook.events, hook.jobs, (_PREFIX + hook.name,), webhook=True) for hook in webhooks
    ]
    return (*chosen, *hooks)
