"""Settings of webhooks and notification rules: which events of which jobs go where."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, field_validator

from config.section import PositiveSeconds, Section, at_most
from config.values import BadValue

_SECRET_MIN = 16


def _pattern(found: str) -> str:
    if not found or not found.isprintable() or " " in found:
        raise BadValue(f"{found!r} is no pattern", 'write it like "job.*", "run.end" or "*"')
    return found


Pattern = Annotated[str, Field(max_length=100), AfterValidator(_pattern)]
RuleName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]


class RuleSettings(Section):
    """Events that match ``events``, of jobs that match ``jobs``, go to the channels ``to`` in one letter."""

    name: RuleName
    events: tuple[Pattern, ...] = Field(min_length=1)
    jobs: tuple[Pattern, ...] = Field(default=("*",), min_length=1)
    to: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)


class WebhookSettings(Section):
    """Events that match ``events``, of jobs that match ``jobs``, go to ``token_url``, signed with ``secret``."""

    name: RuleName
    token_url: SecretStr
    secret: SecretStr
    events: tuple[Pattern, ...] = Field(default=("*",), min_length=1)
    jobs: tuple[Pattern, ...] = Field(default=("*",), min_length=1)
    timeout_seconds: Annotated[PositiveSeconds, at_most("2m")] = 10

    @field_validator("token_url")
    @classmethod
    def _private(cls, found: SecretStr) -> SecretStr:
        private_address(found.get_secret_value())
        return found

    @field_validator("secret")
    @classmethod
    def _long(cls, found: SecretStr) -> SecretStr:
        if len(found.get_secret_value()) < _SECRET_MIN:
            raise BadValue(f"the secret has fewer than {_SECRET_MIN} characters", "make one: openssl rand -hex 32")
        return found


def private_address(text: str) -> str:
    """Return an address to which something may be sent: by https, or on this machine. Raises BadValue."""
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
    except ValueError:
        raise BadValue("this is no address", 'write it like "https://example.org/hook"') from None
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and _is_here(host))):
        why = "what is sent there would go in the clear, or nowhere"
        raise BadValue(why, "use https; http only to this machine, as 127.0.0.1 or localhost")
    return text


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
