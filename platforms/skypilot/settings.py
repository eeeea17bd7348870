"""The options of a SkyPilot pool, held against what may become part of a task."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from platforms.base import Misconfigured
from platforms.registry import read_count, reject_unknown

NAME = "skypilot"
DOC = "docs/skypilot.md"
_ADDRESS = "http://127.0.0.1:46580"  # where `sky api start` listens
# What a task is told as it stands, by option.
_ASKED = {"infra": "infra", "image": "image_id", "cpus": "cpus", "memory": "memory"}
_KNOWN = frozenset(_ASKED) | {
    "accelerator", "address", "autodown_minutes", "call_seconds", "disk_size", "max_hourly_cost", "owner",
    "poll_seconds", "python", "start_minutes", "token_file", "use_spot",
}  # fmt: skip
_WORD = re.compile(r"[A-Za-z0-9_~/.][A-Za-z0-9_.,:/+@*~-]{0,250}", re.ASCII)
_OWNER = re.compile(r"[0-9a-f]{8}", re.ASCII)
_MONEY = re.compile(r"\d{1,6}(\.\d{1,4})?", re.ASCII)
_HERE = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True)
class Settings:
    """What a pool asks of SkyPilot."""

    address: str
    token_file: Path | None
    owner: str  # eight hexadecimal digits, which tell our clusters from those of other pools and daemons
    asked: Mapping[str, Any]  # of the task's resources
    accelerator: str
    python: str
    start_seconds: int
    poll_seconds: int
    call_seconds: int

    @property
    def prefix(self) -> str:
        """With what the names of this pool's clusters begin."""
        return f"uff-{self.owner}-"

    def resources(self, devices: int) -> dict[str, Any]:
        """Return what SkyPilot is asked for, for a session with so many devices."""
        found = dict(self.asked)
        if self.accelerator and devices:
            found["accelerators"] = f"{self.accelerator}:{devices}"
        return found


def read_settings(options: Mapping[str, str], state_folder: Path) -> Settings:
    """Return the settings of a pool. Raises Misconfigured."""
    reject_unknown(NAME, options, _KNOWN | {"expected_device"})
    for name in (*_ASKED, "accelerator", "python"):
        if name in options and not _WORD.fullmatch(options[name]):
            raise Misconfigured(NAME, "load", f"{name} = {options[name]!r} is not usable", f"See {DOC}")
    for name, shape in (("owner", _OWNER), ("max_hourly_cost", _MONEY)):
        if name in options and not shape.fullmatch(options[name]):
            raise Misconfigured(NAME, "load", f"{name} = {options[name]!r} is not usable", f"See {DOC}")
    token_file = Path(options["token_file"]).expanduser() if options.get("token_file") else None
    return Settings(
        read_address(NAME, "address", options.get("address", _ADDRESS), _ADDRESS, token=token_file is not None),
        token_file,
        options.get("owner") or hashlib.sha256(str(state_folder).encode()).hexdigest()[:8],
        _asked(options),
        options.get("accelerator", ""),
        options.get("python", "python3"),
        60 * read_count(NAME, options, "start_minutes", 30),
        read_count(NAME, options, "poll_seconds", 30),
        read_count(NAME, options, "call_seconds", 50) or 1,
    )


def _asked(options: Mapping[str, str]) -> dict[str, Any]:
    asked: dict[str, Any] = {word: options[name] for name, word in _ASKED.items() if options.get(name)}
    use_spot = options.get("use_spot", "no")
    if use_spot not in {"yes", "no"}:
        raise Misconfigured(NAME, "load", f"use_spot = {use_spot!r}", "Write yes or no")
    if use_spot == "yes":
        asked["use_spot"] = True
    if disk := read_count(NAME, options, "disk_size", 0):
        asked["disk_size"] = disk
    if "max_hourly_cost" in options:
        asked["max_hourly_cost"] = float(options["max_hourly_cost"])
    minutes = read_count(NAME, options, "autodown_minutes", 5)
    if not minutes:
        raise Misconfigured(
            NAME, "load", "autodown_minutes = 0: nothing would end a forgotten cluster", "Write 1 or more"
        )
    return {**asked, "autostop": {"idle_minutes": minutes, "down": True}}


# Plain ones, that no token crosses a network to in the clear.
def read_address(platform: str, option: str, text: str, example: str, *, token: bool) -> str:
    """Return an address without the / at its end. Raises Misconfigured when it is no plain one of http or https.

    ``token``: one is sent along. No secret stands in an address.
    """
    try:
        parts = urlsplit(text)
        usable = bool(parts.scheme in {"http", "https"} and parts.hostname and (parts.port is None or parts.port > 0))
    except ValueError:
        parts, usable = urlsplit(""), False
    if not usable or parts.username is not None or parts.query or parts.fragment:
        why = f"{option} = {text.rpartition('@')[2]!r} is no plain http or https address"
        raise Misconfigured(platform, "load", why, f"Write one like {example}; credentials go into token_file")
    if token and parts.scheme == "http" and parts.hostname not in _HERE:
        raise Misconfigured(
            platform, "load", f"a token would cross the network to {parts.hostname} in the clear", "Use https"
        )
    return text.rstrip("/")
