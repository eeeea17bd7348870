"""Doctor: whether letters would reach people. Servers are greeted and logged in to; nothing is sent."""

from __future__ import annotations

import smtplib
from typing import TYPE_CHECKING

from jobs.payload.redact import Redactor
from jobs.plural import counted
from platforms.base import Checked
from scheduler.notify.deliver import DeliveryFailed, EmailChannel, SlackChannel

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.notify.deliver import Channel

_REMEDY = "Look at the settings: schedctl config show report"


def channel_check(channel: Channel) -> Callable[[], Checked]:
    """Return the check of a configured channel."""
    match channel:
        case EmailChannel():
            return lambda: check_mail(channel)
        case SlackChannel():
            return lambda: check_slack(channel)
        case _:
            return lambda: Checked("ok", "set; only a letter can test it: schedctl report weekly --send")


def no_channel() -> Checked:
    """Return what it means that no channel is configured: no fault, but nobody is told anything."""
    return Checked("ok", "no mail server or Slack is set; reports and alerts are only seen by who looks for them")


def check_mail(channel: EmailChannel) -> Checked:
    """Greet the mail server, encrypt and log in as a letter would."""
    where = f"{channel.host}:{channel.port}"
    try:
        with channel.opened() as server:
            server.noop()
    except smtplib.SMTPAuthenticationError as error:
        return Checked("bad", f"{where} does not take our login (code {error.smtp_code})", "Correct user and password")
    except (OSError, ValueError, smtplib.SMTPException) as error:
        why = Redactor([channel.password])(f"{type(error).__name__}: {error}")
        return Checked("bad", f"{where}: {why}", _REMEDY)
    login = f", takes the login of {channel.user}" if channel.user else ""
    if not channel.starttls and channel.user:
        return Checked("warning", f"{where} answers, but the password goes there in the clear", "Set starttls = true")
    return Checked("ok", f"{where} answers{login}; {counted(len(channel.recipients), 'recipient')}")


def check_slack(channel: SlackChannel) -> Checked:
    """Ask Slack whose token it is; of a webhook only the form can be checked without a message."""
    if channel.webhook:
        if not channel.webhook.startswith("https://"):
            return Checked("bad", "the webhook's address does not begin with https://", _REMEDY)
        return Checked("ok", "a webhook is set; only a message can test it: schedctl report weekly --send")
    try:
        answer, headers = channel.call("auth.test")
    except DeliveryFailed as error:
        if error.code:
            return Checked("bad", f"Slack does not take our token: {error.code}", "Set report.slack.bot_token again")
        return Checked("bad", f"Slack: {error}", "Look at the network of this machine")
    found = f"token of {answer.get('team', '')}, writes to {channel.channel}"
    told = headers.get("x-oauth-scopes")
    if told is not None:
        scopes = {scope.strip() for scope in str(told).split(",")}
        if "chat:write" not in scopes:
            return Checked("bad", f"{found}, but its scopes do not let it", "Give the bot the scope chat:write")
        if "files:write" not in scopes:
            return Checked("warning", f"{found}, without pictures", "Give the bot the scope files:write")
    return Checked("ok", found)
