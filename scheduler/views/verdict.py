"""Verdict: one line that says whether training is on track, with the next session, the cost and the actions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs.size import counted
from scheduler.core.plan import Placement
from scheduler.core.quota import Meter
from scheduler.report.chart import local
from scheduler.report.report import Need
from scheduler.views.training import TrainingProgress

AT_RISK = "deadline at risk"
"""The name of the action required for a job that may miss its deadline."""

_CLEAR_SECONDS = 6 * 86_400


@dataclass(frozen=True, slots=True)
class Verdict:
    """Counts of jobs, the next session of the plan, and the budget; cancelled jobs are not counted.

    ``silent`` are ``running`` jobs with an overdue heartbeat; ``in_queue`` are jobs whose session waits in its
    platform's queue. ``late`` is the number of deadlines at risk. ``spent`` (with reservations) and ``budget`` are sums
    over the current quota windows, one quota per pool.
    """

    running: int
    silent: int
    done: int
    total: int
    needs: int
    next_job: str | None
    next_pool: str | None
    next_at: int | None
    paused: bool = False
    in_queue: int = 0
    late: int = 0
    spent_seconds: int = 0
    budget_seconds: int = 0
    spent_microdollars: int = 0
    budget_microdollars: int = 0


def verdict(
    trainings: Sequence[TrainingProgress],
    states: Mapping[str, int],
    coming: Mapping[str, Placement],
    needs: Sequence[Need],
    meters: Sequence[Meter],
    now: int,
    *,
    paused: bool = False,
) -> Verdict:
    """Return the verdict; ``coming`` is the next planned session by job, ignored while everything is ``paused``."""
    live = [one for one in trainings if one.health and one.health != "waits"]
    ahead = [(placement.start, job, placement.pool) for job, placement in coming.items() if placement.start > now]
    at, job, pool = (None, None, None) if paused else min(ahead, default=(None, None, None))
    hours, money = (
        {meter.pool: meter for meter in reversed(meters) if meter.unit == unit}.values()
        for unit in ("seconds", "microdollars")
    )
    return Verdict(
        running=len(live),
        silent=sum(one.health == "silent" for one in live),
        done=states.get("done", 0),
        total=sum(count for state, count in states.items() if state != "cancelled"),
        needs=len(needs),
        next_job=job,
        next_pool=pool,
        next_at=at,
        paused=paused,
        in_queue=sum(one.health == "waits" for one in trainings),
        late=sum(need.what == AT_RISK for need in needs),
        spent_seconds=sum(meter.used + meter.held for meter in hours),
        budget_seconds=sum(meter.limit for meter in hours),
        spent_microdollars=sum(meter.used + meter.held for meter in money),
        budget_microdollars=sum(meter.limit for meter in money),
    )


def when(at: int | None, now: int, zone: str) -> str:
    """Return an instant in short form: with the weekday within six days, with the date beyond."""
    return "" if at is None else local(at, zone, "%a %H:%M" if abs(at - now) < _CLEAR_SECONDS else "%d %b %H:%M")


def sentence(judgement: Verdict, now: int, zone: str) -> str:
    """Return the headline: on track or not, jobs, next session, budget, and actions required.

    Such as ``On track · 3 running · 4 of 7 done · next: ufm on kaggle, Sat 01:00 · 6.1 of 30.0 h spent or reserved``.
    """
    if not judgement.total:
        return "The queue is empty"
    parts = ["Paused, nothing new starts"] if judgement.paused else []
    if judgement.done == judgement.total:
        parts.append(f"All done: {counted(judgement.total, 'job')}")
    else:
        idle = not (judgement.running or judgement.in_queue or judgement.paused) and judgement.next_at is None
        troubles = [
            *([f"{judgement.silent} silent"] if judgement.silent else []),
            *([f"{counted(judgement.late, 'deadline')} at risk"] if judgement.late else []),
            *(["nothing runs and nothing is planned"] if idle else []),
        ]
        parts += [f"Not on track: {', '.join(troubles)}"] if troubles else [] if judgement.paused else ["On track"]
        parts += [] if idle else [f"{judgement.running} running" if judgement.running else "nothing runs now"]
        parts += [f"{judgement.in_queue} in a platform's queue"] if judgement.in_queue else []
        parts.append(f"{judgement.done} of {judgement.total} done")
    if judgement.next_at is not None:
        parts.append(f"next: {judgement.next_job} on {judgement.next_pool}, {when(judgement.next_at, now, zone)}")
    spent = []
    if judgement.budget_seconds:
        spent.append(f"{judgement.spent_seconds / 3_600:.1f} of {judgement.budget_seconds / 3_600:.1f} h")
    if judgement.budget_microdollars:
        spent.append(f"${judgement.spent_microdollars / 1e6:.2f} of ${judgement.budget_microdollars / 1e6:.2f}")
    parts += [f"{' and '.join(spent)} spent or reserved"] if spent else []
    parts += [f"{counted(judgement.needs, 'action')} required"] if judgement.needs else []
    return " · ".join(parts)
