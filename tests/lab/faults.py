"""Faults of an emulator: what goes wrong with its calls on demand."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Fault(StrEnum):
    """What can happen to one call. SageMaker's emulator knows those that may happen to any."""

    THROTTLED = "too many requests"
    SERVER_ERROR = "500"
    DROP = "connection closed before anything was done"
    DROP_AFTER_COMMIT = "connection closed after it was done"
    ERROR_AFTER_COMMIT = "500 after it was done"
    # Kaggle's alone:
    THROTTLED_LATER = "429 with Retry-After"
    THROTTLED_PAGE = "429 as a page of HTML that says it is JSON"
    FORBIDDEN = "403"
    PAGE = "200 with a page of HTML"
    HANG = "no answer"
    EMPTY = "200 with an empty object before anything was done"


@dataclass(slots=True)
class Faults:
    """Faults to come. ``next`` holds, by name of a call (``SaveKernel``), what happens to the next ones.

    ``always`` happens to every call named (``*``: all, those of other services too). ``draw`` is asked for every other
    call that has a name. ``twist`` is shown the answer of a call that was carried out and returns the body that is sent
    in its place with a good status, or None to leave it.
    """

    next: dict[str, deque[Fault]] = field(default_factory=dict)
    always: dict[str, Fault] = field(default_factory=dict)
    draw: Callable[[str], Fault | None] = lambda _call: None
    twist: Callable[[str, Mapping[str, Any]], bytes | None] = lambda _call, _answer: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, call: str, *faults: Fault) -> None:
        """Let ``faults`` happen to the next calls of that name, in this order."""
        with self.lock:
            self.next.setdefault(call, deque()).extend(faults)

    def take(self, call: str) -> Fault | None:
        """Return what happens to a call that has just come in; ``call`` is empty for one without a name."""
        with self.lock:
            if self.next.get(call):
                return self.next[call].popleft()
            return self.always.get(call) or self.always.get("*") or (self.draw(call) if call else None)
