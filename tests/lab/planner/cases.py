"""Instances: the seeds' own week and random ones of any size, always the same for the same seed.

Overheads are set-up alone (checkpoints and stop margin cost nothing), so that plans compare with the linear bound
of the study these figures go back to. A step is a second on the reference device.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import DAY, HOUR, WEEK, Calendar, DailyHours
from jobs.spec import Gate, Needs
from scheduler.core.snapshot import JobView, PoolView, Rate, Snapshot

# Saturday 22 November 2025, 00:00 UTC: Kaggle's week and everybody's day begin.
EPOCH = 1_763_769_600

KAGGLE = Pool(
    "kaggle",
    "kaggle",
    "T4",
    (CalendarQuota("week", 30 * HOUR, Calendar("week", "UTC", 5)),),
    sessions_max=2,
    stop_margin_seconds=0,
)
SAGEMAKER = Pool(
    "sagemaker",
    "sagemaker",
    "T4",
    (CalendarQuota("day", 4 * HOUR, Calendar("day")),),
    session_cap_seconds=4 * HOUR,
    stop_margin_seconds=0,
)
LOCAL = Pool(
    "local", "local", "3090", hours=(DailyHours("UTC", 20 * HOUR, 8 * HOUR),), sessions_max=2, stop_margin_seconds=0
)
SLURM = Pool(
    "slurm",
    "slurm",
    "A100",
    (CalendarQuota("week", 100 * HOUR, Calendar("week", "UTC", 5)),),
    sessions_max=4,
    session_cap_seconds=8 * HOUR,
    stop_margin_seconds=0,
)
# Of fifty pools: the mix that offers 2,510 hours a week.
MIX = ((KAGGLE, 25), (SAGEMAKER, 15), (LOCAL, 5), (SLURM, 5))
SMALL_MIX = ((KAGGLE, 2), (SAGEMAKER, 2), (LOCAL, 1), (SLURM, 1))

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class PerKind(Mapping[str, V]):
    """One value per kind of pool: a hundred thousand jobs on a thousand pools in little memory."""

    kinds: Mapping[str, int]
    values_by_kind: tuple[V | None, ...]

    def __getitem__(self, pool: str) -> V:
        found = self.values_by_kind[self.kinds[pool]]
        if found is None:
            raise KeyError(pool)
        return found

    # A dict answers both as directly; what Mapping makes of them raises and catches a KeyError.
    def get(self, pool: str, default: Any = None, /) -> Any:
        """Return the value for ``pool``, or ``default`` where there is none."""
        kind = self.kinds.get(pool)
        found = None if kind is None else self.values_by_kind[kind]
        return default if found is None else found

    def __contains__(self, pool: object) -> bool:
        kind = self.kinds.get(pool) if isinstance(pool, str) else None
        return kind is not None and self.values_by_kind[kind] is not None

    def __iter__(self) -> Iterator[str]:
        return (pool for pool, kind in self.kinds.items() if self.values_by_kind[kind] is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def seed_case(weeks: int, *, gated: bool, lanes: int = 1) -> Snapshot:
    """The seeds' models: main and six managers on one Kaggle account and one SageMaker budget."""
    pools = (replace(KAGGLE, devices_per_session=lanes), SAGEMAKER)

    def job(name: str, weight: float, hours: float, setup_hours: float, speedup: float) -> JobView:
        names = [pool.name for pool in pools]
        return JobView(
            name=name,
            weight=weight,
            target_step=int(hours * weeks * HOUR),
            done_step=0,
            needs=Needs(),
            rates={"kaggle": Rate(speedup), "sagemaker": Rate(1.0)},
            setup_seconds=dict.fromkeys(names, int(setup_hours * HOUR)),
            checkpoint_seconds=dict.fromkeys(names, 0),
            gate=Gate("main", 0.4) if gated and name != "main" else None,
            reference_rate=1.0,
        )

    managers = zip(("ufm", "ucm", "urm", "ulm", "uim", "uam"), (4, 4, 3, 3, 2, 2), strict=True)
    jobs = (job("main", 8, 60, 0.35, 1.6), *(job(name, weight, 12, 0.2, 1.2) for name, weight in managers))
    return Snapshot(EPOCH, jobs, tuple(PoolView(pool) for pool in pools), weeks * WEEK)


def make_pools(mix: tuple[tuple[Pool, int], ...], copies: int = 1) -> list[Pool]:
    """Return numbered pools of each kind, ``copies`` times the mix."""
    return [replace(pool, name=f"{pool.name}-{number:04d}") for pool, count in mix for number in range(count * copies)]


def random_case(jobs: int, pools: list[Pool], seed: int) -> Snapshot:
    """Return ``jobs`` jobs in families of seven with gates, late releases, deadlines and forbidden kinds."""
    rng = random.Random(seed)
    kinds = ("kaggle", "sagemaker", "local", "slurm")
    kind_of = {pool.name: kinds.index(pool.platform) for pool in pools}
    views = []
    speeds: tuple[float, ...] = ()
    for number in range(jobs):
        main = number % 7 == 0
        if main:
            speeds = tuple(base * rng.uniform(0.8, 1.25) for base in (1.3, 1.0, 0.9, 2.0))
        setup = rng.randrange(360, 1_801)
        hours = rng.lognormvariate(2.302585, 0.8)
        forbidden = [rng.random() < 0.15 for _ in kinds]
        if all(forbidden):
            forbidden[rng.randrange(len(kinds))] = False
        release = EPOCH + int(rng.uniform(0, 5) * DAY) if rng.random() < 0.2 else None
        deadline = None
        if rng.random() < 0.3:
            earliest = (release or EPOCH) + int(hours * HOUR)
            deadline = earliest + int(rng.uniform(0.25, 4) * DAY)
        gated = not main and rng.random() < 0.5
        views.append(
            JobView(
                name=f"job-{number:06d}",
                weight=rng.choice((4.0, 6.0, 8.0)) if main else rng.choice((1.0, 2.0, 3.0, 4.0)),
                target_step=max(HOUR // 2, int(hours * HOUR)),
                done_step=0,
                needs=Needs(),
                rates=PerKind(
                    kind_of,
                    tuple(None if no else Rate(speed) for no, speed in zip(forbidden, speeds, strict=True)),
                ),
                setup_seconds=PerKind(kind_of, (setup,) * len(kinds)),
                checkpoint_seconds=PerKind(kind_of, (0,) * len(kinds)),
                gate=Gate(f"job-{number - number % 7:06d}", rng.uniform(0.2, 0.5)) if gated else None,
                not_before=release,
                deadline=deadline,
                reference_rate=1.0,
                position=number,
            )
        )
    return Snapshot(EPOCH, tuple(views), tuple(PoolView(pool) for pool in pools), WEEK)
