"""What the place allows, and how it refuses."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Rules:
    """The limits of the place; all seconds are scheduled.

    Jobs named in ``no_capacity`` never get a machine, nor do any on ``no_capacity_types``. An image among
    ``no_images`` cannot be pulled.
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
    no_images: set[str] = field(default_factory=set)


class Refusal(Exception):
    """An answer that is an error, with AWS's code for it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
