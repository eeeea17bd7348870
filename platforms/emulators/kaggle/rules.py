"""What the place allows, and how its errors look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class Rules:
    """The limits of the place. Seconds are scheduled unless they say ``wall``.

    ``timeout_ignored`` is the wedged kernel that outlives its limit; ``quota_cuts`` ends running sessions when the week
    is used up; ``reserves`` fills timeReserved with what live sessions may still use; ``lets_kernels_in`` hands kernels
    with internet a token of their own, with which they may look at what their account may. What nobody has measured
    is a choice too: ``last_run_is_push`` tells as a kernel's last run when it was pushed, not when it began,
    ``last_run_is_end`` tells when it ended once it is over, and ``bills_queue`` bills the time in which it waited.
    Where the protocol leaves a choice: ``page_max`` caps what a list hands out at once, ``pages_by_token`` goes on by
    token alone, ``output_redirects`` sends whoever follows a link on to another address,
    ``kernel_hidden_wall_seconds`` is how long a new kernel is not shown; without ``tells_landing`` the answer to a push
    names neither kernel nor version, without ``tells_deleted`` a deleted dataset is denied like one that never was.
    """

    gpu_sessions_max: int = 2
    cpu_sessions_max: int = 5
    session_cap_seconds: int = 43_200
    gpu_seconds_per_week: int = 108_000
    queue_seconds: float = 16.0
    dataset_hidden_seconds: float = 0.0
    dataset_seconds: float = 5.0
    source_bytes_max: int = 1_000_000
    log_bytes_max: int = 64 << 20
    link_wall_seconds: float = 300.0
    stream_idle_wall_seconds: float = 120.0
    timeout_ignored: bool = False
    quota_cuts: bool = True
    reserves: bool = False
    lets_kernels_in: bool = True
    page_max: int = 200
    pages_by_token: bool = False
    output_redirects: bool = False
    kernel_hidden_wall_seconds: float = 0.0
    tells_landing: bool = True
    tells_deleted: bool = True
    last_run_is_push: bool = False
    last_run_is_end: bool = False
    bills_queue: bool = False
    unannounced_extra_seconds: int = 0  # GPU use of this week that no kernel explains


class Refusal(Exception):
    """An answer with an HTTP status above 400."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})


class Elsewhere(Refusal):
    """An answer that sends whoever asks on to another address."""

    def __init__(self, address: str) -> None:
        super().__init__(302, "Found", {"Location": address})


def denied(permission: str) -> Refusal:
    """What the place says of things that are missing, or not yours: it does not tell them apart."""
    return Refusal(403, f"Permission '{permission}' was denied")
