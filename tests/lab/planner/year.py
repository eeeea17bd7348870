"""What a simulated year is made of: the models that are trained, their sessions, and what it all came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jobs.nouns.window import HOUR

FAILURES = {"kaggle": 1 / (30 * HOUR), "sagemaker": 1 / (12 * HOUR)}
SAVE_SECONDS = {"kaggle": 180, "sagemaker": 60}
MARGIN_SECONDS = 120


def saves_of(
    times: Sequence[float], setup: float, save: float, left: float, dies: float
) -> tuple[list[tuple[float, float]], bool]:
    """Return (second, useful seconds kept by then) of each save that is through before a session dies.

    ``times`` are the seconds at which saves should begin, ``left`` the useful seconds that finish the job: it saves at
    once then, and the second value is true.
    """
    saves: list[tuple[float, float]] = []
    useful, previous = 0.0, setup
    for begin in times:
        interval = min(begin - previous, left - useful)
        useful, previous = useful + interval, previous + interval + save
        if previous > dies:
            break
        saves.append((previous, useful))
        if useful >= left:
            return saves, True
    return saves, False


@dataclass(slots=True)
class Model:
    """One job of the simulated year; steps are seconds on the reference device."""

    name: str
    main: bool
    weight: float
    target: int
    arrived: int
    setup: int
    believed: dict[str, float]
    true: dict[str, float]
    done: int = 0
    finished_at: int | None = None
    running: str | None = None
    last_pool: str | None = None
    sigma: float = 0.0  # of the believed speed


@dataclass(slots=True)
class Live:
    """A session that runs: what it will have saved, and when it really ends."""

    key: str
    model: Model
    pool: str
    start: int
    planned_end: int
    end: int
    setup: float
    saves: list[tuple[float, float]]  # (seconds after the start, useful seconds kept by then)
    complete: bool  # the last of them finishes the model

    @property
    def useful_seconds(self) -> float:
        """What it will have kept."""
        return self.saves[-1][1] if self.saves else 0.0

    @property
    def spent(self) -> dict[str, float]:
        """Where its seconds go; they add up to its length."""
        length = float(self.end - self.start)
        setup = min(self.setup, length)
        useful, saving = self.useful_seconds, len(self.saves) * SAVE_SECONDS[self.pool]
        tail = length - setup - useful - saving
        whole = self.complete or self.end == self.planned_end
        return {"useful": useful, "set-up": setup, "saving": saving, "margin" if whole else "lost": tail}

    def cut(self, instant: int) -> None:
        """End it at ``instant``: what is not saved by then is lost."""
        if instant < self.end:
            kept = [found for found in self.saves if found[0] <= instant - self.start]
            self.complete &= len(kept) == len(self.saves)
            self.saves, self.end = kept, instant


@dataclass(slots=True)
class Year:
    """What a year came to, in seconds and days."""

    quota_seconds: float = 0.0
    charged_seconds: float = 0.0
    useful_seconds: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)  # of the charged seconds, on what
    limit_seconds: float = 0.0  # what the stochastic limit would have kept of the charged mix
    flow: list[tuple[float, float]] = field(default_factory=list)  # weight, days
    finished: int = 0

    @property
    def goodput(self) -> float:
        """Useful seconds kept per second of quota."""
        return self.useful_seconds / self.quota_seconds

    @property
    def shares(self) -> dict[str, float]:
        """What became of the quota: trained and kept, set-up, saving, lost to failures, stop margins, never used."""
        spent = {name: seconds / self.quota_seconds for name, seconds in self.spent.items()}
        return spent | {"unused": 1.0 - self.charged_seconds / self.quota_seconds}

    @property
    def limit(self) -> float:
        """The stochastic limit of useful seconds per second of quota for the same mix."""
        return self.limit_seconds / self.charged_seconds

    @property
    def weighted_flow_days(self) -> float:
        """Mean days in the system, by weight; unfinished jobs count until the year's end."""
        return sum(weight * days for weight, days in self.flow) / sum(weight for weight, _ in self.flow)

    @property
    def tail_days(self) -> float:
        """Days in the system that 95 of 100 jobs do not exceed; unfinished jobs count until the year's end."""
        days = sorted(days for _, days in self.flow)
        return days[int(0.95 * (len(days) - 1))]
