"""Settings of the weekly report and the alerts: when, to whom, and by which servers."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, SecretStr, ValidationInfo, field_validator

from config.section import PositiveSeconds, Section, at_most
from config.values import BadValue, OpeningHours, Reset, opening_hours, reset


class SmtpSettings(Section):
    """The mail server that takes our letters; no ``host``, no e-mail."""

    host: str
    port: int = Field(ge=1, le=65_535)
    starttls: bool
    user: str
    password: SecretStr
    timeout_seconds: Annotated[PositiveSeconds, at_most("1h")]
    sender: str
    recipients: tuple[str, ...] = Field(validate_default=True)

    @field_validator("recipients")
    @classmethod
    def _all_or_nothing(cls, found: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if info.data.get("host") and not (found and info.data.get("sender")):
            raise BadValue("e-mail needs a sender and recipients", "set report.smtp.sender and report.smtp.recipients")
        return found


class SlackSettings(Section):
    """A webhook, or a bot token and a channel; neither, no Slack."""

    webhook_token_url: SecretStr
    bot_token: SecretStr
    channel: str
    timeout_seconds: Annotated[PositiveSeconds, at_most("1h")]

    @field_validator("channel")
    @classmethod
    def _channel_with_token(cls, found: str, info: ValidationInfo) -> str:
        token = info.data.get("bot_token")
        if token is not None and token.get_secret_value() and not found:
            raise BadValue("a bot token needs a channel", 'write it like "#training"')
        return found


class AppriseSettings(Section):
    """Further channels, one for each address as Apprise documents them; they hold tokens."""

    token_urls: tuple[SecretStr, ...]


class ReportSettings(Section):
    """``weekly`` is in the zone of the settings. In quiet hours no alert is sent; one for all follows afterwards."""

    weekly: Annotated[Reset, BeforeValidator(lambda text: reset(text) if isinstance(text, str) else text)]
    quiet: Annotated[
        OpeningHours | None, BeforeValidator(lambda text: opening_hours(text) if isinstance(text, str) else text)
    ] = None
    alerts_every_seconds: Annotated[PositiveSeconds, at_most("365d")]
    smtp: SmtpSettings
    slack: SlackSettings
    apprise: AppriseSettings
