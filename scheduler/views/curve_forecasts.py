"""Curve forecasts: the future of a job's metric, the gain of more hours, and the jobs that deserve more hours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from statistics import median
from typing import Literal

from sqlalchemy import Connection

from jobs.advice.job import could_use_tpu
from jobs.nouns.pool import Pool
from jobs.nouns.window import HOUR, WEEK
from jobs.size import counted
from jobs.spec import JobSpec
from scheduler.core.learning_curve import POINTS_MIN, REACH, Band, LearningCurve, forecast_of
from scheduler.core.plan import Plan
from scheduler.report.forecast import forecast
from scheduler.report.report import JobGpus, gpus_of
from scheduler.service.facts.early_stops import measured
from scheduler.store import ledger, series
from scheduler.store.checkpoints import CheckpointRecord
from scheduler.store.jobs import JobRecord
from scheduler.views.coming_week import ComingWeek
from scheduler.views.training import TrainingProgress

HOURS = 5.0
_DRAWN = 24  # number of bands of a drawn curve
_LESS_IS_MORE = ("loss", "error", "perplexity")  # parts of the names of metrics that are good when they are low
_HOPELESS = 0.05  # the advice is to stop a job whose goal is less probable than this
_NOTHING, _LITTLE, _MUCH = 0.001, 0.005, 0.01  # gains, as shares of the metric
Verdict = Literal["stop", "grow", "halve", "keep", ""]


@dataclass(frozen=True, slots=True)
class Bought:
    """The effect of more hours: ``steps``, and the metric after them. ``gain`` is positive for an improvement."""

    hours: float
    steps: int
    band: Band
    gain: float
    gain_per_hour: float


@dataclass(frozen=True, slots=True)
class JobForecast:
    """The forecast of a job's metric from its ``points``, (step, metric) of checkpoints; without one, ``why`` says so.

    ``now`` is the smoothed metric at the newest checkpoint, ``target`` the forecast at the target step, which is
    reached at ``done_at`` (UTC seconds). ``goal`` is the value that a stop rule or a quality gate requires (see
    ``goal_of``). The job reaches it by the target step with the probability ``chance``, expected at ``goal_step``.
    """

    job: str
    metric: str
    aim: Literal["high", "low"]
    target_step: int
    points: tuple[tuple[int, float], ...]
    why: str = ""
    now: float | None = None
    bands: tuple[Band, ...] = ()
    target: Band | None = None
    done_at: int | None = None
    goal: float | None = None
    goal_of: Literal["stop rule", "quality gate", ""] = ""
    chance: float | None = None
    goal_step: int | None = None
    goal_at: int | None = None
    bought: Bought | None = None


@dataclass(frozen=True, slots=True)
class JobAdvice:
    """The advice for one job. ``free_hours`` are the unused hours of the coming week that it could use.

    ``free`` is the effect of these hours. ``used_hours`` are its device hours of the last seven days, ``used_steps``
    and ``used_gain`` their effect. ``command`` carries out the verdict; the verdict "keep" has none.
    """

    forecast: JobForecast
    free_hours: float
    free: Bought | None
    used_hours: float
    used_steps: int
    used_gain: float | None
    verdict: Verdict = ""
    why: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True)
class HoursAdvice:
    """The jobs, ordered by the gain of ``hours`` more hours as a share of the metric, highest gain first.

    ``free_hours`` are the unused hours of the coming week by pool. ``for_tpu`` are jobs that could run on a TPU but do
    not name it in their needs; ``half_empty`` used at most half of their GPU memory in the last seven days.
    """

    start: int
    end: int
    hours: float
    free_hours: Mapping[str, float]
    jobs: tuple[JobAdvice, ...]
    for_tpu: tuple[str, ...] = ()
    half_empty: tuple[JobGpus, ...] = ()


class JobCurve:
    """The curve of one job, and the forecasts that follow from it."""

    def __init__(
        self, tx: Connection, record: JobRecord, state: TrainingProgress, plan: Plan | None, now: int, metric: str = ""
    ) -> None:
        self.spec, self._state, self._plan, self._now = record.spec, state, plan, now
        rule = self.spec.stop
        self.metric = metric or (rule.metric if rule else "held_out_loss")
        self.goal, self.goal_of, self.aim = _goal(self.spec, self.metric)
        self.saved: list[CheckpointRecord] = [
            one
            for _, one in measured(tx, self.spec.name, self.metric, record.fenced_attempt)
            if isfinite(one.manifest.metrics[self.metric])
        ]
        self.points = tuple((one.manifest.step, one.manifest.metrics[self.metric]) for one in self.saved)
        self.curve: LearningCurve | None = forecast_of(self.points, self.aim)
        self.newest = self.points[-1][0] if self.points else 0

    def gain(self, before: float, after: float) -> float:
        """Return by how much ``after`` is better than ``before``; negative if it is worse."""
        return before - after if self.aim == "low" else after - before

    def at(self, step: int | None) -> int | None:
        """Return when the plan trains a step, in UTC seconds; None if that is unknown or the step is past."""
        if step is None:
            return None
        per_second, until = (self._state.steps_per_hour or 0.0) / HOUR, self._state.ends_at
        live = (until, per_second) if until else None
        ahead = forecast(self.spec.name, step - self._state.step, self._plan, 0.0, None, self._now, live)
        return ahead.expected if ahead else None

    def buys(self, hours: float) -> Bought | None:
        """Return the effect of more hours at the measured speed; fewer hours if the forecast does not reach so far."""
        speed = self._state.steps_per_hour or 0.0
        steps = min(round(hours * speed), (REACH - 1) * self.newest)
        if self.curve is None or steps <= 0:
            return None
        band, hours = self.curve.at(self.newest + steps), min(hours, steps / speed)
        gain = self.gain(self.curve.at(self.newest).middle, band.middle)
        return Bought(hours, steps, band, gain, gain / hours)

    def reaches(self, goal: float) -> int | None:
        """Return the first step at which the goal is reached with probability 0.5; None if no forecast reaches it."""
        first, last = self.newest, REACH * self.newest
        if self.curve is None or self.curve.chance(goal, last) < 0.5:
            return None
        while first < last:
            middle = (first + last) // 2
            first, last = (first, middle) if self.curve.chance(goal, middle) >= 0.5 else (middle + 1, last)
        return first

    def forecast(self, hours: float) -> JobForecast:
        """Return the forecast of the job, with the effect of ``hours`` more hours."""
        target = self.spec.target_step
        forecast = JobForecast(self.spec.name, self.metric, self.aim, target, self.points, done_at=self.at(target))
        if self.curve is None:
            few, needed = counted(len(self.points), "checkpoint"), counted(POINTS_MIN, "checkpoint")
            return replace(forecast, why=f"a forecast needs {needed} with {self.metric}, it has {few}")
        bought = self.buys(hours)
        end = min(max(target, self.newest + (bought.steps if bought else 0)), REACH * self.newest)
        steps = sorted({self.newest + (end - self.newest) * part // _DRAWN for part in range(_DRAWN + 1)})
        reachable = self.newest <= target <= REACH * self.newest
        goal_step = None if self.goal is None else self.reaches(self.goal)
        return replace(
            forecast,
            now=self.curve.at(self.newest).middle,
            bands=tuple(map(self.curve.at, steps)),
            target=self.curve.at(target) if reachable else None,
            goal=self.goal,
            goal_of=self.goal_of,
            chance=self.curve.chance(self.goal, target) if self.goal is not None and reachable else None,
            goal_step=goal_step,
            goal_at=self.at(goal_step),
            bought=bought,
        )

    def advice(self, tx: Connection, hours: float, free_hours: float) -> JobAdvice:
        """Return the advice for a job without its verdict."""
        since = self._now - WEEK
        used = ledger.device_seconds(tx, [self.spec.name], since)[self.spec.name] / HOUR
        newer = [place for place, one in enumerate(self.saved) if one.manifest.created_at > since]
        steps, gained = 0, None
        if newer:
            (start, first), (end, last) = self.points[max(0, newer[0] - 1)], self.points[-1]
            steps, gained = end - (start if newer[0] else 0), self.gain(first, last)
        return JobAdvice(self.forecast(hours), free_hours, self.buys(free_hours), used, steps, gained)


def _goal(
    spec: JobSpec, metric: str
) -> tuple[float | None, Literal["stop rule", "quality gate", ""], Literal["high", "low"]]:
    rule = spec.stop
    if rule is not None and rule.metric == metric:
        return rule.value, "stop rule" if rule.value is not None else "", rule.aim
    for gate in spec.gates:
        if gate.metric == metric and gate.minimum is not None:
            return gate.minimum, "quality gate", "high"
        if gate.metric == metric and gate.maximum is not None:
            return gate.maximum, "quality gate", "low"
    return None, "", "low" if any(word in metric for word in _LESS_IS_MORE) else "high"


def hours_advice(
    tx: Connection,
    records: Sequence[JobRecord],
    progress_of_jobs: Sequence[TrainingProgress],
    pools: Mapping[str, Pool],
    plan: Plan | None,
    week: ComingWeek | None,
    hours: float,
    now: int,
) -> HoursAdvice:
    """Return the advice for jobs; ``progress_of_jobs`` is the training progress of ``records``, in the same order."""
    gaps = week.gaps if week else ()
    free: dict[str, float] = {}
    for gap in gaps:
        free[gap.pool] = free.get(gap.pool, 0.0) + gap.length / HOUR
    rows = []
    for record, progress in zip(records, progress_of_jobs, strict=True):
        usable_hours = sum(free[name] for name in free if name in pools and _may_use(record.spec, pools[name]))
        rows.append(JobCurve(tx, record, progress, plan, now).advice(tx, hours, min(usable_hours, WEEK / HOUR)))
    shares = [share for row in rows if (share := share_per_hour(row.forecast)) is not None]
    usual = median(shares) if len(shares) > 1 else None
    judged = [_with_verdict(row, record.spec, usual) for row, record in zip(rows, records, strict=True)]
    order = sorted(judged, key=lambda row: share_per_hour(row.forecast) or -inf, reverse=True)
    specs, tpu = [record.spec for record in records], any(pool.kind == "tpu" for pool in pools.values())
    for_tpu = tuple(spec.name for spec in specs if tpu and could_use_tpu(spec))
    half_empty = tuple(one for one in gpus_of(series.gpu_metrics(tx, now - WEEK, now), pools, specs) if one.offer)
    return HoursAdvice(now, now + WEEK, hours, free, tuple(order), for_tpu, half_empty)


def _may_use(spec: JobSpec, pool: Pool) -> bool:
    needs, allowed = spec.needs, not spec.pools or pool.name in spec.pools
    return allowed and needs.fits(pool) and needs.devices_min <= pool.devices_per_session


def share_per_hour(one: JobForecast) -> float | None:
    """Return the gain of one more hour as a share of the metric; None without a forecast."""
    return one.bought.gain_per_hour / abs(one.now) if one.bought and one.now else None


def _with_verdict(row: JobAdvice, spec: JobSpec, usual: float | None) -> JobAdvice:
    """Return the advice with its verdict; ``usual`` is the median gain of an hour over all jobs, as a share."""
    one, bought, share = row.forecast, row.forecast.bought, share_per_hour(row.forecast)
    if share is None or bought is None or one.now is None:
        return replace(row, why=one.why or "its speed is not known")
    rank = f"schedctl queue priority {one.job}"
    edges = [band.low if one.aim == "low" else band.high for band in (one.bands[0], bought.band)]
    best_gain = abs(edges[1] - edges[0]) / abs(one.now)  # between the favourable edges of both bands
    verdict: tuple[Verdict, str, str] = "keep", "an hour gains about as much as usual", ""
    if one.chance is not None and one.chance < _HOPELESS:
        verdict = "stop", f"it will miss its {one.goal_of} of {one.goal:.4g}", f"schedctl queue cancel {one.job}"
    elif share * bought.hours < _NOTHING and best_gain < _LITTLE:
        verdict = "stop", f"{bought.hours:g} h more gain next to nothing", f"schedctl queue cancel {one.job}"
    elif bought.band.step > spec.target_step and share * bought.hours >= _MUCH:
        command = f"schedctl queue edit {one.job} --set target_step={bought.band.step}"
        verdict = "grow", "it still learns at its target step", command
    elif usual is not None and share >= 2 * usual:
        verdict = "grow", "an hour gains twice as much as usual", f"{rank} {2 * spec.weight:g}"
    elif usual is not None and share <= usual / 2:
        verdict = "halve", "an hour gains half as much as usual", f"{rank} {spec.weight / 2:g}"
    return replace(row, verdict=verdict[0], why=verdict[1], command=verdict[2])
