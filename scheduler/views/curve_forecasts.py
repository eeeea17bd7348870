"""Curve forecasts: what a job's metric will be, what more hours buy, and which jobs are worth more hours."""

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
_DRAWN = 24  # bands of a curve
_LESS_IS_MORE = ("loss", "error", "perplexity")  # parts of the names of metrics that are good when they are low
_HOPELESS = 0.05
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
    """The forecast of a metric of a job; ``points`` are its checkpoints. Without a forecast, ``why`` says why.

    ``now`` is the metric at the newest checkpoint without its noise, ``target`` that at the target step, which is
    reached at ``done_at`` (UTC seconds). ``goal`` is what the job's stop rule or its quality gate wants (``goal_of``):
    it is reached by the target step with the probability ``chance``, and probably at ``goal_step`` and ``goal_at``.
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
    """One job of the advice. ``free_hours`` are those of the coming week that it could use, and ``free`` what they buy.

    ``used_hours`` are device hours of the last seven days, ``used_steps`` and ``used_gain`` what they bought. The
    ``command`` carries the verdict out; "keep" needs none.
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
    """The jobs by what ``hours`` more buy, as a share of the metric, best first; ``free_hours`` of the week by pool.

    ``for_tpu`` are the jobs that could use the TPU of a pool, and do not name it among their needs. ``half_empty`` are
    those that used at most half of the memory of their GPUs in the last seven days.
    """

    start: int
    end: int
    hours: float
    free_hours: Mapping[str, float]
    jobs: tuple[JobAdvice, ...]
    for_tpu: tuple[str, ...] = ()
    half_empty: tuple[JobGpus, ...] = ()


class JobCurve:
    """The curve of one job, with all that is asked of it."""

    def __init__(
        self, tx: Connection, record: JobRecord, going: TrainingProgress, plan: Plan | None, now: int, metric: str = ""
    ) -> None:
        self.spec, self._going, self._plan, self._now = record.spec, going, plan, now
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
        """Return by how much ``after`` is better."""
        return before - after if self.aim == "low" else after - before

    def at(self, step: int | None) -> int | None:
        """Return when a step will have been trained, by the plan; None if it is unknown or past."""
        if step is None:
            return None
        per_second, until = (self._going.steps_per_hour or 0.0) / HOUR, self._going.ends_at
        live = (until, per_second) if until else None
        ahead = forecast(self.spec.name, step - self._going.step, self._plan, 0.0, None, self._now, live)
        return ahead.expected if ahead else None

    def buys(self, hours: float) -> Bought | None:
        """Return the effect of more hours at the measured speed; fewer hours if the forecast does not reach so far."""
        speed = self._going.steps_per_hour or 0.0
        steps = min(round(hours * speed), (REACH - 1) * self.newest)
        if self.curve is None or steps <= 0:
            return None
        band, hours = self.curve.at(self.newest + steps), min(hours, steps / speed)
        gain = self.gain(self.curve.at(self.newest).middle, band.middle)
        return Bought(hours, steps, band, gain, gain / hours)

    def reaches(self, goal: float) -> int | None:
        """Return the first step at which the goal is reached more probably than not; None if no forecast reaches it."""
        first, last = self.newest, REACH * self.newest
        if self.curve is None or self.curve.chance(goal, last) < 0.5:
            return None
        while first < last:
            middle = (first + last) // 2
            first, last = (first, middle) if self.curve.chance(goal, middle) >= 0.5 else (middle + 1, last)
        return first

    def forecast(self, hours: float) -> JobForecast:
        """Return the whole forecast."""
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
    goings: Sequence[TrainingProgress],
    pools: Mapping[str, Pool],
    plan: Plan | None,
    week: ComingWeek | None,
    hours: float,
    now: int,
) -> HoursAdvice:
    """Return the advice for jobs whose training state is in ``goings``."""
    gaps = week.gaps if week else ()
    free: dict[str, float] = {}
    for gap in gaps:
        free[gap.pool] = free.get(gap.pool, 0.0) + gap.length / HOUR
    rows = []
    for record, going in zip(records, goings, strict=True):
        could = sum(free[name] for name in free if name in pools and _may_use(record.spec, pools[name]))
        rows.append(JobCurve(tx, record, going, plan, now).advice(tx, hours, min(could, WEEK / HOUR)))
    shares = [share for row in rows if (share := share_per_hour(row.forecast)) is not None]
    usual = median(shares) if len(shares) > 1 else None
    judged = [_judged(row, record.spec, usual) for row, record in zip(rows, records, strict=True)]
    order = sorted(judged, key=lambda row: share_per_hour(row.forecast) or -inf, reverse=True)
    specs, tpu = [record.spec for record in records], any(pool.kind == "tpu" for pool in pools.values())
    for_tpu = tuple(spec.name for spec in specs if tpu and could_use_tpu(spec))
    half_empty = tuple(one for one in gpus_of(series.gpu_metrics(tx, now - WEEK, now), pools, specs) if one.offer)
    return HoursAdvice(now, now + WEEK, hours, free, tuple(order), for_tpu, half_empty)


def _may_use(spec: JobSpec, pool: Pool) -> bool:
    needs, allowed = spec.needs, not spec.pools or pool.name in spec.pools
    return allowed and needs.fits(pool) and needs.devices_min <= pool.devices_per_session


def share_per_hour(one: JobForecast) -> float | None:
    """Return by which share of the metric an hour more improves it."""
    return one.bought.gain_per_hour / abs(one.now) if one.bought and one.now else None


def _judged(row: JobAdvice, spec: JobSpec, usual: float | None) -> JobAdvice:
    """Return the advice with its verdict; ``usual`` is the median share that an hour improves the metric of a job."""
    one, bought, share = row.forecast, row.forecast.bought, share_per_hour(row.forecast)
    if share is None or bought is None or one.now is None:
        return replace(row, why=one.why or "its speed is not known")
    rank = f"schedctl queue priority {one.job}"
    edges = [band.low if one.aim == "low" else band.high for band in (one.bands[0], bought.band)]
    luck = abs(edges[1] - edges[0]) / abs(one.now)  # what it gains where all goes well
    verdict: tuple[Verdict, str, str] = "keep", "an hour gains about as much as usual", ""
    if one.chance is not None and one.chance < _HOPELESS:
        verdict = "stop", f"it will miss the {one.goal:.4g} of its {one.goal_of}", f"schedctl queue cancel {one.job}"
    elif share * bought.hours < _NOTHING and luck < _LITTLE:
        verdict = "stop", f"{bought.hours:g} h more gain next to nothing", f"schedctl queue cancel {one.job}"
    elif bought.band.step > spec.target_step and share * bought.hours >= _MUCH:
        command = f"schedctl queue edit {one.job} --set target_step={bought.band.step}"
        verdict = "grow", "it still learns at its target step", command
    elif usual is not None and share >= 2 * usual:
        verdict = "grow", "an hour gains twice as much as usual", f"{rank} {2 * spec.weight:g}"
    elif usual is not None and share <= usual / 2:
        verdict = "halve", "an hour gains half as much as usual", f"{rank} {spec.weight / 2:g}"
    return replace(row, verdict=verdict[0], why=verdict[1], command=verdict[2])
