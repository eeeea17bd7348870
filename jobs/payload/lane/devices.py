"""Which accelerators the platform really gave."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

from .failure import Failure

if TYPE_CHECKING:
    from .launch import Devices

_ASK = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
_ANSWER_SECONDS = 60


def check_devices(expected: Devices | None) -> tuple[str, ...]:
    """Return the names of the devices; raises Failure when they are not the expected ones. None: do not look."""
    if expected is None:
        return ()
    try:
        answer = subprocess.run(_ASK, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise Failure("wrong_device", f"expected {expected.number} x {expected.name}, but: {error}") from None
    names = tuple(line.strip() for line in answer.stdout.splitlines() if line.strip())
    # Platforms call them NvidiaTeslaT4, the driver Tesla T4.
    wanted = _plain(expected.name)
    if len(names) < expected.number or not all(_plain(name) == wanted for name in names):
        raise Failure("wrong_device", f"expected {expected.number} x {expected.name}, got {', '.join(names) or 'none'}")
    return names


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("nvidia")
