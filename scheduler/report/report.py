"""The weekly report as data, computed from the ledger and from manifests; all renderings show it. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from jobs.grouping import grouped
from jobs.lane_report import GpuMetrics, GpuUse
from jobs.nouns.pool import Pool
from jobs.nouns.quota import MoneyQuota, RollingQuota
from jobs.nouns.window import Window
from jobs.spec import JobSpec
from scheduler.core.ledger import Charge, LedgerEntry, cost_within, fold, seconds_within
from scheduler.core.plan import Plan
from scheduler.core.quota import Meter, displayed_charges, limit_at, shows_device_hours, windows
from scheduler.core.run import Ended, Outcome, Run
from scheduler.report.facts import JobFacts, WeekFacts, started, useful_by_run
from scheduler.report.forecast import Forecast, forecast
from scheduler.report.week import jobs_of, violations

LOSING = {Outcome.FAILED, Outcome.LOST, Outcome.PREEMPTED}
"""The outcomes with which a session or a lane loses work."""

_PRODUCTIVE_MIN = 0.5  # a lower share of productive billed hours is explained in the report
_SECONDS_MIN = 360  # fewer billed seconds need no explanation
_WORDS = {
    "lost": "went into work that was lost",
    "set_up": "went into set-up",
    "overhead": "went into saving and idle time",
    "waited": "were billed while sessions waited in the platform's queue",
    "unattributed": "were used outside this scheduler",
    "running": "are reserved for sessions that still run",
}


@dataclass(frozen=True, slots=True)
class Planned:
    """The planned sessions of a job on a pool. Jobs that share their sessions are one row, named ``ucm, ufm``."""

    pool: str
    job: str
    sessions: int
    seconds: int
    steps: int


def planned(plan: Plan | None, now: int) -> tuple[Planned, ...]:
    """Return the sessions of the seven days after ``now``, each counted once."""
    result: dict[tuple[str, str], Planned] = {}
    for placement in () if plan is None else plan.placements:
        if placement.end <= now or placement.start >= now + 7 * 86_400:
            continue
        at = placement.pool, ", ".join(sorted({lane.job for lane in placement.lanes}))
        old = result.get(at, Planned(*at, 0, 0, 0))
        steps = sum(lane.steps for lane in placement.lanes)
        result[at] = Planned(*at, old.sessions + 1, old.seconds + placement.end - placement.start, old.steps + steps)
    return tuple(result[at] for at in sorted(result))


def reason(spent: "Spent", runs: Iterable[Run]) -> str:
    """Return why few hours were productive, such as ``1.1 of 1.4 h went into set-up``; empty if enough were.

    ``runs`` are the pool's runs of the week. The sentence names the newest session that lost work, with its reason.
    """
    if spent.charged < _SECONDS_MIN or spent.goodput >= _PRODUCTIVE_MIN:
        return ""
    most = max(_WORDS, key=lambda name: int(getattr(spent, name)))
    sentence = f"{getattr(spent, most) / 3_600:.1f} of {spent.charged / 3_600:.1f} h {_WORDS[most]}"
    if most not in {"lost", "overhead", "set_up"}:
        return sentence
    ended = [(run.state.at, run.key, run) for run in runs if isinstance(run.state, Ended)]
    for _, key, run in sorted(ended, reverse=True):
        for lane in run.lanes:
            if lane.outcome in LOSING:
                why = f" ({lane.message.rstrip('.')})" if lane.message else ""
                return f"{sentence}; session {key} was {_ENDS.get(str(lane.outcome), str(lane.outcome))}{why}"
    return sentence


_ENDS = {"failed": "stopped by a failure", "lost": "lost", "preempted": "stopped by its platform"}


@dataclass(frozen=True, slots=True)
class JobSpeed:
    """Measured speed of a job on a pool's device, its relative standard error, and seconds of set-up."""

    steps_per_second: float
    sigma: float
    setup_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGpus(GpuUse):
    """The use of a job's GPUs on a pool: the peak of memory, the means of the rest. It needs ``devices`` at least."""

    job: str
    pool: str
    devices: int

    @property
    def offer(self) -> str:
        """Advice for a job that uses at most half of the GPU memory; "" for other jobs."""
        if not self.gpu_memory_bytes or self.gpu_memory_bytes > self.vram_gib * 2**29:
            return ""
        partner = ", or it could share the session with another job (needs.devices = 1)" if self.devices > 1 else ""
        return f"{self.job} leaves half of the memory on {self.pool} empty, a larger batch fits{partner}"


