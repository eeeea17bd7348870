"""The figures of a week, computed from the ledger and from manifests, not from plans. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from jobs.grouping import grouped
from jobs.nouns.pool import Pool
from jobs.nouns.quota import MoneyQuota, Quota, RollingQuota
from jobs.nouns.window import Window
from jobs.payload.store.manifest import Manifest, split_key
from jobs.size import counted
from scheduler.core.ledger import Charge, cost_within, fold, seconds_within
from scheduler.core.quota import charged_within, displayed_charges, limit_at, windows
from scheduler.core.reasons import show
from scheduler.core.run import Ended, Lane, Outcome, Run, lane_seconds
from scheduler.report.facts import JobFacts, WeekFacts, metered, useful_by_run

_WHY_CHARACTERS = 300
_OF_LANES = (
    "job",
    "attempt",
    "devices",
    "begun_at",
    "restore_step",
    "end_step",
    "outcome",
)  # fields of a lane in the JSON of a run
_REFUSED_MIN = 2  # a single refusal may have a passing cause, such as a busy account


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """One quota window, with its limit and the billed time in it, both in seconds."""

    quota: str
    start: int
    end: int
    limit_seconds: int
    charged_seconds: int


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """One pool. ``quota_seconds`` is the limit of its windows, or its opening hours if it has no quota."""

    name: str
    quota_seconds: int
    charged_seconds: int
    cost_microdollars: int
    useful_seconds: int
    lane_seconds: int
    windows: tuple[WindowFigures, ...]
    launches: "Launches"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures(JobFacts):
    """One job. ``loss_first`` is the held-out loss before its first step, else at its first checkpoint.

    ``starts_from`` is the job and step that it was initialised from, ``uff-main@2590``; ``loss_parent`` is its loss.
    """

    runs: int
    pools: tuple[str, ...]
    resumes: int
    resumed_elsewhere: int
    checkpoints: int
    loss_parent: float | None
    loss_first: float | None
    loss_last: float | None


@dataclass(frozen=True, slots=True)
class Week:
    """All figures of a week."""

    start: int
    end: int
    scale: float
    violations: tuple[str, ...]
    pools: tuple[PoolFigures, ...]
    jobs: tuple[JobFigures, ...]
    runs: tuple[Run, ...]

    @property
    def barred(self) -> tuple[str, ...]:
        """Pools that were closed or refused all their launches, each with the reason."""
        return tuple(f"{pool.name}: {pool.launches.why_idle}" for pool in self.pools if pool.launches.barred)

    @property
    def charged_seconds(self) -> int:
        """Billed seconds of all pools."""
        return sum(pool.charged_seconds for pool in self.pools)

    @property
    def useful_seconds(self) -> int:
        """Billed seconds whose training is in surviving checkpoints; see :mod:`scheduler.report.facts`."""
        return sum(pool.useful_seconds for pool in self.pools)

    @property
    def goodput(self) -> float:
        """Productive seconds divided by billed seconds; 0 if nothing was billed."""
        charged = sum(max(0, pool.charged_seconds) for pool in self.pools)
        return self.useful_seconds / charged if charged else 0.0

    @property
    def shared_runs(self) -> int:
        """Sessions that trained more than one job at once."""
        began = (sum(lane.begun_at is None for lane in run.lanes) for run in self.runs if metered(run) is not None)
        return sum(lanes > 1 for lanes in began)

    @property
    def continued(self) -> int:
        """How often a job continued in a running session after another job had ended."""
        return sum(lane.begun_at is not None for run in self.runs for lane in run.lanes)


def week_of(facts: WeekFacts) -> Week:
    """Return all figures of the week, with a sentence for each rule that it broke."""
    charges = fold(facts.entries)
    return Week(
        start=facts.start,
        end=facts.end,
        scale=facts.scale,
        violations=tuple(violations(facts, charges)),
        pools=tuple(_pool_figures(facts, pool, charges.get(pool.name, ())) for pool in facts.pools.values()),
        jobs=jobs_of(facts),
        runs=tuple(sorted(facts.runs, key=lambda run: (run.planned_start, run.key))),
    )


def jobs_of(facts: WeekFacts) -> tuple[JobFigures, ...]:
    """Return the figures of the jobs alone."""
    by_start = sorted(facts.runs, key=lambda run: run.planned_start)
    trained = ((run, lane) for run in by_start for lane in run.lanes if lane.outcome is not Outcome.REJECTED)
    lanes = grouped((lane.job, (run, lane)) for run, lane in trained)
    homes, saved = {run.key: run.pool for run in facts.runs}, facts.saved
    parents = {named[0] for job in facts.jobs if (named := split_key(job.starts_from or ""))}
    by_key = {manifest.key: manifest for parent in parents for manifest in saved.get(parent, ())}
    return tuple(
        _job_figures(job, lanes.get(job.name, ()), saved.get(job.name, ()), by_key.get(job.starts_from or ""), homes)
        for job in facts.jobs
    )


def _pool_figures(facts: WeekFacts, pool: Pool, charges: Sequence[Charge]) -> PoolFigures:
    rows = tuple(
        WindowFigures(
            quota=quota.name,
            start=window.start,
            end=window.end,
            limit_seconds=limit_at(quota, window.start, facts.observed.get(pool.name, ())),
            charged_seconds=charged_within(quota, charges, window),
        )
        for quota in pool.quotas
        if not isinstance(quota, MoneyQuota)
        for window in _windows(quota, charges, facts.start, facts.end)
    )
    charges, week = displayed_charges(pool, charges), Window(facts.start, facts.end)
    first = pool.quotas[0].name if pool.quotas else None
    offered = sum(window.limit_seconds for window in rows if window.quota == first and window.start < facts.end)
    if not offered:
        openings = pool.open_windows(facts.start, facts.end)
        offered = pool.places * sum(opening.seconds for opening in openings)
    return PoolFigures(
        name=pool.name,
        quota_seconds=offered,
        charged_seconds=seconds_within(charges, week),
        cost_microdollars=cost_within(charges, week),
        useful_seconds=round(sum(useful_by_run(facts, pool, charges).values())),
        lane_seconds=sum(
            lane_seconds(run.lanes, *interval)[lane.index] // max(1, len(lane.devices))
            for run in facts.runs
            if run.pool == pool.name and (interval := metered(run))
            for lane in run.lanes
        ),
        windows=rows,
        launches=launches_on(pool.name, facts.runs, facts.closed.get(pool.name)),
    )


def _windows(quota: Quota, charges: Sequence[Charge], start: int, end: int) -> list[Window]:
    """Return the quota windows of the week; for a rolling quota only the span with the most billed time."""
    if not isinstance(quota, RollingQuota):
        return [window for window in windows(quota, charges, start, end) if window.end > start]
    near = [charge for charge in charges if charge.end > start - quota.span_seconds and charge.start < end]
    ends = sorted({min(charge.end, end) for charge in near if charge.end > start} | {start + quota.span_seconds})
    spans = [Window(instant - quota.span_seconds, instant) for instant in ends]
    return [max(spans, key=lambda span: charged_within(quota, near, span))]


def _job_figures(
    job: JobFacts,
    lanes: Sequence[tuple[Run, Lane]],
    saved: Sequence[Manifest],
    parent: Manifest | None,
    homes: Mapping[str, str],
) -> JobFigures:
    """Return the figures of a job from its ``lanes`` by start and ``saved`` checkpoints by step.

    ``homes`` is the pool of each run; ``parent`` is the checkpoint that the job was initialised from.
    """
    losses = [loss for manifest in saved if (loss := manifest.metrics.get("held_out_loss")) is not None]
    begins = (loss for manifest in saved if (loss := manifest.metrics.get("start_held_out_loss")) is not None)
    # The parent of a lane's first checkpoint proves which checkpoint the lane continued.
    continued: dict[tuple[str, int], str | None] = {}
    for manifest in saved:
        continued.setdefault((manifest.run, manifest.lane), manifest.parent)
    runs_of = {manifest.key: manifest.run for manifest in saved} if lanes else {}
    resumes = moves = 0
    for run, lane in lanes:
        started_from = continued.get((run.key, lane.index))
        if started_from is None:
            continue
        resumes += 1
        if homes.get(runs_of.get(started_from, "")) not in {None, run.pool}:
            moves += 1
    own = {name: getattr(job, name) for name in JobFacts.__slots__}
    own["starts_from"] = None if parent is None else f"{parent.job}@{parent.step}"
    return JobFigures(
        **own,
        runs=len(lanes),
        pools=tuple(dict.fromkeys(run.pool for run, _ in lanes)),
        resumes=resumes,
        resumed_elsewhere=moves,
        checkpoints=len(saved),
        loss_parent=None if parent is None else parent.metrics.get("held_out_loss"),
        loss_first=next(begins, losses[0] if losses else None),
        loss_last=losses[-1] if losses else None,
    )


def violations(facts: WeekFacts, charges: Mapping[str, Sequence[Charge]]) -> Iterable[str]:
    """Yield a sentence for each broken rule."""
    for pool in facts.pools.values():
        for quota in pool.quotas:
            is_money = isinstance(quota, MoneyQuota)  # shown with all digits: a budget may be exceeded by little
            for window in _windows(quota, charges.get(pool.name, ()), facts.start, facts.end):
                limit = limit_at(quota, window.start, facts.observed.get(pool.name, ()))
                charged = charged_within(quota, charges.get(pool.name, ()), window)
                if charged - _told_too_late(facts, pool.name, window) > limit:
                    used, allowed = (f"${n / 1_000_000:.6f}" if is_money else f"{n} s" for n in (charged, limit))
                    yield (
                        f"quota: {pool.name} was charged {used} of {allowed} of {quota.name} "
                        f"in the window from {show(window.start)} to {show(window.end)}"
                    )
        yield from _session_violations(facts, pool)
    yield from _backward_checkpoints(facts)
    yield from _overlapping_attempts(facts.manifests)


def _told_too_late(facts: WeekFacts, pool: str, window: Window) -> int:
    """Return the seconds of a window that no run explains and that were reported after the last launch in it.

    They were used outside this scheduler, and no launch could consider them.
    """
    launched = (run.planned_start for run in facts.runs if run.pool == pool and metered(run))
    last = max((start for start in launched if start in window), default=window.start)
    return sum(
        window.overlap(entry.start, entry.end)
        for entry in facts.entries
        if entry.pool == pool and entry.run is None and not entry.credit and entry.at > last
    )


def _session_violations(facts: WeekFacts, pool: Pool) -> Iterable[str]:
    sessions = [(interval, run) for run in facts.runs if run.pool == pool.name and (interval := metered(run))]
    for (start, end), run in sessions:
        if end - start > pool.session_cap_seconds + pool.overrun_seconds:
            yield f"session: {run.key} ran {end - start} s, the cap of {pool.name} is {pool.session_cap_seconds} s"
        at_once = [other for (other_start, other_end), other in sessions if other_start <= start < other_end]
        if sum(pool.places_of(other.devices) for other in at_once) > pool.places:
            live = counted(len(at_once), "session")
            allowed = f"{counted(pool.places, 'device')}" if pool.device_counts else f"{pool.places}"
            yield f"concurrency: {live} on {pool.name} at {show(start)}, allowed are {allowed}"


def _backward_checkpoints(facts: WeekFacts) -> Iterable[str]:
    """Yield a sentence for each checkpoint whose step is not above that of the previous one in its generation."""
    pairs = (((one.job, bisect_right(facts.firsts.get(one.job, ()), one.attempt)), one) for one in facts.manifests)
    for (job, _), saved in grouped(pairs).items():
        for before, after in pairwise(sorted(saved, key=lambda one: (one.attempt, one.created_at, one.step))):
            if after.step <= before.step:
                yield f"checkpoint: {job} went from step {before.step} back to {after.step} in {after.run}"


def _overlapping_attempts(manifests: Sequence[Manifest]) -> Iterable[str]:
    """Yield a sentence if an attempt saved after a later attempt had saved: the job ran twice at the same time."""
    newest: dict[str, Manifest] = {}
    for manifest in sorted(manifests, key=lambda manifest: (manifest.created_at, manifest.attempt, manifest.step)):
        before = newest.get(manifest.job)
        if before is not None and manifest.attempt < before.attempt:
            yield f"twice: {manifest.run} saved {manifest.job} at step {manifest.step} after {before.run} had begun"
        else:
            newest[manifest.job] = manifest


def to_json(week: Week) -> dict[str, Any]:
    """Return the documented shape of ``week.json``."""
    return {
        "scale": week.scale,
        "hours": (week.end - week.start) / 3_600,
        "start": week.start,
        "end": week.end,
        "violations": list(week.violations),
        "barred": list(week.barred),
        "goodput": round(week.goodput, 4),
        "pools": [
            {
                **asdict(pool),
                "launches": pool.launches.launches,
                "refused_launches": pool.launches.refused,
                "last_refusal": pool.launches.last_refusal,
                "why_idle": pool.launches.why_idle,
            }
            for pool in week.pools
        ],
        "jobs": [asdict(job) for job in week.jobs],
        "runs": [
            {
                "key": run.key,
                "pool": run.pool,
                "lanes": [{name: getattr(lane, name) for name in _OF_LANES} for lane in run.lanes],
                **dict(zip(("start", "end"), metered(run) or (None, None), strict=True)),
                "outcome": run.state.outcome if isinstance(run.state, Ended) else None,
            }
            for run in week.runs
        ],
    }


# Launches by pool: how many were refused, and why a pool had no session.
@dataclass(frozen=True, slots=True)
class Launches:
    """How many launches a pool had, and how many of them never became a session.

    A launch that failed after its own deadline does not count, because earlier calls used its time and the pool did not
    refuse it. ``why_idle`` is empty if a session ran. ``barred``: the pool was closed or refused all launches.
    """

    launches: int
    refused: int
    last_refusal: str
    why_idle: str
    barred: bool


def launches_on(pool: str, runs: Sequence[Run], closed: str | None) -> Launches:
    """Return the outcomes of the launches on ``pool``; ``closed`` is why it is closed, None if it is open."""
    late = [run for run in runs if isinstance(run.state, Ended) and _rejected(run) and run.state.at >= run.deadline]
    mine = [run for run in runs if run.pool == pool and run not in late]
    refused = [run for run in mine if _rejected(run)]
    last = next((lane.message for run in reversed(refused) for lane in run.lanes if lane.message), "")[:_WHY_CHARACTERS]
    if len(mine) > len(refused):
        return Launches(len(mine), len(refused), last, "", barred=False)
    if closed is not None:
        tried = f"{_of(len(refused))} refused; it is closed: " if refused else "it is closed: "
        return Launches(len(mine), len(refused), last, tried + closed[:_WHY_CHARACTERS], barred=True)
    if refused:
        why = f"{_of(len(refused))} refused, the last: {last}"
        return Launches(len(mine), len(refused), last, why, barred=len(refused) >= _REFUSED_MIN)
    return Launches(0, 0, "", "no session was planned there", barred=False)


def _rejected(run: Run) -> bool:
    return isinstance(run.state, Ended) and run.state.outcome is Outcome.REJECTED


def _of(many: int) -> str:
    return "its only launch was" if many == 1 else f"all of its {many} launches were"
