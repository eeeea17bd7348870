"""The options of a SkyPilot pool, validated before they become part of a task."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from platforms.base import BadOption
from platforms.options import YES, Written, read_options

NAME = "skypilot"
DOC = "docs/skypilot.md"
_ADDRESS = "http://127.0.0.1:46580"  # where `sky api start` listens
_Word = Annotated[str, Written(form=re.compile(r"[A-Za-z0-9_~/.][A-Za-z0-9_.,:/+@*~-]{0,250}", re.ASCII))]
_Owner = Annotated[str, Written(form=re.compile(r"[0-9a-f]{8}", re.ASCII))]
_Money = Annotated[str, Written(form=re.compile(r"\d{1,6}(\.\d{1,4})?", re.ASCII))]
_HERE = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True)
class SkyPilotSettings:
    """The validated options of one pool."""

    infra: _Word = ""
    image: _Word = ""
    cpus: _Word = ""
    memory: _Word = ""
    accelerator: _Word = ""
    python: _Word = "python3"
    owner: _Owner = ""  # eight hexadecimal digits, which distinguish our clusters from those of other pools and daemons
    max_hourly_cost: _Money = ""
    address: str = _ADDRESS
    token_file: str = ""
    use_spot: Annotated[bool, YES] = False
    disk_size: int = 0
    autodown_minutes: int = 5
    start_seconds: Annotated[int, Written("start_minutes", 60)] = 1_800
    poll_seconds: int = 30
    call_seconds: Annotated[int, Written(least=1)] = 50

    @property
    def prefix(self) -> str:
        """The prefix of the names of this pool's clusters."""
        return f"uff-{self.owner}-"

    def resources(self, devices: int) -> dict[str, Any]:
        """Return the task's resources for a session with ``devices``."""
        resources = {"infra": self.infra, "image_id": self.image, "cpus": self.cpus, "memory": self.memory}
        more = {"use_spot": self.use_spot, "disk_size": self.disk_size}
        most = {"max_hourly_cost": float(self.max_hourly_cost)} if self.max_hourly_cost else {}
        autostop = {"idle_minutes": self.autodown_minutes, "down": True}
        cards = {"accelerators": f"{self.accelerator}:{devices}"} if self.accelerator and devices else {}
        requested = {name: word for name, word in {**resources, **more}.items() if word}
        return {**requested, **most, "autostop": autostop, **cards}


def read_settings(options: Mapping[str, str], state_folder: Path) -> SkyPilotSettings:
    """Return the settings of a pool. Raises Misconfigured."""
    values = read_options(NAME, SkyPilotSettings, options)
    if not values.autodown_minutes:
        raise BadOption(NAME, "load", "autodown_minutes = 0: nothing would end a forgotten cluster", "Write 1 or more")
    address = read_address(values.address, token=bool(values.token_file))
    owner = values.owner or hashlib.sha256(str(state_folder).encode()).hexdigest()[:8]
    return replace(values, address=address, owner=owner)


def read_address(text: str, *, token: bool) -> str:
    """Return an http or https address without the / at its end. Raises BadOption for any other text.

    The address must not contain credentials. With ``token``, which is sent to it, http is allowed for this machine
    only, so that no token crosses a network unencrypted.
    """
    try:
        parts = urlsplit(text)
        usable = bool(parts.scheme in {"http", "https"} and parts.hostname and (parts.port is None or parts.port > 0))
    except ValueError:
        parts, usable = urlsplit(""), False
    if not usable or parts.username is not None or parts.query or parts.fragment:
        why = f"address = {text.rpartition('@')[2]!r} is no plain http or https address"
        raise BadOption(NAME, "load", why, f"Write one like {_ADDRESS}; credentials go into token_file")
    if token and parts.scheme == "http" and parts.hostname not in _HERE:
        why = f"a token would cross the network to {parts.hostname} in the clear"
        raise BadOption(NAME, "load", why, "Use https")
    return text.rstrip("/")