def gpus_of(
    metrics: Mapping[tuple[str, str], GpuMetrics], pools: Mapping[str, Pool], specs: Iterable[JobSpec]
) -> tuple[JobGpus, ...]:
    """Return the use of GPUs by the jobs of ``specs``; ``metrics`` are by job and pool."""
    devices = {spec.name: spec.needs.devices_min for spec in specs}
    return tuple(
        JobGpus(job=job, pool=pool, devices=devices[job], vram_gib=pools[pool].vram_gib, **asdict(one))
        for (job, pool), one in sorted(metrics.items(), key=lambda item: item[0])
        if job in devices and pool in pools and one != GpuMetrics()
    )


@dataclass(frozen=True, slots=True)
class Need:
    """An action required of a person: its kind (``what``), its subject, why, and the command to type (``remedy``).

    It is required since ``since`` (UTC seconds), None if that is unknown.
    """

    what: str
    subject: str
    why: str
    remedy: str
    since: int | None = None


@dataclass(frozen=True, slots=True)
class JudgedVersion:
    """A version that was evaluated in the week: its result, the reason, and whether it is promoted now."""

    version: str
    verdict: str
    why: str
    in_force: bool


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """The input of a report. ``before`` is the week before ``week``; ``speeds`` are keyed by job and pool.

    Each week has only the facts known at its end; ``later`` are ledger entries booked after the end of ``week``.

    ``seen_at`` is when each checkpoint arrived, by manifest key; ``since`` is when the first job was added.
    """

    label: str
    zone: str
    now: int
    week: WeekFacts
    before: WeekFacts
    seen_at: Mapping[str, int]
    deadlines: Mapping[str, int]
    speeds: Mapping[tuple[str, str], JobSpeed]
    plan: Plan | None
    quotas: Sequence[Meter]
    needs: Sequence[Need]
    since: int | None = None
    later: Sequence[LedgerEntry] = ()
    so_far: bool = False
    judged: Sequence[JudgedVersion] = ()
    gpus: Sequence[JobGpus] = ()


@dataclass(frozen=True, slots=True)
class Spent:
    """The use of a pool's seconds. The parts from ``useful`` to ``waited`` add up to ``charged``, the billed seconds.

    ``offered`` is the share of the quota that falls into the week; ``expired`` was left unused in windows that ended in
    the week and after the first job was added. ``waited`` was billed while sessions waited in the platform's queue.
    """

    offered: int = 0
    charged: int = 0
    useful: int = 0
    set_up: int = 0
    lost: int = 0
    overhead: int = 0
    running: int = 0
    unattributed: int = 0
    waited: int = 0
    expired: int = 0
    cost_microdollars: int = 0
    sessions: int = 0
    refused_starts: int = 0

    @property
    def goodput(self) -> float:
        """Productive over billed seconds; 0 if nothing was billed."""
        return self.useful / self.charged if self.charged > 0 else 0.0


@dataclass(frozen=True, slots=True)
class PoolReport:
    """One pool in the week and in the week before. ``why`` says why few hours were productive; "" if enough were."""

    name: str
    spent: Spent
    before: Spent
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport(JobFacts):
    """One job. ``losses`` are (step, held-out loss) of the week's checkpoints; speeds are steps per hour.

    ``loss_before`` is the newest held-out loss at the start of the week, ``loss_best`` the lowest until its end.

    ``starts_from`` is the job and step that it was initialised from, ``uff-main@2590``; ``why`` explains its state.
    """

    steps: int
    steps_before: int
    steps_per_hour: float | None
    sigma: float | None
    runs: int
    resumes: int
    resumed_elsewhere: int
    checkpoints: int
    losses: tuple[tuple[int, float], ...]
    loss_before: float | None
    loss_best: float | None
    forecast: Forecast | None
    deadline: int | None

    @property
    def at_risk(self) -> bool:
        """Whether the job may miss its deadline: the late case of the forecast is after it, or it has no forecast."""
        if self.deadline is None or self.step >= self.target_step:
            return False
        return self.forecast is None or self.forecast.latest > self.deadline


