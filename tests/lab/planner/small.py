"""Small cases for tests: one Kaggle account, one SageMaker budget, a few jobs; or one box and six jobs."""

from __future__ import annotations

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import DAY, HOUR, WEEK, Calendar
from jobs.spec import Needs
from scheduler.core.snapshot import JobView, PoolView, Rate, Snapshot
from tests.lab.planner.cases import EPOCH, KAGGLE, SAGEMAKER

_BOX = Pool("box", "fake", "gpu", (CalendarQuota("day", 4 * HOUR, Calendar("day")),), session_cap_seconds=2 * HOUR)


def job(name: str, weight: float, hours: float, speedup: float = 1.2) -> JobView:
    """Return a job of ``hours`` at a step a second, ``speedup`` times as fast on Kaggle, with 12 minutes of set-up."""
    return JobView(
        name=name,
        weight=weight,
        target_step=int(hours * HOUR),
        done_step=0,
        needs=Needs(),
        rates={"kaggle": Rate(speedup), "sagemaker": Rate(1.0)},
        setup_seconds={"kaggle": 720, "sagemaker": 720},
        checkpoint_seconds={"kaggle": 0, "sagemaker": 0},
        reference_rate=1.0,
    )


def seed_week() -> Snapshot:
    """The main model and six managers; main's hours on Kaggle are worth more than anybody's."""
    managers = tuple(job(f"m{n}", weight, 12) for n, weight in enumerate((4, 4, 3, 3, 2, 2)))
    return Snapshot(EPOCH, (job("main", 8, 60, 1.6), *managers), (PoolView(KAGGLE), PoolView(SAGEMAKER)), WEEK)


def crowded_box(weight: float = 1.0) -> Snapshot:
    """Six jobs of nine hours, each a little dearer than the one before, and one box of four hours a day."""
    jobs = tuple(
        JobView(f"j{n}", weight + n, 9 * HOUR, 0, Needs(), {"box": Rate(1.0)}, {"box": 300}, {"box": 30})
        for n in range(6)
    )
    return Snapshot(EPOCH // DAY * DAY, jobs, (PoolView(_BOX),))
