"""Verdict: in one line, whether training goes well, what comes next and whether a person is needed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from jobs.plural import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scheduler.core.plan import Placement
    from scheduler.views.training import Training

_CLEAR_SECONDS = 6 * 86_400


@dataclass(frozen=True, slots=True)
class Verdict:
    """Counts of jobs, and the next session that the plan has; cancelled jobs count nowhere.

    ``silent`` are those of the ``running`` whose last word is late; ``in_queue`` are jobs whose session waits in its
    platform's queue, which do not run.
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


def verdict(
    trainings: Sequence[Training],
    states: Mapping[str, int],
    coming: Mapping[str, Placement],
    needs: int,
    now: int,
    *,
    paused: bool = False,
) -> Verdict:
    """Return it; ``coming`` has the next planned session of jobs. While everything is ``paused`` none comes."""
    live = [one for one in trainings if one.health and one.health != "waits"]
    ahead = [(placement.start, job, placement.pool) for job, placement in coming.items() if placement.start > now]
    at, job, pool = (None, None, None) if paused else min(ahead, default=(None, None, None))
    return Verdict(
        running=len(live),
        silent=sum(one.health == "silent" for one in live),
        done=states.get("done", 0),
        total=sum(count for state, count in states.items() if state != "cancelled"),
        needs=needs,
        next_job=job,
        next_pool=pool,
        next_at=at,
        paused=paused,
        in_queue=sum(one.health == "waits" for one in trainings),
    )


def sentence(found: Verdict, now: int, zone: str) -> str:
    """Return the line, as ``3 running, all well · 4 of 7 done · next: ufm on kaggle, Sat 01:00 · needs you: 1``."""
    if not found.total:
        return "The queue is empty"
    if found.running:
        well = f"{found.silent} silent" if found.silent else "all well" if found.running > 1 else "well"
        first = f"{found.running} running, {well}"
    elif found.done == found.total:
        jobs = counted(found.total, "job")
        first = f"All {jobs} trained" if found.needs else f"All done: {jobs}"
    else:
        first = "Nothing runs"
    if found.in_queue:
        first += f", {found.in_queue} in a platform's queue"
    parts = ["Paused, nothing new starts", first] if found.paused else [first]
    if found.done < found.total:
        parts.append(f"{found.done} of {found.total} done")
    if found.next_at is not None:
        local = datetime.fromtimestamp(found.next_at, UTC).astimezone(ZoneInfo(zone))
        form = "%a %H:%M" if found.next_at - now < _CLEAR_SECONDS else "%d %b %H:%M"
        parts.append(f"next: {found.next_job} on {found.next_pool}, {local.strftime(form)}")
    if found.needs:
        parts.append(f"needs you: {found.needs}")
    return " · ".join(parts)