_OF_FIGURES = ("name", "role", "state", "target_step", "runs", "resumes", "resumed_elsewhere", "starts_from", "why")
"""The fields of JobFigures that a JobReport copies."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a job waits, in a sentence."""

    job: str
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """The content of the weekly report. Times are UTC seconds; the week is [start, end).

    ``corrected_seconds`` is the sum of corrections booked after the end of the week. No other figure includes them, so
    that the other figures of a week never change.
    """

    label: str
    zone: str
    start: int
    end: int
    made_at: int
    total: Spent
    total_before: Spent
    pools: tuple[PoolReport, ...]
    jobs: tuple[JobReport, ...]
    quotas: tuple[Meter, ...]
    planned: tuple[Planned, ...]
    waiting: tuple[Waiting, ...]
    needs: tuple[Need, ...]
    broken_rules: tuple[str, ...]
    corrected_seconds: int = 0
    so_far: bool = False
    judged: tuple[JudgedVersion, ...] = ()
    gpus: tuple[JobGpus, ...] = ()


def report_of(facts: ReportFacts) -> Report:
    """Return the report of the week of ``facts``."""
    charges, span = fold(facts.week.entries), Window(facts.week.start, facts.week.end)
    corrected = fold([*facts.week.entries, *facts.later]) if facts.later else charges
    spent, before = _all_spent(facts, facts.week, charges), _all_spent(facts, facts.before, fold(facts.before.entries))
    return Report(
        label=facts.label,
        zone=facts.zone,
        start=facts.week.start,
        end=facts.week.end,
        made_at=facts.now,
        total=_total(spent.values()),
        total_before=_total(before.values()),
        pools=tuple(
            PoolReport(
                name, spent[name], before[name], reason(spent[name], [r for r in facts.week.runs if r.pool == name])
            )
            for name in sorted(spent)
        ),
        jobs=tuple(_job_reports(facts)),
        quotas=tuple(facts.quotas),
        planned=planned(facts.plan, facts.now),
        waiting=()
        if facts.plan is None
        else tuple(Waiting(deferral.job, deferral.reason.sentence(facts.zone)) for deferral in facts.plan.deferrals),
        needs=tuple(facts.needs),
        broken_rules=tuple(violations(replace(facts.week, entries=[*facts.week.entries, *facts.later]), corrected)),
        corrected_seconds=sum(
            seconds_within(displayed_charges(pool, corrected.get(name, ())), span)
            - seconds_within(displayed_charges(pool, charges.get(name, ())), span)
            for name, pool in facts.week.pools.items()
        ),
        so_far=facts.so_far,
        judged=tuple(facts.judged),
        gpus=tuple(facts.gpus),
    )


def _all_spent(facts: ReportFacts, week: WeekFacts, charges: Mapping[str, Sequence[Charge]]) -> dict[str, Spent]:
    return {
        name: _spent(facts, week, pool, displayed_charges(pool, charges.get(name, ())))
        for name, pool in week.pools.items()
    }


def _spent(facts: ReportFacts, week: WeekFacts, pool: Pool, charges: Sequence[Charge]) -> Spent:
    """Return the split of the billed time. Set-up is its measured duration, at most the time without training."""
    span = Window(week.start, week.end)
    charged = seconds_within(charges, span)
    unattributed = seconds_within([charge for charge in charges if charge.run is None], span)
    waited = seconds_within([charge for charge in charges if charge.waited], span)
    trained = useful_by_run(week, pool, charges)
    useful = round(sum(trained.values()))
    live = {charge.run for charge in charges if charge.held}
    kept = round(sum(seconds for key, seconds in trained.items() if key in live))
    running = max(0, seconds_within([charge for charge in charges if charge.held], span) - kept)
    set_up = lost = sessions = 0
    charged_to = grouped((charge.run, charge) for charge in charges if not charge.waited)
    for run in week.runs:
        began = started(run)
        if run.pool != pool.name or began is None:
            continue
        share = seconds_within(charged_to.get(run.key, ()), span)
        if not share:
            continue
        sessions += 1
        # Time without training counts in the week in which the session ends, its set-up in the week in which it starts.
        if run.key in live or not isinstance(run.state, Ended):
            continue
        untrained = max(0, share - round(trained[run.key]))
        speeds = [facts.speeds.get((lane.job, pool.name)) for lane in run.lanes]
        measured = max((speed.setup_seconds for speed in speeds if speed), default=pool.setup_seconds)
        measured *= run.devices if shows_device_hours(pool) else 1
        preparing = min(measured, untrained) if began >= span.start else 0
        set_up += preparing
        if any(lane.outcome in LOSING for lane in run.lanes) or run.state.outcome in LOSING:
            lost += untrained - preparing
    room = max(0, charged - running - unattributed - waited - useful)
    set_up = min(set_up, room)
    lost = min(lost, room - set_up)
    return Spent(
        offered=_offered(week, pool, charges, span, facts.since or 0),
        charged=charged,
        useful=useful,
        set_up=set_up,
        lost=lost,
        overhead=charged - running - unattributed - waited - useful - set_up - lost,
        running=running,
        unattributed=unattributed,
        waited=waited,
        expired=_expired(week, pool, charges, span, facts.since or 0),
        cost_microdollars=cost_within(charges, span),
        sessions=sessions,
        refused_starts=sum(
            1
            for run in week.runs
            if run.pool == pool.name
            and isinstance(run.state, Ended)
            and run.state.outcome is Outcome.REJECTED
            and run.state.at in span
        ),
    )


