"""The stop flag: how the daemon asks a session to end early."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .transport import Transport


def read_stop(transport: Transport, run: str, lane: int) -> str | None:
    """Return why this lane shall end, or None when it shall not. Raises OSError when the store does not tell."""
    key = f"runs/{run}/stop"
    try:
        data = transport.read(key)
    except FileNotFoundError:
        return None
    try:
        flag = json.loads(data)
        meant, why = flag["lane"] in (None, lane), str(flag["reason"])
    except (ValueError, KeyError, TypeError):
        # Whoever wrote it wanted an end; ending costs a session's rest, going on may cost its budget.
        return "the flag is unreadable"
    return why if meant else None
