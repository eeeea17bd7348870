"""What the place allows, and what goes wrong on demand."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(slots=True)
class Rules:
    """The limits of the place; all seconds are scheduled.

    Jobs named in ``no_capacity`` never get a machine, nor do any on ``no_capacity_types``. Checkpoint folders are
    synced every ``sync_seconds``, and once more after SIGTERM if so set.
    Spot jobs lose their instance ``spot_seconds`` after they begin to train, if that is set, and begin anew on another
    ``spot_back_seconds`` later, or never; they cost ``spot_share``.
    """

    instances_max: int = 1
    queue_seconds: float = 120.0
    download_seconds: float = 60.0
    upload_seconds: float = 20.0
    grace_seconds: float = 120.0
    bill_delay_seconds: float = 0.0
    spot_seconds: float | None = None
    spot_back_seconds: float | None = None
    spot_share: float = 0.35
    no_capacity: set[str] = field(default_factory=set)
    no_capacity_types: set[str] = field(default_factory=set)
    sync_seconds: float = 60.0
    syncs_after_sigterm: bool = False


class Fault(StrEnum):
    """What can happen to one call."""

    THROTTLED = "ThrottlingException"
    SERVER_ERROR = "500"
    DROP = "connection closed before anything was done"
    DROP_AFTER_COMMIT = "connection closed after it was done"
    ERROR_AFTER_COMMIT = "500 after it was done"


@dataclass(slots=True)
class Faults:
    """Faults to come. ``next`` holds, by operation (``CreateTrainingJob``), what happens to the next calls of it.

    ``always`` happens to every call, to S3 and CloudWatch too. ``draw`` is asked for every other call to SageMaker.
    """

    next: dict[str, deque[Fault]] = field(default_factory=dict)
    always: Fault | None = None
    draw: Callable[[str], Fault | None] = lambda _operation: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, operation: str, *faults: Fault) -> None:
        """Let ``faults`` happen to the next calls of that operation, in this order."""
        with self.lock:
            self.next.setdefault(operation, deque()).extend(faults)

    def take(self, operation: str) -> Fault | None:
        """Return what happens to a call that has just come in; ``operation`` is empty for other services."""
        with self.lock:
            if self.next.get(operation):
                return self.next[operation].popleft()
            return self.always or (self.draw(operation) if operation else None)


class Refusal(Exception):
    """An answer that is an error, with AWS's code for it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