def _offered(week: WeekFacts, pool: Pool, charges: Sequence[Charge], span: Window, since: int) -> int:
    """Return the available seconds: the parts of quota windows in the week, or the opening hours without a quota.

    Nothing was available before ``since``, when the first job was added.
    """
    if since >= span.end:
        return 0
    span = Window(max(span.start, since), span.end)
    if not pool.quotas or isinstance(pool.quotas[0], MoneyQuota):
        return pool.places * sum(opening.seconds for opening in pool.open_windows(span.start, span.end))
    quota, observed = pool.quotas[0], week.observed.get(pool.name, ())
    if isinstance(quota, RollingQuota):
        return round(quota.limit_seconds * span.seconds / quota.span_seconds)
    shares = (
        limit_at(quota, window.start, observed) * span.overlap(window.start, window.end) / window.seconds
        for window in windows(quota, charges, span.start, span.end)
    )
    return round(sum(shares))


def _expired(week: WeekFacts, pool: Pool, charges: Sequence[Charge], span: Window, since: int) -> int:
    if not pool.quotas or isinstance(pool.quotas[0], MoneyQuota | RollingQuota):
        return 0
    quota, observed = pool.quotas[0], week.observed.get(pool.name, ())
    ended = [w for w in windows(quota, charges, span.start, span.end) if max(span.start, since) < w.end <= span.end]
    return sum(max(0, limit_at(quota, w.start, observed) - seconds_within(charges, w)) for w in ended)


def _total(parts: Iterable[Spent]) -> Spent:
    whole = Spent()
    for part in parts:
        whole = replace(whole, **{name: getattr(whole, name) + getattr(part, name) for name in Spent.__slots__})
    return whole


def _job_reports(facts: ReportFacts) -> Iterable[JobReport]:
    start, end = facts.week.start, facts.week.end
    measured = grouped((name, speed) for (name, _), speed in sorted(facts.speeds.items(), key=lambda item: item[0]))
    for job in jobs_of(facts.week):
        at = [(facts.seen_at.get(one.key, 0), one) for one in facts.week.saved.get(job.name, ())]
        here = [manifest for saved_at, manifest in at if start <= saved_at < end]
        # The target of a job that stopped early is its best checkpoint; it may have saved later ones.
        step, step_start, step_before = (
            min(job.target_step, next((manifest.step for saved_at, manifest in reversed(at) if saved_at < instant), 0))
            for instant in (end, start, facts.before.start)
        )
        losses = [(saved_at, loss) for saved_at, one in at if (loss := one.metrics.get("held_out_loss")) is not None]
        speeds = measured.get(job.name, [])
        best = max(speeds, key=lambda speed: speed.steps_per_second, default=None)
        sigma = max((speed.sigma for speed in speeds), default=None)
        open_ = job.state in {"queued", "active", "held"}
        yield JobReport(
            **{name: getattr(job, name) for name in _OF_FIGURES},
            step=step,
            steps=step - step_start,
            steps_before=step_start - step_before,
            steps_per_hour=best.steps_per_second * 3_600 if best else None,
            sigma=best.sigma if best else None,
            checkpoints=len(here),
            losses=tuple((m.step, loss) for m in here if (loss := m.metrics.get("held_out_loss")) is not None),
            loss_before=next((loss for saved_at, loss in reversed(losses) if saved_at < start), None),
            loss_best=min((loss for saved_at, loss in losses if saved_at < end), default=None),
            forecast=forecast(
                job.name, job.target_step - job.step, facts.plan, (step - step_start) / (end - start), sigma, facts.now
            )
            if open_
            else None,
            deadline=facts.deadlines.get(job.name) if open_ else None,
        )
