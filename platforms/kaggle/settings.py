"""What a pool may set for this platform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from platforms.base import Misconfigured, SecretWay
from platforms.registry import read_count, reject_unknown

_KNOWN = frozenset(
    {
        "call_seconds",
        "checkpoints",
        "credentials",
        "dataset_prefix",
        "emulator",
        "expected_device",
        "idle_milliseconds",
        "internet",
        "keep_inputs_days",
        "machine_shape",
        "pause_milliseconds",
        "push_seconds",
        "ready_seconds",
        "secrets",
        "settle_seconds",
        "slug_prefix",
        "tries",
        "upload_seconds",
    }
)


@dataclass(frozen=True, slots=True)
class Settings:
    """A pool's settings; docs/kaggle.md explains each. Seconds are real, except ``keep_inputs_seconds``."""

    credentials: str
    machine_shape: str
    internet: bool
    secrets: Literal["off", "dataset", "account"]
    checkpoints: Literal["auto", "relay", "direct"]
    slug_prefix: str
    dataset_prefix: str
    emulator: str
    call_seconds: int
    upload_seconds: int
    push_seconds: int
    settle_seconds: int
    ready_seconds: int
    keep_inputs_seconds: int
    tries: int
    pause_seconds: float
    idle_seconds: float

    def relays(self, store_kind: str) -> bool:
        """Tell whether sessions cannot reach an artifact store of this kind by themselves; none: "" ."""
        out_of_reach = store_kind == "directory" or not self.internet
        return bool(store_kind) and (self.checkpoints == "relay" or (self.checkpoints == "auto" and out_of_reach))


def secret_way(settings: Mapping[str, str]) -> SecretWay:
    """Return how sessions get secrets, which is off unless somebody chose. Raises Misconfigured."""
    match read_settings(settings).secrets:
        case "dataset":
            return SecretWay("given")
        case "account":
            return SecretWay("asked")
        case "off":
            remedy = 'Set secrets = "dataset" among its options, once you have read docs/security.md'
            return SecretWay("none", "what Kaggle is told stays there for a while, so the pool gives none", remedy)


def read_settings(settings: Mapping[str, str]) -> Settings:
    """Return the settings of a pool. Raises Misconfigured for unknown names and bad values."""
    reject_unknown("kaggle", settings, _KNOWN)

    def count(name: str, default: int) -> int:
        return read_count("kaggle", settings, name, default)

    def choice(name: str, *allowed: str) -> str:
        text = settings.get(name, allowed[0])
        if text not in allowed:
            raise Misconfigured("kaggle", "load", f"{name} = {text!r} is none of {', '.join(allowed)}")
        return text

    return Settings(
        credentials=settings.get("credentials", ""),
        machine_shape=settings.get("machine_shape", "NvidiaTeslaT4"),
        internet=choice("internet", "on", "off") == "on",
        secrets=cast('Literal["off", "dataset", "account"]', choice("secrets", "off", "dataset", "account")),
        checkpoints=cast('Literal["auto", "relay", "direct"]', choice("checkpoints", "auto", "relay", "direct")),
        slug_prefix=settings.get("slug_prefix", ""),
        dataset_prefix=settings.get("dataset_prefix", "uff"),
        emulator=settings.get("emulator", ""),
        call_seconds=max(1, count("call_seconds", 30)),
        upload_seconds=max(1, count("upload_seconds", 200)),
        push_seconds=max(1, count("push_seconds", 300)),
        settle_seconds=count("settle_seconds", 60),
        ready_seconds=count("ready_seconds", 600),
        keep_inputs_seconds=count("keep_inputs_days", 7) * 86_400,
        tries=max(1, count("tries", 3)),
        pause_seconds=count("pause_milliseconds", 1_000) / 1_000,
        idle_seconds=max(1, count("idle_milliseconds", 2_000)) / 1_000,
    )
