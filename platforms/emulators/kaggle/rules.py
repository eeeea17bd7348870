"""What the place allows, what goes wrong on demand, and how its errors look."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(slots=True)
class Rules:
    """The limits of the place. Seconds are scheduled unless they say ``wall``.

    ``timeout_ignored`` is the wedged kernel that outlives its limit; ``quota_cuts`` ends running sessions when the week
    is used up; ``reserves`` fills timeReserved with what live sessions may still use; ``lets_kernels_in`` hands kernels
    with internet a token of their own, with which they may look at what their account may. Where the protocol leaves a
    choice: ``page_max`` caps what a list hands out at once, ``pages_by_token`` goes on by token alone,
    ``output_redirects`` sends whoever follows a link on to another address, ``kernel_hidden_wall_seconds`` is how long
    a new kernel is not shown; without ``tells_landing`` the answer to a push names neither kernel nor version, without
    ``tells_deleted`` a deleted dataset is denied like one that never was.
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
    unannounced_extra_seconds: int = 0  # GPU use of this week that no kernel explains


class Fault(StrEnum):
    """What can happen to one call."""

    THROTTLED = "429"
    THROTTLED_LATER = "429 with Retry-After"
    THROTTLED_PAGE = "429 as a page of HTML that says it is JSON"
    SERVER_ERROR = "500"
    FORBIDDEN = "403"
    PAGE = "200 with a page of HTML"
    HANG = "no answer"
    DROP = "connection closed before anything was done"
    DROP_AFTER_COMMIT = "connection closed after it was done"
    ERROR_AFTER_COMMIT = "500 after it was done"


@dataclass(slots=True)
class Faults:
    """Faults to come. ``next`` holds, by name of a call (``SaveKernel``), what happens to the next ones.

    ``always`` happens to every call named (``*``: all). ``draw`` is asked for every other call.
    """

    next: dict[str, deque[Fault]] = field(default_factory=dict)
    always: dict[str, Fault] = field(default_factory=dict)
    draw: Callable[[str], Fault | None] = lambda _call: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, call: str, *faults: Fault) -> None:
        """Let ``faults`` happen to the next calls of that name, in this order."""
        with self.lock:
            self.next.setdefault(call, deque()).extend(faults)

    def take(self, call: str) -> Fault | None:
        """Return what happens to a call that has just come in."""
        with self.lock:
            if self.next.get(call):
                return self.next[call].popleft()
            return self.always.get(call) or self.always.get("*") or self.draw(call)


class Refusal(Exception):
    """An answer with an HTTP status above 400."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})


def denied(permission: str) -> Refusal:
    """What the place says of things that are missing, or not yours: it does not tell them apart."""
    return Refusal(403, f"Permission '{permission}' was denied")
